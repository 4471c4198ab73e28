// One layer of a stage as a list of ops over named slots, per device and micro-batch, forward and backward. The step builder stamps it for
// every layer and micro-batch; placement decides which forward ops run again and what is dropped. Ops and slots have no id of a graph.
//
// Invariants:
//  1. forward ops are in execution order; backward ops too. A slot is written by exactly one forward op (its producer) or one backward
//     op, or is an input; in-place writes name the slot again in `updates`.
//  2. A backward op reads saved slots (written in forward) and gradient slots (written in backward).
//     Workspace written in forward is not used in backward. A view (view_of) is written with its root and never listed in `writes`.
//  3. The layer's input is slot `input`, its output slot `output`, the output's gradient `output_gradient`, the input's `input_gradient`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/framework_preset.h"
#include "models/model_spec.h"
#include "models/training_recipe.h"
#include "models/vocabulary.h"
#include "sim/op_work.h"

namespace stepsim {

using SlotIndex = std::int32_t;
inline constexpr SlotIndex kNoSlot = -1;

enum class SlotKind : std::uint8_t {
  kInput,           // from the previous template: layer input or output gradient
  kForward,         // written in forward; saved if a backward op reads it, else transient
  kGradient,        // activation gradient, written in backward
  kWorkspace,       // lives within one op or a few (gathered input, scores, fp32 copies)
  kWeight,          // parameters of the layer, resident
  kWeightGradient,  // main gradient buffer of the layer, resident
  kBatch,           // token ids, labels, attention mask
  kShared,          // made in forward by one layer, read by others too, by name: an encoder's output
  kSharedGradient,  // summed in backward by those others, read by that one
};

struct Slot {
  std::string name;  // "qkv output", unique in the template
  SlotKind kind = SlotKind::kForward;
  Bytes size;                       // per device and micro-batch
  std::vector<std::int64_t> shape;  // as computed, per device; for explain
  DType dtype = DType::kBf16;
  Role role = Role::kActivations;  // when not saved: workspace or other
  std::string module;           // module names (comma separated) whose policies select it, from the producer: "core_attn", "layernorm", ...
  SlotIndex view_of = kNoSlot;  // shares the storage of that slot (q, k, v of one buffer); size is then a part of it
  bool expert = false;          // of a weight or its gradient: a routed expert's, shared with fewer ranks than the rest
};

enum class OpStream : std::uint8_t { kCompute, kTensor, kContext, kExpert };  // the others: beside compute

struct TemplateOp {
  std::string name;    // "qkv projection"; the kind label
  std::string module;  // of which Megatron-LM module it is a part: "core_attn", "mlp", ... ("" none)
  OpWork work;
  Group group = Group::kNone;  // for collectives
  OpStream stream = OpStream::kCompute;
  std::vector<SlotIndex> reads, writes;  // writes: first write claims the storage
  std::vector<SlotIndex> updates;        // read and written in place
  std::vector<SlotIndex> holds;          // kept alive without traffic
  bool random = false;                   // uses the random state: a re-run restores it
  std::vector<std::int32_t> after;       // backward or forward ops of the same template and direction it waits for besides its data
  bool deferrable = false;               // a head's weight gradient, where the recipe lets it wait for the end of the passes
};

struct LayerTemplate {
  std::string name;  // "layer", "embedding", "head"
  std::vector<Slot> slots;
  std::vector<TemplateOp> forward, backward;
  SlotIndex input = kNoSlot, output = kNoSlot, output_gradient = kNoSlot, input_gradient = kNoSlot;
  std::int64_t parameters = 0;         // per device, trained ones
  std::int64_t expert_parameters = 0;  // of which routed experts'
  std::int64_t frozen_parameters = 0;  // beside those
  Bytes frozen_bytes{};                // of the frozen ones, in the format in which they are kept
  Bytes cached_weights{};              // copies in the format of products below 16 bits, kept over the micro-batches
};

// What the templates are made from. All of one device of a tensor-parallel group.
struct TemplateContext {
  const ModelSpec& model;
  const TrainingRecipe& training;
  const ParallelLayout& parallel;
  const FrameworkPreset& framework;
};

LayerTemplate transformer_layer(const TemplateContext&, const LayerKind&);  // attention + mlp blocks, sequential or parallel
LayerTemplate transformer_layer(const TemplateContext&);                    // of the model's first kind
LayerTemplate embedding_layer(const TemplateContext&);                      // tokens -> layer input
LayerTemplate head_layer(const TemplateContext&);  // final norm, head, cross entropy; its backward starts the backward pass

// Bytes of slots that backward reads, views and shared inputs once: what a layer keeps between forward and backward under policy none.
Bytes saved_bytes(const LayerTemplate&);
// Indices of those slots (roots of views), ascending.
std::vector<SlotIndex> saved_slots(const LayerTemplate&);

// Module name -> names of the saved slots that a policy on it drops, in order of first appearance.
std::vector<std::pair<std::string, std::vector<std::string>>> module_table(const LayerTemplate&);

}  // namespace stepsim
