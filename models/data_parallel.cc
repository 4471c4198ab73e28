#include "models/data_parallel.h"

#include <algorithm>
#include <map>

#include "models/micro_batch_script.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// One gradient of a unit: its place in the unit's storage and the backward op that adds to it last; the first one where forward made it
// (chunked loss).
struct UnitGradient {
  std::int32_t unit = 0, last_op = 0;
  Tensor tensor;
  bool expert = false;
};

// The gradients that a unit's own storage holds, in their order there.
std::vector<UnitGradient> gradients_of(const TemplateStamp& stamp, std::int32_t unit, StorageId storage) {
  std::map<std::int64_t, UnitGradient> by_offset;
  const auto add = [&](const StampOp& op, std::size_t last_op) {
    for (const auto* operands : {&op.updates, &op.writes}) {
      for (const StampOperand& operand : *operands) {
        if (operand.place != OperandPlace::kWeightGradients || operand.size.value == 0) continue;
        by_offset[operand.offset.value] = {unit, static_cast<std::int32_t>(last_op), {storage, operand.offset, operand.size}, false};
      }
    }
  };
  for (const StampOp& op : stamp.forward) add(op, 0);
  for (std::size_t op = 0; op < stamp.backward.size(); ++op) add(stamp.backward[op], op);
  for (std::size_t slot = 0; slot < stamp.source->slots.size(); ++slot) {
    const StampOperand& root = stamp.roots[slot];
    if (!stamp.source->slots[slot].expert || root.place != OperandPlace::kWeightGradients) continue;
    const auto found = by_offset.find(root.offset.value);
    if (found != by_offset.end()) found->second.expert = true;
  }
  std::vector<UnitGradient> gradients;
  for (const auto& [offset, gradient] : by_offset) gradients.push_back(gradient);
  STEPSIM_CHECK(gradients.empty() || !stamp.backward.empty());
  return gradients;
}

// Backward runs units from the last to the first.
bool runs_later(const GradientBucket& bucket, const UnitGradient& gradient) {
  return gradient.unit != bucket.unit ? gradient.unit < bucket.unit : gradient.last_op > bucket.backward_op;
}

// Of `ranks` ranks of a group, `neighbours` of it apart.
Collective collective(const ReplicaGroup& group, CollectiveKind kind, Bytes message, std::int64_t ranks, std::int64_t neighbours) {
  return {.kind = kind,
          .message = message,
          .ranks = static_cast<std::int32_t>(ranks),
          .stride = static_cast<std::int32_t>(group.stride * neighbours)};
}

// Buckets of routed experts' gradients or of the others'.
void add_buckets(const ChunkStamps& stamps, std::span<const UnitResidents> residents, Bytes wanted, bool experts,
                 std::vector<GradientBucket>& buckets) {
  Bytes size;
  bool open = false;
  for (std::size_t unit = stamps.units(); unit-- > 0;) {
    if (residents[unit].parameters == 0) continue;
    const std::vector<UnitGradient> gradients = gradients_of(stamps.unit(unit), static_cast<std::int32_t>(unit), residents[unit].gradients);
    for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
      if (gradient->expert != experts) continue;
      if (!open) {
        GradientBucket& opened = buckets.emplace_back();
        opened.unit = gradient->unit;
        opened.backward_op = gradient->last_op;
        size = Bytes(0);
      }
      open = true;
      GradientBucket& bucket = buckets.back();
      bucket.makers.emplace_back(gradient->unit, gradient->last_op);
      if (runs_later(bucket, *gradient)) {
        bucket.unit = gradient->unit;
        bucket.backward_op = gradient->last_op;
      }
      bucket.gradients.push_back(gradient->tensor);
      size += gradient->tensor.size;
      if (wanted.value > 0 && size >= wanted) open = false;
    }
  }
}

