#include "models/step_stamper.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
std::size_t at(PassKind kind) { return static_cast<std::size_t>(kind); }

std::int32_t pass_begin(const MicroBatchScript& script, PassKind kind) { return at(kind) == 0 ? 0 : script.pass_end[at(kind) - 1]; }

// Rows of script ops [begin, end) in one of its tables.
struct Rows {
  std::uint32_t begin = 0, end = 0;
};
Rows rows_of(const MicroBatchScript& script, std::int32_t begin, std::int32_t end, std::uint32_t ScriptOp::*row_end) {
  const auto before = [&](std::int32_t op) { return op == 0 ? 0 : script.ops[at(op) - 1].*row_end; };
  return {before(begin), before(end)};
}

}  // namespace

StepStamper::StepStamper(OpGraphBuilder& builder, const StepFrame& frame, const std::vector<std::vector<ChunkScripts>>& scripts,
                         const std::vector<StagePasses>& passes, std::int32_t micro_batches, const TransferRules& rules)
    : builder_(builder),
      frame_(frame),
      scripts_(scripts),
      passes_(passes),
      micro_batches_(micro_batches),
      rules_(rules),
      stages_(scripts.size()) {
  if (scripts.size() > 1) {
    marker_ = builder.work(Marker{});
    send_forward_ = builder.label("send forward", static_cast<std::int32_t>(Group::kPipeline));
    send_backward_ = builder.label("send backward", static_cast<std::int32_t>(Group::kPipeline));
    freed_ = builder.label("sent");
  }
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage].instances.resize(scripts[stage].size() * at(micro_batches));
    stages_[stage].pass_ends.resize(passes[stage].passes.size());
    stages_[stage].gathers.resize(scripts[stage].size());
  }
}

void StepStamper::units_wait(std::int32_t stage, std::int32_t chunk, std::vector<OpId> gathers) {
  stages_[at(stage)].gathers[at(chunk)] = std::move(gathers);
}

void StepStamper::touch(std::span<const PassTouch> touches) {
  for (const PassTouch& each : touches) touches_[{each.stage, each.pass, each.op}].push_back(each);
}

void StepStamper::add_touches(const std::vector<PassTouch>& touches, OpLinks& links) {
  touched_writes_.assign(links.writes.begin(), links.writes.end());
  touched_holds_.assign(links.holds.begin(), links.holds.end());
  for (const PassTouch& each : touches) {
    if (each.written.value > 0) {
      touched_writes_.push_back({each.storage, Bytes(0), each.written});
    } else {
      touched_holds_.push_back(each.storage);
    }
  }
  links.writes = touched_writes_;
  links.holds = touched_holds_;
}

StorageId StepStamper::first_storage(std::int32_t stage, std::int32_t chunk) const {
  return StorageId{stages_[at(stage)].instances[at(chunk) * at(micro_batches_)].first_storage};
}

const MicroBatchScript& StepStamper::script(std::int32_t stage, const Pass& pass) const {
  return scripts_[at(stage)][at(pass.chunk)].of(pass.micro_batch);
}

StepStamper::Instance& StepStamper::instance(std::int32_t stage, const Pass& pass) {
  Instance& found = stages_[at(stage)].instances[at(pass.chunk) * at(micro_batches_) + at(pass.micro_batch)];
  if (found.made) return found;
  found.made = true;
  for (const ScriptStorage& storage : script(stage, pass).storages) {
    const StorageId id = builder_.add_storage({.size = storage.size,
                                               .role = storage.role,
                                               .name = storage.name,
                                               .device = frame_.stages[at(stage)].device,
                                               .space = storage.on_host ? MemorySpace::kHost : MemorySpace::kDevice,
                                               .pool = storage.on_host ? frame_.stages[at(stage)].host_pool : -1,
                                               .layer = storage.layer,
                                               .micro_batch = pass.micro_batch,
                                               .deferred_free = storage.deferred_free});
    if (found.first_storage < 0) found.first_storage = id.index;
  }
  return found;
}

OpId StepStamper::id_of(const MicroBatchScript& script, const Instance& made, std::int32_t script_op) const {
  std::size_t kind = 0;
  while (script_op >= script.pass_end[kind]) ++kind;
  return OpId{made.first_op[kind] + script_op - pass_begin(script, static_cast<PassKind>(kind))};
}

void StepStamper::shift(const MicroBatchScript& script, std::int32_t first_storage, std::int32_t begin, std::int32_t end) {
  const auto id = [first_storage](StorageId code) { return StorageId{code.index >= 0 ? code.index + first_storage : ~code.index}; };
  const auto tensors = [&](const std::vector<Tensor>& from, Rows rows, std::vector<Tensor>& to) {
    to.assign(from.begin() + rows.begin, from.begin() + rows.end);
    for (Tensor& tensor : to) tensor.storage = id(tensor.storage);
  };
  tensors(script.reads, rows_of(script, begin, end, &ScriptOp::read_end), reads_);
  tensors(script.writes, rows_of(script, begin, end, &ScriptOp::write_end), writes_);
  const Rows holds = rows_of(script, begin, end, &ScriptOp::hold_end);
  holds_.assign(script.holds.begin() + holds.begin, script.holds.begin() + holds.end);
  for (StorageId& hold : holds_) hold = id(hold);
}

