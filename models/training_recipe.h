// One training run's choices: batch, precision, parallel layout. Facts of the job; how a framework runs them is framework_preset.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/pipeline_program.h"
#include "models/stage_layout.h"
#include "sim/op_work.h"

namespace stepsim {

struct FrameworkPreset;

enum class AttentionKind : std::uint8_t { kUnfused, kFlash, kFused };  // fused: cuDNN
// Of matrix products. Below 16 bits: those of the layers' linear parts; all else is bf16.
enum class Precision : std::uint8_t { kBf16, kFp16, kFp32, kFp8, kMxFp8, kNvFp4 };
enum class ScalingRecipe : std::uint8_t { kCurrent, kDelayed, kBlockwise };  // of kFp8: per tensor now, per tensor from history, 1x128
enum class OptimizerKind : std::uint8_t { kAdamW, kSgd, kAdam8Bit, kLion, kMuon, kNone };  // none: gradients are made, nothing is updated
enum class Dispatcher : std::uint8_t { kAllGather, kAllToAll, kDeepEp, kHybridEp };        // of tokens to experts
enum class LossKind : std::uint8_t { kPlain, kFused, kChunked };
// Who brings keys and values of a sequence that context-parallel ranks share: gathered before attention; sent round a ring beside the
// attention of what is already there; or heads for tokens by all-to-alls, so that each rank attends all tokens with a part of the heads.
enum class ContextExchange : std::uint8_t { kAllGather, kRing, kAllToAll };
// Tensor-parallel collectives beside the products that need or make what they carry, piece by piece (Transformer Engine's userbuffers).
enum class TensorOverlap : std::uint8_t { kNone, kRing };
// What is replayed as a CUDA graph, whose kernels cost no launch each: nothing; attention, router and dispatch preparation of each layer;
// all passes of a step.
enum class CudaGraph : std::uint8_t { kNone, kScopes, kFull };
enum class IterationKind : std::uint8_t { kSteady, kFirst };  // first: optimizer states are born in this step

// Which parameters are trained: it decides gradients, optimizer state, weight-gradient products and what is saved for them.
struct TrainableMask {
  enum class Kind : std::uint8_t { kAll, kLora, kFrozen } kind = Kind::kAll;
  std::int64_t rank = 0;             // of LoRA's two factors beside each target
  std::vector<std::string> targets;  // LoRA: linear layers ("qkv", "attention projection", "gate and up", "down", "fc1", "fc2", "head");
                                     // kFrozen: parts that are not trained ("embedding", "head", "layers", "norms", a linear layer)
  std::int64_t base_bits = 0;        // of a frozen weight; 0: as the products; 4: NF4 (QLoRA), 64 values a block with an 8-bit scale
  bool trains_all() const { return kind == Kind::kAll; }
};

struct TrainingRecipe {
  std::int64_t sequence = 0;          // tokens; of an encoder-decoder, the encoder's
  std::int64_t decoder_sequence = 0;  // of an encoder-decoder
  std::int64_t micro_batch = 1;       // sequences of one device group at a time
  std::int64_t global_batch = 1;      // sequences of a step; a multiple of micro_batch * data-parallel size
  Precision precision = Precision::kBf16;
  std::optional<DType> gradient_dtype;  // none: the preset's
  AttentionKind attention = AttentionKind::kFlash;
  double dropout = 0.0;                       // hidden and attention
  std::optional<double> attention_dropout{};  // of attention, where it is another one than that
  LossKind loss = LossKind::kPlain;
  std::int64_t loss_chunks = 1;  // with kChunked
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  IterationKind iteration = IterationKind::kSteady;
  ScalingRecipe scaling = ScalingRecipe::kCurrent;
  bool primary_weights_low =
      false;  // below 16 bits: weights are kept in the products' format, not in bf16 beside a cache (fp8-param-gather)
  bool fp8_reads_one_layout =
      true;  // of kFp8 with tensor-wide scales: Hopper's products read operands by rows only, so casts transpose too
  TrainableMask trainable{};
  bool optimizer_in_backward = false;          // each gradient is applied and freed as soon as it is made
  DType moment_dtype = DType::kFp32;           // of Adam's moments, Lion's, Muon's and SGD's momentum
  std::optional<DType> second_moment_dtype{};  // of Adam's v, where it is another one than m's
  std::int64_t master_bits = 32;               // of an fp32 weight beside a 16-bit one; 16: only what that one lacks (TE's remainders)
  double momentum = 0;                         // of kSgd; 0: none is kept
  double capacity = 0;                         // rows an expert takes at most, as a multiple of an even share; 0: dropless
  double imbalance = 1;                        // rows of this rank's experts over an even share; dropless
  std::int64_t deferred_head_gradients = 0;    // micro-batches whose weight gradient of the head waits for the end of the pipeline
  // Documents packed into one sequence, by their tokens, which add up to `sequence`: attention stays within each. Empty: one.
  std::vector<std::int64_t> packed{};
  double optimizer_offload = 0;           // share of the optimizer's state and update that lives and runs on the host: 0 to 1
  bool overlap_optimizer_copies = true;   // of what is offloaded, with the host's update
  bool low_precision_attention = false;   // attention's products in the products' 8-bit format too
  std::optional<CudaGraph> cuda_graph{};  // none: the preset's
};

// What a preset decides and a user may override is optional here: with_preset() fills it in.
struct ParallelLayout {
  std::int32_t tensor = 1;                 // ranks of a tensor-parallel group
  bool sequence_parallel = false;          // needs tensor > 1 to matter
  std::int32_t context = 1;                // ranks that share a sequence: each has tokens / context queries and, in attention, all keys
  std::int32_t expert = 1;                 // ranks that share the experts of a layer
  std::int32_t expert_tensor = 0;          // tensor-parallel ranks of an expert; 0: `tensor`, Megatron-LM's default
  std::optional<Dispatcher> dispatcher{};  // none: the preset's
  std::optional<ContextExchange> context_exchange{};  // likewise
  std::optional<TensorOverlap> tensor_overlap{};      // likewise
  std::optional<bool> overlap_expert_exchange{};      // dispatch and combine of one micro-batch beside compute of another
  std::optional<bool> delay_weight_gradients{};       // of experts, behind what the previous layer waits for
  std::int32_t optimizer_instances = 1;               // zero 1: the optimizer is sharded within so many groups of data-parallel ranks
  // Pipeline
  std::int32_t pipeline = 1;        // stages
  std::int32_t virtual_stages = 1;  // model chunks a stage
  PipelineKind schedule = PipelineKind::k1F1B;
  std::int32_t micro_batch_group = 0;  // interleaved: micro-batches that a chunk runs before the next one's turn; 0: as many as stages
  StageSplit split{};
  std::optional<PointToPoint> point_to_point{};
  std::optional<bool> deallocate_outputs{};  // an output is freed when it is sent (2205.05198 appendix B); else it lives until its backward
  // Data parallelism
  std::int32_t data = 1;                           // ranks
  std::int32_t zero = 0;                           // 0 replicas, 1 optimizer state sharded, 2 gradients too, 3 weights too (FSDP)
  std::int32_t shard = 0;                          // ranks of a sharding group, a divisor of data (HSDP: replicas of it); 0: all of data
  std::optional<bool> overlap_gradient_reduce{};   // beside the last micro-batch's backward, in buckets; else after it
  std::optional<bool> overlap_weight_gather{};     // zero 1 and 2: beside the forward pass; else after the optimizer
  std::optional<Bytes> bucket{};                   // of gradients in the dtype in which they are reduced; 0: one bucket
  std::optional<DType> reduce_dtype{};             // of gradient collectives
  std::optional<bool> reduce_every_micro_batch{};  // zero 2 and 3; false: unsharded gradients accumulate (no_sync)
  // zero 3
  std::optional<bool> reshard_after_forward{};                  // weights are gathered again in backward
  std::optional<bool> prefetch_forward{}, prefetch_backward{};  // the next unit's gather is launched before this unit's kernels
  std::optional<std::int32_t> gather_limit{};  // units gathered ahead before the host waits for the release of one; 0: no limit

