// Workspaces, global buffers and pipeline buffers: how many bytes, born and freed by which op.
#include "models/step_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

constexpr std::int64_t kMiB = 1 << 20;

std::int64_t bytes_named(const OpGraph& graph, std::string_view name, DeviceId device = {}) {
  std::int64_t bytes = 0;
  for (const StorageId storage : storages_of(graph, name, device)) bytes += storage_of(graph, storage).size.value;
  return bytes;
}

std::int64_t live_at_end(const OpGraph& graph) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) bytes += storage.live_at_end ? storage.size.value : 0;
  return bytes;
}

// gpt3_mcore_te_tp1_pp1_dist_optimizer of Megatron-LM's functional tests: 12 layers of 512, learned positions, tied, 50,257 tokens.
StepRequest functional_test() {
  StepRequest request;
  ModelSpec& model = request.model;
  model.name = "functional test";
  model.layers = 12;
  model.hidden = 512;
  model.heads = model.kv_heads = 8;
  model.head_dim = 64;
  model.ffn_hidden = 2048;
  model.vocab = 50'257;
  model.max_positions = 1024;
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 1024;
  request.training.micro_batch = 4;
  request.training.global_batch = 32;
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = 0.1;
  request.parallel.data = 8;
  request.parallel.zero = 1;
  request.workspaces = {.blas_handle = Bytes(32 * kMiB), .engine = Bytes(4 * kMiB)};  // CUBLAS_WORKSPACE_CONFIG=:4096:8 on an A100
  return request;
}

// spec/megatron_memory.md section 3.1, "exact check": 2N + 4N + 12N/8 + 64 MiB + 4 MiB with N = 64,109,568 is 552,124,928 (measured
// 552,128,512).
TEST(StepMemory, ResidentsAreThoseOfTheExactCheck) {
  const BuiltStep built = build_step(functional_test());
  EXPECT_EQ(built.parameters_per_device, 64'109'568);
  EXPECT_EQ(live_at_end(built.graph), 552'124'928);
}

// The second handle is autograd's: made by the first matrix product of the first backward pass, behind the loss and its gradient.
TEST(StepMemory, AutogradsHandleIsBornInTheFirstBackwardPass) {
  StepRequest request = functional_test();
  EXPECT_EQ(bytes_named(build_step(request).graph, "cuBLAS workspace"), 32 * kMiB);
  EXPECT_EQ(bytes_named(build_step(request).graph, kAutogradWorkspace), 32 * kMiB);
  request.training.iteration = IterationKind::kFirst;
  const BuiltStep built = build_step(request);
  EXPECT_EQ(bytes_named(built.graph, "cuBLAS workspace"), 32 * kMiB);
  const std::vector<StorageId> second = storages_of(built.graph, kAutogradWorkspace);
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(storage_of(built.graph, second.front()).size.value, 32 * kMiB);
  const Life life = life_of(built.graph, run_step(built), second.front());
  EXPECT_EQ(life.born.substr(0, 8), "backward");
  EXPECT_NE(life.born.find("head"), std::string::npos) << life.born;
  EXPECT_EQ(life.dead, "");
}

TEST(StepMemory, AFrameworkWithoutHandlesHasNone) {
  StepRequest request = small_request(2);
  request.workspaces = {.blas_handle = Bytes(100), .engine = Bytes(10)};
  EXPECT_EQ(bytes_named(build_step(request, small_templates()).graph, "cuBLAS workspace"), 0);
  request.framework.blas_handles = 2;
  EXPECT_EQ(bytes_named(build_step(request, small_templates()).graph, "cuBLAS workspace"), 100);
  EXPECT_EQ(bytes_named(build_step(request, small_templates()).graph, kAutogradWorkspace), 100);
  EXPECT_EQ(bytes_named(build_step(request, small_templates()).graph, "Transformer Engine workspace"), 0);
  request.framework.engine_workspace = true;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(bytes_named(built.graph, "Transformer Engine workspace"), 10);
  EXPECT_EQ(bytes_named(built.graph, "Transformer Engine workspaces of grouped products"), 0);
}

