// Execution plans as text, a word after another: what one program writes and another, built from the standard library alone, reads. Numbers
// of fp32 are written in hexadecimal, exactly.
#pragma once

#include <string>
#include <string_view>

#include "hardware/backends/execution_plan.h"

namespace stepsim {

std::string plan_text(const ExecutionPlan& plan);

// Throws std::runtime_error, "word 12: found X, wanted Y", for text that is no plan, of another version, whose ids are out of range or out
// of order, whose operands reach beyond their storages. That a call's sizes fit its operands is not looked at: plans are stepsim's own.
ExecutionPlan parse_plan(std::string_view text);

}  // namespace stepsim
