// In which order each pipeline stage runs its passes: forward, backward and weight-gradient passes of model chunks and micro-batches.
// Knows no layer, no time and no graph. Sources: GPipe 1811.06965; PipeDream-flush (1F1B) and interleaved 2104.04473 section 2.2;
// zero bubble H1 2401.10241 with the order of spec/engine.md section 7; ZB-V and DualPipe: folded_schedule.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace stepsim {

enum class PipelineKind : std::uint8_t { kGPipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipe };
std::string_view pipeline_name(PipelineKind);  // "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"

enum class PassKind : std::uint8_t {
  kForward,
  kBackward,  // whole backward; without the weight gradients where the stage has a weight pass of that chunk and micro-batch
  kWeight,    // weight gradients, zero-bubble schedules and DualPipe only
};
constexpr std::size_t at(PassKind kind) { return static_cast<std::size_t>(kind); }

struct Pass {
  PassKind kind = PassKind::kForward;
  std::int32_t chunk = 0;  // of the stage, 0-based; which part of the model it is: chunk_placement.h
  std::int32_t micro_batch = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

// The passes of one stage in order. `exchanges[i]`: after pass i a framework without overlapped point-to-point sends what the passes since
// the last exchange made, and posts the receives of what the passes until the next exchange need (Megatron-LM schedules.py: after every
// pass under 1F1B; after every warm-up forward, every forward-backward pair and every cool-down backward when interleaved). There is one
// such exchange before the first pass too. Weight passes are followed by none.
struct StagePasses {
  std::vector<Pass> passes;
  std::vector<bool> exchanges;
  // pairs[i]: pass i, a forward pass, and pass i + 1, a backward pass that needs nothing of it, run as one: both have what they wait for
  // before either starts, their layers take turns, and no exchange stands between them. Empty: no pass is paired.
  std::vector<bool> pairs{};
  // False: there are no exchanges. Without overlapped point-to-point a receive is then posted after the pass (or pair) before the one that
  // needs it, which waits for it; what is sent keeps no pass waiting.
  bool waits_for_sends = true;

  bool pairs_with_next(std::int32_t pass) const { return !pairs.empty() && pairs[static_cast<std::size_t>(pass)]; }
};

// Of every stage. Micro-batches come in ascending order, in both directions (GPipe too, as PyTorch's ScheduleGPipe does; the paper draws
// its backward passes in descending order: same time, same passes in flight).
// `group`: interleaved: how many micro-batches run through a chunk before the next chunk's turn, at least as many as stages; 0: as many as
// stages (Megatron-LM schedules.py: microbatch_group_size_per_vp_stage).
// `pairs`: forward and backward passes of the steady state run as pairs; 1F1B and interleaved then run one forward pass more before the
// first pair, so that no pair is of one micro-batch in one chunk (Megatron-LM --overlap-moe-expert-parallel-comm: schedules.py
// get_pp_rank_microbatches, combined_1f1b.py; with one stage the forward pass of a micro-batch and the backward pass of the one before).
// DualPipe pairs passes of its two directions. The other kinds have no pairs.
// STEPSIM_CHECK: all at least 1, chunks > 1 only with kInterleaved, whose micro-batches are a multiple of the group, and two with kZbV and
// kDualPipe; what dual_pipe_passes() checks; chunks x micro-batches at most 2^31 / 3.
std::vector<StagePasses> pipeline_passes(PipelineKind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                         std::int32_t group = 0, bool pairs = false);
bool can_pair(PipelineKind);

// Forward passes of chunks that each stage runs before its first forward-backward pair (GPipe, or a warm-up of all: before its first
// backward pass): spec/placement_and_memory.md section 4. ZB-V and DualPipe: those before the forward pass that stands before the first
// backward pass. Same preconditions.
std::vector<std::int32_t> warmup_passes(PipelineKind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                        std::int32_t group = 0, bool pairs = false);

}  // namespace stepsim
