#include "models/training_recipe.h"

#include "sim/check.h"
#include "sim/dtype_name.h"
#include "sim/input_error.h"

namespace stepsim {

constexpr std::int64_t kMostTokens = 1 << 24;                // of one sequence
constexpr std::int64_t kMostCount = 1 << 20;                 // of sequences in a batch, of ranks of a kind, of chunks
constexpr std::int64_t kMostRanks = 1 << 24;                 // of all kinds together
constexpr std::int64_t kMostBucket = std::int64_t{1} << 50;  // bytes

[[noreturn]] static void refuse(const char* flag, const std::string& found, const std::string& wanted) {
  throw InputError({flag}, "found " + found + ", wanted " + wanted);
}

static void check_range(const char* flag, std::int64_t value, std::int64_t most) {
  if (value < 1 || value > most) refuse(flag, std::to_string(value), "a whole number from 1 to " + std::to_string(most));
}

static void check_probability(const char* flag, double value) {
  if (!(value >= 0.0 && value < 1.0)) refuse(flag, std::to_string(value), "a probability from 0 to below 1");
}

// Either every rank owns whole key-value heads or every key-value head is on the same number of ranks.
static bool splits_kv_heads(const ModelSpec& model, std::int64_t ranks) {
  return model.kv_heads % ranks == 0 || ranks % model.kv_heads == 0;
}

// "1, 2, 4": divisors of the heads that the key-value heads allow too.
static std::string possible_ranks(const ModelSpec& model) {
  std::string list;
  for (std::int64_t ranks = 1; ranks <= model.heads; ++ranks) {
    if (model.heads % ranks == 0 && splits_kv_heads(model, ranks)) list += (list.empty() ? "" : ", ") + std::to_string(ranks);
  }
  return list;
}

static void check_tensor_ranks(const ModelSpec& model, std::int64_t ranks) {
  const std::string found = std::to_string(ranks);
  if (model.heads % ranks != 0)
    refuse("--tp", found, "a divisor of " + std::to_string(model.heads) + " heads (" + possible_ranks(model) + ")");
  if (!splits_kv_heads(model, ranks)) {
    refuse("--tp", found,
           "a divisor or a multiple of " + std::to_string(model.kv_heads) + " key-value heads (" + possible_ranks(model) + ")");
  }
  if (model.ffn_hidden % ranks != 0) refuse("--tp", found, "a divisor of ffn_hidden " + std::to_string(model.ffn_hidden));
}

static void check_ranks(const ModelSpec& model, const ParallelLayout& parallel) {
  const std::pair<const char*, std::int32_t> counts[] = {{"--tp", parallel.tensor},
                                                         {"--pp", parallel.pipeline},
                                                         {"--virtual-stages", parallel.virtual_stages},
                                                         {"--dp", parallel.data},
                                                         {"--cp", parallel.context}};
  for (const auto& [flag, ranks] : counts) check_range(flag, ranks, kMostCount);
  if (parallel.context != 1) refuse("--cp", std::to_string(parallel.context), "1: context parallelism is not built yet");
  check_tensor_ranks(model, parallel.tensor);
  const std::int64_t before_data = std::int64_t{parallel.tensor} * parallel.pipeline;  // each at most 2^20
  if (before_data > kMostRanks || before_data * parallel.data > kMostRanks) {
    refuse("--gpus",
           std::to_string(parallel.tensor) + " x " + std::to_string(parallel.pipeline) + " x " + std::to_string(parallel.data) +
               " (tp x pp x dp)",
           "at most " + std::to_string(kMostRanks) + " GPUs");
  }
}

// Megatron-LM arguments.py and schedules.py, torch.distributed.pipelining schedules.py and sail-sg's zero bubble: chunks belong to the
// interleaved schedule alone, which needs two stages and two chunks to interleave.
static void check_schedule(const ParallelLayout& parallel) {
  const std::string name(pipeline_name(parallel.schedule));
  const std::string chunks = std::to_string(parallel.virtual_stages);
  const bool interleaved = parallel.schedule == PipelineKind::kInterleaved;
  if (parallel.virtual_stages > 1 && parallel.pipeline == 1) refuse("--virtual-stages", chunks + " with --pp 1", "1, or --pp 2 and more");
  if (parallel.virtual_stages > 1 && !interleaved) {
    refuse("--virtual-stages", chunks + " with --schedule " + name, "1, or --schedule interleaved");
  }
  if (parallel.virtual_stages == 1 && interleaved) {
    refuse("--schedule", name + " with --virtual-stages 1", "--virtual-stages 2 or more, or another schedule");
  }
}

static std::string dtype_list(const TrainingRecipe& training) {
  switch (training.precision) {
    case Precision::kBf16:
      return "fp32 or bf16 with --precision bf16";
    case Precision::kFp16:
      return "fp32 or fp16 with --precision fp16";
    case Precision::kFp32:
      return "fp32 with --precision fp32";
  }
  return "";
}

// Gradients are made in the dtype of the products and kept in it or in fp32 (Megatron-LM arguments.py, torchtitan MixedPrecisionPolicy).
// Only their collectives may be narrower under fp32 (DDP's bf16_compress_hook and fp16_compress_hook).
static void check_gradient_dtypes(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const DType own = training.precision == Precision::kBf16   ? DType::kBf16
                    : training.precision == Precision::kFp16 ? DType::kFp16
                                                             : DType::kFp32;
  const auto fits = [own](DType dtype) { return dtype == DType::kFp32 || dtype == own; };
  if (training.gradient_dtype && !fits(*training.gradient_dtype)) {
    refuse("--grad-dtype", dtype_name(*training.gradient_dtype), dtype_list(training));
  }
  const bool narrower = own == DType::kFp32 && (parallel.reduce_dtype == DType::kBf16 || parallel.reduce_dtype == DType::kFp16);
  if (parallel.reduce_dtype && !fits(*parallel.reduce_dtype) && !narrower) {
    refuse("--set parallel.reduce_dtype", dtype_name(*parallel.reduce_dtype), dtype_list(training));
  }
}

static void check_sharding(const ParallelLayout& parallel) {
  const std::string zero = std::to_string(parallel.zero);
  if (parallel.zero < 0 || parallel.zero > 3) refuse("--zero", zero, "0, 1, 2 or 3");
  if (parallel.zero >= 2 && parallel.pipeline > 1) {
    // DeepSpeed's pipeline engine asserts it for both; torchtitan's FSDP under pipelines keeps weights gathered over passes.
    refuse("--zero", zero + " with --pp " + std::to_string(parallel.pipeline),
           "0 or 1: sharded gradients and weights under a pipeline are not built yet");
  }
  if (parallel.shard < 0)
    refuse("--set parallel.shard", std::to_string(parallel.shard), "0 (all of --dp) or the ranks of a sharding group");
  if (parallel.shard == 0) return;
  if (parallel.data % parallel.shard != 0) {
    refuse("--set parallel.shard", std::to_string(parallel.shard), "a divisor of --dp " + std::to_string(parallel.data));
  }
  if (parallel.zero < 2 && parallel.shard != parallel.data) {
    refuse("--set parallel.shard", std::to_string(parallel.shard) + " with --zero " + zero,
           "--zero 2 or 3, whose groups may be replicated");
  }
}

static void check_data_parallel(const ParallelLayout& parallel) {
  check_sharding(parallel);
  if (parallel.bucket && (parallel.bucket->value < 0 || parallel.bucket->value > kMostBucket)) {
    refuse("--set parallel.bucket_size", print_bytes(*parallel.bucket), "0 B (one bucket) to " + print_bytes(Bytes(kMostBucket)));
  }
  constexpr std::int32_t kMostUnits = 1 << 20;
  if (parallel.gather_limit && (*parallel.gather_limit < 0 || *parallel.gather_limit > kMostUnits)) {
    refuse("--set parallel.gather_limit", std::to_string(*parallel.gather_limit),
           "0 (no limit) to " + std::to_string(kMostUnits) + " units");
  }
}

static void check_sequence(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  check_range("--sequence", training.sequence, kMostTokens);
  const std::string found = std::to_string(training.sequence);
  const bool table = model.position == Position::kLearned && !model.positions_follow_sequence;
  if (table && training.sequence > model.max_positions) {
    refuse("--sequence", found, "at most the " + std::to_string(model.max_positions) + " learned positions of " + model.name);
  }
  if (model.attention_window > 0 && training.sequence > model.attention_window) {
    refuse("--sequence", found,
           "at most the attention window of " + model.name + ", " + std::to_string(model.attention_window) + ": longer is not built yet");
  }
  if (parallel.sequence_parallel && training.sequence % parallel.tensor != 0) {
    refuse("--sequence", found, "a multiple of --tp " + std::to_string(parallel.tensor) + " with --sequence-parallel");
  }
}

static void check_batch(const TrainingRecipe& training, const ParallelLayout& parallel) {
  check_range("--micro-batch", training.micro_batch, kMostCount);
  check_range("--global-batch", training.global_batch, kMostCount);
  const std::int64_t together = training.micro_batch * parallel.data;
  if (training.global_batch % together != 0) {
    refuse("--global-batch", std::to_string(training.global_batch),
           "a multiple of " + std::to_string(together) + " (micro-batch " + std::to_string(training.micro_batch) + " x data-parallel " +
               std::to_string(parallel.data) + ")");
  }
  // Megatron-LM schedules.py: warm-up and steady state go through the chunks in groups of as many micro-batches as there are stages.
  const std::int64_t micro_batches = training.global_batch / together;
  if (parallel.schedule == PipelineKind::kInterleaved && micro_batches % parallel.pipeline != 0) {
    refuse("--global-batch", std::to_string(training.global_batch) + " (" + std::to_string(micro_batches) + " micro-batches)",
           "a multiple of " + std::to_string(together * parallel.pipeline) +
               ": the interleaved schedule needs micro-batches that are a multiple of --pp " + std::to_string(parallel.pipeline));
  }
}

// Tensors of all layers, at 16 bytes an element with four of each kind alive, stay below 2^62 bytes: no sum of sizes overflows.
static void check_size(const ModelSpec& model, const TrainingRecipe& training) {
  constexpr double kMostBytes = 4.6e18;  // 2^62
  const double tokens = static_cast<double>(training.sequence) * static_cast<double>(training.micro_batch);
  const double width = static_cast<double>(model.hidden + model.heads * model.head_dim + 2 * model.ffn_hidden);
  double elements = tokens * (width * static_cast<double>(model.layers) + static_cast<double>(model.vocab));
  if (training.attention == AttentionKind::kUnfused) {
    elements += tokens * static_cast<double>(training.sequence) * static_cast<double>(model.heads) * static_cast<double>(model.layers);
  }
  if (elements * 16 * 4 <= kMostBytes) return;
  const bool scores = training.attention == AttentionKind::kUnfused;
  refuse("--sequence", std::to_string(training.sequence),
         "a smaller one with --micro-batch " + std::to_string(training.micro_batch) + (scores ? " and --attention unfused" : "") +
             ": the activations of a step would pass 2^62 bytes");
}

void check_layout(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  STEPSIM_CHECK(!model_problem(model).has_value());
  check_ranks(model, parallel);
  check_schedule(parallel);
  stage_layout(model.layers, parallel.pipeline, parallel.virtual_stages, parallel.split);
  check_data_parallel(parallel);
  check_gradient_dtypes(training, parallel);
  check_sequence(model, training, parallel);
  check_batch(training, parallel);
  check_probability("--dropout", training.dropout);
  if (training.loss == LossKind::kChunked) check_range("--loss", training.loss_chunks, training.sequence * training.micro_batch);
  check_size(model, training);
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int32_t tensor) {
  STEPSIM_CHECK(vocab > 0);
  STEPSIM_CHECK(multiple > 0);
  STEPSIM_CHECK(tensor > 0);
  const std::int64_t step = multiple * tensor;
  return (vocab + step - 1) / step * step;
}

}  // namespace stepsim
