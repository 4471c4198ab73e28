// A step small enough to count by hand: a layer of three forward and three backward ops, an embedding and a head of one op each way; and
// what tests ask about its ops and storages.
#pragma once

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "models/step_builder.h"
#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/simulate.h"

namespace stepsim {

// Sizes of the small layer's storages, bytes. Saved: input, fc1 output, act output: 8 + 40 + 16 = 64.
inline constexpr std::int64_t kSmallCheckpoint = 8;
inline constexpr std::int64_t kSmallLayer = 64;

inline Slot small_slot(const std::string& name, SlotKind kind, std::int64_t bytes, const std::string& module = "") {
  return {.name = name, .kind = kind, .size = Bytes(bytes), .shape = {bytes}, .dtype = DType::kUint8, .module = module};
}

inline TemplateOp small_op(const std::string& name, std::vector<SlotIndex> reads, std::vector<SlotIndex> writes,
                           std::vector<SlotIndex> updates = {}, const std::string& module = "") {
  return {.name = name,
          .module = module,
          .work = MemoryBound{.read = Bytes(1), .written = Bytes(1)},
          .reads = std::move(reads),
          .writes = std::move(writes),
          .updates = std::move(updates),
          .holds = {},
          .after = {}};
}

// input -fc1-> fc1 output -act-> act output -fc2-> output (and the residual input). 100 parameters.
inline LayerTemplate small_layer(std::int64_t gradient_bytes = 4) {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                                         // 0
                 small_slot("fc1 output", SlotKind::kForward, 40, "mlp"),                          // 1
                 small_slot("act output", SlotKind::kForward, 16, "mlp,act"),                      // 2
                 small_slot("output", SlotKind::kForward, 8),                                      // 3
                 small_slot("output gradient", SlotKind::kInput, 8),                               // 4
                 small_slot("act gradient", SlotKind::kGradient, 16),                              // 5
                 small_slot("fc1 gradient", SlotKind::kGradient, 40),                              // 6
                 small_slot("input gradient", SlotKind::kGradient, 8),                             // 7
                 small_slot("weight", SlotKind::kWeight, 200),                                     // 8
                 small_slot("weight gradient", SlotKind::kWeightGradient, 100 * gradient_bytes)};  // 9
  layer.forward = {small_op("fc1", {0, 8}, {1}, {}, "mlp"), small_op("act", {1}, {2}, {}, "mlp,act"),
                   small_op("fc2", {2, 0, 8}, {3}, {}, "mlp")};
  layer.backward = {small_op("fc2 backward", {4, 2, 8}, {5}, {9}, "mlp"), small_op("act backward", {5, 1}, {6}, {}, "mlp,act"),
                    small_op("fc1 backward", {6, 0, 8}, {7}, {9}, "mlp")};
  layer.input = 0;
  layer.output = 3;
  layer.output_gradient = 4;
  layer.input_gradient = 7;
  layer.parameters = 100;
  return layer;
}

// `gradient_bytes` of a parameter: 4 in the main buffer, 2 where backward makes 16-bit gradients (ZeRO 2 and 3, fp16).
inline StepTemplates small_templates(std::int64_t gradient_bytes = 4) {
  LayerTemplate embedding{.name = "embedding", .slots = {}, .forward = {}, .backward = {}};
  embedding.slots = {small_slot("token ids", SlotKind::kBatch, 3), small_slot("table", SlotKind::kWeight, 20),
                     small_slot("output", SlotKind::kForward, 8), small_slot("output gradient", SlotKind::kInput, 8),
                     small_slot("table gradient", SlotKind::kWeightGradient, 10 * gradient_bytes)};
  embedding.forward = {small_op("embedding", {0, 1}, {2})};
  embedding.backward = {small_op("embedding backward", {0, 3}, {}, {4})};
  embedding.output = 2;
  embedding.output_gradient = 3;
  embedding.parameters = 10;
  LayerTemplate head{.name = "head", .slots = {}, .forward = {}, .backward = {}};
  head.slots = {small_slot("input", SlotKind::kInput, 8), small_slot("labels", SlotKind::kBatch, 3),
                small_slot("loss", SlotKind::kForward, 1), small_slot("input gradient", SlotKind::kGradient, 8)};
  head.forward = {small_op("loss", {0, 1}, {2})};
  head.backward = {small_op("loss backward", {0, 1}, {3})};
  head.input = 0;
  head.output = 2;
  head.input_gradient = 3;
  return {.embedding = embedding, .kinds = {small_layer(gradient_bytes)}, .kind_of = {}, .head = head};
}

inline StepRequest small_request(std::int64_t layers) {
  StepRequest request;
  request.model.layers = layers;
  request.model.tied_head = false;
  request.training.sequence = 1;
  return request;
}

// The small layer with weight gradients in ops of their own, as zero-bubble schedules need them; that of fc1 reads a gathered copy of the
// input.
inline StepTemplates split_templates() {
  StepTemplates templates = small_templates();
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("gathered input", SlotKind::kWorkspace, 16));  // 10
  layer.backward = {small_op("fc2 input gradient", {4, 8}, {5}), small_op("fc2 weight gradient", {4, 2}, {}, {9}),
                    small_op("act backward", {5, 1}, {6}),       small_op("fc1 input gradient", {6, 8}, {7}),
                    small_op("fc1 input gather", {0}, {10}),     small_op("fc1 weight gradient", {6, 10}, {}, {9})};
  return templates;
}

