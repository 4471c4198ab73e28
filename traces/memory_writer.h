// The memory curve as CSV: time_s,device,space,in_use_bytes,<one column a role>; one row at each instant at which it changes, two (the
// highest state first) where it reaches a new maximum and falls again within the instant, so that the largest in_use_bytes is the peak.
#pragma once

#include <span>
#include <string_view>

#include "sim/op_graph.h"
#include "sim/step_result.h"
#include "traces/text_block.h"

namespace stepsim {

// time_s has 12 places (exact picoseconds), space is "device" or "host", `device` of host rows is the device whose host memory it is.
void write_memory_csv(const OpGraph&, const StepResult&, std::span<const std::string_view> role_names, const TextSink&);

}  // namespace stepsim
