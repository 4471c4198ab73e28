// Launches from host threads: closed forms of engine.md, section 7, in picoseconds.
#include "sim/host_issue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "simulated.h"

namespace stepsim {
namespace {

struct Fixture {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true);
  StreamId copies = small.stream(device);
  IssuerId issuer = small.builder.add_issuer({.device = device});
};

// N kernels of k, launch cost c, the host waits for the device after every m (0: never).
std::int64_t step_time(std::int64_t kernels, std::int64_t kernel, std::int64_t cost, std::int64_t sync_every) {
  Fixture f;
  std::vector<OpId> wait;
  for (std::int64_t i = 0; i < kernels; ++i) {
    const OpId op = f.small.op(f.compute, kernel, {.issue_after = wait, .issuer = f.issuer, .issue = cost});
    wait.clear();
    if (sync_every > 0 && (i + 1) % sync_every == 0) wait.push_back(op);
  }
  return simulated(std::move(f.small), small_machine(1, 0)).end();
}

TEST(HostIssue, LaunchBoundOrKernelBound) {
  // max(c + N k, N c + k)
  EXPECT_EQ(step_time(20, 7, 3, 0), 3 + 20 * 7);
  EXPECT_EQ(step_time(20, 3, 7, 0), 20 * 7 + 3);
  EXPECT_EQ(step_time(20, 5, 5, 0), 5 + 20 * 5);
  EXPECT_EQ(step_time(1, 5, 0, 0), 5);
}

TEST(HostIssue, SynchronisingExposesTheLaunchesOfEveryBlock) {
  // (N / m) max(c + m k, m c + k)
  EXPECT_EQ(step_time(20, 7, 3, 5), 4 * (3 + 5 * 7));
  EXPECT_EQ(step_time(20, 3, 7, 5), 4 * (5 * 7 + 3));
  EXPECT_EQ(step_time(12, 4, 4, 1), 12 * (4 + 4));
}

TEST(HostIssue, AnOpWaitsForItsLaunchAndKeepsItsTime) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 10, {.issuer = f.issuer, .issue = 4}),
             b = f.small.op(f.compute, 10, {.issuer = f.issuer, .issue = 4});
  const OpId c = f.small.op(f.copies, 1, {.issuer = f.issuer, .issue = 4}), free = f.small.op(f.small.stream(f.device), 1);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(a), 4);
  EXPECT_EQ(step.issued(b), 8);
  EXPECT_EQ(step.start(b), 14);
  EXPECT_EQ(step.start(c), 12);  // third launch
  EXPECT_EQ(step.issued(free), 0);
  EXPECT_EQ(step.start(free), 0);
}

TEST(HostIssue, ABlockedThreadGoesOnWhenWhatItWaitsForEnds) {
  // c is launched after a (on another stream) ends at 2 + 50; the thread is then late for d as well.
  Fixture f;
  const OpId a = f.small.op(f.copies, 50, {.issuer = f.issuer, .issue = 2});
  const OpId b = f.small.op(f.compute, 5, {.issuer = f.issuer, .issue = 2});
  const OpId c = f.small.op(f.compute, 5, {.issue_after = {a, b}, .issuer = f.issuer, .issue = 2});
  const OpId d = f.small.op(f.compute, 5, {.issuer = f.issuer, .issue = 2});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(b), 9);
  EXPECT_EQ(step.issued(c), 54);
  EXPECT_EQ(step.issued(d), 56);
  EXPECT_EQ(step.end(), 64);
}

TEST(HostIssue, RunAheadBlocksTheHost) {
  // At most 2 launches issued and not started; kernels of 10, launches of 1. Launch 0 done at 1 and started. 1 and 2 are issued at 2 and 3,
  // then the host waits for kernel 1 to start at 11: launch 3 at 12; kernel 2 starts at 21: launch 4 at 22.
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const IssuerId issuer = small.builder.add_issuer({.device = device, .run_ahead = 2});
  std::vector<OpId> ops;
  for (int i = 0; i < 5; ++i) ops.push_back(small.op(stream, 10, {.issuer = issuer, .issue = 1}));
  const Simulated step = simulated(std::move(small), small_machine(1, 0));
  const std::int64_t issued[] = {1, 2, 3, 12, 22};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(step.issued(ops[i]), issued[i]) << i;
  EXPECT_EQ(step.end(), 51);  // the device never waits
}

TEST(HostIssue, RunAheadCountsWhatHasNotStartedOnAnyStream) {
  // Run-ahead 1. The copy waits for the kernel until 11, so the launch after it begins then, although its own stream is free.
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true), copies = small.stream(device), third = small.stream(device);
  const IssuerId issuer = small.builder.add_issuer({.device = device, .run_ahead = 1});
  const OpId kernel = small.op(stream, 10, {.issuer = issuer, .issue = 1});
  const OpId copy = small.op(copies, 5, {.after = {{kernel}}, .issuer = issuer, .issue = 1});
  const OpId after = small.op(third, 5, {.issuer = issuer, .issue = 1});
  const Simulated step = simulated(std::move(small), small_machine(1, 0));
  EXPECT_EQ(step.issued(copy), 2);
  EXPECT_EQ(step.start(copy), 11);
  EXPECT_EQ(step.issued(after), 12);
}

