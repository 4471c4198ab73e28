// The way of tokens to the ranks of their experts and back, by dispatcher: which rows move between ranks, how they are permuted, what stays
// until backward. Loads are even but for the recipe's capacity (rows above it are dropped, missing ones padded) or imbalance. Collectives
// of one device's group: expert-tensor ranks are neighbours, expert-parallel ranks lie behind them (Megatron-LM: order etp-ep-edp-pp).
//
// - all-gather (Megatron-LM moe/token_dispatcher.py MoEAllGatherTokenDispatcher): every rank gets all tokens of the group, keeps the rows
// of
//   its experts; back, sums are scattered.
// - all-to-all (MoEAlltoAllTokenDispatcher): rows are sorted by expert, exchanged between expert-parallel ranks, gathered between
//   expert-tensor ranks and sorted again.
// - DeepEP, HybridEP (MoEFlexTokenDispatcher): a token moves once to each rank that it goes to. HybridEP receives into a buffer of its own,
// from
//   which a kernel behind it makes the rows, unless the preset permutes_in_exchange (Megatron-LM PR 4073); likewise back.
//
// Beside compute (overlap_expert_exchange; Megatron-LM --overlap-moe-expert-parallel-comm, core/models/gpt/fine_grained_callables.py):
// exchanges between expert-parallel ranks are on OpStream::kExpert, and with them the permutation of this rank's own rows around the
// combine, which is in that node there. What waits for them is what reads them: within one micro-batch little stands beside an exchange;
// passes of two that are written in turn hide each other's.
//
// Preparation (where the preset reads_expert_counts, and not within a full CUDA graph): rows are counted by expert, counts (for
// HybridEP the routing map) are gathered, and the host reads them before it launches what follows (TEGroupedMLP.forward:
// tokens_per_expert.tolist(); token_dispatcher.py _maybe_dtoh_and_synchronize). So what it costs is what the run-ahead of the host had
// hidden, not a time of its own.
#pragma once

#include <string>

#include "models/experts_block_router.h"
#include "models/template_builder.h"

namespace stepsim {

constexpr const char* kExpertsModule = "moe";  // of all ops of the block but the router's

struct ExpertRows {
  std::int32_t expert = 1, expert_tensor = 1;  // ranks
  std::int64_t local_experts = 0;
  std::int64_t tokens = 0;        // this rank's part
  std::int64_t group_tokens = 0;  // of all ranks of the group
  std::int64_t sent = 0;          // rows of this rank's tokens: top_k each, or those within the capacity
  std::int64_t exchanged = 0;     // rows that arrive from the expert-parallel ranks
  std::int64_t arrived = 0;       // tokens that arrive, each once: uniform choices of top_k experts (within the best groups)
  std::int64_t rows = 0;          // that this rank's experts work on: tokens x expert-tensor ranks x top_k, by the load factor, rounded up
  std::int32_t group() const { return expert * expert_tensor; }
};
ExpertRows expert_rows(const TemplateContext&, const DeviceShape&);

struct Dispatch {
  ExpertRows rows;
  Router router;
  SlotIndex row_map = kNoSlot;        // int32: where each token's rows are
  SlotIndex input = kNoSlot;          // of the experts
  SlotIndex probabilities = kNoSlot;  // fp32 by row; none where the way back multiplies by the router's own
  SlotIndex returned = kNoSlot;       // what the way back multiplies
};

// `by_row`: the experts multiply by the probabilities. Without it the way back does, and saves what it multiplies.
Dispatch dispatch_forward(TemplateBuilder&, const Router&, SlotIndex input, bool by_row);
// Returns the sum of each token's rows, this device's part of the tokens.
SlotIndex combine_forward(TemplateBuilder&, Dispatch&, SlotIndex expert_output, bool by_row);

struct CombineGradients {
  SlotIndex expert_output = kNoSlot;
  SlotIndex row_probabilities = kNoSlot;  // where the way back has multiplied by row,
  SlotIndex probabilities = kNoSlot;      // or by the router's
};
CombineGradients combine_backward(TemplateBuilder&, const Dispatch&, SlotIndex output_gradient, bool by_row);

struct DispatchGradients {
  SlotIndex input = kNoSlot, probabilities = kNoSlot;  // of the tokens and of the router's probabilities
};
// `row_probabilities` is kNoSlot where combine_backward gave the router's.
DispatchGradients dispatch_backward(TemplateBuilder&, const Dispatch&, SlotIndex expert_input, SlotIndex row_probabilities);

}  // namespace stepsim
