#include "tools/studies/chain_baselines.h"

#include <algorithm>
#include <utility>

#include "tools/studies/chain_writer.h"
#include "tools/studies/pofo.h"
#include "tools/studies/rotor.h"
#include "tools/studies/segments.h"

namespace stepsim {

namespace {

MaybeSchedule if_it_fits(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops) {
  ChainSchedule schedule = with_drops(chain, ops);
  if (replay(chain, budget, schedule).violation) return std::nullopt;
  return settled(chain, budget, schedule);
}

// Of `length` layers each; the last one may have fewer.
std::vector<ChainSegment> equal_segments(int layers, int length, bool last_kept) {
  std::vector<ChainSegment> segments;
  for (int first = 1; first <= layers; first += length) segments.push_back({first, std::min(first + length - 1, layers), false});
  segments.back().kept = last_kept;
  return segments;
}

enum class Fate { kKept, kRecomputed, kOffloaded };

MaybeSchedule with_fates(const Chain& chain, const ChainBudget& budget, const std::vector<Fate>& fates) {
  std::vector<ChainSegment> segments;
  ChainOffload offload{std::vector<bool>(chain.output.size()), std::vector<bool>(chain.output.size())};
  bool copies = false;
  for (int i = 1; i <= chain.layers(); ++i) {
    const Fate fate = fates[by_layer(i)];
    segments.push_back({i, i, fate != Fate::kRecomputed});
    offload.saved[from_zero(i)] = fate == Fate::kOffloaded;
    copies = copies || fate == Fate::kOffloaded;
  }
  const ChainSchedule ops = segment_ops(segments);
  return copies ? with_best_copies(chain, budget, ops, offload) : if_it_fits(chain, budget, ops);
}

}  // namespace

MaybeSchedule keep_all(const Chain& chain, const ChainBudget& budget) {
  return if_it_fits(chain, budget, segment_ops({{1, chain.layers(), true}}));
}

MaybeSchedule drop_all(const Chain& chain, const ChainBudget& budget) {
  return if_it_fits(chain, budget, segment_ops(equal_segments(chain.layers(), 1, false)));
}

MaybeSchedule uniform_segments(const Chain& chain, const ChainBudget& budget) {
  MaybeSchedule best;
  std::int64_t best_peak = 0;
  for (int length = 1; length <= chain.layers(); ++length) {
    MaybeSchedule schedule = if_it_fits(chain, budget, segment_ops(equal_segments(chain.layers(), length, false)));
    if (!schedule) continue;
    const std::int64_t peak = replay(chain, budget, *schedule).peak;
    if (best && best_peak <= peak) continue;
    best = std::move(schedule);
    best_peak = peak;
  }
  return best;
}

MaybeSchedule block_recompute(const Chain& chain, const ChainBudget& budget) {
  for (int recomputed = 0; recomputed <= chain.layers(); ++recomputed) {
    std::vector<ChainSegment> segments;
    for (int i = 1; i <= chain.layers(); ++i) segments.push_back({i, i, i > recomputed});
    MaybeSchedule schedule = if_it_fits(chain, budget, segment_ops(segments));
    if (schedule) return schedule;  // each further layer only adds time
  }
  return std::nullopt;
}

MaybeSchedule sqrt_segments(const Chain& chain, const ChainBudget& budget) {
  int length = 1;
  while (length * length < chain.layers()) ++length;
  return if_it_fits(chain, budget, segment_ops(equal_segments(chain.layers(), length, true)));
}

MaybeSchedule best_segments(const Chain& chain, const ChainBudget& budget) {
  const std::optional<std::vector<ChainSegment>> segments = fastest_segments(chain, budget.device);
  return segments ? if_it_fits(chain, budget, segment_ops(*segments)) : std::nullopt;
}

MaybeSchedule rotor(const Chain& chain, const ChainBudget& budget, std::int64_t slots) {
  const std::int64_t unit = std::max<std::int64_t>(1, (budget.device + slots - 1) / slots);
  const RotorTable table(chain, budget.device / unit, unit);
  if (!table.time(1, chain.layers() + 1, table.free_units())) return std::nullopt;
  ChainSchedule ops;
  table.append_ops(1, chain.layers() + 1, table.free_units(), ops);
  return if_it_fits(chain, budget, ops);
}

MaybeSchedule greedy_by_rate(const Chain& chain, const ChainBudget& budget) {
  std::vector<Fate> fates(from_zero(chain.layers()), Fate::kKept);
  struct Step {
    double bytes_per_time = 0;
    std::size_t layer = 0;
    Fate fate = Fate::kRecomputed;
  };
  std::vector<Step> steps;
  const auto rate = [](std::int64_t bytes, std::int64_t time) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(time, 1));
  };
  for (int i = 1; i <= chain.layers(); ++i) {
    const std::size_t layer = by_layer(i);
    steps.push_back({rate(std::max<std::int64_t>(chain.saved[layer] - chain.output[from_zero(i - 1)], 0), chain.forward_time[layer]), layer,
                     Fate::kRecomputed});
    if (!chain.has_copies()) continue;
    steps.push_back({rate(chain.saved[layer], chain.saved_copy[layer].out + chain.saved_copy[layer].in), layer, Fate::kOffloaded});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.bytes_per_time > b.bytes_per_time; });
  MaybeSchedule schedule = with_fates(chain, budget, fates);
  for (const Step& step : steps) {
    if (schedule) break;
    if (fates[step.layer] != Fate::kKept) continue;
    fates[step.layer] = step.fate;
    schedule = with_fates(chain, budget, fates);
  }
  return schedule;
}

MaybeSchedule pofo(const Chain& chain, const ChainBudget& budget, std::int64_t slots) {
  if (!chain.has_copies()) return std::nullopt;
  const std::int64_t unit = std::max<std::int64_t>(1, (budget.device + slots - 1) / slots);
  PofoTable table(chain, budget.device / unit, unit);
  MaybeSchedule best;
  std::int64_t best_time = 0;
  // Whole tensors need more than the recurrence says; a plan for less memory may fit, and may even be faster.
  for (std::int64_t units = budget.device / unit; 2 * units >= budget.device / unit && units > 0; --units) {
    const std::optional<PofoPlan> plan = table.plan(units);
    if (!plan) break;
    MaybeSchedule schedule = with_best_copies(chain, budget, plan->ops, plan->offload);
    if (!schedule) continue;
    const std::int64_t time = replay(chain, budget, *schedule).time;
    if (best && best_time <= time) continue;
    best = std::move(schedule);
    best_time = time;
  }
  return best;
}

std::vector<ChainBaseline> chain_baselines(const Chain& chain, const ChainBudget& budget, bool copies) {
  Chain plain = chain;
  if (!copies) {
    plain.output_copy.clear();
    plain.saved_copy.clear();
  }
  std::vector<ChainBaseline> baselines = {
      {"keep all", keep_all(plain, budget)},     {"drop all", drop_all(plain, budget)},    {"uniform", uniform_segments(plain, budget)},
      {"block", block_recompute(plain, budget)}, {"sqrt", sqrt_segments(plain, budget)},   {"best segments", best_segments(plain, budget)},
      {"rotor", rotor(plain, budget)},           {"greedy", greedy_by_rate(plain, budget)}};
  if (plain.has_copies()) baselines.push_back({"pofo", pofo(plain, budget)});
  for (ChainBaseline& baseline : baselines) {
    if (!baseline.schedule) continue;
    const ChainReplay replayed = replay(plain, budget, *baseline.schedule);
    baseline.time = replayed.time;
    baseline.peak = replayed.peak;
  }
  return baselines;
}

}  // namespace stepsim
