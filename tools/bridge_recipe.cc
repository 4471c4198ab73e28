#include "tools/bridge_recipe.h"

#include <fmt/format.h>

namespace stepsim {

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
bool starts(std::string_view text, std::string_view part) { return text.substr(0, part.size()) == part; }

struct Workload {
  std::string_view model, gpu, precision, task;
  std::string container;
  std::int64_t tensor = 1, expert = 1;
  bool fsdp = false, card = false;
  bool deepseek() const { return model == "deepseek-v3"; }
  bool gpt_oss() const { return starts(model, "gpt-oss"); }
  bool qwen() const { return starts(model, "qwen3-30b") || starts(model, "qwen3-235b"); }
  bool experts() const { return deepseek() || gpt_oss() || qwen() || starts(model, "moonlight"); }
  bool grace() const { return starts(gpu, "GB"); }  // GPUs of a 72-GPU NVLink domain
  bool mxfp8() const { return precision == "mxfp8" || precision == "fp8-mx" || precision == "fp8_mx"; }
  bool since(std::string_view release) const { return container >= release; }
};

std::int64_t count(const RowCells& cells, std::string_view column) { return cells.has(column) ? cells.whole(column, 1) : 1; }

Workload workload(const RowCells& cells) {
  Workload row{.model = cells.text("model"),
               .gpu = cells.text("gpu"),
               .precision = cells.text("precision"),
               .task = cells.text("task"),
               .container = bridge_container(cells.text("source_date"))};
  row.tensor = count(cells, "tp");
  row.expert = count(cells, "ep");
  row.fsdp = contains(cells.text("dp_mode"), "FSDP");
  row.card = contains(cells.text("source_path"), "model_verification_cards");
  return row;
}

// v0.5.0: full-iteration graph, overlapped exchange, fused grouped MLP, FP8 attention; not yet gpt-oss on B300 (accuracy.md C.2).
bool new_kernels(const Workload& row) {
  return row.experts() && row.mxfp8() && row.since("26.06") && !(row.gpt_oss() && row.gpu == "B300");
}

// DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_MX_V2 of later releases: pp 8, vp 2, ep 32 over nodes of 8.
bool deepseek_over_nodes(const Workload& row) { return row.deepseek() && row.gpu == "B200" && row.expert == 32; }

std::string dispatcher(const Workload& row) {
  if (!row.experts()) return "";
  if (deepseek_over_nodes(row)) return "deepep";
  if (!row.since("25.11")) return "alltoall";                              // v0.1.0: enable_deepep=False on Blackwell
  if (row.gpt_oss()) return row.since("26.04") ? "hybridep" : "alltoall";  // moe_flex_dispatcher_backend from v0.4.0
  if (!row.since("26.02")) return row.grace() ? "hybridep" : "alltoall";   // v0.2.0
  if (starts(row.model, "qwen3-235b") && !row.grace()) return "alltoall";  // moe_token_dispatcher_type
  return "hybridep";
}

std::string recompute_modules(const Workload& row) {
  if (deepseek_over_nodes(row)) return "mla_up_proj,mlp";
  if (row.deepseek()) return row.gpu == "GB300" && row.since("26.06") ? "" : "mla_up_proj";
  if (row.gpt_oss() && !row.mxfp8() && (row.gpu == "GB200" || row.gpu == "B200")) return "layernorm,moe_act";
  return "";
}

std::string usual_graph(const Workload& row) {
  if (new_kernels(row)) return "full";
  if (row.model == "llama3-8b") return "full";  // cuda_graph_impl local, full_iteration
  if (!row.since("25.11") || !row.experts()) return "none";
  if (row.deepseek()) return row.grace() || deepseek_over_nodes(row) ? "scopes" : "none";
  if (row.gpt_oss()) return row.gpu == "B300" || row.gpu == "GB300" ? "scopes" : "none";
  return row.grace() || !starts(row.model, "qwen3-235b") ? "scopes" : "none";
}

// "transformer_engine:['attn', ...]", "local:full_iteration", "none:full_iteration": implementation and scope.
std::string graph(const Workload& row, std::string_view cell) {
  if (new_kernels(row)) return "full";  // the table of 26.08 hides it (accuracy.md C.2)
  if (cell.empty()) return usual_graph(row);
  if (starts(cell, "none") || starts(cell, "None") || cell == "no") return "none";
  if (starts(cell, "transformer_engine") || starts(cell, "TE")) return "scopes";
  return contains(cell, "full_iteration") ? "full" : "none";
}

bool overlaps_exchange(const Workload& row) {
  if (new_kernels(row) || deepseek_over_nodes(row)) return true;
  return row.gpt_oss() && row.gpu == "GB200" && row.since("26.04");  // moe_a2a_overlap of GPT_OSS_120B_PRETRAIN_CONFIG_GB200_BF16_V2
}

// comm_overlap: userbuffers for Llama and Qwen; off for NVFP4 and DeepSeek.
bool overlaps_tensor(const Workload& row) { return row.tensor > 1 && !row.deepseek() && !row.gpt_oss() && row.precision != "nvfp4"; }

// perf_plugins.py _set_model_specific_environment_variables.
bool expandable_segments(const Workload& row) {
  if (row.task == "sft" || row.task == "lora") return row.model == "llama3-70b";
  if (row.model == "llama3.1-405b") return row.gpu == "GB200" && row.precision != "nvfp4" && row.precision != "bf16";
  return row.deepseek() && (row.gpu == "GB200" || starts(row.gpu, "H100"));
}

// "yes: TE layer-level activation offload, 40 layers"; LLAMA31_405B_GB200_FP8_CS_BASE_CONFIG offloads 95, the 70B's recipes 40 and 20.
std::int64_t offloaded_layers(const Workload& row, std::string_view cell) {
  if (starts(cell, "yes")) {
    std::int64_t layers = 0;
    for (const char letter : cell.substr(cell.find(',') + 1)) {
      if (letter >= '0' && letter <= '9') layers = layers * 10 + (letter - '0');
    }
    return layers;
  }
  if (cell != "unknown" || !row.fsdp) return 0;
  if (row.model == "llama3.1-405b") return row.gpu == "GB200" ? 95 : 10;
  return row.gpu == "GB200" ? 40 : 20;
}

void add_guesses(BridgeRecipe& recipe, const Workload& row, const RowCells& cells) {
  const bool resolved = cells.text("recompute") != "unknown" || new_kernels(row);
  recipe.known = !row.experts() || (row.since("26.02") && resolved && !row.card);
  if (!resolved) {
    recipe.guesses.push_back(fmt::format("recompute {}, CUDA graph {}: of recipes for that model and GPU",
                                         recipe.recompute_modules.empty() ? "none" : recipe.recompute_modules, recipe.graph));
  }
  if (row.experts()) {
    recipe.guesses.push_back(fmt::format("dispatcher {}, exchange {}: of the recipes of release {}", recipe.dispatcher,
                                         recipe.overlaps_exchange ? "overlapped" : "exposed", recipe.container));
  }
  if (recipe.offloaded_layers > 0 && !starts(cells.text("act_offload"), "yes")) {
    recipe.guesses.push_back(fmt::format("{} layers offloaded: of the recipe with that layout", recipe.offloaded_layers));
  }
  if (deepseek_over_nodes(row)) recipe.guesses.emplace_back("DeepEP, overlap and recompute of a later release's recipe with that layout");
}

std::string selected_modules(const Workload& row, const RowCells& cells) {
  const std::string_view recompute = cells.text("recompute"), detail = cells.text("recompute_detail");
  if (recompute == "none") return "";
  const bool lists = recompute == "selective" && !detail.empty() && !contains(detail, " ");
  return lists ? std::string(detail) : recompute_modules(row);
}

}  // namespace

