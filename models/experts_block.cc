#include "models/experts_block.h"

#include "sim/check.h"

namespace stepsim {

namespace {

constexpr const char* kShared = "shared_experts";

MlpForm routed_form(const TemplateBuilder& builder, const Dispatch& dispatch, bool by_row) {
  const TemplateContext& context = builder.context();
  const ExpertsSpec& experts = context.model.experts;
  STEPSIM_CHECK(experts.ffn_hidden % dispatch.rows.expert_tensor == 0);
  return {.prefix = "experts ",
          .module = kExpertsModule,
          .activation_module = "moe,moe_act",
          .ffn = experts.ffn_hidden / dispatch.rows.expert_tensor,
          .rows = dispatch.rows.rows,
          .experts = dispatch.rows.local_experts,
          .bias = experts.expert_bias,
          .probabilities = by_row ? dispatch.probabilities : kNoSlot};
}

MlpForm shared_form(const TemplateBuilder& builder) {
  const TemplateContext& context = builder.context();
  STEPSIM_CHECK(context.model.experts.shared_ffn % context.parallel.tensor == 0);
  return {.prefix = "shared experts ",
          .module = kShared,
          .activation_module = "shared_experts,moe_act",
          .ffn = context.model.experts.shared_ffn / context.parallel.tensor,
          .rows = builder.shape().tokens,
          .bias = false};
}

// output * sigmoid(input gate^T), on this device's part of the tokens (Megatron-LM moe/shared_experts.py).
SlotIndex gate_forward(TemplateBuilder& builder, SharedExperts& shared, SlotIndex input) {
  const DeviceShape& shape = builder.shape();
  shared.gate = Linear{.name = "shared experts sigmoid gate",
                       .module = kShared,
                       .inputs = shape.hidden,
                       .outputs = 1,
                       .rows = shape.local_tokens,
                       .weight = builder.matrix("shared experts sigmoid gate weight", {1, shape.hidden}, false, false),
                       .bias = {},
                       .low_precision = false,
                       .lora_down = {},
                       .lora_up = {}};
  shared.logits = builder.activation("shared experts gate logits", {shape.local_tokens, 1}, kShared);
  linear_forward(builder, shared.gate, input, shared.logits);
  const SlotIndex gated = builder.activation("shared experts gated output", {shape.local_tokens, shape.hidden}, kShared);
  builder.pass(kForwardOp, {.name = "shared experts gating",
                            .module = kShared,
                            .reads = {shared.output, shared.logits},
                            .writes = {gated},
                            .updates = {},
                            .holds = {}});
  return gated;
}

// Below 16 bits Transformer Engine's products want each expert's rows in multiples of 16 or 32, which random loads are not: they are copied
// with padding before the experts and without it behind them (Megatron-LM moe/experts.py TEGroupedMLP.forward: quantization_padding,
// quantization_unpadding; TE module/fp8_padding.py, a copy of all rows). HybridEP's permutation pads by itself (token_dispatcher.py
// _HybridEPManager.dispatch: pad_multiple); the router could (moe_router_padding_for_fp8: off in the recipes).
bool pads_rows(const TemplateBuilder& builder, const ExpertRows& rows) {
  const TemplateContext& context = builder.context();
  const bool hybrid = rows.group() > 1 && context.parallel.dispatcher == Dispatcher::kHybridEp && context.framework.fused_permutation;
  return builder.low_precision() && context.framework.expert_streams > 0 && !context.framework.fused_expert_mlp && !hybrid;
}

// The rows themselves where they are not padded.
SlotIndex copied_rows(TemplateBuilder& builder, Direction direction, const ExpertRows& sizes, const std::string& name, SlotIndex rows) {
  if (!pads_rows(builder, sizes)) return rows;
  const SlotIndex copied = builder.made(direction, name + " rows", builder.slot(rows).shape, kExpertsModule);
  builder.pass(direction, {.name = name, .module = kExpertsModule, .reads = {rows}, .writes = {copied}, .updates = {}, .holds = {}});
  return copied;
}

// Returns this device's part of the shared experts' output.
SlotIndex shared_forward(TemplateBuilder& builder, SharedExperts& shared, SlotIndex input) {
  shared.mlp = mlp_forward(builder, shared_form(builder), gathered_input(builder, "shared experts input", input, kShared));
  shared.output = reduced_output(builder, "shared experts output", kShared, shared.mlp.output);
  return builder.context().model.experts.shared_gate ? gate_forward(builder, shared, input) : shared.output;
}

struct SharedGradients {
  SlotIndex input = kNoSlot;
  SlotIndex gate_input = kNoSlot;  // none without a gate
};

SharedGradients shared_backward(TemplateBuilder& builder, const SharedExperts& shared, SlotIndex input, SlotIndex output_gradient) {
  SharedGradients gradients;
  SlotIndex output = output_gradient;
  if (shared.gate.weight.present()) {
    output = builder.gradient("shared experts output gradient", builder.slot(shared.output).shape);
    const SlotIndex logits = builder.gradient("shared experts gate logits gradient", builder.slot(shared.logits).shape);
    builder.pass(kBackwardOp, {.name = "shared experts gating backward",
                               .module = kShared,
                               .reads = {output_gradient, shared.output, shared.logits},
                               .writes = {output, logits},
                               .updates = {},
                               .holds = {}});
    gradients.gate_input = row_backward(builder, shared.gate, input, logits);
  }
  const SlotIndex whole = gathered_gradient(builder, "shared experts output", kShared, output);
  gradients.input = mlp_backward(builder, shared.mlp, whole, true);
  return gradients;
}

// `sum` += `added`.
void add_gradient(TemplateBuilder& builder, SlotIndex added, SlotIndex sum) {
  builder.pass(
      kBackwardOp,
      {.name = "experts input gradient sum", .module = kExpertsModule, .reads = {added}, .writes = {}, .updates = {sum}, .holds = {}});
}

}  // namespace

ExpertsBlock experts_forward(TemplateBuilder& builder, SlotIndex input) {
  const TemplateContext& context = builder.context();
  ExpertsBlock block;
  block.input = input;
  block.probabilities_by_row = !context.framework.unpermutes_with_probabilities;
  block.has_shared = context.model.experts.shared_ffn > 0;
  const Router router = router_forward(builder, input);
  SlotIndex shared = kNoSlot;
  if (block.has_shared) shared = shared_forward(builder, block.shared, input);
  block.dispatch = dispatch_forward(builder, router, input, block.probabilities_by_row);
  const SlotIndex rows = copied_rows(builder, kForwardOp, block.dispatch.rows, "experts input padding", block.dispatch.input);
  const ColumnInput permuted{.name = "experts input", .product = rows, .saved = rows};
  block.mlp = mlp_forward(builder, routed_form(builder, block.dispatch, block.probabilities_by_row), permuted);
  const SlotIndex made = copied_rows(builder, kForwardOp, block.dispatch.rows, "experts output unpadding", block.mlp.output);
  const SlotIndex routed = combine_forward(builder, block.dispatch, made, block.probabilities_by_row);
  block.output = routed;
  if (!block.has_shared) return block;
  block.output = builder.activation("experts sum", {builder.shape().local_tokens, builder.shape().hidden}, kExpertsModule);
  builder.pass(
      kForwardOp,
      {.name = "experts sum", .module = kExpertsModule, .reads = {routed, shared}, .writes = {block.output}, .updates = {}, .holds = {}});
  return block;
}

SlotIndex experts_backward(TemplateBuilder& builder, const ExpertsBlock& block, SlotIndex output_gradient) {
  const CombineGradients combined = combine_backward(builder, block.dispatch, output_gradient, block.probabilities_by_row);
  const ExpertRows& sizes = block.dispatch.rows;
  const SlotIndex output = copied_rows(builder, kBackwardOp, sizes, "experts output unpadding backward", combined.expert_output);
  const ExpertGradients experts = expert_mlp_backward(builder, block.mlp, output);
  const SlotIndex input = copied_rows(builder, kBackwardOp, sizes, "experts input padding backward", experts.input);
  const SlotIndex by_row = block.probabilities_by_row ? experts.probabilities : combined.row_probabilities;
  const DispatchGradients dispatched = dispatch_backward(builder, block.dispatch, input, by_row);
  const SlotIndex probabilities = by_row != kNoSlot ? dispatched.probabilities : combined.probabilities;
  const SlotIndex sum = router_backward(builder, block.dispatch.router, probabilities);
  add_gradient(builder, dispatched.input, sum);
  if (!block.has_shared) return sum;
  const SharedGradients shared = shared_backward(builder, block.shared, block.input, output_gradient);
  add_gradient(builder, shared.input, sum);
  if (shared.gate_input != kNoSlot) add_gradient(builder, shared.gate_input, sum);
  return sum;
}

}  // namespace stepsim
