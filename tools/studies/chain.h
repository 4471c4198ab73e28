// A chain of layers, each different, as exact planners know it: integer times and integer sizes, without units. Knows no model and no
// policy.
//
// Layers are 1..L. Tensors: the output a^i of layer i (a^0 is the network's input, always in device memory), the saved set abar^i, which
// holds all that the backward pass of layer i needs and a^i with it, and the gradient d^i of a^i. Semantics: README.md, "The model".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace stepsim {

// Time of a copy of one tensor, out of device memory and into it.
struct ChainCopy {
  std::int64_t out = 0, in = 0;
};

// Every number is at least 0 (STEPSIM_CHECK in check_chain). Vectors by layer have layer i at i - 1, those that begin with a^0 have i at i.
struct Chain {
  std::vector<std::int64_t> forward_time{}, backward_time{};            // by layer: f_i, b_i
  std::vector<std::int64_t> output{};                                   // from 0: x_i, size of a^i
  std::vector<std::int64_t> saved{};                                    // by layer: size of abar^i
  std::vector<std::int64_t> gradient{};                                 // from 0: g_i, size of d^i
  std::vector<std::int64_t> forward_transient{}, backward_transient{};  // by layer: memory while the op runs, beyond its outputs
  std::int64_t loss_time = 0;                                           // between the last forward and the first backward op; makes d^L
  std::vector<ChainCopy> output_copy{}, saved_copy{};                   // by layer; empty: nothing can be copied
  bool one_engine = false;                                              // both directions share one copy engine

  int layers() const { return static_cast<int>(forward_time.size()); }
  bool has_copies() const { return !saved_copy.empty(); }
};

// Device memory at every instant, and the sum of all host copies that are ever made (a host copy is never given back).
struct ChainBudget {
  std::int64_t device = 0;
  std::int64_t host = std::numeric_limits<std::int64_t>::max();
};

constexpr std::size_t by_layer(int layer) { return static_cast<std::size_t>(layer - 1); }
constexpr std::size_t from_zero(int layer) { return static_cast<std::size_t>(layer); }

// At least one layer, vectors of the sizes above, nothing negative (STEPSIM_CHECK).
void check_chain(const Chain& chain);

// Copy times of every tensor: its size times numerator / denominator, rounded up.
void set_copy_rate(Chain& chain, std::int64_t numerator, std::int64_t denominator);

// Sum of all forward, backward and loss times: what a step takes when nothing runs twice and nothing waits.
std::int64_t all_kept_time(const Chain& chain);

}  // namespace stepsim
