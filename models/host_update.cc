#include "models/host_update.h"

#include <array>

namespace stepsim {

HostUpdate::HostUpdate(StageWriter& writer, const OptimizerContext& context, std::span<const UnitResidents> units)
    : writer_(writer), overlaps_(context.training.overlap_optimizer_copies) {
  for (const UnitResidents& unit : units) {
    if (unit.offloaded > 0) add_part(context, unit);
  }
  if (parts_.empty()) return;
  OpGraphBuilder& builder = writer.builder();
  const DeviceId device = writer.frame().device;
  const auto stream = [&](std::string_view kind) { return builder.add_stream({.device = device, .kind = builder.label(kind)}); };
  out_ = stream("optimizer copies out");
  host_ = stream("host optimizer");
  in_ = stream("optimizer copies in");
  const std::array<QueueId, 2>& engines = writer.frame().engines;
  const auto engine = [&](std::size_t which) {
    return engines[which].valid() ? engines[which] : builder.add_queue({.device = device, .kind = builder.label(kCopyEngines[which])});
  };
  engine_out_ = engine(0);
  engine_in_ = engine(1);
}

void HostUpdate::add_part(const OptimizerContext& context, const UnitResidents& unit) {
  OpGraphBuilder& builder = writer_.builder();
  const ParameterBytes& bytes = context.residents.bytes;
  const auto whole = [&](StorageId storage) { return Tensor{storage, Bytes(0), builder.storage(storage).size}; };
  Part part;
  part.sent = whole(unit.host_gradients);
  part.gradients = {bytes.gradient_copy > 0 ? unit.gradient_copy : unit.gradients, Bytes(0), part.sent.size};
  part.state = whole(unit.host_state);
  part.work = {.read = part.state.size + part.sent.size, .written = part.state.size, .kernel = MemoryKernel::kHostUpdate};
  const Bytes weights = updated_weights(context, unit, unit.offloaded);
  // Where the shards are the weights, those on the device are what gathers read.
  part.weights =
      weights.value > 0 ? Tensor{unit.weights, Bytes(0), weights} : Tensor{unit.master, Bytes(0), Bytes(unit.offloaded * bytes.master)};
  parts_.push_back(part);
}

OpId HostUpdate::add(const Part& part, const OpWork& work, const char* name, StreamId stream, QueueId queue, std::span<const Edge> edges,
                     const Tensor& read, const Tensor& written) {
  OpGraphBuilder& builder = writer_.builder();
  OpLinks links{.predecessors = edges, .reads = std::span(&read, 1), .writes = std::span(&written, 1)};
  if (queue.valid()) links.queues = std::span(&queue, 1);
  return builder.add_op({.work = builder.work(work),
                         .stream = stream,
                         .phase = writer_.phase(),
                         .kind = builder.label(name),
                         .layer = builder.storage(part.state.storage).layer,
                         .issuer = writer_.frame().issuer},
                        links);
}

void HostUpdate::copy_out() {
  const std::vector<Edge> edges = writer_.waits(out_);
  for (Part& part : parts_) {
    const Copy copy{.bytes = part.sent.size, .direction = CopyDirection::kDeviceToHost};
    part.copied = add(part, copy, "gradient copy out", out_, engine_out_, edges, part.gradients, part.sent);
  }
}

// hybrid_optimizer.py step(): with overlap an optimizer for each parameter, which waits for its own copy (_cpu_optimizer_map_data_event);
// without, one for all. Streams are in order, so that only the first op of each needs an edge from a last one.
void HostUpdate::update_and_copy_in() {
  const auto copy_in = [&](Part& part, OpId after) {
    const Edge edge{after};
    const Copy copy{.bytes = part.weights.size, .direction = CopyDirection::kHostToDevice};
    last_copy_in_ = add(part, copy, "updated weight copy in", in_, engine_in_, std::span(&edge, 1), part.state, part.weights);
  };
  for (Part& part : parts_) {
    const Edge edge{overlaps_ ? part.copied : parts_.back().copied};
    part.updated = add(part, part.work, "host update", host_, {}, std::span(&edge, 1), part.sent, part.state);
    if (overlaps_) copy_in(part, part.updated);
  }
  if (overlaps_) return;
  for (Part& part : parts_) copy_in(part, parts_.back().updated);
}

void HostUpdate::join(std::span<const StorageId> holds) {
  writer_.wait_for(last_copy_in_);
  writer_.marker("updated on the host", {.holds = holds});
}

}  // namespace stepsim
