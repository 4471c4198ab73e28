// Calibration study, free parameters declared; not a validation: the DeepSeek-V3 rows of NVIDIA's JAX blog on 128 GB200. Prints which
// declared parameters reproduce its six facts, which cannot be told apart, and what overlap and recompute alone leave unexplained. The
// counter-check on Llama-3.1 405B has no free parameter.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "tests/validation/deepseek_calibration.h"

namespace stepsim {
namespace {

constexpr const char* kHead = "calibration study, free parameters declared; not a validation";
constexpr double kCardGib = 185.03;  // 189,471 MiB, hardware/data/machines/gb200-nvl72.textproto

constexpr const char* kPrecisions[] = {"bf16", "fp8"};

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> all = calibration_candidates(kPrecisions);
  return all;
}

std::vector<const Candidate*> reproducing(const std::vector<Candidate>& of = candidates()) {
  std::vector<const Candidate*> found;
  for (const Candidate& candidate : of) {
    if (candidate.reproduces_all()) found.push_back(&candidate);
  }
  return found;
}

// Over the slowdowns of a candidate.
Interval over_times(const Candidate& candidate, Interval TimeSolution::*of) {
  Interval all{1, 0};
  for (const TimeSolution& solution : candidate.times) {
    all = {std::min(all.lower, (solution.*of).lower), std::max(all.upper, (solution.*of).upper)};
  }
  return all;
}

std::string shown(const Interval& interval, const char* format = "%.2f to %.2f") {
  char text[64];
  std::snprintf(text, sizeof text, format, interval.lower, interval.upper);
  return text;
}

std::string rows_of(const std::vector<const Candidate*>& chosen) {
  std::string text;
  for (const Candidate* const candidate : chosen) {
    char line[320];
    const StudyParameters& of = candidate->parameters;
    std::snprintf(line, sizeof line, "| %s | %s | %s | %s | %d | %.1f | %.0f | %.0f | %.2f to %.2f | %s | %s | %s |\n",
                  of.precision.c_str(), of.states_in_fp32 ? "fp32" : "bf16", candidate->moved_name.c_str(), candidate->rest_name.c_str(),
                  static_cast<int>(of.micro_batch), candidate->unmodelled_gib, candidate->tuned.host_gib,
                  candidate->keep.peak_gib + candidate->unmodelled_gib, candidate->times.front().slowdown, candidate->times.back().slowdown,
                  shown(over_times(*candidate, &TimeSolution::hidden_before)).c_str(),
                  shown(over_times(*candidate, &TimeSolution::exposed_copies)).c_str(),
                  shown(over_times(*candidate, &TimeSolution::hidden_after)).c_str());
    text += line;
  }
  return text;
}

// Each set that reproduces all six, with what each continuous parameter may be; its middle, simulated, does reproduce them.
void check_sets() {
  std::printf(
      "## table: deepseek-sets\n| %s: precision | states | moved | rest | batch | unmodelled GiB | on host GiB | kept: peak GiB | "
      "kernels slower | collectives hidden before | copies exposed before | collectives hidden after |\n",
      kHead);
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n%s\n", rows_of(reproducing()).c_str());
  EXPECT_FALSE(reproducing().empty());
  const BlogFacts facts;
  for (const Candidate* const candidate : reproducing()) {
    const TimeSolution& middle = candidate->times[candidate->times.size() / 2];
    const StudyParameters& of = candidate->parameters;
    const double before = middle.hidden_before.middle();
    const StudyGraph again = study_graph(of, StudyRow::kRunAgain), untuned = study_graph(of, StudyRow::kOffloadSynchronous);
    const StudyGraph tuned = study_graph(of, StudyRow::kOffloadScheduled);
    const StudyFigures of_again = study_figures(again, {middle.slowdown, before});
    const StudyFigures of_untuned = study_figures(untuned, {middle.slowdown, before, middle.exposed_copies.middle()});
    const StudyFigures of_tuned = study_figures(tuned, {middle.slowdown, middle.hidden_after.middle()});
    EXPECT_NEAR(again.model_tflops / of_again.step_s / facts.again, 1, kTimeTolerance);
    EXPECT_NEAR(untuned.model_tflops / of_untuned.step_s / facts.untuned, 1, kTimeTolerance);
    EXPECT_NEAR(tuned.model_tflops / of_tuned.step_s / facts.tuned, 1, kTimeTolerance);
    EXPECT_NEAR(of_again.peak_gib + candidate->unmodelled_gib, facts.again_gib, kPeakTolerance);
    EXPECT_NEAR(of_tuned.peak_gib + candidate->unmodelled_gib, facts.tuned_gib, kPeakTolerance);
  }
}

struct FactRow {
  const char *fact, *absorbed_by;
  std::function<bool(const Candidate&)> reproduced;
};

void check_facts() {
  const std::vector<FactRow> rows{
      {"578.3 TFLOP/s, run again", "collectives hidden before, kernels slower", [](const Candidate& of) { return of.reaches_again; }},
      {"541.6 TFLOP/s, offloaded, untuned", "likewise, and copies exposed before (bytes moved)",
       [](const Candidate& of) { return of.reaches_untuned; }},
      {"908.2 TFLOP/s, offloaded, tuned", "collectives hidden after, kernels slower", [](const Candidate& of) { return of.reaches_tuned; }},
      {"all three times at one slowdown", "the same", [](const Candidate& of) { return !of.times.empty(); }},
      {"151.3 GiB, run again (sets are chosen by it)", "batch, states, what else is run again, unmodelled bytes",
       [](const Candidate&) { return true; }},
      {"165.2 GiB, tuned", "limit of memory of the scheduler", [](const Candidate& of) { return of.reproduces_peaks; }},
      {"165.2 GiB, tuned, likewise", "copies back 1 or 4 layers ahead, no limit",
       [](const Candidate& of) { return !of.layers_ahead.empty(); }},
      {"out of memory when kept", "share of the card that XLA may take (0.893 at least: 165.2 GiB)",
       [](const Candidate& of) { return of.runs_out; }},
      {"out of memory when kept, likewise", "the whole card",
       [](const Candidate& of) { return of.keep.peak_gib + of.unmodelled_gib > kCardGib; }},
      {"what moves fits 960 GB of host memory for 4 GPUs", "bytes moved", [](const Candidate& of) { return of.fits_host; }},
      {"all six, and the host", "", [](const Candidate& of) { return of.reproduces_all(); }}};
  const auto count = candidates().size();
  std::printf("## table: deepseek-facts\n| %s: fact | absorbed by | of %zu sets |\n| --- | --- | --- |\n", kHead, count);
  for (const FactRow& row : rows) {
    std::printf("| %s | %s | %d |\n", row.fact, row.absorbed_by,
                static_cast<int>(std::count_if(candidates().begin(), candidates().end(), row.reproduced)));
  }
  std::printf("\n");
  // Of all facts the three times together exclude most.
  EXPECT_LT(reproducing().size(), count);
  // Tuned and out of memory are both true of some share of the card: the sister configuration's 0.88 cannot hold the tuned row.
  EXPECT_GT(BlogFacts{}.tuned_gib, 0.88 * kCardGib);
}

// Two sets that both reproduce everything and differ in one choice, and what makes up for it.
struct Twins {
  const char* choice;
  std::function<bool(const Candidate&, const Candidate&)> differ;  // in that choice alone
};

bool same_but(const Candidate& a, const Candidate& b, bool precision, bool states, bool moved, bool rest, bool batch) {
  return (a.parameters.precision != b.parameters.precision) == precision &&
         (a.parameters.states_in_fp32 != b.parameters.states_in_fp32) == states && (a.moved_name != b.moved_name) == moved &&
         (a.rest_name != b.rest_name) == rest && (a.parameters.micro_batch != b.parameters.micro_batch) == batch;
}

std::string named(const Candidate& of) {
  return of.parameters.precision + ", " + (of.parameters.states_in_fp32 ? "fp32" : "bf16") + " states, " + of.moved_name + ", rest " +
         of.rest_name + ", batch " + std::to_string(of.parameters.micro_batch);
}

std::string continuous(const Candidate& of) {
  char text[200];
  std::snprintf(text, sizeof text, "slower %.2f to %.2f, copies exposed %s of %.2f s, hidden %s before and %s after",
                of.times.front().slowdown, of.times.back().slowdown, shown(over_times(of, &TimeSolution::exposed_copies)).c_str(),
                of.untuned.copy_s, shown(over_times(of, &TimeSolution::hidden_before)).c_str(),
                shown(over_times(of, &TimeSolution::hidden_after)).c_str());
  return text;
}

void check_twins() {
  const std::vector<Twins> choices{
      {"tensors moved (bytes) against copies exposed",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, false, true, false, false); }},
      {"batch against unmodelled bytes and slowdown",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, false, false, false, true); }},
      {"batch against tensors moved",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, false, true, false, true); }},
      {"batch against what else is run again",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, false, false, true, true); }},
      {"precision against slowdown",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, true, false, false, false, false); }},
      {"precision and batch", [](const Candidate& a, const Candidate& b) { return same_but(a, b, true, false, false, false, true); }},
      {"states against batch", [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, true, false, false, true); }},
      {"states and what else is run again",
       [](const Candidate& a, const Candidate& b) { return same_but(a, b, false, true, false, true, false); }}};
  std::printf(
      "## table: deepseek-twins\n| %s: cannot be told apart | one set | its other parameters | another set | its other parameters |\n",
      kHead);
  std::printf("| --- | --- | --- | --- | --- |\n");
  const std::vector<const Candidate*> sets = reproducing();
  int found = 0;
  for (const Twins& choice : choices) {
    const auto twin_of = [&](const Candidate* a) {
      return std::find_if(sets.begin(), sets.end(), [&](const Candidate* b) { return a < b && choice.differ(*a, *b); });
    };
    const auto first = std::find_if(sets.begin(), sets.end(), [&](const Candidate* a) { return twin_of(a) != sets.end(); });
    if (first == sets.end()) {
      std::printf("| %s | none on this grid | | | |\n", choice.choice);
      continue;
    }
    ++found;
    const Candidate& second = **twin_of(*first);
    std::printf("| %s | %s | %s | %s | %s |\n", choice.choice, named(**first).c_str(), continuous(**first).c_str(), named(second).c_str(),
                continuous(second).c_str());
  }
  std::printf("\n");
  EXPECT_GT(found, 0);
}

