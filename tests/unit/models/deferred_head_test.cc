// The head's weight gradients that wait for the end of the passes: what they hold, and when they run.
#include "models/deferred_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

// Two stages of a layer each, four micro-batches; a vocabulary that makes the loss the peak. 1F1B.
StepRequest request(std::int64_t deferred) {
  TemplateCase gpt = paper_case(2, 64, 4, 1);
  gpt.model.tied_head = false;
  gpt.training.sequence = 64;
  gpt.training.global_batch = 4;
  gpt.training.deferred_head_gradients = deferred;
  gpt.parallel.pipeline = 2;
  StepRequest request;
  request.model = gpt.model;
  request.training = gpt.training;
  request.parallel = gpt.parallel;
  request.framework = gpt.framework;
  return request;
}
constexpr std::int64_t kLogits = 2LL * 64 * 51200, kState = 2LL * 64 * 64;

std::int64_t last_stage_peak(const BuiltStep& built) {
  const StepResult result = run_step(built);
  EXPECT_FALSE(result.deadlock);
  return memory_peak(built.graph, result, DeviceId{1}, MemorySpace::kDevice).bytes.value;
}

TEST(DeferredHead, HoldsLogitsGradientAndInputsOfEach) {
  const std::int64_t none = last_stage_peak(build_step(request(0)));
  // The third loss comes after two backward passes: both micro-batches' gradients of the logits (Lg) and inputs of the head (u) are there,
  // and what autograd's graph holds through the latter: the stage's input and its gradient, 2 u.
  EXPECT_EQ(last_stage_peak(build_step(request(1))), none + kLogits + 3 * kState);
  EXPECT_EQ(last_stage_peak(build_step(request(2))), none + 2 * (kLogits + 3 * kState));
  EXPECT_EQ(last_stage_peak(build_step(request(3))), none + 3 * (kLogits + 3 * kState));
  EXPECT_EQ(last_stage_peak(build_step(request(9))), last_stage_peak(build_step(request(4))));  // there are four micro-batches
}

TEST(DeferredHead, RunsBehindAllBackwardPassesOfTheLastStage) {
  const BuiltStep built = build_step(request(2));
  std::vector<std::int32_t> micro_batches;
  std::size_t last_backward = 0, index = 0, first_deferred = 0;
  for (const OpId id : compute_ops(built.graph, DeviceId{1})) {
    const Op& op = built.graph.op(id);
    ++index;
    if (built.graph.label(op.kind) == "norm 1 backward") last_backward = index;
    if (built.graph.label(op.kind) != "head weight gradient") continue;
    micro_batches.push_back(op.micro_batch);
    if (op.micro_batch == 0) first_deferred = index;
  }
  // Of 2 and 3 in their backward passes, then of 0 and 1.
  EXPECT_THAT(micro_batches, testing::ElementsAre(2, 3, 0, 1));
  EXPECT_GT(first_deferred, last_backward);
}

TEST(DeferredHead, RefusedWhereGradientsAreReducedBefore) {
  StepRequest overlapped = request(2);
  overlapped.training.global_batch = 8;
  overlapped.parallel.data = 2;
  overlapped.parallel.overlap_gradient_reduce = true;
  EXPECT_THAT(
      [&] { build_step(overlapped); },
      testing::ThrowsMessage<InputError>(HasSubstr("--set training.deferred_head_gradients: found 2 with gradients that are reduced")));
  overlapped.parallel.overlap_gradient_reduce = false;
  EXPECT_EQ(count_ops(build_step(overlapped).graph, "head weight gradient"), 4);
}

TEST(DeferredHead, ZeroBubbleHasPassesOfItsOwn) {
  const StepRequest plain = request(2);
  EXPECT_EQ(deferred_head_passes(plain.training, plain.parallel, 4), 2);
  ParallelLayout zero_bubble = plain.parallel;
  zero_bubble.schedule = PipelineKind::kZbH1;
  EXPECT_EQ(deferred_head_passes(plain.training, zero_bubble, 4), 0);
}

}  // namespace
}  // namespace stepsim
