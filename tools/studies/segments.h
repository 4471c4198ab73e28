// The fastest single-level segmentation of a chain: what torch.utils.checkpoint and Megatron-LM's recompute methods can express.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/studies/chain_writer.h"

namespace stepsim {

// Over all partitions into consecutive segments, each kept or a checkpoint that runs again once. None: none fits. Exact: by layer, all
// pairs of bytes held and time of which no other is less in both.
std::optional<std::vector<ChainSegment>> fastest_segments(const Chain& chain, std::int64_t device_budget);

}  // namespace stepsim
