// Appends ops to one stage of a step behind its passes: of the optimizer. Each waits for the one before it. Knows no optimizer.
#pragma once

#include <span>
#include <vector>

#include "models/step_frame.h"
#include "sim/op_graph.h"

namespace stepsim {

// Everything of one kind, as views of whole storages.
struct Operands {
  std::vector<Tensor> tensors;
  Bytes size{};
  // Nothing of a storage that is not there or of no bytes.
  void add(StorageId storage, Bytes bytes);
  std::vector<StorageId> storages() const;
};

class StageWriter {
 public:
  // Behind the last op of the compute stream and, where there is one, of another. All must outlive it.
  StageWriter(OpGraphBuilder&, const StepFrame&, std::size_t stage, OpId last_compute, OpId last_other);

  const StageFrame& frame() const { return frame_; }
  OpGraphBuilder& builder() { return builder_; }
  LabelId phase() const { return labels_.phase(Phase::kOptimizer); }

  // On the compute stream.
  void kernel(LabelId kind, WorkId work, std::int32_t layer, const OpLinks&);
  void kernel(const char* name, const MemoryBound& work, std::int32_t layer, const OpLinks&);
  void marker(const char* name, const OpLinks&);
  // On the stream's communicator.
  void collective(LabelId kind, WorkId work, PassStream stream, OpLinks);

  // An op of several stages that this one takes part in: what it waits for here.
  std::vector<Edge> waits(StreamId stream) const;
  void joined(OpId op, StreamId stream);

  // The next op waits for that one too.
  void wait_for(OpId op) { also_.push_back(op); }
  // The host launches the next op when the last one is over.
  void host_reads() { host_reads_ = true; }
  OpId last() const { return last_; }

 private:
  void add(WorkId work, LabelId kind, StreamId stream, std::int32_t layer, OpLinks links);

  OpGraphBuilder& builder_;
  const StepLabels& labels_;
  const StageFrame& frame_;
  OpId last_;
  StreamId last_stream_;  // the micro-batches end on the compute stream
  std::vector<OpId> also_;
  bool host_reads_ = false;
};

}  // namespace stepsim
