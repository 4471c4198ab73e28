#include "tools/studies/chain_expansion.h"

#include <algorithm>
#include <array>

namespace stepsim {

namespace {

bool input_there(int layer, TensorSet resident) { return layer == 0 || (resident & both_of(layer)) != 0; }

std::uint8_t inputs_there(int layer, TensorSet resident) {
  if (layer == 0) return 0;
  return static_cast<std::uint8_t>(((resident & set_of(layer, false)) != 0 ? 1 : 0) | ((resident & set_of(layer, true)) != 0 ? 2 : 0));
}

// Copies in either direction are of use only to backward passes that have not begun.
TensorSet worth_copying(const ChainTables& tables, const ChainState& chosen) {
  const int last = chosen.op == ChainOp::kBackward ? chosen.op_layer - 1 : std::min<int>(chosen.gradient, tables.layers);
  const TensorSet useless = tables.above[from_zero(last)] | (chosen.gradient > tables.layers ? 0 : set_of(last, false));
  return tables.above[0] & ~useless;
}

}  // namespace

std::span<const ChainSuccessor> ChainExpansion::successors(const ChainState& state) {
  found_.clear();
  before_ = state;
  const std::int64_t time = tables_.until_next_end(state);
  waited_ = time > 0;
  memory_before_ = tables_.memory(state);
  now_ = tables_.later(state, time);
  if (now_.gradient == 0) {
    found_.push_back({now_, 0});
    return found_;
  }
  now_.resident &= ~tables_.useless(now_);
  choose_compute();
  return found_;
}

void ChainExpansion::choose_compute() {
  choose_copy_out(now_);
  if (now_.op != ChainOp::kNone) return;
  const auto choose = [&](ChainOp op, int layer) {
    ChainState chosen = now_;
    chosen.op = op;
    chosen.op_layer = static_cast<std::uint8_t>(layer);
    chosen.compute_left = tables_.op_time(op, layer);
    chosen.op_inputs = inputs_there(chosen.input_layer(), now_.resident);
    choose_copy_out(chosen);
  };
  const bool before_loss = now_.gradient > tables_.layers;
  const int last = std::min<int>(now_.gradient, tables_.layers);
  if (before_loss && input_there(last, now_.resident)) choose(ChainOp::kLoss, last);
  if (!before_loss && (now_.resident & set_of(last, true)) != 0 && input_there(last - 1, now_.resident)) choose(ChainOp::kBackward, last);
  const TensorSet there = now_.resident | set_of(now_.copied_in);
  for (int layer = 1; layer <= last; ++layer) {
    if (!input_there(layer - 1, now_.resident)) continue;
    if ((there & set_of(layer, true)) == 0) choose(ChainOp::kForwardSaved, layer);
    if ((there & set_of(layer, false)) == 0 && (before_loss || layer < last)) choose(ChainOp::kForward, layer);
  }
}

void ChainExpansion::choose_copy_out(const ChainState& chosen) {
  choose_copy_in(chosen);
  if (!tables_.copies || now_.copied_out != kNoTensor || (tables_.one_engine && now_.copied_in != kNoTensor)) return;
  TensorSet tensors = now_.resident & ~now_.host & worth_copying(tables_, chosen);
  // A copy out moves nothing: it can start as soon as its source is there and the engine is idle.
  if (waited_ && before_.copied_out == kNoTensor && !(tables_.one_engine && before_.copied_in != kNoTensor)) tensors &= ~before_.resident;
  const std::int64_t host_left = tables_.host_is_ample ? 0 : tables_.host - tables_.size(now_.host);
  for_each(tensors, [&](TensorBit bit) {
    if (!tables_.host_is_ample && tables_.tensor_size[bit] > host_left) return;
    ChainState copying = chosen;
    copying.copied_out = bit;
    copying.out_left = tables_.out_time[bit];
    choose_copy_in(copying);
  });
}

void ChainExpansion::choose_copy_in(const ChainState& chosen) {
  make_room(chosen);
  if (!tables_.copies || now_.copied_in != kNoTensor || (tables_.one_engine && chosen.copied_out != kNoTensor)) return;
  const TensorSet tensors = now_.host & ~now_.resident & ~set_of(chosen.made()) & worth_copying(tables_, chosen);
  for_each(tensors, [&](TensorBit bit) {
    ChainState copying = chosen;
    copying.copied_in = bit;
    copying.in_left = tables_.in_time[bit];
    make_room(copying);
  });
}

// Drops are put off until something needs the room, and then no set is dropped of which a part would do: what stays can be dropped later.
void ChainExpansion::make_room(const ChainState& chosen) {
  if (chosen.nothing_runs()) return;
  const std::int64_t missing = tables_.memory(chosen) - tables_.device;
  if (missing <= 0) return drop(chosen, 0);
  candidates_.clear();
  for_each(chosen.resident & ~chosen.locked(), [&](TensorBit bit) { candidates_.push_back(bit); });
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [&](TensorBit a, TensorBit b) { return tables_.tensor_size[a] > tables_.tensor_size[b]; });
  drop_until_it_fits(chosen, 0, 0, missing);
}

