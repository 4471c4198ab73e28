#include "tools/calibrate_published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/error_statistics.h"
#include "tools/published_rows.h"
#include "tools/slowdown_fit.h"

namespace stepsim {

namespace {

constexpr double kTried[] = {1, 1.4, 1.8};  // accuracy.md C.3: stacks that were measured take 1.0 to 1.8 times as long
constexpr double kTriedAttention = 0.8;     // accuracy.md B.4: published rates of FlashAttention-1 times 1.16 to 1.26

struct Slowdowns {
  double gemm = 1, attention = 1;
  friend bool operator==(const Slowdowns&, const Slowdowns&) = default;
};

// Stack files of trial, for jobs name a stack by its file; they go with the object.
class TrialStacks {
 public:
  explicit TrialStacks(const StackGroup& group) : group_(group) {
    std::error_code error;
    const std::filesystem::path all = std::filesystem::temp_directory_path(error);
    constexpr int kMostProcesses = 1000;
    for (int i = 0; folder_.empty(); ++i) {
      const std::filesystem::path candidate = all / fmt::format("stepsim-trial-stacks-{}", i);
      if (std::filesystem::create_directory(candidate, error)) folder_ = candidate;  // false: another process has it
      if (error || i == kMostProcesses) throw InputError({all.string()}, "found no room for stacks of trial, wanted a temporary folder");
    }
  }
  ~TrialStacks() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TrialStacks(const TrialStacks&) = delete;
  TrialStacks& operator=(const TrialStacks&) = delete;

  std::string file_of(const Slowdowns& slowdowns) const {
    const std::filesystem::path path = folder_ / fmt::format("{}-{}.textproto", slowdowns.gemm, slowdowns.attention);
    if (!std::filesystem::exists(path)) {
      std::ofstream file(path, std::ios::binary);
      for (const std::string& machine : group_.machines) file << fmt::format("machine: \"{}\"\n", machine);
      for (const std::string& precision : group_.precisions) file << fmt::format("precision: \"{}\"\n", precision);
      file << fmt::format("gemm {{ expected: {} }}\nattention {{ expected: {} }}\n", slowdowns.gemm, slowdowns.attention);
      if (!file.flush()) throw InputError({path.string()}, "found no room for a stack of trial, wanted a temporary folder");
    }
    return path.string();
  }

 private:
  const StackGroup& group_;
  std::filesystem::path folder_;
};

std::uint64_t hash_of(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

// Different texts by hash, then by text: how they alternate between the halves.
std::vector<std::string> hashed_order(const std::vector<std::string>& texts) {
  std::set<std::pair<std::uint64_t, std::string>> sorted;
  for (const std::string& text : texts) sorted.emplace(hash_of(text), text);
  std::vector<std::string> order;
  for (const auto& [hash, text] : sorted) order.push_back(text);
  return order;
}

class GroupFit {
 public:
  GroupFit(const StackGroup& group, const FitChoice& choice, const PublishedSimulation& simulate);
  StackCalibration calibrated();

 private:
  std::vector<std::size_t> fitted_steps() const;
  std::vector<SimulatedStep> simulated(const std::vector<std::size_t>& steps, const Slowdowns& slowdowns);
  void try_slowdowns(const std::vector<std::size_t>& steps, const Slowdowns& slowdowns);
  std::vector<FittedTime> times_of(const std::vector<std::size_t>& steps, double attention) const;
  Slowdowns best(const std::vector<std::size_t>& steps) const;
  Slowdowns fitted_slowdowns();
  void finish(const Slowdowns& slowdowns);

  const StackGroup& group_;
  FitChoice choice_;
  const PublishedSimulation& simulate_;
  TrialStacks stacks_;
  std::vector<FittedStep> rows_;
  // By step: times by the slowdown of products, seconds that attention's adds to them for each 1 of it, what both together miss.
  std::vector<TimeCurve> curves_;
  std::vector<double> attention_s_, missed_s_;
  std::vector<Slowdowns> last_;  // of with_stack_s
};

GroupFit::GroupFit(const StackGroup& group, const FitChoice& choice, const PublishedSimulation& simulate)
    : group_(group),
      choice_(choice),
      simulate_(simulate),
      stacks_(group),
      curves_(group.steps.size()),
      attention_s_(group.steps.size()),
      missed_s_(group.steps.size()),
      last_(group.steps.size()) {
  std::vector<std::string> texts;
  for (const GroupedStep& each : group.steps) texts.push_back(configuration_text(each.step));
  // Dense models and those with experts are halved apart, so that there are both in each half.
  std::vector<bool> held_out(texts.size());
  for (const bool experts : {false, true}) {
    std::vector<std::string> own;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (group.steps[i].experts != experts) continue;
      own.push_back(texts[i]);
      places.push_back(i);
    }
    const std::vector<bool> half = held_out_half(own);
    for (std::size_t i = 0; i < places.size(); ++i) held_out[places[i]] = half[i];
  }
  const std::vector<std::string> jobs = hashed_order(texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto job = std::find(jobs.begin(), jobs.end(), texts[i]);
    rows_.push_back({.id = group.steps[i].step.id,
                     .held_out = held_out[i] || (choice.dense_only && group.steps[i].experts),
                     .experts = group.steps[i].experts,
                     .job = static_cast<std::size_t>(job - jobs.begin()),
                     .measured_s = group.steps[i].step.measured_s});
  }
}

std::vector<SimulatedStep> GroupFit::simulated(const std::vector<std::size_t>& steps, const Slowdowns& slowdowns) {
  const std::string file = stacks_.file_of(slowdowns);
  std::vector<PublishedStep> jobs;
  for (const std::size_t step : steps) {
    jobs.push_back(group_.steps[step].step);
    jobs.back().set("--stack", "hardware.stack", file);
  }
  std::vector<SimulatedStep> times = simulate_(jobs);
  STEPSIM_CHECK(times.size() == steps.size());
  return times;
}

// A refused step says why.
void GroupFit::try_slowdowns(const std::vector<std::size_t>& steps, const Slowdowns& slowdowns) {
  const std::vector<SimulatedStep> times = simulated(steps, slowdowns);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    FittedStep& row = rows_[steps[i]];
    if (!times[i].refused.empty()) {
      row.refused = times[i].refused;
      continue;
    }
    const double time = times[i].step_s;
    if (slowdowns == Slowdowns{}) row.bare_s = time;
    if (slowdowns.attention == 1) {
      curves_[steps[i]].add(slowdowns.gemm, time);
    } else if (slowdowns == Slowdowns{1, kTriedAttention}) {
      attention_s_[steps[i]] = (time - row.bare_s) / (kTriedAttention - 1);
    } else {
      missed_s_[steps[i]] = time - curves_[steps[i]].at(slowdowns.gemm) - attention_s_[steps[i]] * (slowdowns.attention - 1);
    }
    row.with_stack_s = time;
    row.kernel_width = 1 - times[i].lower_s / time;
    last_[steps[i]] = slowdowns;
  }
}

std::vector<std::size_t> GroupFit::fitted_steps() const {
  std::vector<std::size_t> steps;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].held_out && rows_[i].refused.empty()) steps.push_back(i);
  }
  return steps;
}

