// Random claims and releases: the caching allocator holds and reserves what one does that looks at everything again each time.
#include <gtest/gtest.h>

#include <random>

#include "sim/caching_allocator.h"
#include "tests/properties/allocator_oracle.h"

namespace stepsim {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

class RandomAllocation {
 public:
  explicit RandomAllocation(std::uint64_t seed) : random_(seed) {
    settings_.expandable_segments = pick(2) == 1;
    if (!settings_.expandable_segments && pick(4) == 0) settings_.max_split_size = Bytes((32 + pick(64)) * kMebi);
    const std::int64_t kinds = pick(4);
    if (kinds > 0) limit_ = Bytes((60 + pick(400)) * kMebi);
    streams_ = 1 + static_cast<std::int32_t>(pick(3));
  }

  void run() {
    CachingAllocator allocator(settings_, limit_);
    AllocatorOracle oracle(settings_, limit_);
    for (std::int32_t key = 0; key < 120; ++key) {
      if (pick(2) == 0 || held_.empty()) {
        const Bytes request(size());
        const auto stream = static_cast<std::int32_t>(pick(streams_));
        const auto claim = allocator.claim(request, stream);
        ASSERT_EQ(claim.has_value(), oracle.claim(key, request, stream)) << "claim " << key << " of " << request.value;
        if (claim) held_.push_back({key, *claim, false});
      } else {
        end_one(allocator, oracle);
      }
      compare(allocator, oracle);
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_TRUE(allocator.is_consistent());
    while (!held_.empty()) end_one(allocator, oracle);
    compare(allocator, oracle);
  }

 private:
  struct Held {
    std::int32_t key = 0;
    CachingAllocator::Claim claim{};
    bool waiting = false;
  };

  std::int64_t pick(std::int64_t below) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below)); }

  std::int64_t size() {
    switch (pick(4)) {
      case 0:
        return 1 + pick(3000);
      case 1:
        return 1 + pick(kMebi);
      case 2:
        return kMebi + pick(12 * kMebi);
      default:
        return (1 + pick(80)) * kMebi + pick(2) * pick(kMebi);
    }
  }

  void end_one(CachingAllocator& allocator, AllocatorOracle& oracle) {
    const auto place = static_cast<std::size_t>(pick(static_cast<std::int64_t>(held_.size())));
    Held& each = held_[place];
    if (!each.waiting && pick(4) == 0) {
      each.waiting = true;
      allocator.let_go(each.claim);
      oracle.let_go(each.key);
      return;
    }
    allocator.release(each.claim);
    oracle.release(each.key);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  static void compare(const CachingAllocator& allocator, const AllocatorOracle& oracle) {
    const AllocatorUse &use = allocator.use(), wanted = oracle.use();
    ASSERT_EQ(use.requested, wanted.requested);
    ASSERT_EQ(use.allocated, wanted.allocated);
    ASSERT_EQ(use.active, wanted.active);
    ASSERT_EQ(use.reserved, wanted.reserved);
    ASSERT_EQ(use.unusable, wanted.unusable);
    ASSERT_EQ(use.segments, wanted.segments);
    ASSERT_EQ(allocator.retries(), oracle.retries());
    ASSERT_LE(use.allocated, use.active);
    ASSERT_LE(use.active, use.reserved);
  }

  std::mt19937_64 random_;
  AllocatorSettings settings_{};
  std::optional<Bytes> limit_{};
  std::int32_t streams_ = 1;
  std::vector<Held> held_;
};

}  // namespace

TEST(CachingAllocatorProperty, HoldsWhatTheOracleHolds) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomAllocation(seed).run();
    if (HasFatalFailure()) return;
  }
}

}  // namespace stepsim