// Largest first: the last one dropped is the least, so that without any one of them the room would not do.
void ChainExpansion::drop_until_it_fits(const ChainState& chosen, TensorSet dropped, std::size_t next, std::int64_t missing) {
  if (missing <= 0) return drop(chosen, dropped);
  for (std::size_t i = next; i < candidates_.size(); ++i) {
    drop_until_it_fits(chosen, dropped | set_of(candidates_[i]), i + 1, missing - tables_.tensor_size[candidates_[i]]);
  }
}

void ChainExpansion::drop(ChainState chosen, TensorSet dropped) {
  if (dropped != 0 && chosen.op_inputs == 3) {
    const TensorSet inputs = both_of(chosen.input_layer());
    if ((dropped & inputs) == inputs) return;
    if ((dropped & inputs) != 0) chosen.op_inputs = (dropped & inputs) == set_of(chosen.input_layer(), false) ? 2 : 1;
  }
  const bool computes = chosen.op != now_.op, copies_out = chosen.copied_out != now_.copied_out,
             copies_in = chosen.copied_in != now_.copied_in;
  if (waited_ && computes && could_compute_before(chosen, dropped)) return;
  if (waited_ && copies_in && could_copy_in_before(chosen, dropped)) return;
  chosen.resident &= ~dropped;
  found_.push_back({chosen, (computes ? 1 : 0) + (copies_out ? 1 : 0) + (copies_in ? 1 : 0)});
}

// With what is dropped now dropped then, as far as it was there and not in use.
bool ChainExpansion::fits_before(std::int64_t more, TensorSet dropped) const {
  TensorSet locked = before_.locked();
  if (before_.op_inputs == 3) locked |= both_of(before_.input_layer());
  return memory_before_ + more - tables_.size(dropped & before_.resident & ~locked) <= tables_.device;
}

bool ChainExpansion::could_compute_before(const ChainState& chosen, TensorSet dropped) const {
  if (before_.op != ChainOp::kNone) return false;
  if (!input_there(chosen.input_layer(), before_.resident & ~dropped)) return false;
  if (chosen.op == ChainOp::kBackward && (before_.resident & set_of(chosen.op_layer, true)) == 0) return false;
  return fits_before(tables_.op_memory(chosen.op, chosen.op_layer), dropped);
}

bool ChainExpansion::could_copy_in_before(const ChainState& chosen, TensorSet dropped) const {
  if (before_.copied_in != kNoTensor || (tables_.one_engine && before_.copied_out != kNoTensor)) return false;
  if ((before_.host & set_of(chosen.copied_in)) == 0) return false;
  return fits_before(tables_.tensor_size[chosen.copied_in], dropped);
}

}  // namespace stepsim
