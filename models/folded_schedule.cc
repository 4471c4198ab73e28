#include "models/folded_schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

// Lists the passes of a stage: forward and backward passes of each chunk in ascending order of micro-batches.
class FoldedOrder {
 public:
  // Micro-batches of a chunk from `first` on; those from `end` on are left out.
  FoldedOrder(std::array<std::int32_t, 2> first, std::array<std::int32_t, 2> end) : forward_(first), backward_(first), end_(end) {
    made_.waits_for_sends = false;
  }

  void forward(std::int32_t chunk) { add({PassKind::kForward, chunk, forward_[static_cast<std::size_t>(chunk)]++}); }
  // Put off: its weight gradients wait for weight().
  void backward(std::int32_t chunk, bool put_off) {
    const Pass pass{PassKind::kBackward, chunk, backward_[static_cast<std::size_t>(chunk)]++};
    add(pass);
    if (put_off) waiting_[static_cast<std::size_t>(chunk)].push_back(pass.micro_batch);
  }
  // Of the chunk's backward pass that was put off first.
  void weight(std::int32_t chunk) {
    std::deque<std::int32_t>& waiting = waiting_[static_cast<std::size_t>(chunk)];
    STEPSIM_CHECK(!waiting.empty());
    add({PassKind::kWeight, chunk, waiting.front()});
    waiting.pop_front();
  }
  // The pass that was added last and the next one run as one.
  void pair_with_next() { made_.pairs.back() = true; }

  std::int32_t forwards(std::int32_t chunk) const { return forward_[static_cast<std::size_t>(chunk)]; }
  bool waits(std::int32_t chunk) const { return !waiting_[static_cast<std::size_t>(chunk)].empty(); }
  StagePasses take() && {
    STEPSIM_CHECK(!waits(0));
    STEPSIM_CHECK(!waits(1));
    return std::move(made_);
  }

 private:
  void add(const Pass& pass) {
    if (pass.micro_batch >= end_[static_cast<std::size_t>(pass.chunk)]) return;
    made_.passes.push_back(pass);
    made_.exchanges.push_back(false);
    made_.pairs.push_back(false);
  }

  std::array<std::int32_t, 2> forward_, backward_, end_;  // by chunk
  std::array<std::deque<std::int32_t>, 2> waiting_;       // by chunk: micro-batches
  StagePasses made_;
};

// DualPipe's phases: 0 is the chunk of the direction that enters at the nearer end of the pipeline.
class DualPipeOrder {
 public:
  DualPipeOrder(std::int32_t stages, std::int32_t micro_batches, std::int32_t stage, bool pairs)
      : order_({0, micro_batches / 2}, {micro_batches / 2, micro_batches}), far_half_(stage >= stages / 2), pairs_(pairs) {}

  void forward(std::int32_t phase) { order_.forward(chunk(phase)); }
  void backward(std::int32_t phase, bool put_off) {
    order_.backward(chunk(phase), put_off);
    if (put_off) waiting_.push_back(chunk(phase));
  }
  void weight() {  // of the pass that was put off first
    STEPSIM_CHECK(!waiting_.empty());
    order_.weight(waiting_.front());
    waiting_.pop_front();
  }
  void pair(std::int32_t forward_phase, std::int32_t backward_phase) {
    forward(forward_phase);
    if (pairs_) order_.pair_with_next();
    backward(backward_phase, false);
  }
  StagePasses take() && { return std::move(order_).take(); }

 private:
  std::int32_t chunk(std::int32_t phase) const { return far_half_ ? 1 - phase : phase; }

  FoldedOrder order_;
  bool far_half_, pairs_;
  std::deque<std::int32_t> waiting_;  // chunks
};

}  // namespace

StagePasses zb_v_passes(std::int32_t stages, std::int32_t micro_batches, std::int32_t stage) {
  const std::int32_t full = std::max(2 * stages - 1, micro_batches);  // fills the pipeline
  FoldedOrder order({0, 0}, {micro_batches, micro_batches});
  const auto whole = [&](std::int32_t chunk) {
    order.backward(chunk, true);
    order.weight(chunk);
  };
  for (std::int32_t i = 0; i < 2 * (stages - stage) - 1; ++i) order.forward(0);
  for (std::int32_t i = 0; i < stage; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (std::int32_t i = 0; i < stages - stage; ++i) {
    order.forward(1);
    whole(1);
  }
  while (order.forwards(1) < order.forwards(0) || order.forwards(0) < full) {
    if (order.forwards(0) < full) order.forward(0);
    whole(0);
    order.forward(1);
    whole(1);
  }
  for (std::int32_t i = 0; i < stage; ++i) {
    order.backward(0, true);
    order.backward(1, true);
  }
  for (std::int32_t i = 0; i < stages - stage; ++i) {
    order.backward(0, true);
    order.weight(0);
  }
  for (const std::int32_t chunk : {1, 0}) {
    while (order.waits(chunk)) order.weight(chunk);
  }
  return std::move(order).take();
}

StagePasses dual_pipe_passes(std::int32_t stages, std::int32_t micro_batches, std::int32_t stage, bool pairs) {
  STEPSIM_CHECK(stages % 2 == 0);
  STEPSIM_CHECK(micro_batches % 2 == 0);
  STEPSIM_CHECK(micro_batches >= 2 * stages);
  const std::int32_t inward = std::min(stage, stages - 1 - stage), outward = stages / 2 - 1 - inward;  // stages to the end, to the middle
  DualPipeOrder order(stages, micro_batches, stage, pairs);
  for (std::int32_t i = 0; i < 2 * outward; ++i) order.forward(0);
  for (std::int32_t i = 0; i <= inward; ++i) {
    order.forward(0);
    order.forward(1);
  }
  for (std::int32_t i = 0; i < outward; ++i) {
    order.backward(1, true);
    order.weight();
    order.forward(1);
  }
  for (std::int32_t i = 0; i < micro_batches / 2 - stages + inward + 1; ++i) {
    if (i == 0 && outward == 0) {  // the middle stages do not pair the first two: a smaller bubble
      order.forward(0);
      order.backward(1, false);
    } else {
      order.pair(0, 1);
    }
    order.pair(1, 0);
  }
  for (std::int32_t i = 0; i < outward; ++i) {
    order.backward(1, false);
    order.pair(1, 0);
  }
  // The second half of these is put off.
  for (std::int32_t i = 0; i < 2 * (inward + 1); ++i) order.backward(i % 2 == 0 ? 1 : 0, i > inward);
  for (std::int32_t i = 0; i < outward; ++i) {
    order.weight();
    order.backward(0, true);
  }
  for (std::int32_t i = 0; i <= inward; ++i) order.weight();
  return std::move(order).take();
}

}  // namespace stepsim
