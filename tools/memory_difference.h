// Why the peak of one step is not lower than another's by the bytes that its placement frees: the peak moved to another instant, or other
// tensors live there. Knows no form of output beyond its sentence.
#pragma once

#include <map>
#include <string>

#include "tools/step_run.h"

namespace stepsim {

// The fullest device of a step.
struct PeakAccount {
  std::int32_t stage = 0;
  std::int32_t stages = 1;
  std::string op{};     // "backward L3 qkv dW": whose claim made the peak
  std::string place{};  // the same without micro-batch, to compare places
  Bytes peak{};
  Bytes saved{};                         // saved activations at most, of the stage with most of them
  Bytes reserved{};                      // 0 if not replayed
  std::map<std::string, Bytes> alive{};  // at the peak, by name of tensor
};
PeakAccount peak_account(const StepRun& run);

// "2 frees 13.00 GiB of saved activations but its peak is only 3.20 GiB lower: it moved from ... to ..., where 9.80 GiB more of ... are
// alive". "" where neither differs by 1 MiB. `number`: of the other step.
std::string memory_difference_text(const PeakAccount& base, const PeakAccount& other, std::size_t number);

}  // namespace stepsim
