// One training run's choices: batch, precision, parallel layout. Facts of the job; how a framework runs them is framework_preset.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/model_spec.h"
#include "sim/op_work.h"

namespace stepsim {

enum class AttentionKind : std::uint8_t { kUnfused, kFlash, kFused };  // fused: cuDNN
enum class Precision : std::uint8_t { kBf16, kFp16, kFp32 };           // fp8 and below come with part 4
enum class OptimizerKind : std::uint8_t { kAdamW, kSgd };
enum class LossKind : std::uint8_t { kPlain, kFused, kChunked };
enum class IterationKind : std::uint8_t { kSteady, kFirst };  // first: optimizer states are born in this step

struct TrainingRecipe {
  std::int64_t sequence = 0;      // tokens
  std::int64_t micro_batch = 1;   // sequences of one device group at a time
  std::int64_t global_batch = 1;  // sequences of a step; a multiple of micro_batch * data-parallel size
  Precision precision = Precision::kBf16;
  std::optional<DType> gradient_dtype;  // none: the preset's
  AttentionKind attention = AttentionKind::kFlash;
  double dropout = 0.0;  // hidden and attention
  LossKind loss = LossKind::kPlain;
  std::int64_t loss_chunks = 1;  // with kChunked
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  IterationKind iteration = IterationKind::kSteady;
};

struct ParallelLayout {
  std::int32_t tensor = 1;                           // ranks of a tensor-parallel group
  bool sequence_parallel = false;                    // needs tensor > 1 to matter
  std::int32_t pipeline = 1, data = 1, context = 1;  // above 1: part 2 and later
};

// Numbers out of any range (sequence 1..2^24, micro-batch, global batch and ranks 1..2^20, dropout 0..1, saved bytes of all layers below
// 2^62), and what cannot be trained so: heads not divisible by TP, sequence not divisible by TP under SP, kv_heads against TP (kv heads are
// replicated when TP is a multiple of them), ffn and batch divisibility, sequence above a learned position table. `--flag: found X, wanted
// Y`: InputError.
void check_layout(const ModelSpec&, const TrainingRecipe&, const ParallelLayout&);

// Rows of the embedding table and head after padding to `multiple` x tensor ranks (Megatron: 128).
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int32_t tensor);

}  // namespace stepsim
