// Which template each layer of a stage is stamped from. Layers of one kind share a template and its slot table. Knows no policy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/layer_template.h"
#include "models/slot_table.h"

namespace stepsim {

// Invariant: at least one kind; kind_of(layer) is one of them. A copy is cheap. Templates outlive it.
class LayerStack {
 public:
  LayerStack(const LayerTemplate& only, std::int64_t layers);
  // `kind_of`: by layer, an index of `kinds`.
  LayerStack(const std::vector<LayerTemplate>& kinds, std::vector<std::int32_t> kind_of);

  std::int64_t layers() const { return layers_; }
  std::int32_t kinds() const { return static_cast<std::int32_t>(shared_->kinds.size()); }
  std::int32_t kind_of(std::int64_t layer) const {
    return shared_->kind_of.empty() ? 0 : shared_->kind_of[static_cast<std::size_t>(first_ + layer)];
  }
  const LayerTemplate& kind(std::int32_t index) const { return *shared_->kinds[static_cast<std::size_t>(index)]; }
  const SlotTable& kind_table(std::int32_t index) const { return shared_->tables[static_cast<std::size_t>(index)]; }
  const LayerTemplate& layer(std::int64_t index) const { return kind(kind_of(index)); }
  const SlotTable& table(std::int64_t index) const { return kind_table(kind_of(index)); }

  // Layers [first, first + layers). Kinds keep their numbers, also those that no layer of the part has.
  LayerStack part(std::int64_t first, std::int64_t layers) const;
  // What this is a part of.
  LayerStack whole() const;
  // By kind. O(layers) where there are several.
  std::vector<std::int64_t> layers_of_kinds() const;
  // By layer, where its slots (or roots) begin in a list of all layers' slots; one more: their number.
  std::vector<std::size_t> slot_begins() const;

 private:
  struct Shared {
    std::vector<const LayerTemplate*> kinds;
    std::vector<SlotTable> tables;
    std::vector<std::int32_t> kind_of;  // by layer; empty: all the first
    std::int64_t layers = 0;
  };
  std::shared_ptr<const Shared> shared_;  // so that copies and parts cost nothing
  std::int64_t first_ = 0, layers_ = 0;
};

}  // namespace stepsim
