#include "tools/offload_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "models/placement_rows.h"

namespace stepsim {

namespace {

// Where a tensor moves: a layer of the model, for one micro-batch or (-1) all.
using MovedAt = std::pair<std::int64_t, std::int64_t>;                               // micro-batch, layer
using MovedSlots = std::map<std::pair<std::int32_t, SlotIndex>, std::set<MovedAt>>;  // by kind of layer and root

MovedSlots moved_slots(const Job& job, const LayerStack& stack, const StageLayout& stages) {
  MovedSlots moved;
  const bool same = job.placement.same_for_all_micro_batches();
  const std::int64_t micro_batches = same ? 1 : micro_batches_of(job);
  for (std::size_t part = 0; part < stages.parts.size(); ++part) {
    const ModelChunk& chunk = stages.parts[part];
    if (chunk.layers == 0) continue;
    const auto stage = static_cast<std::int64_t>(part % static_cast<std::size_t>(stages.stages));
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      const PlacementPolicy policy = chunk_policy(job.placement, chunk.first_layer, chunk.layers, micro_batch);
      const LayerStack own = stack.part(chunk.first_layer, chunk.layers);
      for (const PlanStep& step : make_plan(own, policy, job.framework, stage).forward) {
        if (step.verb != PlanVerb::kCopyOut) continue;
        moved[{own.kind_of(step.layer), step.first}].insert({same ? -1 : micro_batch, chunk.first_layer + step.layer});
      }
    }
  }
  return moved;
}

// Rows that say `action` of the slot wherever it moves: one for each run of layers.
void add_rows(const std::string& name, const std::set<MovedAt>& where, PlacementAction action, std::vector<PlacementRow>& rows) {
  for (const auto& [micro_batch, layer] : where) {
    const std::int64_t first = std::max<std::int64_t>(micro_batch, 0);
    if (!rows.empty() && rows.back().module_or_slot == name && rows.back().action == action &&
        rows.back().last_micro_batch == micro_batch && rows.back().last_layer + 1 == layer) {
      rows.back().last_layer = layer;
      continue;
    }
    rows.push_back({.first_layer = layer,
                    .last_layer = layer,
                    .module_or_slot = name,
                    .action = action,
                    .first_micro_batch = first,
                    .last_micro_batch = micro_batch});
  }
}

// What rows offload is kept instead, also where a limit of the job keeps it anyway.
std::vector<PlacementRow> with_kept(const std::vector<PlacementRow>& rows, const LayerStack& stack, std::vector<RowSlots>& row_slots) {
  std::vector<PlacementRow> kept;
  for (const PlacementRow& row : rows) {
    if (row.action != PlacementAction::kOffload) {
      kept.push_back(row);
      continue;
    }
    std::set<std::string> known;
    for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
      RowSlots& slots = row_slots[static_cast<std::size_t>(kind)];
      for (const SlotIndex root : slots.of(row.module_or_slot, true)) {
        const std::string& name = stack.kind(kind).slots[static_cast<std::size_t>(root)].name;
        if (slots.of(name).size() != 1) continue;  // the name of a module too: it stays as other rows have it
        if (!known.insert(name).second) continue;
        kept.push_back(row);
        kept.back().module_or_slot = name;
        kept.back().action = PlacementAction::kKeep;
        kept.back().slices = kept.back().of_slices = 1;
      }
    }
  }
  return kept;
}

bool recomputes_all(const PlacementPolicy& policy) {
  return policy.granularity == RecomputeGranularity::kFull || policy.halving || policy.segments > 0 || !policy.segment_sizes.empty();
}

// The time of a step beside that of the job's own: "452.30 ms (+1.4 %)", and what it lacks.
std::string figures_text(const StepFigures& figures, const StepFigures* own) {
  std::string text = fmt::format("{:.2f} ms", seconds(figures.step) * 1e3);
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  if (own != nullptr && own->step.count() > 0) {
    text += fmt::format(" ({:+.1f} %)", 100 * (seconds(figures.step) / seconds(own->step) - 1));
  }
  if (figures.short_by.value > 0) return text + fmt::format(", {:.2f} GiB short", gib(figures.short_by));
  if (figures.host_short_by.value > 0) return text + fmt::format(", {:.2f} GiB of host memory short", gib(figures.host_short_by));
  return figures.fits ? text : text + ", does not fit";
}

}  // namespace