std::vector<FittedTime> GroupFit::times_of(const std::vector<std::size_t>& steps, double attention) const {
  std::vector<FittedTime> times;
  for (const std::size_t step : steps) {
    const double added = attention == 1 ? 0 : attention_s_[step] * (attention - 1) + missed_s_[step];
    times.push_back({&curves_[step], rows_[step].measured_s, added});
  }
  return times;
}

double rounded(double slowdown) { return std::round(slowdown * 1000) / 1000; }

Slowdowns GroupFit::best(const std::vector<std::size_t>& steps) const {
  if (!choice_.attention) return {rounded(best_slowdown(times_of(steps, 1))), 1};
  Slowdowns best;
  double least = std::numeric_limits<double>::infinity();
  for (int hundredths = 60; hundredths <= 140; ++hundredths) {
    const double attention = hundredths / 100.0;
    const std::vector<FittedTime> times = times_of(steps, attention);
    const double gemm = rounded(best_slowdown(times)), error = mean_log_error(times, gemm);
    if (error >= least) continue;
    least = error;
    best = {gemm, attention};
  }
  return best;
}

Slowdowns GroupFit::fitted_slowdowns() {
  for (const double slowdown : kTried) try_slowdowns(fitted_steps(), {slowdown, 1});
  const std::vector<std::size_t> steps = fitted_steps();
  if (steps.empty()) {
    std::string reason;
    for (const FittedStep& row : rows_) {
      if (reason.empty()) reason = row.refused;
    }
    throw InputError({group_.name}, fmt::format("found no step that can be fitted{}, wanted one", reason.empty() ? "" : ": " + reason));
  }
  if (choice_.attention) try_slowdowns(steps, {1, kTriedAttention});
  constexpr int kMostRefinements = 3;
  constexpr double kSame = 0.002;
  Slowdowns found = best(steps);
  for (int i = 0; i < kMostRefinements; ++i) {
    try_slowdowns(steps, found);
    const Slowdowns again = best(steps);
    if (std::fabs(again.gemm - found.gemm) <= kSame && again.attention == found.attention) break;
    found = again;
  }
  return found;
}

// Times of all steps on the bare machine and with what was found.
void GroupFit::finish(const Slowdowns& slowdowns) {
  const auto chosen = [&](const auto& wanted) {
    std::vector<std::size_t> steps;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].refused.empty() && wanted(i)) steps.push_back(i);
    }
    return steps;
  };
  if (const auto steps = chosen([&](std::size_t i) { return rows_[i].held_out; }); !steps.empty()) try_slowdowns(steps, {});
  const auto others = chosen([&](std::size_t i) { return last_[i] != slowdowns; });
  if (!others.empty()) try_slowdowns(others, slowdowns);
}

