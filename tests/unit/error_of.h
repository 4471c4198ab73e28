// The error of a call that a test expects to be refused.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <string>

#include "sim/input_error.h"

namespace stepsim {

// What the InputError that `call` throws says, always one line; "" if it throws none.
template <std::invocable Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << "an error is one line";
    return text;
  }
  return "";
}

}  // namespace stepsim
