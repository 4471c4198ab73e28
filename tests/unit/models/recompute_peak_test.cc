// Peaks of saved activations that follow from lifetimes alone: through build_step and the memory ledger, against closed forms.
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

constexpr std::int64_t c = kSmallCheckpoint, l = kSmallLayer;

PlacementPolicy segments(std::vector<std::int64_t> sizes) {
  PlacementPolicy policy;
  policy.segment_sizes = std::move(sizes);
  return policy;
}

std::vector<std::int64_t> sizes(std::size_t first_count, std::int64_t first, std::size_t then_count, std::int64_t then) {
  std::vector<std::int64_t> each(first_count, first);
  each.insert(each.end(), then_count, then);
  return each;
}

std::int64_t small_peak(std::int64_t layers, const PlacementPolicy& policy) {
  StepRequest request = small_request(layers);
  request.placement = policy;
  return saved_peak(build_step(request, small_templates())).value;
}

TEST(RecomputePeak, SmallLayersFollowTheClosedForms) {
  EXPECT_EQ(small_peak(6, {}), 6 * l);
  // Segments of one layer: all inputs and, without its input, the last layer.
  EXPECT_EQ(small_peak(6, segments({1, 1, 1, 1, 1, 1})), 6 * c + l - c);
  // Segments of two: three inputs, two layers of which one input is among the three; the layer between is made again.
  EXPECT_EQ(small_peak(6, segments({2, 2, 2})), 3 * c + 2 * l - c);
  // The long segment at the input: later inputs are freed by then. At the output 5c + l - c = 96, at the input c + 2l - c = 128.
  EXPECT_EQ(small_peak(6, segments({2, 1, 1, 1, 1})), 2 * l);
  EXPECT_EQ(small_peak(6, segments({1, 1, 1, 1, 2})), 5 * c + 2 * l - c);
}

TEST(RecomputePeak, BlockKeepsTheOtherLayersWhole) {
  StepRequest request = small_request(6);
  request.placement.granularity = RecomputeGranularity::kFull;
  request.placement.method = RecomputeMethod::kBlock;
  request.placement.num_layers = 2;
  // At the head: two inputs and four whole layers; when a first layer runs again the four are gone.
  EXPECT_EQ(saved_peak(build_step(request, small_templates())).value, 2 * c + 4 * l);
}

TEST(RecomputePeak, HalvingHoldsLogarithmicallyManyInputs) {
  // At the last of 2^k layers the inputs of layers 0, n/2, 3n/4, .. are held: k + 1 of them, the last being the layer's own.
  PlacementPolicy policy;
  policy.halving = true;
  for (int k = 0; k <= 6; ++k) EXPECT_EQ(small_peak(std::int64_t{1} << k, policy), k * c + l) << k;
}

TEST(RecomputePeak, MadeAgainCountsAsRecomputed) {
  StepRequest request = small_request(2);
  request.placement.segment_sizes = {2};
  const BuiltStep built = build_step(request, small_templates());
  const StepResult result = run_step(built);
  // Kept: the first input. Made again: fc1 and act outputs of both layers and the input between them.
  EXPECT_EQ(peak_of_roles(built.graph, result, DeviceId{0}, std::span(built.saved_roles).subspan(0, 1)).value, c);
  EXPECT_EQ(peak_of_roles(built.graph, result, DeviceId{0}, std::span(built.saved_roles).subspan(1, 1)).value, 2 * l - c);
}

TEST(RecomputePeak, SelectiveGroupIsBackOnlyForItsOwnBackward) {
  StepRequest request = small_request(3);
  request.placement.rows = {{0, -1, "fc1 output", PlacementAction::kRecompute}};
  // Kept 24 of each layer; in the last layer's backward fc1's output is back after fc2's backward freed the act output (16): 3 * 24 - 16
  // + 40.
  EXPECT_EQ(saved_peak(build_step(request, small_templates())).value, 3 * 24 - 16 + 40);
}

StepRequest gpt3() {
  StepRequest request;
  request.model = load_model("gpt3-175b");
  request.framework = load_framework("megatron-lm@2022-05");
  request.training.sequence = 2048;
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = 0.1;
  return request;
}

// GPT-3 175B, s = 2048, b = 1, h = 12288, a = 96: a layer saves sbh(34 + 5as/h) = 2,868,903,936 bytes (arXiv 2205.05198, table 2), of which
// its input is 2sbh = 50,331,648.
constexpr std::int64_t kGptInput = 50'331'648, kGptLayer = 2'868'903'936;

TEST(RecomputePeak, Gpt3KeepsNinetySixLayers) { EXPECT_EQ(saved_peak(build_step(gpt3())).value, 96 * kGptLayer); }

TEST(RecomputePeak, Gpt3FullRecompute) {
  StepRequest request = gpt3();
  request.placement.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(saved_peak(build_step(request)).value, 7'650'410'496);  // 96 c + l - c
  EXPECT_EQ(96 * kGptInput + kGptLayer - kGptInput, 7'650'410'496);
}

TEST(RecomputePeak, Gpt3SeventyFourSegments) {
  StepRequest request = gpt3();
  request.placement.segment_sizes = sizes(52, 1, 22, 2);  // the long ones at the output: 74 c + 2 l - c
  EXPECT_EQ(saved_peak(build_step(request)).value, 9'412'018'176);
  request.placement.segment_sizes = sizes(22, 2, 52, 1);  // at the input: 22 c + 2 l - c
  EXPECT_EQ(saved_peak(build_step(request)).value, 6'794'772'480);
  request.placement.segment_sizes.clear();
  request.placement.segments = 74;  // the larger ones first
  EXPECT_EQ(saved_peak(build_step(request)).value, 6'794'772'480);
}

TEST(RecomputePeak, Gpt3BestMixOfSegments) {
  StepRequest request = gpt3();
  request.placement.segment_sizes = sizes(20, 2, 56, 1);  // max(76 c + l - c, 20 c + 2 l - c)
  EXPECT_EQ(saved_peak(build_step(request)).value, 6'694'109'184);
}

TEST(RecomputePeak, Gpt3SelectiveAttention) {
  StepRequest request = gpt3();
  request.placement.granularity = RecomputeGranularity::kSelective;
  // Every layer keeps 34 sbh; before the last layer's attention runs backward its 5as/h = 80 sbh are back, while MLP, second norm, both
  // masks and the attention output (24 sbh) are freed. sbh = 25,165,824.
  EXPECT_EQ(saved_peak(build_step(request)).value, 25'165'824LL * (96 * 34 + 80 - 24));
}

}  // namespace
}  // namespace stepsim
