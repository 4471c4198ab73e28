#include "tools/graph_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>

#include "sim/check.h"

namespace stepsim {

static std::optional<Bytes> host_capacity(const Machine& machine, DeviceId device) {
  const auto i = static_cast<std::size_t>(device.index);
  const auto host = i < machine.host_of_device.size() ? static_cast<std::size_t>(machine.host_of_device[i]) : 0;
  return host < machine.host_capacity.size() ? machine.host_capacity[host] : std::nullopt;
}

constexpr std::size_t kWorthAThread = 20'000;  // ops; below, a thread takes longer to start than what it would do

// A finished timeline: where its time went and what its storages take, each of which only reads it, beside one another.
static void account_beside(const OpGraph& graph, const Machine& machine, const PhaseMeaning& phases, const SimulateOptions& options,
                           std::span<const StorageId> born, GraphRun& run) {
  const StepResult& finished = run.result;
  auto time = std::async(std::launch::async, [&] { return time_partition(graph, finished, phases); });
  // Writes what the other does not read.
  run.born_peaks = record_memory(graph, machine, options.device, options.host, run.result, {.storages = born});
  run.time = time.get();
}

static void account_in_turn(const OpGraph& graph, const Machine& machine, const CostModel& costs, const PhaseMeaning& phases,
                            const SimulateOptions& options, std::span<const StorageId> born, GraphRun& run) {
  if (!graph.storages().empty())
    run.born_peaks = record_memory(graph, machine, options.device, options.host, run.result, {.storages = born});
  run.stopped = options.stop_at_out_of_memory && run.result.out_of_memory.has_value();
  if (run.stopped) run.result = simulate(graph, machine, costs, options);  // cut where memory ran out
  run.time = time_partition(graph, run.result, phases);
}

GraphRun run_graph(const OpGraph& graph, const Machine& machine, const CostModel& costs, const PhaseMeaning& phases,
                   const SimulateOptions& options, std::span<const StorageId> born) {
  STEPSIM_CHECK(graph.device_count() > 0);
  STEPSIM_CHECK(options.memory);
  GraphRun run;
  run.machine = machine;
  run.result = simulate(graph, machine, costs, {.memory = false});
  const auto gated = [](const Pool& pool) { return pool.gated; };  // the partition then reads the memory log
  const bool apart = std::none_of(graph.pools().begin(), graph.pools().end(), gated) && !options.stop_at_out_of_memory;
  if (apart && graph.ops().size() >= kWorthAThread) {
    account_beside(graph, machine, phases, options, born, run);
  } else {
    account_in_turn(graph, machine, costs, phases, options, born, run);
  }
  STEPSIM_CHECK(run.time.total() == run.result.end);
  MemoryPeaks peaks = memory_peaks(graph, run.result);
  for (std::int32_t i = 0; i < graph.device_count(); ++i) {
    const DeviceId device{i};
    const auto index = static_cast<std::size_t>(i);
    run.memory.push_back(
        {device, std::move(peaks.device[index]), machine.device_capacity[index], peaks.host[index].bytes, host_capacity(machine, device)});
    if (run.memory.back().peak.bytes > run.worst().peak.bytes) run.worst_device = run.memory.size() - 1;
  }
  return run;
}

std::optional<std::int64_t> DeviceMemory::margin() const {
  return capacity ? std::optional(capacity->value - peak.bytes.value) : std::nullopt;
}

const DeviceMemory* GraphRun::tightest() const {
  const DeviceMemory* least = nullptr;
  for (const DeviceMemory& each : memory) {
    if (each.capacity && (least == nullptr || *each.margin() < *least->margin())) least = &each;
  }
  return least;
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

std::string op_list(const OpGraph& graph, const std::vector<OpId>& ops) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(ops.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + graph.op_name(ops[i]);
  return ops.size() > kShown ? text + fmt::format(" ... ({} ops)", ops.size()) : text;
}

// "2 MiB of pool 0 (host memory), which has 1 MiB" where the op alone asks for more than a gated pool has; "" otherwise.
static std::string pool_text(const OpGraph& graph, OpId op) {
  std::vector<StorageId> written;  // once each
  for (const Tensor& tensor : graph.writes(op)) written.push_back(tensor.storage);
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  for (std::size_t pool = 0; pool < graph.pools().size(); ++pool) {
    if (!graph.pools()[pool].gated) continue;
    Bytes wanted;
    for (const StorageId id : written) {
      const Storage& storage = graph.storages()[static_cast<std::size_t>(id.index)];
      if (storage.pool == static_cast<std::int32_t>(pool)) wanted += storage.size;
    }
    const Bytes capacity = graph.pools()[pool].capacity;
    if (wanted > capacity) return fmt::format("{} of the pool of {}", print_bytes(wanted), print_bytes(capacity));
  }
  return "";
}

std::string wait_text(const OpGraph& graph, const Deadlock& deadlock) {
  const std::string bytes = pool_text(graph, deadlock.first_waiting);
  if (!bytes.empty()) return bytes;
  if (!deadlock.holders.empty()) return op_list(graph, deadlock.holders);
  return "what nothing will free: bytes of a pool that storages hold to the end, or a launch that never comes";
}

}  // namespace stepsim
