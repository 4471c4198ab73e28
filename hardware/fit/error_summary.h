// Relative errors of a model, summed up as the READMEs quote them.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace stepsim {

// Of simulated / measured - 1; percentiles by nearest rank.
struct ErrorSummary {
  std::size_t rows = 0;
  double mean = 0, median = 0, p90 = 0, max = 0, bias = 0;
};

inline ErrorSummary summary(const std::vector<double>& errors) {
  if (errors.empty()) return {};
  std::vector<double> sizes;
  double sum = 0, sum_of_sizes = 0;
  for (const double error : errors) {
    sizes.push_back(std::abs(error));
    sum += error;
    sum_of_sizes += std::abs(error);
  }
  std::sort(sizes.begin(), sizes.end());
  const auto count = static_cast<double>(sizes.size());
  const auto rank = [&](double part) { return sizes.at(static_cast<std::size_t>(std::ceil(part * count)) - 1); };
  return {
      .rows = sizes.size(), .mean = sum_of_sizes / count, .median = rank(0.5), .p90 = rank(0.9), .max = sizes.back(), .bias = sum / count};
}

// Errors of one group of measurements, apart for the rows that its constants were fitted on and the rows that they were not.
struct FitErrors {
  std::string group;
  std::vector<double> fitted, held_out;
};

}  // namespace stepsim
