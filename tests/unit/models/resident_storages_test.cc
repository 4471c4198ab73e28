// Copies of parameters by optimizer, precision and what is trained; shares of dense and of routed experts' parameters.
#include "models/resident_storages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/optimizer_phase.h"
#include "tests/unit/error_of.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

ParameterBytes bytes_with(OptimizerKind optimizer, DType moments = DType::kFp32, double momentum = 0) {
  TrainingRecipe training;
  training.optimizer = optimizer;
  training.moment_dtype = moments;
  training.momentum = momentum;
  training.gradient_dtype = DType::kFp32;
  return parameter_bytes(training, {});
}

// 10,000 parameters of which 9,000 are of matrices in layers.
TEST(ResidentStorages, MomentsAreTheOptimizers) {
  const auto moments = [](const ParameterBytes& bytes) { return bytes.moment_bytes(10'000, 9'000).value; };
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kAdamW)), 80'000);                // m and v, fp32
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kAdamW, DType::kBf16)), 40'000);  // 2 B each
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kSgd)), 0);
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kSgd, DType::kFp32, 0.9)), 40'000);
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kLion)), 40'000);
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kMuon)), 9'000 * 4 + 1'000 * 8);
  // bitsandbytes: 1 B each, and for 40 blocks of 256 (the last one of 16) a fp32 scale each.
  EXPECT_EQ(moments(bytes_with(OptimizerKind::kAdam8Bit)), 20'000 + 40 * 2 * 4);
}

TEST(ResidentStorages, PrecisionsBelow16BitsAreKeptAsBf16) {
  TrainingRecipe training;
  for (const Precision precision : {Precision::kFp8, Precision::kMxFp8, Precision::kNvFp4}) {
    training.precision = precision;
    const TrainingRecipe resolved = with_gradient_dtype(training, {}, {});
    EXPECT_EQ(resolved.gradient_dtype, DType::kFp32);
    const ParameterBytes bytes = parameter_bytes(resolved, {});
    EXPECT_EQ(bytes.weight, 2);
    EXPECT_EQ(bytes.master, 4);
    EXPECT_EQ(bytes.gradient_copy, 0);
  }
}

TEST(ResidentStorages, WithoutMasterWeightsTheGradientNeedsNoCopy) {
  TrainingRecipe training;
  training.gradient_dtype = DType::kBf16;
  FrameworkPreset framework;
  EXPECT_EQ(parameter_bytes(training, {}, framework).gradient_copy, 4);
  EXPECT_EQ(parameter_bytes(training, {}, framework).master, 4);
  framework.keeps_master_weights = false;
  EXPECT_EQ(parameter_bytes(training, {}, framework).gradient_copy, 0);
  EXPECT_EQ(parameter_bytes(training, {}, framework).master, 0);
}

std::int64_t bytes_named(const OpGraph& graph, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StorageId storage : storages_of(graph, name)) bytes += storage_of(graph, storage).size.value;
  return bytes;
}

// The small layer with 60 of its 100 parameters a routed expert's, in a matrix of its own.
StepTemplates expert_templates(std::int64_t gradient_bytes = 4) {
  StepTemplates templates = small_templates(gradient_bytes);
  LayerTemplate& layer = templates.kinds.front();
  layer.slots[8].size = Bytes(80);
  layer.slots[9].size = Bytes(40 * gradient_bytes);
  Slot weight = small_slot("expert weight", SlotKind::kWeight, 120);
  Slot gradient = small_slot("expert weight gradient", SlotKind::kWeightGradient, 60 * gradient_bytes);
  weight.expert = gradient.expert = true;
  layer.slots.push_back(weight);    // 10
  layer.slots.push_back(gradient);  // 11
  layer.forward[2].reads.push_back(10);
  layer.backward[0].reads.push_back(10);
  layer.backward[0].updates.push_back(11);
  layer.expert_parameters = 60;
  return templates;
}

