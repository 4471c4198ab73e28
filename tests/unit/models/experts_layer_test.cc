// Layers with a mixture of experts: what they save by hand and against the published accounting, parameters, FLOPs, dispatchers, sharding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/experts_block_dispatch.h"
#include "models/placement_plan.h"
#include "sim/input_error.h"
#include "tests/unit/models/mixture_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

TEST(ExpertsLayer, SmallMixtureByHand) {
  const LayerTemplate layer = experts_layer(small_mixture());
  // Attention, 8 tokens: x 256, rstd 32, y1 256, q k v 768, o 256, log-sum-exp 64, x2 256, rstd 32, y2 256: 2,176.
  // Router: scores and probabilities 4 x 4 x 8 = 128 each, map 4 x 8 = 32. Row map 4 (2 x 4 + 1) 8 = 288.
  EXPECT_EQ(bytes_of(layer, "router scores"), 128);
  EXPECT_EQ(bytes_of(layer, "router probabilities"), 128);
  EXPECT_EQ(bytes_of(layer, "routing map"), 32);
  EXPECT_EQ(bytes_of(layer, "row map"), 288);
  // 16 rows: input 2 x 16 x 16 = 512, gate and up 2 x 16 x 64 = 2,048, probabilities 64, what the last product reads 2 x 16 x 32 = 1,024.
  EXPECT_EQ(bytes_of(layer, "experts input"), 512);
  EXPECT_EQ(bytes_of(layer, "experts gate and up output"), 2048);
  EXPECT_EQ(bytes_of(layer, "expert probabilities"), 64);
  EXPECT_EQ(bytes_of(layer, "experts activation output"), 1024);
  EXPECT_EQ(saved_bytes(layer).value, 2176 + 128 + 128 + 32 + 288 + 512 + 2048 + 64 + 1024);
}

