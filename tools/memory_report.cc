#include "tools/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/vocabulary.h"
#include "sim/check.h"
#include "tools/alive_at_peak.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

// One number where both ends look the same.
static std::string range_text(std::int64_t lower, std::int64_t upper) {
  const std::string low = fmt::format("{:.2f}", gib(lower)), high = fmt::format("{:.2f}", gib(upper));
  return low == high ? low : low + " to " + high;
}

static std::string where_text(const StepRun& run, std::size_t device) {
  const DeviceId id = run.run.memory[device].device;
  return fmt::format("{} (stage {})", device_name(id), id.index);
}

// The card with the least left beside what the process takes.
static std::optional<std::size_t> scarcest(const StepRun& run) {
  std::optional<std::size_t> least;
  std::int64_t left = 0;
  for (std::size_t i = 0; i < run.run.memory.size(); ++i) {
    const std::optional<FreeRange> free = free_beside(run.allocation, run.run, i);
    if (!free || (least && free->lower >= left)) continue;
    least = i;
    left = free->lower;
  }
  return least;
}

static std::string refusal_text(const StepRun& run, std::size_t device, const char* why) {
  const AllocatorRefusal& refused = run.allocation.devices[device].refused.value();
  const std::string who = refused.by.valid() ? run.step.graph.op_name(refused.by) : "what lives all step";
  return fmt::format("OUT OF MEMORY: {}{} wants {:.2f} GiB on {}: {:.2f} in use, {:.2f} reserved of {:.2f} that the process leaves", why,
                     who, gib(refused.block), where_text(run, device), gib(refused.use.active), gib(refused.use.reserved),
                     gib(refused.limit));
}

std::string card_verdict(const StepRun& run) {
  const StepMemory& memory = run.allocation;
  if (!memory.replayed() || run.run.result.out_of_memory) return "";
  if (!memory.fits()) {
    std::size_t device = 0;
    while (device < memory.devices.size() && !memory.devices[device].refused) ++device;
    STEPSIM_CHECK(device < memory.devices.size());
    return refusal_text(run, device, memory.fit == CardFit::kFragmented ? "by fragmentation: " : "");
  }
  const std::optional<std::size_t> device = scarcest(run);
  if (!device) return "";
  const FreeRange free = *free_beside(memory, run.run, *device);
  const std::string of = fmt::format("of {:.2f} GiB free on {}", gib(*run.run.memory[*device].capacity), where_text(run, *device));
  if (memory.fit == CardFit::kFits) return fmt::format("FITS: {} {}", range_text(free.lower, free.upper), of);
  if (memory.fit == CardFit::kTight) return fmt::format("FITS: only just: {} {}", range_text(free.lower, free.upper), of);
  return fmt::format("FITS: only by giving the cache back amid the step: {} {}", range_text(free.lower, free.upper), of);
}

std::string card_remedy(const Job& job, const StepRun& run) {
  const StepMemory& memory = run.allocation;
  if (!memory.reserved_otherwise) return "";
  const char* const other = job.allocator.expandable_segments ? "without expandable segments" : "with expandable segments";
  const char* const outcome = memory.fit_otherwise <= CardFit::kTight     ? "it fits"
                              : memory.fit_otherwise == CardFit::kRetries ? "it fits by giving the cache back"
                                                                          : "it does not fit";
  const std::string flag = job.allocator.expandable_segments ? "" : " (--set hardware.expandable_segments=true)";
  return fmt::format("{}{} {}: reserves {:.2f} GiB", other, flag, outcome, gib(*memory.reserved_otherwise));
}

// What lives on a device when a storage is claimed, largest first (tie: lower id).
static std::vector<StorageId> holders_before(const StepRun& run, DeviceId device, StorageId claimed) {
  const OpGraph& graph = run.step.graph;
  const auto of = [&](StorageId id) -> const Storage& { return graph.storages()[static_cast<std::size_t>(id.index)]; };
  std::vector<bool> live(graph.storages().size(), false);
  for (const MemoryEvent& event : run.run.result.memory) {
    if (event.storage == claimed) break;
    live[static_cast<std::size_t>(event.storage.index)] = event.bytes.value > 0;
  }
  std::vector<StorageId> holders;
  for (std::int32_t id = 0; static_cast<std::size_t>(id) < live.size(); ++id) {
    const Storage& storage = of(StorageId{id});
    const bool here = storage.device == device && storage.space == MemorySpace::kDevice;
    if (here && live[static_cast<std::size_t>(id)]) holders.push_back(StorageId{id});
  }
  std::stable_sort(holders.begin(), holders.end(), [&](StorageId a, StorageId b) { return of(a).size > of(b).size; });
  return holders;
}

