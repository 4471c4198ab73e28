#include "models/sharded_runs.h"

#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

}  // namespace

ShardedRuns::ShardedRuns(const UnitSharding& sharding, ScriptWriter& writer, const StepLabels& labels,
                         std::span<const UnitResidents> residents)
    : sharding_(sharding), writer_(writer), labels_(labels), residents_(residents), gathered_(sharding.units.size(), kNoCode) {}

void ShardedRuns::begin_pass(PassKind pass, std::vector<std::int32_t> units) {
  pass_ = pass;
  runs_ = std::move(units);
  asked_.assign(runs_.size(), false);
}

std::int32_t ShardedRuns::add_storage(Bytes size, Role role, LabelId name, std::int32_t layer) {
  return writer_.add_storage(
      {.size = size, .role = labels_.role(role), .name = name, .layer = layer, .unit = -1, .deferred_free = sharding_.frees_by_event});
}

std::int32_t ShardedRuns::kernel(std::int32_t number, WorkId work, LabelId kind, PassStream stream, bool queued) {
  return writer_.begin({.work = work,
                        .kind = kind,
                        .phase = pass_ == PassKind::kForward ? Phase::kForward : Phase::kBackward,
                        .stream = stream,
                        .queued = queued,
                        .layer = unit(number).layer});
}

// Cast of the own shard and all-gather, both beside compute. The host waits for the end of the unit run `limit` gathers before: a queue of
// the last `limit` events, of which each gather takes the oldest (_limiter_utils.py). A prefetched gather comes before its run's
// predecessor has left its event, so it takes one further back. `now`: the run that is about to be written.
void ShardedRuns::gather(std::size_t run, std::size_t now, const std::vector<std::int32_t>& weights) {
  if (asked_[run]) return;
  asked_[run] = true;
  const std::int32_t number = runs_[run];
  const ShardedUnit& sharded = unit(number);
  if (!sharded.present || weights[at(number)] != kNoCode || gathered_[at(number)] != kNoCode) return;  // still there
  const LabelId name = sharding_.copies ? sharding_.gathered_name : sharding_.weights_name;
  const Role role = sharding_.copies ? Role::kCommunication : Role::kWeights;
  const std::int32_t buffer = add_storage(sharded.weights, role, name, sharded.layer);
  gathered_[at(number)] = buffer;
  const StorageId shard = residents_[at(number)].master.valid() ? residents_[at(number)].master : residents_[at(number)].weights;
  kernel(number, sharded.cast_shard, sharding_.cast_shard, PassStream::kGather, false);
  if (sharding_.limit > 0) writer_.op().after_unit_run = static_cast<std::int32_t>(now) - sharding_.limit;
  if (sharding_.copies) writer_.wait_for(last_copy_out_);  // the buffer before this one is free
  writer_.read(~shard.index, Bytes(0), sharded.shard);
  writer_.write(buffer, Bytes(0), sharded.weights);
  writer_.end();
  kernel(number, sharded.gather, sharding_.gather, PassStream::kGather, true);
  writer_.read(buffer, Bytes(0), sharded.weights);
  writer_.write(buffer, Bytes(0), sharded.weights);
  writer_.end();
}

void ShardedRuns::copy_out(std::int32_t number, std::vector<std::int32_t>& weights) {
  const std::int32_t buffer = std::exchange(gathered_[at(number)], kNoCode);
  if (buffer == kNoCode) return;
  if (!sharding_.copies) {
    weights[at(number)] = buffer;
    return;
  }
  const ShardedUnit& sharded = unit(number);
  weights[at(number)] = add_storage(sharded.weights, Role::kWeights, sharding_.weights_name, sharded.layer);
  last_copy_out_ = kernel(number, sharded.copy_out, sharding_.copy_out, PassStream::kCompute, false);
  writer_.read(buffer, Bytes(0), sharded.weights);
  writer_.write(weights[at(number)], Bytes(0), sharded.weights);
  writer_.end();
}

