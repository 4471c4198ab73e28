#include "models/training_recipe.h"

#include <algorithm>
#include <cmath>

#include "models/chunk_placement.h"
#include "models/recipe_names.h"
#include "models/trainable.h"
#include "sim/check.h"
#include "sim/dtype_name.h"
#include "sim/input_error.h"

namespace stepsim {

constexpr std::int64_t kMostTokens = 1 << 24;                // of one sequence
constexpr std::int64_t kMostCount = 1 << 20;                 // of sequences in a batch, of ranks of a kind, of chunks
constexpr std::int64_t kMostRanks = 1 << 24;                 // of all kinds together
constexpr std::int64_t kMostBucket = std::int64_t{1} << 50;  // bytes

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
  const std::vector<LayerKind> kinds = model.kinds();
  const bool dense = std::any_of(kinds.begin(), kinds.end(), [](const LayerKind& kind) { return !kind.experts; });
  if (dense && model.ffn_hidden % ranks != 0) refuse("--tp", found, "a divisor of ffn_hidden " + std::to_string(model.ffn_hidden));
  if (model.experts.shared_ffn % ranks != 0) refuse("--tp", found, "a divisor of shared_ffn " + std::to_string(model.experts.shared_ffn));
}

static void check_ranks(const ModelSpec& model, const ParallelLayout& parallel) {
  const std::pair<const char*, std::int32_t> counts[] = {{"--tp", parallel.tensor},
                                                         {"--pp", parallel.pipeline},
                                                         {"--virtual-stages", parallel.virtual_stages},
                                                         {"--dp", parallel.data},
                                                         {"--cp", parallel.context},
                                                         {"--ep", parallel.expert},
                                                         {"--set parallel.optimizer_instances", parallel.optimizer_instances}};
  for (const auto& [flag, ranks] : counts) check_range(flag, ranks, kMostCount);
  check_tensor_ranks(model, parallel.tensor);
  const std::int64_t without_context = std::int64_t{parallel.tensor} * parallel.pipeline;  // each at most 2^20
  const bool many = without_context > kMostRanks || without_context * parallel.context > kMostRanks;
  if (!many && without_context * parallel.context * parallel.data <= kMostRanks) return;
  const bool context = parallel.context > 1;
  refuse("--gpus",
         std::to_string(parallel.tensor) + " x " + std::to_string(parallel.pipeline) +
             (context ? " x " + std::to_string(parallel.context) : "") + " x " + std::to_string(parallel.data) +
             (context ? " (tp x pp x cp x dp)" : " (tp x pp x dp)"),
         "at most " + std::to_string(kMostRanks) + " GPUs");
}

// Megatron-LM arguments.py, transformer_config.py and moe/token_dispatcher.py.
static void check_expert_ranks(const ModelSpec& model, const ParallelLayout& parallel) {
  const std::string ep = std::to_string(parallel.expert), etp = std::to_string(parallel.expert_tensor);
  if (!model.has_experts()) {
    if (parallel.expert > 1) refuse("--ep", ep, "1: " + model.name + " has no experts");
    if (parallel.expert_tensor > 1) refuse("--set parallel.expert_tp", etp, "none: " + model.name + " has no experts");
    return;
  }
  if (parallel.expert_tensor < 0 || parallel.expert_tensor > kMostCount) {
    refuse("--set parallel.expert_tp", etp, "a whole number from 1 to " + std::to_string(kMostCount));
  }
  if (model.experts.experts % parallel.expert != 0) {
    refuse("--ep", ep, "a divisor of the " + std::to_string(model.experts.experts) + " experts");
  }
  const std::int64_t tensor = parallel.expert_tensor_ranks();
  const char* const tensor_flag = parallel.expert_tensor > 0 ? "--set parallel.expert_tp" : "--tp";
  if (model.experts.ffn_hidden % tensor != 0) {
    refuse(tensor_flag, std::to_string(tensor), "a divisor of an expert's ffn_hidden " + std::to_string(model.experts.ffn_hidden));
  }
  const std::int64_t of_stage = std::int64_t{parallel.tensor} * parallel.context * parallel.data;
  if (of_stage % (tensor * parallel.expert) != 0) {
    refuse("--ep", ep + " x expert_tp " + std::to_string(tensor),
           "a divisor of the " + std::to_string(of_stage) + " ranks of a stage (tp x cp x dp)" +
               (parallel.expert_tensor == 0 && tensor > 1 ? "; --set parallel.expert_tp=1 keeps experts whole" : ""));
  }
  if (parallel.tensor > 1 && !parallel.sequence_parallel) {
    refuse("--tp", std::to_string(parallel.tensor) + " with experts", "1, or --sequence-parallel: else each rank routes every token");
  }
  const bool kernels = parallel.dispatcher == Dispatcher::kDeepEp || parallel.dispatcher == Dispatcher::kHybridEp;
  if (kernels && tensor * parallel.expert == 1) {
    refuse("--dispatcher", parallel.dispatcher == Dispatcher::kDeepEp ? "deepep with --ep 1" : "hybridep with --ep 1",
           "allgather or alltoall, or --ep 2 and more");
  }
}

