// A measured run of Megatron-LM's functional tests simulated, and what is alive at its peak by the rule that made it
// (spec/megatron_memory.md section 3).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/megatron_goldens.h"

namespace stepsim {

enum class PeakPart : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kBlas,
  kEngine,
  kGroupedEngine,
  kGlobalBuffer,
  kPipelineBuffers,
  kLayers,           // of the last chunk, but for what follows
  kScores,           // softmax and dropped softmax of unfused attention
  kMasks,            // of dropout, one byte an element
  kAttentionCopy,    // of flash attention's output
  kNormalisedHeads,  // q and k behind their own norm
  kExperts,          // of routed and shared experts and their router
  kEarlierChunks,    // of layers of all other chunks of the stage
  kEmbeddingMask,
  kFinalNorm,
  kLogits,         // 16-bit logits and one fp32 copy
  kFurtherLogits,  // the copy that is not made in place, gradients that wait
  kMultiToken,
  kBatch,
  kOther
};
inline constexpr std::size_t kPeakParts = 22;

struct GoldenPeak {
  std::array<std::int64_t, kPeakParts> bytes{};
  std::int64_t of(PeakPart part) const { return bytes[static_cast<std::size_t>(part)]; }
  std::int64_t total() const;
};

struct GoldenPeaks {
  GoldenPeak first, last;  // of the first and the last stage, amid training
};
GoldenPeaks golden_peaks(const GoldenRow& row);

// The rows on which spec/megatron_memory.md found its rules: no T5, BERT, FSDP, release or multi-token prediction.
bool is_core(const MegatronRun& run);

}  // namespace stepsim