OffloadCounterparts offload_counterparts(const Job& job, const StageLayout& stages) {
  const StepTemplates templates = step_templates({job.model, job.training, job.parallel, job.framework});
  const LayerStack stack = layer_stack(templates, job.model.layers);
  std::vector<RowSlots> row_slots;  // by kind
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) row_slots.emplace_back(stack.kind(kind), stack.kind_table(kind));
  OffloadCounterparts counterparts;
  counterparts.kept = job.placement;
  counterparts.kept.offload = {};
  counterparts.kept.rows = with_kept(job.placement.rows, stack, row_slots);
  const bool rows_allowed = !recomputes_all(job.placement);
  if (!rows_allowed) std::erase_if(counterparts.kept.rows, [](const PlacementRow& row) { return row.action == PlacementAction::kKeep; });
  PlacementPolicy rerun = counterparts.kept;
  std::size_t reruns = 0;
  for (const auto& [moved, where] : moved_slots(job, stack, stages)) {
    const auto [kind, root] = moved;
    const Slot& slot = stack.kind(kind).slots[static_cast<std::size_t>(root)];
    const std::vector<SlotIndex>& named = row_slots[static_cast<std::size_t>(kind)].of(slot.name);
    const bool row_says_it = rows_allowed && named.size() == 1 && named.front() == root;
    const std::int64_t first_micro_batch = where.begin()->first;
    const auto layers = std::count_if(where.begin(), where.end(), [&](const MovedAt& at) { return at.first == first_micro_batch; });
    counterparts.moved += static_cast<std::size_t>(layers);
    if (row_says_it) add_rows(slot.name, where, PlacementAction::kKeep, counterparts.kept.rows);
    if (row_says_it && root != stack.kind_table(kind).input) {
      add_rows(slot.name, where, PlacementAction::kRecompute, rerun.rows);
      ++reruns;
      continue;
    }
    if (row_says_it) add_rows(slot.name, where, PlacementAction::kKeep, rerun.rows);
    std::vector<std::string>& stays = counterparts.not_rerun;
    if (std::find(stays.begin(), stays.end(), slot.name) == stays.end()) stays.push_back(slot.name);
    counterparts.not_rerun_bytes += Bytes(slot.size.value * layers);
  }
  if (reruns > 0) counterparts.recomputed = rerun;
  return counterparts;
}

OffloadChoice best_of(const StepFigures& kept, const StepFigures& offloaded, const std::optional<StepFigures>& recomputed) {
  using Candidate = std::pair<OffloadChoice, const StepFigures*>;
  std::vector<Candidate> candidates = {{OffloadChoice::kKeep, &kept}, {OffloadChoice::kOffload, &offloaded}};
  if (recomputed) candidates.emplace_back(OffloadChoice::kRecompute, &*recomputed);
  // Of what fits, or of what lacks least.
  const auto lacks = [](const Candidate& each) {
    const StepFigures& step = *each.second;
    return std::pair(!step.fits, step.fits ? Bytes(0) : step.short_by + step.host_short_by);
  };
  const auto lacks_less = [&](const Candidate& a, const Candidate& b) { return lacks(a) < lacks(b); };
  const auto least_lacking = lacks(*std::min_element(candidates.begin(), candidates.end(), lacks_less));
  std::erase_if(candidates, [&](const Candidate& each) { return lacks(each) > least_lacking; });
  const auto shorter = [](const Candidate& a, const Candidate& b) { return a.second->step < b.second->step; };
  const Duration least = std::min_element(candidates.begin(), candidates.end(), shorter)->second->step;
  const Duration enough = least + Duration(least.count() / 1000);
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& each) { return each.second->step <= enough; });
  return found->first;
}

std::optional<OffloadVerdict> offload_verdict(const Job& job, const StepRun& run) {
  if (!job.placement.offloads()) return std::nullopt;
  OffloadVerdict verdict;
  verdict.own = figures_of(run.run);
  const auto ops = static_cast<std::int64_t>(run.step.graph.ops().size());
  constexpr std::int64_t kSteps = 3;  // kept; recomputed, which runs no op more than twice
  if (job.stop_at_out_of_memory) verdict.not_compared = "the job stops at out of memory";
  if (kSteps * ops > kMostVerdictOps) {
    verdict.not_compared = fmt::format("the steps to compare are up to {} ops, more than {}", kSteps * ops, kMostVerdictOps);
  }
  if (!verdict.not_compared.empty()) return verdict;
  const OffloadCounterparts counterparts = offload_counterparts(job, run.step.stages);
  if (counterparts.moved == 0) {
    verdict.not_compared = "nothing moves";
    return verdict;
  }
  verdict.not_rerun = counterparts.not_rerun;
  verdict.kept = figures_with(job, run, counterparts.kept);
  if (counterparts.recomputed) verdict.recomputed = figures_with(job, run, *counterparts.recomputed);
  verdict.best = best_of(verdict.kept, verdict.own, verdict.recomputed);
  return verdict;
}

std::string verdict_text(const OffloadVerdict& verdict) {
  if (!verdict.not_compared.empty()) return "not compared: " + verdict.not_compared;
  constexpr std::array<const char*, 3> kNames = {"keep", "offload", "recompute"};
  std::string text = "offload " + figures_text(verdict.own, nullptr);
  if (verdict.recomputed) text += "; recompute " + figures_text(*verdict.recomputed, &verdict.own);
  text += "; keep " + figures_text(verdict.kept, &verdict.own);
  const bool one_fits = verdict.own.fits || verdict.kept.fits || (verdict.recomputed && verdict.recomputed->fits);
  const char* const best = kNames[static_cast<std::size_t>(verdict.best)];
  text += one_fits ? fmt::format(" -> {}", best) : fmt::format(" -> none fits, {} lacks least", best);
  if (verdict.not_rerun.empty()) return text;
  return text + fmt::format("; {} cannot be run again without the layer before", fmt::join(verdict.not_rerun, ", "));
}

}  // namespace stepsim
