#include "models/first_layer.h"

#include <algorithm>
#include <utility>

#include "models/needed_ops.h"
#include "models/trainable.h"

namespace stepsim {

namespace {

bool runs_layers_again(const PlacementPolicy& placement) {
  const bool rows = std::any_of(placement.rows.begin(), placement.rows.end(),
                                [](const PlacementRow& row) { return row.action == PlacementAction::kRecompute; });
  return rows || placement.granularity == RecomputeGranularity::kFull || placement.segments > 0 || !placement.segment_sizes.empty() ||
         placement.halving;
}

}  // namespace

void end_backward_at_first_layer(StepTemplates& templates, const StepRequest& request) {
  const TrainableMask& mask = request.training.trainable;
  if (mask.trains_all() || trains_embedding(mask) || !trains_layers(mask) || runs_layers_again(request.placement)) return;
  const auto layers = static_cast<std::size_t>(request.model.layers);
  if (templates.kind_of.empty()) templates.kind_of.assign(layers, 0);
  const auto kind = static_cast<std::size_t>(templates.kind_of.front());
  LayerTemplate first = templates.kinds[kind];
  drop_unneeded_backward(first, false);
  if (std::count(templates.kind_of.begin(), templates.kind_of.end(), templates.kind_of.front()) == 1) {
    templates.kinds[kind] = std::move(first);
    return;
  }
  templates.kind_of.front() = static_cast<std::int32_t>(templates.kinds.size());
  templates.kinds.push_back(std::move(first));
}

}  // namespace stepsim
