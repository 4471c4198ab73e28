#include "tools/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/memory_report.h"
#include "tools/storage_lives.h"
#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

// As in report_json.cc: correctly rounded.
static double in_seconds(Duration time) { return static_cast<double>(time.count()) / 1e12; }

static Json life_json(const TensorLife& life) {
  return {{"born", life.born}, {"dies", life.dies}, {"born_s", in_seconds(life.born_at)}, {"dies_s", in_seconds(life.dies_at)}};
}

static Json tensor_json(const TensorAccount& account) {
  const SavedTensor& tensor = *account.tensor;
  Json json{{"layer", account.layer},
            {"op", tensor.op},
            {"name", tensor.name},
            {"shape", tensor.shape},
            {"dtype", dtype_name(tensor.dtype)},
            {"bytes", tensor.bytes.value},
            {"placement", tensor.placement}};
  json["born"] = account.lives.empty() ? "" : account.lives.front().born;
  json["dies"] = account.lives.empty() ? "" : account.lives.back().dies;
  json["lives"] = Json::array();
  for (const TensorLife& life : account.lives) json["lives"].push_back(life_json(life));
  return json;
}

static Json module_json(const std::vector<ModuleAccount>& modules) {
  Json rows = Json::array();
  for (const ModuleAccount& module : modules) {
    rows.push_back(
        {{"name", module.name}, {"discards_output", module.discards_output}, {"tensors", module.tensors}, {"bytes", module.bytes.value}});
    if (!module.layers.empty()) rows.back()["layers"] = module.layers;
  }
  return rows;
}

std::string explain_json(const Job& job, const StepRun& run, const Explanation& explained, const std::vector<ModuleAccount>& modules,
                         const std::vector<ModuleAccount>& offload_modules) {
  Json json{{"schema_version", 1}, {"version", STEPSIM_VERSION}, {"model", job.model.name}, {"placement", placement_label(job.placement)}};
  json["parameters_per_device"] = run.step.parameters_per_device;
  json["layers"] = Json::array();
  for (const LayerAccount& layer : explained.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"saved_bytes", layer.saved.value},
                              {"dropped_bytes", layer.dropped.value},
                              {"offloaded_bytes", layer.moved.value},
                              {"forward_flops", layer.forward.value},
                              {"backward_flops", layer.backward.value},
                              {"recompute_flops", layer.recompute.value}});
  }
  json["tensors"] = Json::array();
  for (const TensorAccount& tensor : explained.tensors) json["tensors"].push_back(tensor_json(tensor));
  json["storages"] = Json::parse(storage_lives_json(run, storage_lives(run, run.reported().device)));
  json["memory"] = Json::parse(allocation_json(job, run, run.reported_stage));
  json["ops"] = Json::array();
  for (const OpAccount& op : explained.ops) {
    json["ops"].push_back({{"stage", op.stage},
                           {"name", op.name},
                           {"phase", op.phase},
                           {"flops", op.flops.value},
                           {"hbm_bytes", op.memory.value},
                           {"link_bytes", op.link.value},
                           {"start_s", in_seconds(op.start)},
                           {"time_s", in_seconds(op.time)},
                           {"slowed_s", in_seconds(op.slowed)},
                           {"waiting_s", in_seconds(op.waiting)},
                           {"bound_by", op.kernel.bound_by},
                           {"efficiency", op.kernel.efficiency},
                           {"efficiency_of", op.kernel.of},
                           {"detail", op.kernel.detail}});
  }
  json["modules"] = module_json(modules);
  json["offload_modules"] = Json::array();
  for (const ModuleAccount& module : offload_modules) {
    json["offload_modules"].push_back({{"name", module.name}, {"tensors", module.tensors}, {"bytes", module.bytes.value}});
    if (!module.layers.empty()) json["offload_modules"].back()["layers"] = module.layers;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

static double mib(Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 20); }

