// Writes the passes and transfers of all pipeline stages into a graph: each pass is a part of its chunk's script, its numbers shifted.
//
// A pair of passes (a forward and a backward pass of other micro-batches or chunks) is written in turns: the backward pass's ops up to and
// with its next exchange between experts (a run of ops on PassStream::kExpert), then the forward pass's likewise, and so on; when one is at
// its end the other goes on. Each op waits for what it waits for in its own script and for nothing of the other's; ops of one stream run in
// the order in which they are written. So while one pass's exchange runs on its stream the other's ops run on compute, and the first op of
// a turn that reads what an exchange brings waits for that one alone. By layers (Megatron-LM model_chunk_schedule_plan.py):
//   expert stream   combine backward | dispatch, dispatch backward | combine
//   compute stream  attention        | experts backward, experts   | attention backward
// With put-off weight gradients, backward ops that write nothing but gradients that live all step are written behind the exchange that ends
// their turn (it does not need them), or at the end of the pass: never behind an op that waits for them or reduces gradients.
// What both passes hold is in memory at one time; that follows from the order.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "models/chunk_placement.h"
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
  bool one_graph = false;     // all passes of a stage are launched as one CUDA graph, within which no host waits
  PipelineKind schedule = PipelineKind::k1F1B;
  bool puts_off_weight_gradients = false;  // in pairs
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

  // Of the chunk's first micro-batch; none where the script has no storage.
  StorageId first_storage(std::int32_t stage, std::int32_t chunk) const;
  // Of the same: the storage that stands for its own of that number where another chunk of the stage made it; none: its own does.
  StorageId handed_storage(std::int32_t stage, std::int32_t chunk, std::int32_t code) const;
  // Of a stage; none: no such op.
  OpId last_op(std::int32_t stage, PassStream stream) const {
    return stages_[static_cast<std::size_t>(stage)].last[static_cast<std::size_t>(stream)];
  }

 private:
  // A storage of a script that another chunk of the stage makes: no transfer brings it, the chunks share it.
  struct Handed {
    std::int32_t code = -1;
    StorageId storage;
  };
  struct Instance {  // of a chunk and micro-batch
    std::int32_t first_storage = -1;
    bool made = false;
    std::array<std::int32_t, 3> first_op{-1, -1, -1};  // by PassKind
    std::array<std::vector<std::int32_t>, 2> ids;      // by PassKind: of the ops of a pass that is written in turns; empty: consecutive
    OpId input, gradient;                              // transfers, or who made what is handed over
    std::array<Handed, 2> handed;                      // input, gradient
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
    std::int32_t graphs = 0;                 // numbers of its CUDA graphs so far
    std::array<OpId, kPassStreams> last;     // by stream
  };
  // A pass that is being written.
  struct PassWrite {
    std::int32_t stage = 0, index = 0;  // of the stage's passes
    Pass pass;
    const MicroBatchScript* script = nullptr;
    Instance* made = nullptr;
    std::int32_t begin = 0, end = 0, next = 0;  // script ops
    std::vector<OpId> exchanged;                // transfers that it waits for, whatever it reads
    bool started = false;
    bool compute_waits = false;  // its first compute op is still to come, and waits for them
    bool touched = false;        // touch() named ops of it
    std::size_t next_run = 0;
    OpId last_compute;
    std::vector<Tensor> reads, writes;  // rows of its ops as ids of the graph
    std::vector<StorageId> holds;
    std::vector<std::int32_t> put_off;  // script ops
    std::vector<std::int32_t> carried;  // what those waited for: the next compute op does
    std::int32_t first_graph = 0;       // number of the script's first CUDA graph in the stage

    bool at_end() const { return next == end; }
  };

  void write_pass(const PipelineItem&);
  void write_pair(const PipelineItem&);
  void write_turn(PassWrite&);
  void begin_pass(PassWrite&, std::int32_t stage, std::int32_t index, bool in_turns);
  void end_pass(const PassWrite&);
  void write_op(PassWrite&, std::int32_t op);
  void write_put_off(PassWrite&);
  void put_off(PassWrite&, std::int32_t op) const;
  bool needs_put_off(const PassWrite&, const ScriptOp&) const;
  void add_touches(const std::vector<PassTouch>&, OpLinks&);
  void add_waits(PassWrite&, StageState&, std::int32_t op, std::vector<Edge>& edges);
  static void wait_for_compute(const PassWrite&, std::vector<Edge>& edges);
  OpId limit_of(const PassWrite&, const StageState&, const ScriptOp&) const;
  void write_transfer(const PipelineItem&);
  void free_after(OpId transfer, std::int32_t stage, Phase phase, std::int32_t micro_batch, StorageId sent);
  void take_over(std::int32_t stage, const Pass&);
  std::int32_t launch_group(const PassWrite&, const ScriptOp&) const;
  Instance& instance(std::int32_t stage, const Pass&);
  const MicroBatchScript& script(std::int32_t stage, const Pass&) const;
  const MicroBatchScript* receiver_here(std::int32_t stage, const Pass&) const;
  OpId id_of(const MicroBatchScript&, const Instance&, std::int32_t script_op) const;
  static StorageId storage_of(const Instance&, std::int32_t code);
  static void shift(PassWrite&);

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  const std::vector<std::vector<ChunkScripts>>& scripts_;
  const std::vector<StagePasses>& passes_;
  std::int32_t micro_batches_;
  TransferRules rules_;
  ChunkPlacement placement_;
  WorkId marker_;
  LabelId send_forward_, send_backward_, freed_;
  std::vector<StageState> stages_;
  std::map<std::array<std::int32_t, 3>, std::vector<PassTouch>> touches_;  // by stage, pass, op
  std::array<PassWrite, 2> writing_;                                       // the second: of the other pass of a pair
  std::vector<Edge> edges_;                                                // of the op that is being written
  std::vector<OpId> held_up_;                                              // its launch waits for
  std::vector<Tensor> touched_writes_;                                     // of the op that is being written, with what touch() said
  std::vector<StorageId> touched_holds_;
};

}  // namespace stepsim
