#include "models/storage_labels.h"

namespace stepsim {

namespace {

void label_storage(ScriptStorage& storage, const ChunkStamps& stamps, const StepLabels& labels) {
  if (storage.unit < 0) return;
  const TemplateStamp& stamp = stamps.unit(at(storage.unit));
  storage.name = stamp.names[at(storage.slot)];
  const Slot& slot = stamp.source->slots[at(storage.slot)];
  if (storage.copied_back) {
    storage.role = labels.reloaded;
    return;
  }
  const bool last = at(storage.unit) + 1 == stamps.units();
  const bool output = storage.slot == stamp.table.output && !(last && stamps.head != nullptr);  // the loss goes nowhere
  const bool input = storage.slot == stamp.table.input && slot.kind == SlotKind::kInput;        // received
  const bool saved = storage.read_by_backward || storage.copied_out || (storage.read_by_rerun && !storage.made_again);
  // A layer's own, or a layer's input; an output that leaves the chunk is no layer's input here.
  const bool inside = output ? !last && stamps.layer_of(at(storage.unit) + 1) >= 0 : storage.layer >= 0;
  const bool made = slot.kind == SlotKind::kForward || slot.kind == SlotKind::kShared;
  const bool gradient = slot.kind == SlotKind::kGradient || slot.kind == SlotKind::kSharedGradient;
  if (gradient || storage.slot == root_or_none(stamp.table, stamp.source->input_gradient)) {
    storage.role = labels.role(slot.role == Role::kActivations ? Role::kActivationGradients : slot.role);
  } else if ((made || input) && inside && saved) {
    storage.role = storage.made_again ? labels.saved_again : labels.saved;
  } else if (slot.role == Role::kActivations) {
    const bool kept = (saved && (made || input)) || (output && last);
    storage.role = kept ? labels.outside_layers : labels.role(Role::kWorkspace);
  } else {
    storage.role = labels.role(slot.role);
  }
  if (!output || last) return;
  const TemplateStamp& next = stamps.unit(at(++storage.unit));
  storage.layer = stamps.layer_of(at(storage.unit));
  storage.slot = next.table.input;
  storage.name = next.names[at(storage.slot)];
}

}  // namespace

void label_storages(std::vector<ScriptStorage>& storages, const ChunkStamps& stamps, const StepLabels& labels) {
  for (ScriptStorage& storage : storages) label_storage(storage, stamps, labels);
}

}  // namespace stepsim