// Layers that are accounted alike, one after the other, as one row: "layers 1-30".
struct LayerRun {
  std::size_t first = 0, last = 0;
};

static std::vector<LayerRun> equal_layers(const std::vector<LayerAccount>& layers) {
  const auto equal = [](const LayerAccount& a, const LayerAccount& b) {
    return a.saved == b.saved && a.dropped == b.dropped && a.moved == b.moved && a.forward == b.forward && a.backward == b.backward &&
           a.recompute == b.recompute;
  };
  std::vector<LayerRun> runs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool inner = i >= 2 && i + 1 < layers.size();  // 0 is the embedding, the last the head
    if (inner && equal(layers[i], layers[runs.back().first])) {
      runs.back().last = i;
    } else {
      runs.push_back({i, i});
    }
  }
  return runs;
}

static std::string run_name(const std::vector<LayerAccount>& layers, const LayerRun& run) {
  return run.first == run.last ? layers[run.first].name : fmt::format("layers {}-{}", run.first - 1, run.last - 1);
}

// Which layers each stage of a pipeline holds; "" without one.
static std::string stages_text(const Job& job, const StepRun& run) {
  if (job.parallel.pipeline == 1) return "";
  std::vector<std::vector<std::string>> table = {{"stage", "rank", "parameters", "layers"}};
  for (std::int32_t stage = 0; stage < job.parallel.pipeline; ++stage) {
    table.push_back({std::to_string(stage), std::to_string(first_rank(job.parallel, stage)),
                     std::to_string(run.step.parameters_of_stage[static_cast<std::size_t>(stage)]), layers_held(run.step.stages, stage)});
  }
  return table_text(table) + "\n";
}

static std::string layers_text(const Explanation& explained) {
  std::vector<std::vector<std::string>> table = {
      {"", "saved MiB", "of it on the host", "run again MiB", "forward GFLOP", "backward GFLOP", "recompute GFLOP"}};
  for (const LayerRun& run : equal_layers(explained.layers)) {
    const LayerAccount& layer = explained.layers[run.first];
    table.push_back({run_name(explained.layers, run), fmt::format("{:.3f}", mib(layer.saved)), fmt::format("{:.3f}", mib(layer.moved)),
                     fmt::format("{:.3f}", mib(layer.dropped)), fmt::format("{:.3f}", layer.forward.value * 1e-9),
                     fmt::format("{:.3f}", layer.backward.value * 1e-9), fmt::format("{:.3f}", layer.recompute.value * 1e-9)});
  }
  return table_text(table);
}

// The last op that needs it; of one that was on the host meanwhile, what frees either storage.
static std::string deaths_text(const TensorAccount& account) {
  if (account.lives.empty()) return "";
  if (account.tensor->placement != "offload" || account.lives.size() < 2) return account.lives.back().dies;
  return fmt::format("{}; copied back: {}", account.lives.front().dies, account.lives.back().dies);
}

static std::string tensors_text(const Explanation& explained) {
  std::vector<std::vector<std::string>> table = {{"layer", "tensor", "made by", "shape", "dtype", "MiB", "placement", "dies after"}};
  for (const LayerRun& run : equal_layers(explained.layers)) {
    for (const TensorAccount& account : explained.tensors) {
      if (account.layer != explained.layers[run.first].name) continue;
      const SavedTensor& tensor = *account.tensor;
      table.push_back({run_name(explained.layers, run), tensor.name, tensor.op, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                       dtype_name(tensor.dtype), fmt::format("{:.3f}", mib(tensor.bytes)), tensor.placement, deaths_text(account)});
    }
  }
  return table_text(table);
}

static std::string scope_of(const Job& job) {
  return job.parallel.pipeline == 1 ? "one micro-batch on one device" : "one micro-batch, on one device of each pipeline stage";
}

struct OpTotal {
  std::string name{};  // without layer and micro-batch
  std::size_t count = 0;
  double flops = 0, memory_mib = 0, link_mib = 0;
  Duration time{}, waiting{};
  KernelExplanation kernel{};  // of the first
};

