#include "models/step_stamper.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

std::int32_t pass_begin(const MicroBatchScript& script, PassKind kind) { return at(kind) == 0 ? 0 : script.pass_end[at(kind) - 1]; }

// Rows of script ops [begin, end) in one of its tables.
struct Rows {
  std::uint32_t begin = 0, end = 0;
};
Rows rows_of(const MicroBatchScript& script, std::int32_t begin, std::int32_t end, std::uint32_t ScriptOp::*row_end) {
  const auto before = [&](std::int32_t op) { return op == 0 ? 0 : script.ops[at(op) - 1].*row_end; };
  return {before(begin), before(end)};
}

// A weight gradient: nothing of the micro-batch reads what it makes.
bool makes_only_resident_gradients(const MicroBatchScript& script, std::int32_t index) {
  const ScriptOp& op = script.ops[at(index)];
  const Rows rows = rows_of(script, index, index + 1, &ScriptOp::write_end);
  if (op.phase != Phase::kBackward || op.stream != PassStream::kCompute || op.awaits_input || op.awaits_gradient) return false;
  const auto first = script.writes.begin();
  return rows.begin < rows.end && std::all_of(first + rows.begin, first + rows.end, [](const Tensor& t) { return t.storage.index < 0; });
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
      placement_{rules.schedule, static_cast<std::int32_t>(scripts.size()), static_cast<std::int32_t>(scripts.front().size())},
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
  const std::int32_t first = placement_.micro_batches(chunk, micro_batches_).begin;
  return StorageId{stages_[at(stage)].instances[at(chunk) * at(micro_batches_) + at(first)].first_storage};
}

StorageId StepStamper::handed_storage(std::int32_t stage, std::int32_t chunk, std::int32_t code) const {
  const std::int32_t first = placement_.micro_batches(chunk, micro_batches_).begin;
  for (const Handed& handed : stages_[at(stage)].instances[at(chunk) * at(micro_batches_) + at(first)].handed) {
    if (handed.code == code && handed.storage.valid()) return handed.storage;
  }
  return {};
}

const MicroBatchScript& StepStamper::script(std::int32_t stage, const Pass& pass) const {
  return scripts_[at(stage)][at(pass.chunk)].of(pass.micro_batch);
}

// The script of the chunk of the same stage that reads the chunk's output; null: there is none.
const MicroBatchScript* StepStamper::receiver_here(std::int32_t stage, const Pass& pass) const {
  const std::optional<ChunkPlace> next = placement_.after({stage, pass.chunk});
  if (!next || next->stage != stage) return nullptr;
  return &script(stage, {.kind = PassKind::kForward, .chunk = next->chunk, .micro_batch = pass.micro_batch});
}

