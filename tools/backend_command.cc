// validate --backend: real kernels run the steps that the simulator predicts.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "hardware/backends/cpu/cpu_backend.h"
#include "models/vocabulary.h"
#include "sim/append_graph.h"
#include "sim/input_error.h"
#include "tools/backend_validation.h"
#include "tools/commands.h"
#include "tools/cuda_process.h"
#include "tools/kernel_table.h"
#include "tools/outputs.h"
#include "tools/plan_folder.h"
#include "tools/progress_bar.h"
#include "tools/text_lines.h"
#include "traces/chrome_trace_writer.h"

namespace stepsim {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::unique_ptr<KernelBackend> backend_named(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuBackend>();
  if (name == "cuda") return std::make_unique<CudaProcess>(cuda_program_beside());
  refuse("--backend", "\"" + name + "\"", "cpu or cuda");
}

// Flags that say something of published tables.
void check_alone(const ValidateArguments& arguments) {
  const ValidateArguments none;
  const auto refuse_given = [](const char* flag, bool given) {
    if (given) refuse(flag, "one with --backend", "none: it is about --published");
  };
  refuse_given("--published", !arguments.file.empty());
  refuse_given("--format", arguments.format != none.format);
  refuse_given("--by", !arguments.by.empty());
  refuse_given("--evidence", !arguments.evidence.empty());
  refuse_given("--quality", arguments.quality != none.quality);
  refuse_given("--rows", arguments.rows);
  refuse_given("--max-error", !arguments.max_error.empty());
}

std::string backend_json(const std::string& backend, const std::string& machine, std::span<const BackendCase> cases) {
  const BackendSummary summary = summary_of(cases);
  OrderedJson json{{"backend", backend}, {"machine", machine}, {"cases", OrderedJson::array()}};
  for (const BackendCase& each : cases) {
    json["cases"].push_back({{"model", each.model},
                             {"placement", each.placement},
                             {"measured_step_s", seconds(each.measured.end)},
                             {"simulated_step_s", seconds(each.simulated.end)},
                             {"error", each.error()},
                             {"measured_peak_bytes", each.measured_peak.value},
                             {"simulated_peak_bytes", each.simulated_peak.value},
                             {"measured_host_peak_bytes", each.measured_host_peak.value},
                             {"simulated_host_peak_bytes", each.simulated_host_peak.value},
                             {"measured_exposed_copy_s", seconds(each.measured_exposed)},
                             {"simulated_exposed_copy_s", seconds(each.simulated_exposed)},
                             {"median_op_error", each.difference.median_op_error},
                             {"weighted_op_error", each.difference.weighted_op_error},
                             {"gradients_equal", each.gradients_equal}});
  }
  json["summary"] = {{"median_abs_error", summary.median_error},
                     {"max_abs_error", summary.max_error},
                     {"peak_mismatches", summary.peak_mismatches},
                     {"gradient_mismatches", summary.gradient_mismatches},
                     {"order_agreement", summary.order_agreement ? OrderedJson(*summary.order_agreement) : OrderedJson(nullptr)},
                     {"exposed_copy_max_error", summary.copy_error},
                     {"repeat_spread", summary.spread}};
  return json.dump(2) + "\n";
}

// Timelines of all cases, simulated and measured, a process each.
void write_timelines(std::span<const BackendCase> cases, const TextSink& sink) {
  std::vector<const OpGraph*> graphs;
  std::vector<GraphRunView> runs;
  std::vector<std::string> names;
  for (const BackendCase& each : cases) {
    for (const bool measured : {false, true}) {
      graphs.push_back(&each.graph);
      runs.push_back({&each.graph, measured ? &each.measured : &each.simulated});
      names.push_back(fmt::format("{}, {}: {}", each.model, each.placement, measured ? "measured" : "simulated"));
    }
  }
  write_chrome_trace(side_by_side(graphs), joined_runs(runs),
                     {.role_names = kRoleNames, .title = "stepsim validate --backend", .device_names = names}, sink);
}

std::string milliseconds(Duration time) { return fmt::format("{:.2f}", 1e3 * seconds(time)); }
std::string percent_text(double value) { return fmt::format("{:+.1f} %", 100 * value); }
std::string mebibytes(Bytes size) { return fmt::format("{:.2f}", as_double(size.value) / (1 << 20)); }

std::string cases_text(std::span<const BackendCase> cases) {
  std::vector<std::vector<std::string>> table = {{"model", "placement", "measured ms", "simulated ms", "error", "op error",
                                                  "exposed copy ms", "simulated", "peak MiB", "peaks", "gradients"}};
  for (const BackendCase& each : cases) {
    table.push_back({each.model, each.placement, milliseconds(each.measured.end), milliseconds(each.simulated.end),
                     percent_text(each.error()), fmt::format("{:.1f} %", 100 * each.difference.weighted_op_error),
                     milliseconds(each.measured_exposed), milliseconds(each.simulated_exposed), mebibytes(each.measured_peak),
                     each.peaks_equal() ? "equal" : mebibytes(each.simulated_peak), each.gradients_equal ? "equal" : "DIFFER"});
  }
  return table_text(table);
}

// Kinds of ops that explain most of what the simulation of the worst case is off by.
std::string worst_case_text(std::span<const BackendCase> cases) {
  const BackendCase* worst = &cases.front();
  for (const BackendCase& each : cases) {
    if (std::abs(each.error()) > std::abs(worst->error())) worst = &each;
  }
  const StreamDifference& compute = worst->difference.streams.front();
  std::string text = fmt::format(
      "largest error: {}, {}: between ops of the first stream {:.2f} ms, simulated {:.2f}; simulated - measured:", worst->model,
      worst->placement, 1e3 * seconds(worst->measured.end - compute.second_busy), 1e3 * seconds(worst->simulated.end - compute.first_busy));
  for (std::size_t i = 0; i < std::min<std::size_t>(worst->difference.kinds.size(), 4); ++i) {
    const KindDifference& kind = worst->difference.kinds[i];
    text += fmt::format("{} {} {} {:+.2f} ms", i == 0 ? "" : ",", worst->graph.label(kind.phase), worst->graph.label(kind.kind),
                        1e3 * (seconds(kind.first) - seconds(kind.second)));
  }
  return text;
}

constexpr double kBusySpread = 0.25;  // kernels.md section 5: 4 to 7 % on a quiet machine, and levels drift by 14 %

std::string backend_text(const std::string& machine, std::span<const BackendCase> cases) {
  const BackendSummary summary = summary_of(cases);
  TextLines lines;
  lines.add("", fmt::format("real kernels on {}, calibrated in this run; {} steps", machine, cases.size()));
  lines.add("step time: ",
            fmt::format("median error {:.1f} %, largest {:.1f} %; order of placements that differ by more than 5 %: {}",
                        100 * summary.median_error, 100 * summary.max_error,
                        summary.order_agreement ? fmt::format("{:.0f} % right", 100 * *summary.order_agreement) : "none do"));
  lines.add("memory: ", fmt::format("{} of {} peaks differ, device and host", summary.peak_mismatches, cases.size()));
  lines.add("gradients: ", fmt::format("{} of {} steps differ from the first placement's", summary.gradient_mismatches, cases.size()));
  if (summary.spread > kBusySpread) {
    lines.add("busy: ", fmt::format("repeats of a step differ by up to {:.0f} %: something else runs on this machine, times say little",
                                    100 * summary.spread));
  }
  lines.add("", worst_case_text(cases));
  return cases_text(cases) + lines.text();
}

}  // namespace