std::string bridge_container(std::string_view source_date) {
  constexpr std::size_t kRelease = 5;  // "26.04"
  if (source_date.size() >= kRelease && source_date[2] == '.') return std::string(source_date.substr(0, kRelease));
  return "26.08";
}

std::string bridge_layout(std::string_view model, std::int64_t layers, std::int64_t chunks) {
  if (chunks == 1) return "";
  if (model == "deepseek-v3" && layers == 61) {
    // recipes/deepseek/deepseek_v3.py; multi-token prediction stands with the head.
    if (chunks == 32) return "Et|(tt|)*30L";
    const std::int64_t share = 64 / chunks;
    if (chunks == 4 || chunks == 8 || chunks == 16) {
      return fmt::format("Et*{0}|(t*{0}|)*{1}t*{2}L", share, chunks - 2, 61 - share * (chunks - 1));
    }
  }
  if (layers % chunks == 0 || (layers + 2) % chunks != 0) return "";
  const std::int64_t share = (layers + 2) / chunks;
  if (share == 1) return fmt::format("E|(t|)*{}L", layers);
  return fmt::format("Et*{0}|(t*{1}|)*{2}t*{0}L", share - 1, share, chunks - 2);
}

BridgeRecipe bridge_recipe(const RowCells& cells) {
  const Workload row = workload(cells);
  BridgeRecipe recipe;
  recipe.container = row.container;
  recipe.dispatcher = dispatcher(row);
  recipe.graph = graph(row, cells.text("cuda_graph"));
  recipe.recompute_modules = selected_modules(row, cells);
  recipe.overlaps_exchange = overlaps_exchange(row);
  recipe.fused_expert_mlp = new_kernels(row);
  recipe.low_precision_attention = new_kernels(row) && !(row.deepseek() && row.gpu == "GB200");
  recipe.overlaps_tensor = overlaps_tensor(row);
  recipe.expandable_segments = expandable_segments(row);
  recipe.offloaded_layers = offloaded_layers(row, cells.text("act_offload"));
  add_guesses(recipe, row, cells);
  return recipe;
}

}  // namespace stepsim
