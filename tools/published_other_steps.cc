// Rows of published/results.csv by other trainers than Megatron's and torchtitan; facts: spec/accuracy.md B.2.6 and the rows themselves.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "models/framework_preset.h"
#include "tools/published_results.h"
#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

void add_policy(PublishedStep& step, const RowCells& cells) {
  const std::string_view recompute = cells.text("recompute");
  if (recompute == "full") return step.set("--recompute", "placement.recompute", "full");
  if (recompute == "none" || recompute == "none (assumed)") return;
  if (recompute == "unknown" || recompute.empty()) {
    step.guesses.push_back("every layer is checkpointed");
    return step.set("--recompute", "placement.recompute", "full");
  }
  throw UntranslatedRow{fmt::format("recompute policy {} {}", recompute, cells.text("recompute_detail")), false};
}

// What the policies of offload_presets.h are in other words; false: nothing is offloaded.
bool add_offload(PublishedStep& step, const RowCells& cells) {
  const std::string_view policy = cells.text("act_offload");
  if (policy.empty() || policy == "no") return false;
  if (policy == "unknown") {
    step.guesses.push_back("no activation is offloaded");
    return false;
  }
  const bool inputs = says(policy, "hidden states only") || says(policy, "layer inputs") || says(policy, "offload on top of GC");
  const bool all = says(policy, "all saved tensors");
  if (!inputs && !all) throw UntranslatedRow{fmt::format("activations are offloaded by a policy that is not built in: {}", policy), false};
  step.set("--placement", "placement.name", inputs ? "deepspeed" : "torchtune");
  return true;
}

void add_optimizer_offload(PublishedStep& step, const RowCells& cells) {
  const std::string_view share = cells.text("opt_offload");
  if (share.starts_with("full")) return step.set("--optimizer-offload", "training.optimizer_offload", "1");
  if (!share.empty() && share != "no" && share != "unknown") {
    throw UntranslatedRow{fmt::format("a part of the optimizer is offloaded: {}", share), false};
  }
}

void add_trainable(PublishedStep& step, const RowCells& cells) {
  const std::string_view task = cells.text("task");
  if (task != "lora" && task != "qlora") return;
  step.guesses.push_back("LoRA of rank 16 beside every linear layer");
  step.set("--trainable", "training.trainable", fmt::format("{}(r=16,targets=qkv+attention projection+gate and up+down)", task));
}

void add_sharding(PublishedStep& step, const RowCells& cells) {
  const std::string_view mode = cells.text("dp_mode");
  if (!says(mode, "FSDP") && !says(mode, "HSDP")) return;
  if (!cells.has("n_gpus") || cells.whole("n_gpus", 1) == 1) return;
  step.set("--zero", "parallel.zero", "3");
  const std::int64_t node = cells.has("gpus_per_node") ? cells.whole("gpus_per_node", 1, kMostRanks) : 8;
  if (says(mode, "HSDP")) step.set("--set", "parallel.shard", std::to_string(node));  // sharded within a node, replicated between them
}

// What most of these rows have in common.
void add_usual(PublishedStep& step, const RowCells& cells) {
  add_result_sizes(step, cells);
  add_result_precision(step, cells);
  if (!add_offload(step, cells)) add_policy(step, cells);
  add_optimizer_offload(step, cells);
  add_trainable(step, cells);
  add_sharding(step, cells);
}

// "zero1=8": optimizer states are sharded within groups of 8 ranks; -1: of all.
void add_internevo(PublishedStep& step, FilledRow& row) {
  const RowCells cells = row.cells();
  set_cluster(step, says(cells.text("gpu"), "A800") ? "internevo-a800" : "internevo-a100");
  add_usual(step, cells);
  step.set("--zero", "parallel.zero", "1");
  const std::int64_t ranks = cells.has("dp") ? cells.whole("dp", 1, kMostRanks) : 1;
  if (says(cells.text("dp_mode"), "zero1=8") && ranks > 8 && ranks % 8 == 0) {
    step.set("--set", "parallel.optimizer_instances", std::to_string(ranks / 8));
  }
  // modeling_internlm.py: dropout_selective_checkpoint is True and checkpoint is False.
  if (cells.text("recompute") == "full") step.set("--set", "framework.reruns_norms", "false");
}

// B.2.6: which part of the layers is checkpointed is not stated.
void add_fms(PublishedStep& step, FilledRow& row) {
  const bool fraction = says(row.cells().text("recompute_detail"), "fraction not stated");
  const bool large = says(row.cells().text("model"), "70b") || says(row.cells().text("model"), "34b");
  if (fraction && large) row.replace("recompute", "full", "every layer is checkpointed");
  if (fraction && !large) row.replace("recompute", "none", "every third layer is checkpointed");
  const RowCells cells = row.cells();
  set_cluster(step, says(cells.text("gpu"), "A100") ? "fms-fsdp-a100" : "fms-fsdp-h100");
  add_usual(step, cells);
  if (fraction && !large) add_recomputed_layers(step, cells, 3);
}

