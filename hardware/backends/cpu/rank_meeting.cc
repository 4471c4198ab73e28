#include "hardware/backends/cpu/rank_meeting.h"

#include <algorithm>
#include <thread>

namespace stepsim::cpu {

bool RankMeeting::wait_for_all(const std::atomic<bool>& stop) {
  const std::size_t ranks = buffers_.size();
  const std::size_t round = arrived_.fetch_add(1, std::memory_order_acq_rel) / ranks;
  while (arrived_.load(std::memory_order_acquire) < (round + 1) * ranks) {
    if (stop.load(std::memory_order_relaxed)) return false;
    std::this_thread::yield();
  }
  return true;
}

bool RankMeeting::reduce(std::size_t rank, float* buffer, std::int64_t count, bool maximum, const std::atomic<bool>& stop) {
  buffers_[rank] = buffer;
  if (!wait_for_all(stop)) return false;
  std::vector<float> result(buffers_[0], buffers_[0] + count);
  for (std::size_t other = 1; other < buffers_.size(); ++other) {
    for (std::int64_t i = 0; i < count; ++i) {
      float& each = result[static_cast<std::size_t>(i)];
      each = maximum ? std::max(each, buffers_[other][i]) : each + buffers_[other][i];
    }
  }
  if (!wait_for_all(stop)) return false;  // nobody reads the buffers any more
  std::copy(result.begin(), result.end(), buffer);
  return true;
}

}  // namespace stepsim::cpu
