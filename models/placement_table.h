// What becomes of each saved tensor, as people write it: rows of a table and the usual policies by name. Turned into a plan by
// placement_plan.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/layer_stack.h"
#include "models/offload_policy.h"

namespace stepsim {

enum class PlacementAction : std::uint8_t { kKeep, kRecompute, kOffload };

struct PlacementRow {
  std::int64_t first_layer = 0, last_layer = -1;  // both included; last -1: the last layer
  std::string module_or_slot;                     // a module name ("core_attn") or a slot name ("qkv output"); "*": every saved slot
  PlacementAction action = PlacementAction::kKeep;
  std::int64_t first_micro_batch = 0, last_micro_batch = -1;  // likewise
  std::int32_t slices = 1, of_slices = 1;                     // kOffload: the first `slices` of `of_slices` equal parts
};

inline constexpr std::int32_t kMostPlacementRows = 1'000'000;  // of one policy; a plan by tensor has layers x saved tensors

enum class RecomputeGranularity : std::uint8_t { kNone, kFull, kSelective };
enum class RecomputeMethod : std::uint8_t { kUniform, kBlock };

// The policies of the command line. Exactly one of (granularity, segments, segment_sizes, halving) is in force; rows refine kNone and
// kSelective, rows that offload all of them: what is kept may go to the host meanwhile.
struct PlacementPolicy {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  RecomputeMethod method = RecomputeMethod::kUniform;
  std::int64_t num_layers = 1;              // uniform: layers a segment; block: how many layers, from the first, are run again
  std::vector<std::string> modules;         // selective; empty: {"core_attn"}
  std::int64_t segments = 0;                // K > 0: K segments as equal as possible, the larger ones first (at the input)
  std::vector<std::int64_t> segment_sizes;  // from the input to the output; must add up to the layers
  bool halving = false;                     // Chen 2016: recursive halving
  std::vector<PlacementRow> rows;
  OffloadPolicy offload;

  bool offloads() const;  // some tensor may go to the host
  bool same_for_all_micro_batches() const;
};
inline constexpr std::int32_t kMostSlices = 64;

// Names that Megatron-LM gives to --recompute-modules and which of them discard outputs (the rest are ordinary checkpoints of a module).
struct RecomputeModule {
  std::string name;
  bool discards_output = false;  // only the module's outputs are dropped and re-made just before their first reader in backward
};
std::vector<RecomputeModule> recompute_modules();

// Impossible policies (unknown module with the nearest, sizes that do not add up, N outside 1..layers, a module that no kind of layer has,
// more than kMostPlacementRows rows, a re-run of a layer that makes what others read): InputError "--flag: found X, wanted Y". Returns
// warnings for a user ("core_attn with flash attention saves 0.1 %").
std::vector<std::string> check_policy(const PlacementPolicy&, const LayerStack&, AttentionKind);
inline std::vector<std::string> check_policy(const PlacementPolicy& policy, const LayerTemplate& layer, std::int64_t layers,
                                             AttentionKind attention) {
  return check_policy(policy, LayerStack(layer, layers), attention);
}

}  // namespace stepsim
