#include "tools/slowdown_fit.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "sim/check.h"
#include "tools/error_statistics.h"

namespace stepsim {

double TimeCurve::at(double slowdown) const {
  STEPSIM_CHECK(!times_.empty());
  if (times_.size() == 1) return times_.begin()->second;
  auto above = times_.lower_bound(slowdown);
  if (above == times_.begin()) above = std::next(above);
  if (above == times_.end()) above = std::prev(above);
  const auto below = std::prev(above);
  const double slope = std::max(0.0, (above->second - below->second) / (above->first - below->first));
  const double from_below = below->second + slope * (slowdown - below->first);
  constexpr double kShortest = 1e-3;  // of the least known time: a line may cross zero far below 1
  return std::max(from_below, kShortest * times_.begin()->second);
}

double TimeCurve::reaching(double time_s) const {
  double low = kLeastTriedSlowdown, high = kMostTriedSlowdown;
  if (at(low) >= time_s) return low;
  if (at(high) <= time_s) return high;
  constexpr int kHalvings = 60;  // of 7.5: below the last bit
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (at(middle) < time_s ? low : high) = middle;
  }
  return (low + high) / 2;
}

double TimeCurve::weight() const {
  if (times_.size() < 2) return 0;
  const auto &first = *times_.begin(), &last = *times_.rbegin();
  return std::log(last.second / first.second) / std::log(last.first / first.first);
}

double mean_log_error(std::span<const FittedTime> rows, double slowdown) {
  double sum = 0;
  for (const FittedTime& row : rows) sum += std::fabs(std::log(row.at(slowdown) / row.measured_s));
  return sum / static_cast<double>(rows.size());
}

// Between the slowdowns that single steps want no error changes its sign, so the best one is one of them or lies between two that are as
// good.
double best_slowdown(std::span<const FittedTime> rows) {
  STEPSIM_CHECK(!rows.empty());
  std::vector<double> wanted;
  for (const FittedTime& row : rows) wanted.push_back(row.wanted());
  std::sort(wanted.begin(), wanted.end());
  std::vector<std::pair<double, double>> tried;  // slowdown, error
  double least = std::numeric_limits<double>::infinity();
  const auto attempt = [&](double slowdown) {
    tried.emplace_back(slowdown, mean_log_error(rows, slowdown));
    least = std::min(least, tried.back().second);
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0) attempt((wanted[i - 1] + wanted[i]) / 2);
    attempt(wanted[i]);
  }
  constexpr double kAsGood = 1.02, kExact = 1e-9;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const auto& [slowdown, error] : tried) {
    if (error > kAsGood * least + kExact) continue;
    low = std::min(low, slowdown);
    high = std::max(high, slowdown);
  }
  return (low + high) / 2;
}

WantedRange wanted_range(std::span<const FittedTime> rows, double expected) {
  double most = 0;
  for (const FittedTime& row : rows) most = std::max(most, row.curve->weight());
  std::vector<double> wanted;
  for (const FittedTime& row : rows) {
    if (row.curve->weight() >= most / 2) wanted.push_back(row.wanted());
  }
  if (wanted.empty()) return {expected, expected};
  std::sort(wanted.begin(), wanted.end());
  return {std::min(expected, nearest_rank(wanted, 0.1)), std::max(expected, nearest_rank(wanted, 0.9))};
}

}  // namespace stepsim