// Only the own part of the sum is needed where the optimizer is sharded; that part then over the instances.
void set_work(OpGraphBuilder& builder, const ReplicaGroup& group, bool shards, bool experts, GradientBucket& bucket) {
  Bytes message;
  for (const Tensor& tensor : bucket.gradients) message += tensor.size;
  const auto label = [&](const char* of_all, const char* of_experts) {
    return builder.label(experts ? of_experts : of_all, static_cast<std::int32_t>(Group::kData));
  };
  if (!shards) {
    bucket.work = builder.work(collective(group, CollectiveKind::kAllReduce, message, group.ranks, 1));
    bucket.kind = label("gradient all-reduce", "expert gradient all-reduce");
    return;
  }
  bucket.work = builder.work(collective(group, CollectiveKind::kReduceScatter, message, group.shards, 1));
  bucket.kind = label("gradient reduce-scatter", "expert gradient reduce-scatter");
  const std::int64_t instances = group.ranks / group.shards;
  if (instances == 1) return;
  const Bytes shard(ResidentStorages::share(message.value, group.shards));
  bucket.over_instances = builder.work(collective(group, CollectiveKind::kAllReduce, shard, instances, group.shards));
  bucket.over_instances_kind = label("gradient all-reduce over instances", "expert gradient all-reduce over instances");
}

// torch's _flatten_dense_tensors and its reverse, each a kernel (InternEvo hybrid_zero_optim.py TensorBucket flatten, unflatten_and_copy).
void add_copies(OpGraphBuilder& builder, GradientBucket& bucket) {
  Bytes size;
  for (const Tensor& tensor : bucket.gradients) size += tensor.size;
  bucket.copy = builder.work(MemoryBound{.read = size, .written = size});
  bucket.copy_in = builder.label("gradient bucket flatten");
  bucket.copy_out = builder.label("gradient bucket copy back");
}

}  // namespace

// Megatron-LM's orders of ranks, tp-cp-dp-pp and, of experts, etp-ep-dp-pp.
ReplicaGroup replica_group(const ParallelLayout& parallel, bool experts) {
  if (!experts) return {parallel.replicas(), parallel.sharding_ranks(), parallel.tensor};
  return {parallel.expert_replicas(), expert_sharding_ranks(parallel), std::int64_t{parallel.expert_tensor_ranks()} * parallel.expert};
}

bool has_replicas(const ParallelLayout& parallel) { return parallel.replicas() > 1 || parallel.expert_replicas() > 1; }

std::vector<GradientBucket> gradient_buckets(OpGraphBuilder& builder, const ChunkStamps& stamps, std::span<const UnitResidents> residents,
                                             const ParallelLayout& parallel, const FrameworkPreset& framework) {
  std::vector<GradientBucket> buckets;
  for (const bool experts : {false, true}) {
    const ReplicaGroup group = replica_group(parallel, experts);
    if (group.ranks == 1) continue;
    const std::size_t before = buckets.size();
    add_buckets(stamps, residents, *parallel.bucket, experts, buckets);
    const bool shards = parallel.zero >= 1 && !framework.reduces_to_all;
    for (std::size_t each = before; each < buckets.size(); ++each) {
      set_work(builder, group, shards, experts, buckets[each]);
      if (framework.flattens_buckets) add_copies(builder, buckets[each]);
    }
  }
  std::stable_sort(buckets.begin(), buckets.end(), [](const GradientBucket& a, const GradientBucket& b) {
    return a.unit != b.unit ? a.unit > b.unit : a.backward_op < b.backward_op;
  });
  return buckets;
}