// Two stages of one small layer, hidden states of 8 bytes: 2 of them from a stage's first forward to its last backward op; 2 left over from
// step to step on the stage that receives its input.
TEST(StepMemory, PipelineHoldsHiddenStates) {
  StepRequest request = staged_request(2, 2, 2);
  request.framework.pipeline_buffers = 2;
  request.framework.pipeline_leftovers = 2;
  const BuiltStep built = build_step(request, small_templates());
  const StepResult result = run_step(built);
  for (const std::int32_t device : {0, 1}) {
    const std::vector<StorageId> buffers = storages_of(built.graph, "pipeline buffers", DeviceId{device});
    ASSERT_THAT(buffers, SizeIs(1));
    EXPECT_EQ(storage_of(built.graph, buffers.front()).size.value, 2 * 8);
    const Life life = life_of(built.graph, result, buffers.front());
    EXPECT_EQ(life.born, device == 0 ? "forward embedding mb0" : "forward L1 fc1 mb0");
    EXPECT_EQ(life.dead, device == 0 ? "backward embedding backward mb1" : "backward L1 fc1 backward mb1");
  }
  EXPECT_THAT(storages_of(built.graph, "pipeline leftovers", DeviceId{0}), SizeIs(0));
  const std::vector<StorageId> old = storages_of(built.graph, "pipeline leftovers of the step before", DeviceId{1});
  const std::vector<StorageId> left = storages_of(built.graph, "pipeline leftovers", DeviceId{1});
  ASSERT_THAT(old, SizeIs(1));
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(storage_of(built.graph, old.front()).size.value, 2 * 8);
  EXPECT_EQ(life_of(built.graph, result, old.front()), (Life{"", "forward L1 fc1 mb0"}));
  EXPECT_EQ(life_of(built.graph, result, left.front()), (Life{"backward L1 fc1 backward mb1", ""}));
}

// In the first iteration nothing is left over yet; interleaved chunks are four, of which the first has no input to receive.
TEST(StepMemory, EachChunkLeavesItsOwn) {
  StepRequest request = staged_request(4, 2, 2, PipelineKind::kInterleaved, 2);
  request.framework.pipeline_buffers = 2;
  request.framework.pipeline_buffers_interleaved = 3;
  request.framework.pipeline_leftovers = 2;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(bytes_named(built.graph, "pipeline buffers", DeviceId{1}), 3 * 8);
  EXPECT_EQ(bytes_named(built.graph, "pipeline leftovers", DeviceId{0}), 2 * 8);
  EXPECT_EQ(bytes_named(built.graph, "pipeline leftovers", DeviceId{1}), 2 * 2 * 8);
  request.training.iteration = IterationKind::kFirst;
  const BuiltStep first = build_step(request, small_templates());
  EXPECT_EQ(bytes_named(first.graph, "pipeline leftovers of the step before"), 0);
  EXPECT_EQ(bytes_named(first.graph, "pipeline leftovers"), 3 * 2 * 8);
}

// spec/megatron_memory.md section 3.1: under SP the head's gathered input, u = s b h 2 B; local attention 2A = 2 b (n/t) s s. The largest.
TEST(StepMemory, GlobalBufferIsTheLargestOfItsUses) {
  StepRequest request = functional_test();
  EXPECT_EQ(bytes_named(build_step(request).graph, "global buffer"), 0);
  request.parallel.data = 2;
  request.parallel.tensor = 4;
  request.training.global_batch = 8;
  EXPECT_EQ(bytes_named(build_step(request).graph, "global buffer"), 0);
  request.parallel.sequence_parallel = true;
  EXPECT_EQ(bytes_named(build_step(request).graph, "global buffer"), 4 * 1024 * 512 * 2);
  request.framework.transformer_engine = false;
  EXPECT_EQ(bytes_named(build_step(request).graph, "global buffer"), 2 * (4 * 2 * 1024 * 1024));
  request.training.attention = AttentionKind::kFlash;
  EXPECT_EQ(bytes_named(build_step(request).graph, "global buffer"), 4 * 1024 * 512 * 2);
}

TEST(StepMemory, GlobalBufferGrowsInTheFirstIteration) {
  StepRequest request = functional_test();
  request.framework.transformer_engine = false;
  const StorageId steady = storages_of(build_step(request).graph, "global buffer").front();
  EXPECT_TRUE(storage_of(build_step(request).graph, steady).live_at_start);
  request.training.iteration = IterationKind::kFirst;
  const BuiltStep built = build_step(request);
  const StorageId first = storages_of(built.graph, "global buffer").front();
  EXPECT_EQ(life_of(built.graph, run_step(built), first).born.substr(0, 7), "forward");
  EXPECT_EQ(life_of(built.graph, run_step(built), first).dead, "");
}

}  // namespace
}  // namespace stepsim
