#include "tools/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

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
                           {"bound_by", op.bound_by}});
  }
  json["modules"] = module_json(modules);
  json["offload_modules"] = Json::array();
  for (const ModuleAccount& module : offload_modules) {
    json["offload_modules"].push_back({{"name", module.name}, {"tensors", module.tensors}, {"bytes", module.bytes.value}});
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
  std::size_t count = 0;
  double flops = 0, memory_mib = 0, link_mib = 0;
  Duration time{}, waiting{};
  std::string bound_by{};  // of the first
};

// Ops alike in all but their layer, summed up, in the order of their first start.
static std::string ops_text(const Job& job, const StepRun& run, const Explanation& explained) {
  std::map<std::string, OpTotal> totals;
  std::vector<std::string> order;
  Duration all{};
  for (std::size_t i = 0; i < explained.ops.size(); ++i) {
    const Op& op = run.step.graph.op(explained.ops[i].op);
    const std::string name = explained.ops[i].phase + " " + std::string(run.step.graph.label(op.kind));
    const auto [total, added] = totals.insert({name, {.bound_by = explained.ops[i].bound_by}});
    if (added) order.push_back(name);
    OpTotal& sum = total->second;
    ++sum.count;
    sum.flops += explained.ops[i].flops.value;
    sum.memory_mib += mib(explained.ops[i].memory);
    sum.link_mib += mib(explained.ops[i].link);
    sum.time += explained.ops[i].time;
    sum.waiting += explained.ops[i].waiting;
    all += explained.ops[i].time;
  }
  std::vector<std::vector<std::string>> table = {
      {"op", "times", "GFLOP each", "HBM MiB each", "link MiB each", "us each", "us waiting", "ms in all", "share", "bound by"}};
  for (const std::string& name : order) {
    const OpTotal& total = totals.at(name);
    const double times = static_cast<double>(total.count);
    const std::string waiting = total.waiting > Duration{} ? fmt::format("{:.1f}", 1e6 * seconds(total.waiting) / times) : "";
    const double time_s = seconds(total.time), all_s = seconds(all);
    table.push_back({name, std::to_string(total.count), fmt::format("{:.3f}", total.flops * 1e-9 / times),
                     fmt::format("{:.2f}", total.memory_mib / times), fmt::format("{:.2f}", total.link_mib / times),
                     fmt::format("{:.1f}", 1e6 * time_s / times), waiting, fmt::format("{:.2f}", 1e3 * time_s),
                     all_s > 0 ? fmt::format("{:.1f} %", 100 * time_s / all_s) : "", total.bound_by});
  }
  const std::string note = job.training.global_batch > job.training.micro_batch ? ", and the ops of the whole step" : "";
  return "ops of " + scope_of(job) + note +
         "\n(FLOPs of the kernels themselves: causal attention half, flash attention's backward 2.5 times its forward; conventions differ. "
         "us: from start to end, slowed by what shares the device; us waiting: before that, of an op on several devices, from when the "
         "first was there)\n" +
         table_text(table);
}

std::string explain_text(const Job& job, const StepRun& run, const Explanation& explained) {
  std::vector<std::vector<std::string>> values = {{"value", "", "from"}};
  for (const JobValue& value : job.values) values.push_back({value.path, value.value, value.source});
  return "the job\n" + table_text(values) + "\n" + scope_of(job) + "\n" + stages_text(job, run) + layers_text(explained) +
         "\nsaved tensors\n" + tensors_text(explained) + "\n" + ops_text(job, run, explained);
}

static std::string tensors_of(const ModuleAccount& module) {
  return module.tensors.empty() ? "none" : fmt::format("{}", fmt::join(module.tensors, ", "));
}

std::string module_table_text(const Job& job, const std::vector<ModuleAccount>& modules,
                              const std::vector<ModuleAccount>& offload_modules) {
  std::vector<std::vector<std::string>> table = {{"module", "how", "MiB of a layer", "tensors"}};
  for (const ModuleAccount& module : modules) {
    table.push_back({module.name, module.discards_output ? "output dropped" : "run again", fmt::format("{:.3f}", mib(module.bytes)),
                     tensors_of(module)});
  }
  const std::string of_model = fmt::format("of {} with {}: ", job.model.name, framework_label(job.framework));
  std::string text = "--recompute-modules " + of_model + "what each frees\n" + table_text(table);
  if (offload_modules.empty()) return text;
  std::vector<std::vector<std::string>> moved = {{"module", "MiB of a layer", "tensors"}};
  for (const ModuleAccount& module : offload_modules) {
    moved.push_back({module.name, fmt::format("{:.3f}", mib(module.bytes)), tensors_of(module)});
  }
  return text + "\n--offload-modules " + of_model + "what each takes to the host (a tensor's own name, or *, will do too)\n" +
         table_text(moved);
}

}  // namespace stepsim