// How many rows experts take.
static void check_routing(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  const double experts = static_cast<double>(std::max<std::int64_t>(model.experts.experts, 1));
  if (!(training.capacity >= 0 && training.capacity <= experts)) {
    refuse("--set training.capacity", std::to_string(training.capacity),
           "0 (dropless) to the " + std::to_string(model.experts.experts) + " experts");
  }
  // All tokens may go to one rank, not more of them.
  if (!(training.imbalance >= 1 && training.imbalance <= static_cast<double>(parallel.expert))) {
    refuse("--imbalance", std::to_string(training.imbalance),
           "from 1 to " + std::to_string(parallel.expert) + ", the ranks that experts are on");
  }
  if (training.capacity == 0) return;
  if (training.imbalance > 1) {
    refuse("--imbalance", std::to_string(training.imbalance), "1 with a capacity, which every expert's rows are padded to");
  }
  if (!model.has_experts()) refuse("--set training.capacity", std::to_string(training.capacity), "none: " + model.name + " has no experts");
  if (parallel.dispatcher == Dispatcher::kAllGather) {
    refuse("--set training.capacity", std::to_string(training.capacity) + " with --dispatcher allgather", "--dispatcher alltoall");
  }
}

// Megatron-LM arguments.py and schedules.py, torch.distributed.pipelining schedules.py and sail-sg's zero bubble: chunks belong to the
// interleaved schedule alone, which needs two stages and two chunks to interleave.
static void check_schedule(const ParallelLayout& parallel) {
  const std::string name(pipeline_name(parallel.schedule));
  const std::string chunks = std::to_string(parallel.virtual_stages);
  if (goes_both_ways(parallel.schedule) && parallel.pipeline == 1) refuse("--schedule", name + " with --pp 1", "--pp 2 and more");
  if (parallel.schedule == PipelineKind::kDualPipe && parallel.pipeline % 2 != 0) {
    refuse("--pp", std::to_string(parallel.pipeline) + " with --schedule dualpipe", "an even number of stages");
  }
  const bool interleaved = parallel.schedule == PipelineKind::kInterleaved;
  if (parallel.virtual_stages > 1 && parallel.pipeline == 1) refuse("--virtual-stages", chunks + " with --pp 1", "1, or --pp 2 and more");
  const bool both_ways = goes_both_ways(parallel.schedule);  // two chunks a stage, whatever is said
  if (parallel.virtual_stages > 1 && !interleaved && !(both_ways && parallel.virtual_stages == 2)) {
    refuse("--virtual-stages", chunks + " with --schedule " + name, both_ways ? "1 or 2" : "1, or --schedule interleaved");
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
    case Precision::kFp8:
    case Precision::kMxFp8:
    case Precision::kNvFp4:
      return "fp32 or bf16 with a --precision below 16 bits";
  }
  return "";
}