// Ops alike in all but their layer, summed up, in the order of their first start.
static std::vector<OpTotal> op_totals(const StepRun& run, const Explanation& explained) {
  std::vector<OpTotal> totals;
  std::map<std::string, std::size_t> places;
  for (const OpAccount& op : explained.ops) {
    const std::string name = op.phase + " " + std::string(run.step.graph.label(run.step.graph.op(op.op).kind));
    const auto [place, added] = places.try_emplace(name, totals.size());
    if (added) totals.push_back({.name = name, .kernel = op.kernel});
    OpTotal& sum = totals[place->second];
    ++sum.count;
    sum.flops += op.flops.value;
    sum.memory_mib += mib(op.memory);
    sum.link_mib += mib(op.link);
    sum.time += op.time;
    sum.waiting += op.waiting;
  }
  return totals;
}

static Duration time_of(const std::vector<OpTotal>& totals) {
  Duration all{};
  for (const OpTotal& total : totals) all += total.time;
  return all;
}

static std::string ops_text(const Job& job, const std::vector<OpTotal>& totals) {
  std::vector<std::vector<std::string>> table = {
      {"op", "times", "GFLOP each", "HBM MiB each", "link MiB each", "us each", "us waiting", "ms in all", "share"}};
  const double all_s = seconds(time_of(totals));
  for (const OpTotal& total : totals) {
    const double times = static_cast<double>(total.count);
    const std::string waiting = total.waiting > Duration{} ? fmt::format("{:.1f}", 1e6 * seconds(total.waiting) / times) : "";
    const double time_s = seconds(total.time);
    table.push_back({total.name, std::to_string(total.count), fmt::format("{:.3f}", total.flops * 1e-9 / times),
                     fmt::format("{:.2f}", total.memory_mib / times), fmt::format("{:.2f}", total.link_mib / times),
                     fmt::format("{:.1f}", 1e6 * time_s / times), waiting, fmt::format("{:.2f}", 1e3 * time_s),
                     all_s > 0 ? fmt::format("{:.1f} %", 100 * time_s / all_s) : ""});
  }
  const std::string note = job.training.global_batch > job.training.micro_batch ? ", and the ops of the whole step" : "";
  return "ops of " + scope_of(job) + note +
         "\n(FLOPs of the kernels themselves: causal attention half, flash attention's backward 2.5 times its forward; conventions differ. "
         "us: from start to end, slowed by what shares the device; us waiting: before that, of an op on several devices, from when the "
         "first was there)\n" +
         table_text(table);
}

