// The files that a command writes: all of them whole or none. When one is "-", stdout carries that one alone and the summary goes to
// stderr.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "traces/text_block.h"

namespace stepsim {

struct Output {
  std::string flag;  // "--json"
  std::string path;  // "": not asked for
  std::function<void(const TextSink&)> write;
};

// Two "-", the same file twice, an output that is one of the inputs: InputError. Call before any work.
void check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs);

// Writes all beside their places, prints the summary (what people read: to stdout, or to stderr if an output is "-"), then puts all in
// place: whatever has no room, stdout too, leaves every file as it was. InputError for it; of a summary on stderr none.
void write_outputs(const std::vector<Output>& outputs, const std::string& summary);

}  // namespace stepsim
