#include "tools/error_statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/check.h"

namespace stepsim {

double nearest_rank(std::span<const double> ascending, double p) {
  STEPSIM_CHECK(!ascending.empty());
  const double rank = std::ceil(p * static_cast<double>(ascending.size()) - 1e-9);  // 0.9 * 10 is a little above 9 in binary
  const std::size_t index = rank < 1 ? 0 : static_cast<std::size_t>(rank) - 1;
  return ascending[std::min(index, ascending.size() - 1)];
}

std::optional<ErrorStatistics> error_statistics(std::span<const double> errors) {
  if (errors.empty()) return std::nullopt;
  std::vector<double> absolute;
  ErrorStatistics statistics;
  statistics.rows = errors.size();
  for (const double error : errors) {
    absolute.push_back(std::fabs(error));
    statistics.mean += std::fabs(error) / static_cast<double>(errors.size());
    statistics.bias += error / static_cast<double>(errors.size());
  }
  std::sort(absolute.begin(), absolute.end());
  statistics.median = nearest_rank(absolute, 0.5);
  statistics.p90 = nearest_rank(absolute, 0.9);
  statistics.max = absolute.back();
  return statistics;
}

}  // namespace stepsim
