// The saved tensors of micro-batch 0 and what became of each, for explain.
#pragma once

#include <vector>

#include "models/micro_batch_script.h"
#include "models/step_builder.h"

namespace stepsim {

// Of one chunk, by unit (embedding -1, layers, head `model_layers`), then slot. A layer's input is listed with the layer that reads it.
std::vector<SavedTensor> saved_tensors(const ChunkStamps&, std::int32_t stage, std::int64_t model_layers, const MicroBatchScript&,
                                       StorageId first_storage);

}  // namespace stepsim