inline StepRequest staged_request(std::int64_t layers, std::int32_t stages, std::int64_t micro_batches,
                                  PipelineKind schedule = PipelineKind::k1F1B, std::int32_t chunks = 1) {
  StepRequest request = small_request(layers);
  request.parallel.pipeline = stages;
  request.parallel.virtual_stages = chunks;
  request.parallel.schedule = schedule;
  request.training.global_batch = micro_batches;
  return request;
}

// Every op takes 1 us and costs the host nothing.
class ConstantCost : public CostModel {
 public:
  Cost cost(const OpWork&, DeviceId, TransferSide) const override {
    return {.fixed = Duration(1'000'000), .alone = {}, .issue = {}, .loads = {}};
  }
};

inline StepResult run_step(const BuiltStep& built) {
  return simulate(built.graph, plain_machine(built.graph.device_count()), ConstantCost());
}

inline Bytes saved_peak(const BuiltStep& built, std::int32_t device = 0) {
  return peak_of_roles(built.graph, run_step(built), DeviceId{device}, built.saved_roles);
}

inline std::int64_t count_ops(const OpGraph& graph, std::string_view kind, LabelId phase = {}) {
  return std::count_if(graph.ops().begin(), graph.ops().end(),
                       [&](const Op& op) { return graph.label(op.kind) == kind && (!phase.valid() || op.phase == phase); });
}

inline DeviceId device_of(const OpGraph& graph, StreamId stream) { return graph.streams()[static_cast<std::size_t>(stream.index)].device; }

// Of its first part; none for a marker outside every stream.
inline DeviceId device_of(const OpGraph& graph, OpId op) {
  return graph.op(op).stream.valid() ? device_of(graph, graph.op(op).stream) : DeviceId{};
}

// In the order of their ids; of one device or of all.
inline std::vector<OpId> ops_of(const OpGraph& graph, std::string_view kind, DeviceId device = {}) {
  std::vector<OpId> found;
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(graph.ops().size()); ++index) {
    if (graph.label(graph.op(OpId{index}).kind) != kind || (device.valid() && device_of(graph, OpId{index}) != device)) continue;
    found.push_back(OpId{index});
  }
  return found;
}

inline std::vector<OpId> compute_ops(const OpGraph& graph, DeviceId device) {
  for (std::int32_t stream = 0; stream < static_cast<std::int32_t>(graph.streams().size()); ++stream) {
    const Stream& each = graph.streams()[static_cast<std::size_t>(stream)];
    const std::span<const OpId> order = graph.stream_order(StreamId{stream});
    if (each.device == device && each.compute) return {order.begin(), order.end()};
  }
  return {};
}

inline const Storage& storage_of(const OpGraph& graph, StorageId storage) {
  return graph.storages()[static_cast<std::size_t>(storage.index)];
}

// By name, without layer and micro-batch; of one device or of all.
inline std::vector<StorageId> storages_of(const OpGraph& graph, std::string_view name, DeviceId device = {}) {
  std::vector<StorageId> found;
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(graph.storages().size()); ++index) {
    const Storage& each = storage_of(graph, StorageId{index});
    if (graph.label(each.name) == name && (!device.valid() || each.device == device)) found.push_back(StorageId{index});
  }
  return found;
}

// Whose compute ops of that phase the device runs.
inline std::set<std::int32_t> layers_on(const BuiltStep& built, std::int32_t device, Phase phase) {
  std::set<std::int32_t> layers;
  for (const OpId id : compute_ops(built.graph, DeviceId{device})) {
    const Op& op = built.graph.op(id);
    if (op.phase == built.phase_labels[static_cast<std::size_t>(phase)] && op.layer >= 0) layers.insert(op.layer);
  }
  return layers;
}

// By op.
inline std::vector<OpRun> runs_by_op(const OpGraph& graph, const StepResult& result) {
  std::vector<OpRun> runs(graph.ops().size());
  for (const OpRun& run : result.timeline) runs[static_cast<std::size_t>(run.op.index)] = run;
  return runs;
}

// Who claims a storage and who is the last to hold it; "" where nobody does.
struct Life {
  std::string born, dead;
  friend bool operator==(const Life&, const Life&) = default;
};

inline void PrintTo(const Life& life, std::ostream* out) { *out << '"' << life.born << "\" to \"" << life.dead << '"'; }  // for gtest

inline Life life_of(const OpGraph& graph, const StepResult& result, StorageId storage) {
  Life life;
  for (const MemoryEvent& event : result.memory) {
    if (event.storage != storage || !event.by.valid()) continue;
    (event.bytes.value > 0 ? life.born : life.dead) = graph.op_name(event.by);
  }
  return life;
}

// "fc1 backward" of any micro-batch and layer among the predecessors, and so on: names of what an op has edges from, in their order.
inline std::vector<std::string> waits_of(const OpGraph& graph, OpId op) {
  std::vector<std::string> names;
  for (const Edge& edge : graph.predecessors(op)) names.push_back(graph.op_name(edge.from));
  return names;
}

}  // namespace stepsim