void ShardedRuns::before_run(std::size_t run, std::vector<std::int32_t>& weights, std::vector<std::int32_t>& gradients) {
  const std::int32_t number = runs_[run];
  const bool backward = pass_ == PassKind::kBackward;
  if (sharding_.weights) {
    for (std::size_t later = 0; run == 0 && later < runs_.size(); ++later) {  // the root comes first, whole
      if (!unit(runs_[later]).root) continue;
      gather(later, run, weights);
      copy_out(runs_[later], weights);
    }
    gather(run, run, weights);
    copy_out(number, weights);
    const bool prefetch = backward ? sharding_.prefetch_backward : sharding_.prefetch_forward;
    if (prefetch && run + 1 < runs_.size()) gather(run + 1, run, weights);
  }
  // Where gradients accumulate unsharded over the micro-batches, their place lives all step.
  for (const std::int32_t each : {number, unit(number).tied}) {
    if (!backward || each < 0 || !unit(each).present || gradients[at(each)] != kNoCode) continue;
    gradients[at(each)] = add_storage(unit(each).gradients, Role::kGradients, sharding_.gradients_name, unit(each).layer);
  }
}

void ShardedRuns::after_run(std::size_t run, std::vector<std::int32_t>& weights, const std::vector<std::int32_t>& gradients, bool reduces) {
  const std::int32_t number = runs_[run];
  bool comes_again = false;
  for (std::size_t later = run + 1; later < runs_.size(); ++later) comes_again = comes_again || runs_[later] == number;
  std::vector<std::int32_t> done;
  if (!unit(number).root) done.push_back(number);
  for (std::size_t each = 0; run + 1 == runs_.size() && each < runs_.size(); ++each) {  // the root goes last
    if (unit(runs_[each]).root) done.push_back(runs_[each]);
  }
  for (const std::int32_t each : done) free_weights(each, weights);
  if (pass_ != PassKind::kBackward || comes_again || !reduces) return;
  for (const std::int32_t each : done) {
    if (unit(each).present) reduce(each, gradients[at(each)]);
  }
}

// The hook that frees them runs behind the unit's last op (the root's: the pass's), whichever op read them last.
void ShardedRuns::free_weights(std::int32_t number, std::vector<std::int32_t>& weights) {
  const ShardedUnit& sharded = unit(number);
  if (!sharded.present || !sharding_.weights || (pass_ != PassKind::kBackward && !sharded.reshards)) return;
  if (weights[at(number)] != kNoCode) writer_.hold_by_last(weights[at(number)]);
  weights[at(number)] = kNoCode;
}

// The gradients of a unit into the shard: a copy into the buffer that is reduced, where there is one, then beside compute the
// reduce-scatter, the sum over replicas and the addition to what earlier micro-batches left.
void ShardedRuns::reduce(std::int32_t number, std::int32_t gradients) {
  const ShardedUnit& sharded = unit(number);
  const std::int32_t last = writer_.last_compute_op();
  std::int32_t input = gradients;
  if (sharding_.casts) {
    input = add_storage(sharded.reduce_input, Role::kCommunication, sharding_.reduce_input_name, sharded.layer);
    // FSDP2 copies on the compute stream, FSDP1 casts on that of the reductions (_runtime_utils.py _post_backward_hook).
    const PassStream stream = sharding_.copies ? PassStream::kCompute : PassStream::kReduce;
    kernel(number, sharded.reduce_copy, sharding_.reduce_copy, stream, false);
    writer_.read(gradients, Bytes(0), sharded.gradients);
    writer_.write(input, Bytes(0), sharded.reduce_input);
    writer_.wait_for(last);
    const std::int32_t before = std::exchange(reduce_input_, input);
    if (sharding_.copies && before >= 0) writer_.hold(before);  // _fsdp_param_group.py: until the next reduction is on its way
    writer_.end();
  }
  const StorageId shard = residents_[at(number)].gradients;
  const std::int32_t output =
      sharding_.adds ? add_storage(sharded.reduced_shard, Role::kGradients, sharding_.reduced_name, sharded.layer) : ~shard.index;
  kernel(number, sharded.reduce_scatter, sharding_.reduce_scatter, PassStream::kReduce, true);
  writer_.read(input, Bytes(0), sharding_.casts ? sharded.reduce_input : sharded.gradients);
  writer_.write(output, Bytes(0), sharded.reduced_shard);
  writer_.wait_for(writer_.last_compute_op());
  writer_.end();
  if (sharding_.has_replicas) {
    kernel(number, sharded.replicas, sharding_.replicas, PassStream::kReduce, true);
    writer_.read(output, Bytes(0), sharded.reduced_shard);
    writer_.write(output, Bytes(0), sharded.reduced_shard);
    writer_.end();
  }
  if (!sharding_.adds) return;
  kernel(number, sharded.add, sharding_.add, PassStream::kReduce, false);
  writer_.read(output, Bytes(0), sharded.reduced_shard);
  writer_.write(~shard.index, Bytes(0), sharded.reduced_shard);
  writer_.end();
}

}  // namespace stepsim
