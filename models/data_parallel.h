// What a data-parallel group adds to a pass: buckets of gradients reduced beside the last backward pass, or units whose weights are
// gathered before they run and whose gradients are reduced behind them (ZeRO 2 and 3, FSDP). Sources: Megatron-LM core/distributed
// param_and_grad_buffer.py; PyTorch torch/distributed/fsdp _runtime_utils.py (1) and _fully_shard/_fsdp_param_group.py (2).
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/framework_preset.h"
#include "models/resident_storages.h"
#include "models/step_frame.h"
#include "models/template_stamp.h"

namespace stepsim {

struct ChunkStamps;

// Ranks that hold the same parameters; of them, those that share one sharded copy; how far neighbours are apart.
struct ReplicaGroup {
  std::int64_t ranks = 1, shards = 1, stride = 1;
};
ReplicaGroup replica_group(const ParallelLayout&, bool experts);
bool has_replicas(const ParallelLayout&);  // of all parameters or of routed experts'

// Gradients that one collective sums, in the buffer where backward accumulates them.
struct GradientBucket {
  std::int32_t unit = 0, backward_op = 0;                     // of the chunk: the last to add to it, where none is deferred
  std::vector<std::pair<std::int32_t, std::int32_t>> makers;  // units and backward ops: complete when all have run
  WorkId work;
  LabelId kind;
  WorkId over_instances;  // then the own shard's sum over optimizer instances; none: there is one
  LabelId over_instances_kind;
  WorkId copy;  // of its gradients into one tensor before, and out of it behind; none: there is no such tensor
  LabelId copy_in, copy_out;
  std::vector<Tensor> gradients;  // views of storages of the graph
};

// Parameters in the reverse of their order, a bucket closed as soon as it holds `bucket` bytes; routed experts' are in buckets of their own
// (Megatron-LM). Zero 0 and 1. Buckets of one model chunk; in the order in which they are closed. The tensor into which a preset flattens a
// bucket is not among the storages.
std::vector<GradientBucket> gradient_buckets(OpGraphBuilder&, const ChunkStamps&, std::span<const UnitResidents>, const ParallelLayout&,
                                             const FrameworkPreset&);

// One unit of a chunk (embedding, layer, head). Sizes of all ranks together unless a shard is named.
struct ShardedUnit {
  bool present = false;                     // it has weights
  bool trained = false;                     // it has gradients
  bool makes_gradients_in_forward = false;  // chunked loss
  std::int32_t layer = -1;
  std::int32_t wrap = -1;
  std::int32_t tied = -1;  // the unit whose table it uses too
  Bytes shard;             // of the trained weights that live all step; of them, what gathers read
  StorageId source;        // where it is
  Bytes frozen_shard;      // of those that are not trained
  Bytes weights, gradients, reduced_shard;
  Bytes gradient_shard;                                          // as it lives on
  Bytes expert_weights, expert_gradients, expert_reduced_shard;  // of which routed experts'
};

// What a framework wraps: units that are gathered at once and reduced at once. Sums over them.
struct UnitWrap {
  std::vector<std::int32_t> units;    // those with weights
  std::vector<std::int32_t> trained;  // those with gradients
  bool reshards = true;               // gathered weights are freed after forward
  bool root = false;                  // gathered for the whole pass, reduced at its end
  std::int32_t layer = -1;            // of its only unit
  Bytes weights, gradients, reduce_input, reduced_shard, gradient_shard;
  Bytes expert_weights, expert_gradients, expert_reduce_input, expert_reduced_shard;  // of which routed experts'
  WorkId cast_shard, gather, copy_out;                                                // of weights
  WorkId reduce_copy, reduce_scatter, replicas, add;                                  // of gradients
  WorkId concatenate, predivide, postdivide, cast_reduced;                            // likewise, FSDP1's; none: there is no such kernel
  WorkId expert_gather, expert_reduce_scatter, expert_replicas;  // over experts' own replicas; none where there is no such group
};

struct UnitSharding {
  bool weights = false;           // ZeRO 3: gathered for every run; else only gradients are sharded
  bool tables = false;            // the copies read tables of pointers that come from the host
  bool copies = true;             // weights are copied out of a gathered buffer, gradients into a reduced one
  bool casts = true;              // gradients are reduced from a buffer of their own
  bool frees_by_event = false;    // record_stream
  bool has_replicas = false;      // HSDP: shards are summed over the replicas too
  bool adds = false;              // several micro-batches reduce: each adds to the shard
  bool casts_reduced = false;     // the reduced shard is cast to what the parameters' shard is
  bool prefetches_after = false;  // prefetch_backward: behind a unit's kernels, before its reduction; else before them
  bool prefetch_forward = false, prefetch_backward = false;
  std::int32_t limit = 0;
  std::vector<ShardedUnit> units;
  std::vector<UnitWrap> wraps;
  WorkId marker, table_copy;
  LabelId table, freed, cast_shard, gather, copy_out, reduce_copy, reduce_scatter, replicas, add, reduced;  // kinds
  LabelId expert_gather, expert_reduce_scatter, expert_replicas;
  LabelId concatenate, predivide, postdivide, cast_reduced;
  LabelId gathered_name, weights_name, gradients_name, flat_name, reduce_input_name, reduced_name;
};

// Of one chunk. None below ZeRO 2 and for one rank.
std::optional<UnitSharding> unit_sharding(OpGraphBuilder&, const ChunkStamps&, std::span<const UnitResidents>, const ParallelLayout&,
                                          const FrameworkPreset&, const ParameterBytes&, std::int64_t micro_batches);

}  // namespace stepsim
