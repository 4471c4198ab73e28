// An optimizer of which a part lives and runs on the host: bytes by hand, what overlaps, what the next ops wait for.
#include "models/host_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

// An embedding of 10 parameters and a layer of 100, bf16 with fp32 gradients.
StepRequest offloaded(double share, bool overlaps = true) {
  StepRequest request = small_request(1);
  request.training.optimizer_offload = share;
  request.training.overlap_optimizer_copies = overlaps;
  return request;
}

BuiltStep build(const StepRequest& request) { return build_step(request, small_templates()); }

std::int64_t bytes_named(const OpGraph& graph, std::string_view name, MemorySpace space) {
  std::int64_t bytes = 0;
  for (const StorageId storage : storages_of(graph, name)) {
    EXPECT_EQ(storage_of(graph, storage).space, space);
    bytes += storage_of(graph, storage).size.value;
  }
  return bytes;
}

std::int64_t traffic(const OpGraph& graph, std::string_view kind) {
  std::int64_t bytes = 0;
  for (const OpId op : ops_of(graph, kind)) bytes += memory_traffic(graph.work(op)).value;
  return bytes;
}

std::int64_t copied(const OpGraph& graph, std::string_view kind) {
  std::int64_t bytes = 0;
  for (const OpId op : ops_of(graph, kind)) bytes += std::get<Copy>(graph.work(op)).bytes.value;
  return bytes;
}

TEST(HostUpdate, StateMovesToTheHost) {
  for (const auto& [share, there] : {std::pair{0.0, 0}, {0.5, 55}, {1.0, 110}}) {
    const BuiltStep built = build(offloaded(share));
    const std::int64_t here = 110 - there;
    EXPECT_EQ(bytes_named(built.graph, "master weights", MemorySpace::kDevice), 4 * here);
    EXPECT_EQ(bytes_named(built.graph, kOptimizerMoments, MemorySpace::kDevice), 8 * here);
    // fp32 weights and both moments; buffers for fp32 gradients.
    EXPECT_EQ(bytes_named(built.graph, "optimizer state on the host", MemorySpace::kHost), 12 * there);
    EXPECT_EQ(bytes_named(built.graph, "gradients on the host", MemorySpace::kHost), 4 * there);
    EXPECT_EQ(bytes_named(built.graph, "main gradients", MemorySpace::kDevice), 4 * 110);  // backward makes them all
  }
}

TEST(HostUpdate, BytesOfAParameter) {
  const BuiltStep built = build(offloaded(0.5));
  EXPECT_EQ(copied(built.graph, "gradient copy out"), 4 * 55);
  EXPECT_EQ(traffic(built.graph, "host update"), 28 * 55);  // p, m and v read and written, g read
  EXPECT_EQ(copied(built.graph, "updated weight copy in"), 2 * 55);
  EXPECT_EQ(traffic(built.graph, "AdamW update"), (28 + 2) * 55);  // the device's half writes 16-bit weights itself
  for (const OpId op : ops_of(built.graph, "host update")) {
    EXPECT_EQ(std::get<MemoryBound>(built.graph.work(op)).kernel, MemoryKernel::kHostUpdate);
  }
  const BuiltStep all = build(offloaded(1));
  EXPECT_EQ(count_ops(all.graph, "AdamW update"), 0);
  EXPECT_EQ(traffic(all.graph, "host update"), 28 * 110);
  const BuiltStep none = build(offloaded(0));
  EXPECT_EQ(count_ops(none.graph, "host update") + count_ops(none.graph, "updated on the host"), 0);
}

// Fp16 gradients are copied to fp32 and unscaled on the device: those go out.
TEST(HostUpdate, TakesTheGradientsThatTheDeviceWouldUpdateFrom) {
  StepRequest request = offloaded(1);
  request.training.precision = Precision::kFp16;
  const BuiltStep built = build_step(request, small_templates(2));
  EXPECT_EQ(copied(built.graph, "gradient copy out"), 4 * 110);
  EXPECT_THAT(waits_of(built.graph, ops_of(built.graph, "gradient copy out").front()), testing::ElementsAre("optimizer gradient norm"));
}

