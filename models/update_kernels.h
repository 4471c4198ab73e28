// The kernels by which one rank updates a unit's parameters: what the framework's optimizer launches, in bytes. Bytes per parameter are
// those of resident_storages.h. Knows no order of units.
#pragma once

#include <vector>

#include "models/model_spec.h"
#include "models/resident_storages.h"

namespace stepsim {

struct OptimizerContext {
  const ModelSpec& model;
  const TrainingRecipe& training;
  const ParallelLayout& parallel;
  const FrameworkPreset& framework;
  const ResidentStorages& residents;
};

struct UpdateKernel {
  LabelId kind;
  WorkId work;
  std::vector<Tensor> reads, writes;
  bool host_reads = false;  // the host launches it when what was launched before is over
};

// The update of what the device updates and, where the framework has one, the copy of the updated weights. Empty if nothing of the unit is
// trained or updated here. A Python loop over parameters launches eight kernels for each, or for the flat one where FSDP1 has but that.
std::vector<UpdateKernel> update_kernels(OpGraphBuilder&, const OptimizerContext&, const UnitResidents&);

// What the update of `parameters` of the unit writes back: this rank's share of the weights as they are kept; nothing where the master
// weights' shards are the only ones.
Bytes updated_weights(const OptimizerContext&, const UnitResidents&, std::int64_t parameters);

}  // namespace stepsim