TEST(HostIssue, ACapturedGraphIsOneLaunch) {
  // Launch cost 6 once for four kernels of 2: 6 + 8. One by one it would be 4 * 6 + 2.
  Fixture f;
  for (int i = 0; i < 4; ++i) {
    f.small.rows.push_back({.fixed = Duration(0), .alone = Duration(2), .issue = Duration(6), .loads = {}});
    f.small.builder.add_op({.work = f.small.builder.work(Given{.index = i}), .stream = f.compute, .issuer = f.issuer, .launch_group = 7},
                           {});
  }
  const OpId next = f.small.op(f.compute, 1, {.issuer = f.issuer, .issue = 6});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(step.issued(OpId{i}), 6);
    EXPECT_EQ(step.end(OpId{i}), 6 + 2 * (i + 1));
  }
  EXPECT_EQ(step.issued(next), 12);
}

TEST(HostIssue, ACapturedGraphTakesOnePlaceOfTheRunAhead) {
  // Run-ahead 1: the group is issued at 1 and has started with its first kernel, so the next launch is done at 2.
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const IssuerId issuer = small.builder.add_issuer({.device = device, .run_ahead = 1});
  for (int i = 0; i < 3; ++i) {
    small.rows.push_back({.fixed = Duration(0), .alone = Duration(10), .issue = Duration(1), .loads = {}});
    small.builder.add_op({.work = small.builder.work(Given{.index = i}), .stream = stream, .issuer = issuer, .launch_group = 0}, {});
  }
  const OpId next = small.op(stream, 10, {.issuer = issuer, .issue = 1}), last = small.op(stream, 10, {.issuer = issuer, .issue = 1});
  const Simulated step = simulated(std::move(small), small_machine(1, 0));
  EXPECT_EQ(step.issued(next), 2);
  EXPECT_EQ(step.start(next), 31);
  EXPECT_EQ(step.issued(last), 32);  // `next` is outstanding until 31
}

TEST(HostIssue, MarkersCostNothingAndTakeNoPlace) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const IssuerId issuer = small.builder.add_issuer({.device = device, .run_ahead = 1});
  const OpId a = small.op(stream, 10, {.issuer = issuer, .issue = 3});
  std::vector<OpId> markers;
  for (int i = 0; i < 3; ++i) markers.push_back(small.marker(stream, {.issuer = issuer}));
  const OpId b = small.op(stream, 10, {.issuer = issuer, .issue = 3});
  const Simulated step = simulated(std::move(small), small_machine(1, 0));
  EXPECT_EQ(step.issued(b), 6);
  for (const OpId marker : markers) {
    EXPECT_EQ(step.issued(marker), 3);
    EXPECT_EQ(step.start(marker), step.end(a));
  }
}

TEST(HostIssue, TwoThreadsLaunchSideBySide) {
  Fixture f;
  const IssuerId second = f.small.builder.add_issuer({.device = f.device});
  const OpId a = f.small.op(f.compute, 1, {.issuer = f.issuer, .issue = 5}), b = f.small.op(f.copies, 1, {.issuer = second, .issue = 7});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(a), 5);
  EXPECT_EQ(step.start(b), 7);
}

TEST(HostIssue, ALaunchAfterAnOpThatNeedsItIsADeadlock) {
  // a waits on the device for b, b is launched only after a has ended.
  Fixture f;
  const OpId a = f.small.op(f.compute, 5, {.after = {{OpId{1}}}, .issuer = f.issuer, .issue = 1});
  const OpId b = f.small.op(f.copies, 5, {.issue_after = {a}, .issuer = f.issuer, .issue = 1});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.result.deadlock->first_waiting, b);  // lacks nothing but its launch
  EXPECT_EQ(step.result.deadlock->holders, std::vector<OpId>{a});
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{a, b}));
}

TEST(HostIssue, RunAheadTooShortForTheOrderIsADeadlock) {
  // Run-ahead 1: the copy is outstanding until the kernel starts, which is launched behind it.
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true), copies = small.stream(device);
  const IssuerId issuer = small.builder.add_issuer({.device = device, .run_ahead = 1});
  const OpId copy = small.op(copies, 5, {.after = {{OpId{1}}}, .issuer = issuer, .issue = 1});
  const OpId kernel = small.op(stream, 5, {.issuer = issuer, .issue = 1});
  const Simulated step = simulated(std::move(small), small_machine(1, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.result.deadlock->first_waiting, kernel);
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{copy, kernel}));
}

// record_stream without a limiter (pytorch issue 98354, engine.md section 4): L = 32 layers of f = 10 on the device and 1 on the host; a
// copy out of 5 on a second stream frees each set through an event. A host that runs ahead claims long before anything is free: 30 sets at
// once without a limit, 3 where a layer is launched after the end of the second layer before it, 2 after the end of the last (section 7).
std::int64_t most_sets(std::size_t layers_ahead) {
  Fixture f;
  std::vector<OpId> forward;
  for (std::size_t layer = 0; layer < 32; ++layer) {
    const StorageId set = f.small.builder.add_storage({.size = Bytes(1), .device = f.device, .deferred_free = true});
    std::vector<OpId> wait;
    if (layer >= layers_ahead) wait.push_back(forward[layer - layers_ahead]);
    forward.push_back(f.small.op(f.compute, 10, {.writes = {set}, .issue_after = wait, .issuer = f.issuer, .issue = 1}));
    f.small.op(f.copies, 5, {.after = {{forward.back()}}, .reads = {set}, .issuer = f.issuer});
  }
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  std::int64_t live = 0, most = 0;
  for (const MemoryEvent& event : step.result.memory) most = std::max(most, live += event.bytes.value);
  return most;
}

TEST(HostIssue, RunAheadDecidesHowManySetsAreLive) {
  EXPECT_EQ(most_sets(1000), 30);
  EXPECT_EQ(most_sets(2), 3);
  EXPECT_EQ(most_sets(1), 2);
}

}  // namespace
}  // namespace stepsim
