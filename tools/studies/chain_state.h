// States of the exact search over schedules of a chain, and the time at least left from each. Internal to chain_search.
//
// A state stands just behind the decisions of one instant: what is in device and host memory and what runs, each with the time it has left.
// What follows is without a choice until something ends; then the next decisions are made. So no state stands between two decisions of one
// instant and, but for the first, in none nothing runs.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "tools/studies/chain.h"
#include "tools/studies/chain_sequence.h"

namespace stepsim {

inline constexpr int kMaximumSearchLayers = 31;

// A set of tensors: bit i is a^i, bit 32 + i is abar^i, for layers i from 1.
using TensorSet = std::uint64_t;
using TensorBit = std::uint8_t;
inline constexpr TensorBit kNoTensor = 0;
constexpr TensorBit tensor_bit(int layer, bool saved) { return static_cast<TensorBit>(saved ? layer + 32 : layer); }
constexpr int layer_of(TensorBit bit) { return bit & 31; }
constexpr bool is_saved(TensorBit bit) { return (bit & 32) != 0; }
constexpr TensorSet set_of(TensorBit bit) { return TensorSet{bit == kNoTensor ? 0u : 1u} << bit; }
constexpr TensorSet set_of(int layer, bool saved) { return set_of(tensor_bit(layer, saved)); }
constexpr TensorSet both_of(int layer) { return set_of(layer, false) | set_of(layer, true); }  // of a layer, not of a^0

template <class Visitor>
void for_each(TensorSet tensors, Visitor&& visit) {
  for (; tensors != 0; tensors &= tensors - 1) visit(static_cast<TensorBit>(std::countr_zero(tensors)));
}

enum class ChainOp : std::uint8_t { kNone, kForward, kForwardSaved, kLoss, kBackward };

struct ChainState {
  TensorSet resident = 0;  // in device memory, without what is being made or copied in
  TensorSet host = 0;      // complete host copies; of use to the backward pass that is left, unless host memory is short
  std::int64_t compute_left = 0, out_left = 0, in_left = 0;
  std::uint8_t gradient = 0;  // index of the gradient that is there; L + 1 before the loss has run
  ChainOp op = ChainOp::kNone;
  std::uint8_t op_layer = 0;   // L for the loss
  std::uint8_t op_inputs = 0;  // bit 0: a, bit 1: abar of the input layer has been there since the op's start; 0 for a^0
  TensorBit copied_out = kNoTensor, copied_in = kNoTensor;

  bool nothing_runs() const { return op == ChainOp::kNone && copied_out == kNoTensor && copied_in == kNoTensor; }
  int input_layer() const { return op == ChainOp::kLoss ? op_layer : op_layer - 1; }
  // What the running op makes; none if that is no output of a layer.
  TensorBit made() const {
    if (op == ChainOp::kForward) return tensor_bit(op_layer, false);
    return op == ChainOp::kForwardSaved ? tensor_bit(op_layer, true) : kNoTensor;
  }
  // Cannot be dropped while what runs does. An op with two inputs to choose from locks neither: only not both can go.
  TensorSet locked() const {
    TensorSet locks = set_of(copied_out);
    if (op == ChainOp::kBackward) locks |= set_of(op_layer, true);
    if (op_inputs == 1 || op_inputs == 2) locks |= set_of(input_layer(), op_inputs == 2);
    return locks;
  }
};

// A chain and a budget, laid out for the search.
struct ChainTables {
  // `with_copies`: of a chain that has them.
  ChainTables(const Chain& chain, const ChainBudget& budget, bool with_copies);

  // What device memory holds: residents, the gradient, outputs and transient of the running op, the destination of a copy in.
  std::int64_t memory(const ChainState& state) const;
  std::int64_t size(TensorSet tensors) const;
  std::int64_t op_memory(ChainOp op, int layer) const;  // outputs and transient
  std::int64_t op_time(ChainOp op, int layer) const;
  // Time until the first end of what runs; 0 where nothing runs.
  std::int64_t until_next_end(const ChainState& state) const;
  // The state `time` later, which is not behind the next end; with all ends of that instant, without new decisions. What the rules free is
  // gone.
  ChainState later(ChainState state, std::int64_t time) const;
  // Residents that nothing can read any more and that a schedule may drop.
  TensorSet useless(const ChainState& state) const;
  // No schedule from here ends earlier than so much later (README.md, "The bound").
  std::int64_t bound(const ChainState& state) const;

  int layers = 0;
  std::array<std::int64_t, 64> tensor_size{}, out_time{}, in_time{};  // by bit
  std::vector<std::int64_t> forward, backward, gradient;              // by layer, [0] of no layer
  std::vector<std::int64_t> forward_transient, backward_transient;    // likewise
  std::vector<std::int64_t> forward_sum, backward_sum;                // of layers 1..i
  std::vector<TensorSet> above;                                       // both tensors of all layers above i
  std::int64_t network_input = 0, loss_time = 0, device = 0, host = 0;
  bool copies = false, one_engine = false;
  bool host_is_ample = false;  // for copies of everything
  // By layer: while the backward op of layer i + 1 runs, abar^i does not fit beside what that needs. So that op reads a bare a^i, and
  // behind it abar^i must be made or copied in: the least time of either, summed up to layer i.
  std::vector<bool> apart;
  std::vector<std::int64_t> gap_sum;

 private:
  void note_what_is_apart();
  std::int64_t until_saved(const ChainState& state, int last) const;
};

}  // namespace stepsim
