// Which saved storages the rows of a placement table select, and which row has the last word on each in every layer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/layer_stack.h"
#include "models/offload_modules.h"
#include "models/placement_table.h"

namespace stepsim {

// Saved roots that a row's name selects in a kind of layer, ascending. A module's name means what recomputing it frees, or, in a row that
// offloads, what the module saves (offload_modules()). Without the layer's input and output for "*" and modules, but a row that offloads
// takes the input too. Each name is looked for once: tables have thousands of rows and a few names. The layer and the table outlive this.
class RowSlots {
 public:
  RowSlots(const LayerTemplate& layer, const SlotTable& table) : layer_(layer), table_(table) {}
  const std::vector<SlotIndex>& of(const std::string& module_or_slot, bool offloads = false);

 private:
  std::vector<SlotIndex> offloaded(const std::string& name) const;
  std::vector<SlotIndex> others(const std::string& name) const;

  const LayerTemplate& layer_;
  const SlotTable& table_;
  std::map<std::pair<std::string, bool>, std::vector<SlotIndex>> known_;
};

// For one root, the last row that says something about it in each layer. Rows come from the last to the first; a layer keeps the first
// one that comes. Layers that have a row are jumped over, so that a row costs no more than the layers that it is the first to reach.
class LastRow {
 public:
  explicit LastRow(std::int64_t layers);
  void add(std::int64_t first, std::int64_t last, std::int32_t row);
  std::int32_t row(std::int32_t layer) const { return row_[static_cast<std::size_t>(layer)]; }

 private:
  std::int32_t next_open(std::int32_t layer);

  std::vector<std::int32_t> row_;   // by layer
  std::vector<std::int32_t> open_;  // by layer: itself without a row, else a later one on the way to the next without
};

class LastRows {
 public:
  static constexpr std::int32_t kNone = -1;

  LastRows(const LayerStack&, const std::vector<PlacementRow>&);
  // Index of the row, or kNone. A layer's output is the next one's input: the layer that reads it has it.
  std::int32_t row(std::int32_t layer, SlotIndex root) const;

 private:
  // None for roots that no row names.
  struct Kind {
    std::vector<std::optional<LastRow>> own;  // by root
    std::optional<LastRow> output;            // by the layer that makes it
  };
  LayerStack stack_;
  std::vector<Kind> kinds_;
};

}  // namespace stepsim
