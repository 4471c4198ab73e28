#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/offload_modules.h"
#include "models/recompute_groups.h"
#include "models/step_builder.h"
#include "tools/explain_report.h"
#include "tools/staging.h"

namespace stepsim {

// Bytes that an op sends over a link of its device: a ring's share of the message, a copy's bytes.
static Bytes link_bytes(const OpWork& work) {
  if (const auto* copy = std::get_if<Copy>(&work)) return copy->direction == CopyDirection::kDeviceToDevice ? Bytes() : copy->bytes;
  const auto* collective = std::get_if<Collective>(&work);
  if (collective == nullptr || collective->ranks < 2) return Bytes();
  const std::int64_t share = collective->message.value / collective->ranks * (collective->ranks - 1);
  switch (collective->kind) {
    case CollectiveKind::kAllReduce:
      return Bytes(2 * share);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kDispatch:
    case CollectiveKind::kCombine:
      return Bytes(share);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendReceive:
      return collective->message;
  }
  return Bytes();
}

static std::set<std::string> op_names(const LayerTemplate& layer) {
  std::set<std::string> names;
  for (const TemplateOp& op : layer.forward) names.insert(op.name);
  for (const TemplateOp& op : layer.backward) names.insert(op.name);
  return names;
}

// Which row of the layers an op belongs to: 0 embedding, 1 + i layer i, layers + 1 head; -1 none (the optimizer).
class LayerRows {
 public:
  explicit LayerRows(const Job& job) : layers_(job.model.layers) {
    const TemplateContext context{job.model, job.training, job.parallel, job.framework};
    embedding_ = op_names(embedding_layer(context));
    head_ = op_names(head_layer(context));
  }
  std::int64_t row(const OpGraph& graph, const Op& op) const {
    if (op.layer >= 0) return op.layer < layers_ ? op.layer + 1 : layers_ + 1;
    const std::string kind(graph.label(op.kind));
    return embedding_.count(kind) > 0 ? 0 : head_.count(kind) > 0 ? layers_ + 1 : -1;
  }
  std::string name(std::int64_t row) const { return row == 0 ? "embedding" : row > layers_ ? "head" : fmt::format("layer {}", row - 1); }
  std::int64_t count() const { return layers_ + 2; }

 private:
  std::int64_t layers_;
  std::set<std::string> embedding_, head_;
};

// From when the first part of each rendezvous op held its stream.
static std::map<OpId, TimePoint> first_parts(const StepResult& result) {
  std::map<OpId, TimePoint> first;
  for (const PartRun& part : result.parts) {
    const auto [known, added] = first.try_emplace(part.op, part.occupied);
    if (!added) known->second = std::min(known->second, part.occupied);
  }
  return first;
}

// As the model has it; what a profile decided reaches as much more or less as it takes less or more time.
static KernelExplanation explained_kernel(const StepRun& run, const OpWork& work, DeviceId device) {
  KernelExplanation kernel = run.modelled->explained(work);
  const CostOrigin origin = run.profiled != nullptr ? run.profiled->origin(work) : CostOrigin::kModelled;
  if (origin == CostOrigin::kModelled) return kernel;
  const Cost modelled = run.modelled->cost(work, device), profiled = run.profiled->cost(work, device);
  const double time_s = seconds(profiled.fixed + profiled.alone);
  if (time_s > 0) kernel.efficiency *= seconds(modelled.fixed + modelled.alone) / time_s;
  kernel.detail = (origin == CostOrigin::kMeasured ? "measured" : "interpolated") + (kernel.detail.empty() ? "" : ", " + kernel.detail);
  return kernel;
}

static void add_ops(const StepRun& run, const LayerRows& rows, Explanation& explained) {
  const OpGraph& graph = run.step.graph;
  const std::map<OpId, TimePoint> first = first_parts(run.run.result);
  for (const OpRun& timed : run.run.result.timeline) {
    const Op& op = graph.op(timed.op);
    const OpWork& work = graph.work(timed.op);
    if (op.micro_batch > 0 || std::holds_alternative<Marker>(work)) continue;
    const std::int32_t stage = op.stream.valid() ? graph.streams()[static_cast<std::size_t>(op.stream.index)].device.index : 0;
    const auto phase = static_cast<Phase>(graph.bucket(op.phase));
    const auto part = first.find(timed.op);
    explained.ops.push_back({.op = timed.op,
                             .stage = stage,
                             .name = graph.op_name(timed.op),
                             .phase = std::string(kPhaseNames[static_cast<std::size_t>(phase)]),
                             .kernel = explained_kernel(run, work, DeviceId{stage}),
                             .flops = arithmetic(work),
                             .memory = memory_traffic(work),
                             .link = link_bytes(work),
                             .start = timed.start,
                             .time = timed.end - timed.start,
                             .slowed = timed.slowed,
                             .waiting = part == first.end() ? Duration{} : timed.start - part->second});
    const std::int64_t row = rows.row(graph, op);
    if (row < 0) continue;
    LayerAccount& layer = explained.layers[static_cast<std::size_t>(row)];
    Flops& flops = phase == Phase::kRecompute ? layer.recompute : phase == Phase::kBackward ? layer.backward : layer.forward;
    flops += arithmetic(work);
  }
}

// Claims and releases of the storages of saved tensors.
static std::map<StorageId, TensorLife> lives_of(const StepRun& run) {
  const OpGraph& graph = run.step.graph;
  std::map<StorageId, TensorLife> lives;
  for (const SavedTensor& tensor : run.step.saved) {
    for (const StorageId storage : tensor.storages) lives[storage] = {};
  }
  std::map<StorageId, OpId> copy_of;
  for (const CopiedOutStorage& out : copied_storages(graph).out) copy_of[out.storage] = out.copy;
  for (const MemoryEvent& event : run.run.result.memory) {
    const auto life = lives.find(event.storage);
    if (life == lives.end()) continue;
    const auto copy = copy_of.find(event.storage);
    const bool freed_by_event = !event.by.valid() && event.bytes.value < 0 && copy != copy_of.end();
    const OpId op = freed_by_event ? copy->second : event.by;
    const std::string by = op.valid() ? graph.op_name(op) : "";
    if (event.bytes.value > 0) {
      life->second.born = by;
      life->second.born_at = event.at;
    } else {
      life->second.dies = by;
      life->second.dies_at = event.at;
    }
  }
  return lives;
}

Explanation explanation(const Job& job, const StepRun& run) {
  const LayerRows rows(job);
  Explanation explained;
  for (std::int64_t row = 0; row < rows.count(); ++row) explained.layers.push_back({.name = rows.name(row)});
  add_ops(run, rows, explained);
  const std::map<StorageId, TensorLife> lives = lives_of(run);
  for (const SavedTensor& tensor : run.step.saved) {
    const std::int64_t row = std::clamp<std::int64_t>(tensor.layer + 1, 0, rows.count() - 1);
    LayerAccount& layer = explained.layers[static_cast<std::size_t>(row)];
    (tensor.placement == "recompute" ? layer.dropped : layer.saved) += tensor.bytes;
    if (tensor.placement == "offload") layer.moved += tensor.bytes;
    TensorAccount account{rows.name(row), &tensor};
    for (const StorageId storage : tensor.storages) account.lives.push_back(lives.at(storage));
    explained.tensors.push_back(std::move(account));
  }
  return explained;
}

// "layers 0 to 2", "layer 3", "layers 3, 5, 7 .. 25 (12)": the layers of a kind.
static std::string layers_text(const LayerStack& stack, std::int32_t kind) {
  std::vector<std::string> runs;
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < stack.layers(); ++layer) {
    if (stack.kind_of(layer) != kind) continue;
    std::int64_t last = layer;
    while (last + 1 < stack.layers() && stack.kind_of(last + 1) == kind) ++last;
    runs.push_back(last == layer ? fmt::format("{}", layer) : fmt::format("{} to {}", layer, last));
    count += last - layer + 1;
    layer = last;
  }
  constexpr std::size_t kMostRuns = 4;
  if (runs.size() > kMostRuns) {
    return fmt::format("layers {}, {}, {} .. {} ({} in all)", runs[0], runs[1], runs[2], runs.back(), count);
  }
  return fmt::format("{} {}", count == 1 ? "layer" : "layers", fmt::join(runs, ", "));
}

