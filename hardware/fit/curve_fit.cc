#include "hardware/fit/curve_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <unsupported/Eigen/NonLinearOptimization>

#include "sim/check.h"

namespace stepsim {

namespace {

std::vector<double> as_vector(const Eigen::VectorXd& x) { return {x.data(), x.data() + x.size()}; }

Eigen::VectorXd as_eigen(const std::vector<double>& x) {
  return Eigen::Map<const Eigen::VectorXd>(x.data(), static_cast<Eigen::Index>(x.size()));
}

// What Eigen's LevenbergMarquardt asks of a function. Central differences: durations are whole picoseconds, so a step must move them by
// far more than one.
struct WeightedResiduals {
  const Residuals& residuals;
  const Eigen::VectorXd& weights;  // of the squares
  int parameter_count;

  int inputs() const { return parameter_count; }
  int values() const { return static_cast<int>(weights.size()); }
  int operator()(const Eigen::VectorXd& x, Eigen::VectorXd& out) const {
    out = as_eigen(residuals(as_vector(x))).cwiseProduct(weights.cwiseSqrt());
    return 0;
  }
  int df(const Eigen::VectorXd& x, Eigen::MatrixXd& jacobian) const {
    Eigen::VectorXd above, below;
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      const double step = 1e-4 * std::max(std::abs(x[i]), 0.1);
      Eigen::VectorXd moved = x;
      moved[i] = x[i] + step;
      (*this)(moved, above);
      moved[i] = x[i] - step;
      (*this)(moved, below);
      jacobian.col(i) = (above - below) / (2 * step);
    }
    return 0;
  }
};

Eigen::VectorXd least_squares(const Residuals& residuals, const Eigen::VectorXd& weights, Eigen::VectorXd x) {
  WeightedResiduals function{residuals, weights, static_cast<int>(x.size())};
  Eigen::LevenbergMarquardt<WeightedResiduals> solver(function);
  solver.parameters.xtol = solver.parameters.ftol = 1e-12;
  const auto status = solver.minimize(x);
  STEPSIM_CHECK(status != Eigen::LevenbergMarquardtSpace::ImproperInputParameters);
  return x;
}

}  // namespace

std::vector<double> fitted_parameters(const Residuals& residuals, std::vector<double> start, Loss loss) {
  Eigen::VectorXd x = as_eigen(start);
  const auto rows = static_cast<Eigen::Index>(residuals(start).size());
  STEPSIM_CHECK(rows >= x.size());
  x = least_squares(residuals, Eigen::VectorXd::Ones(rows), x);
  if (loss == Loss::kSquares) return as_vector(x);
  constexpr double kRounding = 0.01;  // residuals well below it count as squares: |r| has no slope at 0
  constexpr int kMostRounds = 200;
  for (int round = 0; round < kMostRounds; ++round) {  // iteratively reweighted: w r^2 = |r|
    const Eigen::ArrayXd r = as_eigen(residuals(as_vector(x))).array();
    const Eigen::VectorXd weights = (r.square() + kRounding * kRounding).rsqrt().matrix();
    const Eigen::VectorXd next = least_squares(residuals, weights, x);
    const double moved = ((next - x).array().abs() / (x.array().abs() + 1e-3)).maxCoeff();
    x = next;
    if (moved < 1e-6) break;
  }
  return as_vector(x);
}

std::vector<double> linear_fit(const std::vector<std::vector<double>>& rows, const std::vector<double>& targets) {
  STEPSIM_CHECK(!rows.empty());
  STEPSIM_CHECK(rows.size() == targets.size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), static_cast<Eigen::Index>(rows.front().size()));
  for (std::size_t i = 0; i < rows.size(); ++i) a.row(static_cast<Eigen::Index>(i)) = as_eigen(rows[i]).transpose();
  return as_vector(a.colPivHouseholderQr().solve(as_eigen(targets)));
}

double bounded(double parameter, double most) { return most * std::sin(parameter) * std::sin(parameter); }
double bounded_parameter(double value, double most) { return std::asin(std::sqrt(value / most)); }
double not_negative(double parameter) { return parameter * parameter; }
double not_negative_parameter(double value) { return std::sqrt(value); }

}  // namespace stepsim
