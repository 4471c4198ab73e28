// How context-parallel ranks bring together queries, keys and values that each has of its own tokens: who does it (an all-gather, a ring:
// context_ring.h, an all-to-all), and the ops of all-gather and all-to-all. Knows no kernel of attention.
//
// All-gather: keys and values of all tokens, in front of attention on compute's stream, again in backward, whose gradients are scattered.
// All-to-all (Ulysses, arXiv 2309.14509; Transformer Engine context_parallel.py AttnFuncWithCPAndQKVOA2A): heads for tokens. Each rank then
// attends all tokens with heads / ranks of the heads. Forward exchanges query, key, value and output, backward the output again (what is
// saved is the one that the projection saves too), its gradient, and the three gradients: 4 and 5 messages of a tensor each. Each is put in
// order before and behind by a copy; an exchange runs beside the copies of the others, and all of it in front of attention. Where core_attn
// is run again, that begins behind the exchange: what is kept is as large as what Megatron-LM's checkpoint keeps, which it exchanges again.
#pragma once

#include <string>
#include <vector>

#include "models/core_attention.h"
#include "models/template_builder.h"

namespace stepsim {

// What the layout says; all-gather where it says nothing, and where a ring has no kernel: unfused attention, windows, sinks (Transformer
// Engine context_parallel.py asserts as much). InputError where heads cannot be shared by an all-to-all.
ContextExchange context_exchange(const TemplateBuilder&, const AttentionForm&);

// Keys or values of all tokens, from those of this rank. (Workspace: what stays until backward is this rank's.)
SlotIndex gathered_tokens(TemplateBuilder&, Direction, const std::string& name, SlotIndex local);

// The sum over ranks of this rank's tokens' gradients.
SlotIndex scattered_tokens(TemplateBuilder&, const std::string& name, SlotIndex whole);

// Of [tokens, heads ...] on this rank: all tokens, a part of the heads.
std::vector<SlotIndex> all_tokens(TemplateBuilder&, Direction, const std::vector<SlotIndex>& sources);

// The reverse; the results are called `names`.
std::vector<SlotIndex> all_heads(TemplateBuilder&, Direction, const std::vector<SlotIndex>& sources, const std::vector<std::string>& names);

// Attention over what all_tokens made.
AttentionForm all_tokens_form(const TemplateBuilder&, const AttentionForm&);

}  // namespace stepsim