struct Spread {
  std::set<std::string> words;
  Interval numbers{1e9, -1e9};
  void add(const Interval& more) { numbers = {std::min(numbers.lower, more.lower), std::max(numbers.upper, more.upper)}; }
};

// What all sets that reproduce the facts have in common: collectives that were exposed and are not any more.
void check_what_is_left_open() {
  Spread batch, precision, states, moved, slower, before, exposed, after, gained, unmodelled;
  for (const Candidate* const candidate : reproducing()) {
    batch.words.insert(std::to_string(candidate->parameters.micro_batch));
    precision.words.insert(candidate->parameters.precision);
    states.words.insert(candidate->parameters.states_in_fp32 ? "fp32" : "bf16");
    moved.words.insert(candidate->moved_name + " (rest " + candidate->rest_name + ")");
    unmodelled.add({candidate->unmodelled_gib, candidate->unmodelled_gib});
    for (const TimeSolution& solution : candidate->times) {
      slower.add({solution.slowdown, solution.slowdown});
      before.add(solution.hidden_before);
      exposed.add(solution.exposed_copies);
      after.add(solution.hidden_after);
      gained.add({solution.hidden_after.lower - solution.hidden_before.upper, solution.hidden_after.upper - solution.hidden_before.lower});
    }
  }
  std::printf("## table: deepseek-open\n| %s: parameter | values in sets that reproduce all six |\n| --- | --- |\n", kHead);
  const auto words = [](const char* name, const Spread& spread) {
    std::string all;
    for (const std::string& word : spread.words) all += (all.empty() ? "" : "; ") + word;
    std::printf("| %s | %s |\n", name, all.c_str());
  };
  words("sequences a GPU", batch);
  words("precision", precision);
  words("weights, moments, reduced gradients", states);
  words("tensors moved", moved);
  std::printf("| unmodelled, GiB | %s |\n", shown(unmodelled.numbers, "%.1f to %.1f").c_str());
  std::printf("| kernels slower than the bare machine | %s |\n", shown(slower.numbers).c_str());
  std::printf("| share of copies exposed before | %s |\n", shown(exposed.numbers).c_str());
  std::printf("| share of collectives hidden before | %s |\n", shown(before.numbers).c_str());
  std::printf("| share of collectives hidden after | %s |\n", shown(after.numbers).c_str());
  std::printf("| share of collectives hidden after, less before | %s |\n\n", shown(gained.numbers).c_str());
  // In none does the tuned row hide no more of its collectives than the row that runs again.
  EXPECT_GT(gained.numbers.lower, 0);
}

