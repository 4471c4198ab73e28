#include "hardware/backends/cpu/op_progress.h"

#include <chrono>
#include <thread>

namespace stepsim::cpu {

namespace {

// Assumed: waking a sleeping thread takes tens of microseconds, longer than most copies. A thread looks again and again for as long as an
// op may take, at first without a pause, then letting others run in between.
constexpr std::chrono::microseconds kSpin{200}, kYield{20'000};

}  // namespace

void OpProgress::set(OpId op, State state) {
  states_[at(op.index)].store(state, std::memory_order_release);
  states_[at(op.index)].notify_all();
}

bool OpProgress::wait(OpId op, State wanted) {
  std::atomic<int>& state = states_[at(op.index)];
  if (state.load(std::memory_order_acquire) >= wanted) return !stopped_.load(std::memory_order_relaxed);
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin; now < begin + kYield; now = std::chrono::steady_clock::now()) {
    if (state.load(std::memory_order_acquire) >= wanted) return !stopped_.load(std::memory_order_relaxed);
    if (now > begin + kSpin) std::this_thread::yield();
  }
  for (int now = state.load(std::memory_order_acquire); now < wanted; now = state.load(std::memory_order_acquire)) {
    state.wait(now, std::memory_order_acquire);
  }
  return !stopped_.load(std::memory_order_relaxed);
}

void OpProgress::stop() {
  stopped_.store(true, std::memory_order_relaxed);
  for (std::atomic<int>& state : states_) {
    state.store(kDone, std::memory_order_release);
    state.notify_all();
  }
}

}  // namespace stepsim::cpu
