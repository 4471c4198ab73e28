#include "models/offload_presets.h"

#include "models/framework_preset.h"

namespace stepsim {

namespace {

constexpr std::string_view kEvery = "*";

// NVIDIA/TransformerEngine transformer_engine/pytorch/cpu_offload.py (v2): layers, one stream for both directions, events at save, copies
// issued when the next layer starts; compute waits and lets go before layer i + K, reloads before backward of layer i + K - 1, where K
// layers are resident (spec/offload.md section 2). Tensors below 256 Ki elements and parameters stay.
OffloadPreset transformer_engine() {
  OffloadPreset preset{.name = "te",
                       .meaning = "Transformer Engine cpu_offload v2: the first layers (--offload-layers) whole, the others resident",
                       .source = "NVIDIA/TransformerEngine transformer_engine/pytorch/cpu_offload.py",
                       .rows = {},
                       .offload = {}};
  OffloadSelection& selection = preset.offload.selection;
  selection.names = {std::string(kEvery)};
  selection.keep_last_layers = 1;
  selection.least_elements = 256 * 1024;
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kNextLayer;
  schedule.copy_out_waits_for_compute = false;
  schedule.release = ReleasePlace::kLayerStart;
  schedule.paced_by_kept_layers = true;
  schedule.streams = 1;
  schedule.host_lifetime = HostLifetime::kBackwardEnd;
  return preset;
}

// Megatron-LM megatron/core/pipeline_parallel/fine_grained_activation_offload.py: module groups, record_stream, reload after backward of
// the group of the same name one layer later, the last groups kept, at least 1 Mi elements, a pinned pool by shape.
OffloadPreset megatron() {
  OffloadPreset preset{.name = "megatron-fine-grained",
                       .meaning = "Megatron-LM fine-grained activation offloading: --offload-modules [core_attn]",
                       .source = "Megatron-LM megatron/core/pipeline_parallel/fine_grained_activation_offload.py",
                       .rows = {},
                       .offload = {}};
  OffloadSelection& selection = preset.offload.selection;
  selection.names = {"core_attn"};
  selection.keep_last_of_each_name = true;
  selection.least_elements = 1024 * 1024;
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kModuleEnd;
  schedule.release = ReleasePlace::kEvent;
  schedule.copy_in = CopyInPlace::kModuleEnd;
  schedule.pool_never_shrinks = true;
  schedule.host_lifetime = HostLifetime::kReloadStart;
  return preset;
}

// meta-pytorch/torchtune torchtune/training/_activation_offloading.py: saved tensors from 1,024 bytes, one stream, compute waits for the
// copy of the fifth last tensor (max_fwd_stash_size 5), tensors still in the stash are used in place, reload on demand, pinned each time.
OffloadPreset torchtune() {
  OffloadPreset preset{.name = "torchtune",
                       .meaning = "torchtune OffloadActivations: every saved tensor, stash of 5, reloaded on demand",
                       .source = "meta-pytorch/torchtune torchtune/training/_activation_offloading.py",
                       .rows = {},
                       .offload = {}};
  preset.offload.selection.names = {std::string(kEvery)};
  preset.offload.selection.least_bytes = Bytes(1024);
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kProduction;
  schedule.release = ReleasePlace::kTensor;
  schedule.release_distance = 5;
  schedule.in_place = true;
  schedule.lookahead = 0;
  schedule.copy_in_waits_for_compute = false;
  schedule.streams = 1;
  schedule.allocates = true;
  schedule.power_of_two = true;
  return preset;
}

// pytorch/torchtitan torchtitan/experiments/graph_trainer/cpu_offload.py: graph nodes, budget of 100 GB a rank with the largest first, at
// least 4 KB, last layer skipped, waits moved defer_n_layers (1) later, reloads prefetch_n_layers (1) earlier, one stream.
OffloadPreset torchtitan() {
  OffloadPreset preset{
      .name = "torchtitan",
      .meaning = "torchtitan graph trainer: largest tensors first up to 100 GB, freed one layer later, prefetched one earlier",
      .source = "pytorch/torchtitan torchtitan/experiments/graph_trainer/cpu_offload.py",
      .rows = {},
      .offload = {}};
  OffloadSelection& selection = preset.offload.selection;
  selection.names = {std::string(kEvery)};
  selection.keep_last_layers = 1;
  selection.least_bytes = Bytes(4096);
  selection.budget = Bytes(100'000'000'000);
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kProduction;
  schedule.release = ReleasePlace::kSamePlace;
  schedule.copy_in = CopyInPlace::kSamePlace;
  schedule.streams = 1;
  schedule.power_of_two = true;
  return preset;
}

// DeepSpeed cpu_checkpointing, new engine (spec/offload.md section 2): the checkpointed input of each layer on a side stream once a newer
// one is there, record_stream, compute never waits, reload on demand, pooled buffers.
OffloadPreset deepspeed() {
  OffloadPreset preset{.name = "deepspeed",
                       .meaning = "DeepSpeed cpu_checkpointing: full recompute, the layers' inputs on the host",
                       .source = "deepspeedai/DeepSpeed#8287, cpu_checkpointing with overlap",
                       .recompute = RecomputeGranularity::kFull,
                       .rows = {},
                       .offload = {}};
  preset.offload.selection.names = {"input"};
  preset.offload.selection.keep_last_layers = 1;
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kNextLayer;
  schedule.release = ReleasePlace::kEvent;
  schedule.lookahead = 0;
  schedule.copy_in_waits_for_compute = false;
  schedule.streams = 1;
  schedule.pool_never_shrinks = true;
  schedule.power_of_two = true;
  return preset;
}

// AI-Hypercomputer/maxtext remat policies on XLA GPU: what has no name is run again, named projections go to the host
// (save_and_offload_only_these_names); decoder_layer_input stays. XLA: 4 streams for copies, 2 asynchronous ops at a time, host stacks for
// the whole loop (spec/offload.md section 1.4).
OffloadPreset maxtext(std::string_view name, std::string_view meaning, const std::vector<std::string>& names) {
  OffloadPreset preset{.name = name,
                       .meaning = meaning,
                       .source = "AI-Hypercomputer/maxtext src/maxtext/layers/decoders.py get_remat_policy; openxla/xla",
                       .rows = {{.module_or_slot = std::string(kEvery), .action = PlacementAction::kRecompute}},
                       .offload = {}};
  for (const std::string& each : names) preset.rows.push_back({.module_or_slot = each, .action = PlacementAction::kOffload});
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kProduction;
  schedule.copy_out_waits_for_compute = false;
  schedule.release = ReleasePlace::kLayerStart;
  schedule.order = OffloadSchedule::Order::kLatencyHiding;
  schedule.asynchronous_limit = 2;
  schedule.streams = 4;
  schedule.host_lifetime = HostLifetime::kStep;
  return preset;
}

// torch.autograd.graph.save_on_cpu: a blocking copy when a tensor is saved and another one when it is needed; pageable by default.
OffloadPreset save_on_cpu() {
  OffloadPreset preset{.name = "save-on-cpu",
                       .meaning =
                           "torch.autograd.graph.save_on_cpu: every saved tensor once, host and device wait for each copy (torch copies at "
                           "each save, parameters too)",
                       .source = "torch 1.13 torch/autograd/graph.py save_on_cpu; tests/backends/torch_saved_tensors.py",
                       .rows = {},
                       .offload = {}};
  preset.offload.selection.names = {std::string(kEvery)};
  OffloadSchedule& schedule = preset.offload.schedule;
  schedule.copy_out = CopyOutPlace::kProduction;
  schedule.synchronous = true;
  schedule.lookahead = 0;
  schedule.streams = 1;
  schedule.pinned = false;
  return preset;
}

// Selective checkpointing by op: what is not kept is run again from what is (spec/accuracy.md B.5).
OffloadPreset by_op(std::string_view name, std::string_view meaning, std::string_view source, const std::vector<std::string>& keeps) {
  return {.name = name,
          .meaning = meaning,
          .source = source,
          .rows = {{.module_or_slot = std::string(kEvery), .action = PlacementAction::kRecompute},
                   {.module_or_slot = kKeptModule, .action = PlacementAction::kKeep}},
          .offload = {},
          .keeps = keeps};
}

// parallelisms/parallelize_llama.py, _apply_ac_to_transformer_block: of wq, wk, wv, wo, w1, w3, w2 every second aten.mm, flash attention
// and reduce-scatters. w2's output is kept although nothing reads it.
OffloadPreset torchtitan_op() {
  return by_op("torchtitan:op", "torchtitan selective op: every second product, attention, reduce-scatters; the rest run again",
               "pytorch/torchtitan@9dec370a torchtitan/parallelisms/parallelize_llama.py",
               {"query output", "value output", "attention output", "attention log-sum-exp", "gate output", "down output",
                "attention projection output, scattered", "mlp output, scattered"});
}

// experiments/graph_trainer: all compute-intensive ops and attention, elementwise ones run again (27aa4907).
OffloadPreset torchtitan_graph() {
  return by_op("torchtitan:graph", "torchtitan graph trainer, default: all products and attention; elementwise kernels run again",
               "pytorch/torchtitan@27aa4907 torchtitan/experiments/graph_trainer",
               {"query output", "key output", "value output", "attention output", "attention log-sum-exp", "attention projection output",
                "attention projection output, scattered", "gate output", "up output", "down output", "mlp output, scattered"});
}

}  // namespace

std::span<const OffloadPreset> offload_presets() {
  static const std::vector<OffloadPreset> presets = {
      transformer_engine(),
      megatron(),
      torchtune(),
      torchtitan(),
      deepspeed(),
      maxtext("maxtext:minimal_offloaded", "MaxText minimal_offloaded: projections on the host, the rest run again",
              {"qkv_proj", "out_proj", "mlp_wi"}),
      maxtext("maxtext:qkv_proj_offloaded", "MaxText qkv_proj_offloaded: query, key and value on the host, the rest run again",
              {"qkv_proj"}),
      save_on_cpu(),
      torchtitan_op(),
      torchtitan_graph()};
  return presets;
}

const OffloadPreset* offload_preset(std::string_view name) {
  for (const OffloadPreset& preset : offload_presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

}  // namespace stepsim
