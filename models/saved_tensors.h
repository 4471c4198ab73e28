// The saved tensors of micro-batch 0 and what became of each, for explain.
#pragma once

#include <vector>

#include "models/micro_batch_script.h"
#include "models/step_builder.h"

namespace stepsim {

// By unit (embedding -1, layers, head `layers`), then slot. A layer's input is listed with the layer that reads it.
std::vector<SavedTensor> saved_tensors(const ScriptStamps&, std::int64_t layers, const MicroBatchScript&, StorageId first_storage);

}  // namespace stepsim
