#include "tools/latency_hiding.h"

#include <algorithm>

#include "tests/unit/tools/test_jobs.h"
#include "tools/offload_verdict.h"

namespace stepsim {
namespace {

JobInput virtual_stages(std::vector<FlagValue> more = {}) {
  more.push_back(flag("--virtual-stages", "2"));
  return pipeline_job(more);
}

// Of a stage's transfers in issue order: the op, and how many ops that are no copies and no markers the stage has before it.
std::vector<std::pair<OpId, int>> transfers(const OpGraph& graph, DeviceId device) {
  std::vector<OpId> order(graph.ops().size());
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(order.size()); ++op) {
    order[static_cast<std::size_t>(graph.issue_position(OpId{op}))] = OpId{op};
  }
  std::vector<std::pair<OpId, int>> found;
  int before = 0;
  for (const OpId op : order) {
    const std::span<const StreamId> parts = graph.parts(op);
    const auto here = [&](StreamId part) { return graph.streams()[static_cast<std::size_t>(part.index)].device == device; };
    const OpClass its_class = op_class(graph.work(op));
    if (std::none_of(parts.begin(), parts.end(), here) || std::holds_alternative<Marker>(graph.work(op))) continue;
    if (its_class == OpClass::kCopyToHost || its_class == OpClass::kCopyToDevice) continue;
    if (its_class == OpClass::kPointToPoint) found.emplace_back(op, before);
    ++before;
  }
  return found;
}

// A pipeline without copies was scheduled too, which filled each stage's waits for the others and took 13 % longer.
TEST(LatencyHiding, WithoutCopiesAPipelineKeepsItsOrder) {
  const Job job = resolve_job(virtual_stages());
  const StepRun run = run_step(job);
  for (const OffloadSchedule::Order order : {OffloadSchedule::Order::kLatencyHiding, OffloadSchedule::Order::kLatencyHidingTrue}) {
    OffloadSchedule schedule;
    schedule.order = order;
    const OpGraph hidden = latency_hidden(run.step.graph, schedule, run.run.machine, *run.costs);
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(hidden.ops().size()); ++op) {
      ASSERT_EQ(hidden.issue_position(OpId{op}), run.step.graph.issue_position(OpId{op})) << hidden.op_name(OpId{op});
    }
  }
}

TEST(LatencyHiding, TheKeptCounterpartOfAPipelineTakesTheTimeOfItsOrder) {
  const Job job = resolve_job(virtual_stages({flag("--offload-modules", "core_attn"), flag("--offload-schedule", "latency-hiding")}));
  const StepRun run = run_step(job);
  const Duration kept = run_step(resolve_job(virtual_stages())).run.result.end;
  EXPECT_EQ(offload_verdict(job, run)->kept.step, kept);
  EXPECT_LE(seconds(run.run.result.end), 1.05 * seconds(kept));  // copies may be exposed, the schedule of the stages is as it was
}

TEST(LatencyHiding, OnlyCopiesPassTransfers) {
  const Job job = resolve_job(virtual_stages({flag("--offload-modules", "core_attn"), flag("--offload-schedule", "latency-hiding")}));
  const OpGraph hidden = run_step(job).step.graph, given = build_step(step_request(job)).graph;
  for (std::int32_t device = 0; device < given.device_count(); ++device) {
    EXPECT_FALSE(transfers(given, DeviceId{device}).empty());
    EXPECT_EQ(transfers(hidden, DeviceId{device}), transfers(given, DeviceId{device})) << device;
  }
  int moved = 0;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(given.ops().size()); ++op) {
    moved += hidden.issue_position(OpId{op}) != given.issue_position(OpId{op}) ? 1 : 0;
  }
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace stepsim
