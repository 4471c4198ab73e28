#include "models/experts_block_router.h"

#include <utility>
#include <vector>

namespace stepsim {

namespace {

constexpr const char* kRouterModule = "moe,router";
constexpr const char* kSaved = "moe";

std::vector<std::int64_t> table_shape(const TemplateBuilder& builder) {
  return {builder.shape().local_tokens, builder.context().model.experts.experts};
}

SlotIndex table(TemplateBuilder& builder, SlotKind kind, const std::string& name, DType dtype) {
  return builder.add({.name = name,
                      .kind = kind,
                      .size = {},
                      .shape = table_shape(builder),
                      .dtype = dtype,
                      .role = kind == SlotKind::kGradient ? Role::kActivationGradients : Role::kActivations,
                      .module = kind == SlotKind::kGradient ? "" : kSaved});
}

MemoryKernel score_kernel(const TemplateContext& context) {
  return context.model.experts.score == RouterScore::kSigmoid ? MemoryKernel::kFusedElementwise : MemoryKernel::kSoftmax;
}

Linear router_linear(TemplateBuilder& builder) {
  const ExpertsSpec& experts = builder.context().model.experts;
  Linear linear{.name = "router",
                .module = kRouterModule,
                .inputs = builder.shape().hidden,
                .outputs = experts.experts,
                .rows = builder.shape().local_tokens,
                .weight = {},
                .bias = {},
                .low_precision = false,
                .lora_down = {},
                .lora_up = {}};
  linear.weight = builder.matrix("router weight", {linear.outputs, linear.inputs}, false, false);
  if (experts.router_bias) linear.bias = builder.weight("router bias", {linear.outputs});
  return linear;
}

}  // namespace

Router router_forward(TemplateBuilder& builder, SlotIndex input) {
  Router router{.input = input, .linear = router_linear(builder)};
  const SlotIndex logits = table(builder, SlotKind::kForward, "router logits", DType::kFp32);
  linear_forward(builder, router.linear, input, logits);
  router.scores = table(builder, SlotKind::kForward, "router scores", DType::kFp32);
  KernelPass scores{.name = "router scores",
                    .module = kRouterModule,
                    .reads = {logits},
                    .writes = {router.scores},
                    .updates = {},
                    .holds = {},
                    .kernel = score_kernel(builder.context())};
  if (router.linear.bias.present()) scores.reads.push_back(router.linear.bias.value);
  builder.pass(kForwardOp, std::move(scores));
  router.map = table(builder, SlotKind::kForward, "routing map", DType::kUint8);
  router.probabilities = table(builder, SlotKind::kForward, "router probabilities", DType::kFp32);
  builder.pass(kForwardOp, {.name = "router top-k",
                            .module = kRouterModule,
                            .reads = {router.scores},
                            .writes = {router.map, router.probabilities},
                            .updates = {},
                            .holds = {},
                            .kernel = MemoryKernel::kTopK});
  return router;
}

SlotIndex router_backward(TemplateBuilder& builder, const Router& router, SlotIndex probability_gradient) {
  const SlotIndex scores = table(builder, SlotKind::kGradient, "router scores gradient", DType::kFp32);
  builder.pass(kBackwardOp, {.name = "router top-k backward",
                             .module = kRouterModule,
                             .reads = {probability_gradient, router.map, router.probabilities},
                             .writes = {scores},
                             .updates = {},
                             .holds = {}});
  const SlotIndex logits = table(builder, SlotKind::kGradient, "router logits gradient", DType::kFp32);
  KernelPass pass{.name = "router scores backward",
                  .module = kRouterModule,
                  .reads = {scores, router.scores},
                  .writes = {logits},
                  .updates = {},
                  .holds = {},
                  .kernel = score_kernel(builder.context())};
  if (router.linear.bias.present()) pass.updates.push_back(router.linear.bias.gradient);
  builder.pass(kBackwardOp, std::move(pass));
  return row_backward(builder, router.linear, router.input, logits);
}

}  // namespace stepsim
