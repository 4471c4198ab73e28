#include "tests/validation/deepseek_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "hardware/stack_spec.h"

namespace stepsim {

namespace {

constexpr double kGib = 1 << 30;
constexpr std::int64_t kMostSequences = 16;
constexpr double kSlowdownStep = 0.05;

struct TensorSet {
  const char* name;
  std::vector<std::string> tensors;
};

// MaxText's names (spec/offload.md section 1.4) and the saved tensors of our layers that they name.
const std::vector<TensorSet>& moved_sets() {
  static const std::vector<TensorSet> sets{
      {"query, value", {"query", "value"}},
      {"experts' wi", {"experts gate output", "experts up output"}},
      {"query, value, wi", {"query", "value", "experts gate output", "experts up output"}},
      {"query, key, value, wi", {"query", "key", "value", "experts gate output", "experts up output"}},
      {"all projections",
       {"query", "key", "value", "attention output", "attention log-sum-exp", "experts gate output", "experts up output"}},
  };
  return sets;
}

// What stays on the device in every row, less what moves: what the sister configuration keeps, or everything that has a name.
const std::vector<TensorSet>& rests() {
  static const std::vector<TensorSet> sets{
      {"kept",
       {"query latent", "key-value latent", "query", "key", "value", "attention output", "attention log-sum-exp", "attention residual",
        "gate output", "up output", "shared experts gate output", "shared experts up output", "experts gate output", "experts up output"}},
      {"as sister",
       {"query latent", "key-value latent", "attention output", "attention log-sum-exp", "attention residual", "gate output", "up output",
        "shared experts gate output", "shared experts up output"}},
      {"run again", {}}};
  return sets;
}

std::vector<std::string> without(std::vector<std::string> names, const std::vector<std::string>& moved) {
  std::erase_if(names, [&](const std::string& name) { return std::find(moved.begin(), moved.end(), name) != moved.end(); });
  return names;
}

StudyFigures bare(const StudyParameters& parameters, StudyRow row, double hidden = 0) {
  return study_figures(study_graph(parameters, row), {.hidden = hidden});
}

// The part of [0, 1] where a line through (0, at_0) and (1, at_1) lies within the tolerance of `wanted`.
Interval within(double at_0, double at_1, double wanted) {
  const double low = wanted * (1 - kTimeTolerance), high = wanted * (1 + kTimeTolerance), slope = at_1 - at_0;
  if (slope == 0) return low <= at_0 && at_0 <= high ? Interval{0, 1} : Interval{};
  const double a = (low - at_0) / slope, b = (high - at_0) / slope;
  return {std::max(0.0, std::min(a, b)), std::min(1.0, std::max(a, b))};
}

// The same of the lines between three points at 0, 1/2 and 1 that fall.
Interval within(const std::array<double, 3>& at, double wanted) {
  const Interval first = within(at[0], at[1], wanted), second = within(at[1], at[2], wanted);
  Interval both{1, 0};
  if (!first.empty()) both = {first.lower / 2, first.upper / 2};
  if (!second.empty()) both = {std::min(both.lower, 0.5 + second.lower / 2), std::max(both.upper, 0.5 + second.upper / 2)};
  return both;
}

std::vector<TimeSolution> time_solutions(const Candidate& candidate, const StudyGraph& tuned, const StudyFigures& again_hidden) {
  const BlogFacts facts;
  std::vector<TimeSolution> solutions;
  for (int i = 0; 1 + kSlowdownStep * i <= candidate.slowest + 1e-9; ++i) {
    TimeSolution solution{.slowdown = 1 + kSlowdownStep * i};
    const double more = solution.slowdown - 1;
    // Nothing runs beside anything in these two rows: their steps are sums.
    const double again_0 = candidate.again.step_s + more * candidate.again.compute_s;
    const double again_1 = again_hidden.step_s + more * candidate.again.compute_s;
    solution.hidden_before = within(again_0, again_1, tuned.model_tflops / facts.again);
    if (solution.hidden_before.empty()) continue;
    const double untuned = candidate.untuned.step_s + more * candidate.untuned.compute_s -
                           solution.hidden_before.middle() * (candidate.again.step_s - again_hidden.step_s);
    solution.exposed_copies = within(untuned - candidate.untuned.copy_s, untuned, tuned.model_tflops / facts.untuned);
    if (solution.exposed_copies.empty()) continue;
    std::array<double, 3> after{};
    for (int half = 0; half < 3; ++half)
      after[static_cast<std::size_t>(half)] = study_figures(tuned, {solution.slowdown, 0.5 * half}).step_s;
    solution.hidden_after = within(after, tuned.model_tflops / facts.tuned);
    if (!solution.hidden_after.empty()) solutions.push_back(solution);
  }
  return solutions;
}

bool reaches(double fastest, double slowest, double wanted) {
  return fastest <= wanted * (1 + kTimeTolerance) && slowest >= wanted * (1 - kTimeTolerance);
}

// Steps grow with the slowdown and with what is exposed.
void fill_reaches(Candidate& candidate, const StudyGraph& tuned, const StudyFigures& again_hidden) {
  const BlogFacts facts;
  const double more = candidate.slowest - 1, hideable = candidate.again.step_s - again_hidden.step_s;
  candidate.reaches_again =
      reaches(again_hidden.step_s, candidate.again.step_s + more * candidate.again.compute_s, tuned.model_tflops / facts.again);
  candidate.reaches_untuned = reaches(candidate.untuned.step_s - hideable - candidate.untuned.copy_s,
                                      candidate.untuned.step_s + more * candidate.untuned.compute_s, tuned.model_tflops / facts.untuned);
  candidate.reaches_tuned =
      reaches(candidate.tuned.step_s, study_figures(tuned, {.slowdown = candidate.slowest}).step_s, tuned.model_tflops / facts.tuned);
}

void fill(Candidate& candidate) {
  const BlogFacts facts;
  StudyParameters& parameters = candidate.parameters;
  candidate.unmodelled_gib = facts.again_gib - candidate.again.peak_gib;
  candidate.keep = bare(parameters, StudyRow::kKeep);
  candidate.untuned = bare(parameters, StudyRow::kOffloadSynchronous);
  const double wanted_gib = facts.tuned_gib - candidate.unmodelled_gib;
  for (const std::int64_t layers : {1, 4}) {
    StudyParameters ahead = parameters;
    ahead.layers_ahead = layers;
    if (std::abs(bare(ahead, StudyRow::kOffloadScheduled, 1).peak_gib - wanted_gib) <= kPeakTolerance)
      candidate.layers_ahead.push_back(layers);
  }
  parameters.memory_limit = Bytes(static_cast<std::int64_t>(wanted_gib * kGib));
  const StudyGraph tuned = study_graph(parameters, StudyRow::kOffloadScheduled);
  candidate.tuned = study_figures(tuned, {.hidden = 1});
  candidate.reproduces_peaks = std::abs(candidate.tuned.peak_gib - wanted_gib) <= kPeakTolerance || !candidate.layers_ahead.empty();
  // Some share of the card must hold the tuned row and not this one.
  candidate.runs_out = candidate.keep.peak_gib + candidate.unmodelled_gib > facts.tuned_gib + kPeakTolerance;
  const ClusterSpec& cluster = tuned.job.cluster;
  candidate.fits_host = candidate.tuned.host_gib * kGib * cluster.gpus_per_node <= static_cast<double>(cluster.host_memory.value);
  candidate.slowest = unknown_stack_range(tuned.job.gpu, parameters.precision).upper;
  const StudyFigures again_hidden = bare(parameters, StudyRow::kRunAgain, 1);
  fill_reaches(candidate, tuned, again_hidden);
  candidate.times = time_solutions(candidate, tuned, again_hidden);
}

// The batches whose modelled peak is in reach of the fact: the peak grows with the batch.
void add_candidates(const Candidate& like, std::vector<Candidate>& candidates) {
  const BlogFacts facts;
  std::vector<std::optional<StudyFigures>> known(kMostSequences + 1);
  const auto figures = [&](std::int64_t batch) -> const StudyFigures& {
    std::optional<StudyFigures>& found = known[static_cast<std::size_t>(batch)];
    if (!found) {
      StudyParameters parameters = like.parameters;
      parameters.micro_batch = batch;
      found = bare(parameters, StudyRow::kRunAgain);
    }
    return *found;
  };
  std::int64_t low = 0, high = kMostSequences + 1;  // low is below what is wanted, high is not
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (figures(middle).peak_gib < facts.again_gib - kMostUnmodelledGib ? low : high) = middle;
  }
  for (std::int64_t batch = high; batch <= kMostSequences && figures(batch).peak_gib <= facts.again_gib; ++batch) {
    Candidate candidate = like;
    candidate.parameters.micro_batch = batch;
    candidate.again = figures(batch);
    fill(candidate);
    candidates.push_back(std::move(candidate));
  }
}

}  // namespace

std::vector<Candidate> calibration_candidates(std::span<const char* const> precisions) {
  std::vector<Candidate> candidates;
  for (const char* const precision : precisions) {
    for (const bool fp32 : {false, true}) {
      const StudyParameters job{.model = "deepseek-v3", .precision = precision, .expert_ranks = 8, .states_in_fp32 = fp32};
      for (const TensorSet& moved : moved_sets()) {
        std::optional<std::vector<std::string>> before;
        for (const TensorSet& rest : rests()) {
          Candidate like{.moved_name = moved.name, .rest_name = rest.name, .parameters = job};
          like.parameters.moved = moved.tensors;
          like.parameters.kept = without(rest.tensors, moved.tensors);
          if (before != like.parameters.kept) add_candidates(like, candidates);
          before = like.parameters.kept;
        }
      }
      Candidate everything{.moved_name = "every saved tensor", .rest_name = "none", .parameters = job};
      everything.parameters.moved = {"*"};
      add_candidates(everything, candidates);
    }
  }
  return candidates;
}

double most_speed_up(const Candidate& candidate) {
  return std::max(candidate.again.compute_s / candidate.keep.compute_s, candidate.again.collective_s / candidate.keep.collective_s);
}

}  // namespace stepsim
