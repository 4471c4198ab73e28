// Writes micro-batches into a graph: the script once per micro-batch, its numbers shifted.
#pragma once

#include "models/micro_batch_script.h"

namespace stepsim {

// Ids of the first micro-batch's first op and storage; those of script op i and storage code j are theirs plus i and j.
struct StampedStep {
  OpId first_op;
  StorageId first_storage;
};
StampedStep stamp_micro_batches(OpGraphBuilder&, const StepFrame&, const MicroBatchScript&, std::int32_t micro_batches);

}  // namespace stepsim
