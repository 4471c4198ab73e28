#include "models/layer_body.h"

#include <string>
#include <utility>
#include <vector>

#include "models/attention_block.h"
#include "models/experts_block.h"
#include "models/latent_attention_block.h"
#include "models/mlp_block.h"
#include "models/norm_block.h"
#include "models/residual_block.h"

namespace stepsim {

namespace {

constexpr const char* kLayerNorm = "layernorm";

// Autograd's sum of the residual's gradient and the branch's.
void add_residual_gradient(TemplateBuilder& builder, SlotIndex residual, SlotIndex branch) {
  builder.pass(Direction::kBackward,
               {.name = "residual gradient sum", .module = "", .reads = {residual}, .writes = {}, .updates = {branch}, .holds = {}});
}

// Attention from a norm's output to what the residual adds: this device's part of the tokens at both ends.
struct AttentionHalf {
  bool is_latent = false;
  AttentionBlock heads;
  LatentAttentionBlock latent;
  SlotIndex output = kNoSlot;
  Weight bias;
};

AttentionHalf attention_half(TemplateBuilder& builder, const LayerKind& kind, const std::string& input_name, SlotIndex input) {
  AttentionHalf half;
  half.is_latent = builder.context().model.is_latent();
  if (half.is_latent) {
    half.latent = latent_attention_forward(builder, input, kind);
    half.bias = half.latent.projection.bias;
  } else {
    half.heads = attention_forward(builder, gathered_input(builder, input_name, input, ""), kind);
    half.bias = half.heads.projection.bias;
  }
  half.output = reduced_output(builder, "attention projection output", "", half.is_latent ? half.latent.output : half.heads.output);
  return half;
}

SlotIndex attention_half_backward(TemplateBuilder& builder, const AttentionHalf& half, SlotIndex output_gradient) {
  const SlotIndex whole = gathered_gradient(builder, "attention projection output", "", output_gradient);
  return half.is_latent ? latent_attention_backward(builder, half.latent, whole) : attention_backward(builder, half.heads, whole, kNoSlot);
}

// MLP or mixture of experts, likewise.
struct MlpHalf {
  bool has_experts = false;
  MlpBlock mlp;
  ExpertsBlock experts;
  SlotIndex output = kNoSlot;
  Weight bias;
};

MlpHalf mlp_half(TemplateBuilder& builder, const LayerKind& kind, const std::string& input_name, SlotIndex input) {
  MlpHalf half;
  half.has_experts = kind.experts;
  if (kind.experts) {
    half.experts = experts_forward(builder, input);
    half.output = half.experts.output;
    return half;
  }
  half.mlp = mlp_forward(builder, gathered_input(builder, input_name, input, "mlp"));
  half.bias = half.mlp.second.bias;
  half.output = reduced_output(builder, "mlp output", "mlp", half.mlp.output);
  return half;
}

SlotIndex mlp_half_backward(TemplateBuilder& builder, const MlpHalf& half, SlotIndex output_gradient) {
  if (half.has_experts) return experts_backward(builder, half.experts, output_gradient);
  return mlp_backward(builder, half.mlp, gathered_gradient(builder, "mlp output", "mlp", output_gradient), true);
}

// What stands between a half and its residual: nothing, or the half's bias and a norm (Gemma 2, arXiv 2408.00118 section 2).
struct HalfEnd {
  bool normalises = false;
  std::string name;
  Weight bias;
  NormBlock norm;
  SlotIndex output = kNoSlot;
  Weight residual_bias;  // what the residual adds
};

HalfEnd half_end(TemplateBuilder& builder, const std::string& name, SlotIndex input, const Weight& bias) {
  HalfEnd end{.normalises = builder.context().model.post_norms, .name = name, .bias = {}, .norm = {}, .residual_bias = {}};
  end.output = input;
  if (!end.normalises) {
    end.residual_bias = bias;
    return end;
  }
  end.bias = bias;
  if (bias.present()) {
    builder.pass(Direction::kForward,
                 {.name = name + " bias", .module = "", .reads = {bias.value}, .writes = {}, .updates = {input}, .holds = {}});
  }
  end.norm = norm_forward(builder, name + " post norm", kLayerNorm, input);
  end.output = end.norm.output;
  return end;
}

SlotIndex half_end_backward(TemplateBuilder& builder, const HalfEnd& end, SlotIndex output_gradient) {
  if (!end.normalises) return output_gradient;
  const SlotIndex gradient = norm_backward(builder, end.norm, output_gradient);
  if (end.bias.present()) {
    builder.pass(Direction::kBackward, {.name = end.name + " bias gradient",
                                        .module = "",
                                        .reads = {gradient},
                                        .writes = {},
                                        .updates = {end.bias.gradient},
                                        .holds = {}});
  }
  return gradient;
}

struct SequentialLayer {
  NormBlock norm1, norm2;
  AttentionHalf attention;
  MlpHalf mlp;
  HalfEnd attention_end, mlp_end;
  ResidualBlock middle, end;
};

SlotIndex sequential_backward(TemplateBuilder& builder, const SequentialLayer& layer, SlotIndex output_gradient) {
  const SlotIndex mlp_gradient = half_end_backward(builder, layer.mlp_end, residual_backward(builder, layer.end, output_gradient));
  const SlotIndex middle_gradient = norm_backward(builder, layer.norm2, mlp_half_backward(builder, layer.mlp, mlp_gradient));
  add_residual_gradient(builder, output_gradient, middle_gradient);
  const SlotIndex attention_gradient =
      half_end_backward(builder, layer.attention_end, residual_backward(builder, layer.middle, middle_gradient));
  const SlotIndex input_gradient =
      norm_backward(builder, layer.norm1, attention_half_backward(builder, layer.attention, attention_gradient));
  add_residual_gradient(builder, middle_gradient, input_gradient);
  return input_gradient;
}

LayerBody sequential_layer(TemplateBuilder& builder, const LayerKind& kind, SlotIndex input) {
  SequentialLayer layer;
  layer.norm1 = norm_forward(builder, "norm 1", kLayerNorm, input);
  layer.attention = attention_half(builder, kind, "norm 1 output", layer.norm1.output);
  layer.attention_end = half_end(builder, "attention", layer.attention.output, layer.attention.bias);
  layer.middle = residual_forward(builder, "attention residual", "attention residual", layer.attention_end.output, input,
                                  {layer.attention_end.residual_bias});
  layer.norm2 = norm_forward(builder, "norm 2", kLayerNorm, layer.middle.output);
  layer.mlp = mlp_half(builder, kind, "norm 2 output", layer.norm2.output);
  layer.mlp_end = half_end(builder, "mlp", layer.mlp.output, layer.mlp.bias);
  layer.end = residual_forward(builder, "mlp residual", "output", layer.mlp_end.output, layer.middle.output, {layer.mlp_end.residual_bias});
  return {layer.end.output,
          [layer](TemplateBuilder& into, SlotIndex output_gradient) { return sequential_backward(into, layer, output_gradient); }};
}

// PaLM (arXiv 2204.02311, section 2), GPT-J: one norm feeds both branches, one sum over the group ends both.
struct ParallelLayer {
  NormBlock norm;
  AttentionBlock attention;
  MlpBlock mlp;
  ResidualBlock end;
};

SlotIndex parallel_backward(TemplateBuilder& builder, const ParallelLayer& layer, SlotIndex output_gradient) {
  const SlotIndex branch_gradient = gathered_gradient(builder, "branch sum", "", residual_backward(builder, layer.end, output_gradient));
  const SlotIndex mlp_gradient = mlp_backward(builder, layer.mlp, branch_gradient, false);
  const SlotIndex input_gradient =
      norm_backward(builder, layer.norm, attention_backward(builder, layer.attention, branch_gradient, mlp_gradient));
  add_residual_gradient(builder, output_gradient, input_gradient);
  return input_gradient;
}

LayerBody parallel_layer(TemplateBuilder& builder, const LayerKind& kind, SlotIndex input) {
  const DeviceShape& shape = builder.shape();
  ParallelLayer layer;
  layer.norm = norm_forward(builder, "norm", kLayerNorm, input);
  const ColumnInput branches = gathered_input(builder, "norm output", layer.norm.output, "");
  layer.attention = attention_forward(builder, branches, kind);
  layer.mlp = mlp_forward(builder, branches);
  const SlotIndex sum = builder.activation("branch sum", {shape.tokens, shape.hidden});
  builder.pass(Direction::kForward, {.name = "branch sum",
                                     .module = "",
                                     .reads = {layer.attention.output, layer.mlp.output},
                                     .writes = {sum},
                                     .updates = {},
                                     .holds = {}});
  const SlotIndex branch = reduced_output(builder, "branch sum", "", sum);
  layer.end = residual_forward(builder, "residual", "output", branch, input, {layer.attention.projection.bias, layer.mlp.second.bias});
  return {layer.end.output,
          [layer](TemplateBuilder& into, SlotIndex output_gradient) { return parallel_backward(into, layer, output_gradient); }};
}

// With experts or latents each branch has its own collectives; GPT-NeoX's branches have a norm each too (arXiv 2204.06745 section 2.1).
struct SeparateBranches {
  bool two_norms = false;
  NormBlock norm, mlp_norm;
  AttentionHalf attention;
  MlpHalf mlp;
  ResidualBlock end;
};

SlotIndex branches_backward(TemplateBuilder& builder, const SeparateBranches& layer, SlotIndex output_gradient) {
  const SlotIndex branch_gradient = residual_backward(builder, layer.end, output_gradient);
  SlotIndex mlp_gradient = mlp_half_backward(builder, layer.mlp, branch_gradient);
  if (layer.two_norms) mlp_gradient = norm_backward(builder, layer.mlp_norm, mlp_gradient);
  SlotIndex sum = attention_half_backward(builder, layer.attention, branch_gradient);
  if (layer.two_norms) sum = norm_backward(builder, layer.norm, sum);
  builder.pass(Direction::kBackward,
               {.name = "branch gradient sum", .module = "", .reads = {mlp_gradient}, .writes = {}, .updates = {sum}, .holds = {}});
  const SlotIndex input_gradient = layer.two_norms ? sum : norm_backward(builder, layer.norm, sum);
  add_residual_gradient(builder, output_gradient, input_gradient);
  return input_gradient;
}

LayerBody separate_branches(TemplateBuilder& builder, const LayerKind& kind, SlotIndex input) {
  SeparateBranches layer;
  layer.two_norms = builder.context().model.parallel_norms;
  layer.norm = norm_forward(builder, "norm", kLayerNorm, input);
  if (layer.two_norms) layer.mlp_norm = norm_forward(builder, "mlp norm", kLayerNorm, input);
  layer.attention = attention_half(builder, kind, "norm output", layer.norm.output);
  layer.mlp = mlp_half(builder, kind, "mlp input", layer.two_norms ? layer.mlp_norm.output : layer.norm.output);
  const SlotIndex branch = builder.activation("branch sum", builder.slot(layer.mlp.output).shape);
  builder.pass(Direction::kForward, {.name = "branch sum",
                                     .module = "",
                                     .reads = {layer.attention.output, layer.mlp.output},
                                     .writes = {branch},
                                     .updates = {},
                                     .holds = {}});
  layer.end = residual_forward(builder, "residual", "output", branch, input, {layer.attention.bias, layer.mlp.bias});
  return {layer.end.output,
          [layer](TemplateBuilder& into, SlotIndex output_gradient) { return branches_backward(into, layer, output_gradient); }};
}

}  // namespace

LayerBody append_layer(TemplateBuilder& builder, const LayerKind& kind, SlotIndex input) {
  const ModelSpec& model = builder.context().model;
  if (!model.parallel_block) return sequential_layer(builder, kind, input);
  return kind.experts || model.is_latent() || model.parallel_norms ? separate_branches(builder, kind, input)
                                                                   : parallel_layer(builder, kind, input);
}

}  // namespace stepsim