StepStamper::Instance& StepStamper::instance(std::int32_t stage, const Pass& pass) {
  Instance& found = stages_[at(stage)].instances[at(pass.chunk) * at(micro_batches_) + at(pass.micro_batch)];
  if (found.made) return found;
  found.made = true;
  const MicroBatchScript& source = script(stage, pass);
  const MicroBatchScript* receiver = source.ops.empty() ? nullptr : receiver_here(stage, pass);
  for (std::size_t code = 0; code < source.storages.size(); ++code) {
    // An output that is handed over is what its reader calls it: a saved input.
    const bool handed = receiver != nullptr && static_cast<std::int32_t>(code) == source.output;
    const ScriptStorage& storage = handed ? receiver->storages[at(receiver->input)] : source.storages[code];
    STEPSIM_CHECK(!handed || storage.size == source.storages[code].size);
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

// What the pass reads of another chunk of its stage, which that chunk's pass has made.
void StepStamper::take_over(std::int32_t stage, const Pass& pass) {
  if (pass.kind == PassKind::kWeight) return;
  const bool forward = pass.kind == PassKind::kForward;
  const ChunkPlace here{stage, pass.chunk};
  const std::optional<ChunkPlace> from = forward ? placement_.before(here) : placement_.after(here);
  if (!from || from->stage != stage) return;
  const Pass made{.kind = pass.kind, .chunk = from->chunk, .micro_batch = pass.micro_batch};
  const MicroBatchScript &giver = script(stage, made), &taker = script(stage, pass);
  const Instance& giving = instance(stage, made);
  Instance& taking = instance(stage, pass);
  STEPSIM_CHECK(!forward || taker.input_slices == 1);
  const std::int32_t given = forward ? giver.output : giver.input_gradient;
  const std::int32_t maker = forward ? giver.output_op : giver.input_gradient_op;
  STEPSIM_CHECK(given >= 0);
  taking.handed[forward ? 0 : 1] = {.code = forward ? taker.input : taker.gradient, .storage = storage_of(giving, given)};
  (forward ? taking.input : taking.gradient) = maker >= 0 ? id_of(giver, giving, maker) : forward ? giving.input : giving.gradient;
}

OpId StepStamper::id_of(const MicroBatchScript& script, const Instance& made, std::int32_t script_op) const {
  std::size_t kind = 0;
  while (script_op >= script.pass_end[kind]) ++kind;
  const std::int32_t place = script_op - pass_begin(script, static_cast<PassKind>(kind));
  if (kind < made.ids.size() && !made.ids[kind].empty()) {
    STEPSIM_CHECK(made.ids[kind][at(place)] >= 0);
    return OpId{made.ids[kind][at(place)]};
  }
  return OpId{made.first_op[kind] + place};
}

StorageId StepStamper::storage_of(const Instance& made, std::int32_t code) {
  if (code < 0) return StorageId{~code};
  for (const Handed& handed : made.handed) {
    if (handed.code == code) return handed.storage;
  }
  return StorageId{made.first_storage + code};
}

void StepStamper::shift(PassWrite& writing) {
  const MicroBatchScript& script = *writing.script;
  const auto tensors = [&](const std::vector<Tensor>& from, Rows rows, std::vector<Tensor>& to) {
    to.assign(from.begin() + rows.begin, from.begin() + rows.end);
    for (Tensor& tensor : to) tensor.storage = storage_of(*writing.made, tensor.storage.index);
  };
  tensors(script.reads, rows_of(script, writing.begin, writing.end, &ScriptOp::read_end), writing.reads);
  tensors(script.writes, rows_of(script, writing.begin, writing.end, &ScriptOp::write_end), writing.writes);
  const Rows holds = rows_of(script, writing.begin, writing.end, &ScriptOp::hold_end);
  writing.holds.assign(script.holds.begin() + holds.begin, script.holds.begin() + holds.end);
  for (StorageId& hold : writing.holds) hold = storage_of(*writing.made, hold.index);
}

// An exchange waits for the event that its host records on compute's stream before it launches it: whatever the pass has put there so far.
void StepStamper::wait_for_compute(const PassWrite& writing, std::vector<Edge>& edges) {
  const bool there = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.from == writing.last_compute; });
  if (writing.last_compute.valid() && !there) edges.push_back({writing.last_compute});
}

