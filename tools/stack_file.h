// A stack as the file that --stack and the catalog read. Knows no step.
#pragma once

#include <string>

#include "hardware/stack_spec.h"

namespace stepsim {

// `title` is the first line's comment, `source` stands behind every number: what it was found by. Three or four digits.
std::string stack_file_text(const StackSpec& stack, const std::string& title, const std::string& source);

// In quotes, as protobuf's text form has it.
std::string quoted_text(const std::string& text);

}  // namespace stepsim