std::optional<OutOfMemory> refused_claim(const StepRun& run) {
  if (run.run.result.out_of_memory || run.fits()) return std::nullopt;
  for (std::size_t i = 0; i < run.allocation.devices.size(); ++i) {
    const std::optional<AllocatorRefusal>& refused = run.allocation.devices[i].refused;
    if (!refused) continue;
    const DeviceId device = run.run.memory[i].device;
    return OutOfMemory{.op = refused->by.valid() ? std::optional(refused->by) : std::nullopt,
                       .device = device,
                       .at = refused->at,
                       .requested = refused->block,
                       .available = refused->limit - refused->use.reserved,
                       .holders = holders_before(run, device, refused->storage)};
  }
  return std::nullopt;
}

std::string reserved_text(const StepRun& run) {
  if (!run.allocation.replayed()) return "";
  const DeviceAllocation& device = run.allocation.devices[run.reported_stage];
  const StepAllocation& step = steady(device);
  const AllocatorUse& full = step.at_peak;
  const std::string first = reserved_peak(device) > full.reserved ? fmt::format(", {:.2f} in iteration 1", gib(reserved_peak(device))) : "";
  return fmt::format("reserved {:.2f} GiB{}: {:.2f} in use, {:.2f} cached ({:.2f} fragmented); held behind the optimizer {:.2f}",
                     gib(full.reserved), first, gib(full.active), gib(full.cached()), gib(full.unusable), gib(step.at_end.allocated));
}

std::string subtraction_text(const StepRun& run) {
  const std::optional<FreeRange> free = free_beside(run.allocation, run.run, run.reported_stage);
  if (!free) return "";
  const ProcessMemory& process = run.allocation.process;
  std::string text = fmt::format("card {:.2f} - reserved {:.2f}", gib(*run.run.memory[run.reported_stage].capacity),
                                 gib(reserved_peak(run.allocation.devices[run.reported_stage])));
  text += " - context " + range_text(process.context.lower.value, process.context.upper.value);
  if (const ByteRange all = process.communication(); !process.communicators.empty()) {
    text += fmt::format(" - {} {}", process.library, range_text(all.lower.value, all.upper.value));
  }
  const bool is_short = free->upper < 0;
  text += " = " + (is_short ? range_text(-free->upper, -free->lower) : range_text(free->lower, free->upper));
  return text + (is_short ? " GiB short" : " GiB free");
}

std::string alive_text(const StepRun& run, std::size_t width) {
  const AliveAtPeak alive = alive_at_peak(run.step.graph, run.run.result, run.reported());
  const std::string start = fmt::format("peak at {}: ", peak_op_text(run.step.graph, alive));
  constexpr std::size_t kMostGroups = 5;
  std::string text = start + largest_groups_text(alive.groups, 0);
  for (std::size_t most = 1; most <= kMostGroups; ++most) {
    const std::string more = start + largest_groups_text(alive.groups, most);
    if (more.size() > width) break;
    text = more;
  }
  return text;
}

static double in_seconds(Duration time) { return static_cast<double>(time.count()) / 1e12; }

static Json range_json(const ByteRange& range) { return {{"lower", range.lower.value}, {"upper", range.upper.value}}; }

static Json use_json(const AllocatorUse& use) {
  return {{"requested_bytes", use.requested.value},
          {"allocated_bytes", use.allocated.value},
          {"active_bytes", use.active.value},
          {"reserved_bytes", use.reserved.value},
          {"cached_bytes", use.cached().value},
          {"fragmented_bytes", use.unusable.value},
          {"segments", use.segments}};
}

