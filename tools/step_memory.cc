#include "tools/step_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

const StepAllocation& steady(const DeviceAllocation& device) {
  STEPSIM_CHECK(!device.steps.empty());
  return device.steps.back();
}

Bytes reserved_peak(const DeviceAllocation& device) {
  Bytes most;
  for (const StepAllocation& step : device.steps) most = std::max(most, step.at_peak.reserved);
  return most;
}

static std::string reason_not_to_replay(const Job& job, const GraphRun& run) {
  const bool compiled = job.placement.offloads() && job.placement.offload.schedule.order != OffloadSchedule::Order::kProgram;
  if (compiled || is_tpu(job.gpu)) return "a compiler places the buffers of this step, not an allocator";
  if (run.stopped) return "the step was stopped where it no longer fitted";
  const auto absurd = [](const DeviceMemory& memory) { return memory.peak.bytes.value > kMostReplayed; };
  return std::any_of(run.memory.begin(), run.memory.end(), absurd) ? "the step takes more memory than any allocator could address" : "";
}

static AllocatorReplay replay_of(const Job& job, std::span<const StorageId> born) {
  return {.settings = job.allocator, .limits = {}, .steps = job.training.iteration == IterationKind::kFirst ? 1 : 2, .born = born};
}

// By device: its capacity less what the process takes.
static std::vector<std::optional<Bytes>> limits_of(const GraphRun& run, Bytes taken) {
  std::vector<std::optional<Bytes>> limits;
  for (const DeviceMemory& each : run.memory) {
    limits.push_back(each.capacity ? std::optional(Bytes(std::max(each.capacity->value - taken.value, std::int64_t{0}))) : std::nullopt);
  }
  return limits;
}

// Whether no device reserves more than its limit.
static bool within(const std::vector<DeviceAllocation>& devices, const std::vector<std::optional<Bytes>>& limits) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (limits[i] && reserved_peak(devices[i]) > *limits[i]) return false;
  }
  return true;
}

// Of a replay within the limits of the lower ends.
static CardFit fit_of(const std::vector<DeviceAllocation>& devices, const GraphRun& run, Bytes taken) {
  CardFit worst = CardFit::kTight;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].retries > 0) worst = std::max(worst, CardFit::kRetries);
    if (!devices[i].refused || !run.memory[i].capacity) continue;
    const std::int64_t left = run.memory[i].capacity->value - run.memory[i].peak.bytes.value;
    worst = std::max(worst, left < 0 ? CardFit::kTooLarge : left < taken.value ? CardFit::kBeside : CardFit::kFragmented);
  }
  return worst;
}

static void note_fullest(const GraphRun& run, StepMemory& memory) {
  for (std::size_t i = 0; i < memory.devices.size(); ++i) {
    const std::optional<Bytes>& capacity = run.memory[i].capacity;
    if (!capacity || capacity->value <= 0) continue;
    const double share = static_cast<double>(reserved_peak(memory.devices[i]).value) / static_cast<double>(capacity->value);
    if (memory.fullest_share && share <= *memory.fullest_share) continue;
    memory.fullest = i;
    memory.fullest_share = share;
  }
}

// The same with the other kind of segments.
static void try_otherwise(const OpGraph& graph, const GraphRun& run, AllocatorReplay replay, StepMemory& memory) {
  replay.settings.expandable_segments = !replay.settings.expandable_segments;
  const std::vector<DeviceAllocation> devices = replayed_allocator(graph, run.result, replay);
  memory.fit_otherwise = fit_of(devices, run, memory.process.total().lower);
  memory.reserved_otherwise = reserved_peak(devices[memory.fullest]);
}

StepMemory step_memory(const Job& job, const OpGraph& graph, const GraphRun& run, std::span<const StorageId> born) {
  StepMemory memory{.not_replayed = reason_not_to_replay(job, run), .process = process_memory(job)};
  if (!memory.replayed()) return memory;
  AllocatorReplay replay = replay_of(job, born);
  const ByteRange taken = memory.process.total();
  const auto lower = limits_of(run, taken.lower), upper = limits_of(run, taken.upper);
  replay.limits = lower;  // one that nothing comes near changes nothing
  memory.devices = replayed_allocator(graph, run.result, replay);
  memory.fit = fit_of(memory.devices, run, taken.lower);
  if (memory.fit == CardFit::kTight && within(memory.devices, upper)) memory.fit = CardFit::kFits;
  note_fullest(run, memory);
  if (memory.fit == CardFit::kRetries || memory.fit == CardFit::kFragmented) try_otherwise(graph, run, replay, memory);
  return memory;
}

std::string doubt_of_time(const StepMemory& memory, const StepResult& result) {
  std::int64_t retries = 0;
  for (const DeviceAllocation& device : memory.devices) retries += device.retries;
  if (retries > 0)
    return fmt::format("the allocator gives its cache back {} time{} and waits for the device", retries, retries == 1 ? "" : "s");
  if (result.forced_frees) return "memory that other streams use is waited for";
  if (memory.fullest_share && *memory.fullest_share > kMostTrustedShare) {
    return fmt::format("{:.1f} % of gpu{} are reserved, above {:.0f} %", 100 * *memory.fullest_share, memory.fullest,
                       100 * kMostTrustedShare);
  }
  return "";
}

std::optional<FreeRange> free_beside(const StepMemory& memory, const GraphRun& run, std::size_t device) {
  if (!memory.replayed() || !run.memory[device].capacity) return std::nullopt;
  const std::int64_t left = run.memory[device].capacity->value - reserved_peak(memory.devices[device]).value;
  const ByteRange taken = memory.process.total();
  return FreeRange{left - taken.upper.value, left - taken.lower.value};
}

void observe_allocator(const Job& job, const OpGraph& graph, const StepResult& result, std::span<const StorageId> born,
                       const std::function<void(const AllocatorSample&)>& observer) {
  AllocatorReplay replay = replay_of(job, born);
  replay.observer = observer;
  replayed_allocator(graph, result, replay);
}

}  // namespace stepsim
