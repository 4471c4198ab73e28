// What the catalog and the program have, by name.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hardware/machine_spec.h"
#include "hardware/stack_spec.h"
#include "models/flops.h"
#include "models/framework_preset.h"
#include "models/model_spec.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"
#include "tools/commands.h"
#include "tools/outputs.h"
#include "tools/placement_names.h"
#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

// A list as a table for people (head first) and as rows of JSON.
struct Listing {
  std::vector<std::vector<std::string>> table;
  Json rows = Json::array();
};

static Listing models() {
  Listing list{{{"model", "parameters", "layers", "hidden", "heads", "kv", "ffn", "vocab", "source"}}, Json::array()};
  constexpr std::int64_t kSequence = 2048;  // of tables of positions that follow it
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    const std::int64_t parameters = parameter_count(model, kSequence).total;
    list.table.push_back({name, fmt::format("{:.3f} G", static_cast<double>(parameters) * 1e-9), std::to_string(model.layers),
                          std::to_string(model.hidden), std::to_string(model.heads), std::to_string(model.kv_heads),
                          std::to_string(model.ffn_hidden), std::to_string(model.vocab), model.source});
    list.rows.push_back({{"name", name},
                         {"parameters", parameters},
                         {"layers", model.layers},
                         {"hidden", model.hidden},
                         {"heads", model.heads},
                         {"kv_heads", model.kv_heads},
                         {"head_dim", model.head_dim},
                         {"ffn_hidden", model.ffn_hidden},
                         {"vocab", model.vocab},
                         {"source", model.source}});
  }
  return list;
}

static Listing machines() {
  Listing list{{{"machine", "dense TFLOP/s", "memory", "HBM", "NVLink each way", "cluster"}}, Json::array()};
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = load_gpu(name);
    auto shown = gpu.peak_tflops.begin();
    for (const char* const dtype : {"fp32", "fp16", "bf16"}) {  // the last that it has
      if (const auto found = gpu.peak_tflops.find(dtype); found != gpu.peak_tflops.end()) shown = found;
    }
    const bool linked = gpu.nvlink_per_direction.value > 0;
    list.table.push_back({name, fmt::format("{:.1f} {}", shown->second, shown->first), print_bytes(gpu.memory),
                          print_bytes_per_second(gpu.hbm), linked ? print_bytes_per_second(gpu.nvlink_per_direction) : "none",
                          gpu.usual_cluster});
    list.rows.push_back({{"name", name},
                         {"aliases", gpu.aliases},
                         {"peak_tflops", gpu.peak_tflops},
                         {"memory_bytes", gpu.memory.value},
                         {"hbm_bytes_per_s", gpu.hbm.value},
                         {"nvlink_bytes_per_s_each_way", gpu.nvlink_per_direction.value},
                         {"cluster", gpu.usual_cluster}});
  }
  return list;
}

static Listing clusters() {
  Listing list{{{"cluster", "GPUs of a node", "network of a GPU", "host memory of a node"}}, Json::array()};
  for (const std::string& name : cluster_names()) {
    const ClusterSpec cluster = load_cluster(name);
    list.table.push_back(
        {name, std::to_string(cluster.gpus_per_node), print_bytes_per_second(cluster.network_per_gpu), print_bytes(cluster.host_memory)});
    list.rows.push_back({{"name", name},
                         {"gpus_per_node", cluster.gpus_per_node},
                         {"network_bytes_per_s_per_gpu", cluster.network_per_gpu.value},
                         {"host_memory_bytes", cluster.host_memory.value}});
  }
  return list;
}

static std::string range_text(const SlowdownRange& range) {
  return range.lower == range.upper ? fmt::format("{:.2f}", range.expected)
                                    : fmt::format("{:.2f} ({:.2f}-{:.2f})", range.expected, range.lower, range.upper);
}

// "28 rows, 33.9 % to 5.5 %, held out 6.4 %": errors of steps without and with the slowdown.
static std::string evidence_text(const StackEvidence& evidence) {
  std::string text = evidence.rows > 0 ? fmt::format("{} row{}", evidence.rows, evidence.rows > 1 ? "s" : "") : evidence.source;
  if (evidence.error_before > 0) text += fmt::format(", {:.1f} % to {:.1f} %", 100 * evidence.error_before, 100 * evidence.error_after);
  if (evidence.error_before <= 0 && evidence.error_after > 0) text += fmt::format(", {:.1f} %", 100 * evidence.error_after);
  return evidence.left_out ? text + fmt::format(", held out {:.1f} %", 100 * *evidence.left_out) : text;
}

static Json range_json(const SlowdownRange& range) {
  return {{"expected", range.expected}, {"lower", range.lower}, {"upper", range.upper}};
}

static Json evidence_json(const StackSpec& stack) {
  Json rows = Json::array();
  const auto positive = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  for (const StackEvidence& evidence : stack.evidence) {
    rows.push_back({{"source", evidence.source},
                    {"conditions", evidence.conditions},
                    {"rows", evidence.rows},
                    {"error_before", positive(evidence.error_before)},
                    {"error_after", positive(evidence.error_after)},
                    {"held_out_error", evidence.left_out ? Json(*evidence.left_out) : Json(nullptr)}});
  }
  return rows;
}

