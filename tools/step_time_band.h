// The range that a step's time is expected in, and the range of the difference of two steps, where what they share cancels.
//
// The band is meant to hold 80 to 90 % of measured steps of jobs whose configuration is known (README.md has what it held). Each kernel
// class weighs as much as it takes of the step's longest chain (step_shares.h), which leaves out that hidden work may come to light when it
// takes longer. Errors that are independent (kernel fits, contention, launches) add in squares; the range of the stack is no error but what
// is not known of the job, and adds as it is, as do stragglers, which only delay.
#pragma once

#include "tools/step_errors.h"
#include "tools/step_run.h"
#include "tools/step_shares.h"

namespace stepsim {

struct BandSource {
  std::string name{};
  TimeRange range{};        // of the step time; of a difference: of the first step's time
  bool independent = true;  // adds in squares to the others
  std::string reason{};
};

struct StepTimeBand {
  double lower_s = 0, upper_s = 0;    // lower <= step time <= upper
  std::vector<BandSource> sources{};  // without those that change nothing
};

struct BandedStep {
  StepShares shares{};
  StepErrors errors{};
};
// None for a step that was stopped or took no time.
std::optional<BandedStep> banded_step(const Job& job, const GraphRun& run, const OpGraph& graph);

StepTimeBand step_time_band(const BandedStep& step);

// How much longer `other` takes than `base`, of the time of `base`.
struct DifferenceBand {
  double difference = 0;
  TimeRange range{};  // around it, of the same
  std::vector<BandSource> sources{};
  std::string shared{};  // "kernels, links, stack": whose errors cancel; "" for none
  // By so many times longer or shorter, so that the band of the steps the other way round is the inverse of this one.
  double lower() const { return (1 + difference) / (1 - range.lower / (1 + difference)) - 1; }
  double upper() const { return difference + range.upper; }
  bool sign_certain() const { return lower() > 0 || upper() < 0; }
};
// Kernels of one kind are equally wrong in both steps where the machine is the same (copies and collectives: the cluster too), and the
// stack is the same thing in both where its name is.
DifferenceBand difference_band(const BandedStep& base, const BandedStep& other);

}  // namespace stepsim
