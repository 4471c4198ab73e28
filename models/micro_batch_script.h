// One micro-batch of one model chunk as ops over storages numbered from 0: the plan replayed over the stamps. A dropped storage dies with
// its last reader, a re-run makes a new one: nothing else decides lifetimes. Every micro-batch of the step is such a script with its
// numbers shifted. A re-run names its first run as origin: a backend restores the random state of that run. Restoring costs no time and no
// memory here (a few bytes and host calls per re-run; frameworks keep the state on the host).
//
// Invariants:
//  1. A storage code >= 0 counts from the micro-batch's first storage; a code < 0 is the storage ~code of the graph, which lives all step.
//  2. Ops refer to earlier ops only. Ops of the forward pass come first, then those of the backward pass, then deferred weight gradients.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "models/data_parallel.h"
#include "models/optimizer_phase.h"
#include "models/pipeline_schedule.h"
#include "models/placement_plan.h"
#include "models/resident_storages.h"
#include "models/step_frame.h"
#include "models/template_stamp.h"

namespace stepsim {

inline constexpr std::int32_t kNoLimit = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int32_t kNoCode = std::numeric_limits<std::int32_t>::max();  // of a storage that is not there

struct ScriptOp {
  WorkId work;
  LabelId kind;
  Phase phase = Phase::kForward;
  PassStream stream = PassStream::kCompute;
  bool queued = false;                                 // takes the stream's communicator; on the compute stream, its group's
  Group group = Group::kTensor;                        // of one that is queued on the compute stream
  bool awaits_input = false, awaits_gradient = false;  // waits for the transfer of the chunk's input, of its output's gradient
  bool after_compute = false;                          // waits for the compute stream as the stage has it so far
  CopyEngine engine = CopyEngine::kNone;               // a copy's
  std::int32_t layer = -1;
  std::int32_t origin = -1;  // the script op that this one runs again
  std::int32_t graph = -1;   // consecutive ops of one number are launched as one CUDA graph; -1: by itself
  // The launch waits for the end of a unit's run of this pass, counted from 0 in the order of the pass; < 0: of earlier passes of the
  // stage, -1 the last one of the pass before. kNoLimit: it does not wait.
  std::int32_t after_unit_run = kNoLimit;
  std::int32_t launched_after = -1;                                       // a script op whose end the launch waits for; -1: none
  std::uint32_t wait_end = 0, read_end = 0, write_end = 0, hold_end = 0;  // ends of its rows in waits, reads, writes, holds
};

struct ScriptStorage {
  Bytes size;
  LabelId role, name;
  std::int32_t layer = -1;
  std::int32_t unit = 0;     // of the chunk: whose slot `slot` is; -1: a tensor of the batch, or none of the template's
  SlotIndex slot = kNoSlot;  // root; of an output, the next unit's input; of the batch, its number
  bool made_again = false, read_by_backward = false, read_by_rerun = false;
  bool copied_out = false, copied_back = false;  // it is on its way to the host; it came from there
  bool on_host = false;                          // in host memory
  bool deferred_free = false;                    // as Storage's
};

struct MicroBatchScript {
  std::vector<ScriptOp> ops;
  std::vector<ScriptStorage> storages;
  std::vector<std::int32_t> waits;    // script ops of other streams
  std::vector<Tensor> reads, writes;  // storage ids are codes
  std::vector<StorageId> holds;       // codes

  std::array<std::int32_t, 3> pass_end{};                   // by PassKind: ends of the passes' ops
  std::int32_t graphs = 0;                                  // numbers of CUDA graphs are below this
  std::array<std::vector<std::int32_t>, 3> unit_ends;       // by PassKind: the last compute op of each unit's run
  std::vector<std::int32_t> forward_units, forward_begins;  // of the forward pass's runs: their units, their first ops
  // What crosses the chunk's ends, where there is a chunk beside it; -1: nothing.
  std::int32_t input = -1, gradient = -1;               // storages that transfers write
  std::int32_t input_slices = 1;                        // the input and so many behind it in all are one tensor
  std::int32_t output = -1, input_gradient = -1;        // storages that transfers carry away
  std::int32_t output_op = -1, input_gradient_op = -1;  // who writes those last; -1 with an output: the transfer that brings it
};

// A run of layers with what stands before and behind it.
struct ChunkStamps {
  std::span<const TemplateStamp> kinds;      // of layers
  std::span<const std::int32_t> kind_of;     // by layer of the model; empty: all the first
  const TemplateStamp* embedding = nullptr;  // null: the input comes from another chunk
  const TemplateStamp* head = nullptr;       // null: the output goes to another chunk
  std::span<const BatchTensor> batch;
  std::size_t shared = 0;  // tensors and gradients that layers share by name
  std::int64_t first_layer = 0, layers = 0;
  bool ties_head = false;  // the head or a layer uses the embedding's table

  std::size_t units() const { return static_cast<std::size_t>(layers) + (embedding != nullptr) + (head != nullptr); }
  // By layer of the model.
  const TemplateStamp& layer(std::int64_t number) const {
    return kinds[kind_of.empty() ? 0 : static_cast<std::size_t>(kind_of[static_cast<std::size_t>(number)])];
  }
  // Of the model; -1: the embedding or the head.
  std::int32_t layer_of(std::size_t unit) const {
    const std::int64_t index = static_cast<std::int64_t>(unit) - (embedding != nullptr);
    return index >= 0 && index < layers ? static_cast<std::int32_t>(first_layer + index) : -1;
  }
  const TemplateStamp& unit(std::size_t number) const {
    if (number == 0 && embedding != nullptr) return *embedding;
    if (number + 1 == units() && head != nullptr) return *head;
    return layer(first_layer + static_cast<std::int64_t>(number) - (embedding != nullptr));
  }
};

struct ScriptOptions {
  bool defers_weight_gradients = false;            // into a pass of their own
  bool defers_head = false;                        // likewise those ops of the head alone that its template marks
  bool keeps_output = false;                       // the chunk's output lives until its backward pass
  std::optional<Collective> input_gather;          // received inputs and gradients come in parts that this all-gather joins
  const UnitSharding* sharding = nullptr;          // ZeRO 2 and 3
  std::span<const GradientBucket> buckets;         // reduced beside the backward pass: of the last micro-batch
  std::vector<std::vector<UpdateKernel>> updates;  // by unit: run behind its backward ops; empty: the optimizer follows the passes
  bool reduces = true;                             // sharded gradients: whether this micro-batch's backward reduces them
  OffloadSchedule offload;                         // how the plan's copies are made
  bool graphs_scopes = false;                      // CudaGraph::kScopes
};

// Embedding forward, plan.forward, head forward; head backward, plan.backward, embedding backward. The batch is claimed by the first op.
// STEPSIM_CHECK if the plan reads what is not there (plan_error says where).
MicroBatchScript make_script(OpGraphBuilder&, const ChunkStamps&, const PlacementPlan&, std::span<const UnitResidents>, const StepLabels&,
                             const ScriptOptions&);

}  // namespace stepsim
