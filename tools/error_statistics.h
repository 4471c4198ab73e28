// Relative errors of predictions, summed up. Percentiles by nearest rank.
#pragma once

#include <optional>
#include <span>

namespace stepsim {

struct ErrorStatistics {
  std::size_t rows = 0;
  double median = 0, mean = 0, p90 = 0, max = 0;  // of the absolute errors
  double bias = 0;                                // mean of the signed errors
};

// The p-quantile (0 < p <= 1) by nearest rank: the smallest value with at least p of all values at or below it. Not empty.
double nearest_rank(std::span<const double> ascending, double p);

// None without rows. error = simulated / measured - 1.
std::optional<ErrorStatistics> error_statistics(std::span<const double> errors);

}  // namespace stepsim
