// A user's own graph: on a machine of the catalog, or with nothing but the costs that it gives.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "hardware/roofline_cost_model.h"
#include "sim/check.h"
#include "tools/commands.h"
#include "tools/job.h"
#include "tools/outputs.h"
#include "tools/report_json.h"
#include "tools/text_lines.h"
#include "traces/chrome_trace_writer.h"
#include "traces/graph_file.h"
#include "traces/memory_writer.h"

namespace stepsim {

struct GraphCosts {
  Machine machine;
  std::unique_ptr<RooflineCostModel> modelled;
  std::unique_ptr<GivenCostModel> given;
};

// The file's own resources stand behind the machine's; its capacities override the machine's.
static GraphCosts graph_costs(const GraphFile& file, const SimulateArguments& arguments) {
  GraphCosts costs;
  const std::int32_t devices = file.graph.device_count();
  if (arguments.hardware.empty()) {
    if (file.needs_cost_model) throw InputError({"--hardware"}, "found none, wanted a machine: the graph has work without a duration");
    if (!arguments.cluster.empty()) throw InputError({"--cluster"}, "found one without --hardware, wanted both");
    costs.machine = plain_machine(devices);
  } else {
    const GpuSpec gpu = load_gpu(arguments.hardware);
    const ClusterSpec cluster = arguments.cluster.empty() ? usual_cluster_of(arguments.hardware, gpu) : load_cluster(arguments.cluster);
    costs.machine = make_machine(gpu, cluster, devices);
    costs.modelled = std::make_unique<RooflineCostModel>(gpu, cluster, costs.machine);
  }
  MachineAndCosts both = on_machine(file, std::move(costs.machine));
  costs.machine = std::move(both.machine);
  costs.given = std::make_unique<GivenCostModel>(std::move(both.costs), costs.modelled.get());
  return costs;
}

static void add_verdict(const OpGraph& graph, const GraphRun& run, const GraphNames& names, TextLines& lines) {
  const std::string end = print_duration(run.result.end);
  if (run.result.deadlock) {
    const Deadlock& deadlock = *run.result.deadlock;
    lines.add("", fmt::format("DEADLOCK after {}: {} waits for ever for {}", end, graph.op_name(deadlock.first_waiting),
                              wait_text(graph, deadlock)));
    if (!deadlock.cycle.empty()) lines.add("  cycle: ", op_list(graph, deadlock.cycle));
    return;
  }
  if (run.result.out_of_memory) {
    const OutOfMemoryText text = out_of_memory_text(graph, run.result, names.roles);
    lines.add("", text.verdict);
    lines.add("  held by: ", text.holders);
    lines.add("  step time ", end);
    return;
  }
  const bool limited =
      std::any_of(run.memory.begin(), run.memory.end(), [](const DeviceMemory& memory) { return memory.capacity || memory.host_capacity; });
  lines.add("", fmt::format("{}: step time {}", limited ? "FITS" : "DONE (no memory capacity is given)", end));
}

// The parts of the time that are not zero: "forward 30 us + contention 10 us".
static std::string time_parts(const TimePartition& time, const GraphNames& names) {
  std::vector<std::pair<std::string, Duration>> parts;
  for (std::size_t i = 0; i < time.busy.size(); ++i) {
    parts.emplace_back(i < names.phases.size() && !names.phases[i].empty() ? names.phases[i] : "unnamed", time.busy[i]);
  }
  Duration collectives{}, copies{};
  for (const Duration part : time.exposed_collective) collectives += part;
  for (const Duration part : time.exposed_copy) copies += part;
  parts.insert(parts.end(), {{"contention", time.contention},
                             {"exposed collectives", collectives},
                             {"exposed copies", copies},
                             {"bubble", time.bubble},
                             {"host", time.host},
                             {"idle", time.idle}});
  std::string text;
  for (const auto& [name, part] : parts) {
    if (part.count() > 0) text += (text.empty() ? "" : " + ") + name + " " + print_duration(part);
  }
  return text.empty() ? "nothing" : text;
}

static std::string of_capacity(Bytes bytes, const std::optional<Bytes>& capacity) {
  return print_bytes(bytes) + (capacity ? " of " + print_bytes(*capacity) : "");
}

// "1 device", "2 devices".
static std::string counted(std::size_t count, const char* noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

static std::string graph_summary(const OpGraph& graph, const CostModel& costs, const GraphRun& run, const GraphNames& names) {
  TextLines lines;
  add_verdict(graph, run, names, lines);
  lines.add("graph: ", fmt::format("{}, {}, {}; {}", counted(graph.ops().size(), "op"), counted(graph.storages().size(), "storage"),
                                   counted(static_cast<std::size_t>(graph.device_count()), "device"), counted(run.result.events, "event")));
  const std::string whose = run.time.device.valid() ? " of " + device_name(run.time.device) : "";  // of none if nothing ran
  lines.add("time: ", fmt::format("{} = {}{}", time_parts(run.time, names), print_duration(run.time.total()), whose));
  for (const DeviceMemory& memory : run.memory) {
    lines.add("memory: ", fmt::format("{} peak {}, host {}", device_name(memory.device), of_capacity(memory.peak.bytes, memory.capacity),
                                      of_capacity(memory.host_peak, memory.host_capacity)));
    if (lines.lines().size() > 15) break;
  }
  for (const ResourceUse& use : resource_use(graph, run.machine, costs, run.result)) {
    if (lines.lines().size() > 22) break;
    lines.add("resource: ", fmt::format("{} in use for {}", resource_name(use, graph, run.machine), print_duration(use.busy)));
  }
  return lines.text();
}

int simulate_command(const SimulateArguments& arguments) {
  if (arguments.graph.empty()) throw InputError({"simulate"}, "found no file, wanted a graph (schema traces/graph.proto)");
  check_trace_name(arguments.trace);
  const auto begin = std::chrono::steady_clock::now();
  const GraphFile file = read_graph(arguments.graph);
  if (file.graph.device_count() == 0) throw InputError({arguments.graph}, "found no device, wanted a graph with one");
  const GraphCosts costs = graph_costs(file, arguments);
  const GraphNames names{file.role_names, file.phase_names};
  const std::vector<std::string_view> role_names(file.role_names.begin(), file.role_names.end());
  GraphRun run;
  double wall_s = 0;
  const std::vector<Output> outputs = {
      {"--json", arguments.json, [&](const TextSink& sink) { sink(graph_run_json(file.graph, *costs.given, run, names, wall_s)); }},
      {"--trace", arguments.trace,
       [&](const TextSink& sink) {
         write_chrome_trace(file.graph, run.result, {.role_names = role_names, .title = "stepsim simulate " + arguments.graph}, sink);
       }},
      {"--memory-csv", arguments.memory_csv, [&](const TextSink& sink) { write_memory_csv(file.graph, run.result, role_names, sink); }},
  };
  check_outputs(outputs, {arguments.graph, arguments.hardware, arguments.cluster});
  run = run_graph(file.graph, costs.machine, *costs.given, file.phases, {});
  wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  write_outputs(outputs, graph_summary(file.graph, *costs.given, run, names));
  return kExitDone;
}

}  // namespace stepsim
