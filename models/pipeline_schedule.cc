#include "models/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/check.h"

namespace stepsim {

std::string_view pipeline_name(PipelineKind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"gpipe", "1f1b", "interleaved", "zb-h1"};
  return kNames[static_cast<std::size_t>(kind)];
}

static void check_shape(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches) {
  STEPSIM_CHECK(stages >= 1);
  STEPSIM_CHECK(chunks >= 1);
  STEPSIM_CHECK(micro_batches >= 1);
  STEPSIM_CHECK(kind == PipelineKind::kInterleaved || chunks == 1);
  STEPSIM_CHECK(kind != PipelineKind::kInterleaved || micro_batches % stages == 0);
  // Three kinds of passes at most; their indices are int32.
  STEPSIM_CHECK(std::int64_t{chunks} * micro_batches <= std::numeric_limits<std::int32_t>::max() / 3);
}

static std::int32_t warmup_of(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches, std::int32_t stage) {
  const std::int64_t after = stages - stage - 1;  // stages behind this one
  std::int64_t warmup = micro_batches;            // gpipe
  if (kind == PipelineKind::k1F1B || kind == PipelineKind::kZbH1) warmup = after;
  // Megatron-LM schedules.py, get_pp_rank_microbatches.
  if (kind == PipelineKind::kInterleaved) warmup = 2 * after + std::int64_t{chunks - 1} * stages;
  return static_cast<std::int32_t>(std::min(warmup, std::int64_t{chunks} * micro_batches));
}

// The k-th forward or backward pass of a stage: chunks take turns every `stages` micro-batches, backward from the last chunk.
static Pass kth_pass(PassKind kind, std::int32_t k, std::int32_t stages, std::int32_t chunks) {
  if (chunks == 1) return {kind, 0, k};
  const std::int64_t group = std::int64_t{stages} * chunks;
  const auto turn = static_cast<std::int32_t>(k / group), within = static_cast<std::int32_t>(k % group);
  const std::int32_t chunk = within / stages;
  return {kind, kind == PassKind::kForward ? chunk : chunks - 1 - chunk, turn * stages + within % stages};
}

static StagePasses passes_of_stage(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                   std::int32_t stage) {
  const std::int32_t total = chunks * micro_batches;
  const std::int32_t warmup = warmup_of(kind, stages, chunks, micro_batches, stage);
  const bool zero_bubble = kind == PipelineKind::kZbH1;
  StagePasses made;
  const std::size_t count = static_cast<std::size_t>(total) * (zero_bubble ? 3 : 2);
  made.passes.reserve(count);
  made.exchanges.reserve(count);
  const auto add = [&](PassKind pass, std::int32_t k, bool exchange) {
    made.passes.push_back(kth_pass(pass, k, stages, chunks));
    made.exchanges.push_back(exchange);
  };
  for (std::int32_t k = 0; k < warmup; ++k) add(PassKind::kForward, k, true);
  // Interleaved: one exchange for a forward-backward pair (send_forward_backward_recv_forward_backward).
  const bool exchange_in_pair = kind != PipelineKind::kInterleaved;
  for (std::int32_t k = 0; k < total; ++k) {
    if (k < total - warmup) add(PassKind::kForward, warmup + k, exchange_in_pair);
    add(PassKind::kBackward, k, true);
    if (zero_bubble && k >= stage) add(PassKind::kWeight, k - stage, false);
  }
  if (zero_bubble) {
    for (std::int32_t k = std::max(0, total - stage); k < total; ++k) add(PassKind::kWeight, k, false);
  }
  return made;
}

std::vector<StagePasses> pipeline_passes(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches) {
  check_shape(kind, stages, chunks, micro_batches);
  std::vector<StagePasses> passes;
  passes.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) passes.push_back(passes_of_stage(kind, stages, chunks, micro_batches, stage));
  return passes;
}

std::vector<std::int32_t> warmup_passes(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches) {
  check_shape(kind, stages, chunks, micro_batches);
  std::vector<std::int32_t> warmups;
  warmups.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) warmups.push_back(warmup_of(kind, stages, chunks, micro_batches, stage));
  return warmups;
}

}  // namespace stepsim
