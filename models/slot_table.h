// The slots of a layer template as replay and recomputation see them: which storage a slot stands for, which forward ops make it, whether
// backward needs it. Derived once per template; knows no layer, no policy and no graph.
#pragma once

#include <string_view>
#include <vector>

#include "models/layer_template.h"

namespace stepsim {

// Invariant: a root is the slot whose storage a slot shares (itself, unless a view). Lists of roots and ops are ascending, each once.
struct SlotTable {
  SlotTable() = default;
  explicit SlotTable(const LayerTemplate&);

  std::vector<SlotIndex> root;                         // by slot
  std::vector<bool> forward_made;                      // by root: written by a forward op, or the layer's input
  std::vector<bool> saved;                             // by root: forward_made, read by a backward op, not shared: what policies decide on
  std::vector<bool> shared;                            // by root: forward_made, and other layers read it
  std::vector<std::vector<std::int32_t>> makers;       // by root: forward ops that write it or update it in place
  std::vector<std::vector<std::int32_t>> updaters;     // by root: forward ops that update it in place
  std::vector<std::vector<SlotIndex>> forward_needs;   // by forward op: forward-made roots that must be there before it runs
  std::vector<std::vector<SlotIndex>> forward_makes;   // by forward op: roots that it writes
  std::vector<std::vector<SlotIndex>> backward_needs;  // by backward op: forward-made roots that it reads, updates or holds
  SlotIndex input = kNoSlot, output = kNoSlot;         // roots

  // The last forward op that makes a saved root other than the output; -1 if there is none.
  std::int32_t last_saving_op() const;
};

// The root of the slot; none of none.
inline SlotIndex root_or_none(const SlotTable& table, SlotIndex slot) { return slot == kNoSlot ? kNoSlot : table.root[at(slot)]; }

// Whether `module` is one of the comma separated `modules` (spaces around commas do not count).
bool names_module(std::string_view modules, std::string_view module);

}  // namespace stepsim