// Gradients are made in the dtype of the products and kept in it or in fp32 (Megatron-LM arguments.py, torchtitan MixedPrecisionPolicy).
// Only their collectives may be narrower under fp32 (DDP's bf16_compress_hook and fp16_compress_hook).
static void check_gradient_dtypes(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const DType own = training.precision == Precision::kFp16   ? DType::kFp16
                    : training.precision == Precision::kFp32 ? DType::kFp32
                                                             : DType::kBf16;  // below 16 bits gradients are bf16
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
  if (parallel.zero >= 2 && parallel.replicas() == 1 && parallel.expert_replicas() > 1) {
    refuse("--zero", zero + " with --dp 1 and experts that " + std::to_string(parallel.expert_replicas()) + " ranks share",
           "0 or 1: sharding of the experts alone is not built");
  }
  if (parallel.zero >= 2 && parallel.pipeline > 1) {
    // DeepSpeed's pipeline engine asserts it for both; torchtitan's FSDP under pipelines keeps weights gathered over passes.
    refuse("--zero", zero + " with --pp " + std::to_string(parallel.pipeline),
           "0 or 1: sharded gradients and weights under a pipeline are not built yet");
  }
  if (parallel.shard < 0)
    refuse("--set parallel.shard", std::to_string(parallel.shard), "0 (all of --dp) or the ranks of a sharding group");
  if (parallel.optimizer_instances > 1) {
    const std::string instances = std::to_string(parallel.optimizer_instances);
    if (parallel.zero != 1) refuse("--set parallel.optimizer_instances", instances + " with --zero " + zero, "1, or --zero 1");
    if (parallel.replicas() % parallel.optimizer_instances != 0) {
      refuse("--set parallel.optimizer_instances", instances,
             "a divisor of the " + std::to_string(parallel.replicas()) + " replicas (dp x cp)");
    }
  }
  if (parallel.shard == 0) return;
  if (parallel.replicas() % parallel.shard != 0) {
    refuse("--set parallel.shard", std::to_string(parallel.shard),
           parallel.context == 1 ? "a divisor of --dp " + std::to_string(parallel.data)
                                 : "a divisor of the " + std::to_string(parallel.replicas()) + " replicas (dp x cp)");
  }
  if (parallel.zero < 2 && parallel.shard != parallel.replicas()) {
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

// Ring attention gives each rank a part of the beginning and one of the end of a sequence, so that causal work is even (Megatron-LM
// get_batch_on_this_cp_rank).
static void check_context(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  const std::string found = std::to_string(parallel.context);
  if (model.encoder_layers > 0) refuse("--cp", found, "1: " + model.name + " has an encoder, whose sequence is not shared");
  const std::int64_t parts = std::int64_t{parallel.context} * (model.causal ? 2 : 1);
  if (training.sequence % parts != 0) {
    refuse("--sequence", std::to_string(training.sequence),
           "a multiple of " + std::to_string(parts) + (model.causal ? " (2 x cp, so that causal work is even)" : " (cp)"));
  }
}

// Heads for tokens: each rank attends with a part of its heads (Transformer Engine context_parallel.py cp_comm_type "a2a": "The number of
// heads needs to be divisible by CP size").
static void check_head_exchange(const ModelSpec& model, const ParallelLayout& parallel) {
  if (parallel.context == 1 || parallel.context_exchange != ContextExchange::kAllToAll) return;
  const std::int64_t query_heads = model.heads / parallel.tensor, kv_heads = std::max<std::int64_t>(model.kv_heads / parallel.tensor, 1);
  for (const auto& [what, heads] : {std::pair("heads", query_heads), std::pair("key-value heads", kv_heads)}) {
    if (heads % parallel.context == 0) continue;
    refuse("--cp-exchange", "alltoall with " + std::to_string(heads) + " " + what + " of a tensor-parallel rank",
           "ring or allgather, or --cp a divisor of them (found " + std::to_string(parallel.context) + ")");
  }
}

// Each document is shared as a sequence is: a part of its beginning and one of its end for each context-parallel rank (Megatron-LM
// get_batch_on_this_cp_rank for thd, Transformer Engine thd_get_partitioned_indices).
static void check_packed(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  if (training.packed.empty()) return;
  if (model.encoder_layers > 0) refuse("--packed", "documents", "none: " + model.name + " has an encoder, whose sequences are not packed");
  const std::int64_t parts = parallel.context == 1 ? 1 : std::int64_t{parallel.context} * (model.causal ? 2 : 1);
  std::int64_t sum = 0;
  for (const std::int64_t length : training.packed) {
    check_range("--packed", length, kMostTokens);
    if (length % parts != 0) {
      refuse("--packed", "a document of " + std::to_string(length) + " tokens",
             "a multiple of " + std::to_string(parts) + (model.causal ? " (2 x cp)" : " (cp)"));
    }
    sum = std::min(sum + length, kMostTokens + 1);
  }
  if (sum == training.sequence) return;
  refuse("--packed", "documents of " + (sum > kMostTokens ? "more than " + std::to_string(kMostTokens) : std::to_string(sum)) + " tokens",
         std::to_string(training.sequence) + " together, as --sequence says");
}

static void check_decoder_sequence(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  const char* const flag = "--set training.decoder_sequence";
  const std::string found = std::to_string(training.decoder_sequence);
  if (model.encoder_layers == 0) {
    if (training.decoder_sequence != 0) refuse(flag, found, "none: " + model.name + " has no encoder");
    return;
  }
  check_range(flag, training.decoder_sequence, kMostTokens);
  if (model.position == Position::kLearned && !model.positions_follow_sequence && training.decoder_sequence > model.max_positions) {
    refuse(flag, found, "at most the " + std::to_string(model.max_positions) + " learned positions of " + model.name);
  }
  if (parallel.sequence_parallel && training.decoder_sequence % parallel.tensor != 0) {
    refuse(flag, found, "a multiple of --tp " + std::to_string(parallel.tensor) + " with --sequence-parallel");
  }
}

static void check_sequence(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  check_range("--sequence", training.sequence, kMostTokens);
  const std::string found = std::to_string(training.sequence);
  const bool table = model.position == Position::kLearned && !model.positions_follow_sequence;
  if (table && training.sequence > model.max_positions) {
    refuse("--sequence", found, "at most the " + std::to_string(model.max_positions) + " learned positions of " + model.name);
  }
  if (parallel.context > 1) check_context(model, training, parallel);
  check_head_exchange(model, parallel);
  check_packed(model, training, parallel);
  if (parallel.sequence_parallel && training.sequence / parallel.context % parallel.tensor != 0) {
    const bool context = parallel.context > 1;
    refuse("--sequence", found,
           "a multiple of " +
               (context ? std::to_string(std::int64_t{parallel.tensor} * parallel.context) + " (tp x cp)"
                        : "--tp " + std::to_string(parallel.tensor)) +
               " with --sequence-parallel");
  }
  check_decoder_sequence(model, training, parallel);
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
  const std::int64_t group = parallel.micro_batch_group == 0 ? parallel.pipeline : parallel.micro_batch_group;
  if (parallel.schedule == PipelineKind::kInterleaved && (group < parallel.pipeline || group > kMostCount)) {
    refuse("--set parallel.micro_batch_group", std::to_string(group), "--pp " + std::to_string(parallel.pipeline) + " or more");
  }
  if (parallel.schedule == PipelineKind::kInterleaved && micro_batches % group != 0) {
    const std::string wanted = parallel.micro_batch_group == 0 ? "--pp " : "parallel.micro_batch_group ";
    refuse("--global-batch", std::to_string(training.global_batch) + " (" + std::to_string(micro_batches) + " micro-batches)",
           "a multiple of " + std::to_string(together * group) + ": the interleaved schedule needs micro-batches that are a multiple of " +
               wanted + std::to_string(group));
  }
}

static void check_optimizer_offload(const TrainingRecipe& training) {
  const double share = training.optimizer_offload;
  if (!(share >= 0 && share <= 1)) refuse("--optimizer-offload", std::to_string(share), "a share from 0 to 1");
  if (share == 0) return;
  const std::string found = std::to_string(share);
  // Newton-Schulz iterations are matrix products; CPU optimizers (Megatron-LM optimizer/cpu_offloading, DeepSpeed cpu_adam) have none.
  if (training.optimizer == OptimizerKind::kMuon) refuse("--optimizer-offload", found + " with --optimizer muon", "another optimizer");
  if (training.optimizer_in_backward) {
    refuse("--optimizer-offload", found + " with training.optimizer_in_backward", "one of the two: a hook updates on the device");
  }
}

static void check_optimizer(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const std::string name(name_of(kOptimizerNames, training.optimizer)), zero = " with --zero " + std::to_string(parallel.zero);
  if (training.optimizer == OptimizerKind::kMuon && parallel.zero >= 2) {
    refuse("--optimizer", name + zero, "--zero 0 or 1: it orthogonalises whole matrices");
  }
  const DType moments = training.moment_dtype;
  if (moments != DType::kFp32 && moments != DType::kBf16 && moments != DType::kFp16 && moments != DType::kFp8) {
    refuse("--set training.moment_dtype", dtype_name(moments), "fp32, bf16, fp16 or fp8");
  }
  if (training.optimizer == OptimizerKind::kAdam8Bit && moments != DType::kFp32) {
    refuse("--set training.moment_dtype", dtype_name(moments) + " with --optimizer adam8bit", "none: its moments have 8 bits");
  }
  check_probability("--set training.momentum", training.momentum);
  if (training.momentum > 0 && training.optimizer != OptimizerKind::kSgd) {
    refuse("--set training.momentum", std::to_string(training.momentum) + " with --optimizer " + name, "--optimizer sgd");
  }
  check_optimizer_offload(training);
  if (!training.optimizer_in_backward) return;
  const char* const flag = "--set training.optimizer_in_backward";
  // torch.distributed.optim _apply_optimizer_in_backward: a gradient is applied by its hook, so it must be whole and of all ranks by then.
  if (training.global_batch != training.micro_batch * parallel.data) {
    refuse(flag, "true with " + std::to_string(training.global_batch / (training.micro_batch * parallel.data)) + " micro-batches",
           "one: gradients are not accumulated");
  }
  if (parallel.zero == 1 || parallel.zero == 2) refuse(flag, "true" + zero, "--zero 0 or 3: buckets of gradients are reduced later");
}

// Transformer Engine utils.py assert_dim_for_fp8_exec: 16 elements; MXFP8 blocks have 32, NVFP4's 16.
static void check_low_precision(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  const bool low =
      training.precision == Precision::kFp8 || training.precision == Precision::kMxFp8 || training.precision == Precision::kNvFp4;
  if (training.primary_weights_low && !low) {
    refuse("--set training.low_precision_weights", "true", "--precision fp8, mxfp8 or nvfp4 with it");
  }
  if (training.low_precision_attention && !low) {
    refuse("--fp8-attention",
           "it with --precision " + std::string(training.precision == Precision::kBf16   ? "bf16"
                                                : training.precision == Precision::kFp16 ? "fp16"
                                                                                         : "fp32"),
           "fp8, mxfp8 or nvfp4 with it");
  }
  if (training.low_precision_attention && training.attention == AttentionKind::kUnfused) {
    refuse("--fp8-attention", "it with --attention unfused", "fused with it");
  }
  if (!low) return;
  const std::int64_t block = training.precision == Precision::kMxFp8 ? 32 : 16, tensor = parallel.tensor;
  const std::int64_t part = (parallel.sequence_parallel ? tensor : 1) * parallel.context;
  const LatentAttentionSpec& latent = model.latent;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"tokens of a micro-batch on a rank", training.sequence / part * training.micro_batch},
      {"hidden", model.hidden},
      {"query width of a rank", model.heads / tensor * (model.is_latent() ? latent.nope_dim + latent.rope_dim : model.head_dim)},
      {"ffn_hidden of a rank", model.ffn_hidden / tensor},
      {"ffn_hidden of an expert on a rank", model.experts.ffn_hidden / parallel.expert_tensor_ranks()},
      {"ffn_hidden of shared experts on a rank", model.experts.shared_ffn / tensor},
      {"q_rank", latent.q_rank},
      {"kv_rank and rope_dim", latent.kv_rank + latent.rope_dim}};
  for (const auto& [what, size] : sizes) {
    if (size % block == 0) continue;
    refuse("--precision",
           std::string(block == 32                             ? "mxfp8"
                       : training.precision == Precision::kFp8 ? "fp8"
                                                               : "nvfp4") +
               " with " + std::to_string(size) + " " + what,
           "a multiple of " + std::to_string(block));
  }
}

