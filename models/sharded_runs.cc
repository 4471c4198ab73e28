#include "models/sharded_runs.h"

#include <utility>

#include "sim/check.h"

namespace stepsim {

ShardedRuns::ShardedRuns(const UnitSharding& sharding, ScriptWriter& writer, const StepLabels& labels,
                         std::span<const UnitResidents> residents)
    : sharding_(sharding), writer_(writer), labels_(labels), residents_(residents), gathered_(sharding.wraps.size()) {}

void ShardedRuns::begin_pass(PassKind pass, std::vector<std::int32_t> units) {
  pass_ = pass;
  runs_ = std::move(units);
}

std::int32_t ShardedRuns::add_storage(Bytes size, Role role, LabelId name, std::int32_t layer) {
  return writer_.add_storage(
      {.size = size, .role = labels_.role(role), .name = name, .layer = layer, .unit = -1, .deferred_free = sharding_.frees_by_event});
}

std::int32_t ShardedRuns::kernel(const UnitWrap& wrap, WorkId work, LabelId kind, PassStream stream, bool queued) {
  return writer_.begin({.work = work,
                        .kind = kind,
                        .phase = pass_ == PassKind::kForward ? Phase::kForward : Phase::kBackward,
                        .stream = stream,
                        .queued = queued,
                        .layer = wrap.layer});
}

// Cast of the own shards and all-gather, both beside compute. The host waits for the end of the unit run `limit` gathers before: a queue of
// the last `limit` events, of which each gather takes the oldest (_limiter_utils.py). A prefetched gather comes before its run's
// predecessor has left its event, so it takes one further back. `now`: the run that is about to be written.
void ShardedRuns::gather(std::int32_t number, std::size_t now, const std::vector<std::int32_t>& weights) {
  const UnitWrap& wrapped = wrap(number);
  std::vector<std::int32_t>& buffers = gathered_[at(number)];
  if (wrapped.units.empty() || weights[at(wrapped.units.front())] != kNoCode || !buffers.empty()) return;  // still there
  if (sharding_.copies) {
    buffers.push_back(add_storage(wrapped.weights, Role::kCommunication, sharding_.gathered_name, wrapped.layer));
  } else {
    for (const std::int32_t each : wrapped.units) {
      buffers.push_back(add_storage(unit(each).weights, Role::kWeights, sharding_.weights_name, wrapped.layer));
    }
  }
  kernel(wrapped, wrapped.cast_shard, sharding_.cast_shard, PassStream::kGather, false);
  if (sharding_.limit > 0) writer_.op().after_unit_run = static_cast<std::int32_t>(now) - sharding_.limit;
  if (sharding_.copies) writer_.wait_for(freed_by_);  // of the buffers before this one, those that were let go of are free
  for (const std::int32_t each : wrapped.units) {
    const UnitResidents& resident = residents_[at(each)];
    if (unit(each).trained) writer_.read(~unit(each).source.index, Bytes(0), unit(each).shard);
    if (unit(each).frozen_shard.value > 0) writer_.read(~resident.weights.index, Bytes(0), unit(each).frozen_shard);
  }
  for (const std::int32_t buffer : buffers) writer_.write(buffer, Bytes(0), writer_.size(buffer));
  writer_.end();
  const auto join = [&](WorkId work, LabelId kind) {
    kernel(wrapped, work, kind, PassStream::kGather, true);
    for (const std::int32_t buffer : buffers) {
      writer_.read(buffer, Bytes(0), writer_.size(buffer));
      writer_.write(buffer, Bytes(0), writer_.size(buffer));
    }
    writer_.end();
  };
  join(wrapped.gather, sharding_.gather);
  if (wrapped.expert_gather.valid()) join(wrapped.expert_gather, sharding_.expert_gather);
}

void ShardedRuns::copy_out(std::int32_t number, std::vector<std::int32_t>& weights) {
  const UnitWrap& wrapped = wrap(number);
  const std::vector<std::int32_t> buffers = std::exchange(gathered_[at(number)], {});
  if (buffers.empty()) return;
  if (!sharding_.copies) {
    for (std::size_t index = 0; index < buffers.size(); ++index) weights[at(wrapped.units[index])] = buffers[index];
    return;
  }
  // In forward the buffer before is let go of when this one is about to be copied out of, so that gathers overlap (_fsdp_param_group.py
  // wait_for_unshard, all_gather_state).
  if (copied_out_ >= 0) {
    let_go(std::exchange(copied_out_, -1));
    freed_by_ = last_copy_out_;
  }
  copy_table(wrapped);
  last_copy_out_ = kernel(wrapped, wrapped.copy_out, sharding_.copy_out, PassStream::kCompute, false);
  writer_.read(buffers.front(), Bytes(0), wrapped.weights);
  if (pass_ == PassKind::kForward) {
    copied_out_ = buffers.front();
  } else {
    freed_by_ = last_copy_out_;
  }
  for (const std::int32_t each : wrapped.units) {
    weights[at(each)] = add_storage(unit(each).weights, Role::kWeights, sharding_.weights_name, wrapped.layer);
    writer_.write(weights[at(each)], Bytes(0), unit(each).weights);
  }
  writer_.end();
}

// With compute's last op, or behind it where the last op is another stream's.
void ShardedRuns::let_go(std::int32_t code) {
  if (writer_.last_compute_op() + 1 == writer_.next_op()) {
    writer_.hold_by_last(code);
    return;
  }
  const Phase phase = pass_ == PassKind::kForward ? Phase::kForward : Phase::kBackward;
  writer_.begin({.work = sharding_.marker, .kind = sharding_.freed, .phase = phase, .stream = PassStream::kCompute, .layer = -1});
  writer_.hold(code);
  writer_.end();
}

// On compute's stream and the engine of all copies to the device: it queues behind what is on its way there.
void ShardedRuns::copy_table(const UnitWrap& wrapped) {
  if (!sharding_.tables) return;
  kernel(wrapped, sharding_.table_copy, sharding_.table, PassStream::kCompute, false);
  writer_.op().engine = CopyEngine::kIn;
  writer_.end();
}

void ShardedRuns::before_run(std::size_t run, std::vector<std::int32_t>& weights, std::vector<std::int32_t>& gradients) {
  const ShardedUnit& running = unit(runs_[run]);
  const bool backward = pass_ == PassKind::kBackward;
  if (sharding_.weights) {
    for (std::size_t each = 0; run == 0 && each < sharding_.wraps.size(); ++each) {  // the root comes first, whole
      const auto number = static_cast<std::int32_t>(each);
      if (!wrap(number).root) continue;
      gather(number, run, weights);
      copy_out(number, weights);
    }
    gather(running.wrap, run, weights);
    copy_out(running.wrap, weights);
    const bool prefetch = backward ? sharding_.prefetch_backward && !sharding_.prefetches_after : sharding_.prefetch_forward;
    if (prefetch && run + 1 < runs_.size()) gather(wrap_of_run(run + 1), run, weights);
  }
  if (!backward && !running.makes_gradients_in_forward) return;
  // Where gradients accumulate unsharded over the micro-batches, their place lives all step.
  for (const std::int32_t each : {runs_[run], running.tied}) {
    if (each < 0 || !unit(each).trained || gradients[at(each)] != kNoCode) continue;
    gradients[at(each)] = add_storage(unit(each).gradients, Role::kGradients, sharding_.gradients_name, unit(each).layer);
  }
}

void ShardedRuns::after_run(std::size_t run, std::vector<std::int32_t>& weights, const std::vector<std::int32_t>& gradients, bool reduces) {
  const bool last = run + 1 == runs_.size();
  bool comes_again = false;
  for (std::size_t later = run + 1; later < runs_.size(); ++later) comes_again = comes_again || runs_[later] == runs_[run];
  std::vector<const UnitWrap*> done;
  if (const UnitWrap& own = wrap(wrap_of_run(run)); !own.root) done.push_back(&own);
  for (const UnitWrap& each : sharding_.wraps) {
    if (last && each.root) done.push_back(&each);  // the root goes last
  }
  const bool ends = pass_ == PassKind::kBackward && !comes_again;
  std::vector<std::vector<Tensor>> whole;  // gradients of `done`
  for (const UnitWrap* each : done) {
    if (ends) whole.push_back(whole_gradients(*each, gradients));
  }
  for (const UnitWrap* each : done) free_weights(*each, weights);
  if (!ends) return;
  // _runtime_utils.py _post_backward_hook: _post_backward_reshard frees and prefetches, then _reduce_grad.
  const bool prefetches = sharding_.weights && sharding_.prefetch_backward && sharding_.prefetches_after;
  if (prefetches && !done.empty() && !last) gather(wrap_of_run(run + 1), run + 1, weights);
  if (!reduces) return;
  for (std::size_t each = 0; each < done.size(); ++each) {
    if (!done[each]->trained.empty()) reduce(*done[each], std::move(whole[each]));
  }
  if (last) wait_for_reductions();
}

// The hook that frees them runs behind the unit's last op (the root's: the pass's), whichever op read them last.
void ShardedRuns::free_weights(const UnitWrap& wrapped, std::vector<std::int32_t>& weights) {
  if (!sharding_.weights || (pass_ != PassKind::kBackward && !wrapped.reshards)) return;
  for (const std::int32_t each : wrapped.units) {
    if (weights[at(each)] != kNoCode) let_go(weights[at(each)]);
    weights[at(each)] = kNoCode;
  }
}

// Each unit's or, where the framework copies them together, one. What accumulates unsharded over the micro-batches stays where it is.
std::vector<Tensor> ShardedRuns::whole_gradients(const UnitWrap& wrapped, const std::vector<std::int32_t>& gradients) {
  std::vector<Tensor> made;  // storages are codes
  for (const std::int32_t each : wrapped.trained) made.push_back({StorageId{gradients[at(each)]}, Bytes(0), unit(each).gradients});
  if (!wrapped.concatenate.valid()) return made;
  std::vector<Tensor> flat = made;
  if (made.front().storage.index >= 0) {
    const std::int32_t code = add_storage(wrapped.gradients, Role::kGradients, sharding_.flat_name, wrapped.layer);
    flat = {{StorageId{code}, Bytes(0), wrapped.gradients}};
  }
  kernel(wrapped, wrapped.concatenate, sharding_.concatenate, PassStream::kCompute, false);
  for (const Tensor& tensor : made) writer_.read(tensor.storage.index, tensor.offset, tensor.size);
  for (const Tensor& tensor : flat) writer_.write(tensor.storage.index, tensor.offset, tensor.size);
  writer_.end();
  return flat;
}

// The buffer that is reduced, made of the gradients. FSDP2 lets go of the one before and lets compute wait for its reduce-scatter, then
// makes the next (_fsdp_param_group.py post_backward): hence the hold by the op before the copy. FSDP1 casts on the stream of the
// reductions, where each frees its own (_runtime_utils.py _post_backward_hook).
std::int32_t ShardedRuns::reduce_input(const UnitWrap& wrapped, const std::vector<Tensor>& gradients) {
  const std::int32_t last = writer_.last_compute_op();
  if (reduce_input_ >= 0) let_go(reduce_input_);
  copy_table(wrapped);
  const std::int32_t input = add_storage(wrapped.reduce_input, Role::kCommunication, sharding_.reduce_input_name, wrapped.layer);
  const PassStream stream = sharding_.copies ? PassStream::kCompute : PassStream::kReduce;
  kernel(wrapped, wrapped.reduce_copy, sharding_.reduce_copy, stream, false);
  for (const Tensor& tensor : gradients) writer_.read(tensor.storage.index, tensor.offset, tensor.size);
  writer_.write(input, Bytes(0), wrapped.reduce_input);
  writer_.wait_for(last);
  if (sharding_.copies) {
    writer_.wait_for(last_scatter_);
    reduce_input_ = input;
  }
  writer_.end();
  return input;
}

// The gradients of a wrap into its units' shards: a copy into the buffer that is reduced, where there is one, then beside compute the
// reduce-scatter, the sum over replicas and the addition to what earlier micro-batches left.
void ShardedRuns::reduce(const UnitWrap& wrapped, std::vector<Tensor> inputs) {
  std::vector<Tensor> shards;  // storages are codes
  for (const std::int32_t each : wrapped.trained) {
    shards.push_back({StorageId{~residents_[at(each)].gradients.index}, Bytes(0), unit(each).gradient_shard});
  }
  if (sharding_.casts) inputs = {{StorageId{reduce_input(wrapped, inputs)}, Bytes(0), wrapped.reduce_input}};
  const auto apart = [&](Bytes size) {
    const std::int32_t code = add_storage(size, Role::kGradients, sharding_.reduced_name, wrapped.layer);
    return std::vector<Tensor>{{StorageId{code}, Bytes(0), size}};
  };
  std::vector<Tensor> outputs = sharding_.adds || sharding_.casts_reduced ? apart(wrapped.reduced_shard) : shards;
  const auto write = [&](WorkId work, LabelId kind, bool queued, const std::vector<Tensor>& from, const std::vector<Tensor>& to) {
    if (!work.valid()) return;
    last_reduction_ = kernel(wrapped, work, kind, PassStream::kReduce, queued);
    for (const Tensor& tensor : from) writer_.read(tensor.storage.index, tensor.offset, tensor.size);
    for (const Tensor& tensor : to) writer_.write(tensor.storage.index, tensor.offset, tensor.size);
    writer_.wait_for(writer_.last_compute_op());
    writer_.end();
  };
  write(wrapped.predivide, sharding_.predivide, false, inputs, inputs);
  write(wrapped.reduce_scatter, sharding_.reduce_scatter, true, inputs, outputs);
  write(wrapped.expert_reduce_scatter, sharding_.expert_reduce_scatter, true, inputs, outputs);
  last_scatter_ = last_reduction_;
  if (sharding_.has_replicas) write(wrapped.replicas, sharding_.replicas, true, outputs, outputs);
  write(wrapped.expert_replicas, sharding_.expert_replicas, true, outputs, outputs);
  write(wrapped.postdivide, sharding_.postdivide, false, outputs, outputs);
  if (sharding_.casts_reduced) {
    const std::vector<Tensor> cast = sharding_.adds ? apart(wrapped.gradient_shard) : shards;
    write(wrapped.cast_reduced, sharding_.cast_reduced, false, outputs, cast);
    outputs = cast;
  }
  if (sharding_.adds) write(wrapped.add, sharding_.add, false, outputs, shards);
}

// Compute goes on when the pass's gradients are reduced (_fsdp_state.py _root_post_backward_final_callback, _runtime_utils.py
// _post_backward_final_callback); FSDP2 lets go of the last buffer.
void ShardedRuns::wait_for_reductions() {
  if (last_reduction_ < 0) return;
  writer_.begin(
      {.work = sharding_.marker, .kind = sharding_.reduced, .phase = Phase::kBackward, .stream = PassStream::kCompute, .layer = -1});
  writer_.wait_for(last_reduction_);
  if (const std::int32_t input = std::exchange(reduce_input_, -1); input >= 0) writer_.hold(input);
  writer_.end();
}

}  // namespace stepsim