// 8 data-parallel ranks of which 4 share the experts: 2 hold the same ones.
StepRequest with_experts(std::int32_t zero) {
  StepRequest request = small_request(1);
  request.parallel.data = 8;
  request.parallel.expert = 4;
  request.parallel.zero = zero;
  request.training.global_batch = 8;
  return request;
}

const Collective& collective_of(const OpGraph& graph, std::string_view kind) {
  return std::get<Collective>(graph.work(ops_of(graph, kind).front()));
}

// Optimizer state of 10 + 40 dense parameters is shared by 8 ranks (2 + 5 each), that of 60 experts' by 2 (30): 12 B each.
TEST(ResidentStorages, ExpertsAreSharedByTheirOwnReplicas) {
  const BuiltStep built = build_step(with_experts(1), expert_templates());
  EXPECT_EQ(bytes_named(built.graph, "weights"), 110 * 2);
  EXPECT_EQ(bytes_named(built.graph, "main gradients"), 110 * 4);
  EXPECT_EQ(bytes_named(built.graph, "master weights"), (2 + 5 + 30) * 4);
  EXPECT_EQ(bytes_named(built.graph, "optimizer moments"), (2 + 5 + 30) * 8);
}

// Neighbours of the data-parallel group are next to each other (one tensor-parallel rank), experts' replicas 4 ranks apart.
TEST(ResidentStorages, ExpertsGradientsAreReducedApart) {
  const BuiltStep built = build_step(with_experts(1), expert_templates());
  EXPECT_EQ(collective_of(built.graph, "gradient reduce-scatter"),
            (Collective{.kind = CollectiveKind::kReduceScatter, .message = Bytes(50 * 4), .ranks = 8, .stride = 1}));
  EXPECT_EQ(collective_of(built.graph, "expert gradient reduce-scatter"),
            (Collective{.kind = CollectiveKind::kReduceScatter, .message = Bytes(60 * 4), .ranks = 2, .stride = 4}));
  EXPECT_EQ(collective_of(built.graph, "expert weight all-gather"),
            (Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(60 * 2), .ranks = 2, .stride = 4}));
  std::int64_t gathered = 0;
  for (const OpId op : ops_of(built.graph, "weight all-gather")) gathered += std::get<Collective>(built.graph.work(op)).message.value;
  EXPECT_EQ(gathered, 50 * 2);
  EXPECT_TRUE(find_cycle(built.graph).empty());
}

TEST(ResidentStorages, ExpertsWithoutReplicasAreNotReduced) {
  StepRequest request = with_experts(0);
  request.parallel.expert = 8;
  const BuiltStep built = build_step(request, expert_templates());
  EXPECT_EQ(count_ops(built.graph, "expert gradient all-reduce"), 0);
  EXPECT_EQ(collective_of(built.graph, "gradient all-reduce").message, Bytes(50 * 4));
}

// ZeRO 3: fp32 shards of 2 + 5 + 30 parameters; a layer is gathered whole: 40 weights over 8 ranks, 60 over 2.
TEST(ResidentStorages, ExpertsAreGatheredFromTheirOwnReplicas) {
  const BuiltStep built = build_step(with_experts(3), expert_templates(2));
  EXPECT_EQ(bytes_named(built.graph, "master weights"), (2 + 5 + 30) * 4);
  EXPECT_EQ(collective_of(built.graph, "expert weight all-gather"),
            (Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(60 * 2), .ranks = 2, .stride = 4}));
  EXPECT_EQ(collective_of(built.graph, "expert gradient reduce-scatter").ranks, 2);
  EXPECT_TRUE(find_cycle(built.graph).empty());
}

// The small layer beside 120 B of weights that are not trained.
StepTemplates frozen_templates(std::int64_t gradient_bytes) {
  StepTemplates templates = small_templates(gradient_bytes);
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("base weight", SlotKind::kWeight, 120));  // 10
  layer.frozen_bytes = Bytes(120);
  layer.frozen_parameters = 60;
  layer.forward[2].reads.push_back(10);
  layer.backward[0].reads.push_back(10);
  return templates;
}

