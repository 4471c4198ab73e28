// Attention as one kernel that keeps log-sum-exps (flash, cuDNN): how its work is stated, its ops, what it reads and makes. Knows neither
// who brings keys and values nor unfused attention.
//
// How the work is stated (its FLOPs are 4 queries keys head_dim a sequence and head, half of that if causal):
// - keys and values of different widths: head_dim is their mean, (2 d_qk + 2 d_v) / 4, rounded up. Forward FLOPs and the traffic of either
//   pass are exact; backward is 2.5 times forward, where the products themselves are (3 d_qk + 2 d_v) / (d_qk + d_v) (MLA: 2.6).
// - a window of w keys: kernels work on whole blocks of 128 queries by 128 keys, so what runs are the blocks that the window touches: under
//   a causal mask 1 + ceil((w - 1) / 128) for each block of queries, less at the sequence's begin; with a window on both sides
//   1 + 2 ceil((w / 2) / 128). The statement is not causal, its keys those of one block of queries, its queries so many that the product is
//   exact; half-filled blocks cost whole ones, and the rate is that of so few keys. Where the blocks touched are all that the mask leaves,
//   there is no window. (Keys and values are counted once a block, not once a sequence, in the op's traffic.)
//   Backward passes in 8 bits have no windows.
// - packed documents of lengths l_d, T = sum l_d: pairs are sum l_d^2 (half if causal), stated as n documents of one length, n the integer
//   nearest to T^2 / sum l_d^2: T / n queries each, and so many keys that n queries keys is the sum of squares, to half a key. Queries move
//   once, the rate is that of the mean length weighted by work.
// - context parallelism, keys gathered: queries of this rank, all keys; causal ones are balanced between the ranks, so half of the pairs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/template_builder.h"

namespace stepsim {

inline constexpr const char* kCoreAttention = "core_attn";

// What distinguishes one use of attention from another (an encoder's output: its own keys; TemplateBuilder::set_prefix tells their names
// apart).
struct AttentionForm {
  std::int64_t queries = 0;                  // of a sequence, on this device
  std::int64_t keys = 0;                     // of a sequence, on all context-parallel ranks
  std::int64_t heads = 0, kv_heads = 0;      // on this device
  std::int64_t head_dim = 0, value_dim = 0;  // of queries and keys; of values and outputs
  std::int64_t window = 0;                   // keys that a query sees at most; 0: all
  bool causal = true;
  bool sinks = false;   // a learned logit a head
  bool packed = false;  // the recipe's documents: a query sees keys of its own alone
};

bool one_kernel(const TemplateContext&);

// In 8 bits (low_precision_attention).
bool low_attention(const TemplateContext&);
// InputError for a kernel or a precision that has no such products.
void check_low_attention(const TemplateContext&);

// Of the framework's kernel.
Attention kernel_work(const TemplateContext&, const DeviceShape&, const AttentionForm&, bool backward);

struct KernelOperands {
  SlotIndex query = kNoSlot, key = kNoSlot, value = kNoSlot;  // no value: key holds both
  SlotIndex output = kNoSlot, log_sum_exp = kNoSlot;          // the latter none where it is not kept
  Weight sinks;
};

// Of one run of the kernel, fp32 a query and head.
SlotIndex add_log_sum_exp(TemplateBuilder&, const AttentionForm&, const std::string& name);

// Writes output and log-sum-exp.
void add_kernel_forward(TemplateBuilder&, const std::string& name, const AttentionForm&, const KernelOperands&,
                        const std::vector<SlotIndex>& holds);

// Writes `gradients` and the workspace in which dQ is summed, named by `name` too.
void add_kernel_backward(TemplateBuilder&, const std::string& name, const AttentionForm&, const KernelOperands&, SlotIndex output_gradient,
                         const std::vector<SlotIndex>& gradients);

// What the data loader made for attention: its mask, which is an argument of attention whether or not its kernel reads it (checkpoints
// keep their arguments, so it lives until the last run of attention); of packed documents position ids and where each begins.
std::vector<SlotIndex> held_batch(TemplateBuilder&, const AttentionForm&);

}  // namespace stepsim
