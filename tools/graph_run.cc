#include "tools/graph_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

GraphRun run_graph(const OpGraph& graph, const Machine& machine, const CostModel& costs, const PhaseMeaning& phases,
                   const SimulateOptions& options) {
  STEPSIM_CHECK(graph.device_count() > 0);
  GraphRun run;
  run.machine = machine;
  run.result = simulate(graph, machine, costs, options);
  run.stopped = options.stop_at_out_of_memory && run.result.out_of_memory.has_value();
  run.time = time_partition(graph, run.result, phases);
  STEPSIM_CHECK(run.time.total() == run.result.end);
  for (std::int32_t i = 0; i < graph.device_count(); ++i) {
    const DeviceId device{i};
    run.memory.push_back({device, memory_peak(graph, run.result, device, MemorySpace::kDevice),
                          machine.device_capacity[static_cast<std::size_t>(i)],
                          memory_peak(graph, run.result, device, MemorySpace::kHost).bytes});
    if (run.memory.back().peak.bytes > run.worst().peak.bytes) run.worst_device = run.memory.size() - 1;
  }
  return run;
}

std::vector<PathStep> longest_steps(const std::vector<PathStep>& path, std::size_t limit) {
  std::vector<PathStep> steps = path;
  std::stable_sort(steps.begin(), steps.end(), [](const PathStep& a, const PathStep& b) { return a.duration > b.duration; });
  if (steps.size() > limit) steps.resize(limit);
  std::stable_sort(steps.begin(), steps.end(), [](const PathStep& a, const PathStep& b) { return a.start < b.start; });
  return steps;
}

std::string device_name(DeviceId device) { return fmt::format("gpu{}", device.index); }

std::string resource_name(const ResourceUse& use, const OpGraph& graph, const Machine& machine) {
  if (use.resource.valid()) return machine.resources[static_cast<std::size_t>(use.resource.index)].name;
  const Queue& queue = graph.queues()[static_cast<std::size_t>(use.queue.index)];
  const std::string kind(graph.label(queue.kind));
  return queue.device.valid() ? device_name(queue.device) + " " + kind : kind;
}

static double gib(Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); }

OutOfMemoryText out_of_memory_text(const OpGraph& graph, const StepResult& result, const std::vector<std::string>& role_names) {
  STEPSIM_CHECK(result.out_of_memory.has_value());
  const OutOfMemory& out = *result.out_of_memory;
  const std::string who = out.op ? graph.op_name(*out.op) : "what lives all step";
  const char* const where = out.space == MemorySpace::kHost ? "the host memory of " : "";
  OutOfMemoryText text;
  text.verdict = fmt::format("OUT OF MEMORY: {} wants {:.2f} GiB, {:.2f} GiB are free on {}{}", who, gib(out.requested), gib(out.available),
                             where, device_name(out.device));
  std::vector<Bytes> by_role(role_names.size());
  for (const StorageId id : out.holders) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(id.index)];
    const auto bucket = static_cast<std::size_t>(graph.bucket(storage.role));
    if (bucket < by_role.size()) by_role[bucket] += storage.size;
  }
  std::vector<std::size_t> order(by_role.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return by_role[a] > by_role[b]; });
  for (const std::size_t i : order) {
    if (by_role[i].value == 0) break;
    text.holders += fmt::format("{}{} {:.2f}", text.holders.empty() ? "" : ", ", role_names[i], gib(by_role[i]));
  }
  text.holders += text.holders.empty() ? "nothing" : " GiB";
  return text;
}

}  // namespace stepsim
