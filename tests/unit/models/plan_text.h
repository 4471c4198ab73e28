// Plans as one line of text. "F0:0-2" runs forward ops 0 to 2 of layer 0, "R0:0-2" runs them again, "B0:0-2" runs backward ops; "drop 0.1"
// is of slot 1 of layer 0, and so are "out" (copy to the host), "wait", "free" (wait and let go), "event" (let go, free when the copy has
// ended) and "in" (copy back), with " 0/2" for the first of two slices.
#pragma once

#include <string>
#include <vector>

#include "models/offload_plan.h"
#include "models/placement_plan.h"

namespace stepsim {

inline std::string step_text(const PlanStep& step) {
  constexpr const char* kVerbs[] = {"F", "B", "drop", "out", "wait", "free", "event", "in"};
  const bool runs = step.verb == PlanVerb::kForward || step.verb == PlanVerb::kBackward;
  std::string text = step.again ? "R" : kVerbs[static_cast<int>(step.verb)];
  if (!runs) text += ' ';
  text += std::to_string(step.layer);
  text += runs ? ':' : '.';
  text += std::to_string(step.first);
  if (runs) return text.append("-").append(std::to_string(step.last));
  if (step.slices > 1) text.append(" ").append(std::to_string(step.slice)).append("/").append(std::to_string(step.slices));
  return text;
}

inline std::string steps_text(const std::vector<PlanStep>& steps) {
  std::string text;
  for (const PlanStep& step : steps) text.append(text.empty() ? "" : ", ").append(step_text(step));
  return text;
}

// "0.1 0.2": slots of layers.
inline std::string moved_text(const std::vector<MovedTensor>& moved) {
  std::string text;
  for (const MovedTensor& tensor : moved) {
    text.append(text.empty() ? "" : " ").append(std::to_string(tensor.layer)).append(".").append(std::to_string(tensor.root));
  }
  return text;
}

}  // namespace stepsim
