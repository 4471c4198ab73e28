#include "models/data_parallel.h"

#include <algorithm>
#include <map>

#include "models/micro_batch_script.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// One gradient of a unit: its place in the unit's storage and the backward op that adds to it last.
struct UnitGradient {
  std::int32_t unit = 0, last_op = 0;
  Tensor tensor;
};

// The gradients that a unit's own storage holds, in their order there.
std::vector<UnitGradient> gradients_of(const TemplateStamp& stamp, std::int32_t unit, StorageId storage) {
  std::map<std::int64_t, UnitGradient> by_offset;
  for (std::size_t op = 0; op < stamp.backward.size(); ++op) {
    for (const auto* operands : {&stamp.backward[op].updates, &stamp.backward[op].writes}) {
      for (const StampOperand& operand : *operands) {
        if (operand.place != OperandPlace::kWeightGradients || operand.size.value == 0) continue;
        by_offset[operand.offset.value] = {unit, static_cast<std::int32_t>(op), {storage, operand.offset, operand.size}};
      }
    }
  }
  std::vector<UnitGradient> gradients;
  for (const auto& [offset, gradient] : by_offset) gradients.push_back(gradient);
  return gradients;
}

// Backward runs units from the last to the first.
bool runs_later(const GradientBucket& bucket, const UnitGradient& gradient) {
  return gradient.unit != bucket.unit ? gradient.unit < bucket.unit : gradient.last_op > bucket.backward_op;
}

Collective collective(const ParallelLayout& parallel, CollectiveKind kind, Bytes message, std::int64_t ranks, std::int64_t neighbours) {
  // Megatron-LM's order of ranks, tp-cp-dp-pp: neighbours of the data-parallel group are tensor x context ranks apart.
  return {.kind = kind,
          .message = message,
          .ranks = static_cast<std::int32_t>(ranks),
          .stride = static_cast<std::int32_t>(std::int64_t{parallel.tensor} * parallel.context * neighbours)};
}

}  // namespace

