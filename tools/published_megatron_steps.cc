// Rows of published/results.csv that ran Megatron-LM's core: Megatron-Bridge, NeMo, SimuMax's runs, Megatron-LM's own and those of arXiv
// 2205.05198. Facts: spec/accuracy.md C.2 (what the configurations are), C.4 (which rows are weak), C.5 (traps).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/bridge_recipe.h"
#include "tools/published_results.h"

namespace stepsim {

namespace {

std::int64_t count(const RowCells& cells, std::string_view column) { return cells.has(column) ? cells.whole(column, 1) : 1; }

bool has_experts(const RowCells& cells) { return cells.has("n_experts"); }

void set_path(PublishedStep& step, const char* path, const char* value) { step.set("--set", path, value); }

void set_framework(PublishedStep& step, const std::string& name) { step.set("--framework", "framework.name", name); }

// Transformer Engine's optimizer states over the data-parallel ranks, collectives beside the passes or not.
void add_distributed_optimizer(PublishedStep& step, bool overlapped) {
  step.set("--zero", "parallel.zero", "1");
  set_path(step, "parallel.overlap_grad_reduce", overlapped ? "true" : "false");
  set_path(step, "parallel.overlap_param_gather", overlapped ? "true" : "false");
}

// Fine-tuning packs samples of SQuAD into each sequence; a row gives no lengths.
void add_tuning(PublishedStep& step, const RowCells& cells, const char* lora) {
  const std::string_view task = cells.text("task");
  if (task != "sft" && task != "lora") return;
  constexpr std::int64_t kDocument = 256;  // about a SQuAD context with question and answer; from memory, unverified
  const std::int64_t sequence = count(cells, "seq_len"), documents = std::max<std::int64_t>(sequence / kDocument, 1);
  std::string packed;
  for (std::int64_t i = 0; i + 1 < documents; ++i) packed += fmt::format("{},", kDocument);
  packed += std::to_string(sequence - (documents - 1) * kDocument);
  step.set("--packed", "training.packed", packed);
  step.guesses.push_back(fmt::format("sequences pack samples of {} tokens: the row gives no lengths", kDocument));
  if (task != "lora") return;
  step.set("--trainable", "training.trainable", lora);
  step.guesses.push_back(fmt::format("{}: of the recipes for tuning, the row does not say", lora));
}

// Precision names of all these sources, with what each keeps its weights in.
void add_low_precision(PublishedStep& step, const RowCells& cells) {
  struct Name {
    std::string_view cell;
    const char *precision, *recipe;
    bool weights_too;  // fp8_param_gather
  };
  static constexpr std::array<Name, 9> kNames = {{{"fp8", "fp8", "current", true},
                                                  {"fp8-cs", "fp8", "current", true},
                                                  {"fp8-TE", "fp8", "delayed", true},
                                                  {"fp8 blockwise", "fp8", "blockwise", false},
                                                  {"mxfp8", "mxfp8", "", true},
                                                  {"fp8-mx", "mxfp8", "", true},
                                                  {"fp8_mx", "mxfp8", "", true},
                                                  {"nvfp4", "nvfp4", "", false},
                                                  {"fp8-ds", "fp8", "delayed", true}}};
  for (const Name& name : kNames) {
    if (cells.text("precision") != name.cell) continue;
    step.set("--precision", "training.precision", name.precision);
    if (*name.recipe != '\0') step.set("--fp8-recipe", "training.fp8_recipe", name.recipe);
    if (name.weights_too) set_path(step, "training.low_precision_weights", "true");
    return;
  }
  add_result_precision(step, cells);
}

void add_recompute(PublishedStep& step, const std::string& modules) {
  if (modules.empty()) return;
  step.set("--recompute", "placement.recompute", "selective");
  step.set("--recompute-modules", "placement.recompute_modules", modules);
}

void add_full_recompute(PublishedStep& step, const RowCells& cells) {
  step.set("--recompute", "placement.recompute", "full");
  if (cells.text("recompute_detail").empty()) step.guesses.emplace_back("full recompute of every layer: the row does not say how many");
}

void add_weakness(PublishedStep& step, const std::string& reason) {
  step.labels["weak"] = "yes";
  step.guesses.push_back("weak: " + reason);
}

// accuracy.md C.4: rows whose number or configuration its authors could not account for.
void add_named_weakness(PublishedStep& step, const RowCells& cells) {
  struct Weak {
    std::string_view id;
    const char* reason;
  };
  static constexpr std::array<Weak, 5> kWeak = {{{"B0531", "release notes v0.5.1: a regression of GPT-OSS MXFP8 in 26.06"},
                                                 {"B0674", "its printed layout matches no recipe"},
                                                 {"B0676", "its printed layout matches no recipe"},
                                                 {"B0659", "22 % slower than the same row of the next patch release"},
                                                 {"B0766", "two micro-batches, data-parallel traffic dominates, unresolved"}}};
  step.labels.emplace("weak", "no");
  for (const Weak& weak : kWeak) {
    if (cells.text("id") == weak.id) add_weakness(step, weak.reason);
  }
  if (says(cells.text("notes"), "probably carried over")) add_weakness(step, "its value is that of another release");
}

void add_bridge_experts(PublishedStep& step, const RowCells& cells, const BridgeRecipe& recipe) {
  if (!has_experts(cells)) return;
  if (count(cells, "ep") > 1) step.set("--dispatcher", "parallel.dispatcher", recipe.dispatcher);
  if (count(cells, "tp") > 1) set_path(step, "parallel.expert_tp", "1");  // expert_tensor_parallel_size of every recipe
  const char* const overlaps = recipe.overlaps_exchange ? "true" : "false";
  step.set("--overlap-expert-exchange", "parallel.overlap_expert_exchange", overlaps);
  step.set("--delay-weight-gradients", "parallel.delay_weight_gradients", overlaps);  // both by moe_a2a_overlap
  set_path(step, "framework.fused_expert_mlp", recipe.fused_expert_mlp ? "true" : "false");
  const bool eager = cells.text("model").starts_with("gpt-oss") && !recipe.fused_expert_mlp;
  if (eager) {
    set_path(step, "framework.eager_expert_activation", "true");
    step.guesses.emplace_back("clamped, biased activation of gpt-oss as single kernels (accuracy.md C.2)");
  }
}

void add_bridge_labels(PublishedStep& step, const RowCells& cells, const BridgeRecipe& recipe) {
  step.labels["container"] = recipe.container;
  step.labels["flags known"] = recipe.known ? "yes" : "no";
  if (recipe.container == "25.09") add_weakness(step, "containers of 25.09");
  if (cells.text("task") == "lora") add_weakness(step, "LoRA");
  if (says(cells.text("source_path"), "model_verification_cards")) add_weakness(step, "a verification card: configuration in prose");
  const bool gpt_oss = cells.text("model").starts_with("gpt-oss");
  if (gpt_oss && recipe.graph == "full") add_weakness(step, "gpt-oss with a graph of the whole iteration");
  const bool nodes_of_8 = !cells.text("gpu").starts_with("GB") && count(cells, "ep") > 8;
  if (nodes_of_8) add_weakness(step, "experts over nodes of 8 GPUs");
}

// Verification cards describe their configuration in prose. Of Qwen3-30B they name the recipe (QWEN3_30B_A3B_PRETRAIN_CONFIG_*_V1), of
// others tokens a second and seconds, whose product is the batch.
void fill_card(const RowCells& cells, FilledRow& row) {
  if (!says(cells.text("source_path"), "model_verification_cards")) return;
  if (cells.text("model") == "qwen3-30b-a3b") {
    const bool hopper = cells.text("gpu").starts_with("H"), large = cells.text("gpu").ends_with("300");
    const std::string guess = "of the recipe that the card names";
    row.fill("seq_len", "4096", "sequence 4096: " + guess);
    row.fill("micro_batch", hopper ? "1" : large ? "8" : "4", "micro-batch " + guess);
    row.fill("ep", hopper ? "16" : "8", "expert parallelism " + guess);
  }
  const bool derived = !cells.has("global_batch") && cells.has("tokens_per_s_gpu") && cells.has("step_time_s") && cells.has("n_gpus") &&
                       row.cells().has("seq_len");
  if (!derived) return;
  const double tokens = cells.number("tokens_per_s_gpu") * cells.number("step_time_s") * cells.number("n_gpus");
  constexpr double kMostTokens = 1e12;
  const auto sequences =
      static_cast<std::int64_t>(std::clamp(tokens, 1.0, kMostTokens) / static_cast<double>(row.cells().whole("seq_len", 1)) + 0.5);
  row.fill("global_batch", std::to_string(std::max<std::int64_t>(sequences, 1)),
           "the global batch is the row's tokens a second times its seconds");
}

// NeMo's table of tuning has no column for virtual stages; those of the same models' pre-training rows hold a layer each.
void fill_virtual_stages(const RowCells& cells, FilledRow& row) {
  const std::int64_t stages = count(cells, "pp"), layers = count(cells, "layers");
  if (cells.text("source_repo") != "NVIDIA/NeMo" || cells.text("task") == "pretrain" || stages == 1 || layers % stages != 0) return;
  row.fill("vpp", std::to_string(layers / stages),
           "virtual stages of one layer, as the model's pre-training row: the table of tuning prints none");
}

// A row may print more ranks for experts than a stage has (B0782: 64 of 32).
void cut_experts(const RowCells& cells, FilledRow& row) {
  if (!cells.has("n_gpus") || !has_experts(cells)) return;
  const std::int64_t of_stage = count(cells, "n_gpus") / count(cells, "pp");
  if (of_stage < 1 || count(cells, "ep") <= of_stage) return;
  row.replace("ep", std::to_string(of_stage), fmt::format("weak: {} ranks for experts where a stage has {}", count(cells, "ep"), of_stage));
}

void add_bridge_optimizer(PublishedStep& step, const RowCells& cells, const BridgeRecipe& recipe) {
  if (!says(cells.text("dp_mode"), "FSDP")) {
    add_distributed_optimizer(step, true);
  } else {
    step.set("--zero", "parallel.zero", "3");
    set_path(step, "hardware.expandable_segments", "true");
    step.guesses.emplace_back("Megatron-FSDP's double buffers do not fragment: expandable segments stand for them");
    if (recipe.offloaded_layers > 0) {
      step.set("--placement", "placement.name", "te");
      step.set("--offload-layers", "placement.offload_layers", std::to_string(recipe.offloaded_layers));
    }
  }
  step.set("--grad-dtype", "training.grad_dtype", "bf16");  // grad_reduce_in_fp32 false
  const bool defers = count(cells, "pp") > 1 && cells.text("model").starts_with("llama3") && cells.text("task") != "lora";
  if (defers) step.guesses.emplace_back("the head's weight gradients do not wait for the end of the pipeline, as the recipes have them do");
}

PublishedStep bridge_step(const FilledRow& row) {
  const RowCells cells = row.cells();
  const BridgeRecipe recipe = bridge_recipe(cells);
  PublishedStep step;
  step.labels = {{"source", "Megatron-Bridge"}};
  step.guesses = recipe.guesses;
  step.guesses.insert(step.guesses.end(), row.guesses().begin(), row.guesses().end());
  set_framework(step, "megatron-bridge@" + recipe.container);
  add_low_precision(step, cells);
  step.set("--attention", "training.attention", "fused");
  step.set("--loss", "training.loss", "fused");  // cross_entropy_fusion_impl te
  step.set("--cuda-graph", "training.cuda_graph", recipe.graph);
  const bool fsdp = says(cells.text("dp_mode"), "FSDP");
  if (recipe.expandable_segments && !fsdp) set_path(step, "hardware.expandable_segments", "true");
  if (recipe.low_precision_attention) step.set("--fp8-attention", "training.low_precision_attention", "true");
  if (count(cells, "tp") > 1) step.set("--tp-overlap", "parallel.tensor_overlap", recipe.overlaps_tensor ? "ring" : "none");
  const std::string layout = bridge_layout(cells.text("model"), count(cells, "layers"), count(cells, "pp") * count(cells, "vpp"));
  if (!layout.empty()) step.set("--pp-layout", "parallel.pp_layout", layout);
  const bool multi_token = cells.text("model") == "deepseek-v3" && !says(cells.text("notes"), "w/o MTP");
  if (multi_token) set_path(step, "model.multi_token_layers", "1");
  if (cells.text("recompute") == "full") {
    add_full_recompute(step, cells);
  } else {
    add_recompute(step, recipe.recompute_modules);
  }
  add_bridge_optimizer(step, cells, recipe);
  add_bridge_experts(step, cells, recipe);
  add_tuning(step, cells, "lora(r=16,targets=qkv)");
  add_bridge_labels(step, cells, recipe);
  if (count(cells, "tp") > 1 && !cells.has("sp")) step.set("--sequence-parallel", "parallel.sequence_parallel", "true");
  return step;
}

PublishedStep nemo_step(const FilledRow& row) {
  const RowCells cells = row.cells();
  PublishedStep step;
  step.labels = {{"source", "NeMo"}, {"container", "24.07"}, {"flags known", "yes"}};
  step.guesses = row.guesses();
  set_framework(step, "nemo@24.07");
  add_low_precision(step, cells);
  step.set("--attention", "training.attention", "fused");
  step.guesses.emplace_back("no recompute, attention by cuDNN, FP8 weights: of the recipes, the row does not say");
  if (count(cells, "tp") > 1) {
    step.set("--tp-overlap", "parallel.tensor_overlap", "ring");  // ub_tp_comm_overlap
    if (!cells.has("sp")) step.set("--sequence-parallel", "parallel.sequence_parallel", "true");
  }
  add_distributed_optimizer(step, true);
  add_tuning(step, cells, "lora(r=32,targets=qkv)");
  if (cells.text("task") == "lora") add_weakness(step, "LoRA");
  if (cells.text("task") == "sft") add_weakness(step, "fine-tuning whose virtual stages are not printed");
  return step;
}

PublishedStep simumax_step(const RowCells& cells) {
  PublishedStep step;
  step.labels = {{"source", "SimuMax"}, {"container", "26.01"}, {"flags known", "yes"}};
  set_framework(step, "megatron-simumax@2026-01");
  add_low_precision(step, cells);
  step.set("--attention", "training.attention", "flash");  // --use-flash-attn
  const std::string_view said = cells.text("unknowns");
  if (says(said, "cross-entropy fusion on")) step.set("--loss", "training.loss", "fused");  // b200_real_repro_guide.md section 4
  constexpr std::string_view kDense = "dense_layers=";
  if (const std::size_t at = said.find(kDense); at != std::string_view::npos && has_experts(cells)) {
    step.dense_layers = said[at + kDense.size()] - '0';
  }
  add_distributed_optimizer(step, false);
  if (has_experts(cells) && count(cells, "ep") > 1) {
    step.set("--dispatcher", "parallel.dispatcher", "alltoall");
    step.guesses.emplace_back("tokens are dispatched by NCCL's all-to-all: the row does not say");
  }
  if (count(cells, "tp") > 1 && !cells.has("sp")) {
    step.set("--sequence-parallel", "parallel.sequence_parallel", "true");
    step.guesses.emplace_back("sequence parallelism: the row does not say");
  }
  return step;
}

// arXiv 2205.05198: Tables 4 and 5.
PublishedStep paper_step(const RowCells& cells) {
  PublishedStep step;
  step.labels = {{"source", "arXiv 2205.05198"}, {"container", "2022-05"}, {"flags known", "yes"}};
  set_framework(step, "megatron-lm@2022-05");
  add_low_precision(step, cells);
  step.set("--attention", "training.attention", "unfused");
  step.set("--zero", "parallel.zero", "0");
  if (cells.text("recompute") == "full") step.set("--recompute", "placement.recompute", "full");
  if (cells.text("recompute") == "selective") add_recompute(step, "core_attn");
  if (cells.text("category") == "single_layer") {  // one layer in a loop of its own is a benchmark, not sustained training
    step.part = MeasuredPart::kLayer;
    step.set("--stack", "hardware.stack", "none");
  }
  return step;
}

// "dispatcher deepep; MoE layer only": the bench of megatron/core's experts.
PublishedStep experts_layer_step(const RowCells& cells) {
  PublishedStep step;
  step.part = MeasuredPart::kLayer;
  step.labels = {{"source", "Megatron-LM MoE layer"}, {"container", "26.01"}, {"flags known", "yes"}};
  set_framework(step, "megatron-core@2026");
  add_low_precision(step, cells);
  step.set("--zero", "parallel.zero", "0");
  const std::string_view notes = cells.text("notes");
  const char* const dispatcher = says(notes, "hybridep") ? "hybridep" : says(notes, "deepep") ? "deepep" : "alltoall";
  step.set("--dispatcher", "parallel.dispatcher", dispatcher);
  step.guesses.emplace_back("the layer has norms, residuals and an attention of 8 heads of 8 channels; the row measured the experts alone");
  return step;
}

PublishedStep megatron_lm_step(const RowCells& cells) {
  if (cells.text("task") == "MoE layer fwd+bwd") return experts_layer_step(cells);
  PublishedStep step;
  step.labels = {{"source", "Megatron-LM CI"}, {"container", "2026"}, {"flags known", "yes"}};
  set_framework(step, "megatron-core@2026");
  add_low_precision(step, cells);
  step.set("--attention", "training.attention", cells.text("attention_kernel") == "unfused" ? "unfused" : "fused");
  // overlap-grad-reduce and overlap-param-gather of the *_memory_speed cases (memory/megatron_golden_configs.json).
  add_distributed_optimizer(step, true);
  step.guesses.emplace_back("collectives overlap as in the cases' files; their separate additions of weight gradients are not modelled");
  if (has_experts(cells)) {
    set_path(step, "parallel.expert_tp", "1");
    step.set("--dispatcher", "parallel.dispatcher", "alltoall");
  }
  return step;
}

PublishedStep source_step(const FilledRow& row) {
  const RowCells cells = row.cells();
  const std::string_view source = cells.text("source_repo");
  if (says(source, "Megatron-Bridge")) return bridge_step(row);
  if (says(source, "SimuMax")) return simumax_step(cells);
  if (says(source, "NVIDIA/NeMo")) return nemo_step(row);
  if (says(source, "2205.05198")) return paper_step(cells);
  if (says(source, "Megatron-LM")) return megatron_lm_step(cells);
  throw UntranslatedRow{fmt::format("source {}: no translator", source), false};
}

}  // namespace

PublishedStep megatron_results_step(const RowCells& cells) {
  FilledRow row(cells);
  fill_card(cells, row);
  fill_virtual_stages(cells, row);
  cut_experts(cells, row);
  PublishedStep step = source_step(row);
  step.labels["model"] = std::string(cells.text("model"));
  add_named_weakness(step, cells);
  add_result_sizes(step, row.cells());
  return step;
}

}  // namespace stepsim
