#include "hardware/profile_cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hardware/roofline_cost_model.h"

namespace stepsim {
namespace {

using std::chrono::microseconds;

// fixed + FLOPs at a rate: the law of a GPU, or what a model makes of it.
class Law : public CostModel {
 public:
  Law(double fixed_us, double tflops) : fixed_us_(fixed_us), tflops_(tflops) {
    loads_[0].resource = ResourceId{0};
    loads_[0].fraction_2e30 = kFullLoad / 2;
  }
  double time_us(const OpWork& work) const { return fixed_us_ + arithmetic(work).value / (tflops_ * 1e6); }
  Cost cost(const OpWork& work, DeviceId, TransferSide) const override {
    const double alone_us = time_us(work) - fixed_us_;
    return {.fixed = duration_from_seconds(fixed_us_ * 1e-6),
            .alone = duration_from_seconds(alone_us * 1e-6),
            .issue = microseconds(4),
            .loads = loads_};
  }

 private:
  double fixed_us_, tflops_;
  std::vector<Load> loads_ = std::vector<Load>(1);
};

Gemm product(std::int64_t m) { return {.m = m, .n = 4096, .k = 4096, .transpose_a = true}; }

double us(const CostModel& model, const OpWork& work) {
  const Cost cost = model.cost(work, DeviceId{0});
  return seconds(cost.fixed + cost.alone) * 1e6;
}

KernelProfile profile_of(const Law& law, const std::vector<OpWork>& works) {
  KernelProfile profile;
  for (const OpWork& work : works) profile.kernels.push_back({work, duration_from_seconds(law.time_us(work) * 1e-6)});
  return profile;
}

// A kernel takes 60 us and 80 TFLOP/s; the model believes in 5 us and 100.
const Law kGpu(60, 80), kModel(5, 100);

TEST(ProfileCostModel, MeasuredWorksTakeTheirTime) {
  const ProfileCostModel costs(kModel, profile_of(kGpu, {product(1024), product(2048)}));
  // 2 * 1024 * 4096^2 FLOPs = 3.436e10: 429.5 us at 80 TFLOP/s.
  EXPECT_NEAR(us(costs, product(1024)), 489.497, 1e-3);
  EXPECT_EQ(costs.origin(product(1024)), CostOrigin::kMeasured);
  const Cost cost = costs.cost(product(1024), DeviceId{0}), modelled = kModel.cost(product(1024), DeviceId{0}, TransferSide::kBoth);
  EXPECT_EQ(cost.issue, modelled.issue);
  EXPECT_EQ(cost.loads.data(), modelled.loads.data());
  // The fixed part keeps its share: 5 of 348.6 us of the model.
  EXPECT_NEAR(seconds(cost.fixed) * 1e6, 489.497 * 5 / 348.597, 1e-2);
}

// Between 1024 and 2048: ratios 489.5 / 348.6 = 1.404 and 919.0 / 692.2 = 1.328. At 1536 they weigh 1 / (0.5^2 + 0.01) = 3.846 and
// 1 / (0.333^2 + 0.01) = 8.257: 1.3520; the law's own ratio there is 704.2 / 520.4 = 1.3533.
TEST(ProfileCostModel, BetweenMeasuredWorksRatiosAreInterpolated) {
  const ProfileCostModel costs(kModel, profile_of(kGpu, {product(1024), product(2048)}));
  EXPECT_NEAR(us(costs, product(1536)), 520.396 * 1.35197, 0.02);
  EXPECT_EQ(costs.origin(product(1536)), CostOrigin::kInterpolated);
  for (std::int64_t m = 1025; m < 2048; ++m) {
    ASSERT_NEAR(us(costs, product(m)) / kGpu.time_us(product(m)), 1, 0.02) << m;
  }
  // The model alone is 26 % off there.
  EXPECT_LT(us(kModel, product(1536)) / kGpu.time_us(product(1536)), 0.75);
}

TEST(ProfileCostModel, TimesRiseWithTheSizes) {
  const ProfileCostModel costs(kModel, profile_of(kGpu, {product(512), product(1024), product(1536), product(2048)}));
  double before = 0;
  for (std::int64_t m = 256; m <= 4096; m += 16) {
    const double time = us(costs, product(m));
    EXPECT_GT(time, before) << m;
    before = time;
  }
}

// Beyond a factor of 2 in any size the model counts; at 2 the measurement still does.
TEST(ProfileCostModel, FallsBackFarFromMeasuredWorks) {
  const ProfileCostModel costs(kModel, profile_of(kGpu, {product(1024), product(2048)}));
  EXPECT_EQ(costs.origin(product(4096)), CostOrigin::kInterpolated);
  EXPECT_EQ(costs.origin(product(4097)), CostOrigin::kModelled);
  EXPECT_EQ(costs.origin(product(511)), CostOrigin::kModelled);
  EXPECT_EQ(us(costs, product(8192)), us(kModel, product(8192)));
  Gemm wide = product(1024);
  wide.n = 8193;
  EXPECT_EQ(costs.origin(wide), CostOrigin::kModelled);
  wide.n = 8192;
  EXPECT_EQ(costs.origin(wide), CostOrigin::kInterpolated);
  Gemm batched = product(1024);
  batched.batch = 3;
  EXPECT_EQ(costs.origin(batched), CostOrigin::kModelled);
}

// Of rows in one direction the nearest alone counts: the absurd one at 1024 is behind that at 1280.
TEST(ProfileCostModel, NearestOfADirectionCounts) {
  KernelProfile profile = profile_of(kGpu, {product(1280), product(2048)});
  const double expected = us(ProfileCostModel(kModel, profile), product(1536));
  profile.kernels.push_back({product(1024), std::chrono::seconds(1)});
  EXPECT_EQ(us(ProfileCostModel(kModel, profile), product(1536)), expected);
  // From 1152 it is the nearest that is smaller.
  EXPECT_GT(us(ProfileCostModel(kModel, profile), product(1152)), 1e5);
}

TEST(ProfileCostModel, KindsDoNotMix) {
  const Attention attention{.batch = 1, .heads = 16, .kv_heads = 16, .queries = 2048, .keys = 2048, .head_dim = 128};
  const ProfileCostModel costs(kModel, profile_of(kGpu, {product(1024), attention}));
  Gemm half = product(1024);
  half.dtype = DType::kFp16;
  EXPECT_EQ(costs.origin(half), CostOrigin::kModelled);
  EXPECT_EQ(costs.origin(attention), CostOrigin::kMeasured);
  for (const auto& change :
       std::vector<void (*)(Attention&)>{[](Attention& work) { work.causal = false; }, [](Attention& work) { work.backward = true; },
                                         [](Attention& work) { work.kernel = 1; }, [](Attention& work) { work.head_dim = 64; }}) {
    Attention other = attention;
    change(other);
    EXPECT_EQ(costs.origin(other), CostOrigin::kModelled);
  }
  Attention longer = attention;
  longer.queries = longer.keys = 3000;
  EXPECT_EQ(costs.origin(longer), CostOrigin::kInterpolated);
}

// Layouts of which nothing was measured take the ratios of TN; those that were measured their own.
TEST(ProfileCostModel, OtherLayoutsBorrowRatios) {
  Gemm gradient = product(1024);
  gradient.transpose_a = false;
  gradient.transpose_b = gradient.accumulate_fp32 = true;
  KernelProfile profile = profile_of(kGpu, {product(1024), product(2048)});
  EXPECT_NEAR(us(ProfileCostModel(kModel, profile), gradient), kGpu.time_us(gradient), 1e-3);
  EXPECT_EQ(ProfileCostModel(kModel, profile).origin(gradient), CostOrigin::kInterpolated);
  profile.kernels.push_back({gradient, microseconds(700)});
  EXPECT_DOUBLE_EQ(us(ProfileCostModel(kModel, profile), gradient), 700);
  Gemm longer = gradient;
  longer.m = 2048;
  EXPECT_NEAR(us(ProfileCostModel(kModel, profile), longer), us(kModel, longer) * 700 / us(kModel, gradient), 1e-3);
}

// A stack that slows the model's kernels 1.25 times slows the measured ones as much, and those between them.
TEST(ProfileCostModel, StacksSlowMeasuredKernelsToo) {
  const Law slowed(5 * 1.25, 100 / 1.25);
  const KernelProfile profile = profile_of(kGpu, {product(1024), product(2048)});
  const ProfileCostModel bare(kModel, profile), costs(slowed, profile, std::make_unique<Law>(5, 100));
  EXPECT_NEAR(us(costs, product(1024)) / us(bare, product(1024)), 1.25, 1e-6);
  EXPECT_NEAR(us(costs, product(1536)) / us(bare, product(1536)), 1.25, 1e-6);
}

// The order of the rows and of the questions decides nothing.
TEST(ProfileCostModel, OrderDoesNotMatter) {
  std::vector<OpWork> works;
  for (std::int64_t m = 700; m < 3000; m += 229) works.push_back(product(m));
  KernelProfile forwards = profile_of(kGpu, works), backwards = forwards;
  std::reverse(backwards.kernels.begin(), backwards.kernels.end());
  const ProfileCostModel one(kModel, forwards), other(kModel, backwards);
  for (std::int64_t m = 600; m < 4000; m += 37) {
    const OpWork first = product(m), last = product(4600 - m);
    EXPECT_EQ(us(one, first), us(other, first));
    EXPECT_EQ(us(other, last), us(one, last));
  }
}

TEST(ProfileCostModel, CollectivesAndMemoryKernels) {
  const GpuSpec gpu = load_gpu("h100");
  const ClusterSpec cluster = usual_cluster(gpu);
  const RooflineCostModel model(gpu, cluster, make_machine(gpu, cluster, 2));
  const Collective reduce{.message = Bytes(1 << 26), .ranks = 8};
  const MemoryBound norm{.read = Bytes(1 << 26), .written = Bytes(1 << 26), .kernel = MemoryKernel::kNorm};
  KernelProfile profile;
  profile.kernels = {{reduce, microseconds(500)}, {norm, microseconds(100)}};
  const ProfileCostModel costs(model, profile);
  EXPECT_DOUBLE_EQ(us(costs, reduce), 500);
  EXPECT_DOUBLE_EQ(us(costs, norm), 100);
  Collective larger = reduce, wider = reduce;
  larger.message = Bytes(3 << 25);
  wider.ranks = 4;
  EXPECT_EQ(costs.origin(larger), CostOrigin::kInterpolated);
  EXPECT_EQ(costs.origin(wider), CostOrigin::kModelled);
  EXPECT_EQ(costs.origin(Copy{.bytes = Bytes(1 << 20)}), CostOrigin::kModelled);
  EXPECT_EQ(us(costs, Copy{.bytes = Bytes(1 << 20)}), us(model, Copy{.bytes = Bytes(1 << 20)}));
  EXPECT_EQ(us(costs, Marker{}), 0);
}

}  // namespace
}  // namespace stepsim