// Other streams' ops, transfers, exchanges and gathers of weights.
void StepStamper::add_waits(PassWrite& writing, StageState& stage, std::int32_t index, std::vector<Edge>& edges) {
  const MicroBatchScript& script = *writing.script;
  const ScriptOp& op = script.ops[at(index)];
  edges.clear();
  const Rows waits = rows_of(script, index, index + 1, &ScriptOp::wait_end);
  for (std::uint32_t wait = waits.begin; wait < waits.end; ++wait) edges.push_back({id_of(script, *writing.made, script.waits[wait])});
  if (op.after_compute) {
    const OpId last = stage.last[static_cast<std::size_t>(PassStream::kCompute)];
    if (last.valid()) edges.push_back({last});
  }
  if (op.stream == PassStream::kExpert) wait_for_compute(writing, edges);
  if (op.awaits_input) edges.push_back({writing.made->input});
  if (op.awaits_gradient) edges.push_back({writing.made->gradient});
  const bool compute = op.stream == PassStream::kCompute;
  if (!writing.started || (compute && writing.compute_waits)) {
    for (const OpId transfer : writing.exchanged) edges.push_back({transfer});
  }
  writing.compute_waits = writing.compute_waits && !compute;
  if (compute) {
    for (const std::int32_t earlier : writing.carried) edges.push_back({id_of(script, *writing.made, earlier)});
    writing.carried.clear();
  }
  const std::vector<OpId>& gathers = stage.gathers[at(writing.pass.chunk)];
  if (gathers.empty() || writing.pass.kind != PassKind::kForward) return;
  if (writing.pass.micro_batch != placement_.micro_batches(writing.pass.chunk, micro_batches_).begin) return;
  for (std::size_t& run = writing.next_run; run < script.forward_begins.size() && script.forward_begins[run] <= index; ++run) {
    const OpId gather = gathers[at(script.forward_units[run])];
    if (gather.valid()) edges.push_back({gather});
  }
}

// The op that the launch waits for; none: it does not wait.
OpId StepStamper::limit_of(const PassWrite& writing, const StageState& stage, const ScriptOp& op) const {
  if (op.after_unit_run == kNoLimit) return {};
  if (op.after_unit_run >= 0) {
    const std::int32_t end = writing.script->unit_ends[at(writing.pass.kind)][at(op.after_unit_run)];
    return end < 0 ? OpId{} : id_of(*writing.script, *writing.made, end);
  }
  const std::int64_t before = static_cast<std::int64_t>(stage.unit_ends.size()) + op.after_unit_run;
  return before < 0 ? OpId{} : stage.unit_ends[static_cast<std::size_t>(before)];
}

void StepStamper::begin_pass(PassWrite& writing, std::int32_t stage_index, std::int32_t index, bool in_turns) {
  StageState& stage = stages_[at(stage_index)];
  writing.stage = stage_index;
  writing.index = index;
  writing.pass = passes_[at(stage_index)].passes[at(index)];
  writing.made = &instance(stage_index, writing.pass);
  writing.script = &script(stage_index, writing.pass);
  writing.begin = writing.next = pass_begin(*writing.script, writing.pass.kind);
  writing.end = writing.script->pass_end[at(writing.pass.kind)];
  take_over(stage_index, writing.pass);
  if (in_turns) {
    writing.made->ids[at(writing.pass.kind)].assign(at(writing.end - writing.begin), -1);
  } else {
    writing.made->first_op[at(writing.pass.kind)] = static_cast<std::int32_t>(builder_.op_count());
  }
  shift(writing);
  writing.exchanged.clear();
  if (writing.begin == writing.end) {  // nothing here waits: the next pass does
    for (PendingWait& pending : stage.waits) pending.pass += pending.pass == index;
  }
  std::erase_if(stage.waits, [&](const PendingWait& pending) {
    if (pending.pass == index) writing.exchanged.push_back(pending.transfer);
    return pending.pass == index;
  });
  writing.started = false;
  writing.compute_waits = !writing.exchanged.empty();
  const auto touch = touches_.lower_bound({stage_index, index, writing.begin});
  writing.touched = touch != touches_.end() && touch->first[0] == stage_index && touch->first[1] == index;
  writing.next_run = 0;
  writing.last_compute = {};
  writing.put_off.clear();
  writing.carried.clear();
  writing.first_graph = stage.graphs;
  stage.graphs += writing.script->graphs;
}