// Other streams' ops, transfers, exchanges and gathers of weights.
void StepStamper::add_waits(PassWrite& writing, StageState& stage, std::int32_t index, std::vector<Edge>& edges) {
  const MicroBatchScript& script = writing.script;
  const ScriptOp& op = script.ops[at(index)];
  edges.clear();
  const Rows waits = rows_of(script, index, index + 1, &ScriptOp::wait_end);
  for (std::uint32_t wait = waits.begin; wait < waits.end; ++wait) edges.push_back({id_of(script, writing.made, script.waits[wait])});
  if (op.after_compute) {
    const OpId last = stage.last[static_cast<std::size_t>(PassStream::kCompute)];
    if (last.valid()) edges.push_back({last});
  }
  if (op.awaits_input) edges.push_back({writing.made.input});
  if (op.awaits_gradient) edges.push_back({writing.made.gradient});
  const bool compute = op.stream == PassStream::kCompute;
  if (index == writing.begin || (compute && writing.compute_waits)) {
    for (const OpId transfer : writing.exchanged) edges.push_back({transfer});
  }
  writing.compute_waits = writing.compute_waits && !compute;
  const std::vector<OpId>& gathers = stage.gathers[at(writing.pass.chunk)];
  if (gathers.empty() || writing.pass.kind != PassKind::kForward || writing.pass.micro_batch != 0) return;
  for (std::size_t& run = writing.next_run; run < script.forward_begins.size() && script.forward_begins[run] <= index; ++run) {
    const OpId gather = gathers[at(script.forward_units[run])];
    if (gather.valid()) edges.push_back({gather});
  }
}

// The op that the launch waits for; none: it does not wait.
OpId StepStamper::limit_of(const PassWrite& writing, const StageState& stage, const ScriptOp& op) const {
  if (op.after_unit_run == kNoLimit) return {};
  if (op.after_unit_run >= 0) {
    const std::int32_t end = writing.script.unit_ends[at(writing.pass.kind)][at(op.after_unit_run)];
    return end < 0 ? OpId{} : id_of(writing.script, writing.made, end);
  }
  const std::int64_t before = static_cast<std::int64_t>(stage.unit_ends.size()) + op.after_unit_run;
  return before < 0 ? OpId{} : stage.unit_ends[static_cast<std::size_t>(before)];
}

void StepStamper::write_pass(const PipelineItem& item) {
  StageState& stage = stages_[at(item.stage)];
  const StageFrame& frame = frame_.stages[at(item.stage)];
  const Pass& pass = passes_[at(item.stage)].passes[at(item.pass)];
  Instance& made = instance(item.stage, pass);
  const MicroBatchScript& source = script(item.stage, pass);
  PassWrite writing{.script = source, .made = made, .pass = pass, .begin = pass_begin(source, pass.kind), .exchanged = {}};
  writing.end = source.pass_end[at(pass.kind)];
  made.first_op[at(pass.kind)] = static_cast<std::int32_t>(builder_.op_count());
  shift(source, made.first_storage, writing.begin, writing.end);
  std::uint32_t read = rows_of(source, writing.begin, writing.end, &ScriptOp::read_end).begin,
                write = rows_of(source, writing.begin, writing.end, &ScriptOp::write_end).begin,
                hold = rows_of(source, writing.begin, writing.end, &ScriptOp::hold_end).begin;
  const std::uint32_t first_read = read, first_write = write, first_hold = hold;
  if (writing.begin == writing.end) {  // nothing here waits: the next pass does
    for (PendingWait& pending : stage.waits) pending.pass += pending.pass == item.pass;
  }
  std::erase_if(stage.waits, [&](const PendingWait& pending) {
    if (pending.pass == item.pass) writing.exchanged.push_back(pending.transfer);
    return pending.pass == item.pass;
  });
  writing.compute_waits = !writing.exchanged.empty();
  std::vector<Edge> edges;
  std::vector<OpId> held_up;  // the launch
  auto touch = touches_.lower_bound({item.stage, item.pass, writing.begin});
  for (std::int32_t i = writing.begin; i < writing.end; ++i) {
    const ScriptOp& op = source.ops[at(i)];
    add_waits(writing, stage, i, edges);
    OpLinks links{.predecessors = edges,
                  .reads = std::span(reads_).subspan(read - first_read, op.read_end - read),
                  .writes = std::span(writes_).subspan(write - first_write, op.write_end - write),
                  .holds = std::span(holds_).subspan(hold - first_hold, op.hold_end - hold)};
    read = op.read_end;
    write = op.write_end;
    hold = op.hold_end;
    const QueueId queue = frame.communicator(op.stream, op.group);
    if (op.queued) links.queues = std::span(&queue, 1);
    if (op.engine != CopyEngine::kNone) links.queues = std::span(&frame.engines[static_cast<std::size_t>(op.engine)], 1);
    if (touch != touches_.end() && touch->first == std::array{item.stage, item.pass, i}) add_touches((touch++)->second, links);
    const OpId limit = limit_of(writing, stage, op);
    held_up.clear();
    if (i == writing.begin && rules_.host_waits) held_up = writing.exchanged;
    if (limit.valid()) held_up.push_back(limit);
    if (op.launched_after >= 0) held_up.push_back(id_of(source, made, op.launched_after));
    links.issue_after = held_up;
    stage.last[static_cast<std::size_t>(op.stream)] = builder_.add_op({.work = op.work,
                                                                       .stream = frame.stream(op.stream),
                                                                       .phase = frame_.labels.phase(op.phase),
                                                                       .kind = op.kind,
                                                                       .layer = op.layer,
                                                                       .micro_batch = pass.micro_batch,
                                                                       .origin = op.origin >= 0 ? id_of(source, made, op.origin) : OpId{},
                                                                       .issuer = frame.issuer},
                                                                      links);
  }
  stage.pass_ends[at(item.pass)] = stage.last[static_cast<std::size_t>(PassStream::kCompute)];
  if (!frame.stream(PassStream::kGather).valid()) return;  // only its limiter looks back
  for (const std::int32_t unit_end : source.unit_ends[at(pass.kind)]) {
    if (unit_end >= 0) stage.unit_ends.push_back(id_of(source, made, unit_end));
  }
}

