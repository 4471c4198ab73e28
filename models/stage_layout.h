// Which layers, and whether the embedding or the head, each model chunk of each pipeline stage holds. Knows no sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepsim {

// A run of consecutive layers.
struct ModelChunk {
  std::int64_t first_layer = 0, layers = 0;
  bool embedding = false, head = false;
  friend bool operator==(const ModelChunk&, const ModelChunk&) = default;
};

struct StageLayout {
  std::int32_t stages = 1, chunks = 1;  // chunks of a stage
  std::vector<ModelChunk> parts;        // in model order: part = chunk * stages + stage
  const ModelChunk& chunk(std::int32_t stage, std::int32_t index) const {
    return parts[static_cast<std::size_t>(index) * static_cast<std::size_t>(stages) + static_cast<std::size_t>(stage)];
  }
  std::int64_t layers_of(std::int32_t stage) const;
};

// How the user wants layers to be split. All of it empty: evenly.
struct StageSplit {
  // Megatron-LM's --pipeline-model-parallel-layout: E embedding, t layer, L head and loss, m multi-token prediction (not built yet), |
  // between model chunks, x*N and (xy)*N repeat, also within one another; commas are cosmetic: "Et*3|(tt|)*6tmL". Its number of chunks is
  // stages x chunks. As in Megatron-LM a chunk may hold no layer, or nothing at all.
  std::string layout{};
  std::int64_t first_stage_layers = 0, last_stage_layers = 0;  // 0: an even share of what is left (Megatron-LM's decoder-first/last-...)
};

// InputError "--pp-layout: found ..., wanted ..." (with the column in the string), "--pp: ...", "--virtual-stages: ...",
// "--set parallel.first_stage_layers: ..." where layers cannot be split so: layers not divisible by stages x chunks, more chunks than
// layers, a layout with another number of layers or chunks, without E first or L last. Absurd repeats (10^9) are refused, not expanded; so
// are more than 2^20 chunks. STEPSIM_CHECK: all numbers at least 1.
StageLayout stage_layout(std::int64_t layers, std::int32_t stages, std::int32_t chunks, const StageSplit&);

}  // namespace stepsim