// Steps that another machine is to run, in `folder`.
int write_plans(const ValidateArguments& arguments, std::size_t plans) {
  for (const auto& [flag, path] :
       {std::pair("--json", &arguments.json), std::pair("--trace", &arguments.trace), std::pair("--kernels", &arguments.kernels)}) {
    if (path->empty()) continue;
    refuse(flag, "one, but no results.json of all plans in " + arguments.plans,
           "to run " + std::to_string(plans) + " plans first (tools/cuda_node.sh)");
  }
  write_outputs({}, fmt::format("{} plans in {}: run tools/cuda_node.sh {} on a machine with a GPU, bring back results.json, then "
                                "the same command again\n",
                                plans, arguments.plans, arguments.plans));
  return kExitDone;
}

int backend_command(const ValidateArguments& arguments) {
  check_alone(arguments);
  if (!arguments.plans.empty() && arguments.backend != "cuda") refuse("--plans", "a folder with --backend " + arguments.backend, "cuda");
  check_trace_name(arguments.trace);
  PlanFolder* folder = nullptr;  // of the backend, if it is one
  std::unique_ptr<KernelBackend> backend;
  if (arguments.plans.empty()) {
    backend = backend_named(arguments.backend);
  } else {
    auto plans = std::make_unique<PlanFolder>(arguments.plans);
    folder = plans.get();
    backend = std::move(plans);
  }
  std::vector<BackendCase> cases;
  const std::vector<Output> outputs = {
      {"--json", arguments.json, [&](const TextSink& sink) { sink(backend_json(arguments.backend, backend->machine_name(), cases)); }},
      {"--trace", arguments.trace, [&](const TextSink& sink) { write_timelines(cases, sink); }},
      {"--kernels", arguments.kernels, [&](const TextSink& sink) { sink(product_table(cases, backend->machine_name())); }}};
  check_outputs(outputs, {});
  {
    ProgressBar bar;
    const bool on_gpu = arguments.backend == "cuda";
    const BackendOptions options{.recipe = {.precision = on_gpu ? Precision::kBf16 : Precision::kFp32}, .fills_values = !on_gpu};
    cases = validate_backend(*backend, on_gpu ? gpu_models() : processor_models(), backend_placements(), options,
                             [&](double part, const std::string& what) { bar.show(part, what); });
  }
  if (folder != nullptr && folder->missing() > 0) return write_plans(arguments, folder->missing());
  write_outputs(outputs, backend_text(backend->machine_name(), cases));
  const BackendSummary summary = summary_of(cases);
  return summary.gradient_mismatches == 0 ? kExitDone : kExitBeyondTolerance;
}

}  // namespace stepsim
