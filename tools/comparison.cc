#include "tools/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "tools/step_figures.h"
#include "tools/time_shares.h"

namespace stepsim {

namespace {

class Figures {
 public:
  void time(const std::string& key, const std::string& name, Duration value) { add(key, name, FigureUnit::kTime, exact_seconds(value)); }
  void bytes(const std::string& key, const std::string& name, Bytes value) {
    add(key, name, FigureUnit::kBytes, static_cast<double>(value.value));
  }
  void add(const std::string& key, const std::string& name, FigureUnit unit, std::optional<double> value) {
    figures_.push_back({key, name, unit, value});
  }
  std::vector<ComparedFigure> take() { return std::move(figures_); }

 private:
  static double exact_seconds(Duration time) { return static_cast<double>(time.count()) / 1e12; }  // as in report_json.cc
  std::vector<ComparedFigure> figures_;
};

// The partition of the step: adds up to its time.
void add_times(const StepRun& run, Figures& figures) {
  const TimePartition& time = run.run.time;
  constexpr std::array<const char*, 4> kKeys = {"forward_s", "backward_s", "recompute_s", "optimizer_s"};
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    figures.time(kKeys[i], std::string(kPhaseNames[i]), i < time.busy.size() ? time.busy[i] : Duration{});
  }
  figures.time("contention_s", "contention", time.contention);
  constexpr std::array<const char*, 6> kGroups = {"", "TP", "DP", "PP", "CP", "EP"};
  for (std::size_t i = 1; i < kGroups.size(); ++i) {
    figures.time(fmt::format("exposed_{}_s", kGroupNames[i]), fmt::format("exposed {}", kGroups[i]),
                 i < time.exposed_collective.size() ? time.exposed_collective[i] : Duration{});
  }
  const ExposedCopies copies = exposed_copies(time, run.step.phases);
  figures.time("exposed_copy_forward_s", "exposed copies, forward", copies.forward);
  figures.time("exposed_copy_backward_s", "exposed copies, backward", copies.backward);
  figures.time("exposed_copy_tail_s", "exposed copies, tail", copies.tail);
  figures.time("pipeline_bubble_s", "bubble", time.bubble);
  figures.time("host_s", "host", time.host);
  figures.time("idle_s", "idle", time.idle);
}

std::vector<ComparedFigure> figures_of_step(const Job& job, const StepRun& run, const StepFigures& memory) {
  Figures figures;
  const ConventionFlops& flops = run.flops_of(job.convention);
  const double tokens = static_cast<double>(job.training.global_batch) * static_cast<double>(job.training.sequence);
  const bool timed = !run.run.stopped && run.step_time_s() > 0;
  figures.time("step_time_s", "step time", run.run.result.end);
  figures.add("tokens_per_s", "tokens/s", FigureUnit::kPerSecond, timed ? std::optional(tokens / run.step_time_s()) : std::nullopt);
  figures.add("mfu", "MFU", FigureUnit::kFraction, flops.mfu);
  figures.add("hfu", "HFU", FigureUnit::kFraction, flops.hfu);
  add_times(run, figures);
  Bytes saved, first;
  for (const StagePeaks& peaks : run.stage_peaks) {
    saved = std::max(saved, peaks.saved_activations);
    first = std::max(first, peaks.first_iteration);
  }
  figures.bytes("peak_allocated_bytes", "peak", memory.peak);
  figures.bytes("peak_reserved_bytes", "reserved", figures_of(run).reserved);
  figures.bytes("first_iteration_peak_bytes", "peak in iteration 1", first);
  figures.bytes("saved_activations_peak_bytes", "saved activations", saved);
  figures.bytes("host_peak_bytes", "host peak", memory.host_peak);
  const DeviceMemory* const tightest = run.run.tightest();
  figures.add("margin_bytes", "card less peak", FigureUnit::kBytes,
              tightest == nullptr ? std::nullopt : std::optional(static_cast<double>(*tightest->margin())));
  return figures.take();
}

}  // namespace

ComparedStep compared_step(const std::string& label, const Job& job, const StepRun& run) {
  const StepFigures memory = figures_of(run.run);
  ComparedStep step{.label = label,
                    .job = fmt::format("{} on {} x {}, {}", job.model.name, job.gpus, job.gpu.name, placement_label(job.placement)),
                    .set = {},
                    .figures = figures_of_step(job, run, memory),
                    .fits = memory.fits,
                    .short_by = memory.short_by,
                    .host_short_by = memory.host_short_by,
                    .shares = time_shares(run.step.graph, run.run),
                    .banded = banded_step(job, run.run, run.step.graph),
                    .peak = peak_account(run)};
  for (const JobValue& value : job.values) {
    // framework.name says what differs between presets; which fields are shown depends on the rest of the job.
    const bool of_preset = value.path.starts_with("framework.") && value.path != "framework.name" && value.source.starts_with("default: ");
    if (!of_preset) step.set[value.path] = value.value;
  }
  for (const auto& [field, value] : job.entries.machine) step.set["hardware." + field] = value;
  for (const auto& [field, value] : job.entries.cluster) step.set["cluster." + field] = value;
  return step;
}

std::optional<DifferenceBand> step_difference(const ComparedStep& base, const ComparedStep& other) {
  if (!base.banded || !other.banded) return std::nullopt;
  return difference_band(*base.banded, *other.banded);
}

std::vector<ChangedValue> changed_values(const std::vector<ComparedStep>& steps) {
  std::set<std::string> paths;
  for (const ComparedStep& step : steps) {
    for (const auto& [path, value] : step.set) paths.insert(path);
  }
  std::vector<ChangedValue> changed;
  for (const std::string& path : paths) {
    ChangedValue row{path, {}};
    for (const ComparedStep& step : steps) {
      const auto found = step.set.find(path);
      row.values.push_back(found == step.set.end() ? "" : found->second);
    }
    const auto other = [&](const std::string& value) { return value != row.values.front(); };
    if (std::any_of(row.values.begin(), row.values.end(), other)) changed.push_back(std::move(row));
  }
  return changed;
}

std::vector<OpDifference> op_differences(const ComparedStep& base, const ComparedStep& other) {
  std::map<std::string, OpDifference> by_name;
  for (const auto& [name, time] : base.shares) by_name[name].base = time;
  for (const auto& [name, time] : other.shares) by_name[name].other = time;
  std::vector<OpDifference> differences;
  for (auto& [name, difference] : by_name) {
    difference.name = name;
    if (difference.base != difference.other) differences.push_back(difference);
  }
  const auto size = [](const OpDifference& each) { return std::abs(each.difference().count()); };
  std::stable_sort(differences.begin(), differences.end(), [&](const OpDifference& a, const OpDifference& b) { return size(a) > size(b); });
  return differences;
}

}  // namespace stepsim
