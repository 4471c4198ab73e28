#include "tools/studies/chain_state.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

// With an entry 0 for no layer before those of the layers.
std::vector<std::int64_t> from_layer_one(const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> shifted{0};
  shifted.insert(shifted.end(), values.begin(), values.end());
  return shifted;
}

std::vector<std::int64_t> sums(const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> result = values;
  for (std::size_t i = 1; i < result.size(); ++i) result[i] += result[i - 1];
  return result;
}

}  // namespace

ChainTables::ChainTables(const Chain& chain, const ChainBudget& budget, bool with_copies)
    : layers(chain.layers()),
      forward(from_layer_one(chain.forward_time)),
      backward(from_layer_one(chain.backward_time)),
      gradient(chain.gradient),
      forward_transient(from_layer_one(chain.forward_transient)),
      backward_transient(from_layer_one(chain.backward_transient)),
      forward_sum(sums(forward)),
      backward_sum(sums(backward)),
      above(chain.output.size() + 1),
      network_input(chain.output[0]),
      loss_time(chain.loss_time),
      device(budget.device),
      host(budget.host),
      copies(chain.has_copies() && with_copies),
      one_engine(chain.one_engine) {
  STEPSIM_CHECK(layers <= kMaximumSearchLayers);
  for (int i = 1; i <= layers; ++i) {
    for (const bool saved : {false, true}) {
      const TensorBit bit = tensor_bit(i, saved);
      tensor_size[bit] = saved ? chain.saved[by_layer(i)] : chain.output[from_zero(i)];
      if (!copies) continue;
      const ChainCopy& copy = (saved ? chain.saved_copy : chain.output_copy)[by_layer(i)];
      out_time[bit] = copy.out;
      in_time[bit] = copy.in;
    }
  }
  for (int i = layers - 1; i >= 0; --i) above[from_zero(i)] = above[from_zero(i + 1)] | both_of(i + 1);
  host_is_ample = size(above[0]) <= host;
  note_what_is_apart();
}

void ChainTables::note_what_is_apart() {
  apart.assign(from_zero(layers + 1), false);
  gap_sum.assign(from_zero(layers + 1), 0);
  for (int i = 1; i <= layers; ++i) {
    const std::size_t layer = from_zero(i);
    gap_sum[layer] = gap_sum[layer - 1];
    if (i == layers) continue;
    const std::int64_t both = tensor_size[tensor_bit(i, true)] + tensor_size[tensor_bit(i + 1, true)];
    apart[layer] = network_input + both + gradient[layer + 1] + gradient[layer] + backward_transient[layer + 1] > device;
    const std::int64_t copied = copies ? in_time[tensor_bit(i, true)] : forward[layer];
    if (apart[layer]) gap_sum[layer] += std::min(forward[layer], copied);
  }
}

std::int64_t ChainTables::size(TensorSet tensors) const {
  std::int64_t sum = 0;
  for_each(tensors, [&](TensorBit bit) { sum += tensor_size[bit]; });
  return sum;
}

std::int64_t ChainTables::op_memory(ChainOp op, int layer) const {
  const std::size_t i = from_zero(layer);
  switch (op) {
    case ChainOp::kNone:
      return 0;
    case ChainOp::kForward:
    case ChainOp::kForwardSaved:
      return tensor_size[tensor_bit(layer, op == ChainOp::kForwardSaved)] + forward_transient[i];
    case ChainOp::kLoss:
      return gradient[i];
    case ChainOp::kBackward:
      return gradient[i - 1] + backward_transient[i];
  }
  return 0;
}

std::int64_t ChainTables::op_time(ChainOp op, int layer) const {
  if (op == ChainOp::kLoss) return loss_time;
  return op == ChainOp::kBackward ? backward[from_zero(layer)] : forward[from_zero(layer)];
}

std::int64_t ChainTables::memory(const ChainState& state) const {
  std::int64_t sum = network_input + size(state.resident) + op_memory(state.op, state.op_layer) + tensor_size[state.copied_in];
  if (state.gradient <= layers) sum += gradient[state.gradient];
  return sum;
}

