// Fits parameters of a curve to measurements, by Levenberg-Marquardt or linear least squares. Knows no kernel; Eigen stays in the .cc.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

namespace stepsim {

using Residuals = std::function<std::vector<double>(const std::vector<double>& parameters)>;

enum class Loss {
  kSquares,
  kAbsolute,  // mean |residual|, rounded off below 1 %: outliers count once, not squared
};

// Parameters at the nearest minimum of the loss, from `start`. At least as many residuals as parameters.
std::vector<double> fitted_parameters(const Residuals& residuals, std::vector<double> start, Loss loss);

// x that minimises |A x - b|; `rows` are those of A, all of one length.
std::vector<double> linear_fit(const std::vector<std::vector<double>>& rows, const std::vector<double>& targets);

// Free parameters stand for quantities in a range; both ends are stationary points, so that a bound may be the minimum.
double bounded(double parameter, double most);  // most sin^2: in [0, most]
double bounded_parameter(double value, double most);
double not_negative(double parameter);  // square
double not_negative_parameter(double value);

inline double round_to(double value, double digit) { return std::round(value / digit) * digit; }  // a multiple of the digit

}  // namespace stepsim
