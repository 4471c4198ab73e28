// What the ops of a step run on a real backend: for each kernel its operands, sizes and settings. Plain data that every backend reads;
// knows no backend, no graph and no model. A KernelProgram (kernel_program.h) has one call for each op of a graph.
//
// Layouts (row-major, no padding; sizes in elements unless they say bytes):
//  - token-major heads: [batch, sequence, heads, head_dim]; head-major: [batch, heads, sequence, head_dim].
//  - joint qkv: [batch * sequence, (heads + 2 kv_heads) * head_dim], a row is all queries, then all keys, then all values.
//  - masks of dropout: 1 byte an element, 1 where it is kept. Tokens, labels and targets: int64.
// Operands of a call do not overlap, except where it says so. Sizes are not 0, and counts are those of the tensors' bytes.
// `elements` of a call is the dtype of activations and weights (kFp32, kBf16), `gradients` that of main gradients; statistics, losses,
// master weights and moments are fp32. Arithmetic is fp32. `accumulate`: added to what a gradient holds, else it overwrites.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "sim/op_graph.h"
#include "sim/op_work.h"

namespace stepsim {

// C[m,n] (+)= op(A)[m,k] op(B)[k,n]: of the stored matrices A is [m,k], or [k,m] if transposed; B likewise. Rows of an operand lie `row`
// apart. outer * inner products: number (i, j) starts at i * operand.outer + j * operand.inner.
struct ProductCall {
  struct Operand {
    Tensor tensor{};
    std::int64_t row = 0, outer = 0, inner = 0;  // distances
  };
  Operand a{}, b{}, c{};
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t outer = 1, inner = 1;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType elements = DType::kFp32, output = DType::kFp32;
};

// What of a table a rank holds: rows [first, first + rows) of the vocabulary. Tokens outside give zeros, and take no gradient.
struct TableShare {
  std::int64_t first = 0, rows = 0;
};

struct EmbeddingCall {
  Tensor tokens{}, table{}, output{};
  std::int64_t count = 0, hidden = 0;  // tokens
  TableShare share{};
  DType elements = DType::kFp32;
};
struct EmbeddingGradientCall {
  Tensor tokens{}, gradient{}, table_gradient{};
  std::int64_t count = 0, hidden = 0;
  TableShare share{};
  bool accumulate = false;
  DType elements = DType::kFp32, gradients = DType::kFp32;
};

// output[b, s, :] = input[b, s, :] + table[s, :]
struct PositionCall {
  Tensor input{}, table{}, output{};
  std::int64_t batch = 0, sequence = 0, hidden = 0;
  DType elements = DType::kFp32;
};
struct PositionGradientCall {  // the sum over the batch; rows of the table behind `sequence` (table_rows) are 0
  Tensor gradient{}, table_gradient{};
  std::int64_t batch = 0, sequence = 0, hidden = 0, table_rows = 0;
  bool accumulate = false;
  DType elements = DType::kFp32, gradients = DType::kFp32;
};

// Which random numbers an op draws: Philox4x32-10 (Salmon et al., SC'11), key {seed low, seed high}, counter {i / 4 low, i / 4 high, offset
// low, offset high}, word i % 4 for element i, counted row by row; u = (word >> 8) * 2^-24; kept if u >= probability, then scaled by 1 / (1
// - probability), or 0 at 1. Each op that draws has an offset of its own; a re-run has that of its origin.
struct Draw {
  float probability = 0;
  std::uint64_t seed = 0, offset = 0;
};

struct DropoutCall {
  Tensor input{}, output{}, mask{};
  std::int64_t count = 0;
  Draw draw{};
  DType elements = DType::kFp32;
};
struct DropoutBackwardCall {
  Tensor gradient{}, mask{}, output{};
  std::int64_t count = 0;
  float probability = 0;
  DType elements = DType::kFp32;
};

// LayerNorm (centred) or RMSNorm over the last dimension. statistics: centred [2, rows], means, then reciprocal standard deviations; else
// [rows], reciprocal root mean squares. The variance is the mean square (not unbiased); epsilon is added to it.
struct NormCall {
  Tensor input{}, gain{}, output{}, statistics{};
  std::optional<Tensor> bias{};
  std::int64_t rows = 0, columns = 0;
  bool centred = false;
  float epsilon = 0;
  DType elements = DType::kFp32;
};
struct NormBackwardCall {
  Tensor output_gradient{}, input{}, gain{}, statistics{}, input_gradient{};
  std::int64_t rows = 0, columns = 0;
  bool centred = false;
  DType elements = DType::kFp32;
};
struct NormWeightGradientCall {
  Tensor output_gradient{}, input{}, statistics{}, gain_gradient{};
  std::optional<Tensor> bias_gradient{};
  std::int64_t rows = 0, columns = 0;
  bool centred = false, accumulate = false;
  DType elements = DType::kFp32, gradients = DType::kFp32;
};

struct BiasCall {  // output = input + bias, by row
  Tensor input{}, bias{}, output{};
  std::int64_t rows = 0, columns = 0;
  DType elements = DType::kFp32;
};
struct BiasGradientCall {  // the sum over rows
  Tensor gradient{}, bias_gradient{};
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
  DType elements = DType::kFp32, gradients = DType::kFp32;
};

// Of [batch * heads, queries, keys]: softmax(scale * scores) over keys, scale > 0; causal: query i sees keys 0..i (queries = keys), others
// get 0.
struct AttentionSoftmaxCall {
  Tensor scores{}, output{};
  std::int64_t matrices = 0, queries = 0, keys = 0;  // matrices: batch * heads
  float scale = 1;
  bool causal = true;
  DType elements = DType::kFp32;
};
struct AttentionSoftmaxBackwardCall {  // of the scores, scale included
  Tensor softmax{}, gradient{}, scores_gradient{};
  std::int64_t matrices = 0, queries = 0, keys = 0;
  float scale = 1;
  bool causal = true;
  DType elements = DType::kFp32;
};

struct HeadShape {
  std::int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

struct HeadsToTokensCall {  // head-major -> token-major, `heads` of them
  Tensor input{}, output{};
  HeadShape shape{};
  DType elements = DType::kFp32;
};
struct JoinHeadsCall {  // three head-major -> joint qkv
  Tensor query{}, key{}, value{}, joint{};
  HeadShape shape{};
  DType elements = DType::kFp32;
};

// Joint qkv -> token-major query, key (both rotated) and value. Pair (i, i + head_dim / 2) of a head is turned by
// position * base^(-2 i / head_dim) (the half-split form of Llama in transformers).
struct RotaryCall {
  Tensor joint{}, query{}, key{}, value{};
  HeadShape shape{};
  double base = 10000;
  DType elements = DType::kFp32;
};
struct RotaryBackwardCall {  // head-major gradients of query and key (turned back), and of value -> joint qkv
  Tensor query{}, key{}, value{}, joint{};
  HeadShape shape{};
  double base = 10000;
  DType elements = DType::kFp32;
};

struct RepeatHeadsCall {  // token-major, kv_heads -> heads: head h has kv head h / (heads / kv_heads)
  Tensor key{}, value{}, repeated_key{}, repeated_value{};
  HeadShape shape{};
  DType elements = DType::kFp32;
};
struct RepeatHeadsBackwardCall {  // head-major, heads -> kv_heads, summed
  Tensor key{}, value{}, summed_key{}, summed_value{};
  HeadShape shape{};
  DType elements = DType::kFp32;
};

// output = residual + dropout(branch + bias)
struct ResidualCall {
  Tensor branch{}, residual{}, output{};
  std::optional<Tensor> bias{}, mask{};
  std::int64_t rows = 0, columns = 0;
  Draw draw{};  // with a mask
  DType elements = DType::kFp32;
};
// branch gradient = gradient * mask / (1 - probability), if there is a mask; bias gradient: its sum over rows (of the gradient without
// one).
struct ResidualBackwardCall {
  Tensor gradient{};
  std::optional<Tensor> mask{}, bias_gradient{}, branch_gradient{};
  std::int64_t rows = 0, columns = 0;
  float probability = 0;
  bool accumulate = false;  // the bias gradient
  DType elements = DType::kFp32, gradients = DType::kFp32;
};

struct AddCall {  // sum += input
  Tensor input{}, sum{};
  std::int64_t count = 0;
  DType elements = DType::kFp32;
};

enum class ActivationKind : std::uint8_t { kGelu, kSilu };  // gelu: the exact one, 0.5 x (1 + erf(x / sqrt(2)))
struct ActivationCall {
  Tensor input{}, output{};
  std::int64_t count = 0;
  ActivationKind kind = ActivationKind::kGelu;
  DType elements = DType::kFp32;
};
struct ActivationBackwardCall {
  Tensor input{}, output_gradient{}, input_gradient{};
  std::int64_t count = 0;
  ActivationKind kind = ActivationKind::kGelu;
  DType elements = DType::kFp32;
};
struct GateProductCall {  // output = gate * up
  Tensor gate{}, up{}, output{};
  std::int64_t count = 0;
  DType elements = DType::kFp32;
};
struct GateProductBackwardCall {
  Tensor output_gradient{}, gate{}, up{}, gate_gradient{}, up_gradient{};
  std::int64_t count = 0;
  DType elements = DType::kFp32;
};

// Vocabulary-parallel cross entropy (Megatron-LM tensor_parallel/cross_entropy.py), in fp32; between the calls ranks reduce maximum,
// predicted and denominator. `columns`: of this rank's part of the vocabulary, padding included.
struct WidenCall {  // elements -> fp32
  Tensor input{}, output{};
  std::int64_t count = 0;
  DType elements = DType::kFp32;
};
struct NarrowCall {  // fp32 -> elements
  Tensor input{}, output{};
  std::int64_t count = 0;
  DType elements = DType::kFp32;
};
struct LossMaximumCall {  // of each row of the logits
  Tensor logits{}, maximum{};
  std::int64_t rows = 0, columns = 0;
};
struct TargetMaskCall {  // mask (1 byte): 1 where another rank has the label; target: label - first, 0 where masked
  Tensor labels{}, mask{}, target{};
  std::int64_t rows = 0;
  TableShare share{};
};
// softmax = exp(logits - maximum), denominator its sum, predicted = logit of the target - maximum, 0 if masked. softmax may be the logits.
struct LossNumeratorCall {
  Tensor logits{}, maximum{}, mask{}, target{}, softmax{}, predicted{}, denominator{};
  std::int64_t rows = 0, columns = 0;
};
struct LossCall {  // loss = log(denominator) - predicted; softmax /= denominator
  Tensor predicted{}, denominator{}, softmax{}, loss{};
  std::int64_t rows = 0, columns = 0;
};
struct LossBackwardCall {  // gradient = scale * (softmax - 1 at the target, unless masked)
  Tensor softmax{}, mask{}, target{}, gradient{};
  std::int64_t rows = 0, columns = 0;
  float scale = 1;  // 1 / tokens of the batch
};

// The norm goes from one op to another through the backend's state; what it counts is decided here: of what several ranks hold one counts.
struct GradientNormCall {  // sum of squares
  std::vector<Tensor> gradients{};
  DType type = DType::kFp32;
};
struct GradientClipCall {  // gradients *= min(1, most / (norm + 1e-6)), NaN if the norm is (torch.nn.utils.clip_grad_norm_)
  std::vector<Tensor> gradients{};
  float most = 1;
  DType type = DType::kFp32;
};

// Decoupled weight decay (arXiv 1711.05101), bias corrected; step counts from 1. moments: first, then second, fp32 each. With a master
// weight that is updated and the weight is its copy in `elements`.
struct AdamWCall {
  Tensor gradient{}, weight{}, moments{};
  std::optional<Tensor> master{};
  std::int64_t count = 0;
  DType elements = DType::kFp32, gradients = DType::kFp32;
};
struct AdamWSettings {
  float learning_rate = 1e-3F, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F, weight_decay = 0.1F;
};

struct CopyCall {  // between device and host memory
  Tensor from{}, to{};
};
struct AllReduceCall {
  Tensor operand{};
  std::int64_t count = 0;
  bool maximum = false;  // else the sum
  DType elements = DType::kFp32;
};
struct NormAllReduceCall {};  // of the gradient norm's sum of squares
struct NoCall {};             // markers

using KernelCall =
    std::variant<NoCall, ProductCall, EmbeddingCall, EmbeddingGradientCall, PositionCall, PositionGradientCall, DropoutCall,
                 DropoutBackwardCall, NormCall, NormBackwardCall, NormWeightGradientCall, BiasCall, BiasGradientCall, AttentionSoftmaxCall,
                 AttentionSoftmaxBackwardCall, HeadsToTokensCall, JoinHeadsCall, RotaryCall, RotaryBackwardCall, RepeatHeadsCall,
                 RepeatHeadsBackwardCall, ResidualCall, ResidualBackwardCall, AddCall, ActivationCall, ActivationBackwardCall,
                 GateProductCall, GateProductBackwardCall, WidenCall, NarrowCall, LossMaximumCall, TargetMaskCall, LossNumeratorCall,
                 LossCall, LossBackwardCall, GradientNormCall, GradientClipCall, AdamWCall, CopyCall, AllReduceCall, NormAllReduceCall>;

// Where the storages of a graph lie, by StorageId; null: not claimed.
struct StorageAddresses {
  std::vector<std::byte*> base{};
  template <class T>
  T* of(const Tensor& tensor) const {
    return reinterpret_cast<T*>(base[static_cast<std::size_t>(tensor.storage.index)] + tensor.offset.value);
  }
};

}  // namespace stepsim
