// What a training framework does with a layer, as data with a version: kernel set, what is saved, fused or eager, dtypes, overlap.
// models/data/frameworks/*.textproto; `name@version`. A switch exists only where two real frameworks differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/pipeline_program.h"
#include "models/training_recipe.h"
#include "sim/op_work.h"

namespace stepsim {

// A saved tensor that is kept in fewer bits than it is computed in.
struct StoredFormat {
  std::string slot;        // "attention output"
  std::int32_t bits = 8;   // of a value
  std::int32_t block = 0;  // values with one fp32 scale; 0: no scales
};

inline constexpr const char* kKeptModule = "kept";

struct FrameworkPreset {
  std::string name, version, source;
  // What is saved
  bool saves_norm_statistics = false;    // rstd (and mean), fp32 per token: real kernels do, the 2205.05198 accounting does not
  bool saves_softmax_statistics = true;  // flash attention's log-sum-exp, fp32 per head and query
  bool saves_dropout_masks = true;       // 1 byte per element (hidden dropout); false: regenerated from the seed
  bool creates_attention_mask = false;   // the data loader makes a boolean mask of sequence x sequence that the layers hold
  bool mask_per_sequence = false;        // one for each sequence of a micro-batch, not one for all
  bool shares_attention_output = true;   // attention's saved output and the projection's saved input are one storage
  // Kernels
  bool fused_softmax = true;     // scale+mask+softmax in one kernel
  bool softmax_in_fp32 = false;  // where it is not fused: its output is kept in fp32 and cast for the products; no file says so
                                 // (Megatron-LM fused_softmax.py forward_torch_softmax)
  bool fused_bias_activation = true;
  bool fused_bias_dropout_add = true;
  bool fused_rotary = true;
  bool fused_gate_up = true;       // one GEMM for gate and up
  std::int32_t flash_version = 2;  // 1 (in Triton), 2, 3 (where the machine has it), 4 (likewise)
  // Tensor parallelism
  bool backward_all_reduce_overlaps_weight_gradient = false;  // f-bar in backward runs beside dW on a communication stream
  // DTensor: tokens are not the first dimension, so a gathered tensor is copied into its order, and one that is scattered is copied before.
  bool copies_token_shards = false;
  bool views_single_sequence = false;          // but the gathered one of a single sequence is a view
  bool sequence_parallel_gather_again = true;  // norm output saved 1/t, gathered again in backward, overlapped with dX
  // Recompute
  bool stops_after_last_saved = false;  // a re-run ends with the last storage that backward reads
  // Dtypes and memory
  std::int32_t gradient_bits = 32;         // main gradient buffer, bits per parameter
  bool gradients_always_allocated = true;  // one contiguous buffer, zeroed and not freed
  std::int64_t vocab_multiple = 128;
  // Loss
  bool loss_in_place = true;  // fp32 copy of the logits worked on in place: 3 Lg, not 5 Lg
  bool logits_fp32 = true;
  bool casts_output = false;  // the model's output is made fp32 before the loss, whichever it is, and its gradient 16 bits behind
  // Pipeline
  PointToPoint point_to_point = PointToPoint::kBatched;                 // gpipe, 1f1b
  PointToPoint point_to_point_interleaved = PointToPoint::kOverlapped;  // interleaved
  bool deallocates_pipeline_outputs = true;                             // an output's bytes are freed once it is sent
  bool scatters_pipeline_messages = false;  // without sequence parallelism each tensor-parallel rank sends its part, gathered on arrival
  bool waits_after_exchange = true;         // the host waits for the device after each exchange that does not overlap
  // Data parallelism
  bool overlaps_gradient_reduce = false;        // beside the last backward pass, bucket by bucket
  bool overlaps_weight_gather = false;          // sharded optimizer: beside the next forward pass
  std::int64_t bucket_parameters = 0;           // least size of a bucket; 0: one bucket
  std::int64_t bucket_parameters_per_rank = 0;  // or this many a data-parallel rank, if that is more
  std::int32_t reduce_bits = 32;                // of gradients in collectives, where they are not reduced in place
  bool reduces_to_all = false;      // sharded optimizer: gradients are all-reduced over all replicas, of which a rank updates a part
  bool flattens_buckets = false;    // a bucket's gradients are copied into one tensor for its collective and back behind it
  bool broadcasts_weights = false;  // sharded optimizer: whole tensors are updated by one rank, which broadcasts them; none is split
  // Sharded gradients and weights (ZeRO 2 and 3)
  bool reduce_every_micro_batch = true;
  bool reshard_after_forward = true;
  bool prefetch_forward = false, prefetch_backward = true;
  std::int32_t gather_limit = 2;          // units gathered ahead before the host waits; 0: none
  bool keeps_last_layer_gathered = true;  // after forward: its backward comes next
  bool root_holds_ends = true;            // embedding and head are one unit: gathered for the whole pass, reduced at its end
  bool copies_out_of_gathers = true;      // each weight is copied out of the gathered buffer, each gradient into the reduced one
  bool copies_pointer_tables = false;     // those kernels read a table of pointers that a small copy brings from the host first
  bool frees_gathers_by_event = false;    // record_stream: a buffer is free when the device has passed its last use
  // Optimizer
  bool copies_updated_weights = false;  // fp32 master weights to 16-bit ones in a kernel of its own
  bool always_clips = false;            // gradients are scaled whatever their norm is
  bool fused_optimizer = true;          // one kernel an update; false: torch's elementwise kernels over lists of tensors (foreach)
  bool reads_gradient_norm = true;      // the host waits for the norm before it launches the update
  // Memory beside the tensors of the layers
  std::int32_t blas_handles = 0;       // handles of cuBLAS with a workspace each; the second, autograd's, is made in the first backward
  bool engine_workspace = false;       // Transformer Engine's, for its products; four more where experts are grouped
  bool groups_expert_products = true;  // one kernel for the products of all local experts; no file says otherwise (--moe-grouped-gemm)
  bool global_buffers = false;         // gathered inputs of the head and of dispatchers, and local scores, live in buffers that only grow
  bool transformer_engine = false;     // its layers; false: Megatron-LM's local ones (unfused attention through the global buffer)
  std::int32_t pipeline_buffers = 0;   // hidden states that a stage holds beside those of its layers, amid the step
  std::int32_t pipeline_buffers_interleaved = 0;
  std::int32_t pipeline_leftovers = 0;       // hidden states that each chunk holds from one step to the next
  bool keeps_weight_shards = false;          // ZeRO 3: 16-bit shards beside the fp32 ones; false: gathers cast the fp32 ones
  bool keeps_master_weights = true;          // fp32 ones beside 16-bit weights; false: the optimizer updates the 16-bit ones
  bool keeps_fp32_gradient_copies = false;   // fp32 copies of 16-bit gradients live until the next step begins
  bool copies_expert_probabilities = false;  // experts that are not gated save their outputs' product with the probabilities
  // What autograd is handed for a weight whose gradient was added to the buffer by its product: Transformer Engine keeps a 16-bit tensor of
  // each shape, Megatron-LM's head makes one each time.
  bool dummy_gradients = false;
  // Below 16 bits
  bool saves_quantised_inputs = true;  // Transformer Engine; false: torchao keeps the 16-bit input and casts it again in backward
  std::vector<StoredFormat> stored;    // what is saved in other formats, whatever the products' precision
  // Host
  bool host_issue = true;  // launches cost host time
  CudaGraph cuda_graph = CudaGraph::kNone;
  // What a job takes that does not say
  AttentionKind attention = AttentionKind::kFlash;
  LossKind loss = LossKind::kPlain;
  std::int64_t loss_chunks = 1;  // with kChunked
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  ContextExchange context_exchange = ContextExchange::kRing;
  TensorOverlap tensor_overlap = TensorOverlap::kNone;
  bool overlaps_expert_exchange = false, delays_weight_gradients = false;
  // Metrics of training
  std::int64_t metric_passes = 0;  // over the logits of each micro-batch: each an fp32 copy and a log-softmax of its own (llm-foundry: 2)
  bool measures_accuracy = false;  // InternEvo's AccPerplex on the logits of each micro-batch: a loss, accuracy and perplexity, eager
  // FSDP1's kernels beside its collectives
  bool concatenates_gradients = false;  // gradients of views are copied into the flat one
  bool predivides_gradients = false;    // a kernel divides by the ranks before the reduction, one behind it
  bool prefetches_after_backward =
      false;  // BACKWARD_POST: the next unit's gather is launched behind this unit's backward, before its reduction
  // Optimizer kernels
  bool loops_over_parameters = false;  // a Python loop: each parameter's elementwise kernels one by one, and a host read each
  // Experts
  bool fused_expert_mlp = false;         // activation, its probabilities and its cast ride on the grouped products
  std::int32_t expert_streams = 0;       // a kernel for each expert's product, on so many streams; 0: one for all (groups_expert_products)
  bool fused_permutation = true;         // rows are put in order by one kernel; false: index kernels
  bool permutes_in_exchange = false;     // HybridEP: within dispatch and combine; false: by kernels of its own around them
  bool eager_expert_activation = false;  // the activation of experts as single elementwise kernels
  bool reads_expert_counts =
      false;  // the host waits for the rows of each expert before it launches their products; not within a full CUDA graph
  // Eager layers
  bool fused_qkv = true;          // one product for query, key and value; false: three
  bool fused_norm = true;         // one kernel, which saves its input; false: an fp32 copy of the input and the normalised values are saved
  bool casts_norm_input = false;  // a norm's input is made fp32 by a kernel of its own before it, its gradient 16 bits by one behind it
  bool reruns_norms = false;      // norms of layers are checkpoints of their own: run again in backward, beside what else is run again
  bool keeps_unread_products = true;  // selective checkpointing keeps what it is told to; false: a compiler drops what no re-run reads
  bool eager_loss = false;            // log_softmax and nll_loss apart: backward makes two fp32 gradients beside the saved log-softmax
  // Other libraries' kernels
  bool fused_loss_keeps_logits = false;  // flash-attn: the fused loss saves logits and log-sum-exp, their gradient overwrites them
  bool unpermutes_with_probabilities =
      false;  // experts' outputs are multiplied by the probabilities when rows are put back: they are saved
  // What a placement keeps though backward does not read it, so that re-runs start from it: module kKeptModule. No preset's, a placement's.
  std::vector<std::string> kept_for_reruns;
  // Workspace bytes that live all step (cuBLAS, ...), by compute capability class, are facts of the machine + library: see hardware.
};

// InputError for an unknown one (with the nearest). Without "@version": the newest version in the catalog.
FrameworkPreset load_framework(const std::string& name_at_version);
std::vector<std::string> framework_names();  // name@version, sorted

// Reads the text of a Framework message, models/framework.proto. `file` is named in errors; a missing field is one.
FrameworkPreset parse_framework(const std::string& text, const std::string& file);

}  // namespace stepsim