// Versions of one framework after its name: "nemo@24.07, megatron-bridge@25.09 25.11"; without one no job takes the stack by itself.
static std::string frameworks_text(const std::vector<std::string>& frameworks) {
  std::string text, last;
  for (const std::string& framework : frameworks) {
    const std::string name = framework.substr(0, framework.find('@'));
    const bool again = name == last && framework.size() > name.size();
    if (!text.empty()) text += again ? " " : ", ";
    text.append(framework, again ? name.size() + 1 : 0);
    last = name;
  }
  return text.empty() ? "--stack only" : text;
}

static Listing stacks() {
  Listing list{
      {{"stack", "machines", "of", "frameworks", "products take", "evidence, mean error of steps without and with it", "software"}},
      Json::array()};
  for (const std::string& name : stack_names()) {
    const StackSpec stack = load_stack(name);
    std::vector<std::string> evidence;
    for (const StackEvidence& row : stack.evidence) evidence.push_back(evidence_text(row));
    list.table.push_back({name, fmt::format("{}", fmt::join(stack.machines, ", ")), fmt::format("{}", fmt::join(stack.precisions, ", ")),
                          frameworks_text(stack.frameworks), range_text(stack.gemm), fmt::format("{}", fmt::join(evidence, "; ")),
                          stack.software});
    list.rows.push_back({{"name", name},
                         {"aliases", stack.aliases},
                         {"machines", stack.machines},
                         {"precisions", stack.precisions},
                         {"frameworks", stack.frameworks},
                         {"software", stack.software},
                         {"slowdowns",
                          {{"gemm", range_json(stack.gemm)},
                           {"attention", range_json(stack.attention)},
                           {"memory", range_json(stack.memory)},
                           {"collective", range_json(stack.collective)},
                           {"weight_gradient", stack.gives_weight_gradient ? range_json(stack.weight_gradient) : Json(nullptr)}}},
                         {"straggler_per_doubling", stack.straggler_per_doubling ? Json(*stack.straggler_per_doubling) : Json(nullptr)},
                         {"evidence", evidence_json(stack)},
                         {"assumptions", stack.assumptions}});
  }
  return list;
}

static Listing frameworks() {
  Listing list{{{"framework", "source"}}, Json::array()};
  for (const std::string& name : framework_names()) {
    const FrameworkPreset framework = load_framework(name);
    list.table.push_back({name, framework.source});
    list.rows.push_back({{"name", name}, {"source", framework.source}});
  }
  return list;
}

static Listing placements() {
  Listing list{{{"placement", "meaning"}}, Json::array()};
  for (const NamedPlacement& placement : named_placements()) {
    list.table.push_back({std::string(placement.name), std::string(placement.meaning)});
    list.rows.push_back({{"name", placement.name}, {"meaning", placement.meaning}});
  }
  return list;
}

static std::string meaning_of(FlopsConvention convention) {
  switch (convention) {
    case FlopsConvention::kMegatronCausal:
      return "matrix products, causal attention halved, padded vocabulary (Megatron-LM today)";
    case FlopsConvention::kMegatronFull:
      return "matrix products, full square attention, padded vocabulary (2205.05198 equation 7)";
    case FlopsConvention::kPalm:
      return "6 N + 12 L H Q T, N all parameters (2204.02311 appendix B)";
    case FlopsConvention::k6N:
      return "6 N, N all parameters";
    case FlopsConvention::kMaxText:
      return "matrix products, causal attention halved";
    case FlopsConvention::kTorchTitan:
      return "6 (N - embedding) + 12 L H Q T";
    case FlopsConvention::kLlmFoundry:
      return "6 (N - embedding if the head is not tied) + 12 L d T";
    case FlopsConvention::k6NWithoutEmbedding:
      return "6 (N - embedding)";
  }
  return "";
}

static Listing conventions() {
  Listing list{{{"convention", "FLOPs of a token, forward and backward"}}, Json::array()};
  for (const FlopsConvention convention : all_conventions()) {
    list.table.push_back({convention_name(convention), meaning_of(convention)});
    list.rows.push_back({{"name", convention_name(convention)}, {"meaning", meaning_of(convention)}});
  }
  return list;
}

int list_command(const ListArguments& arguments) {
  const std::vector<std::pair<std::string, Listing (*)()>> lists = {
      {"models", models},         {"hardware", machines},     {"clusters", clusters},      {"stacks", stacks},
      {"frameworks", frameworks}, {"placements", placements}, {"conventions", conventions}};
  std::vector<std::string> names;
  for (const auto& entry : lists) {
    const std::string& name = entry.first;
    names.push_back(name);
    if (name != arguments.what) continue;
    const Listing list = entry.second();
    const std::vector<Output> outputs = {{"--json", arguments.json, [&](const TextSink& sink) {
                                            sink(Json({{name, list.rows}}).dump(2) + "\n");
                                          }}};
    check_outputs(outputs, {});
    write_outputs(outputs, table_text(list.table));
    return kExitDone;
  }
  if (arguments.what.empty()) throw InputError({"list"}, fmt::format("found nothing, wanted one of {}", fmt::join(names, ", ")));
  throw InputError(
      {"list"}, fmt::format("found \"{}\", wanted one of {}{}", arguments.what, fmt::join(names, ", "), suggestion(arguments.what, names)));
}

}  // namespace stepsim
