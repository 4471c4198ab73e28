// What a Megatron-Bridge performance recipe sets that the row of a published table does not print: read in the recipes of the releases
// (NVIDIA-NeMo/Megatron-Bridge scripts/performance, v0.1.0 to v0.6.0; spec accuracy.md C.2). Knows no measured number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/row_cells.h"

namespace stepsim {

struct BridgeRecipe {
  std::string container;           // "26.04": of the NeMo container, without its patch number
  std::string dispatcher;          // of tokens to experts, by the flag's name; "" without experts
  std::string graph = "none";      // CUDA graph: none, scopes, full
  std::string recompute_modules;   // "" nothing is recomputed
  bool overlaps_exchange = false;  // dispatch and combine beside another micro-batch's compute, with delayed weight gradients
  bool fused_expert_mlp = false;
  bool low_precision_attention = false;
  bool expandable_segments = false;    // of the allocator
  bool overlaps_tensor = false;        // tensor-parallel collectives by userbuffers
  std::int64_t offloaded_layers = 0;   // by Transformer Engine's offload of whole layers
  bool known = true;                   // its source says which recipe it is, or its release leaves no choice
  std::vector<std::string> guesses{};  // what is taken from another release or from a recipe with the same layout
};

BridgeRecipe bridge_recipe(const RowCells&);

// "25.09" of "25.09", "26.04" of "26.04.01"; cards of 2026-07 and later ran the code of 26.08.
std::string bridge_container(std::string_view source_date);

// Megatron-LM's layout string, where layers are not split evenly: DeepSeek-V3's of the recipe, otherwise embedding and loss count as a
// layer each (account_for_embedding_in_pipeline_split). "": evenly.
std::string bridge_layout(std::string_view model, std::int64_t layers, std::int64_t chunks);

}  // namespace stepsim
