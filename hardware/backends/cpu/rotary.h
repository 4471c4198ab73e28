// Rotary positions, from a table that is made once.
#pragma once

#include <vector>

#include "hardware/backends/kernel_calls.h"

namespace stepsim::cpu {

// Cosines and sines of position * base^(-2 i / head_dim), by position and pair i.
class RotaryTable {
 public:
  RotaryTable(std::int64_t sequence, std::int64_t head_dim, double base);
  const float* cosines(std::int64_t position) const { return cosines_.data() + position * pairs_; }
  const float* sines(std::int64_t position) const { return sines_.data() + position * pairs_; }

 private:
  std::int64_t pairs_;
  std::vector<float> cosines_, sines_;
};

void run(const RotaryCall& call, const StorageAddresses& addresses, const RotaryTable& table);
void run(const RotaryBackwardCall& call, const StorageAddresses& addresses, const RotaryTable& table);

}  // namespace stepsim::cpu
