#include "tools/job_flags.h"

#include "sim/input_error.h"

namespace stepsim {

static constexpr JobFlag kJobFlags[] = {
    {"--model", "model.name", "NAME|FILE", "a catalog name, a .textproto or a Hugging Face config.json"},
    {"--layers", "model.layers", "N", "another number of layers than the model's"},
    {"--hardware", "hardware.name", "NAME|FILE", "a catalog name or a .textproto"},
    {"--cluster", "hardware.cluster", "NAME|FILE", "node and network [the machine's usual one]"},
    {"--stack", "hardware.stack", "NAME|FILE|typical|none",
     "slowdowns of sustained training; `list stacks` [what is known for machine and framework, else typical]"},
    {"--profile", "hardware.profile", "FILE",
     "measured kernels instead of modelled ones: profile.proto or the tables of `calibrate` [none]"},
    {"--gpus", "hardware.gpus", "N", "GPUs in all [tp x pp x cp x dp]"},
    {"--framework", "framework.name", "NAME@VERSION",
     "--set framework.FIELD=VALUE changes a field [megatron-lm@2022-05 for LayerNorm+GeLU models, megatron-core@2025 otherwise]"},
    {"--sequence", "training.sequence", "S", "tokens of a sequence [as many as the model has learned positions]"},
    {"--micro-batch", "training.micro_batch", "B", "sequences at a time [1]"},
    {"--global-batch", "training.global_batch", "B", "sequences of a step [micro-batch x dp]"},
    {"--precision", "training.precision", "bf16|fp16|fp32|fp8|mxfp8|nvfp4", "of matrix products [bf16]"},
    {"--fp8-recipe", "training.fp8_recipe", "current|delayed|blockwise", "scales of --precision fp8 [current]"},
    {"--grad-dtype", "training.grad_dtype", "bf16|fp16|fp32", "of the gradient buffer [the framework's]"},
    {"--attention", "training.attention", "unfused|flash|fused", "[the framework's]"},
    {"--dropout", "training.dropout", "P", "[the model's]"},
    {"--fp8-attention", "training.low_precision_attention", "", "attention's products in 8 bits too, with a --precision below 16"},
    {"--packed", "training.packed", "N,N,...|FILE", "tokens of the documents packed into a sequence: attention stays within each [one]"},
    {"--loss", "training.loss", "plain|fused|chunked=N", "[the framework's]"},
    {"--optimizer", "training.optimizer", "adamw|adam8bit|sgd|lion|muon|none", "none: gradients alone [adamw]"},
    {"--optimizer-offload", "training.optimizer_offload", "F", "share of the optimizer's state and update on the host [0]"},
    {"--trainable", "training.trainable", "all|lora(r=16,targets=A+B)|qlora(...)|frozen(A+B)", "what is trained [all]"},
    {"--iteration", "training.iteration", "first|steady", "[steady]"},
    {"--stop-at-out-of-memory", "training.stop_at_out_of_memory", "", "end a step that does not fit where it stops fitting"},
    {"--cuda-graph", "training.cuda_graph", "none|scopes|full",
     "launched as graphs: attention and router of each layer, or all passes of a step [the framework's]"},
    {"--flops-convention", "training.flops_convention", "NAME", "of model FLOPs and MFU; see `list conventions`"},
    {"--tp", "parallel.tp", "N", "ranks of a tensor-parallel group [1]"},
    {"--sequence-parallel", "parallel.sequence_parallel", "", "shard the norms and dropouts too"},
    {"--tp-overlap", "parallel.tensor_overlap", "none|ring",
     "tensor-parallel collectives beside the products, piece by piece [the framework's]"},
    {"--pp", "parallel.pp", "N", "pipeline stages [1]"},
    {"--virtual-stages", "parallel.virtual_stages", "N", "model chunks of a stage, for the interleaved schedule [1]"},
    {"--schedule", "parallel.schedule", "gpipe|1f1b|interleaved|zb-h1|zb-v|dualpipe", "[1f1b, interleaved with --virtual-stages]"},
    {"--pp-layout", "parallel.pp_layout", "STRING", "layers of each chunk, Megatron-LM's notation: Et*3|(tt|)*2tL [even]"},
    {"--dp", "parallel.dp", "N", "data-parallel ranks [gpus / (tp x pp x cp), 1 without --gpus]"},
    {"--cp", "parallel.cp", "N", "ranks that share a sequence [1]"},
    {"--cp-exchange", "parallel.context_exchange", "allgather|ring|alltoall",
     "of keys and values; alltoall: heads for tokens [the framework's]"},
    {"--ep", "parallel.ep", "N", "ranks that share the experts of a layer, of tp x cp x dp [1]"},
    {"--dispatcher", "parallel.dispatcher", "allgather|alltoall|deepep|hybridep", "of tokens to experts [the framework's]"},
    {"--overlap-expert-exchange", "parallel.overlap_expert_exchange", "",
     "dispatch and combine of one micro-batch beside compute of another [the framework's]"},
    {"--delay-weight-gradients", "parallel.delay_weight_gradients", "", "of experts, behind what other layers wait for [the framework's]"},
    {"--imbalance", "training.imbalance", "F", "rows of this rank's experts over an even share [1]"},
    {"--zero", "parallel.zero", "0|1|2|3", "shard optimizer state (1), gradients (2), weights (3 = FSDP) over --dp [0]"},
    {"--rank", "parallel.rank", "N|worst|last", "the pipeline stage whose memory is shown; what fits is decided by all [worst]"},
    {"--placement", "placement.name", "NAME|FILE", "rows or a usual policy; see `list placements`"},
    {"--recompute", "placement.recompute", "none|full|selective", "[none]"},
    {"--recompute-method", "placement.recompute_method", "uniform|block", "of full recompute [uniform]"},
    {"--recompute-num-layers", "placement.recompute_num_layers", "N", "uniform: layers of a segment; block: layers run again [1]"},
    {"--recompute-modules", "placement.recompute_modules", "A,B,...", "of selective recompute, Megatron-LM's names [core_attn]"},
    {"--recompute-segments", "placement.recompute_segments", "K|SIZES|halving",
     "full recompute by K segments (the longer ones first, at the input), by sizes such as 2,2,1, or by halves"},
    {"--offload-modules", "placement.offload_modules", "A,B,...", "whose saved tensors go to host memory; see explain --module-table"},
    {"--offload-layers", "placement.offload_layers", "N", "only of the first N layers of a stage's chunk [all]"},
    {"--offload-groups-fraction", "placement.offload_groups_fraction", "F", "only the first part of the (layer, module) groups [1]"},
    {"--prefetch-layers", "placement.prefetch_layers", "P",
     "copied back P layers ahead; 0: when compute reaches the tensor [1, or the placement's]"},
    {"--max-in-flight", "placement.max_in_flight", "N", "copies out of a module at a time: N + 1 sets are resident [no limit]"},
    {"--offload-schedule", "placement.offload_schedule", "synchronous|issue-order|latency-hiding", "[issue-order]"},
};

// spec: the contract of the command line; each leaves this list when it is built.
static constexpr std::string_view kLaterFlags[] = {"--report", "--measured"};
static constexpr std::string_view kLaterCommands[] = {"whatif", "place", "plan", "study", "import"};

std::span<const JobFlag> job_flags() { return kJobFlags; }
std::span<const std::string_view> later_flags() { return kLaterFlags; }
std::span<const std::string_view> later_commands() { return kLaterCommands; }

std::string flag_of_path(std::string_view path) {
  path = path.substr(0, path.find('['));
  for (const JobFlag& flag : kJobFlags) {
    if (flag.path == path) return std::string(flag.flag);
  }
  return std::string(path);
}

FlagValue parse_set(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError({"--set"}, "found \"" + text + "\", wanted PATH=VALUE, such as parallel.tp=8");
  }
  return {"--set", text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace stepsim
