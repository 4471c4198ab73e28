// Minimises a function of a few parameters without slopes: for models in steps, where Levenberg-Marquardt finds none.
#pragma once

#include <functional>
#include <vector>

namespace stepsim {

// The corner of the least value after `rounds` of reflecting, stretching and shrinking a simplex whose corners are `start` and `start` with
// one parameter `step` larger (Nelder and Mead 1965; reflection 1, expansion 2, contraction and shrinkage 1/2). A local minimum at best.
std::vector<double> simplex_minimum(const std::function<double(const std::vector<double>&)>& function, const std::vector<double>& start,
                                    double step, int rounds);

}  // namespace stepsim
