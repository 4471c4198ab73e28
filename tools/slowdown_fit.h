// The slowdown of matrix products that explains measured steps, from step times that are known at a few slowdowns. Knows no job.
#pragma once

#include <map>
#include <span>

namespace stepsim {

inline constexpr double kLeastTriedSlowdown = 0.5, kMostTriedSlowdown = 8;

// Step time by slowdown: straight lines between the times that are known, beyond them those of the two nearest. Never falls.
class TimeCurve {
 public:
  void add(double slowdown, double time_s) { times_[slowdown] = time_s; }
  bool knows(double slowdown) const { return times_.count(slowdown) == 1; }
  // At least one time is known.
  double at(double slowdown) const;
  // The slowdown at which the step takes so long, between kLeastTriedSlowdown and kMostTriedSlowdown.
  double reaching(double time_s) const;
  // d log(time) / d log(slowdown) over what is known: how much of the step hangs on products. 0 with one time.
  double weight() const;

 private:
  std::map<double, double> times_;
};

struct FittedTime {
  const TimeCurve* curve = nullptr;
  double measured_s = 0;
  double added_s = 0;  // to the curve, by what else is slower or faster than it says
  double at(double slowdown) const { return curve->at(slowdown) + added_s; }
  double wanted() const { return curve->reaching(measured_s - added_s); }
};

// The mean of |log(step / measured)| at a slowdown.
double mean_log_error(std::span<const FittedTime> rows, double slowdown);

// Least mean of |log(step / measured)|; where several are as good, the middle one. Not empty.
double best_slowdown(std::span<const FittedTime> rows);

// Slowdowns that single steps want, of those that hang on products at least half as much as the one that does most: 10th and 90th
// percentile, widened to hold `expected`.
struct WantedRange {
  double lower = 1, upper = 1;
};
WantedRange wanted_range(std::span<const FittedTime> rows, double expected);

}  // namespace stepsim
