// What the reports say of the allocator, the process and the peak, for people and as JSON text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/largest_fit.h"
#include "tools/memory_changes.h"

namespace stepsim {

// Searched on demand; empty otherwise.
struct MemoryAnswers {
  MemoryChanges changes{.not_searched = "not asked for"};
  std::optional<LargestFit> largest{};
};

// The first line where the cards decide and not the sum of bytes; "" where the sum alone tells what there is to tell.
// "FITS: 13.70 to 19.50 of 79.20 GiB free on gpu0 (stage 0)", "OUT OF MEMORY: by fragmentation: ...".
std::string card_verdict(const StepRun& run);
// What stands behind it: "with expandable segments it fits (reserves 71.20 GiB)"; "" if nothing.
std::string card_remedy(const Job& job, const StepRun& run);

// The first claim that the allocator refuses although the sum of bytes fits the card, with what lives then; `available`: of the limit, what
// is not reserved. None where the sum decides, or nothing is refused.
std::optional<OutOfMemory> refused_claim(const StepRun& run);

// "reserved 58.30 GiB: 57.10 in use, 1.20 cached (0.40 fragmented); held behind the optimizer 53.90".
std::string reserved_text(const StepRun& run);
// "card 79.20 - reserved 58.30 - context 0.16 to 0.50 - NCCL 0.64 to 1.49 = 18.91 to 20.10 GiB free".
std::string subtraction_text(const StepRun& run);
// "peak at backward L3 qkv dW: optimizer moments 11.23, weights 1.87, 12 others 3.10 GiB": as many groups as the width has room for.
std::string alive_text(const StepRun& run, std::size_t width);

// Fields that memory of the JSON has more: an object.
std::string allocation_json(const Job& job, const StepRun& run, std::size_t device);
// Fields of a row of per_device: an object.
std::string device_allocation_json(const StepRun& run, std::size_t device);
// `changes` and `largest` of the JSON: an object with both.
std::string answers_json(const MemoryAnswers& answers);

}  // namespace stepsim
