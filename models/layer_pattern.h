// Which layers of a stack are of one sort, as people write it: Megatron-LM's notation of --moe-layer-freq. Knows no model.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace stepsim {

// "([0]*3+[1]*58)" and "[0,1]*4": lists of 0 and 1, sums, repeats and parentheses; "N": every Nth layer beginning with the first,
// "[1]+[0]*(N-1)" (arguments.py moe_freq_type). None if the text is nothing of the sort or has no entry, or more than 100,000.
std::optional<std::vector<std::uint8_t>> layer_pattern(std::string_view text);

}  // namespace stepsim