  // Ranks that hold the same dense parameters, whether they see other sequences or other parts of one.
  std::int32_t replicas() const { return data * context; }
  std::int32_t sharding_ranks() const { return (shard == 0 ? replicas() : shard) / optimizer_instances; }
  std::int32_t expert_tensor_ranks() const { return expert_tensor == 0 ? tensor : expert_tensor; }
  // Ranks that hold the same experts' parameters: of tensor x context x data ranks of a stage.
  std::int64_t expert_replicas() const { return std::int64_t{tensor} * context * data / (std::int64_t{expert_tensor_ranks()} * expert); }
  std::int64_t ranks() const { return std::int64_t{tensor} * pipeline * context * data; }
};

// Numbers out of any range (sequence 1..2^24, micro-batch, global batch and ranks of each kind 1..2^20, ranks together 2^24, dropout 0..1,
// saved bytes of all layers below 2^62), and what cannot be trained so: heads not divisible by TP, sequence not divisible by TP under SP,
// kv_heads against TP (kv heads are replicated when TP is a multiple of them), ffn and batch divisibility, sequence above a learned
// position table; layers against stages and chunks (stage_layout), chunks without the interleaved schedule, its micro-batches against the
// stages; sharding groups that do not divide the data-parallel ranks, gradient dtypes. `--flag: found X, wanted Y`, or "--set
// parallel.shard: ..." where there is no flag: InputError.
void check_layout(const ModelSpec&, const TrainingRecipe&, const ParallelLayout&);

// The layout with everything decided: what the user left open is the preset's. Zero 0 and 1 reduce gradients in the buffer where they
// accumulate, so in its dtype.
ParallelLayout with_preset(const ParallelLayout&, const TrainingRecipe&, const FrameworkPreset&);

// Rows of the embedding table and head after padding to `multiple` x tensor ranks (Megatron: 128).
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int32_t tensor);

}  // namespace stepsim
