// Measured times as costs of other graphs, and contention as a shared resource.
#include "tools/kernel_times.h"

#include <gtest/gtest.h>

#include "sim/simulate.h"

namespace stepsim {

namespace {

constexpr Duration kMicrosecond{1'000'000};

// A kernel of each given number of bytes on the compute stream, and copies of 1000 bytes on another.
struct SmallGraph {
  OpGraph graph;
  KernelProgram program;
};

SmallGraph small_graph(const std::vector<std::int64_t>& kernels, int copies) {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId compute = builder.add_stream({.device = device, .kind = builder.label("compute"), .compute = true});
  const StreamId copy = builder.add_stream({.device = device, .kind = builder.label("copy out")});
  SmallGraph small;
  for (const std::int64_t bytes : kernels) {
    const Op op{.work = builder.work(MemoryBound{.read = Bytes(bytes)}), .stream = compute, .kind = builder.label("sum")};
    builder.add_op(op, {});
    small.program.calls.push_back(AddCall{});
  }
  for (int i = 0; i < copies; ++i) {
    const Op op{.work = builder.work(Copy{.bytes = Bytes(1000)}), .stream = copy, .kind = builder.label("copy out x")};
    builder.add_op(op, {});
    small.program.calls.push_back(CopyCall{});
  }
  small.graph = std::move(builder).build();
  return small;
}

StepResult simulated(const KernelTimes& times, const SmallGraph& small) {
  const MeasuredCosts costs = times.costs(small.graph, small.program);
  return simulate(costs.graph, costs.machine, costs.costs);
}

}  // namespace

TEST(KernelTimes, EqualWorkTakesWhatItTookAndOtherWorkInProportion) {
  const SmallGraph measured = small_graph({100, 400}, 0);
  KernelTimes times;
  times.add(measured.graph, measured.program, {.alone = {kMicrosecond, 3 * kMicrosecond}}, false);
  EXPECT_EQ(simulated(times, small_graph({100}, 0)).end, kMicrosecond);
  EXPECT_EQ(simulated(times, small_graph({400, 100}, 0)).end, 4 * kMicrosecond);
  EXPECT_EQ(simulated(times, small_graph({800}, 0)).end, 6 * kMicrosecond);  // nearest: 400
  EXPECT_EQ(simulated(times, small_graph({50}, 0)).end, kMicrosecond / 2);   // nearest: 100
}

TEST(KernelTimes, CopiesAndKernelsAreTakenApart) {
  const SmallGraph both = small_graph({100}, 1);
  KernelTimes times;
  times.add(both.graph, both.program, {.alone = {kMicrosecond, 9 * kMicrosecond}}, false);
  times.add(both.graph, both.program, {.alone = {7 * kMicrosecond, 2 * kMicrosecond}}, true);
  EXPECT_EQ(simulated(times, small_graph({100}, 0)).end, kMicrosecond);
  EXPECT_EQ(simulated(times, small_graph({}, 1)).end, 2 * kMicrosecond);
}

// Beside a copy a kernel takes 10 for 8, beside kernels a copy 12 for 9: with both busy all the time, those are their rates.
TEST(KernelTimes, BesideEachOtherBothRunAtTheirMeasuredSpeeds) {
  const SmallGraph both = small_graph({100}, 1);
  MeasuredOps measured{.alone = {8 * kMicrosecond, 9 * kMicrosecond}, .beside_copy = {10 * kMicrosecond, 9 * kMicrosecond}};
  measured.copy_alone = 9 * kMicrosecond;
  measured.copy_beside = 12 * kMicrosecond;
  KernelTimes times;
  times.add(both.graph, both.program, measured, false);
  times.add(both.graph, both.program, {.alone = measured.alone}, true);
  const StepResult long_copies = simulated(times, small_graph({100}, 4));  // the kernel has a copy beside it to its end
  for (const OpRun& run : long_copies.timeline) {
    if (run.op != OpId{0}) continue;
    EXPECT_NEAR(seconds(run.end - run.start), 10e-6, 1e-9);
  }
  const StepResult long_kernels = simulated(times, small_graph({100, 100, 100, 100}, 1));
  for (const OpRun& run : long_kernels.timeline) {
    if (run.op != OpId{4}) continue;
    EXPECT_NEAR(seconds(run.end - run.start), 12e-6, 1e-9);
  }
  EXPECT_EQ(simulated(times, small_graph({100}, 0)).end, 8 * kMicrosecond);
  EXPECT_EQ(simulated(times, small_graph({}, 1)).end, 9 * kMicrosecond);
}

}  // namespace stepsim
