#include "hardware/backends/cuda/launch_shim.h"

#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace stepsim::cuda {
namespace {

constexpr unsigned kLanes = 32;  // of a warp (CUDA C++ Programming Guide, "SIMT Architecture")
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

// What AddressSanitizer must be told of a change of stacks (sanitizer/common_interface_defs.h); nothing without it.
void leave_stack([[maybe_unused]] void** state, [[maybe_unused]] Stack to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(state, to.bottom, to.bytes);
#endif
}
void enter_stack([[maybe_unused]] void* state, [[maybe_unused]] Stack* from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(state, from == nullptr ? nullptr : &from->bottom, from == nullptr ? nullptr : &from->bytes);
#endif
}
void clear_stack([[maybe_unused]] Stack stack) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack.bottom, stack.bytes);
#endif
}

struct Barrier {
  unsigned arrived = 0, opened = 0;
};

// Runs threads of a warp, one after another, until one waits: a kernel without barriers needs one fiber for a warp.
struct Fiber {
  std::unique_ptr<std::byte[]> memory{new std::byte[kStackBytes]};
  ucontext_t context{};
  bool running = false;
  unsigned thread = 0;
  const Barrier* barrier = nullptr;  // at which it waits, while it opened as often as `opened`
  unsigned opened = 0;
  void* sanitizer_state = nullptr;
  Stack stack() const { return {memory.get(), kStackBytes}; }
};

class Block {
 public:
  Block(dim3 block, bool descending, const std::function<void()>& thread)
      : threads_(block.x * block.y), descending_(descending), body_(thread), warps_(threads_ / kLanes), turn_(threads_), fibers_(threads_) {
    for (std::vector<std::uint64_t>& each : exchanged_) each.resize(threads_);
  }

  // One warp after another runs as far as it can: the one is far ahead, where no barrier holds it, before the next one moves.
  void run() {
    started_ = 0;
    for (unsigned warp = 0; warp < warps_.size(); ++warp) {
      for (unsigned i = 0; started_ < (warp + 1) * kLanes; ++i) start(warp * kLanes + i);
      advance(warp);
    }
    while (running_ > 0) {
      bool moved = false;
      for (unsigned warp = 0; warp < warps_.size(); ++warp) moved = advance(warp) || moved;
      STEPSIM_CHECK(moved);  // else threads wait at different barriers
    }
  }

  void wait_for_block() { wait(all_, threads_); }

  const std::uint64_t* exchange(std::uint64_t value) {  // of the 32 lanes of the thread's warp
    const unsigned thread = current_->thread;
    // Two buffers in turns: a thread that writes the other one already is past a barrier that all came to after they read this one.
    turn_[thread] ^= 1U;
    std::uint64_t* const values = exchanged_[turn_[thread]].data();
    values[thread] = value;
    wait(warps_[thread / kLanes], kLanes);
    return values + thread / kLanes * kLanes;
  }

  unsigned lane() const { return current_->thread % kLanes; }

  static thread_local Block* running;

 private:
  static void fiber_main() { running->run_threads(); }

  void run_threads() {
    enter_stack(nullptr, &scheduler_stack_);
    const unsigned end = started_ / kLanes * kLanes + kLanes;  // of the warp
    while (started_ < end) {
      current_->thread = descending_ ? threads_ - 1 - started_ : started_;
      ++started_;
      set_thread();
      body_();
    }
    current_->running = false;
    --running_;
    leave_stack(nullptr, scheduler_stack_);
    setcontext(&scheduler_);
  }

  void set_thread() { threadIdx = dim3(current_->thread % blockDim.x, current_->thread / blockDim.x, 0); }

  // Whether any of the warp's threads could move.
  bool advance(unsigned warp) {
    bool moved = false;
    for (bool again = true; again;) {
      again = false;
      for (unsigned i = warp * kLanes; i < (warp + 1) * kLanes; ++i) {
        Fiber* const fiber = fibers_[i].get();
        if (fiber == nullptr || !fiber->running || fiber->barrier->opened == fiber->opened) continue;
        resume(*fiber);
        moved = again = true;
      }
    }
    return moved;
  }

  void start(unsigned number) {
    if (fibers_[number] == nullptr) fibers_[number] = std::make_unique<Fiber>();
    Fiber& fiber = *fibers_[number];
    clear_stack(fiber.stack());
    STEPSIM_CHECK(getcontext(&fiber.context) == 0);
    fiber.context.uc_stack.ss_sp = fiber.memory.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::fiber_main, 0);
    fiber.running = true;
    ++running_;
    resume(fiber);
  }

  void resume(Fiber& fiber) {
    current_ = &fiber;
    void* state = nullptr;
    leave_stack(&state, fiber.stack());
    swapcontext(&scheduler_, &fiber.context);
    enter_stack(state, nullptr);
  }

  void wait(Barrier& barrier, unsigned count) {
    Fiber& fiber = *current_;
    fiber.barrier = &barrier;
    fiber.opened = barrier.opened;
    if (++barrier.arrived == count) {
      barrier.arrived = 0;
      ++barrier.opened;
      return;
    }
    leave_stack(&fiber.sanitizer_state, scheduler_stack_);
    swapcontext(&fiber.context, &scheduler_);
    enter_stack(fiber.sanitizer_state, &scheduler_stack_);
    set_thread();
  }

  unsigned threads_, started_ = 0, running_ = 0;  // running: fibers
  bool descending_;
  const std::function<void()>& body_;
  Barrier all_{};
  std::vector<Barrier> warps_;
  std::vector<unsigned> turn_;  // by thread: the buffer of its last exchange
  std::vector<std::uint64_t> exchanged_[2];
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  ucontext_t scheduler_{};
  Stack scheduler_stack_{};
};

thread_local Block* Block::running = nullptr;

}  // namespace

void run_grid(dim3 grid, dim3 block, Stream stream, const std::function<void()>& thread) {
  STEPSIM_CHECK(block.x * block.y % kLanes == 0);
  STEPSIM_CHECK(block.x * block.y <= 1024);  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
  STEPSIM_CHECK(block.z == 1);
  STEPSIM_CHECK(grid.z == 1);
  const bool descending = stream != nullptr && stream->descending;
  Block runner(block, descending, thread);
  Block::running = &runner;
  blockDim = block;
  gridDim = grid;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t place = descending ? blocks - 1 - i : i;
    blockIdx = dim3(static_cast<unsigned>(place % grid.x), static_cast<unsigned>(place / grid.x), 0);
    runner.run();
  }
  Block::running = nullptr;
}

void __syncthreads() { Block::running->wait_for_block(); }

std::uint64_t value_of_lane(std::uint64_t value, unsigned lane_mask) {
  Block& block = *Block::running;
  return block.exchange(value)[block.lane() ^ lane_mask];
}

std::uint32_t lanes_where(bool condition) {
  const std::uint64_t* const conditions = Block::running->exchange(condition ? 1 : 0);
  std::uint32_t lanes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) lanes |= static_cast<std::uint32_t>(conditions[lane]) << lane;
  return lanes;
}

}  // namespace stepsim::cuda