// Micro-batches whose weight gradient of the head waits (Megatron-LM defer_embedding_wgrad_compute needs a pipeline).
static void check_deferred_head(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const char* const flag = "--set training.deferred_head_gradients";
  const std::string found = std::to_string(training.deferred_head_gradients);
  if (training.deferred_head_gradients < 0 || training.deferred_head_gradients > kMostCount) {
    refuse(flag, found, "a whole number from 0 to " + std::to_string(kMostCount));
  }
  if (training.deferred_head_gradients > 0 && parallel.pipeline == 1) refuse(flag, found + " with --pp 1", "0, or --pp 2 and more");
}

// Elements a token has in the tensors of one layer, of the larger kind.
static double layer_width(const ModelSpec& model, const TrainingRecipe& training) {
  const LatentAttentionSpec& latent = model.latent;
  const auto attention =
      static_cast<double>(model.heads * (model.head_dim + latent.rope_dim + latent.value_dim) + latent.q_rank + latent.kv_rank);
  const double rows = static_cast<double>(model.experts.top_k) * std::max(training.imbalance, training.capacity);
  const double experts = rows * static_cast<double>(model.hidden + 2 * model.experts.ffn_hidden) +
                         static_cast<double>(2 * model.experts.shared_ffn + model.experts.experts);
  return static_cast<double>(model.hidden) + attention + static_cast<double>(2 * model.ffn_hidden) + experts;
}

