#include "tools/megatron_run.h"

#include <array>

#include "tools/megatron_layout.h"
#include "tools/megatron_model.h"
#include "tools/megatron_recipe.h"

namespace stepsim {

namespace {

bool has_part(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

bool has_state_space_layers(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  for (const char* const flag : {"hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model", "mamba-num-heads", "flextron"}) {
    if (arguments.given(flag)) return true;
  }
  return has_part(arguments.text("spec"), "hybrid") || has_part(arguments.text("spec"), "mamba") || run.family() == "hybrid" ||
         run.family() == "nemotron";
}

bool has_images(const MegatronRun& run) {
  return run.arguments.given("img-h") || has_part(run.arguments.text("model-provider"), "vlm") || has_part(run.family(), "multimodal") ||
         run.family() == "mimo";
}

}  // namespace

std::string reason_to_skip(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  if (has_state_space_layers(run)) return "state-space layers (Mamba, hybrid, Nemotron): saved states and the chunked scan";
  if (has_images(run)) return "a vision tower, packed sequences of varying lengths";
  if (arguments.on("perform-rl-step")) return "reinforcement learning: key-value cache and graph pools of its inference";
  const bool fsdp = arguments.on("use-megatron-fsdp") || arguments.on("use-torch-fsdp2");
  if (fsdp && arguments.given("num-experts")) return "FSDP of experts: 4 times what ZeRO 3 allocates";
  if (arguments.given("fp8-format") || arguments.given("fp4-format"))
    return "FP8: weight caches, histories, buffers of overlapped products";
  if (arguments.given("cuda-graph-impl")) return "memory pools of CUDA graphs";
  if (arguments.on("fine-grained-activation-offloading")) return "fine-grained offload: its measured peak was reset";
  if (arguments.given("recompute-modules") && arguments.on("multi-latent-attention"))
    return "discarded outputs of latent attention: v is copied beside them";
  if (has_part(arguments.text("optimizer"), "muon")) return "Muon: one momentum, layers distributed over ranks";
  if (run.family() == "t5" && has_part(run.name(), "release")) return "T5 release: 13 to 15 % that no rule explains";
  return "";
}

MegatronJob megatron_job(const MegatronRun& run) {
  MegatronJob made;
  Job& job = made.job;
  job.model = megatron_model(run);
  job.parallel = megatron_layout(run, job.model);
  job.training = megatron_recipe(run);
  if (job.training.deferred_head_gradients > 0) {  // gradients that wait are not there to be reduced beside backward; memory is the same
    job.parallel.overlap_gradient_reduce = false;
  }
  job.framework = megatron_preset(run);
  job.placement = megatron_placement(run);
  job.gpu = load_gpu(golden_machine(run.golden));
  job.cluster = usual_cluster(job.gpu);
  job.gpus = job.parallel.ranks();
  job.allocator.expandable_segments = has_part(run.arguments.text("env.PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True");
  made.blas_workspace = configured_blas_workspace(run.arguments);
  return made;
}

std::string run_group(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  if (run.family() == "t5") return "T5";
  if (run.family() == "bert") return "BERT";
  if (arguments.on("use-megatron-fsdp") || arguments.on("use-torch-fsdp2")) return "FSDP";
  if (arguments.given("num-experts")) return arguments.given("mtp-num-layers") ? "MoE, multi-token prediction" : "MoE";
  if (arguments.on("multi-latent-attention")) return "dense, latent attention";
  if (has_local_layers(arguments)) return "dense, local layers";
  if (arguments.whole("context-parallel-size", 1) > 1) return "dense, context parallel";
  for (const char* const flag : {"num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"}) {
    if (arguments.given(flag) && arguments.whole("pipeline-model-parallel-size", 1) > 1) return "dense, interleaved";
  }
  return "dense";
}

}  // namespace stepsim
