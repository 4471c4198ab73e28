// Attention of context-parallel ranks that send keys and values round a ring (Transformer Engine context_parallel.py
// AttnFuncWithCPAndKVP2P): as many steps as ranks, each over the keys and values that have come, while those of the next step are on their
// way. Knows neither all-gather nor all-to-all.
//
// Forward: key and value are joined in one buffer. Step 0 is causal over this rank's own tokens. A rank holds one part of the sequence's
// begin and one of its end, so each further step has half of the pairs: all queries over the first half of the keys, or the second half of
// the queries over all keys. The representative is the ring's last rank, whose steps are all of the first sort: equal work, the most
// partial outputs. Partial outputs and log-sum-exps are merged by memory kernels at the end; until then all of them live, and all buffers
// received. Saved: query, the buffer of the last step (the reverse ring begins with it), the merged output and log-sum-exps.
// Backward: in reverse, the diagonal last. Keys and values go on round the ring, and their gradients one step behind them, each rank
// adding its own: ranks - 1 messages of either, in one transfer where both are on their way. Query gradients are summed on this rank.
// Where core_attn is run again, the last buffer stays and the ring begins anew, from keys and values that are made again from the layer's
// norm (Megatron-LM's checkpoint keeps this rank's instead, as many bytes).
// An exchange waits for what it sends and runs beside the attention of its step; it is a send and a receive in one, over the ring's longest
// hop. Not modelled: two streams, on which the ends of a step's attention and its corrections overlap the next step.
#pragma once

#include "models/core_attention.h"
#include "models/template_builder.h"

namespace stepsim {

// `copied`: the output is copied for the projection.
void ring_forward(TemplateBuilder&, CoreAttention&, bool copied);

// Gradients of query, key and value, of this device's tokens.
QkvGradients ring_backward(TemplateBuilder&, const CoreAttention&, SlotIndex output_gradient);

}  // namespace stepsim
