#include "tools/slowdown_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tools/band_coverage.h"

namespace stepsim {
namespace {

// 10 s alone, of which `share` are products.
TimeCurve curve_of(double share) {
  TimeCurve curve;
  for (const double slowdown : {1.0, 1.4, 1.8}) curve.add(slowdown, 10 * (1 - share + share * slowdown));
  return curve;
}

TEST(TimeCurve, StraightBetweenAndBeyond) {
  const TimeCurve curve = curve_of(0.5);
  EXPECT_NEAR(curve.at(1.2), 11, 1e-12);
  EXPECT_NEAR(curve.at(2), 15, 1e-12);
  EXPECT_NEAR(curve.at(0.8), 9, 1e-12);
  EXPECT_NEAR(curve.reaching(13), 1.6, 1e-9);
  EXPECT_EQ(curve.reaching(1000), kMostTriedSlowdown);
  EXPECT_EQ(curve.reaching(0.1), kLeastTriedSlowdown);
  EXPECT_NEAR(curve.weight(), std::log(1.4) / std::log(1.8), 1e-12);  // 10 to 14 s from 1 to 1.8
  EXPECT_TRUE(curve.knows(1.4));
  EXPECT_FALSE(curve.knows(1.5));
  TimeCurve one;
  one.add(1, 7);
  EXPECT_EQ(one.at(5), 7);
  EXPECT_EQ(one.weight(), 0);
}

TEST(SlowdownFit, FindsWhatMadeTheTimes) {
  const std::vector<TimeCurve> curves = {curve_of(0.9), curve_of(0.6), curve_of(0.3)};
  std::vector<FittedTime> rows;
  for (const TimeCurve& curve : curves) rows.push_back({&curve, curve.at(1.3)});
  EXPECT_NEAR(best_slowdown(rows), 1.3, 1e-9);
  EXPECT_NEAR(mean_log_error(rows, 1.3), 0, 1e-12);
  // One step of three that took twice as long moves nothing: absolute errors.
  rows[2].measured_s *= 2;
  EXPECT_NEAR(best_slowdown(rows), 1.3, 1e-9);
}

TEST(SlowdownFit, TheMiddleOfWhatIsAsGood) {
  const TimeCurve curve = curve_of(1);
  // Two equal steps that want 1.2 and 1.3: every slowdown between is off by log(1.3 / 1.2) / 2 on average.
  const std::vector<FittedTime> rows = {{&curve, 12}, {&curve, 13}};
  EXPECT_NEAR(best_slowdown(rows), 1.25, 1e-9);
  EXPECT_NEAR(mean_log_error(rows, 1.25), std::log(13.0 / 12) / 2, 1e-9);
}

// 10 steps of products alone that want 1.1 to 2.0: the 1st and the 9th. One that hardly hangs on products has no say.
TEST(SlowdownFit, RangeOfSingleSteps) {
  const TimeCurve products = curve_of(1), other = curve_of(0.1);
  std::vector<FittedTime> rows;
  for (int i = 1; i <= 10; ++i) rows.push_back({&products, 10 * (1 + 0.1 * i)});
  rows.push_back({&other, 16});
  const WantedRange range = wanted_range(rows, 1.5);
  EXPECT_NEAR(range.lower, 1.1, 1e-9);
  EXPECT_NEAR(range.upper, 1.9, 1e-9);
  EXPECT_EQ(wanted_range(rows, 3).upper, 3);  // widened
}

TEST(BandCoverage, CountsAndMedianWidths) {
  const std::vector<BandedRow> rows = {
      {"dense", 10, 9, 11, 10.5}, {"dense", 10, 9.5, 10.5, 12}, {"dense", 100, 90, 130, 89}, {"moe", 1, 0.5, 2, 1}};
  const std::map<std::string, BandCoverage> coverage = band_coverage(rows);
  ASSERT_EQ(coverage.size(), 3u);
  const BandCoverage& dense = coverage.at("dense");
  EXPECT_EQ(dense.rows, 3u);
  EXPECT_EQ(dense.below, 1u);
  EXPECT_EQ(dense.above, 1u);
  EXPECT_NEAR(dense.inside(), 1.0 / 3, 1e-12);
  EXPECT_NEAR(dense.half_width, 0.1, 1e-12);  // 0.05, 0.1, 0.2
  EXPECT_NEAR(coverage.at("moe").half_width, 0.75, 1e-12);
  EXPECT_EQ(coverage.at("all").rows, 4u);
  EXPECT_EQ(band_coverage(std::span(rows).first(3)).size(), 1u);
  EXPECT_EQ(band_coverage_text(band_coverage(std::span(rows).first(3))),
            "class  rows  inside  below  above  half width\n"
            "dense     3    33 %      1      1      10.0 %\n");
}

}  // namespace
}  // namespace stepsim
