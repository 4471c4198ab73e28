#include "sim/allocator_replay.h"

#include <gtest/gtest.h>

#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

// Weights and moments of 100 and 50 MiB that stay; an op makes `first` MiB, the next reads them and makes 40, the third reads those and
// writes the moments.
struct SmallStep {
  OpGraph graph{};
  StepResult result{};
  StorageId moments{};
};

SmallStep small_step(std::int64_t first) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const auto resident = [&](std::int64_t size) {
    return small.builder.add_storage({.size = Bytes(size * kMebi), .device = device, .live_at_start = true, .live_at_end = true});
  };
  const StorageId weights = resident(100), moments = resident(50);
  const StorageId a = small.storage(device, first * kMebi), b = small.storage(device, 40 * kMebi);
  small.op(stream, 10, {.reads = {weights}, .writes = {a}});
  small.op(stream, 10, {.reads = {a}, .writes = {b}});
  small.op(stream, 10, {.reads = {b}, .writes = {moments}});
  SmallStep step{.moments = moments};
  step.graph = std::move(small.builder).build();
  step.result = simulate(step.graph, plain_machine(1), small.costs());
  return step;
}

TEST(AllocatorReplay, ASecondStepFindsAWarmCache) {
  const SmallStep step = small_step(30);
  const DeviceAllocation device = replayed_allocator(step.graph, step.result, {.steps = 2})[0];
  ASSERT_EQ(device.steps.size(), 2u);
  for (const StepAllocation& each : device.steps) {
    EXPECT_EQ(each.at_peak.reserved.value, (100 + 50 + 30 + 40) * kMebi);
    EXPECT_EQ(each.allocated_peak.value, (100 + 50 + 30 + 40) * kMebi);
    EXPECT_EQ(each.at_end.allocated.value, 150 * kMebi);
    EXPECT_EQ(each.at_end.cached().value, 70 * kMebi);
  }
  EXPECT_EQ(device.steps[0].peak_at, TimePoint(10));  // the second op makes b while a is read
  EXPECT_EQ(device.retries, 0);
  EXPECT_FALSE(device.refused);
}

// Moments that the first step makes take the 60 MiB that were free by then: the second step needs 60 more. Their sum is 250.
TEST(AllocatorReplay, WhatIsBornLateSitsWhereTheNextStepWantsToBe) {
  const SmallStep step = small_step(60);
  const std::vector<StorageId> born = {step.moments};
  const DeviceAllocation device = replayed_allocator(step.graph, step.result, {.steps = 2, .born = born})[0];
  EXPECT_EQ(device.steps[0].at_peak.reserved.value, (100 + 60 + 40) * kMebi);
  EXPECT_EQ(device.steps[0].allocated_peak.value, (100 + 60 + 40) * kMebi);  // above 100 + 40 + 50
  EXPECT_EQ(device.steps[0].at_end.allocated.value, 150 * kMebi);
  EXPECT_EQ(device.steps[1].allocated_peak.value, 250 * kMebi);
  EXPECT_EQ(device.steps[1].at_peak.reserved.value, 260 * kMebi);
  EXPECT_EQ(device.steps[1].at_peak.unusable.value, 10 * kMebi);
  // The sum fits in 255 MiB, the blocks do not: for 60 the cached 40 are given back, then nothing is left to give for 40.
  const DeviceAllocation limited =
      replayed_allocator(step.graph, step.result, {.limits = {Bytes(255 * kMebi)}, .steps = 2, .born = born})[0];
  ASSERT_TRUE(limited.refused.has_value());
  EXPECT_EQ(limited.refused->step, 1);
  EXPECT_EQ(limited.refused->block.value, 40 * kMebi);
  EXPECT_EQ(limited.refused->at, TimePoint(10));
  EXPECT_EQ(limited.refused->by, OpId{1});
  EXPECT_EQ(limited.refused->use.active.value, 210 * kMebi);
  EXPECT_EQ(limited.retries, 2);
  EXPECT_EQ(limited.steps.size(), 2u);  // to the end as if there were no limit
  const DeviceAllocation expandable = replayed_allocator(
      step.graph, step.result, {.settings = {.expandable_segments = true}, .limits = {Bytes(260 * kMebi)}, .steps = 2, .born = born})[0];
  EXPECT_FALSE(expandable.refused.has_value());
  EXPECT_LE(expandable.steps[1].at_peak.reserved.value, 260 * kMebi);
}

