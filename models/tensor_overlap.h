// Tensor-parallel collectives beside the products that read or make what they carry (Transformer Engine's userbuffers,
// pytorch/module/base.py initialize_ub). Knows no block: a collective of sequence parallelism and the product next to it are found in the
// ops of a layer.
//
// What overlaps, by the defaults there (`methods`):
// - ring exchange: the all-gather of the input of qkv and fc1 (gate and up) in forward, of the output gradient of the attention projection
//   and fc2 (down) in backward. The product goes on with each piece that arrives; this rank's own needs nothing. Here it is two products:
//   all pieces but the last, which wait for nothing, and the last, which waits for the whole gather. With pieces that arrive evenly that
//   ends when the product of t pieces does: max(product, gather + product / t).
// - pipeline: the product of the attention projection and fc2 in forward is made in 4 pieces (`num_splits`), each scattered while the next
// is
//   made. Here: the product's first piece and the rest, and a reduce-scatter of 3/4 behind the first and of 1/4 behind the rest, the
//   exposed tail: max(product + scatter / 4, product / 4 + scatter) in all. 16 bits (`fp8_buf` is of all-gathers alone).
// - bulk: the all-gather of the input that a weight gradient needs beside the input gradient, the reduce-scatter of the input gradient
// beside
//   the weight gradient (linear_block does both).
// Not overlapped: all-reduces without sequence parallelism; the embedding, the head and multi-token prediction in it; a gather whose first
// reader is no product (a cast of what was gathered), a product to which something is added before its sum (LoRA); the gather again by
// columns of an output gradient in blocks with scales, which waits behind the first (`external`). Which layers it is off for, as NVFP4 of
// Llama 3 70B, is a job's choice (spec/accuracy.md C.2).
// Not modelled: latencies and launches of each piece, copy engines instead of SMs for the ring, the buffers, which live all step.
#pragma once

#include <vector>

#include "models/layer_template.h"

namespace stepsim {

bool overlaps_tensor_collectives(const TemplateContext&);

// Of a layer whose context overlaps them. The invariants of LayerTemplate hold before and after.
void overlap_tensor_collectives(LayerTemplate& layer);

}  // namespace stepsim
