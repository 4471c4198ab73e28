#include "models/layer_stack.h"

#include <utility>

#include "sim/check.h"

namespace stepsim {

LayerStack::LayerStack(const LayerTemplate& only, std::int64_t layers) : layers_(layers) {
  STEPSIM_CHECK(layers >= 0);
  auto shared = std::make_shared<Shared>();
  shared->kinds.push_back(&only);
  shared->tables.emplace_back(only);
  shared->layers = layers;
  shared_ = std::move(shared);
}

LayerStack::LayerStack(const std::vector<LayerTemplate>& kinds, std::vector<std::int32_t> kind_of)
    : layers_(static_cast<std::int64_t>(kind_of.size())) {
  STEPSIM_CHECK(!kinds.empty());
  auto shared = std::make_shared<Shared>();
  for (const LayerTemplate& kind : kinds) {
    shared->kinds.push_back(&kind);
    shared->tables.emplace_back(kind);
  }
  for (const std::int32_t kind : kind_of) {
    STEPSIM_CHECK(kind >= 0);
    STEPSIM_CHECK(static_cast<std::size_t>(kind) < kinds.size());
  }
  shared->kind_of = std::move(kind_of);
  shared->layers = layers_;
  shared_ = std::move(shared);
}

LayerStack LayerStack::part(std::int64_t first, std::int64_t layers) const {
  STEPSIM_CHECK(first >= 0);
  STEPSIM_CHECK(layers >= 0);
  STEPSIM_CHECK(first <= layers_ - layers);
  LayerStack some = *this;
  some.first_ += first;
  some.layers_ = layers;
  return some;
}

LayerStack LayerStack::whole() const {
  LayerStack all = *this;
  all.first_ = 0;
  all.layers_ = shared_->layers;
  return all;
}

std::vector<std::int64_t> LayerStack::layers_of_kinds() const {
  std::vector<std::int64_t> count(shared_->kinds.size(), 0);
  if (kinds() == 1) return {layers_};
  for (std::int64_t layer = 0; layer < layers_; ++layer) ++count[static_cast<std::size_t>(kind_of(layer))];
  return count;
}

std::vector<std::size_t> LayerStack::slot_begins() const {
  std::vector<std::size_t> begins{0};
  begins.reserve(static_cast<std::size_t>(layers_) + 1);
  for (std::int64_t index = 0; index < layers_; ++index) begins.push_back(begins.back() + layer(index).slots.size());
  return begins;
}

}  // namespace stepsim
