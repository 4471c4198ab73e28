#include "models/offload_modules.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace stepsim {

namespace {

// Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py (--offload-modules): attn_norm, qkv_linear, core_attn, attn_proj,
// mlp_norm, expert_fc1, moe_act, fused_group_mlp. mlp_fc1, act and mlp_fc2 are the dense counterparts of the last three.
struct ModuleOps {
  std::string_view module;
  std::array<std::string_view, 4> ops;  // of the template, without what a linear layer's name gets appended
};
constexpr std::array<ModuleOps, 8> kModules = {{{"attn_norm", {"norm 1"}},
                                                {"qkv_linear", {"qkv", "norm 1 output all-gather"}},
                                                {"core_attn", {}},  // by the ops' own module
                                                {"attn_proj", {"attention projection"}},
                                                {"mlp_norm", {"norm 2"}},
                                                {"mlp_fc1", {"fc1", "gate and up", "gate", "norm 2 output all-gather"}},
                                                {"act", {"activation", "gate activation", "gate product"}},
                                                {"mlp_fc2", {"fc2", "down"}}}};

// MaxText's checkpoint names, by what the projections put out here (rotated where a rotation follows, summed with the residual).
struct TensorGroup {
  std::string_view name;
  std::array<std::string_view, 6> tensors;
};
constexpr std::array<TensorGroup, 3> kTensorGroups = {
    {{"qkv_proj", {"qkv output", "query", "key", "value", "query, normalised", "key, normalised"}},
     {"out_proj", {"attention residual"}},
     {"mlp_wi", {"fc1 output", "gate and up output", "gate output", "up output"}}}};

// Pieces of an op are called "qkv, last piece".
bool is_op_of(std::string_view name, std::string_view op) {
  name = name.substr(0, name.find(", "));
  if (op.empty() || name.substr(0, op.size()) != op) return false;
  constexpr std::array<std::string_view, 6> kEnds = {"", " backward", " weight gradient", " input gradient", " bias", " bias gradient"};
  return std::find(kEnds.begin(), kEnds.end(), name.substr(op.size())) != kEnds.end();
}

bool belongs(const TemplateOp& op, const ModuleOps& module) {
  if (module.ops[0].empty()) return names_module(op.module, module.module);
  return std::any_of(module.ops.begin(), module.ops.end(), [&](std::string_view each) { return is_op_of(op.name, each); });
}

OffloadModule tensor_group(const LayerTemplate& layer, const SlotTable& table, const TensorGroup& group) {
  OffloadModule module{.name = std::string(group.name), .saved = {}};
  for (SlotIndex root = 0; at(root) < layer.slots.size(); ++root) {
    const bool named = std::find(group.tensors.begin(), group.tensors.end(), layer.slots[at(root)].name) != group.tensors.end();
    if (!named || !table.saved[at(root)] || table.makers[at(root)].empty()) continue;
    module.saved.push_back(root);
    module.last_forward = std::max(module.last_forward, table.makers[at(root)].back());
    for (std::size_t op = 0; op < layer.backward.size(); ++op) {
      const std::vector<SlotIndex>& needs = table.backward_needs[op];
      if (std::binary_search(needs.begin(), needs.end(), root))
        module.last_backward = std::max(module.last_backward, static_cast<std::int32_t>(op));
    }
  }
  return module;
}

}  // namespace

std::vector<OffloadModule> offload_modules(const LayerTemplate& layer, const SlotTable& table) {
  std::vector<OffloadModule> modules;
  for (const ModuleOps& each : kModules) {
    OffloadModule module{.name = std::string(each.module), .saved = {}};
    for (std::size_t op = 0; op < layer.forward.size(); ++op) {
      if (belongs(layer.forward[op], each)) module.last_forward = static_cast<std::int32_t>(op);
    }
    for (std::size_t op = 0; op < layer.backward.size(); ++op) {
      if (!belongs(layer.backward[op], each)) continue;
      module.last_backward = static_cast<std::int32_t>(op);
      for (const SlotIndex root : table.backward_needs[op]) {
        if (root == table.output || table.shared[at(root)] || layer.slots[at(root)].kind == SlotKind::kBatch) continue;
        if (std::find(module.saved.begin(), module.saved.end(), root) == module.saved.end()) module.saved.push_back(root);
      }
    }
    std::sort(module.saved.begin(), module.saved.end());
    if (!module.saved.empty() && module.last_forward >= 0) modules.push_back(std::move(module));
  }
  for (const TensorGroup& group : kTensorGroups) {
    OffloadModule module = tensor_group(layer, table, group);
    if (!module.saved.empty()) modules.push_back(std::move(module));
  }
  std::stable_sort(modules.begin(), modules.end(),
                   [](const OffloadModule& a, const OffloadModule& b) { return a.last_forward < b.last_forward; });
  return modules;
}

std::vector<std::pair<std::string, std::vector<std::string>>> offload_module_table(const LayerTemplate& layer) {
  const SlotTable table(layer);
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
  for (const OffloadModule& module : offload_modules(layer, table)) {
    rows.emplace_back(module.name, std::vector<std::string>{});
    for (const SlotIndex root : module.saved) rows.back().second.push_back(layer.slots[at(root)].name);
  }
  return rows;
}

}  // namespace stepsim