// 100 trained parameters of a layer and 10 of the embedding have gradients and state, the frozen ones their bytes alone.
TEST(ResidentStorages, FrozenWeightsHaveNoState) {
  StepRequest request = small_request(1);
  request.training.trainable.kind = TrainableMask::Kind::kLora;
  const BuiltStep built = build_step(request, frozen_templates(4));
  EXPECT_EQ(bytes_named(built.graph, "weights"), 110 * 2 + 120);
  EXPECT_EQ(bytes_named(built.graph, "main gradients"), 110 * 4);
  EXPECT_EQ(bytes_named(built.graph, "optimizer moments"), 110 * 8);
}

// ZeRO 3 over 2 ranks: fp32 shards of what is trained (5 and 50 parameters), 60 B of what is not; both are gathered, 2 x 100 + 120 B.
TEST(ResidentStorages, FrozenWeightsAreShardedToo) {
  StepRequest request = small_request(1);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  request.training.trainable.kind = TrainableMask::Kind::kLora;
  const BuiltStep built = build_step(request, frozen_templates(2));
  EXPECT_EQ(bytes_named(built.graph, "weights"), 60);
  EXPECT_EQ(bytes_named(built.graph, "master weights"), 55 * 4);
  std::vector<std::int64_t> messages;
  for (const OpId op : ops_of(built.graph, "weight all-gather"))
    messages.push_back(std::get<Collective>(built.graph.work(op)).message.value);
  EXPECT_THAT(messages, testing::Contains(2 * 100 + 120));
  EXPECT_EQ(collective_of(built.graph, "gradient reduce-scatter").ranks, 2);
}

// Megatron-FSDP over 2 ranks: 18 N / 2 bytes between steps (spec/megatron_memory.md section 3.5); the update writes the 16-bit shard too.
TEST(ResidentStorages, SixteenBitShardsBesideTheMasters) {
  StepRequest request = small_request(1);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  const auto written = [&] {
    const BuiltStep built = build_step(request, small_templates(2));
    return std::get<MemoryBound>(built.graph.work(ops_of(built.graph, "AdamW update").back())).written.value;
  };
  EXPECT_EQ(written(), 50 * (4 + 8));
  request.framework.keeps_weight_shards = true;
  EXPECT_EQ(written(), 50 * (4 + 8 + 2));
  const BuiltStep built = build_step(request, small_templates(2));
  std::int64_t start = 0;
  for (const Storage& storage : built.graph.storages()) start += storage.live_at_start ? storage.size.value : 0;
  EXPECT_EQ(start, 110 * 18 / 2);
}

// 4 data-parallel x 2 context-parallel ranks hold the same parameters.
TEST(ResidentStorages, ContextParallelRanksAreReplicas) {
  StepRequest request = small_request(1);
  request.parallel.data = 4;
  request.parallel.context = 2;
  request.parallel.zero = 1;
  request.training.global_batch = 4;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(collective_of(built.graph, "gradient reduce-scatter").ranks, 8);
  EXPECT_EQ(bytes_named(built.graph, "optimizer moments"), (2 + 13) * 8);  // of 10 and 100 parameters
}

// Two instances: state is sharded within 4 ranks, and each rank's part of the sum goes over the 2 instances, 4 ranks apart.
TEST(ResidentStorages, OptimizerInstancesShareWithinThemselves) {
  StepRequest request = small_request(1);
  request.parallel.data = 8;
  request.parallel.zero = 1;
  request.parallel.optimizer_instances = 2;
  request.training.global_batch = 8;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(bytes_named(built.graph, "master weights"), (3 + 25) * 4);
  EXPECT_EQ(collective_of(built.graph, "gradient reduce-scatter").ranks, 4);
  EXPECT_EQ(collective_of(built.graph, "gradient all-reduce over instances"),
            (Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(110), .ranks = 2, .stride = 4}));
}

