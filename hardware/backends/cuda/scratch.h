// Device memory that a call uses only while it runs, given by the caller: calls of one stream may share it. How much each call needs:
// scratch_bytes(call) of its header.
#pragma once

#include <cstddef>

#include "sim/check.h"

namespace stepsim::cuda {

struct Scratch {
  void* memory = nullptr;  // aligned to 16 bytes
  std::size_t bytes = 0;
  // STEPSIM_CHECK: there are as many bytes.
  template <class T>
  T* of(std::size_t wanted_bytes) const {
    STEPSIM_CHECK(bytes >= wanted_bytes);
    return static_cast<T*>(memory);
  }
};

}  // namespace stepsim::cuda
