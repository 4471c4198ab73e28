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

// Writes all beside their places, then puts all in place. An error before that leaves every file as it was.
void write_outputs(const std::vector<Output>& outputs);

// Prints what people read: to stdout, or to stderr if an output is "-".
void print_summary(const std::vector<Output>& outputs, const std::string& text);

}  // namespace stepsim