// Of one kind of layer.
static std::vector<ModuleAccount> modules_of_kind(const LayerTemplate& layer, const SlotTable& slots) {
  std::vector<ModuleAccount> table;
  for (const RecomputeModule& module : recompute_modules()) {
    const auto of_module = [&](const auto& part) { return names_module(part.module, module.name); };
    const bool present = std::any_of(layer.forward.begin(), layer.forward.end(), of_module) ||
                         std::any_of(layer.slots.begin(), layer.slots.end(), of_module);
    if (!present) continue;
    ModuleAccount account{module.name, module.discards_output};
    for (const SlotIndex root : slots_of_module(layer, slots, module)) {
      const Slot& slot = layer.slots[static_cast<std::size_t>(root)];
      account.tensors.push_back(slot.name);
      account.bytes += slot.size;
    }
    table.push_back(std::move(account));
  }
  return table;
}

static std::vector<ModuleAccount> offload_modules_of_kind(const LayerTemplate& layer, const SlotTable& slots) {
  std::vector<ModuleAccount> table;
  for (const OffloadModule& module : offload_modules(layer, slots)) {
    ModuleAccount account{.name = module.name};
    for (const SlotIndex root : module.saved) {
      const Slot& slot = layer.slots[static_cast<std::size_t>(root)];
      account.tensors.push_back(slot.name);
      account.bytes += slot.size;
    }
    table.push_back(std::move(account));
  }
  return table;
}

// One kind behind another, in the order of their first layers.
template <class OfKind>
static std::vector<ModuleAccount> of_all_kinds(const Job& job, const OfKind& of_kind) {
  const StepTemplates templates = step_templates({job.model, job.training, job.parallel, job.framework});
  const LayerStack stack = layer_stack(templates, job.model.layers);
  std::vector<ModuleAccount> table;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    for (ModuleAccount& account : of_kind(stack.kind(kind), stack.kind_table(kind))) {
      if (stack.kinds() > 1) account.layers = layers_text(stack, kind);
      table.push_back(std::move(account));
    }
  }
  return table;
}

std::vector<ModuleAccount> module_table(const Job& job) { return of_all_kinds(job, modules_of_kind); }

std::vector<ModuleAccount> offload_modules_of(const Job& job) { return of_all_kinds(job, offload_modules_of_kind); }

}  // namespace stepsim