static Json step_json(const StepAllocation& step) {
  return {{"peak_reserved_bytes", step.at_peak.reserved.value},
          {"peak_allocated_bytes", step.allocated_peak.value},
          {"peak_active_bytes", step.active_peak.value},
          {"peak_fragmented_bytes", step.unusable_peak.value},
          {"peak_reserved_at_s", in_seconds(step.peak_at)},
          {"at_peak", use_json(step.at_peak)},
          {"at_end", use_json(step.at_end)}};
}

static Json refusal_json(const StepRun& run, const AllocatorRefusal& refused) {
  return {{"iteration", refused.step + 1},
          {"op", refused.by.valid() ? Json(run.step.graph.op_name(refused.by)) : Json(nullptr)},
          {"tensor", run.step.graph.storage_name(refused.storage)},
          {"at_s", in_seconds(refused.at)},
          {"block_bytes", refused.block.value},
          {"limit_bytes", refused.limit.value},
          {"use", use_json(refused.use)}};
}

static const char* fit_name(CardFit fit) {
  constexpr std::array<const char*, 7> kNames = {"unknown", "fits", "tight", "retries", "fragmented", "beside_process", "too_large"};
  return kNames[static_cast<std::size_t>(fit)];
}

static Json process_json(const StepRun& run, std::size_t device) {
  const ProcessMemory& process = run.allocation.process;
  Json json{{"context_bytes", range_json(process.context)},
            {"library", process.library},
            {"communication_bytes", range_json(process.communication())},
            {"communicators", Json::array()},
            {"sources", process.sources}};
  for (const CommunicatorMemory& each : process.communicators) {
    json["communicators"].push_back({{"group", each.group}, {"ranks", each.ranks}, {"bytes", range_json(each.bytes)}});
  }
  const std::optional<FreeRange> free = free_beside(run.allocation, run.run, device);
  json["free_bytes"] = free ? Json{{"lower", free->lower}, {"upper", free->upper}} : Json(nullptr);
  if (run.allocation.replayed()) {
    const Bytes reserved = reserved_peak(run.allocation.devices[device]);
    json["process_bytes"] = range_json(process.total() + ByteRange{reserved, reserved});
  }
  return json;
}

static std::string role_of(std::int32_t bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  return index < kRoleNames.size() ? std::string(kRoleNames[index]) : "";
}

static Json alive_json(const StepRun& run, std::size_t device) {
  constexpr std::size_t kMostTensors = 50;
  const OpGraph& graph = run.step.graph;
  const AliveAtPeak alive = alive_at_peak(graph, run.run.result, run.run.memory[device]);
  Json json{{"op", alive.op.valid() ? Json(graph.op_name(alive.op)) : Json(nullptr)},
            {"at_s", in_seconds(alive.at)},
            {"bytes", alive.bytes.value},
            {"tensors", Json::array()},
            {"groups", Json::array()},
            {"layers", Json::array()}};
  for (std::size_t i = 0; i < std::min(alive.tensors.size(), kMostTensors); ++i) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(alive.tensors[i].index)];
    json["tensors"].push_back({{"name", graph.storage_name(alive.tensors[i])},
                               {"role", role_of(graph.bucket(storage.role))},
                               {"layer", storage.layer < 0 ? Json(nullptr) : Json(storage.layer)},
                               {"micro_batch", storage.micro_batch < 0 ? Json(nullptr) : Json(storage.micro_batch)},
                               {"bytes", storage.size.value}});
  }
  for (const AliveGroup& group : alive.groups) {
    json["groups"].push_back(
        {{"name", group.name}, {"role", role_of(group.bucket)}, {"tensors", group.tensors}, {"bytes", group.bytes.value}});
  }
  for (const AliveLayer& layer : alive.layers) {
    json["layers"].push_back({{"layer", layer.layer < 0 ? Json(nullptr) : Json(layer.layer)}, {"bytes", layer.bytes.value}});
  }
  return json;
}