// "compute 61.2 %, memory 30.1 %": shares of the ops' time by what bounds them, the largest first.
static std::string bound_shares(const std::vector<OpTotal>& totals) {
  std::vector<std::pair<std::string, Duration>> shares;
  for (const OpTotal& total : totals) {
    const auto known = std::find_if(shares.begin(), shares.end(), [&](const auto& share) { return share.first == total.kernel.bound_by; });
    if (known == shares.end()) {
      shares.emplace_back(total.kernel.bound_by, total.time);
    } else {
      known->second += total.time;
    }
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  const double all_s = seconds(time_of(totals));
  for (const auto& [bound, time] : shares) {
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", bound, all_s > 0 ? 100 * seconds(time) / all_s : 0);
  }
  return text;
}

// As many of the parts "a, b, c" as fit.
static std::string whole_parts(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  const std::size_t end = text.rfind(", ", width);
  return end == std::string::npos ? "" : text.substr(0, end);
}

static std::string bounds_text(const std::vector<OpTotal>& totals) {
  constexpr std::size_t kMostName = 40;
  std::vector<OpTotal> by_time = totals;
  std::stable_sort(by_time.begin(), by_time.end(), [](const OpTotal& a, const OpTotal& b) { return a.time > b.time; });
  std::vector<std::vector<std::string>> table = {{"op", "bound by", "reached", "kernel"}};
  std::array<std::size_t, 3> widths{};
  for (const OpTotal& total : by_time) {
    const std::string name = total.name.size() <= kMostName ? total.name : total.name.substr(0, kMostName - 2) + "..";
    table.push_back({name, total.kernel.bound_by, fmt::format("{:.1f} % of {}", 100 * total.kernel.efficiency, total.kernel.of)});
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max({widths[i], table.back()[i].size(), table.front()[i].size()});
  }
  const std::size_t used = widths[0] + widths[1] + widths[2] + 2 * widths.size();
  for (std::size_t i = 0; i < by_time.size(); ++i) {
    table[i + 1].push_back(whole_parts(by_time[i].kernel.detail, kColumns > used ? kColumns - used : 0));
  }
  TextLines head;
  head.add("", "what bounds them, alone on the device, by time: " + bound_shares(totals));
  head.add(
      "",
      "(compute: FLOPs on tensor cores; feed: operands on their way there; waves: tiles that do not fill the SMs; memory: HBM; latency: "
      "the part that no size changes. reached: of that rate, over the whole time of the op; --json has all of it)");
  return head.text() + table_text(table);
}

std::string explain_text(const Job& job, const StepRun& run, const Explanation& explained) {
  std::vector<std::vector<std::string>> values = {{"value", "", "from"}};
  for (const JobValue& value : job.values) values.push_back({value.path, value.value, value.source});
  const std::vector<OpTotal> totals = op_totals(run, explained);
  return "the job\n" + table_text(values) + "\n" + scope_of(job) + "\n" + stages_text(job, run) + layers_text(explained) +
         "\nsaved tensors\n" + tensors_text(explained) + "\n" + peak_contents_text(run) + "\n" + ops_text(job, totals) + "\n" +
         bounds_text(totals);
}

static std::string tensors_of(const ModuleAccount& module) {
  return module.tensors.empty() ? "none" : fmt::format("{}", fmt::join(module.tensors, ", "));
}

// A table for each kind of layer; `row` makes a module's cells.
template <class Row>
static std::string tables_text(const std::vector<ModuleAccount>& modules, const std::vector<std::string>& columns, const Row& row) {
  std::string text;
  for (std::size_t first = 0; first < modules.size();) {
    std::vector<std::vector<std::string>> table = {columns};
    std::size_t end = first;
    for (; end < modules.size() && modules[end].layers == modules[first].layers; ++end) table.push_back(row(modules[end]));
    if (!modules[first].layers.empty()) text += (first == 0 ? "" : "\n") + modules[first].layers + "\n";
    text += table_text(table);
    first = end;
  }
  return modules.empty() ? table_text({columns}) : text;
}

std::string module_table_text(const Job& job, const std::vector<ModuleAccount>& modules,
                              const std::vector<ModuleAccount>& offload_modules) {
  const auto recomputed = [](const ModuleAccount& module) -> std::vector<std::string> {
    return {module.name, module.discards_output ? "output dropped" : "run again", fmt::format("{:.3f}", mib(module.bytes)),
            tensors_of(module)};
  };
  const auto moved = [](const ModuleAccount& module) -> std::vector<std::string> {
    return {module.name, fmt::format("{:.3f}", mib(module.bytes)), tensors_of(module)};
  };
  const std::string of_model = fmt::format("of {} with {}: ", job.model.name, framework_label(job.framework));
  const std::string text = "--recompute-modules " + of_model + "what each frees\n" +
                           tables_text(modules, {"module", "how", "MiB of a layer", "tensors"}, recomputed);
  if (offload_modules.empty()) return text;
  return text + "\n--offload-modules " + of_model + "what each takes to the host (a tensor's own name, or *, will do too)\n" +
         tables_text(offload_modules, {"module", "MiB of a layer", "tensors"}, moved);
}

}  // namespace stepsim