std::vector<GradientBucket> gradient_buckets(OpGraphBuilder& builder, const ChunkStamps& stamps, std::span<const UnitResidents> residents,
                                             const ParallelLayout& parallel) {
  std::vector<GradientBucket> buckets;
  Bytes size;
  bool open = false;
  const Bytes wanted = *parallel.bucket;
  for (std::size_t unit = stamps.units(); unit-- > 0;) {
    if (residents[unit].parameters == 0) continue;
    const std::vector<UnitGradient> gradients = gradients_of(stamps.unit(unit), static_cast<std::int32_t>(unit), residents[unit].gradients);
    for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
      if (!open)
        buckets.push_back(
            {.unit = gradient->unit, .backward_op = gradient->last_op, .makers = {}, .work = {}, .kind = {}, .gradients = {}});
      if (!open) size = Bytes(0);
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
  const bool shards = parallel.zero >= 1;  // only the own part of the sum is needed
  const char* const name = shards ? "gradient reduce-scatter" : "gradient all-reduce";
  for (GradientBucket& bucket : buckets) {
    Bytes message;
    for (const Tensor& tensor : bucket.gradients) message += tensor.size;
    const CollectiveKind kind = shards ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    bucket.work = builder.work(collective(parallel, kind, message, parallel.data, 1));
    bucket.kind = builder.label(name, static_cast<std::int32_t>(Group::kData));
  }
  std::stable_sort(buckets.begin(), buckets.end(), [](const GradientBucket& a, const GradientBucket& b) {
    return a.unit != b.unit ? a.unit > b.unit : a.backward_op < b.backward_op;
  });
  return buckets;
}

namespace {

// Works of one unit; nothing is said of copies that are not made.
ShardedUnit sharded_unit(OpGraphBuilder& builder, const TemplateStamp& stamp, const UnitResidents& residents, const UnitSharding& sharding,
                         const ParallelLayout& parallel, const ParameterBytes& bytes) {
  ShardedUnit unit;
  unit.present = residents.parameters > 0;
  if (!unit.present) return unit;
  const std::int64_t ranks = parallel.sharding_ranks();
  const std::int64_t share = ResidentStorages::share(residents.parameters, ranks);
  const Bytes shard(share * (bytes.master > 0 ? bytes.master : bytes.weight));
  unit.shard = shard;
  unit.weights = std::max(stamp.own_weights, Bytes(share * ranks * bytes.weight));  // padded to the ranks
  unit.gradients = stamp.own_weight_gradients;
  unit.reduce_input = Bytes(share * ranks * bytes.gradient);
  unit.reduced_shard = Bytes(share * bytes.gradient);
  const auto kernel = [&](Bytes read, Bytes written) { return builder.work(MemoryBound{.read = read, .written = written}); };
  if (sharding.weights) {
    unit.cast_shard = kernel(shard, Bytes(share * bytes.weight));
    unit.gather = builder.work(collective(parallel, CollectiveKind::kAllGather, unit.weights, ranks, 1));
    unit.copy_out = kernel(unit.weights, unit.weights);
  }
  unit.reduce_copy = kernel(unit.gradients, unit.reduce_input);
  const Bytes message = sharding.casts ? unit.reduce_input : unit.gradients;
  unit.reduce_scatter = builder.work(collective(parallel, CollectiveKind::kReduceScatter, message, ranks, 1));
  unit.replicas = builder.work(collective(parallel, CollectiveKind::kAllReduce, unit.reduced_shard, parallel.data / ranks, ranks));
  unit.add = kernel(unit.reduced_shard + unit.reduced_shard, unit.reduced_shard);
  return unit;
}

}  // namespace

std::optional<UnitSharding> unit_sharding(OpGraphBuilder& builder, const ChunkStamps& stamps, std::span<const UnitResidents> residents,
                                          const ParallelLayout& parallel, const FrameworkPreset& framework, const ParameterBytes& bytes,
                                          std::int64_t micro_batches) {
  if (parallel.zero < 2 || parallel.data == 1) return std::nullopt;
  UnitSharding sharding;
  sharding.weights = parallel.zero >= 3;
  sharding.copies = framework.copies_out_of_gathers;
  sharding.casts = sharding.copies || bytes.unsharded_gradient != bytes.gradient;
  sharding.frees_by_event = framework.frees_gathers_by_event;
  sharding.has_replicas = parallel.sharding_ranks() < parallel.data;
  sharding.adds = micro_batches > 1 && *parallel.reduce_every_micro_batch;
  sharding.prefetch_forward = *parallel.prefetch_forward;
  sharding.prefetch_backward = *parallel.prefetch_backward;
  sharding.limit = *parallel.gather_limit;
  const auto data = static_cast<std::int32_t>(Group::kData);
  sharding.cast_shard = builder.label("weight shard cast");
  sharding.gather = builder.label("weight all-gather", data);
  sharding.copy_out = builder.label("weight copy-out");
  sharding.reduce_copy = builder.label("gradient copy-in");
  sharding.reduce_scatter = builder.label("gradient reduce-scatter", data);
  sharding.replicas = builder.label("gradient all-reduce over replicas", data);
  sharding.add = builder.label("gradient shard add");
  sharding.gathered_name = builder.label("gathered weights");
  sharding.weights_name = builder.label("unsharded weights");
  sharding.gradients_name = builder.label("unsharded gradients");
  sharding.reduce_input_name = builder.label("reduce-scatter input");
  sharding.reduced_name = builder.label("reduced gradient shard");
  const std::size_t first_layer = stamps.embedding != nullptr ? 1 : 0;
  for (std::size_t number = 0; number < stamps.units(); ++number) {
    sharding.units.push_back(sharded_unit(builder, stamps.unit(number), residents[number], sharding, parallel, bytes));
    ShardedUnit& unit = sharding.units.back();
    // The root's own parameters stay gathered: FSDP's root is never resharded after forward (_fully_shard/_fsdp_state.py,
    // _runtime_utils.py).
    const bool inner = number >= first_layer && number < first_layer + static_cast<std::size_t>(stamps.layers);
    const bool last = number + 1 == first_layer + static_cast<std::size_t>(stamps.layers);
    unit.root = framework.root_holds_ends && sharding.weights && !inner;
    unit.reshards = *parallel.reshard_after_forward && inner && !(last && framework.keeps_last_layer_gathered);
    if (inner) unit.layer = static_cast<std::int32_t>(stamps.first_layer) + static_cast<std::int32_t>(number - first_layer);
    const bool ties = stamps.head != nullptr && number + 1 == stamps.units() && stamps.ties_head;
    if (ties) unit.tied = 0;
  }
  return sharding;
}

}  // namespace stepsim