void check_ceilings() {
  const BlogFacts facts;
  const double overlap = facts.tuned / facts.untuned, removed = facts.tuned / facts.again;
  // Backward takes twice forward: copies out hide in K / 3, copies in in 2 K / 3; on equal links X <= 2 K / 3. Recompute: R <= K / 3.
  const double overlap_ceiling = 1 + 2.0 / 3, recompute_ceiling = 1 + 1.0 / 3;
  std::printf("## table: deepseek-ceilings\n| %s: what | at most | observed | left to explain |\n| --- | --- | --- | --- |\n", kHead);
  std::printf("| copies hidden, equal links, nothing waits (5/3) | %.3f | %.3f | %.3f |\n", overlap_ceiling, overlap,
              overlap / overlap_ceiling);
  std::printf(
      "| copies overlapped, the step still waits (7/4) | %.3f | %.3f | nothing, if 908.2 still waits for copies (1.689 at 8.5 %% of its "
      "compute: overlap-ceiling) |\n",
      7.0 / 4, overlap);
  std::printf("| whole forward not run again, by FLOPs (4/3) | %.3f | %.3f | %.3f |\n", recompute_ceiling, removed,
              removed / recompute_ceiling);
  EXPECT_NEAR(overlap, 1.677, 5e-4);
  EXPECT_NEAR(removed, 1.570, 5e-4);
  EXPECT_GT(overlap, overlap_ceiling);
  EXPECT_NEAR(overlap / overlap_ceiling, 1.006, 5e-4);
  EXPECT_NEAR(removed / recompute_ceiling, 1.178, 5e-4);
  // In our graphs, with any slowdown and any share of collectives hidden, as long as both are the same before and after.
  std::map<std::string, double> by_moved;
  double largest = 0;
  for (const Candidate& of : candidates()) {
    double& most = by_moved[of.moved_name];
    most = std::max(most, most_speed_up(of));
    largest = std::max(largest, most);
  }
  for (const auto& [moved, most] : by_moved) {
    std::printf("| simulated: %s not run again, copies free | %.3f | %.3f | %.3f |\n", moved.c_str(), most, removed, removed / most);
  }
  std::printf("\n");
  EXPECT_LT(largest, recompute_ceiling);
  EXPECT_LT(facts.again * largest, facts.tuned * (1 - kTimeTolerance));
}

