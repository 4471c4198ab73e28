#include "models/saved_tensors.h"

#include <algorithm>

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

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

}  // namespace

std::vector<SavedTensor> saved_tensors(const ScriptStamps& stamps, std::int64_t layers, const MicroBatchScript& script,
                                       StorageId first_storage) {
  const TemplateStamp* by_kind[] = {&stamps.embedding, &stamps.layer, &stamps.head};
  std::vector<SlotIndex> roots[3];
  std::vector<std::int32_t> rank[3];  // by root: its place among the saved ones, -1: not saved
  for (std::size_t kind = 0; kind < 3; ++kind) {
    roots[kind] = saved_slots(*by_kind[kind]->source);
    rank[kind].assign(by_kind[kind]->roots.size(), -1);
    for (std::size_t i = 0; i < roots[kind].size(); ++i) rank[kind][at(roots[kind][i])] = static_cast<std::int32_t>(i);
  }
  const std::vector<SavedTensor> blank[] = {blank_tensors(stamps.embedding, roots[0], nullptr),
                                            blank_tensors(stamps.layer, roots[1], &stamps.layer),
                                            blank_tensors(stamps.head, roots[2], &stamps.layer)};
  const std::vector<SavedTensor> first_layer = blank_tensors(stamps.layer, roots[1], &stamps.embedding);
  const auto kind_of = [layers](std::int64_t unit) -> std::size_t { return unit == 0 ? 0 : unit <= layers ? 1 : 2; };
  std::vector<SavedTensor> tensors;
  tensors.reserve(blank[0].size() + static_cast<std::size_t>(layers) * blank[1].size() + blank[2].size());
  std::vector<std::size_t> begin;
  for (std::int64_t unit = 0; unit < layers + 2; ++unit) {
    begin.push_back(tensors.size());
    const std::vector<SavedTensor>& source = unit == 1 ? first_layer : blank[kind_of(unit)];
    tensors.insert(tensors.end(), source.begin(), source.end());
    for (std::size_t i = begin.back(); i < tensors.size(); ++i) {
      tensors[i].layer = static_cast<std::int32_t>(unit - 1);
      const StampOperand& place = by_kind[kind_of(unit)]->roots[at(roots[kind_of(unit)][i - begin.back()])];
      if (place.place != OperandPlace::kBatch) continue;
      tensors[i].placement = "keep";
      tensors[i].storages.push_back(StorageId{first_storage.index + place.index});  // the batch comes first in the script
    }
  }
  for (std::size_t code = 0; code < script.storages.size(); ++code) {
    const ScriptStorage& storage = script.storages[code];
    if (storage.unit < 0) continue;
    const std::int32_t place = rank[kind_of(storage.unit)][at(storage.slot)];
    if (place < 0) continue;
    SavedTensor& tensor = tensors[begin[at(storage.unit)] + at(place)];
    tensor.storages.push_back(StorageId{first_storage.index + static_cast<std::int32_t>(code)});
    if (!storage.made_again) {
      tensor.placement = !storage.read_by_backward ? "recompute" : storage.read_by_rerun ? "checkpoint" : "keep";
    }
  }
  return tensors;
}

}  // namespace stepsim