void add_automodel(PublishedStep& step, FilledRow& row) {
  const bool one_gpu = row.cells().has("n_gpus") && row.cells().whole("n_gpus", 1) == 1;
  // LoRA of 8B on one card keeps what it saves: 36 GiB beside 16 of weights.
  if (one_gpu && row.cells().text("task") == "lora") row.replace("recompute", "none", "nothing is checkpointed");
  const RowCells cells = row.cells();
  add_usual(step, cells);
  const std::string_view kernels = cells.text("attention_kernel");
  if (says(kernels, "TE") && !says(kernels, "FlexAttn")) step.set("--attention", "training.attention", "fused");
  const bool shared = cells.has("ep") && cells.whole("ep", 1, kMostRanks) > 1;
  if (says(kernels, "DeepEP") && shared) step.set("--dispatcher", "parallel.dispatcher", "deepep");
}

// The GPT recipes of the repository's training folder. Gradients accumulate over passes whose size it does not say.
void add_flash_attention(PublishedStep& step, FilledRow& row) {
  row.fill("micro_batch", "4", "micro-batches of 4 sequences");
  const RowCells cells = row.cells();
  if (!cells.has("n_gpus")) row.fill("n_gpus", std::string(cells.text("dp")));
  add_usual(step, row.cells());
  step.set("--attention", "training.attention", "flash");
  step.set("--set", "framework.flash_version", "1");
  step.set("--dropout", "training.dropout", "0");
  step.guesses.push_back("no dropout; replicas; Megatron-LM's fused kernels of 2022 beside FlashAttention-1");
}

// NeuSight's traces: forward and backward of a Hugging Face model, every kernel by itself.
void add_neusight(PublishedStep& step, FilledRow& row) {
  // A process sees one of the card's two dies: 104 compute units and 1.6 TB/s, which an MI210 has (AMD's data sheets of both).
  if (says(row.cells().text("gpu"), "MI250")) row.replace("gpu", "AMD-Instinct-MI210", "one die of the MI250, which is an MI210's");
  add_usual(step, row.cells());
  step.part = MeasuredPart::kForwardBackward;
  step.set("--attention", "training.attention", "unfused");
}

void add_plain(PublishedStep& step, FilledRow& row) { add_usual(step, row.cells()); }

struct Source {
  std::string_view repository;
  const char* preset;
  void (*add)(PublishedStep&, FilledRow&);
};
constexpr std::array<Source, 12> kSources = {{{"InternEvo", "internevo@2024", add_internevo},
                                              {"fms-fsdp", "fms-fsdp@2024", add_fms},
                                              {"Automodel", "automodel@2025", add_automodel},
                                              {"axolotl", "axolotl@2025", add_plain},
                                              {"huggingface/accelerate", "accelerate@2025", add_plain},
                                              {"huggingface/transformers", "transformers@2025", add_plain},
                                              {"prime-rl", "prime-rl@2025", add_plain},
                                              {"llama-cookbook", "transformers@2025", add_plain},
                                              {"torchtune", "torchtune@2025", add_plain},
                                              {"litgpt", "litgpt@2024", add_plain},
                                              {"flash-attention", "megatron-lm@2022-05", add_flash_attention},
                                              {"NeuSight", "hf-eager@2024", add_neusight}}};

bool in_catalog(std::string_view preset) {
  const std::vector<std::string> known = framework_names();
  return std::find(known.begin(), known.end(), preset) != known.end();
}

}  // namespace

PublishedStep other_results_step(const RowCells& cells) {
  const std::string_view repository = cells.text("source_repo");
  const auto source =
      std::find_if(kSources.begin(), kSources.end(), [&](const Source& known) { return says(repository, known.repository); });
  if (source == kSources.end()) throw UntranslatedRow{fmt::format("kernels of {}: no preset", cells.text("framework"))};
  PublishedStep step;
  FilledRow row(cells);
  if (in_catalog(source->preset)) step.set("--framework", "framework.name", source->preset);
  source->add(step, row);
  if (!in_catalog(source->preset)) throw UntranslatedRow{fmt::format("preset {} is not in the catalog", source->preset), false};
  step.guesses.insert(step.guesses.end(), row.guesses().begin(), row.guesses().end());
  return step;
}

}  // namespace stepsim
