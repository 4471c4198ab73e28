#include "models/low_precision.h"

#include <cmath>

#include "sim/check.h"

namespace stepsim {

namespace {

std::int64_t share(std::int64_t elements, std::int64_t block) { return (elements + block - 1) / block; }

// Times that a cast reads its source: current scaling and NVFP4 once more, for its largest value (accuracy.md C.3: 5 B a value with one
// copy; 5.6 B).
std::int64_t source_passes(const TrainingRecipe& training) {
  if (training.precision == Precision::kNvFp4) return 2;
  return training.precision == Precision::kFp8 && training.scaling == ScalingRecipe::kCurrent ? 2 : 1;
}

// What NVFP4's cast moves beyond its operands: 5.6 B a value in all (accuracy.md C.3, measured), of which 4 are read and 1.125 are the
// copies and their scales. With both copies; half of it counts for one.
Bytes further_writes(const TrainingRecipe& training, std::int64_t elements, std::int64_t copies) {
  constexpr double kMeasured = 5.6 - 4 - 2 * (0.5 + 1.0 / 16);
  if (training.precision != Precision::kNvFp4) return {};
  return Bytes(static_cast<std::int64_t>(kMeasured / 2 * as_double(elements) * as_double(copies)));
}

}  // namespace

bool is_low(Precision precision) {
  return precision == Precision::kFp8 || precision == Precision::kMxFp8 || precision == Precision::kNvFp4;
}

DType product_dtype(const TrainingRecipe& training) {
  switch (training.precision) {
    case Precision::kFp8:
      return DType::kFp8;
    case Precision::kMxFp8:
      return DType::kMxFp8;
    case Precision::kNvFp4:
      return DType::kNvFp4;
    case Precision::kBf16:
    case Precision::kFp16:
    case Precision::kFp32:
      return compute_dtype(training.precision);
  }
  check_failed("precision", __FILE__, __LINE__);
}

// TransformerEngine pytorch/csrc/extensions/cast.cpp, split_quantize and multi_tensor_quantize_impl: MXFP8 and blocks tensor by tensor;
// delayed scaling all in one kernel (nvte_multi_cast_transpose), NVFP4 in two (largest values, casts), of 64 tensors at most
// (kMaxTensorsPerKernel). Current scaling tensor by tensor in three kernels (csrc/quantizer.cpp Float8CurrentScalingQuantizer: largest
// value, scale, cast).
std::int32_t grouped_cast_launches(const TrainingRecipe& training, std::int64_t groups) {
  constexpr std::int64_t kTensors = 64;
  std::int64_t launches = groups;
  if (training.precision == Precision::kNvFp4) launches = 2 * share(groups, kTensors);
  if (training.precision == Precision::kFp8 && training.scaling == ScalingRecipe::kDelayed) launches = share(groups, kTensors);
  if (training.precision == Precision::kFp8 && training.scaling == ScalingRecipe::kCurrent) launches = 3 * groups;
  return static_cast<std::int32_t>(launches);
}

LowBytes low_bytes(const TrainingRecipe& training, std::int64_t rows, std::int64_t columns) {
  const std::int64_t elements = rows * columns;
  switch (training.precision) {
    case Precision::kFp8:
      // 1 x 128 blocks: an fp32 scale each (DeepSeek-V3, arXiv 2412.19437 section 3.3.2; TE Float8BlockQuantizer).
      if (training.scaling == ScalingRecipe::kBlockwise) return {.data = Bytes(elements), .scales = Bytes(share(elements, 128) * 4)};
      return {.data = Bytes(elements)};
    case Precision::kMxFp8:
      return {.data = Bytes(elements), .scales = Bytes(share(elements, 32))};  // OCP Microscaling 1.0: an E8M0 scale for 32 values
    case Precision::kNvFp4:
      return {.data = Bytes(share(elements, 2)), .scales = Bytes(share(elements, 16))};  // TE NVFP4Quantizer: an E4M3 scale for 16 values
    case Precision::kBf16:
    case Precision::kFp16:
    case Precision::kFp32:
      return {.data = size_of(elements, compute_dtype(training.precision))};
  }
  check_failed("precision", __FILE__, __LINE__);
}

bool has_block_scales(const TrainingRecipe& training) {
  return training.precision != Precision::kFp8 || training.scaling == ScalingRecipe::kBlockwise;
}

bool casts_both_ways(const TrainingRecipe& training) { return has_block_scales(training) || training.fp8_reads_one_layout; }

Bytes cached_weight(const TrainingRecipe& training, std::int64_t rows, std::int64_t columns) {
  const Bytes copy = low_bytes(training, rows, columns).all();
  const Bytes all = casts_both_ways(training) ? copy * 2 : copy;
  // Primary weights in the products' format are the first copy's data.
  return training.primary_weights_low ? all - low_bytes(training, rows, columns).data : all;
}

CastBytes cast_bytes(const TrainingRecipe& training, std::int64_t rows, std::int64_t columns, std::int64_t source_bytes, bool by_rows,
                     bool by_columns) {
  const std::int64_t copies = casts_both_ways(training) ? (by_rows ? 1 : 0) + (by_columns ? 1 : 0) : 1;
  return {.read = Bytes(rows * columns * source_bytes) * source_passes(training),
          .written = low_bytes(training, rows, columns).all() * copies + further_writes(training, rows * columns, copies)};
}

CastBytes weight_cast_bytes(const TrainingRecipe& training, Bytes cached) {
  constexpr std::int64_t kSide = 128;  // of whole blocks of every format
  const double each = as_double(cached_weight(training, kSide, kSide).value) / (kSide * kSide);
  if (cached.value == 0 || each == 0) return {};
  const double elements = as_double(cached.value) / each;
  if (training.primary_weights_low && !has_block_scales(training)) return {.read = Bytes(std::llround(elements)), .written = cached};
  const std::int64_t copies = casts_both_ways(training) && !training.primary_weights_low ? 2 : 1;
  const double read = elements * 2 * as_double(source_passes(training));
  return {.read = Bytes(std::llround(read)), .written = cached + further_writes(training, std::llround(elements), copies)};
}

SlotIndex low_slot(TemplateBuilder& builder, const std::string& name, SlotKind kind, std::int64_t rows, std::int64_t columns,
                   const std::string& module) {
  const TrainingRecipe& training = builder.context().training;
  return builder.add({.name = name,
                      .kind = kind,
                      .size = {},
                      .shape = {rows, columns},
                      .dtype = product_dtype(training),
                      .role = kind == SlotKind::kGradient  ? Role::kActivationGradients
                              : kind == SlotKind::kForward ? Role::kActivations
                                                           : Role::kCommunication,
                      .module = module},
                     low_bytes(training, rows, columns).all());
}

LowCopies low_cast(TemplateBuilder& builder, Direction direction, const LowCast& cast) {
  STEPSIM_CHECK(cast.by_rows || cast.by_columns);
  const TrainingRecipe& training = builder.context().training;
  const Slot source = builder.slot(cast.source);
  const std::int64_t columns = source.shape.back();
  std::int64_t rows = 1;
  for (std::size_t dimension = 0; dimension + 1 < source.shape.size(); ++dimension) rows *= source.shape[dimension];
  const SlotKind kind = direction == Direction::kForward ? SlotKind::kForward : SlotKind::kGradient;
  LowCopies copies;
  KernelPass pass{.name = cast.name + " cast",
                  .module = cast.module,
                  .reads = {cast.source},
                  .writes = {},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kQuantize,
                  .further_reads = source.size * (source_passes(training) - 1),
                  .launches = cast.launches};
  if (cast.by_rows || !casts_both_ways(training)) {
    copies.rows = low_slot(builder, cast.name + ", quantised", kind, rows, columns, source.module);
    pass.writes.push_back(copies.rows);
  }
  if (cast.by_columns) copies.columns = copies.rows;
  if (cast.by_columns && casts_both_ways(training)) {
    copies.columns = low_slot(builder, cast.name + ", quantised by columns", kind, rows, columns, source.module);
    pass.writes.push_back(copies.columns);
  }
  pass.further_writes = further_writes(training, rows * columns, static_cast<std::int64_t>(pass.writes.size()));
  builder.pass(direction, std::move(pass));
  return copies;
}

Bytes nf4_bytes(std::int64_t elements) {
  constexpr std::int64_t kBlock = 64, kScaleBlock = 256;  // arXiv 2305.14314 section 3; bitsandbytes functional.py quantize_4bit
  const std::int64_t blocks = share(elements, kBlock);
  return Bytes(share(elements, 2) + blocks + share(blocks, kScaleBlock) * 4);
}

}  // namespace stepsim
