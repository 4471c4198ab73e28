// Which declared parameters of deepseek_study.h reproduce the six facts that are known of the blog's DeepSeek-V3 runs. A calibration with
// about as many free parameters as facts: it tells which stories are possible and which are not, and validates nothing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/validation/deepseek_study.h"

namespace stepsim {

// Model TFLOP/s of a GPU and GiB; NVIDIA blog of 2026-07-10 through the seed, ../shared/spec/offload.md section 1.1. The sixth fact:
// keeping everything on the device runs out of memory.
struct BlogFacts {
  double untuned = 541.6, again = 578.3, tuned = 908.2;
  double again_gib = 151.3, tuned_gib = 165.2;
};

// What counts as reproduced: of times a fraction, of peaks GiB.
inline constexpr double kTimeTolerance = 0.02, kPeakTolerance = 1;

// What no graph here has (XLA's temporaries, communication buffers, ragged buffers, fragmentation) may be at most this, in every row.
inline constexpr double kMostUnmodelledGib = 24;

struct Interval {
  double lower = 0, upper = -1;  // both included
  bool empty() const { return upper < lower; }
  double middle() const { return 0.5 * (lower + upper); }
};

// At one slowdown of kernels. Given the slowdown, each time fact leaves an interval of one parameter.
struct TimeSolution {
  double slowdown = 1;
  Interval hidden_before{};   // of collectives, in the rows of 578.3 and 541.6
  Interval exposed_copies{};  // in the row of 541.6, for the middle of hidden_before
  Interval hidden_after{};    // of collectives, in the row of 908.2
};

// One choice of everything that is discrete, whose modelled peak of the row that runs again is at most the fact's and at most
// kMostUnmodelledGib below it.
struct Candidate {
  std::string moved_name{}, rest_name{};
  StudyParameters parameters{};                      // with the limit of memory under which copies are scheduled
  StudyFigures again{}, untuned{}, tuned{}, keep{};  // bare machine, nothing hidden; tuned: all collectives hidden
  double unmodelled_gib = 0;                         // makes up again's peak
  double slowest = 1;                                // the largest slowdown that the catalog has for such a machine and precision
  std::vector<std::int64_t> layers_ahead{};          // that reproduce the tuned peak without a limit, of 1 and 4
  bool reaches_again = false, reaches_untuned = false, reaches_tuned = false;  // each time by itself, at some slowdown
  std::vector<TimeSolution> times{};                                           // ascending; empty: no slowdown reproduces all three times
  bool reproduces_peaks = false, runs_out = false, fits_host = false;
  bool reproduces_all() const { return !times.empty() && reproduces_peaks && runs_out && fits_host; }
};

// In the order of precision, states, tensors, rest, batch.
std::vector<Candidate> calibration_candidates(std::span<const char* const> precisions);

// Most that the step which runs tensors again can take over one that keeps them, copies free, whatever kernels are slowed by and whatever
// share of collectives is hidden, if both are the same before and after: either step is a sum of the same two kinds of time, so the ratio
// of the sums lies between the ratios of the kinds.
double most_speed_up(const Candidate&);

}  // namespace stepsim
