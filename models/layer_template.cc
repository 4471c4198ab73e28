#include "models/layer_template.h"

#include <algorithm>
#include <utility>

#include "models/decoder_layer.h"
#include "models/layer_body.h"
#include "models/template_builder.h"

namespace stepsim {

static LayerTemplate layer_alone(const TemplateContext& context, const LayerKind& kind) {
  TemplateBuilder builder("layer", context);
  const std::vector<std::int64_t> shape = {builder.shape().local_tokens, builder.shape().hidden};
  const SlotIndex input = builder.input("input", shape);
  const LayerBody body = append_layer(builder, kind, input);
  const SlotIndex output_gradient = builder.input("output gradient", shape);
  const SlotIndex input_gradient = body.backward(builder, output_gradient);
  return std::move(builder).build(
      {.input = input, .output = body.output, .output_gradient = output_gradient, .input_gradient = input_gradient});
}

LayerTemplate transformer_layer(const TemplateContext& context, const LayerKind& kind) {
  const bool decodes = kind.side == LayerSide::kFirstDecoder || kind.side == LayerSide::kDecoder;
  return decodes ? decoder_layer(context, kind) : layer_alone(context, kind);
}

LayerTemplate transformer_layer(const TemplateContext& context) { return transformer_layer(context, context.model.kind(0)); }

// Storages that other layers know too are this one's where it makes them.
static bool made_here(const LayerTemplate& layer, SlotIndex root) {
  return std::any_of(layer.forward.begin(), layer.forward.end(),
                     [root](const TemplateOp& op) { return std::find(op.writes.begin(), op.writes.end(), root) != op.writes.end(); });
}

std::vector<SlotIndex> saved_slots(const LayerTemplate& layer) {
  std::vector<SlotIndex> saved;
  for (const TemplateOp& op : layer.backward) {
    for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
      for (const SlotIndex slot : *used) {
        const SlotIndex root = root_of(layer.slots, slot);
        const SlotKind kind = layer.slots[static_cast<std::size_t>(root)].kind;
        const bool shared = kind == SlotKind::kShared && made_here(layer, root);
        if (kind == SlotKind::kForward || shared || root == layer.input) saved.push_back(root);
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
