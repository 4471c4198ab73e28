#include "hardware/fit/collective_fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace stepsim {
namespace {

// Rows of a machine whose constants are known.
MeasuredCollectives machine_with(const CollectiveFit& fit, std::initializer_list<std::int32_t> ranks, int least_power, int most_power) {
  MeasuredCollectives machine{.gpu = load_gpu("h100-sxm-80gb"), .cluster = load_cluster("dgx-h100"), .rows = {}};
  GpuSpec known = machine.gpu;
  known.fit.gather = fit;
  for (const std::int32_t count : ranks) {
    for (int power = least_power; power <= most_power; ++power) {
      MeasuredCollective row{.work = {.kind = CollectiveKind::kAllGather, .message = Bytes(std::int64_t{1} << power), .ranks = count}};
      row.measured_s = simulated_s(known, machine.cluster, row);
      machine.rows.push_back(row);
    }
  }
  hold_out_odd_sizes(machine.rows);
  return machine;
}

constexpr CollectiveFit kKnown{.fixed = std::chrono::microseconds(18),
                               .per_rank = std::chrono::microseconds(2),
                               .bus = 0.8,
                               .small_group = 0.5,
                               .pipeline = std::chrono::microseconds(1),
                               .quick_fixed = std::chrono::microseconds(6),
                               .quick_per_rank = std::chrono::microseconds(1),
                               .quick_bus = 0.25};

double worst_error(const MeasuredCollectives& machine, const FittedCollectives& fit) {
  GpuSpec gpu = machine.gpu;
  use(fit, gpu.fit);
  double worst = 0;
  for (const MeasuredCollective& row : machine.rows) {
    worst = std::max(worst, std::abs(simulated_s(gpu, machine.cluster, row) / row.measured_s - 1));
  }
  return worst;
}

TEST(CollectiveFitTest, FindsTimesThatConstantsMade) {
  const MeasuredCollectives machine = machine_with(kKnown, {2, 4, 8}, 10, 29);
  const FittedCollectives fit = fit_collectives({&machine, 1}).front();
  ASSERT_TRUE(fit.gather.has_value());
  EXPECT_FALSE(fit.all_reduce.has_value());
  EXPECT_EQ(fit.fewer, "");
  EXPECT_LE(worst_error(machine, fit), 0.05);  // held-out sizes too; digits of the file and the simplex's last step
  EXPECT_NEAR(fit.gather->bus, 0.8, 0.05);
}

// One machine was measured with 2 ranks only: what grows with ranks comes from the other.
TEST(CollectiveFitTest, TermsOfRanksAreOfTheGeneration) {
  CollectiveFit slower = kKnown;
  slower.bus = 0.6;
  const MeasuredCollectives machines[] = {machine_with(kKnown, {2, 4, 8}, 10, 29), machine_with(slower, {2}, 10, 29)};
  const std::vector<FittedCollectives> fits = fit_collectives(machines);
  ASSERT_EQ(fits.size(), 2u);
  ASSERT_TRUE(fits[1].gather.has_value());
  EXPECT_EQ(fits[1].gather->per_rank, fits[0].gather->per_rank);
  EXPECT_EQ(fits[1].gather->small_group, fits[0].gather->small_group);
  EXPECT_LE(worst_error(machines[1], fits[1]), 0.06);
  const MeasuredCollectives unseen = machine_with(slower, {8}, 20, 29);
  EXPECT_LE(worst_error(unseen, fits[1]), 0.15);  // of rank counts that it was not measured with
}

TEST(CollectiveFitTest, FewShapesFindFewerConstants) {
  const MeasuredCollectives few = machine_with(kKnown, {8}, 24, 29);  // three fitted shapes
  const FittedCollectives fit = fit_collectives({&few, 1}).front();
  ASSERT_TRUE(fit.gather.has_value());
  EXPECT_EQ(fit.fewer, "gather: latency and bandwidth only; gather: terms of ranks of the base");
  EXPECT_EQ(fit.gather->quick_bus, 0);
  EXPECT_EQ(fit.gather->small_group, few.gpu.fit.gather.small_group);
  EXPECT_LE(worst_error(few, fit), 0.05);
  const MeasuredCollectives fewer = machine_with(kKnown, {8}, 24, 27);  // two
  EXPECT_FALSE(fit_collectives({&fewer, 1}).front().gather.has_value());
}

}  // namespace
}  // namespace stepsim