// fp16 with fp16 gradients: 20 B a parameter between steps, 16 amid one (spec/megatron_memory.md section 3.1).
TEST(ResidentStorages, Fp32CopiesOfGradientsLiveUntilTheNextStep) {
  StepRequest request = small_request(1);
  request.training.precision = Precision::kFp16;
  request.framework.keeps_fp32_gradient_copies = true;
  const BuiltStep built = build_step(request, small_templates(2));
  const StepResult result = run_step(built);
  std::int64_t start = 0, end = 0;
  for (const Storage& storage : built.graph.storages()) {
    start += storage.live_at_start ? storage.size.value : 0;
    end += storage.live_at_end ? storage.size.value : 0;
  }
  EXPECT_EQ(start, 110 * 20);
  EXPECT_EQ(end, 110 * 20);
  for (const StorageId old : storages_of(built.graph, "fp32 gradients of the step before")) {
    EXPECT_EQ(life_of(built.graph, result, old), (Life{"", "forward embedding"}));
  }
  for (const StorageId copy : storages_of(built.graph, "fp32 gradients")) {
    EXPECT_EQ(life_of(built.graph, result, copy), (Life{"optimizer fp32 gradients", ""}));
  }
}

// torchtune: the update of a unit follows its last backward op and frees its gradient; nothing is left for the end of the step.
TEST(ResidentStorages, OptimizerInBackwardFreesEachGradient) {
  StepRequest request = small_request(2);
  request.training.optimizer_in_backward = true;
  request.framework.gradients_always_allocated = true;  // no buffer all the same
  const BuiltStep built = build_step(request, small_templates());
  const StepResult result = run_step(built);
  EXPECT_EQ(count_ops(built.graph, "AdamW update"), 3);
  EXPECT_EQ(count_ops(built.graph, "gradient norm") + count_ops(built.graph, "gradient clear"), 0);
  const std::vector<StorageId> gradients = storages_of(built.graph, "main gradients");
  ASSERT_THAT(gradients, SizeIs(3));
  EXPECT_EQ(life_of(built.graph, result, gradients[1]), (Life{"backward L0 fc2 backward", "optimizer L0 AdamW update"}));
  EXPECT_EQ(life_of(built.graph, result, gradients[2]), (Life{"backward L1 fc2 backward", "optimizer L1 AdamW update"}));
  std::vector<std::string> order;
  for (const OpId op : compute_ops(built.graph, DeviceId{0})) {
    const std::string name = built.graph.op_name(op);
    if (name.find("update") != std::string::npos || name.find("fc1 backward") != std::string::npos) order.push_back(name);
  }
  EXPECT_THAT(order, ElementsAre("backward L1 fc1 backward", "optimizer L1 AdamW update", "backward L0 fc1 backward",
                                 "optimizer L0 AdamW update", "optimizer AdamW update"));
}

TEST(ResidentStorages, OptimizerInBackwardRefusesWhatAccumulates) {
  TrainingRecipe training;
  ParallelLayout parallel;
  check_optimizer_in_backward(training, parallel, 4);
  training.optimizer_in_backward = true;
  EXPECT_THAT(error_of([&] { check_optimizer_in_backward(training, parallel, 4); }), HasSubstr("found 4 micro-batches"));
  parallel.data = 2;
  EXPECT_THAT(error_of([&] { check_optimizer_in_backward(training, parallel, 1); }), HasSubstr("found --zero 0 with replicas"));
  parallel.zero = 3;
  EXPECT_EQ(error_of([&] { check_optimizer_in_backward(training, parallel, 1); }), "");
}

// ZeRO 3: the update follows the reduction on its stream.
TEST(ResidentStorages, OptimizerInBackwardUpdatesReducedShards) {
  StepRequest request = small_request(2);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  request.training.optimizer_in_backward = true;
  request.framework.gradients_always_allocated = false;
  const BuiltStep built = build_step(request, small_templates(2));
  const std::vector<OpId> updates = ops_of(built.graph, "AdamW update");
  ASSERT_THAT(updates, SizeIs(3));
  for (const OpId update : updates)
    EXPECT_EQ(built.graph.label(built.graph.streams()[static_cast<std::size_t>(built.graph.op(update).stream.index)].kind), kReduceStream);
  EXPECT_TRUE(find_cycle(built.graph).empty());
}

}  // namespace
}  // namespace stepsim
