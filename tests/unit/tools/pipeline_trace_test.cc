#include <gmock/gmock.h>

#include "tests/unit/tools/test_jobs.h"
#include "tests/unit/traces/trace_validator.h"
#include "tests/unit/traces/traced_step.h"
#include "tools/step_run.h"

namespace stepsim {

using ::testing::ElementsAre;

// Its transfers have the receiver as their first part; arrows led from there.
TEST(PipelineTrace, TransfersLeadFromTheStageThatSends) {
  const StepRun run = run_step(resolve_job(main_job("2", {flag("--pp", "2"), flag("--global-batch", "2")})));
  const OpGraph& graph = run.step.graph;
  const auto arrows = transfer_arrows(chrome_trace(graph, run.run.result));
  int forward = 0;
  for (const auto& [op, of_op] : arrows) {
    const bool is_forward = graph.label(graph.op(OpId{static_cast<std::int32_t>(op)}).phase) == "forward";
    // Stage s is process s + 1: outputs go from the first stage to the second, gradients back.
    EXPECT_THAT(of_op, ElementsAre(is_forward ? std::pair(1, 2) : std::pair(2, 1))) << graph.op_name(OpId{static_cast<std::int32_t>(op)});
    forward += is_forward ? 1 : 0;
  }
  EXPECT_EQ(arrows.size(), 4u);  // two micro-batches, there and back
  EXPECT_EQ(forward, 2);
}

}  // namespace stepsim
