// Layers of two kinds small enough to count by hand: the small layer of small_step.h, and one with a router and experts.
#pragma once

#include "tests/unit/models/small_step.h"

namespace stepsim {

// input -router-> scores -experts-> output. Its slots have other numbers than the small layer's: 0 input, 1 scores, 2 output. Saved: input
// and scores, 8 + 4 = 12 bytes. 50 parameters, of which 20 are the experts'.
inline constexpr std::int64_t kExpertsLayer = 12;
inline LayerTemplate experts_layer() {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                               // 0
                 small_slot("scores", SlotKind::kForward, 4, "moe"),                     // 1
                 small_slot("output", SlotKind::kForward, 8),                            // 2
                 small_slot("output gradient", SlotKind::kInput, 8),                     // 3
                 small_slot("scores gradient", SlotKind::kGradient, 4),                  // 4
                 small_slot("input gradient", SlotKind::kGradient, 8),                   // 5
                 small_slot("experts weight", SlotKind::kWeight, 40),                    // 6
                 small_slot("experts weight gradient", SlotKind::kWeightGradient, 80),   // 7
                 small_slot("router weight", SlotKind::kWeight, 60),                     // 8
                 small_slot("router weight gradient", SlotKind::kWeightGradient, 120)};  // 9
  layer.slots[6].expert = layer.slots[7].expert = true;
  layer.forward = {small_op("router", {0, 8}, {1}, {}, "moe"), small_op("experts", {1, 0, 6}, {2}, {}, "moe")};
  layer.backward = {small_op("experts backward", {3, 1, 6}, {4}, {7}), small_op("router backward", {4, 3, 0, 8}, {5}, {9})};
  layer.input = 0;
  layer.output = 2;
  layer.output_gradient = 3;
  layer.input_gradient = 5;
  layer.parameters = 50;
  layer.expert_parameters = 20;
  return layer;
}

// `kind_of`: 0 the small layer, 1 the one with experts.
inline StepTemplates two_kinds(std::vector<std::int32_t> kind_of) {
  StepTemplates templates = small_templates();
  templates.kinds.push_back(experts_layer());
  templates.kind_of = std::move(kind_of);
  return templates;
}

// An encoder-decoder: small layers, a layer that makes "encoder output" of its input and reads it, layers that read it.
// The maker: 0 input, 1 encoder output, 2 output; the readers: 0 input, 1 output, 2 encoder output.
inline LayerTemplate maker_layer() {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                              // 0
                 small_slot("encoder output", SlotKind::kShared, 24, "layernorm"),      // 1
                 small_slot("output", SlotKind::kForward, 8),                           // 2
                 small_slot("output gradient", SlotKind::kInput, 8),                    // 3
                 small_slot("encoder output gradient", SlotKind::kSharedGradient, 24),  // 4
                 small_slot("input gradient", SlotKind::kGradient, 8),                  // 5
                 small_slot("weight", SlotKind::kWeight, 20),                           // 6
                 small_slot("weight gradient", SlotKind::kWeightGradient, 40)};         // 7
  layer.forward = {small_op("encoder end", {0}, {1}, {}, "layernorm"), small_op("first", {1, 6}, {2})};
  layer.backward = {small_op("first backward", {3, 1, 6}, {}, {4, 7}), small_op("encoder end backward", {4, 0}, {5})};
  layer.input = 0;
  layer.output = 2;
  layer.output_gradient = 3;
  layer.input_gradient = 5;
  layer.parameters = 10;
  return layer;
}

inline LayerTemplate reader_layer() {
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                              // 0
                 small_slot("output", SlotKind::kForward, 8),                           // 1
                 small_slot("encoder output", SlotKind::kShared, 24),                   // 2
                 small_slot("output gradient", SlotKind::kInput, 8),                    // 3
                 small_slot("input gradient", SlotKind::kGradient, 8),                  // 4
                 small_slot("encoder output gradient", SlotKind::kSharedGradient, 24),  // 5
                 small_slot("weight", SlotKind::kWeight, 20),                           // 6
                 small_slot("weight gradient", SlotKind::kWeightGradient, 40)};         // 7
  layer.forward = {small_op("cross", {0, 2, 6}, {1})};
  layer.backward = {small_op("cross backward", {3, 2, 0, 6}, {4}, {5, 7})};
  layer.input = 0;
  layer.output = 1;
  layer.output_gradient = 3;
  layer.input_gradient = 4;
  layer.parameters = 10;
  return layer;
}

// Layers 0 and 1 the encoder's, 2 to 4 the decoder's.
inline StepTemplates encoder_decoder() {
  StepTemplates templates = small_templates();
  templates.kinds.push_back(maker_layer());
  templates.kinds.push_back(reader_layer());
  templates.kind_of = {0, 0, 1, 2, 2};
  return templates;
}

}  // namespace stepsim
