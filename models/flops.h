// FLOPs of a step in the conventions that published numbers use, from dimensions alone. All per the whole step and all GPUs; a multiply-add
// counts 2. Sources and the reference values: ARCHITECTURE.md "Metrics"; tests/validation/flops_conventions.csv.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/placement_plan.h"
#include "models/training_recipe.h"

namespace stepsim {

enum class FlopsConvention : std::uint8_t {
  kMegatronCausal,     // Megatron-LM today: causal attention halved, padded vocabulary
  kMegatronFull,       // 2205.05198 equation 7: full square attention
  kPalm,               // 6N + 12 L H Q T, N total (with experts the activated ones, here and below)
  k6N,                 // 6N, N total including embeddings
  kMaxText,            // causal half, router counted
  kTorchTitan,         // 6 (N - embedding) + 12 L H Q T, no halving
  kLlmFoundry,         // 6 (N - embedding if untied) + 12 L d T
  k6NWithoutEmbedding  // 6 (N - embedding)
};

struct StepFlops {
  Flops model;     // forward and backward once
  Flops hardware;  // with what runs again (the placement's re-runs in this convention's terms)
};

std::string convention_name(FlopsConvention);
std::optional<FlopsConvention> convention_from_name(std::string_view name);
std::vector<FlopsConvention> all_conventions();
// kMegatronFull for LayerNorm+GeLU models, kMegatronCausal otherwise.
FlopsConvention default_convention(const ModelSpec&);

// Forward FLOPs of one token (an encoder-decoder's: of the encoder's sequence, which the decoder's tokens are spread over), summed over all
// layers of whatever kind: experts count top_k times, a window limits keys where a convention adds up products.
//
// `packed`: documents of one sequence, whose tokens add up to it. Megatron-LM's conventions count the sum of squared lengths
// (num_floating_point_operations, seqlen_squared_sum), each document its own window; all others have one length in their formula and count
// the whole sequence, whatever is packed into it (PaLM appendix B, torchtitan utils.py, llm-foundry, MaxText; 6N counts no attention).
struct FlopsPerToken {
  double layer_matrices = 0;  // matrix products of the layers, without attention scores
  double attention = 0;       // QK^T and PV of the layers in this convention
  double head = 0;
  double multi_token = 0;  // layers, projections and heads of multi-token prediction
  double model = 0;        // forward + backward of everything: 3 forward
  double forward() const { return layer_matrices + attention + head + multi_token; }
};
FlopsPerToken flops_per_token(FlopsConvention, const ModelSpec&, std::int64_t sequence, std::int64_t vocab_padded,
                              std::int64_t decoder_sequence = 0, std::span<const std::int64_t> packed = {});

// What the placement runs again, in units of the forward of the model's average layer (matrices, attention apart), summed over the stage's
// layers, for one micro-batch. A layer with more work than the average counts more than 1.
struct Rerun {
  double layer_matrices = 0;  // e.g. 96 for full recompute of 96 layers
  double attention = 0;       // e.g. 96 for full or selective core_attn
  double head = 0;            // of the head's forward, e.g. 0.75 in PaLM's rule; plans of layers leave it 0
};
// The average is that of the stack that `stack` is a part of.
Rerun rerun_of_plan(const PlacementPlan&, const LayerStack& stack);
inline Rerun rerun_of_plan(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  return rerun_of_plan(plan, LayerStack(layer, layers));
}

// `rerun` is of all stages together, for one micro-batch.
StepFlops step_flops(FlopsConvention, const ModelSpec&, const TrainingRecipe&, std::int64_t vocab_padded, const Rerun&);

// A peak without its name says nothing: FP8 dense and BF16 sparse are the same number.
struct NamedPeak {
  std::string name;  // "h100-sxm-80gb bf16 dense"
  FlopsPerSecond per_device;
};
struct Utilisation {
  double mfu = 0, hfu = 0;  // fractions
  std::string peak_name;    // of which
};
// The step must last and the peak be above 0.
Utilisation utilisation(const StepFlops&, Duration step, std::int64_t devices, const NamedPeak&);

}  // namespace stepsim
