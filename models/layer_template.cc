#include "models/layer_template.h"

#include <algorithm>

#include "models/attention_block.h"
#include "models/mlp_block.h"
#include "models/norm_block.h"
#include "models/residual_block.h"
#include "models/template_builder.h"

namespace stepsim {

namespace {

constexpr const char* kLayerNorm = "layernorm";

// Autograd's sum of the residual's gradient and the branch's.
void add_residual_gradient(TemplateBuilder& builder, SlotIndex residual, SlotIndex branch) {
  builder.pass(Direction::kBackward,
               {.name = "residual gradient sum", .module = "", .reads = {residual}, .writes = {}, .updates = {branch}, .holds = {}});
}

LayerTemplate sequential_layer(TemplateBuilder builder, SlotIndex input) {
  const NormBlock norm1 = norm_forward(builder, "norm 1", kLayerNorm, input);
  const AttentionBlock attention = attention_forward(builder, gathered_input(builder, "norm 1 output", norm1.output, ""));
  const SlotIndex attention_output = reduced_output(builder, "attention projection output", "", attention.output);
  const ResidualBlock middle =
      residual_forward(builder, "attention residual", "attention residual", attention_output, input, {attention.projection.bias});
  const NormBlock norm2 = norm_forward(builder, "norm 2", kLayerNorm, middle.output);
  const MlpBlock mlp = mlp_forward(builder, gathered_input(builder, "norm 2 output", norm2.output, "mlp"));
  const SlotIndex mlp_output = reduced_output(builder, "mlp output", "mlp", mlp.output);
  const ResidualBlock end = residual_forward(builder, "mlp residual", "output", mlp_output, middle.output, {mlp.second.bias});

  const SlotIndex output_gradient = builder.input("output gradient", {builder.shape().local_tokens, builder.shape().hidden});
  const SlotIndex mlp_gradient = gathered_gradient(builder, "mlp output", "mlp", residual_backward(builder, end, output_gradient));
  const SlotIndex middle_gradient = norm_backward(builder, norm2, mlp_backward(builder, mlp, mlp_gradient, true));
  add_residual_gradient(builder, output_gradient, middle_gradient);
  const SlotIndex attention_gradient =
      gathered_gradient(builder, "attention projection output", "", residual_backward(builder, middle, middle_gradient));
  const SlotIndex input_gradient = norm_backward(builder, norm1, attention_backward(builder, attention, attention_gradient, kNoSlot));
  add_residual_gradient(builder, middle_gradient, input_gradient);
  return std::move(builder).build(
      {.input = input, .output = end.output, .output_gradient = output_gradient, .input_gradient = input_gradient});
}

// PaLM (arXiv 2204.02311, section 2), GPT-J: one norm feeds both branches, one sum over the group ends both.
LayerTemplate parallel_layer(TemplateBuilder builder, SlotIndex input) {
  const DeviceShape& shape = builder.shape();
  const NormBlock norm = norm_forward(builder, "norm", kLayerNorm, input);
  const ColumnInput branches = gathered_input(builder, "norm output", norm.output, "");
  const AttentionBlock attention = attention_forward(builder, branches);
  const MlpBlock mlp = mlp_forward(builder, branches);
  const SlotIndex sum = builder.activation("branch sum", {shape.tokens, shape.hidden});
  builder.pass(Direction::kForward,
               {.name = "branch sum", .module = "", .reads = {attention.output, mlp.output}, .writes = {sum}, .updates = {}, .holds = {}});
  const SlotIndex branch = reduced_output(builder, "branch sum", "", sum);
  const ResidualBlock end = residual_forward(builder, "residual", "output", branch, input, {attention.projection.bias, mlp.second.bias});

  const SlotIndex output_gradient = builder.input("output gradient", {shape.local_tokens, shape.hidden});
  const SlotIndex branch_gradient = gathered_gradient(builder, "branch sum", "", residual_backward(builder, end, output_gradient));
  const SlotIndex mlp_gradient = mlp_backward(builder, mlp, branch_gradient, false);
  const SlotIndex input_gradient = norm_backward(builder, norm, attention_backward(builder, attention, branch_gradient, mlp_gradient));
  add_residual_gradient(builder, output_gradient, input_gradient);
  return std::move(builder).build(
      {.input = input, .output = end.output, .output_gradient = output_gradient, .input_gradient = input_gradient});
}

}  // namespace

LayerTemplate transformer_layer(const TemplateContext& context) {
  TemplateBuilder builder("layer", context);
  const SlotIndex input = builder.input("input", {builder.shape().local_tokens, builder.shape().hidden});
  return context.model.parallel_block ? parallel_layer(std::move(builder), input) : sequential_layer(std::move(builder), input);
}

std::vector<SlotIndex> saved_slots(const LayerTemplate& layer) {
  std::vector<SlotIndex> saved;
  for (const TemplateOp& op : layer.backward) {
    for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *used) {
        const SlotIndex root = root_of(layer.slots, slot);
        const SlotKind kind = layer.slots[static_cast<std::size_t>(root)].kind;
        if (kind == SlotKind::kForward || root == layer.input) saved.push_back(root);
      }
    }
  }
  std::sort(saved.begin(), saved.end());
  saved.erase(std::unique(saved.begin(), saved.end()), saved.end());
  return saved;
}

Bytes saved_bytes(const LayerTemplate& layer) {
  Bytes total;
  for (const SlotIndex slot : saved_slots(layer)) total += layer.slots[static_cast<std::size_t>(slot)].size;
  return total;
}

std::vector<std::pair<std::string, std::vector<std::string>>> module_table(const LayerTemplate& layer) {
  std::vector<std::pair<std::string, std::vector<std::string>>> table;
  for (const SlotIndex index : saved_slots(layer)) {
    const Slot& slot = layer.slots[static_cast<std::size_t>(index)];
    for (std::size_t begin = 0; begin < slot.module.size();) {
      const std::size_t end = std::min(slot.module.find(',', begin), slot.module.size());
      const std::string module = slot.module.substr(begin, end - begin);
      begin = end + 1;
      auto row = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == module; });
      if (row == table.end()) row = table.insert(table.end(), {module, {}});
      row->second.push_back(slot.name);
    }
  }
  return table;
}

}  // namespace stepsim
