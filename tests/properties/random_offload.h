// Random steps that offload: a small layer with what makes lifetimes hard (ops of two outputs, a view, an update in place, weight gradients
// of their own), and every choice of policy, schedule, pipeline and sharding.
#pragma once

#include <cstdint>
#include <string>

#include "models/step_builder.h"

namespace stepsim {

// The small layer: input -norm-> norm output, statistics -fc1-> fc1 output -act-> act output -fc2-> output, mask. Backward in six ops.
// `in_place`: act works on the fc1 output. Weights and gradients of 100 parameters.
StepTemplates offload_templates(bool in_place, std::int64_t gradient_bytes);

struct RandomStep {
  StepRequest request;
  StepTemplates templates;
  std::string text;  // for failures
};

// Equal seeds make equal steps.
RandomStep random_offload_step(std::uint64_t seed);

// The same step with everything on the device: what goes to the host is kept.
StepRequest without_offload(const StepRequest&);

}  // namespace stepsim
