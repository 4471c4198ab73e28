// Where the ranks of a collective meet: each brings its buffer, all leave with the sum or the largest. Ranks are added in their order, so
// that all get the same bits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepsim::cpu {

class RankMeeting {
 public:
  explicit RankMeeting(std::size_t ranks) : buffers_(ranks, nullptr) {}

  // Returns when all ranks have the result in their buffers; false: `stop` was set meanwhile, the buffers are not to be used.
  bool reduce(std::size_t rank, float* buffer, std::int64_t count, bool maximum, const std::atomic<bool>& stop);

 private:
  bool wait_for_all(const std::atomic<bool>& stop);  // all have arrived here once more

  std::vector<float*> buffers_;  // by rank
  std::atomic<std::size_t> arrived_{0};
};

}  // namespace stepsim::cpu
