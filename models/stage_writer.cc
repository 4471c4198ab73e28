#include "models/stage_writer.h"

namespace stepsim {

void Operands::add(StorageId storage, Bytes bytes) {
  if (!storage.valid() || bytes.value == 0) return;
  tensors.push_back({storage, Bytes(0), bytes});
  size += bytes;
}

std::vector<StorageId> Operands::storages() const {
  std::vector<StorageId> ids;
  for (const Tensor& tensor : tensors) ids.push_back(tensor.storage);
  return ids;
}

StageWriter::StageWriter(OpGraphBuilder& builder, const StepFrame& frame, std::size_t stage, OpId last_compute, OpId last_other)
    : builder_(builder), labels_(frame.labels), frame_(frame.stages[stage]), last_(last_compute), last_stream_(frame_.compute()) {
  if (last_other.valid()) also_.push_back(last_other);
}

void StageWriter::kernel(LabelId kind, WorkId work, std::int32_t layer, const OpLinks& links) {
  add(work, kind, frame_.compute(), layer, links);
}

void StageWriter::kernel(const char* name, const MemoryBound& work, std::int32_t layer, const OpLinks& links) {
  add(builder_.work(work), builder_.label(name), frame_.compute(), layer, links);
}

void StageWriter::marker(const char* name, const OpLinks& links) {
  add(builder_.work(Marker{}), builder_.label(name), frame_.compute(), -1, links);
}

void StageWriter::collective(LabelId kind, WorkId work, PassStream stream, OpLinks links) {
  const QueueId queue = frame_.queue(stream);
  links.queues = std::span(&queue, 1);
  add(work, kind, frame_.stream(stream), -1, links);
}

std::vector<Edge> StageWriter::waits(StreamId stream) const {
  std::vector<Edge> edges;
  if (last_.valid() && stream != last_stream_) edges.push_back({last_});
  for (const OpId other : also_) edges.push_back({other});
  return edges;
}

void StageWriter::joined(OpId op, StreamId stream) {
  last_ = op;
  last_stream_ = stream;
  also_.clear();
}

void StageWriter::add(WorkId work, LabelId kind, StreamId stream, std::int32_t layer, OpLinks links) {
  const std::vector<Edge> edges = waits(stream);
  links.predecessors = edges;
  const OpId read = last_;
  if (host_reads_ && read.valid()) links.issue_after = std::span(&read, 1);
  host_reads_ = false;
  joined(builder_.add_op({.work = work, .stream = stream, .phase = phase(), .kind = kind, .layer = layer, .issuer = frame_.issuer}, links),
         stream);
}

}  // namespace stepsim