void StepStamper::write_op(PassWrite& writing, std::int32_t index) {
  StageState& stage = stages_[at(writing.stage)];
  const StageFrame& frame = frame_.stages[at(writing.stage)];
  const MicroBatchScript& source = *writing.script;
  const ScriptOp& op = source.ops[at(index)];
  add_waits(writing, stage, index, edges_);
  const auto rows = [&](const auto& all, std::uint32_t ScriptOp::*row_end) {
    const Rows own = rows_of(source, index, index + 1, row_end);
    return std::span(all).subspan(own.begin - rows_of(source, writing.begin, writing.begin, row_end).begin, own.end - own.begin);
  };
  OpLinks links{.predecessors = edges_,
                .reads = rows(writing.reads, &ScriptOp::read_end),
                .writes = rows(writing.writes, &ScriptOp::write_end),
                .holds = rows(writing.holds, &ScriptOp::hold_end)};
  const QueueId queue = frame.communicator(op.stream, op.group);
  if (op.queued) links.queues = std::span(&queue, 1);
  if (op.engine != CopyEngine::kNone) links.queues = std::span(&frame.engines[static_cast<std::size_t>(op.engine)], 1);
  if (writing.touched) {
    const auto touch = touches_.find({writing.stage, writing.index, index});
    if (touch != touches_.end()) add_touches(touch->second, links);
  }
  const OpId limit = limit_of(writing, stage, op);
  held_up_.clear();
  if (!writing.started && rules_.host_waits) held_up_ = writing.exchanged;
  if (limit.valid()) held_up_.push_back(limit);
  if (op.launched_after >= 0) held_up_.push_back(id_of(source, *writing.made, op.launched_after));
  if (rules_.one_graph) held_up_.clear();
  links.issue_after = held_up_;
  writing.started = true;
  const OpId id = builder_.add_op({.work = op.work,
                                   .stream = frame.stream(op.stream),
                                   .phase = frame_.labels.phase(op.phase),
                                   .kind = op.kind,
                                   .layer = op.layer,
                                   .micro_batch = writing.pass.micro_batch,
                                   .origin = op.origin >= 0 ? id_of(source, *writing.made, op.origin) : OpId{},
                                   .issuer = frame.issuer,
                                   .launch_group = launch_group(writing, op)},
                                  links);
  stage.last[static_cast<std::size_t>(op.stream)] = id;
  if (op.stream == PassStream::kCompute) writing.last_compute = id;
  const std::size_t kind = at(writing.pass.kind);
  if (kind < writing.made->ids.size() && !writing.made->ids[kind].empty()) writing.made->ids[kind][at(index - writing.begin)] = id.index;
}

void StepStamper::end_pass(const PassWrite& writing) {
  StageState& stage = stages_[at(writing.stage)];
  const OpId last = stage.last[static_cast<std::size_t>(PassStream::kCompute)];
  stage.pass_ends[at(writing.index)] = writing.last_compute.valid() ? writing.last_compute : last;
  if (!frame_.stages[at(writing.stage)].stream(PassStream::kGather).valid()) return;  // only its limiter looks back
  for (const std::int32_t unit_end : writing.script->unit_ends[at(writing.pass.kind)]) {
    if (unit_end >= 0) stage.unit_ends.push_back(id_of(*writing.script, *writing.made, unit_end));
  }
}

std::int32_t StepStamper::launch_group(const PassWrite& writing, const ScriptOp& op) const {
  if (rules_.one_graph) return 0;
  return op.graph < 0 ? -1 : writing.first_graph + op.graph;
}

void StepStamper::write_pass(const PipelineItem& item) {
  PassWrite& writing = writing_.front();
  begin_pass(writing, item.stage, item.pass, false);
  for (; !writing.at_end(); ++writing.next) write_op(writing, writing.next);
  end_pass(writing);
}

void StepStamper::write_pair(const PipelineItem& item) {
  PassWrite &forward = writing_[0], &backward = writing_[1];
  begin_pass(forward, item.stage, item.pass, true);
  begin_pass(backward, item.stage, item.pass + 1, true);
  while (!forward.at_end() || !backward.at_end()) {
    write_turn(backward);
    write_turn(forward);
  }
  end_pass(forward);
  end_pass(backward);
}