namespace {

bool makes_gradients(const std::vector<StampOp>& ops) {
  const auto is_gradient = [](const StampOperand& operand) {
    return operand.place == OperandPlace::kWeightGradients || operand.place == OperandPlace::kTiedWeightGradients;
  };
  return std::any_of(ops.begin(), ops.end(), [&](const StampOp& op) {
    return std::any_of(op.updates.begin(), op.updates.end(), is_gradient) || std::any_of(op.writes.begin(), op.writes.end(), is_gradient);
  });
}

ShardedUnit sharded_unit(const TemplateStamp& stamp, const UnitResidents& residents, const ParallelLayout& parallel,
                         const ParameterBytes& bytes, bool reads_master) {
  const std::int64_t ranks = parallel.sharding_ranks(), expert_ranks = expert_sharding_ranks(parallel);
  ShardedUnit unit;
  unit.present = residents.parameters > 0 || residents.frozen.value > 0;
  unit.trained = residents.parameters > 0;
  unit.makes_gradients_in_forward = makes_gradients(stamp.forward);
  const std::int64_t share = ResidentStorages::share(residents.parameters - residents.expert_parameters, ranks);
  const std::int64_t expert_share = ResidentStorages::share(residents.expert_parameters, expert_ranks);
  const std::int64_t frozen_share = ResidentStorages::share(residents.frozen.value, ranks);
  unit.source = reads_master ? residents.master : residents.weights;
  unit.shard = Bytes((share + expert_share) * (reads_master ? bytes.master : bytes.weight));
  unit.frozen_shard = Bytes(frozen_share);
  unit.expert_weights = Bytes(expert_share * expert_ranks * bytes.weight);
  const Bytes padded = Bytes(share * ranks * bytes.weight + frozen_share * ranks) + unit.expert_weights;
  unit.weights = std::max(stamp.own_weights, padded);
  unit.gradients = stamp.own_weight_gradients;
  unit.expert_gradients = Bytes(residents.expert_parameters * bytes.unsharded_gradient);
  unit.expert_reduced_shard = Bytes(expert_share * bytes.reduced_gradient);
  unit.reduced_shard = Bytes(share * bytes.reduced_gradient) + unit.expert_reduced_shard;
  unit.gradient_shard = Bytes((share + expert_share) * bytes.gradient);
  return unit;
}

void add_to_wrap(UnitWrap& wrap, const ShardedUnit& unit, std::int32_t number, const ParallelLayout& parallel) {
  wrap.layer = unit.layer;
  if (!unit.present) return;
  wrap.units.push_back(number);
  if (unit.trained) wrap.trained.push_back(number);
  wrap.weights += unit.weights;
  wrap.expert_weights += unit.expert_weights;
  wrap.gradients += unit.gradients;
  wrap.expert_gradients += unit.expert_gradients;
  wrap.reduced_shard += unit.reduced_shard;
  wrap.gradient_shard += unit.gradient_shard;
  wrap.expert_reduced_shard += unit.expert_reduced_shard;
  const Bytes experts = unit.expert_reduced_shard * expert_sharding_ranks(parallel);
  wrap.expert_reduce_input += experts;
  wrap.reduce_input += (unit.reduced_shard - unit.expert_reduced_shard) * parallel.sharding_ranks() + experts;
}

// What routed experts have of their own: their shards are joined, and summed, over their own replicas.
void add_expert_works(OpGraphBuilder& builder, UnitWrap& wrap, const UnitSharding& sharding, const ParallelLayout& parallel) {
  const ReplicaGroup group = replica_group(parallel, true);
  if (wrap.expert_weights.value == 0) return;
  if (group.shards > 1) {
    if (sharding.weights) {
      wrap.expert_gather = builder.work(collective(group, CollectiveKind::kAllGather, wrap.expert_weights, group.shards, 1));
    }
    const Bytes message = sharding.casts ? wrap.expert_reduce_input : wrap.expert_gradients;
    wrap.expert_reduce_scatter = builder.work(collective(group, CollectiveKind::kReduceScatter, message, group.shards, 1));
  }
  const std::int64_t replicas = group.ranks / group.shards;
  if (replicas == 1) return;
  wrap.expert_replicas = builder.work(collective(group, CollectiveKind::kAllReduce, wrap.expert_reduced_shard, replicas, group.shards));
}

// Nothing is said of copies that are not made.
void add_works(OpGraphBuilder& builder, UnitWrap& wrap, const UnitSharding& sharding, const ParallelLayout& parallel,
               const ParameterBytes& bytes) {
  const ReplicaGroup group = replica_group(parallel, false);
  const std::int64_t ranks = group.shards;
  const auto kernel = [&](Bytes read, Bytes written) { return builder.work(MemoryBound{.read = read, .written = written}); };
  if (sharding.weights) {
    Bytes shards;
    Bytes cast(wrap.reduced_shard.value / bytes.reduced_gradient * bytes.weight);
    for (const std::int32_t each : wrap.units) {
      const ShardedUnit& unit = sharding.units[static_cast<std::size_t>(each)];
      shards += unit.shard + unit.frozen_shard;
      cast += unit.frozen_shard;
    }
    wrap.cast_shard = kernel(shards, cast);
    wrap.gather = builder.work(collective(group, CollectiveKind::kAllGather, wrap.weights - wrap.expert_weights, ranks, 1));
    wrap.copy_out = kernel(wrap.weights, wrap.weights);
  }
  wrap.reduce_copy = kernel(wrap.gradients, wrap.reduce_input);
  const Bytes message = sharding.casts ? wrap.reduce_input - wrap.expert_reduce_input : wrap.gradients - wrap.expert_gradients;
  wrap.reduce_scatter = builder.work(collective(group, CollectiveKind::kReduceScatter, message, ranks, 1));
  const Bytes shard = wrap.reduced_shard - wrap.expert_reduced_shard;
  wrap.replicas = builder.work(collective(group, CollectiveKind::kAllReduce, shard, group.ranks / ranks, ranks));
  add_expert_works(builder, wrap, sharding, parallel);
  if (sharding.casts_reduced) wrap.cast_reduced = kernel(wrap.reduced_shard, wrap.gradient_shard);
  wrap.add = kernel(wrap.gradient_shard + wrap.gradient_shard, wrap.gradient_shard);
}

// The power of two next to the square root of `ranks` by which gradients are divided before they are summed over them (torch/distributed/
// algorithms/_comm_hooks/default_hooks.py DefaultState._get_gradient_predivide_factor); the rest is due behind the sum.
std::int64_t predivide_factor(std::int64_t ranks) {
  std::int64_t factor = 1;
  while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
  return factor;
}

// Where parameters are views of a flat one, autograd makes a gradient of each view and copies them into that of the flat one (the backward
// of torch.split). torch/distributed/fsdp/_runtime_utils.py _reduce_grad divides before and behind the collectives, _div_if_needed: no
// kernel divides by 1.
void add_flat_works(OpGraphBuilder& builder, UnitWrap& wrap, const UnitSharding& sharding, const ParallelLayout& parallel,
                    const FrameworkPreset& framework) {
  const auto in_place = [&](Bytes size) { return builder.work(MemoryBound{.read = size, .written = size}); };
  if (framework.concatenates_gradients) wrap.concatenate = in_place(wrap.gradients);
  if (!framework.predivides_gradients) return;
  const std::int64_t ranks = parallel.replicas(), before = predivide_factor(ranks);
  if (before > 1) wrap.predivide = in_place(sharding.casts ? wrap.reduce_input : wrap.gradients);
  if (ranks > before) wrap.postdivide = in_place(wrap.reduced_shard);
}

// The root has what no inner wrap has: embedding and head in one where the framework says so, and where they share a table. Of ZeRO 2 every
// unit is by itself. The root's own parameters stay gathered: it is never resharded after forward (_fully_shard/_fsdp_state.py _lazy_init,
// _runtime_utils.py _post_forward_reshard); nor is a head by itself, whose backward comes next.
void add_wraps(UnitSharding& sharding, const ChunkStamps& stamps, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  const std::size_t first_layer = stamps.embedding != nullptr ? 1 : 0;
  const std::size_t last_layer = first_layer + static_cast<std::size_t>(stamps.layers) - 1;
  const bool has_root = sharding.weights && (framework.root_holds_ends || stamps.ties_head);
  std::int32_t root = -1;
  for (std::size_t number = 0; number < sharding.units.size(); ++number) {
    ShardedUnit& unit = sharding.units[number];
    const bool head = stamps.head != nullptr && number + 1 == sharding.units.size();
    const bool inner = number >= first_layer && !head;
    const bool in_root = !inner && has_root;
    unit.wrap = in_root && root >= 0 ? root : static_cast<std::int32_t>(sharding.wraps.size());
    if (static_cast<std::size_t>(unit.wrap) == sharding.wraps.size()) sharding.wraps.emplace_back();
    UnitWrap& wrap = sharding.wraps[static_cast<std::size_t>(unit.wrap)];
    if (in_root) root = unit.wrap;
    wrap.root = in_root;
    const bool kept = in_root || head || (inner && number == last_layer && framework.keeps_last_layer_gathered);
    wrap.reshards = *parallel.reshard_after_forward && !kept;
    if (inner) unit.layer = static_cast<std::int32_t>(stamps.first_layer) + static_cast<std::int32_t>(number - first_layer);
    if (stamps.unit(number).tied) unit.tied = 0;
    add_to_wrap(wrap, unit, static_cast<std::int32_t>(number), parallel);
  }
}

}  // namespace