OpRun run_of(const BuiltStep& built, const StepResult& result, std::string_view kind, std::size_t number) {
  return runs_by_op(built.graph, result)[static_cast<std::size_t>(ops_of(built.graph, kind).at(number).index)];
}

// Every op takes 1 us; two units, from the norm's end: out 0-1, 1-2; updates 1-2, 2-3; in 2-3, 3-4. Without overlap: out until 2, updates
// until 4, in until 6. The device's own updates (2 us) run beside.
TEST(HostUpdate, CopiesOverlapOrNot) {
  const auto measured = [](bool overlaps) {
    const BuiltStep built = build(offloaded(0.5, overlaps));
    const StepResult result = run_step(built);
    EXPECT_FALSE(result.deadlock.has_value());
    const TimePoint begin = run_of(built, result, "gradient norm", 0).end;
    const auto us = [&](TimePoint at) { return (at - begin).count() / 1'000'000; };
    EXPECT_EQ(us(run_of(built, result, "AdamW update", 1).end), 2);
    EXPECT_EQ(us(run_of(built, result, "host update", 0).start), overlaps ? 1 : 2);
    EXPECT_EQ(us(run_of(built, result, "gradient clear", 0).start), us(run_of(built, result, "updated weight copy in", 1).end));
    return us(run_of(built, result, "updated weight copy in", 1).end);
  };
  EXPECT_EQ(measured(true), 4);
  EXPECT_EQ(measured(false), 6);
}

// No stream of the GPU's: neither compute nor a copy stream of activations.
TEST(HostUpdate, RunsOnItsOwnStreams) {
  const BuiltStep built = build(offloaded(0.5));
  const auto stream = [&](std::string_view kind) {
    const StreamId id = built.graph.op(ops_of(built.graph, kind).front()).stream;
    return std::string(built.graph.label(built.graph.streams()[static_cast<std::size_t>(id.index)].kind));
  };
  EXPECT_EQ(stream("host update"), "host optimizer");
  EXPECT_EQ(stream("gradient copy out"), "optimizer copies out");
  EXPECT_EQ(stream("updated weight copy in"), "optimizer copies in");
}

// A sharded optimizer's ranks gather weights when the host's are back.
TEST(HostUpdate, WeightsAreGatheredBehindIt) {
  StepRequest request = offloaded(0.5);
  request.parallel.data = 2;
  request.parallel.zero = 1;
  request.training.global_batch = 2;
  const BuiltStep built = build(request);
  EXPECT_THAT(waits_of(built.graph, ops_of(built.graph, "weight all-gather").front()),
              testing::ElementsAre("optimizer updated on the host"));
  EXPECT_EQ(traffic(built.graph, "host update"), 28 * (25 + 2));  // a half of a rank's 50 and 5
}

// Of FSDP the fp32 shards are what gathers read: they stay and get the host's values.
TEST(HostUpdate, ShardsThatAreTheWeightsStay) {
  StepRequest request = offloaded(1);
  request.parallel.data = 2;
  request.parallel.zero = 3;
  request.training.global_batch = 2;
  request.framework.gradients_always_allocated = false;
  const BuiltStep built = build_step(request, small_templates(2));
  EXPECT_EQ(bytes_named(built.graph, "master weights", MemorySpace::kDevice), 4 * 55);
  EXPECT_TRUE(storages_of(built.graph, kOptimizerMoments).empty());
  EXPECT_EQ(copied(built.graph, "updated weight copy in"), 4 * 55);
  const StepResult result = run_step(built);
  ASSERT_FALSE(result.deadlock.has_value());
  for (const StorageId gradients : storages_of(built.graph, "main gradients")) {
    EXPECT_EQ(life_of(built.graph, result, gradients).dead, "optimizer updated on the host");
  }
}

}  // namespace
}  // namespace stepsim