// K: the step without recompute and exposed copies; R: recompute; X: exposed copies. From the three speeds alone (offload.md section 1.3).
TEST(DeepSeekStudy, Decomposition) {
  const BlogFacts facts;
  std::printf(
      "## table: deepseek-decomposition\n| %s: recompute over the rest, R/K | all copies hidden, TFLOP/s | left to explain | exposed "
      "copies of the untuned step |\n| --- | --- | --- | --- |\n",
      kHead);
  struct Published {
    double share, best, residual;
  };
  for (const Published& row :
       {Published{0.027, 593.7, 1.530}, {0.135, 656.6, 1.383}, {1.0 / 3, 771.1, 1.178}, {0.5, 867.4, 1.047}, {0.570, 908.2, 1.0}}) {
    const double best = facts.again * (1 + row.share), exposed = 1 - facts.untuned / best;
    std::printf("| %.3f | %.1f | %.3f | %.0f %% |\n", row.share, best, facts.tuned / best, 100 * exposed);
    EXPECT_NEAR(best, row.best, 0.6);  // the spec's shares are rounded to 0.001
    EXPECT_NEAR(facts.tuned / best, row.residual, 1.5e-3);
  }
  std::printf("\n");
}

// Llama-3.1 405B with query and value projections on the host instead of run again: +2.9 % published ("fixed config"), 2.91 and 2.85 % of
// FLOPs at 4,096 and 8,192 tokens (offload.md section 1.3). Everything else as the sister configuration has it, on the device.
TEST(DeepSeekStudy, LlamaGainsWhatItDoesNotRunAgain) {
  std::printf(
      "## table: deepseek-llama\n| Llama-3.1 405B, query and value on the host, not run again | by FLOPs | simulated, collectives exposed "
      "| simulated, hidden | published |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  struct Length {
    std::int64_t sequence, micro_batch;
    double flops_percent;
  };
  for (const Length& of : {Length{4096, 1, 2.91}, Length{4096, 2, 2.91}, Length{8192, 1, 2.85}, Length{8192, 2, 2.85}}) {
    StudyParameters parameters{.model = "llama3-405b", .precision = "bf16", .sequence = of.sequence, .micro_batch = of.micro_batch};
    parameters.moved = {"query", "value output"};
    parameters.kept = {"key", "attention output", "attention log-sum-exp", "attention residual", "gate output", "up output"};
    const StudyGraph again = study_graph(parameters, StudyRow::kRunAgain), moved = study_graph(parameters, StudyRow::kOffloadScheduled);
    std::array<double, 2> gains{};
    for (const int hidden : {0, 1}) {
      const DeclaredCosts declared{.hidden = static_cast<double>(hidden)};
      const double of_again = study_figures(again, declared).step_s, of_moved = study_figures(moved, declared).step_s;
      gains[static_cast<std::size_t>(hidden)] = 100 * (of_again / of_moved - 1);
    }
    std::printf("| %d x %d tokens | +%.2f %% | +%.2f %% | +%.2f %% | +2.9 %% |\n", static_cast<int>(of.micro_batch),
                static_cast<int>(of.sequence), of.flops_percent, gains[0], gains[1]);
    // The batch is not published. With 4,096 tokens a GPU the collectives of 405B parameters, which are not run again, take so much of the
    // step, hidden or not, that less of it is left to save.
    if (of.sequence * of.micro_batch >= 8192) {
      EXPECT_NEAR(gains[1], 2.9, 0.2) << of.sequence << " x " << of.micro_batch;
    }
    EXPECT_LT(gains[0], gains[1]);
    EXPECT_LT(gains[1], of.flops_percent + 0.2);
  }
  std::printf("\n");
}

// The sets of the first precision, made again.
void check_determinism() {
  const std::vector<Candidate> again = calibration_candidates(std::span(kPrecisions).first(1));
  ASSERT_LT(again.size(), candidates().size());
  std::vector<const Candidate*> first;
  for (std::size_t i = 0; i < again.size(); ++i) {
    const Candidate& before = candidates()[i];
    EXPECT_EQ(again[i].tuned.step_s, before.tuned.step_s) << i;
    EXPECT_EQ(again[i].tuned.peak_gib, before.tuned.peak_gib) << i;
    EXPECT_EQ(again[i].untuned.step_s, before.untuned.step_s) << i;
    EXPECT_EQ(again[i].keep.peak_gib, before.keep.peak_gib) << i;
    if (before.reproduces_all()) first.push_back(&before);
  }
  EXPECT_EQ(rows_of(reproducing(again)), rows_of(first));
}

// One test: the candidates take most of the time, and ctest runs each test in a process of its own.
TEST(DeepSeekStudy, Calibration) {
  check_facts();
  check_sets();
  check_what_is_left_open();
  check_twins();
  check_ceilings();
  check_determinism();
}

}  // namespace
}  // namespace stepsim
