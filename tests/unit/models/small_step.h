// A step small enough to count by hand: a layer of three forward and three backward ops, an embedding and a head of one op each way.
#pragma once

#include <algorithm>
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

// input -fc1-> fc1 output -act-> act output -fc2-> output (and the residual input).
inline LayerTemplate small_layer() {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                        // 0
                 small_slot("fc1 output", SlotKind::kForward, 40, "mlp"),         // 1
                 small_slot("act output", SlotKind::kForward, 16, "mlp,act"),     // 2
                 small_slot("output", SlotKind::kForward, 8),                     // 3
                 small_slot("output gradient", SlotKind::kInput, 8),              // 4
                 small_slot("act gradient", SlotKind::kGradient, 16),             // 5
                 small_slot("fc1 gradient", SlotKind::kGradient, 40),             // 6
                 small_slot("input gradient", SlotKind::kGradient, 8),            // 7
                 small_slot("weight", SlotKind::kWeight, 200),                    // 8
                 small_slot("weight gradient", SlotKind::kWeightGradient, 400)};  // 9
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

inline StepTemplates small_templates() {
  LayerTemplate embedding{.name = "embedding", .slots = {}, .forward = {}, .backward = {}};
  embedding.slots = {small_slot("token ids", SlotKind::kBatch, 3), small_slot("table", SlotKind::kWeight, 20),
                     small_slot("output", SlotKind::kForward, 8), small_slot("output gradient", SlotKind::kInput, 8),
                     small_slot("table gradient", SlotKind::kWeightGradient, 40)};
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
  return {embedding, small_layer(), head};
}

inline StepRequest small_request(std::int64_t layers) {
  StepRequest request;
  request.model.layers = layers;
  request.model.tied_head = false;
  request.training.sequence = 1;
  return request;
}

// Every op takes 1 us and costs the host nothing.
class ConstantCost : public CostModel {
 public:
  Cost cost(const OpWork&, DeviceId) const override { return {.fixed = Duration(1'000'000), .alone = {}, .issue = {}, .loads = {}}; }
};

inline StepResult run_step(const BuiltStep& built) { return simulate(built.graph, plain_machine(1), ConstantCost()); }

inline Bytes saved_peak(const BuiltStep& built) { return peak_of_roles(built.graph, run_step(built), DeviceId{0}, built.saved_roles); }

inline std::int64_t count_ops(const OpGraph& graph, std::string_view kind, LabelId phase = {}) {
  return std::count_if(graph.ops().begin(), graph.ops().end(),
                       [&](const Op& op) { return graph.label(op.kind) == kind && (!phase.valid() || op.phase == phase); });
}

}  // namespace stepsim