std::string allocation_json(const Job& job, const StepRun& run, std::size_t device) {
  const StepMemory& memory = run.allocation;
  Json json{{"peak_reserved_bytes", nullptr}, {"allocated_at_end_bytes", nullptr}};
  const std::string doubt = doubt_of_time(memory, run.run.result);
  json["step_time_trusted"] = doubt.empty();
  json["step_time_doubt"] = doubt.empty() ? Json(nullptr) : Json(doubt);
  json["process"] = process_json(run, device);
  json["alive_at_peak"] = alive_json(run, device);
  Json& allocator = json["allocator"];
  allocator["not_replayed"] = memory.replayed() ? Json(nullptr) : Json(memory.not_replayed);
  allocator["expandable_segments"] = job.allocator.expandable_segments;
  allocator["fit"] = fit_name(memory.fit);
  if (!memory.replayed()) return json.dump();
  const DeviceAllocation& own = memory.devices[device];
  json["peak_reserved_bytes"] = steady(own).at_peak.reserved.value;
  json["allocated_at_end_bytes"] = steady(own).at_end.allocated.value;
  allocator["reserved_share"] = memory.fullest_share ? Json(*memory.fullest_share) : Json(nullptr);
  allocator["retries"] = own.retries;
  allocator["steady"] = step_json(steady(own));
  allocator["first_iteration"] = step_json(own.steps.front());
  const bool tried = memory.reserved_otherwise.has_value();
  allocator["otherwise"] = tried ? Json{{"expandable_segments", !job.allocator.expandable_segments},
                                        {"fits", memory.fit_otherwise <= CardFit::kTight},
                                        {"peak_reserved_bytes", memory.reserved_otherwise->value}}
                                 : Json(nullptr);
  allocator["refused"] = own.refused ? refusal_json(run, *own.refused) : Json(nullptr);
  return json.dump();
}

std::string device_allocation_json(const StepRun& run, std::size_t device) {
  Json json{{"peak_reserved_bytes", nullptr}, {"allocated_at_end_bytes", nullptr}};
  if (!run.allocation.replayed()) return json.dump();
  const DeviceAllocation& own = run.allocation.devices[device];
  json["peak_reserved_bytes"] = steady(own).at_peak.reserved.value;
  json["peak_allocated_blocks_bytes"] = steady(own).allocated_peak.value;
  json["allocated_at_end_bytes"] = steady(own).at_end.allocated.value;
  json["first_iteration_peak_reserved_bytes"] = own.steps.front().at_peak.reserved.value;
  json["first_iteration_peak_allocated_blocks_bytes"] = own.steps.front().allocated_peak.value;
  return json.dump();
}

static Json change_json(const MemoryChanges& changes, const MemoryChange& change) {
  const StepFigures& own = changes.own;
  return {{"flags", change.flags},
          {"condition", change.condition.empty() ? Json(nullptr) : Json(change.condition)},
          {"step_time_s", in_seconds(change.figures.step)},
          {"added_time_s", in_seconds(change.figures.step - own.step)},
          {"peak_allocated_bytes", change.figures.peak.value},
          {"freed_bytes", own.peak.value - change.figures.peak.value},
          {"peak_reserved_bytes", change.figures.reserved.value},
          {"fits", change.figures.fits_cards}};
}

static Json largest_json(const LargestFit& fit) {
  Json json{{"of", fit.what == Growable::kMicroBatch ? "micro-batch" : "sequence"},
            {"value", fit.size},
            {"granule", fit.granule},
            {"monotone", !fit.gaps},
            {"trials", Json::array()}};
  for (const SizeTrial& trial : fit.trials) {
    json["trials"].push_back({{"value", trial.size},
                              {"fits", trial.fits},
                              {"peak_reserved_bytes", trial.reserved.value},
                              {"step_time_s", in_seconds(trial.step)},
                              {"refused", trial.refused.empty() ? Json(nullptr) : Json(trial.refused)}});
  }
  return json;
}

std::string answers_json(const MemoryAnswers& answers) {
  Json json{{"changes", Json::array()}, {"cheapest_change", nullptr}, {"largest", nullptr}};
  const MemoryChanges& changes = answers.changes;
  for (const MemoryChange& change : changes.tried) json["changes"].push_back(change_json(changes, change));
  if (const auto best = cheapest_change(changes)) json["cheapest_change"] = change_json(changes, changes.tried[*best]);
  json["changes_not_searched"] = changes.not_searched.empty() ? Json(nullptr) : Json(changes.not_searched);
  if (answers.largest) json["largest"] = largest_json(*answers.largest);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace stepsim
