// Which layers, and whether the embedding or the head, each model chunk of each pipeline stage holds. Knows no sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/chunk_placement.h"

namespace stepsim {

// A run of consecutive layers.
struct ModelChunk {
  std::int64_t first_layer = 0, layers = 0;
  bool embedding = false, head = false;
  friend bool operator==(const ModelChunk&, const ModelChunk&) = default;
};

struct StageLayout {
  std::int32_t stages = 1, chunks = 1;          // chunks of a stage
  std::vector<ModelChunk> parts;                // in model order
  PipelineKind schedule = PipelineKind::k1F1B;  // where they lie
  ChunkPlacement placement() const { return {schedule, stages, chunks}; }
  const ModelChunk& chunk(std::int32_t stage, std::int32_t index) const {
    return parts[static_cast<std::size_t>(placement().part({stage, index}))];
  }
  std::int64_t layers_of(std::int32_t stage) const;  // of all its chunks
  bool has_embedding(std::int32_t stage) const;      // one of its chunks
  bool has_head(std::int32_t stage) const;
};

// How the user wants layers to be split. All of it empty: evenly.
struct StageSplit {
  // Megatron-LM's --pipeline-model-parallel-layout: E embedding, t layer, L head and loss, m multi-token prediction (not built yet), |
  // between model chunks, x*N and (xy)*N repeat, also within one another; commas are cosmetic: "Et*3|(tt|)*6tmL". Its number of chunks is
  // stages x chunks (DualPipe: stages). As in Megatron-LM a chunk may hold no layer, or nothing at all.
  std::string layout{};
  // Of all chunks of the stage; DualPipe: of the first and the last part, both of which both of these stages hold.
  std::int64_t first_stage_layers = 0, last_stage_layers = 0;  // 0: an even share of what is left (Megatron-LM's decoder-first/last-...)
};

// InputError "--pp-layout: found ..., wanted ..." (with the column in the string), "--pp: ...", "--virtual-stages: ...",
// "--set parallel.first_stage_layers: ..." where layers cannot be split so: layers not divisible by stages x chunks, more chunks than
// layers, a layout with another number of layers or chunks, without E first or L last. Absurd repeats (10^9) are refused, not expanded; so
// are more than 2^20 chunks. `chunks`: of a stage, as chunks_of_stage() has it. STEPSIM_CHECK: all numbers at least 1.
StageLayout stage_layout(std::int64_t layers, std::int32_t stages, std::int32_t chunks, const StageSplit&,
                         PipelineKind = PipelineKind::k1F1B);

}  // namespace stepsim
