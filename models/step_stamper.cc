#include "models/step_stamper.h"

#include <span>

namespace stepsim {

namespace {

// Codes of one micro-batch as ids of the graph. The buffers are reused from one micro-batch to the next.
class ShiftedLinks {
 public:
  explicit ShiftedLinks(const MicroBatchScript& script)
      : script_(script), reads_(script.reads), writes_(script.writes), holds_(script.holds) {}

  void shift(std::int32_t first_storage) {
    const auto id = [first_storage](StorageId code) { return StorageId{code.index >= 0 ? code.index + first_storage : ~code.index}; };
    for (std::size_t i = 0; i < reads_.size(); ++i) reads_[i].storage = id(script_.reads[i].storage);
    for (std::size_t i = 0; i < writes_.size(); ++i) writes_[i].storage = id(script_.writes[i].storage);
    for (std::size_t i = 0; i < holds_.size(); ++i) holds_[i] = id(script_.holds[i]);
  }

  OpLinks of(const ScriptOp& op, const ScriptOp* before) const {
    const std::uint32_t read = before ? before->read_end : 0, write = before ? before->write_end : 0, hold = before ? before->hold_end : 0;
    return {.reads = std::span(reads_).subspan(read, op.read_end - read),
            .writes = std::span(writes_).subspan(write, op.write_end - write),
            .holds = std::span(holds_).subspan(hold, op.hold_end - hold)};
  }

 private:
  const MicroBatchScript& script_;
  std::vector<Tensor> reads_, writes_;
  std::vector<StorageId> holds_;
};

void add_storages(OpGraphBuilder& builder, const StepFrame& frame, const MicroBatchScript& script, std::int32_t micro_batch,
                  std::optional<StorageId>& first) {
  for (const ScriptStorage& storage : script.storages) {
    const StorageId id = builder.add_storage({.size = storage.size,
                                              .role = storage.role,
                                              .name = storage.name,
                                              .device = frame.device,
                                              .layer = storage.layer,
                                              .micro_batch = micro_batch});
    if (!first) first = id;
  }
}

}  // namespace

StampedStep stamp_micro_batches(OpGraphBuilder& builder, const StepFrame& frame, const MicroBatchScript& script,
                                std::int32_t micro_batches) {
  StampedStep stamped{};
  ShiftedLinks links(script);
  for (std::int32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    std::optional<StorageId> first_storage;
    add_storages(builder, frame, script, micro_batch, first_storage);
    if (first_storage) links.shift(first_storage->index);
    const auto first_op = static_cast<std::int32_t>(builder.op_count());
    for (std::size_t i = 0; i < script.ops.size(); ++i) {
      const ScriptOp& op = script.ops[i];
      OpLinks each = links.of(op, i == 0 ? nullptr : &script.ops[i - 1]);
      const Edge wait{OpId{first_op + op.waits_for}};
      if (op.waits_for >= 0) each.predecessors = std::span(&wait, 1);
      if (op.queued) each.queues = std::span(&frame.tensor_queue, 1);
      builder.add_op({.work = op.work,
                      .stream = op.on_tensor_stream ? frame.tensor : frame.compute,
                      .phase = frame.phase(op.phase),
                      .kind = op.kind,
                      .layer = op.layer,
                      .micro_batch = micro_batch,
                      .origin = op.origin >= 0 ? OpId{first_op + op.origin} : OpId{},
                      .issuer = frame.issuer},
                     each);
    }
    if (micro_batch == 0) stamped = {.first_op = OpId{first_op}, .first_storage = first_storage.value_or(StorageId{})};
  }
  return stamped;
}

}  // namespace stepsim