// Up to and with the next exchange between experts, or to the end.
void StepStamper::write_turn(PassWrite& writing) {
  const std::vector<ScriptOp>& ops = writing.script->ops;
  bool exchanged = false;
  while (!writing.at_end() && !exchanged) {
    const std::int32_t index = writing.next++;
    const ScriptOp& op = ops[at(index)];
    if (rules_.puts_off_weight_gradients && makes_only_resident_gradients(*writing.script, index)) {
      put_off(writing, index);
      continue;
    }
    if (needs_put_off(writing, op)) write_put_off(writing);
    write_op(writing, index);
    exchanged = op.stream == PassStream::kExpert && (writing.at_end() || ops[at(writing.next)].stream != PassStream::kExpert);
  }
  write_put_off(writing);
}

// What it waits for on other streams its successors on compute rely on.
void StepStamper::put_off(PassWrite& writing, std::int32_t index) const {
  const Rows waits = rows_of(*writing.script, index, index + 1, &ScriptOp::wait_end);
  const auto first = writing.script->waits.begin();
  writing.carried.insert(writing.carried.end(), first + waits.begin, first + waits.end);
  writing.put_off.push_back(index);
}

// Gradients are not reduced before they are made, and a unit has not ended before its ops have.
bool StepStamper::needs_put_off(const PassWrite& writing, const ScriptOp& op) const {
  if (writing.put_off.empty()) return false;
  if (op.stream == PassStream::kReduce || op.stream == PassStream::kGather || op.after_compute) return true;
  const MicroBatchScript& script = *writing.script;
  const auto index = static_cast<std::int32_t>(&op - script.ops.data());
  const Rows waits = rows_of(script, index, index + 1, &ScriptOp::wait_end);
  return std::any_of(writing.put_off.begin(), writing.put_off.end(), [&](std::int32_t late) {
    const auto first = script.waits.begin();
    return late == op.launched_after || std::find(first + waits.begin, first + waits.end, late) != first + waits.end;
  });
}

void StepStamper::write_put_off(PassWrite& writing) {
  for (const std::int32_t index : writing.put_off) write_op(writing, index);
  writing.put_off.clear();
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
  const bool down = placement_.goes_down(to.kind, item.from_stage, item.stage);
  const OpPart sending_part{there.stream(down ? TransferStream::kSendForward : TransferStream::kSendBackward), {}};
  const OpId transfer = builder_.add_op(
      {.work = builder_.work(Collective{.kind = CollectiveKind::kSendReceive, .message = size, .ranks = 2, .stride = rules_.stride}),
       .stream = here.stream(down ? TransferStream::kReceiveForward : TransferStream::kReceiveBackward),
       .phase = frame_.labels.phase(phase),
       .kind = forward ? send_forward_ : send_backward_,
       .micro_batch = to.micro_batch,
       .issuer = here.issuer,
       .launch_group = rules_.one_graph ? 0 : -1},
      {.predecessors = edges, .writes = written}, std::span(&sending_part, 1));
  (forward ? receiving.input : receiving.gradient) = transfer;
  if (item.sender_waits >= 0) stages_[at(item.from_stage)].waits.push_back({item.sender_waits, transfer});
  if (item.receiver_waits >= 0) stages_[at(item.stage)].waits.push_back({item.receiver_waits, transfer});
  if (!forward || rules_.frees_outputs || sender.ops.empty()) {
    free_after(transfer, item.from_stage, phase, from.micro_batch, storage_of(sending, sent));
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
                   .issuer = frame_.stages[at(stage)].issuer,
                   .launch_group = rules_.one_graph ? 0 : -1},
                  {.predecessors = std::span(&after, 1), .holds = std::span(&sent, 1)});
}

void StepStamper::write(std::span<const PipelineItem> items) {
  for (const PipelineItem& item : items) {
    if (item.is_transfer) {
      write_transfer(item);
    } else if (item.pair) {
      write_pair(item);
    } else {
      write_pass(item);
    }
  }
}

}  // namespace stepsim