std::optional<UnitSharding> unit_sharding(OpGraphBuilder& builder, const ChunkStamps& stamps, std::span<const UnitResidents> residents,
                                          const ParallelLayout& parallel, const FrameworkPreset& framework, const ParameterBytes& bytes,
                                          std::int64_t micro_batches) {
  if (parallel.zero < 2 || parallel.replicas() == 1) return std::nullopt;
  UnitSharding sharding;
  sharding.weights = parallel.zero >= 3;
  sharding.copies = framework.copies_out_of_gathers;
  sharding.tables = sharding.copies && framework.copies_pointer_tables;
  sharding.casts = sharding.copies || bytes.unsharded_gradient != bytes.reduced_gradient;
  sharding.casts_reduced = bytes.gradient != bytes.reduced_gradient;
  sharding.frees_by_event = framework.frees_gathers_by_event;
  sharding.has_replicas = parallel.sharding_ranks() < parallel.replicas();
  sharding.adds = micro_batches > 1 && *parallel.reduce_every_micro_batch;
  sharding.prefetch_forward = *parallel.prefetch_forward;
  sharding.prefetch_backward = *parallel.prefetch_backward;
  sharding.prefetches_after = framework.prefetches_after_backward;
  sharding.limit = *parallel.gather_limit;
  const auto data = static_cast<std::int32_t>(Group::kData);
  sharding.cast_shard = builder.label("weight shard cast");
  sharding.gather = builder.label("weight all-gather", data);
  sharding.copy_out = builder.label("weight copy-out");
  sharding.reduce_copy = builder.label("gradient copy-in");
  sharding.reduce_scatter = builder.label("gradient reduce-scatter", data);
  sharding.replicas = builder.label("gradient all-reduce over replicas", data);
  sharding.add = builder.label("gradient shard add");
  if (framework.concatenates_gradients) sharding.concatenate = builder.label("gradient concatenation");
  if (framework.predivides_gradients) {
    sharding.predivide = builder.label("gradient division");
    sharding.postdivide = builder.label("gradient shard division");
  }
  if (sharding.casts_reduced) sharding.cast_reduced = builder.label("gradient shard cast");
  sharding.expert_gather = builder.label("expert weight all-gather", data);
  sharding.expert_reduce_scatter = builder.label("expert gradient reduce-scatter", data);
  sharding.expert_replicas = builder.label("expert gradient all-reduce over replicas", data);
  sharding.marker = builder.work(Marker{});
  constexpr Bytes kTable(1024);  // a few pointers and sizes a parameter: its latency counts, not its bytes
  sharding.table_copy = builder.work(Copy{.bytes = kTable, .direction = CopyDirection::kHostToDevice});
  sharding.freed = builder.label("freed");
  sharding.table = builder.label("pointer table copy");
  sharding.reduced = builder.label("gradients reduced");
  sharding.gathered_name = builder.label("gathered weights");
  sharding.weights_name = builder.label("unsharded weights");
  sharding.gradients_name = builder.label("unsharded gradients");
  if (framework.concatenates_gradients) sharding.flat_name = builder.label("flat gradients");
  sharding.reduce_input_name = builder.label("reduce-scatter input");
  sharding.reduced_name = builder.label("reduced gradient shard");
  const bool reads_master = bytes.master > 0 && !framework.keeps_weight_shards;
  for (std::size_t number = 0; number < stamps.units(); ++number) {
    sharding.units.push_back(sharded_unit(stamps.unit(number), residents[number], parallel, bytes, reads_master));
  }
  add_wraps(sharding, stamps, parallel, framework);
  for (UnitWrap& wrap : sharding.wraps) {
    if (wrap.units.empty()) continue;
    add_works(builder, wrap, sharding, parallel, bytes);
    if (!wrap.trained.empty()) add_flat_works(builder, wrap, sharding, parallel, framework);
  }
  return sharding;
}

}  // namespace stepsim
