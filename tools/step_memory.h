// What a step reserves of its cards and not only allocates: its memory log taken through the caching allocator, what the process takes
// beside it, and what follows for the verdict. Knows no form of output.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/allocator_replay.h"
#include "tools/graph_run.h"
#include "tools/process_memory.h"

namespace stepsim {

// Of the fullest card, by what it reserves.
enum class CardFit : std::uint8_t {
  kUnknown,     // not replayed
  kFits,        // whatever context and communicators take of their ranges
  kTight,       // only if they take less than the upper ends
  kRetries,     // only by giving cached segments back amid the step, each time waiting for the device
  kFragmented,  // what is allocated would fit beside them; no segment has room for it
  kBeside,      // it would fit the card alone, not beside them
  kTooLarge     // the allocated bytes are more than the card
};

struct StepMemory {
  std::string not_replayed{};               // why; "": it was
  std::vector<DeviceAllocation> devices{};  // by device; empty if not replayed
  ProcessMemory process{};                  // of each
  CardFit fit = CardFit::kUnknown;
  std::size_t fullest = 0;                // index of the device with the largest share reserved
  std::optional<double> fullest_share{};  // reserved over capacity
  // Only where it does not fit, or only by retries: with the other kind of segments; kTight stands for kFits too.
  std::optional<Bytes> reserved_otherwise{};
  CardFit fit_otherwise = CardFit::kUnknown;
  bool fits() const { return fit <= CardFit::kRetries; }
  bool replayed() const { return not_replayed.empty(); }
};

// The steady step: the last one that was replayed. Of a job's first iteration: that one.
const StepAllocation& steady(const DeviceAllocation& device);
Bytes reserved_peak(const DeviceAllocation& device);  // of all steps

// `born`: storages that the first step makes; then, two steps are replayed.
StepMemory step_memory(const Job& job, const OpGraph& graph, const GraphRun& run, std::span<const StorageId> born);

// Above this share of the card the allocator's retries cost time that is not simulated: a step time is not to be trusted.
inline constexpr double kMostTrustedShare = 0.95;

// Why the step time is not to be trusted: "" if it is.
std::string doubt_of_time(const StepMemory& memory, const StepResult& result);

// Card - reserved - context - communicators, of a device; negative: short. None without a capacity or a replay.
struct FreeRange {
  std::int64_t lower = 0, upper = 0;
};
std::optional<FreeRange> free_beside(const StepMemory& memory, const GraphRun& run, std::size_t device);

// The samples of the last step that was replayed, once more. Not without a replay.
void observe_allocator(const Job& job, const OpGraph& graph, const StepResult& result, std::span<const StorageId> born,
                       const std::function<void(const AllocatorSample&)>& observer);

}  // namespace stepsim
