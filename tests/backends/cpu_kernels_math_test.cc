// exp and erf of the CPU's kernels against libm's.
#include <gtest/gtest.h>

#include <cmath>

#include "hardware/backends/cpu/vector_math.h"

namespace stepsim::cpu {

TEST(CpuKernelMath, ExpAndErfAreThose) {
  for (float x = -86; x < 87; x += 0.0137F) {
    const double wanted = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(exp_of(x)), wanted, 3e-7 * wanted) << x;
  }
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_LT(exp_of(-1000), 2e-38F);
  for (float x = -5; x < 5; x += 0.0013F) {
    ASSERT_NEAR(static_cast<double>(erf_of(x, exp_of(-x * x))), std::erf(static_cast<double>(x)), 3e-7) << x;
  }
}

}  // namespace stepsim::cpu
