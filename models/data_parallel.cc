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
};

// The gradients that a unit's own storage holds, in their order there.
std::vector<UnitGradient> gradients_of(const TemplateStamp& stamp, std::int32_t unit, StorageId storage) {
  std::map<std::int64_t, UnitGradient> by_offset;
  const auto add = [&](const StampOp& op, std::size_t last_op) {
    for (const auto* operands : {&op.updates, &op.writes}) {
      for (const StampOperand& operand : *operands) {
        if (operand.place != OperandPlace::kWeightGradients || operand.size.value == 0) continue;
        by_offset[operand.offset.value] = {unit, static_cast<std::int32_t>(last_op), {storage, operand.offset, operand.size}};
      }
    }
  };
  for (const StampOp& op : stamp.forward) add(op, 0);
  for (std::size_t op = 0; op < stamp.backward.size(); ++op) add(stamp.backward[op], op);
  std::vector<UnitGradient> gradients;
  for (const auto& [offset, gradient] : by_offset) gradients.push_back(gradient);
  STEPSIM_CHECK(gradients.empty() || !stamp.backward.empty());
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

bool makes_gradients(const std::vector<StampOp>& ops) {
  const auto is_gradient = [](const StampOperand& operand) {
    return operand.place == OperandPlace::kWeightGradients || operand.place == OperandPlace::kTiedWeightGradients;
  };
  return std::any_of(ops.begin(), ops.end(), [&](const StampOp& op) {
    return std::any_of(op.updates.begin(), op.updates.end(), is_gradient) || std::any_of(op.writes.begin(), op.writes.end(), is_gradient);
  });
}

ShardedUnit sharded_unit(const TemplateStamp& stamp, const UnitResidents& residents, std::int64_t ranks, const ParameterBytes& bytes) {
  ShardedUnit unit;
  unit.present = residents.parameters > 0;
  unit.makes_gradients_in_forward = makes_gradients(stamp.forward);
  const std::int64_t share = ResidentStorages::share(residents.parameters, ranks);
  unit.shard = Bytes(share * (bytes.master > 0 ? bytes.master : bytes.weight));
  unit.weights = std::max(stamp.own_weights, Bytes(share * ranks * bytes.weight));  // padded to the ranks
  unit.gradients = stamp.own_weight_gradients;
  unit.reduced_shard = Bytes(share * bytes.gradient);
  return unit;
}

void add_to_wrap(UnitWrap& wrap, const ShardedUnit& unit, std::int32_t number, std::int64_t ranks) {
  wrap.layer = unit.layer;
  if (!unit.present) return;
  wrap.units.push_back(number);
  wrap.weights += unit.weights;
  wrap.gradients += unit.gradients;
  wrap.reduced_shard += unit.reduced_shard;
  wrap.reduce_input += Bytes(unit.reduced_shard.value * ranks);
}

// Nothing is said of copies that are not made.
void add_works(OpGraphBuilder& builder, UnitWrap& wrap, const UnitSharding& sharding, const ParallelLayout& parallel,
               const ParameterBytes& bytes) {
  const std::int64_t ranks = parallel.sharding_ranks();
  const auto kernel = [&](Bytes read, Bytes written) { return builder.work(MemoryBound{.read = read, .written = written}); };
  if (sharding.weights) {
    Bytes shards;
    for (const std::int32_t unit : wrap.units) shards += sharding.units[static_cast<std::size_t>(unit)].shard;
    const Bytes cast(wrap.reduced_shard.value / bytes.gradient * bytes.weight);
    wrap.cast_shard = kernel(shards, cast);
    wrap.gather = builder.work(collective(parallel, CollectiveKind::kAllGather, wrap.weights, ranks, 1));
    wrap.copy_out = kernel(wrap.weights, wrap.weights);
  }
  wrap.reduce_copy = kernel(wrap.gradients, wrap.reduce_input);
  const Bytes message = sharding.casts ? wrap.reduce_input : wrap.gradients;
  wrap.reduce_scatter = builder.work(collective(parallel, CollectiveKind::kReduceScatter, message, ranks, 1));
  wrap.replicas = builder.work(collective(parallel, CollectiveKind::kAllReduce, wrap.reduced_shard, parallel.data / ranks, ranks));
  wrap.add = kernel(wrap.reduced_shard + wrap.reduced_shard, wrap.reduced_shard);
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
    if (head && stamps.ties_head) unit.tied = 0;
    add_to_wrap(wrap, unit, static_cast<std::int32_t>(number), parallel.sharding_ranks());
  }
}

}  // namespace

std::optional<UnitSharding> unit_sharding(OpGraphBuilder& builder, const ChunkStamps& stamps, std::span<const UnitResidents> residents,
                                          const ParallelLayout& parallel, const FrameworkPreset& framework, const ParameterBytes& bytes,
                                          std::int64_t micro_batches) {
  if (parallel.zero < 2 || parallel.data == 1) return std::nullopt;
  UnitSharding sharding;
  sharding.weights = parallel.zero >= 3;
  sharding.copies = framework.copies_out_of_gathers;
  sharding.tables = sharding.copies && framework.copies_pointer_tables;
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
  sharding.marker = builder.work(Marker{});
  constexpr Bytes kTable(1024);  // a few pointers and sizes a parameter: its latency counts, not its bytes
  sharding.table_copy = builder.work(Copy{.bytes = kTable, .direction = CopyDirection::kHostToDevice});
  sharding.freed = builder.label("freed");
  sharding.table = builder.label("pointer table copy");
  sharding.reduced = builder.label("gradients reduced");
  sharding.gathered_name = builder.label("gathered weights");
  sharding.weights_name = builder.label("unsharded weights");
  sharding.gradients_name = builder.label("unsharded gradients");
  sharding.reduce_input_name = builder.label("reduce-scatter input");
  sharding.reduced_name = builder.label("reduced gradient shard");
  for (std::size_t number = 0; number < stamps.units(); ++number) {
    sharding.units.push_back(sharded_unit(stamps.unit(number), residents[number], parallel.sharding_ranks(), bytes));
  }
  add_wraps(sharding, stamps, parallel, framework);
  for (UnitWrap& wrap : sharding.wraps) {
    if (!wrap.units.empty()) add_works(builder, wrap, sharding, parallel, bytes);
  }
  return sharding;
}

}  // namespace stepsim
