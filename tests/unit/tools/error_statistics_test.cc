#include "tools/error_statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace stepsim {

TEST(ErrorStatistics, PercentilesAreByNearestRank) {
  const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(nearest_rank(ten, 0.5), 5);    // rank ceil(0.5 * 10) = 5
  EXPECT_EQ(nearest_rank(ten, 0.9), 9);    // rank ceil(0.9 * 10) = 9
  EXPECT_EQ(nearest_rank(ten, 0.91), 10);  // rank ceil(9.1) = 10
  EXPECT_EQ(nearest_rank(ten, 1.0), 10);
  const std::vector<double> three = {1, 2, 3};
  EXPECT_EQ(nearest_rank(three, 0.5), 2);  // rank ceil(1.5) = 2
  EXPECT_EQ(nearest_rank(three, 0.9), 3);  // rank ceil(2.7) = 3
  EXPECT_EQ(nearest_rank(std::vector<double>{7}, 0.01), 7);
}

TEST(ErrorStatistics, SumsUpAbsoluteErrorsAndBias) {
  // Absolute errors sorted: 0.1 0.2 0.3 0.4; mean 0.25; signed mean (-0.1 + 0.2 + 0.3 - 0.4) / 4 = 0.
  const auto statistics = error_statistics(std::vector<double>{-0.1, 0.2, 0.3, -0.4});
  ASSERT_TRUE(statistics.has_value());
  EXPECT_EQ(statistics->rows, 4u);
  EXPECT_EQ(statistics->median, 0.2);
  EXPECT_DOUBLE_EQ(statistics->mean, 0.25);
  EXPECT_EQ(statistics->p90, 0.4);
  EXPECT_EQ(statistics->max, 0.4);
  EXPECT_NEAR(statistics->bias, 0, 1e-15);
}

TEST(ErrorStatistics, IsNoneWithoutRows) { EXPECT_FALSE(error_statistics({}).has_value()); }

}  // namespace stepsim