// Tensors of all layers, at 16 bytes an element with four of each kind alive, stay below 2^62 bytes: no sum of sizes overflows.
static void check_size(const ModelSpec& model, const TrainingRecipe& training) {
  constexpr double kMostBytes = 4.6e18;  // 2^62
  const std::int64_t sequence = std::max(training.sequence, training.decoder_sequence);
  const double tokens = static_cast<double>(sequence) * static_cast<double>(training.micro_batch);
  const double layers = static_cast<double>(model.layers + model.multi_token_layers);
  const double heads = static_cast<double>(model.vocab) * static_cast<double>(1 + model.multi_token_layers);
  double elements = tokens * (layer_width(model, training) * layers + heads);
  if (training.attention == AttentionKind::kUnfused) {
    elements += tokens * static_cast<double>(sequence) * static_cast<double>(model.heads) * layers;
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
  check_expert_ranks(model, parallel);
  check_routing(model, training, parallel);
  check_schedule(parallel);
  const std::int32_t chunks = chunks_of_stage(parallel.schedule, parallel.virtual_stages);
  stage_layout(model.layers, parallel.pipeline, chunks, parallel.split, parallel.schedule);
  check_data_parallel(parallel);
  check_gradient_dtypes(training, parallel);
  check_sequence(model, training, parallel);
  check_batch(training, parallel);
  check_optimizer(training, parallel);
  check_trainable(training.trainable);
  check_low_precision(model, training, parallel);
  check_deferred_head(training, parallel);
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
