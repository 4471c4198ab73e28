// Operands of matrix products below 16 bits: formats, scales, which orientations a cast makes and what stays until backward
// (Transformer Engine: TransformerEngine@d0067d0d module/linear.py, quantized_tensor.py). Knows no block.
#pragma once

#include <string>

#include "models/template_builder.h"

namespace stepsim {

// Of the products of the linear parts; the compute dtype where the recipe is not below 16 bits.
DType product_dtype(const TrainingRecipe&);
bool is_low(Precision precision);

// Of a copy in the products' format, one orientation: the data, or data and the scales of its blocks. A tensor-wide scale counts nothing.
struct LowBytes {
  Bytes data{}, scales{};
  Bytes all() const { return data + scales; }
};
LowBytes low_bytes(const TrainingRecipe&, std::int64_t rows, std::int64_t columns);

// Whether values share scales along one dimension: a copy by rows is none by columns, whatever products read.
bool has_block_scales(const TrainingRecipe&);

// Whether casts write a second copy by columns: where scales lie along one dimension, and where products read one layout only.
bool casts_both_ways(const TrainingRecipe&);

// Of a weight, kept over the micro-batches beside the primary one (Transformer Engine: is_first_microbatch, update_workspace).
Bytes cached_weight(const TrainingRecipe&, std::int64_t rows, std::int64_t columns);

// What a cast of rows x columns values moves, each of `source_bytes` before: by rows, by columns or both, as products read them.
struct CastBytes {
  Bytes read{}, written{};
};
CastBytes cast_bytes(const TrainingRecipe&, std::int64_t rows, std::int64_t columns, std::int64_t source_bytes, bool by_rows,
                     bool by_columns);

// What making the copies of weights that live over the micro-batches moves, once a step (Transformer Engine: is_first_microbatch): from 16
// bits, or from the primary copy where that is in the products' format and scales are tensor-wide. `cached`: of cached_weight(), summed.
CastBytes weight_cast_bytes(const TrainingRecipe&, Bytes cached);

// What a cast made: `rows` is what the product with this operand as it stands reads, `columns` what the product over its rows reads (the
// same slot where one copy serves both; none where it is not asked for).
struct LowCopies {
  SlotIndex rows = kNoSlot, columns = kNoSlot;
};
struct LowCast {
  std::string name, module;  // of the operand ("norm 1 output"); of the op
  SlotIndex source = kNoSlot;
  bool by_rows = true, by_columns = true;
  std::int32_t launches = 1;  // kernels
};
// Kernels that cast the rows of `groups` experts where each expert's are a tensor of its own.
std::int32_t grouped_cast_launches(const TrainingRecipe&, std::int64_t groups);
LowCopies low_cast(TemplateBuilder&, Direction, const LowCast& cast);

// A copy of this many values on this device, gathered or not; the cast's slots are made of it.
SlotIndex low_slot(TemplateBuilder&, const std::string& name, SlotKind kind, std::int64_t rows, std::int64_t columns,
                   const std::string& module);

// A frozen weight in NF4, 64 values a block, scales quantised to 8 bits in blocks of 256 (QLoRA, arXiv 2305.14314 section 3).
Bytes nf4_bytes(std::int64_t elements);

}  // namespace stepsim