// Bytes a token and layer: spec/published_facts.md section 4.
TEST(ExpertsLayer, Mixtral) {
  TemplateCase mixtral = catalog_case("mixtral-8x7b");
  EXPECT_EQ(saved_bytes(experts_layer(mixtral)).value, 241'948 * 4096LL);
  const LayerTemplate layer = experts_layer(mixtral);
  EXPECT_EQ(bytes_without(layer, {"layernorm"}), 225'564 * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"moe_act"}), 184'604 * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"moe"}), 53'384 * 4096LL);
  mixtral.training.capacity = 1.25;
  EXPECT_EQ(saved_bytes(experts_layer(mixtral)).value, 289'054 * 4096LL);
  mixtral.training.capacity = 0;
  mixtral.framework.unpermutes_with_probabilities = true;
  EXPECT_EQ(saved_bytes(experts_layer(mixtral)).value, 258'324 * 4096LL);
}

TEST(ExpertsLayer, DeepSeekV3) {
  TemplateCase deepseek = catalog_case("deepseek-v3");
  const LayerTemplate layer = experts_layer(deepseek), dense = layer_of_kind(deepseek, deepseek.model.kind(0));
  EXPECT_EQ(saved_bytes(layer).value, 459'572 * 4096LL);
  EXPECT_EQ(saved_bytes(dense).value, 340'496 * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"layernorm"}), 430'900 * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"moe_act"}), 422'708 * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"moe"}), 242'192 * 4096LL);
  // Published 324,532: there the 2 x 64 bytes of the rotary key stay, which here are made again unless a placement keeps them.
  EXPECT_EQ(bytes_without(layer, {"mla_up_proj"}), (324'532 - 128) * 4096LL);
  EXPECT_EQ(bytes_without(layer, {"layernorm", "latent_norm", "mla_up_proj", "moe_act"}), (258'996 - 128) * 4096LL);
  deepseek.framework.kept_for_reruns = {"rotary key"};
  EXPECT_EQ(bytes_without(experts_layer(deepseek), {"mla_up_proj"}), 324'532 * 4096LL);
}

// Megatron-LM's dropless rows by a load factor, rounded up; experts without gates save the product with the probabilities.
TEST(ExpertsLayer, LoadFactorAndSavedProduct) {
  TemplateCase each = small_mixture();
  each.training.imbalance = 1.1;
  EXPECT_EQ(bytes_of(experts_layer(each), "experts input"), 18 * 16 * 2);  // 16 x 1.1 = 17.6
  each.training.imbalance = 1;
  each.model.activation = Activation::kSquaredRelu;
  each.framework.copies_expert_probabilities = true;
  const LayerTemplate copied = experts_layer(each);
  EXPECT_TRUE(is_saved(copied, "experts activation output"));
  EXPECT_TRUE(is_saved(copied, "experts weighted output"));
  each.framework.copies_expert_probabilities = false;
  const LayerTemplate fused = experts_layer(each);
  EXPECT_EQ(slot_named(fused, "experts weighted output"), kNoSlot);
  EXPECT_EQ((saved_bytes(copied) - saved_bytes(fused)).value, 16 * 32 * 2);
}

// ../shared/data/memory/worked_examples.json, moe/gpt3_mcore_te_tp2_pp1_te_8experts2parallel_ddp_average_in_collective: 1,588,985,856 B in
// 12 layers = 132,415,488, of which the router has 16 x 2,048 x 8 = 262,144 by a rule of thumb that stands for the tensors named below.
TEST(ExpertsLayer, MeasuredMegatronLayer) {
  TemplateCase gpt = paper_case(12, 512, 8, 4);
  gpt.model.experts = {.experts = 8, .top_k = 1, .ffn_hidden = 2048};
  gpt.framework = load_framework("megatron-core@2025");
  gpt.training.precision = Precision::kBf16;
  gpt.training.sequence = 1024;
  gpt.parallel = {.tensor = 2, .sequence_parallel = true, .expert = 2, .dispatcher = Dispatcher::kAllGather, .data = 4};
  const LayerTemplate layer = experts_layer(gpt);
  std::int64_t router = 0;
  for (const char* name : {"router scores", "router probabilities", "routing map", "row map", "expert probabilities"}) {
    router += bytes_of(layer, name);
  }
  EXPECT_EQ(saved_bytes(layer).value - router, 132'415'488 - 262'144);
}

TEST(ExpertsLayer, ParametersAreTheModels) {
  for (const std::string& name : model_names()) {
    TemplateCase each = catalog_case(name, 64);
    each.framework.vocab_multiple = 1;
    for (const LayerKind& kind : each.model.kinds()) {
      if (kind.side == LayerSide::kFirstDecoder) continue;  // it has the encoder's final norm too
      if (kind.side == LayerSide::kDecoder) each.training.decoder_sequence = 64;
      const LayerTemplate layer = layer_of_kind(each, kind);
      const LayerParameters wanted = layer_parameters(each.model, kind);
      EXPECT_EQ(layer.parameters, wanted.all) << name << (kind.experts ? " experts" : " dense");
      EXPECT_EQ(layer.expert_parameters, wanted.experts) << name;
    }
  }
}

TEST(ExpertsLayer, EveryWeightHasAGradientOfItsShape) {
  TemplateCase each = small_mixture();
  each.model.experts.shared_ffn = 16;
  each.model.experts.shared_gate = true;
  each.model.experts.router_bias = true;
  for (const bool fused : {true, false}) {
    each.framework.fused_gate_up = each.framework.fused_bias_activation = fused;
    const LayerTemplate layer = experts_layer(each);
    int weights = 0;
    for (std::size_t i = 0; i < layer.slots.size(); ++i) {
      if (layer.slots[i].kind != SlotKind::kWeight) continue;
      ++weights;
      const SlotIndex gradient = slot_named(layer, layer.slots[i].name + " gradient");
      ASSERT_NE(gradient, kNoSlot) << layer.slots[i].name;
      EXPECT_EQ(slot_at(layer, gradient).shape, layer.slots[i].shape);
      EXPECT_EQ(slot_at(layer, gradient).expert, layer.slots[i].expert);
      int updates = 0;
      for (const TemplateOp& op : layer.backward) {
        updates += static_cast<int>(std::count(op.updates.begin(), op.updates.end(), gradient));
      }
      EXPECT_EQ(updates, 1) << layer.slots[i].name;
    }
    EXPECT_EQ(weights, fused ? 11 : 13);  // two norms, qkv, projection, router and bias, 2 or 3 of experts, as many shared, gate
    EXPECT_TRUE(slot_at(layer, slot_named(layer, "experts down weight")).expert);
    EXPECT_FALSE(slot_at(layer, slot_named(layer, "shared experts down weight")).expert);
    EXPECT_EQ(slot_at(layer, layer.input_gradient).shape, slot_at(layer, layer.input).shape);
  }
}

// 250.45 GFLOP a token at sequence 4096, causal, with the router (../shared/data/papers/deepseek_v3.json gflop_per_token_causal).
TEST(ExpertsLayer, DeepSeekFlops) {
  const TemplateCase deepseek = catalog_case("deepseek-v3");
  const LayerTemplate layer = experts_layer(deepseek), dense = layer_of_kind(deepseek, deepseek.model.kind(0));
  const double layers = (3 * flops_of(dense.forward) + 58 * flops_of(layer.forward)) / 4096;
  EXPECT_DOUBLE_EQ(3 * (layers + 2.0 * 7168 * 129280), 250'449'887'232);
}

// Backward: two products for each of forward's, five halves of attention's two.
TEST(ExpertsLayer, BackwardFlops) {
  for (const char* name : {"deepseek-v3", "mixtral-8x7b"}) {
    const LayerTemplate layer = experts_layer(catalog_case(name));
    const double attention = arithmetic(op_named(layer.forward, "attention")->work).value;
    EXPECT_DOUBLE_EQ(flops_of(layer.backward), 2 * (flops_of(layer.forward) - attention) + 2.5 * attention) << name;
  }
}

TemplateCase sharded(Dispatcher dispatcher, std::int32_t expert_tensor) {
  TemplateCase each = small_mixture();
  each.parallel = {
      .tensor = 2, .sequence_parallel = true, .expert = 2, .expert_tensor = expert_tensor, .dispatcher = dispatcher, .data = 2};
  return each;
}

// This rank has 4 of the 8 tokens, 2 of the 4 experts. A token is 32 B, a probability 4 B a row.
TEST(ExpertsDispatch, AllToAll) {
  const LayerTemplate layer = experts_layer(sharded(Dispatcher::kAllToAll, 2));
  // 4 tokens x 2 = 8 rows sent and received, gathered over two expert-tensor ranks: 16, each with half of the expert.
  EXPECT_THAT(collectives(layer.forward, Group::kExpert),
              ElementsAre("token dispatch all-to-all: all-to-all 256 B, 2 ranks, stride 2",
                          "token dispatch probability all-to-all: all-to-all 32 B, 2 ranks, stride 2",
                          "token dispatch expert tensor all-gather: all-gather 512 B, 2 ranks, stride 1",
                          "token dispatch probability expert tensor all-gather: all-gather 64 B, 2 ranks, stride 1",
                          "token combine expert tensor reduce-scatter: reduce-scatter 512 B, 2 ranks, stride 1",
                          "token combine all-to-all: all-to-all 256 B, 2 ranks, stride 2"));
  EXPECT_EQ(collectives(layer.backward, Group::kExpert).size(), 6U);
  EXPECT_EQ(bytes_of(layer, "experts input"), 16 * 32);
  EXPECT_EQ(bytes_of(layer, "experts gate and up output"), 16 * 32 * 2);  // gate and up of 16 each
  EXPECT_EQ(slot_at(layer, slot_named(layer, "experts gate and up weight")).shape, (std::vector<std::int64_t>{2, 32, 16}));
  EXPECT_EQ(layer.expert_parameters, 2 * (32 * 16 + 16 * 16));
  EXPECT_EQ(bytes_of(layer, "row map"), 4 * 4 * 5);
}

TEST(ExpertsDispatch, AllGatherIntoTheGlobalBuffer) {
  TemplateCase each = sharded(Dispatcher::kAllGather, 2);
  const LayerTemplate layer = experts_layer(each);
  // Four ranks of 4 tokens: 16 x 32 B, the map 16 x 4, the probabilities 16 x 16.
  const std::vector<std::string> forward = {"routing map all-gather: all-gather 64 B, 4 ranks, stride 1",
                                            "router probabilities all-gather: all-gather 256 B, 4 ranks, stride 1",
                                            "token dispatch all-gather: all-gather 512 B, 4 ranks, stride 1",
                                            "token combine reduce-scatter: reduce-scatter 512 B, 4 ranks, stride 1"};
  EXPECT_EQ(collectives(layer.forward, Group::kExpert), forward);
  EXPECT_EQ(bytes_of(layer, "token dispatch, all tokens"), 512);
  EXPECT_FALSE(is_saved(layer, "token dispatch, all tokens"));
  EXPECT_EQ(bytes_of(layer, "experts input"), 16 * 32);
  each.framework.global_buffers = true;
  const LayerTemplate buffered = experts_layer(each);
  EXPECT_EQ(slot_named(buffered, "token dispatch, all tokens"), kNoSlot);  // a resident of the step
  EXPECT_EQ(collectives(buffered.forward, Group::kExpert), forward);
  EXPECT_EQ(saved_bytes(buffered), saved_bytes(layer));
}

// Both miss a rank's 2 of 4 experts with probability 2/4 x 1/3 = 1/6: a token goes to 2 x 5/6 ranks, 4 tokens make 6.7, so 7 of 32 B.
TEST(ExpertsDispatch, LibrariesMoveATokenOnceToARank) {
  const LayerTemplate deep = experts_layer(sharded(Dispatcher::kDeepEp, 1));
  const std::vector<std::string> forward = {"token dispatch to ranks: dispatch 224 B, 2 ranks, stride 1",
                                            "token combine from ranks: combine 224 B, 2 ranks, stride 1"};
  EXPECT_EQ(collectives(deep.forward, Group::kExpert), forward);
  EXPECT_THAT(collectives(deep.backward, Group::kExpert),
              ElementsAre("token combine backward to ranks: dispatch 224 B, 2 ranks, stride 1",
                          "token dispatch backward from ranks: combine 224 B, 2 ranks, stride 1"));
  EXPECT_EQ(bytes_of(deep, "token dispatch, arrived"), 224);
  const LayerTemplate hybrid = experts_layer(sharded(Dispatcher::kHybridEp, 1));
  // HybridEP's copies carry fp32 probabilities of all 4 experts where those travel: 7 copies of 16 bytes.
  EXPECT_THAT(collectives(hybrid.forward, Group::kExpert),
              ElementsAre("token dispatch to ranks: dispatch 336 B, 2 ranks, stride 1", forward.back()));
  EXPECT_THAT(collectives(hybrid.backward, Group::kExpert),
              ElementsAre("token combine backward to ranks: dispatch 224 B, 2 ranks, stride 1",
                          "token dispatch backward from ranks: combine 336 B, 2 ranks, stride 1"));
  EXPECT_EQ(std::get<Collective>(op_named(hybrid.forward, "token dispatch to ranks")->work).routing,
            (Routing{.experts = 4, .choices = 2, .groups = 1, .best_groups = 1}));
  EXPECT_EQ(slot_named(hybrid, "token dispatch, arrived"), kNoSlot);
  EXPECT_EQ(bytes_of(hybrid, "experts input"), 8 * 32);
  EXPECT_EQ(std::get<Collective>(op_named(hybrid.forward, "token combine from ranks")->work).library, CollectiveLibrary::kHybridEp);
  EXPECT_EQ(std::get<Collective>(op_named(deep.forward, "token combine from ranks")->work).library, CollectiveLibrary::kDeepEp);
}

// DeepSeek-V3 on 64 ranks: 8 of 128 experts within 4 of 8 groups, 4 experts a rank, so 32 ranks can be reached; a rank is missed with
// probability prod_{i < 8} (124 - i) / (128 - i) = 0.77279...: 32 x 0.22721 = 7.2707 ranks, where 8 rows are sent.
TEST(ExpertsDispatch, GroupsLimitTheRanks) {
  TemplateCase deepseek = catalog_case("deepseek-v3");
  deepseek.parallel.expert = 64;
  deepseek.parallel.data = 64;
  const ExpertRows rows = expert_rows(deepseek.context(), device_shape(deepseek.context()));
  double missed = 1;
  for (int i = 0; i < 8; ++i) missed *= (124.0 - i) / (128.0 - i);
  EXPECT_NEAR(static_cast<double>(rows.arrived), 4096 * 32 * (1 - missed), 1);
  EXPECT_EQ(rows.sent, 8 * 4096);
  EXPECT_EQ(rows.rows, 8 * 4096);
  EXPECT_EQ(rows.local_experts, 4);
}

TEST(ExpertsDispatch, OneExpertARankNeedsNoSecondSort) {
  TemplateCase each = sharded(Dispatcher::kAllToAll, 1);
  EXPECT_NE(op_named(experts_layer(each).forward, "token dispatch sort"), nullptr);
  each.parallel.expert = 4;
  EXPECT_EQ(op_named(experts_layer(each).forward, "token dispatch sort"), nullptr);
}

TEST(ExpertsDispatch, ProbabilitiesOnTheWayBack) {
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather, Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
    TemplateCase each = sharded(dispatcher, 1);
    const std::int64_t inside = saved_bytes(experts_layer(each)).value;
    each.framework.unpermutes_with_probabilities = true;
    const LayerTemplate layer = experts_layer(each);
    // 8 rows of 32 B more; the exchange of rows returns to where the router's table is, so that a probability a row is not needed.
    const std::int64_t by_row = dispatcher == Dispatcher::kAllToAll ? 8 * 4 : 0;
    EXPECT_EQ(saved_bytes(layer).value - inside, 8 * 32 - by_row) << static_cast<int>(dispatcher);
  }
}

TEST(ExpertsLayer, SharedExperts) {
  TemplateCase each = small_mixture();
  const std::int64_t without = saved_bytes(experts_layer(each)).value;
  each.model.experts.shared_ffn = 24;
  const LayerTemplate shared = experts_layer(each);
  EXPECT_EQ(saved_bytes(shared).value - without, 6 * 24 * 8);  // 6 fs a token
  EXPECT_EQ(saved_bytes(shared).value - bytes_without(shared, {"shared_experts"}), 6 * 24 * 8);
  each.model.experts.shared_gate = true;
  EXPECT_EQ(saved_bytes(experts_layer(each)).value - saved_bytes(shared).value, 8 * (2 * 16 + 2));  // output and logit
  each.parallel = {.tensor = 2, .sequence_parallel = true};
  const LayerTemplate parallel = experts_layer(each);
  EXPECT_EQ(bytes_of(parallel, "shared experts gate and up output"), 8 * 24 * 2);
  EXPECT_EQ(slot_at(parallel, slot_named(parallel, "shared experts sigmoid gate weight")).shape, (std::vector<std::int64_t>{1, 16}));
}

TEST(ExpertsLayer, EveryModuleMakesAPlan) {
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather, Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
    TemplateCase each = sharded(dispatcher, 1);
    each.model.experts.shared_ffn = 16;
    for (const char* module : {"moe", "moe_act", "shared_experts", "layernorm", "core_attn"}) {
      PlacementPolicy policy;
      policy.granularity = RecomputeGranularity::kSelective;
      policy.modules = {module};
      const LayerTemplate layer = experts_layer(each);
      const PlacementPlan plan = make_plan(layer, 2, policy, each.framework);
      EXPECT_EQ(plan_error(plan, layer, 2), "") << module << " " << static_cast<int>(dispatcher);
      EXPECT_GT(forward_runs(plan, layer, 2), 1) << module;
    }
  }
}

TEST(ExpertsLayer, AbsurdLoadsAreRefused) {
  TemplateCase each = small_mixture();
  each.training.capacity = 1e300;
  EXPECT_THROW(experts_layer(each), InputError);
}

}  // namespace
}  // namespace stepsim
