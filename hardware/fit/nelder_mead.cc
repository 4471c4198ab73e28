#include "hardware/fit/nelder_mead.h"

#include <algorithm>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

struct Corner {
  double value = 0;
  std::vector<double> x;
};

// from + part (to - from)
std::vector<double> between(const std::vector<double>& from, const std::vector<double>& to, double part) {
  std::vector<double> x = from;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += part * (to[i] - from[i]);
  return x;
}

std::vector<double> centre(const std::vector<Corner>& corners, std::size_t count) {
  std::vector<double> x(corners.front().x.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) x[j] += corners[i].x[j] / static_cast<double>(count);
  }
  return x;
}

}  // namespace

std::vector<double> simplex_minimum(const std::function<double(const std::vector<double>&)>& function, const std::vector<double>& start,
                                    double step, int rounds) {
  STEPSIM_CHECK(!start.empty());
  const auto corner = [&](std::vector<double> x) { return Corner{function(x), std::move(x)}; };
  const auto less = [](const Corner& a, const Corner& b) { return a.value < b.value; };
  std::vector<Corner> corners = {corner(start)};
  for (std::size_t i = 0; i < start.size(); ++i) {
    std::vector<double> x = start;
    x[i] += step;
    corners.push_back(corner(std::move(x)));
  }
  for (int round = 0; round < rounds; ++round) {
    std::stable_sort(corners.begin(), corners.end(), less);
    Corner& worst = corners.back();
    const std::vector<double> middle = centre(corners, start.size());
    Corner reflected = corner(between(middle, worst.x, -1));
    if (less(reflected, corners.front())) {
      Corner stretched = corner(between(middle, worst.x, -2));
      worst = less(stretched, reflected) ? std::move(stretched) : std::move(reflected);
    } else if (less(reflected, corners[start.size() - 1])) {
      worst = std::move(reflected);
    } else {
      Corner contracted = corner(between(middle, worst.x, less(reflected, worst) ? -0.5 : 0.5));
      if (contracted.value < std::min(reflected.value, worst.value)) {
        worst = std::move(contracted);
        continue;
      }
      for (std::size_t i = 1; i < corners.size(); ++i) corners[i] = corner(between(corners.front().x, corners[i].x, 0.5));
    }
  }
  return std::min_element(corners.begin(), corners.end(), less)->x;
}

}  // namespace stepsim
