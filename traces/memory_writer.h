// The memory curve as CSV: time_s,device,space,in_use_bytes,<one column a role>; one row at each instant at which it changes.
#pragma once

#include <span>
#include <string_view>

#include "sim/op_graph.h"
#include "sim/step_result.h"
#include "traces/chrome_trace_writer.h"

namespace stepsim {

void write_memory_csv(const OpGraph&, const StepResult&, std::span<const std::string_view> role_names, const TextSink&);

}  // namespace stepsim