void StepStamper::write_transfer(const PipelineItem& item) {
  const Pass& to = passes_[at(item.stage)].passes[at(item.pass)];
  const Pass& from = passes_[at(item.from_stage)].passes[at(item.from_pass)];
  const bool forward = to.kind == PassKind::kForward;
  const Phase phase = forward ? Phase::kForward : Phase::kBackward;
  const MicroBatchScript &receiver = script(item.stage, to), &sender = script(item.from_stage, from);
  Instance& receiving = instance(item.stage, to);
  const Instance& sending = instance(item.from_stage, from);
  const std::int32_t received = forward ? receiver.input : receiver.gradient;
  const std::int32_t sent = forward ? sender.output : sender.input_gradient;
  STEPSIM_CHECK(received >= 0);
  STEPSIM_CHECK(sent >= 0);
  std::vector<Tensor> written;
  Bytes size{};
  for (std::int32_t slice = 0; slice < (forward ? receiver.input_slices : 1); ++slice) {
    written.push_back({StorageId{receiving.first_storage + received + slice}, Bytes(0), receiver.storages[at(received + slice)].size});
    size += written.back().size;
  }
  const StageFrame &here = frame_.stages[at(item.stage)], &there = frame_.stages[at(item.from_stage)];
  const std::int32_t maker = forward ? sender.output_op : sender.input_gradient_op;
  std::vector<Edge> edges{{maker >= 0 ? id_of(sender, sending, maker) : forward ? sending.input : sending.gradient}};
  const std::vector<OpId>& ends = stages_[at(item.stage)].pass_ends;
  if (item.posted_after >= 0 && ends[at(item.posted_after)].valid()) edges.push_back({ends[at(item.posted_after)]});
  const OpPart sending_part{there.stream(forward ? TransferStream::kSendForward : TransferStream::kSendBackward), {}};
  const OpId transfer = builder_.add_op(
      {.work = builder_.work(Collective{.kind = CollectiveKind::kSendReceive, .message = size, .ranks = 2, .stride = rules_.stride}),
       .stream = here.stream(forward ? TransferStream::kReceiveForward : TransferStream::kReceiveBackward),
       .phase = frame_.labels.phase(phase),
       .kind = forward ? send_forward_ : send_backward_,
       .micro_batch = to.micro_batch,
       .issuer = here.issuer},
      {.predecessors = edges, .writes = written}, std::span(&sending_part, 1));
  (forward ? receiving.input : receiving.gradient) = transfer;
  if (item.sender_waits >= 0) stages_[at(item.from_stage)].waits.push_back({item.sender_waits, transfer});
  if (item.receiver_waits >= 0) stages_[at(item.stage)].waits.push_back({item.receiver_waits, transfer});
  if (!forward || rules_.frees_outputs || sender.ops.empty()) {
    free_after(transfer, item.from_stage, phase, from.micro_batch, StorageId{sending.first_storage + sent});
  }
}

// What was sent lives until the transfer is over; the sending host lets go of it when it has posted the send.
void StepStamper::free_after(OpId transfer, std::int32_t stage, Phase phase, std::int32_t micro_batch, StorageId sent) {
  const Edge after{transfer};
  builder_.add_op({.work = marker_,
                   .stream = {},
                   .phase = frame_.labels.phase(phase),
                   .kind = freed_,
                   .micro_batch = micro_batch,
                   .issuer = frame_.stages[at(stage)].issuer},
                  {.predecessors = std::span(&after, 1), .holds = std::span(&sent, 1)});
}

void StepStamper::write(std::span<const PipelineItem> items) {
  for (const PipelineItem& item : items) item.is_transfer ? write_transfer(item) : write_pass(item);
}

}  // namespace stepsim
