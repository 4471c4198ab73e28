#include "models/stored_format.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/template_builder.h"

namespace stepsim {

namespace {

bool uses(const LayerTemplate& layer, const TemplateOp& op, SlotIndex root) {
  for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
    if (std::any_of(used->begin(), used->end(), [&](SlotIndex slot) { return root_of(layer.slots, slot) == root; })) return true;
  }
  return false;
}

bool makes(const LayerTemplate& layer, const TemplateOp& op, SlotIndex root) {
  for (const auto* made : {&op.writes, &op.updates}) {
    if (std::any_of(made->begin(), made->end(), [&](SlotIndex slot) { return root_of(layer.slots, slot) == root; })) return true;
  }
  return false;
}

SlotIndex add_slot(LayerTemplate& layer, Slot slot) {
  layer.slots.push_back(std::move(slot));
  return static_cast<SlotIndex>(layer.slots.size()) - 1;
}

// Behind it, ops are numbered one higher.
void insert_op(std::vector<TemplateOp>& ops, std::size_t position, TemplateOp op) {
  for (TemplateOp& each : ops) {
    for (std::int32_t& before : each.after) {
      if (static_cast<std::size_t>(before) >= position) ++before;
    }
  }
  ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(position), std::move(op));
}

TemplateOp cast_op(const LayerTemplate& layer, const std::string& name, const std::string& module, SlotIndex from, SlotIndex to) {
  return {.name = name,
          .module = module,
          .work = MemoryBound{.read = layer.slots[at(from)].size, .written = layer.slots[at(to)].size, .kernel = MemoryKernel::kQuantize},
          .reads = {from},
          .writes = {to},
          .updates = {},
          .holds = {},
          .after = {}};
}

// `slot`, or its view, in backward.
void replace_in_backward(LayerTemplate& layer, SlotIndex root, SlotIndex restored) {
  std::map<SlotIndex, SlotIndex> replacement = {{root, restored}};
  const auto count = static_cast<SlotIndex>(layer.slots.size());
  for (SlotIndex view = 0; view < count; ++view) {
    if (layer.slots[at(view)].view_of != root) continue;
    Slot copy = layer.slots[at(view)];
    copy.name += ", restored";
    copy.kind = layer.slots[at(restored)].kind;
    copy.role = layer.slots[at(restored)].role;
    copy.view_of = restored;
    replacement[view] = add_slot(layer, std::move(copy));
  }
  for (TemplateOp& op : layer.backward) {
    for (auto* list : {&op.reads, &op.updates, &op.holds}) {
      for (SlotIndex& slot : *list) {
        const auto found = replacement.find(slot);
        if (found != replacement.end()) slot = found->second;
      }
    }
  }
}

void store(LayerTemplate& layer, SlotIndex root, const StoredFormat& format) {
  const auto first_use =
      std::find_if(layer.backward.begin(), layer.backward.end(), [&](const TemplateOp& op) { return uses(layer, op, root); });
  const auto last_make =
      std::find_if(layer.forward.rbegin(), layer.forward.rend(), [&](const TemplateOp& op) { return makes(layer, op, root); });
  if (first_use == layer.backward.end() || last_make == layer.forward.rend()) return;
  const auto restore_at = static_cast<std::size_t>(first_use - layer.backward.begin());
  const auto store_at = static_cast<std::size_t>(layer.forward.rend() - last_make);
  const std::string module = last_make->module;
  Slot stored = layer.slots[at(root)];
  std::int64_t elements = 1;
  for (const std::int64_t extent : stored.shape) elements *= extent;
  stored.name += ", stored";
  stored.dtype = DType::kUint8;
  stored.size = Bytes((elements * format.bits + 7) / 8 + (format.block == 0 ? 0 : (elements + format.block - 1) / format.block * 4));
  Slot restored = layer.slots[at(root)];
  restored.name += ", restored";
  restored.kind = SlotKind::kGradient;
  restored.role = Role::kWorkspace;
  const SlotIndex kept = add_slot(layer, std::move(stored));
  const SlotIndex whole = add_slot(layer, std::move(restored));
  replace_in_backward(layer, root, whole);
  insert_op(layer.forward, store_at, cast_op(layer, format.slot + " store", module, root, kept));
  insert_op(layer.backward, restore_at, cast_op(layer, format.slot + " restore", module, kept, whole));
}

}  // namespace

bool is_stored_low(const FrameworkPreset& framework, const std::string& slot) {
  return std::any_of(framework.stored.begin(), framework.stored.end(), [&](const StoredFormat& format) { return format.slot == slot; });
}

void store_low(LayerTemplate& layer, const FrameworkPreset& framework) {
  for (const StoredFormat& format : framework.stored) {
    const auto found = std::find_if(layer.slots.begin(), layer.slots.end(), [&](const Slot& slot) { return slot.name == format.slot; });
    if (found == layer.slots.end() || found->kind != SlotKind::kForward || found->view_of != kNoSlot) continue;
    store(layer, static_cast<SlotIndex>(found - layer.slots.begin()), format);
  }
}

// By root: whether a forward op reads it from which something comes that backward reads.
static std::vector<bool> read_again(const LayerTemplate& layer) {
  std::vector<bool> wanted(layer.slots.size(), false), read(layer.slots.size(), false);
  for (const SlotIndex slot : saved_slots(layer)) wanted[at(slot)] = true;
  for (std::size_t index = layer.forward.size(); index-- > 0;) {
    const TemplateOp& op = layer.forward[index];
    bool needed = false;
    for (const auto* made : {&op.writes, &op.updates}) {
      for (const SlotIndex slot : *made) needed = needed || wanted[at(root_of(layer.slots, slot))];
    }
    if (!needed) continue;
    for (const SlotIndex slot : op.reads) {
      const SlotIndex root = root_of(layer.slots, slot);
      wanted[at(root)] = read[at(root)] = true;
    }
  }
  return read;
}

void keep_for_reruns(LayerTemplate& layer, const FrameworkPreset& framework) {
  if (layer.backward.empty() || framework.kept_for_reruns.empty()) return;
  const std::vector<bool> read = read_again(layer);
  const std::vector<SlotIndex> saved = saved_slots(layer);
  for (const std::string& name : framework.kept_for_reruns) {
    const auto found = std::find_if(layer.slots.begin(), layer.slots.end(), [&](const Slot& slot) { return slot.name == name; });
    if (found == layer.slots.end() || found->kind != SlotKind::kForward) continue;
    const SlotIndex root = root_of(layer.slots, static_cast<SlotIndex>(found - layer.slots.begin()));
    const bool unread = !read[at(root)] && !std::binary_search(saved.begin(), saved.end(), root);
    if (unread && !framework.keeps_unread_products) continue;
    std::string& module = layer.slots[at(root)].module;
    if (!module.empty()) module += ',';
    module += kKeptModule;
    layer.backward.back().holds.push_back(root);
  }
}

}  // namespace stepsim