TEST(AllocatorReplay, WhatTwoStreamsUseWaitsForTheSecond) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId compute = small.stream(device, true), copies = small.stream(device);
  const IssuerId host = small.builder.add_issuer({.device = device});
  const StorageId sent = small.builder.add_storage({.size = Bytes(30 * kMebi), .device = device, .deferred_free = true});
  const StorageId next = small.storage(device, 30 * kMebi);
  const OpId made = small.op(compute, 10, {.writes = {sent}, .issuer = host, .issue = 1});
  small.op(copies, 100, {.after = {{made}}, .reads = {sent}, .issuer = host, .issue = 1});  // let go of when it is launched, at 2
  small.op(compute, 10, {.writes = {next}, .issuer = host, .issue = 1});
  const OpGraph graph = std::move(small.builder).build();
  const StepResult result = simulate(graph, plain_machine(1), small.costs());
  const StepAllocation step = replayed_allocator(graph, result, {})[0].steps[0];
  EXPECT_EQ(step.allocated_peak.value, 30 * kMebi);
  EXPECT_EQ(step.active_peak.value, 60 * kMebi);
  EXPECT_EQ(step.at_peak.reserved.value, 60 * kMebi);
}

TEST(AllocatorReplay, ShowsEachInstantOfTheLastStep) {
  const SmallStep step = small_step(30);
  std::vector<std::int64_t> allocated;
  const auto observer = [&](const AllocatorSample& sample) { allocated.push_back(sample.use.allocated.value / kMebi); };
  replayed_allocator(step.graph, step.result, {.steps = 2, .observer = observer});
  EXPECT_EQ(allocated, (std::vector<std::int64_t>{150, 180, 220, 190, 150}));
}

// 24,000 events, enough for threads. With an observer all devices are taken in the order of the log, without one each by itself.
TEST(AllocatorReplay, DevicesGiveTheSameApartAndTogether) {
  SmallGraph small;
  for (int i = 0; i < 3; ++i) {
    const DeviceId device = small.builder.add_device();
    const StreamId compute = small.stream(device, true);
    std::vector<StorageId> made;
    for (int op = 0; op < 4000; ++op) {
      made.push_back(small.storage(device, (1 + (op * 37 + i) % 101) * kMebi / 4));
      const std::size_t read = static_cast<std::size_t>(op - op % 7 / 2);
      small.op(compute, 1 + i, {.reads = {made[read / 2]}, .writes = {made.back()}});
    }
  }
  const OpGraph graph = std::move(small.builder).build();
  const StepResult result = simulate(graph, plain_machine(3), small.costs());
  ASSERT_GE(result.memory.size(), 20'000U);
  std::size_t samples = 0;
  const auto observer = [&](const AllocatorSample&) { ++samples; };
  const std::vector<DeviceAllocation> apart = replayed_allocator(graph, result, {.steps = 2});
  const std::vector<DeviceAllocation> together = replayed_allocator(graph, result, {.steps = 2, .observer = observer});
  EXPECT_EQ(samples, result.memory.size() + 3);  // and each device's beginning
  ASSERT_EQ(apart.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t step = 0; step < 2; ++step) {
      const StepAllocation &a = apart[i].steps[step], &b = together[i].steps[step];
      EXPECT_GT(a.at_peak.reserved.value, 0);
      EXPECT_EQ(a.at_peak.reserved, b.at_peak.reserved);
      EXPECT_EQ(a.at_peak.allocated, b.at_peak.allocated);
      EXPECT_EQ(a.peak_at, b.peak_at);
      EXPECT_EQ(a.unusable_peak, b.unusable_peak);
      EXPECT_EQ(a.at_end.segments, b.at_end.segments);
    }
  }
}

}  // namespace
}  // namespace stepsim
