// Writes the passes and transfers of all pipeline stages into a graph: each pass is a part of its chunk's script, its numbers shifted.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "models/micro_batch_script.h"
#include "models/pipeline_program.h"

namespace stepsim {

// The scripts of a model chunk: micro-batches may differ in placement, the last one in what it reduces.
struct ChunkScripts {
  std::vector<MicroBatchScript> scripts;
  std::vector<std::int32_t> script_of;  // by micro-batch
  const MicroBatchScript& of(std::int32_t micro_batch) const {
    return scripts[static_cast<std::size_t>(script_of[static_cast<std::size_t>(micro_batch)])];
  }
};

// How a stage hands over to another.
struct TransferRules {
  bool frees_outputs = true;  // an output is freed when it is sent
  bool host_waits = false;    // the host launches a pass that waits for an exchange when that is over
  std::int32_t stride = 1;    // ranks between neighbouring stages
};

// An op of a pass of a stage that has a storage of the graph beside its own operands.
struct PassTouch {
  std::int32_t stage = 0, pass = 0, op = 0;  // op: of the pass's script
  StorageId storage;
  Bytes written;  // by it, all of the storage; 0: the op only holds it
};

class StepStamper {
 public:
  // All must outlive it. `scripts` and `passes` by stage.
  StepStamper(OpGraphBuilder&, const StepFrame&, const std::vector<std::vector<ChunkScripts>>& scripts,
              const std::vector<StagePasses>& passes, std::int32_t micro_batches, const TransferRules&);

  // What the first forward runs of a chunk's units wait for: gathers of their weights that the graph holds already; none: nothing.
  void units_wait(std::int32_t stage, std::int32_t chunk, std::vector<OpId> gathers);

  void touch(std::span<const PassTouch>);

  void write(std::span<const PipelineItem>);

  // Of micro-batch 0; none where the script has no storage.
  StorageId first_storage(std::int32_t stage, std::int32_t chunk) const;
  // Of a stage; none: no such op.
  OpId last_op(std::int32_t stage, PassStream stream) const {
    return stages_[static_cast<std::size_t>(stage)].last[static_cast<std::size_t>(stream)];
  }

 private:
  struct Instance {  // of a chunk and micro-batch
    std::int32_t first_storage = -1;
    bool made = false;
    std::array<std::int32_t, 3> first_op{-1, -1, -1};  // by PassKind
    OpId input, gradient;                              // transfers
  };
  struct PendingWait {
    std::int32_t pass = 0;
    OpId transfer;
  };
  struct StageState {
    std::vector<Instance> instances;  // by chunk, micro-batch
    std::vector<OpId> pass_ends;      // by pass: its last compute op
    std::vector<PendingWait> waits;
    std::vector<OpId> unit_ends;             // of all passes so far
    std::vector<std::vector<OpId>> gathers;  // by chunk, unit: what its first forward run waits for
    std::array<OpId, kPassStreams> last;     // by stream
  };
  // A pass that is being written.
  struct PassWrite {
    const MicroBatchScript& script;
    const Instance& made;
    const Pass& pass;
    std::int32_t begin = 0, end = 0;
    std::vector<OpId> exchanged;  // transfers that it waits for, whatever it reads
    bool compute_waits = false;   // its first compute op is still to come, and waits for them
    std::size_t next_run = 0;
  };

  void write_pass(const PipelineItem&);
  void add_touches(const std::vector<PassTouch>&, OpLinks&);
  void add_waits(PassWrite&, StageState&, std::int32_t op, std::vector<Edge>& edges);
  OpId limit_of(const PassWrite&, const StageState&, const ScriptOp&) const;
  void write_transfer(const PipelineItem&);
  void free_after(OpId transfer, std::int32_t stage, Phase phase, std::int32_t micro_batch, StorageId sent);
  Instance& instance(std::int32_t stage, const Pass&);
  const MicroBatchScript& script(std::int32_t stage, const Pass&) const;
  OpId id_of(const MicroBatchScript&, const Instance&, std::int32_t script_op) const;
  void shift(const MicroBatchScript&, std::int32_t first_storage, std::int32_t begin, std::int32_t end);

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  const std::vector<std::vector<ChunkScripts>>& scripts_;
  const std::vector<StagePasses>& passes_;
  std::int32_t micro_batches_;
  TransferRules rules_;
  WorkId marker_;
  LabelId send_forward_, send_backward_, freed_;
  std::vector<StageState> stages_;
  std::map<std::array<std::int32_t, 3>, std::vector<PassTouch>> touches_;  // by stage, pass, op
  // Rows of the pass that is being written, as ids of the graph.
  std::vector<Tensor> reads_, writes_;
  std::vector<StorageId> holds_;
  std::vector<Tensor> touched_writes_;  // of the op that is being written, with what touch() said
  std::vector<StorageId> touched_holds_;
};

}  // namespace stepsim
