#include "models/saved_tensors.h"

#include <algorithm>
#include <map>

namespace stepsim {

namespace {

// The op that makes the root first; of an input, the op of the template before.
std::string maker(const TemplateStamp& stamp, SlotIndex root, const TemplateStamp* before) {
  if (root == stamp.table.input)
    return before == nullptr || before->table.output == kNoSlot ? "" : maker(*before, before->table.output, nullptr);
  const std::vector<std::int32_t>& makers = stamp.table.makers[at(root)];
  return makers.empty() ? "" : stamp.source->forward[at(makers.front())].name;
}

// The saved slots of one template as SavedTensors without storages.
std::vector<SavedTensor> blank_tensors(const TemplateStamp& stamp, const std::vector<SlotIndex>& roots, const TemplateStamp* before) {
  std::vector<SavedTensor> tensors;
  for (const SlotIndex root : roots) {
    const Slot& slot = stamp.source->slots[at(root)];
    tensors.push_back({.op = maker(stamp, root, before),
                       .name = slot.name,
                       .shape = slot.shape,
                       .dtype = slot.dtype,
                       .bytes = slot.size,
                       .placement = {},
                       .storages = {}});
  }
  return tensors;
}

// A tensor of the batch is listed with each unit that keeps it for backward.
void note_batch(const ChunkStamps& stamps, const ScriptStorage& storage, StorageId id,
                const std::map<const TemplateStamp*, std::vector<SlotIndex>>& roots, const std::vector<std::size_t>& begin,
                std::vector<SavedTensor>& tensors) {
  for (std::size_t unit = 0; storage.slot != kNoSlot && unit < begin.size(); ++unit) {
    const std::vector<SlotIndex>& saved = roots.at(&stamps.unit(unit));
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const StampOperand& operand = stamps.unit(unit).roots[at(saved[i])];
      if (operand.place != OperandPlace::kBatch || operand.index != storage.slot) continue;
      tensors[begin[unit] + i].placement = "keep";
      tensors[begin[unit] + i].storages.push_back(id);
    }
  }
}

// And those that it makes for others, and a layer's input, which a re-run may start from (erase_unused_inputs).
std::vector<SlotIndex> listed_slots(const TemplateStamp& stamp) {
  std::vector<SlotIndex> roots = saved_slots(*stamp.source);
  const SlotIndex input = stamp.table.input;
  if (input != kNoSlot && !std::binary_search(roots.begin(), roots.end(), input)) {
    roots.insert(std::lower_bound(roots.begin(), roots.end(), input), input);
  }
  for (SlotIndex root = 0; at(root) < stamp.table.shared.size(); ++root) {
    const auto place = std::lower_bound(roots.begin(), roots.end(), root);
    if (stamp.table.shared[at(root)] && (place == roots.end() || *place != root)) roots.insert(place, root);
  }
  return roots;
}

// Inputs that neither backward nor a re-run reads. `ranks`: of each template's roots among its tensors; `begin`: by unit.
void erase_unused_inputs(const ChunkStamps& stamps, const std::map<const TemplateStamp*, std::vector<std::int32_t>>& ranks,
                         const std::vector<std::size_t>& begin, std::vector<SavedTensor>& tensors) {
  std::vector<bool> unused(tensors.size(), false);
  for (std::size_t unit = 0; unit < begin.size(); ++unit) {
    const TemplateStamp& stamp = stamps.unit(unit);
    const SlotIndex input = stamp.table.input;
    if (input == kNoSlot || stamp.table.saved[at(input)]) continue;
    const std::size_t place = begin[unit] + at(ranks.at(&stamp)[at(input)]);
    unused[place] = tensors[place].placement != "checkpoint" && tensors[place].placement != "offload";
  }
  std::size_t next = 0;
  std::erase_if(tensors, [&](const SavedTensor&) { return unused[next++]; });
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const ChunkStamps& stamps, std::int32_t stage, std::int64_t model_layers,
                                       const MicroBatchScript& script, StorageId first_storage) {
  std::vector<SavedTensor> tensors;
  std::vector<std::size_t> begin;                                // by unit
  std::map<const TemplateStamp*, std::vector<SlotIndex>> roots;  // looked up only
  std::map<const TemplateStamp*, std::vector<std::int32_t>> ranks;
  const std::size_t first_layer = stamps.embedding != nullptr ? 1 : 0;
  for (std::size_t unit = 0; unit < stamps.units(); ++unit) {
    const TemplateStamp& stamp = stamps.unit(unit);
    if (!roots.contains(&stamp)) {
      roots[&stamp] = listed_slots(stamp);
      std::vector<std::int32_t>& rank = ranks[&stamp];  // by root: its place among the saved ones, -1: not saved
      rank.assign(stamp.roots.size(), -1);
      for (std::size_t i = 0; i < roots[&stamp].size(); ++i) rank[at(roots[&stamp][i])] = static_cast<std::int32_t>(i);
    }
    // What a chunk receives was made by the layer before it, or by the embedding.
    const TemplateStamp* before = unit > 0 ? &stamps.unit(unit - 1) : nullptr;
    if (unit == 0 && stamps.embedding == nullptr && stamps.first_layer > 0) before = &stamps.layer(stamps.first_layer - 1);
    begin.push_back(tensors.size());
    for (SavedTensor& tensor : blank_tensors(stamp, roots[&stamp], before)) tensors.push_back(std::move(tensor));
    const std::int64_t layer = unit < first_layer ? -1
                               : unit - first_layer < static_cast<std::size_t>(stamps.layers)
                                   ? stamps.first_layer + static_cast<std::int64_t>(unit - first_layer)
                                   : model_layers;
    for (std::size_t i = begin.back(); i < tensors.size(); ++i) {
      tensors[i].stage = stage;
      tensors[i].layer = static_cast<std::int32_t>(layer);
    }
  }
  for (std::size_t code = 0; code < script.storages.size(); ++code) {
    const ScriptStorage& storage = script.storages[code];
    const StorageId id{first_storage.index + static_cast<std::int32_t>(code)};
    if (storage.unit < 0) {
      note_batch(stamps, storage, id, roots, begin, tensors);
      continue;
    }
    const TemplateStamp& stamp = stamps.unit(at(storage.unit));
    const std::int32_t place = ranks[&stamp][at(storage.slot)];
    if (place < 0) continue;
    SavedTensor& tensor = tensors[begin[at(storage.unit)] + at(place)];
    tensor.storages.push_back(id);
    if (storage.copied_out) {
      tensor.placement = "offload";
    } else if (!storage.made_again && !storage.copied_back && tensor.placement.empty()) {
      const bool checkpoint = storage.read_by_rerun && (storage.read_by_backward || storage.slot == stamp.table.input);
      tensor.placement = checkpoint ? "checkpoint" : storage.read_by_backward ? "keep" : "recompute";
    }
  }
  erase_unused_inputs(stamps, ranks, begin, tensors);
  return tensors;
}

}  // namespace stepsim
