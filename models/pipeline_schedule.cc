#include "models/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <limits>

#include "models/chunk_placement.h"
#include "models/folded_schedule.h"
#include "sim/check.h"

namespace stepsim {

std::string_view pipeline_name(PipelineKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

struct Shape {
  PipelineKind kind = PipelineKind::k1F1B;
  std::int32_t stages = 1, chunks = 1, micro_batches = 1;
  std::int32_t group = 1;  // micro-batches of one turn of a chunk
  bool pairs = false;
};

Shape checked(Shape of) {
  STEPSIM_CHECK(of.stages >= 1);
  STEPSIM_CHECK(of.chunks >= 1);
  STEPSIM_CHECK(of.micro_batches >= 1);
  if (of.group == 0) of.group = of.stages;
  const bool interleaved = of.kind == PipelineKind::kInterleaved;
  const bool folded = goes_both_ways(of.kind);
  STEPSIM_CHECK(!folded || of.chunks == 2);
  STEPSIM_CHECK(interleaved || folded || of.chunks == 1);
  of.pairs = of.pairs && can_pair(of.kind);
  STEPSIM_CHECK(!interleaved || of.group >= of.stages);
  STEPSIM_CHECK(!interleaved || of.micro_batches % of.group == 0);
  // Three kinds of passes at most; their indices are int32.
  STEPSIM_CHECK(std::int64_t{of.chunks} * of.micro_batches <= std::numeric_limits<std::int32_t>::max() / 3);
  return of;
}

std::int32_t warmup_of(const Shape& of, std::int32_t stage) {
  const std::int64_t after = of.stages - stage - 1;  // stages behind this one
  std::int64_t warmup = of.micro_batches;            // gpipe
  if (of.kind == PipelineKind::k1F1B || of.kind == PipelineKind::kZbH1) warmup = after;
  // Megatron-LM schedules.py, get_pp_rank_microbatches.
  if (of.kind == PipelineKind::kInterleaved) warmup = 2 * after + std::int64_t{of.chunks - 1} * of.group;
  warmup += of.pairs;
  return static_cast<std::int32_t>(std::min(warmup, std::int64_t{of.chunks} * of.micro_batches));
}

// The k-th forward or backward pass of a stage: chunks take turns every `group` micro-batches, backward from the last chunk.
Pass kth_pass(const Shape& of, PassKind kind, std::int32_t k) {
  if (of.chunks == 1) return {kind, 0, k};
  const std::int64_t round = std::int64_t{of.group} * of.chunks;
  const auto turn = static_cast<std::int32_t>(k / round), within = static_cast<std::int32_t>(k % round);
  const std::int32_t chunk = within / of.group;
  return {kind, kind == PassKind::kForward ? chunk : of.chunks - 1 - chunk, turn * of.group + within % of.group};
}

StagePasses passes_of_stage(const Shape& of, std::int32_t stage) {
  if (of.kind == PipelineKind::kZbV) return zb_v_passes(of.stages, of.micro_batches, stage);
  if (of.kind == PipelineKind::kDualPipe) return dual_pipe_passes(of.stages, of.micro_batches, stage, of.pairs);
  const std::int32_t total = of.chunks * of.micro_batches;
  const std::int32_t warmup = warmup_of(of, stage);
  const bool zero_bubble = of.kind == PipelineKind::kZbH1;
  StagePasses made;
  const std::size_t count = static_cast<std::size_t>(total) * (zero_bubble ? 3 : 2);
  made.passes.reserve(count);
  made.exchanges.reserve(count);
  const auto add = [&](PassKind pass, std::int32_t k, bool exchange) {
    made.passes.push_back(kth_pass(of, pass, k));
    made.exchanges.push_back(exchange);
  };
  for (std::int32_t k = 0; k < warmup; ++k) add(PassKind::kForward, k, true);
  // Interleaved: one exchange for a forward-backward pair (send_forward_backward_recv_forward_backward).
  const bool exchange_in_pair = of.kind != PipelineKind::kInterleaved && !of.pairs;
  if (of.pairs) made.pairs.assign(count, false);
  for (std::int32_t k = 0; k < total; ++k) {
    if (of.pairs && k < total - warmup) made.pairs[made.passes.size()] = true;
    if (k < total - warmup) add(PassKind::kForward, warmup + k, exchange_in_pair);
    add(PassKind::kBackward, k, true);
    if (zero_bubble && k >= stage) add(PassKind::kWeight, k - stage, false);
  }
  if (zero_bubble) {
    for (std::int32_t k = std::max(0, total - stage); k < total; ++k) add(PassKind::kWeight, k, false);
  }
  return made;
}

// Before the forward pass that stands before the first backward pass.
std::int32_t forwards_before_pair(const std::vector<Pass>& passes) {
  const auto first = std::find_if(passes.begin(), passes.end(), [](const Pass& pass) { return pass.kind != PassKind::kForward; });
  return static_cast<std::int32_t>(first - passes.begin()) - 1;
}

}  // namespace

bool can_pair(PipelineKind kind) {
  return kind == PipelineKind::k1F1B || kind == PipelineKind::kInterleaved || kind == PipelineKind::kDualPipe;
}

std::vector<StagePasses> pipeline_passes(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                         std::int32_t group, bool pairs) {
  const Shape of = checked({kind, stages, chunks, micro_batches, group, pairs});
  std::vector<StagePasses> passes;
  passes.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) passes.push_back(passes_of_stage(of, stage));
  return passes;
}

std::vector<std::int32_t> warmup_passes(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                        std::int32_t group, bool pairs) {
  const Shape of = checked({kind, stages, chunks, micro_batches, group, pairs});
  std::vector<std::int32_t> warmups;
  warmups.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const bool folded = goes_both_ways(kind);
    warmups.push_back(folded ? forwards_before_pair(passes_of_stage(of, stage).passes) : warmup_of(of, stage));
  }
  return warmups;
}

}  // namespace stepsim