double mean(const std::vector<const FittedStep*>& rows, double (FittedStep::*error)() const) {
  double sum = 0;
  for (const FittedStep* row : rows) sum += std::fabs((row->*error)());
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

HeldOutSteps held_out_steps(const std::vector<const FittedStep*>& rows, std::int64_t gpus) {
  std::vector<double> over, widths;
  std::set<std::size_t> jobs;
  for (const FittedStep* row : rows) {
    over.push_back(row->measured_s / row->with_stack_s - 1);
    widths.push_back(row->kernel_width);
    jobs.insert(row->job);
  }
  std::sort(over.begin(), over.end());
  std::sort(widths.begin(), widths.end());
  return {.rows = static_cast<std::int64_t>(rows.size()),
          .jobs = static_cast<std::int64_t>(jobs.size()),
          .lower = nearest_rank(over, 0.05),
          .upper = nearest_rank(over, 0.95),
          .kernel_width = nearest_rank(widths, 0.5),
          .most_gpus = gpus};
}

// Of dense models, or of those with experts; none without rows.
std::optional<StackEvidence> evidence_of(const StackGroup& group, const std::vector<FittedStep>& rows, bool experts) {
  std::vector<const FittedStep*> fitted, held_out;
  std::int64_t most_gpus = 0;
  std::string ids;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].experts != experts || !rows[i].refused.empty()) continue;
    (rows[i].held_out ? held_out : fitted).push_back(&rows[i]);
    if (rows[i].held_out) most_gpus = std::max(most_gpus, group.steps[i].gpus);
    if (!rows[i].held_out) ids += (ids.empty() ? "" : " ") + rows[i].id;
  }
  if (fitted.empty() && held_out.empty()) return std::nullopt;
  const std::vector<const FittedStep*>& shown = fitted.empty() ? held_out : fitted;
  StackEvidence evidence{.source = "",
                         .conditions = "",
                         .rows = static_cast<std::int64_t>(shown.size()),
                         .error_before = mean(shown, &FittedStep::bare_error),
                         .error_after = mean(shown, &FittedStep::error),
                         .frameworks = group.frameworks,
                         .models = experts ? "experts" : "dense",
                         .fitted_on = ids};
  if (!held_out.empty()) {
    evidence.left_out = mean(held_out, &FittedStep::error);
    evidence.held_out = held_out_steps(held_out, most_gpus);
  }
  return evidence;
}

StackCalibration GroupFit::calibrated() {
  const Slowdowns found = fitted_slowdowns();
  finish(found);
  const std::vector<FittedTime> times = times_of(fitted_steps(), found.attention);
  const WantedRange range = wanted_range(times, found.gemm);
  StackCalibration calibration;
  StackSpec& stack = calibration.stack;
  stack.name = group_.name;
  stack.machines = group_.machines;
  stack.precisions = group_.precisions;
  stack.frameworks = group_.frameworks;
  stack.gemm = {found.gemm, rounded(range.lower), rounded(range.upper)};
  stack.attention = {found.attention, found.attention, found.attention};
  for (const bool experts : {false, true}) {
    if (const std::optional<StackEvidence> evidence = evidence_of(group_, rows_, experts)) stack.evidence.push_back(*evidence);
  }
  calibration.steps = std::move(rows_);
  return calibration;
}

}  // namespace

GroupedSteps grouped_steps(const std::vector<PublishedStep>& steps) {
  std::map<std::tuple<std::string, std::string, std::string>, StackGroup> groups;
  GroupedSteps grouped;
  for (const PublishedStep& step : steps) {
    try {
      JobInput bare = step.input;
      bare.flags.push_back({"--stack", "hardware.stack", "none"});
      const Job job = resolve_job(bare);
      const std::string precision = dtype_name(product_dtype(job.training.precision)), framework = framework_label(job.framework);
      StackGroup& group = groups[{job.gpu.name, precision, framework}];
      group.name = fmt::format("{}-{}-{}", job.gpu.name, precision, framework);
      group.machines = {job.gpu.name};
      group.precisions = {precision};
      group.frameworks = {framework};
      group.steps.push_back({step, job.model.has_experts(), job.gpus});
    } catch (const InputError& error) {
      ++grouped.skipped[error.what()];
    }
  }
  for (auto& [key, group] : groups) grouped.groups.push_back(std::move(group));
  return grouped;
}

std::vector<bool> held_out_half(const std::vector<std::string>& configurations) {
  const std::vector<std::string> order = hashed_order(configurations);
  std::vector<bool> held_out;
  for (const std::string& text : configurations) {
    const auto place = std::find(order.begin(), order.end(), text) - order.begin();
    held_out.push_back(place % 2 == 1);
  }
  return held_out;
}

StackCalibration calibrate_published(const StackGroup& group, const FitChoice& choice, const PublishedSimulation& simulate) {
  return GroupFit(group, choice, simulate).calibrated();
}

}  // namespace stepsim