std::int64_t ChainTables::until_next_end(const ChainState& state) const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  if (state.op != ChainOp::kNone) first = std::min(first, state.compute_left);
  if (state.copied_out != kNoTensor) first = std::min(first, state.out_left);
  if (state.copied_in != kNoTensor) first = std::min(first, state.in_left);
  return state.nothing_runs() ? 0 : first;
}

ChainState ChainTables::later(ChainState state, std::int64_t time) const {
  const auto ends = [&](bool runs, std::int64_t& left) {
    if (runs) left -= time;
    return runs && left == 0;
  };
  if (ends(state.op != ChainOp::kNone, state.compute_left)) {
    state.resident |= set_of(state.made());
    if (state.op == ChainOp::kLoss) state.gradient = static_cast<std::uint8_t>(layers);
    if (state.op == ChainOp::kBackward) state.gradient = static_cast<std::uint8_t>(state.op_layer - 1);
    state.op = ChainOp::kNone;
    state.op_layer = state.op_inputs = 0;
  }
  if (ends(state.copied_out != kNoTensor, state.out_left)) {
    state.host |= set_of(state.copied_out);
    state.copied_out = kNoTensor;
  }
  if (ends(state.copied_in != kNoTensor, state.in_left)) {
    state.resident |= set_of(state.copied_in);
    state.copied_in = kNoTensor;
  }
  if (state.gradient > layers) return state;
  const TensorSet freed = above[state.gradient];
  state.resident &= ~(freed & ~set_of(state.copied_out));
  // Where host memory is short, a copy that is of no use any more still takes part of it.
  if (host_is_ample) state.host &= ~(freed | set_of(state.gradient, false));
  return state;
}

TensorSet ChainTables::useless(const ChainState& state) const {
  if (state.gradient > layers) return 0;
  return state.resident & set_of(state.gradient, false) & ~set_of(state.copied_out);
}

// Until the backward op of layer `last` can start, which nothing keeps from it but its saved set and the compute stream.
std::int64_t ChainTables::until_saved(const ChainState& state, int last) const {
  const TensorSet saved = set_of(last, true);
  if (((state.resident | set_of(state.made())) & saved) != 0) return state.compute_left;
  if ((set_of(state.copied_in) & saved) != 0) return std::max(state.compute_left, state.in_left);
  const std::int64_t computed = state.compute_left + forward[from_zero(last)];
  if ((state.host & saved) == 0) return computed;
  const std::int64_t copied = state.in_left + in_time[tensor_bit(last, true)];
  return std::min(computed, std::max(state.compute_left, copied));
}

std::int64_t ChainTables::bound(const ChainState& state) const {
  const TensorSet coming = state.resident | state.host | set_of(state.made()) | set_of(state.copied_in);
  const bool in_backward = state.op == ChainOp::kBackward, before_loss = state.gradient > layers && state.op != ChainOp::kLoss;
  const int last = in_backward ? state.op_layer - 1 : std::min<int>(state.gradient, layers);
  if (last == 0) return state.compute_left;
  const std::int64_t loss = before_loss ? loss_time : 0, backward_time = backward_sum[from_zero(last)];
  std::int64_t computed = state.compute_left + loss + backward_time;
  for (int i = 1; i <= last; ++i) {
    if ((coming & set_of(i, true)) == 0) computed += forward[from_zero(i)];
    if (i < last && apart[from_zero(i)] && (coming & set_of(i, false)) == 0) computed += forward[from_zero(i)];
  }
  std::int64_t in_turn = backward_time + loss + gap_sum[from_zero(in_backward ? last : last - 1)];
  if (in_backward || state.op == ChainOp::kLoss) {
    in_turn += state.compute_left;
  } else if (before_loss) {
    // The forward ops above the last output that there is must run, whatever is kept of them.
    const TensorSet outputs = (coming | coming >> 32) & 0xffffffffu;
    const int frontier = outputs == 0 ? 0 : static_cast<int>(std::bit_width(outputs)) - 1;
    in_turn += state.compute_left + forward_sum[from_zero(layers)] - forward_sum[from_zero(frontier)];
  } else {
    in_turn += until_saved(state, last);
  }
  return std::max(computed, in_turn);
}

}  // namespace stepsim
