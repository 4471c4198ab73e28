// One micro-batch of a step as ops over storages numbered from 0: the plan replayed over the stamps. A dropped storage dies with its last
// reader, a re-run makes a new one: nothing else decides lifetimes. Every micro-batch of the step is this script with its numbers shifted.
// A re-run names its first run as origin: a backend restores the random state of that run. Restoring costs no time and no memory here (a
// few bytes and host calls per re-run; frameworks keep the state on the host).
//
// Invariants:
//  1. A storage code >= 0 counts from the micro-batch's first storage; a code < 0 is the storage ~code of the graph, which lives all step.
//  2. Ops refer to earlier ops only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/placement_plan.h"
#include "models/resident_storages.h"
#include "models/step_frame.h"
#include "models/template_stamp.h"

namespace stepsim {

struct ScriptOp {
  WorkId work;
  LabelId kind;
  Phase phase = Phase::kForward;
  bool on_tensor_stream = false, queued = false;
  std::int32_t layer = -1;
  std::int32_t origin = -1;     // the script op that this one runs again
  std::int32_t waits_for = -1;  // the last op of the other stream that it depends on and that its own stream has not waited for yet
  std::uint32_t read_end = 0, write_end = 0, hold_end = 0;  // ends of its rows in reads, writes, holds
};

struct ScriptStorage {
  Bytes size;
  LabelId role, name;
  std::int32_t layer = -1;
  std::int32_t unit = 0;     // 0 the embedding, 1.. the layers, the last the head: whose slot `slot` is
  SlotIndex slot = kNoSlot;  // root; of an output, the next unit's input
  bool made_again = false, read_by_backward = false, read_by_rerun = false;
};

struct MicroBatchScript {
  std::vector<ScriptOp> ops;
  std::vector<ScriptStorage> storages;
  std::vector<Tensor> reads, writes;  // storage ids are codes
  std::vector<StorageId> holds;       // codes
};

struct ScriptStamps {
  const TemplateStamp& embedding;
  const TemplateStamp& layer;
  const TemplateStamp& head;
  std::span<const BatchTensor> batch;
};

// Embedding forward, plan.forward, head forward, head backward, plan.backward, embedding backward. The batch is claimed by the first op.
// STEPSIM_CHECK if the plan reads what is not there (plan_error says where).
MicroBatchScript make_script(const ScriptStamps&, std::int64_t layers, const PlacementPlan&, const ResidentStorages&, const StepFrame&);

}  // namespace stepsim
