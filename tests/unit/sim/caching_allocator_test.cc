#include "sim/caching_allocator.h"

#include <gtest/gtest.h>

#include <vector>

namespace stepsim {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

static CachingAllocator::Claim claimed(CachingAllocator& allocator, std::int64_t mebibytes, std::int32_t stream = 0) {
  const auto claim = allocator.claim(Bytes(mebibytes * kMebi), stream);
  EXPECT_TRUE(claim.has_value());
  EXPECT_TRUE(allocator.is_consistent());
  return claim.value_or(CachingAllocator::Claim{});
}

TEST(CachingAllocator, SmallBlocksShareASegmentOfTwoMebibytes) {
  CachingAllocator allocator{AllocatorSettings{}};
  const auto first = allocator.claim(Bytes(1), 0), second = allocator.claim(Bytes(1000), 0);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(allocator.use().requested.value, 1001);
  EXPECT_EQ(allocator.use().allocated.value, 512 + 1024);
  EXPECT_EQ(allocator.use().reserved.value, 2 * kMebi);
  EXPECT_EQ(allocator.use().segments, 1);
  EXPECT_EQ(allocator.use().unusable.value, 2 * kMebi - 1536);  // the rest: its segment is in use
  allocator.release(*first);
  allocator.release(*second);
  EXPECT_EQ(allocator.use().allocated.value, 0);
  EXPECT_EQ(allocator.use().unusable.value, 0);  // one free block again, which is all of its segment
  EXPECT_EQ(allocator.use().reserved.value, 2 * kMebi);
  EXPECT_TRUE(allocator.is_consistent());
}

TEST(CachingAllocator, ARestOfAMebibyteBelongsToTheBlock) {
  CachingAllocator allocator{AllocatorSettings{}};
  allocator.claim(Bytes(20 * kMebi + 512 * 1024), 0);  // of a segment of 22 MiB: the rest is 1.5 MiB
  EXPECT_EQ(allocator.use().allocated.value, 20 * kMebi + 512 * 1024);
  allocator.claim(Bytes(31 * kMebi + 512 * 1024), 0);  // of 32 MiB: half a MiB is not split off
  EXPECT_EQ(allocator.use().allocated.value, 20 * kMebi + 512 * 1024 + 32 * kMebi);
  EXPECT_EQ(allocator.use().reserved.value, 54 * kMebi);
}

TEST(CachingAllocator, TakesTheSmallestBlockThatFits) {
  CachingAllocator allocator{AllocatorSettings{}};
  const auto large = claimed(allocator, 40), middle = claimed(allocator, 30), small = claimed(allocator, 20);
  for (const auto& each : {large, middle, small}) allocator.release(each);
  claimed(allocator, 25);  // of the 30: cut, 5 remain
  EXPECT_EQ(allocator.use().unusable.value, 5 * kMebi);
  claimed(allocator, 35);
  EXPECT_EQ(allocator.use().unusable.value, (5 + 5) * kMebi);
  EXPECT_EQ(allocator.use().reserved.value, 90 * kMebi);
}

// More free blocks than a chunk of their list holds, claimed, cut and freed in orders that are not theirs.
TEST(CachingAllocator, ThousandsOfFreeBlocksStayInOrder) {
  constexpr std::int64_t kBlocks = 2003;  // a prime: multiples of 7 visit them all
  CachingAllocator allocator{AllocatorSettings{}};
  std::vector<CachingAllocator::Claim> claims;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const std::int64_t mebibytes = 2 * (10 + i * 7 % kBlocks);  // even, above 10: a segment each
    claims.push_back(*allocator.claim(Bytes(mebibytes * kMebi), 0));
    sum += mebibytes;
  }
  EXPECT_EQ(allocator.use().reserved.value, sum * kMebi);
  for (std::int64_t i = 0; i < kBlocks; ++i) allocator.release(claims[static_cast<std::size_t>(i * 11 % kBlocks)]);
  EXPECT_TRUE(allocator.is_consistent());
  // Every size is there exactly once: the best fit of each is its own, whole.
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const std::int64_t mebibytes = 2 * (10 + i * 13 % kBlocks);
    claims[static_cast<std::size_t>(i)] = *allocator.claim(Bytes(mebibytes * kMebi), 0);
    EXPECT_EQ(allocator.use().unusable.value, 0) << mebibytes;
  }
  EXPECT_EQ(allocator.use().reserved.value, sum * kMebi);
  // Half of them go and come back smaller: what is cut off stays.
  for (std::int64_t i = 0; i < kBlocks; i += 2) allocator.release(claims[static_cast<std::size_t>(i)]);
  std::int64_t cut = 0;
  for (std::int64_t i = 0; i < kBlocks; i += 2) {
    allocator.claim(Bytes((2 * (10 + i * 13 % kBlocks) - 3) * kMebi), 0);
    ++cut;
  }
  EXPECT_GT(cut, 1000);
  EXPECT_EQ(allocator.use().reserved.value, sum * kMebi);
  EXPECT_TRUE(allocator.is_consistent());
}

TEST(CachingAllocator, NeighboursGrowTogether) {
  CachingAllocator allocator{AllocatorSettings{}};
  const auto whole = claimed(allocator, 60);
  allocator.release(whole);
  const auto a = claimed(allocator, 20), b = claimed(allocator, 20), c = claimed(allocator, 20);
  allocator.release(a);
  allocator.release(c);
  EXPECT_EQ(allocator.use().unusable.value, 40 * kMebi);
  allocator.release(b);
  EXPECT_EQ(allocator.use().unusable.value, 0);
  claimed(allocator, 60);
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
}

TEST(CachingAllocator, StreamsDoNotShareBlocks) {
  CachingAllocator allocator{AllocatorSettings{}};
  allocator.release(claimed(allocator, 30, 0));
  claimed(allocator, 30, 1);
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
  claimed(allocator, 30, 0);
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
}

TEST(CachingAllocator, WhatOtherStreamsUseIsActiveAndNotAllocated) {
  CachingAllocator allocator{AllocatorSettings{}};
  const auto held = claimed(allocator, 30);
  allocator.let_go(held);
  EXPECT_EQ(allocator.use().allocated.value, 0);
  EXPECT_EQ(allocator.use().active.value, 30 * kMebi);
  claimed(allocator, 30);  // cannot have it yet
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
  allocator.release(held);
  claimed(allocator, 30);
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
}

// 100 MiB: two of 30 are free, but not together; 40 more are wanted with 40 left: that is enough; 60 are not.
TEST(CachingAllocator, FragmentationRefusesWhatTheSumAllows) {
  CachingAllocator allocator({}, Bytes(100 * kMebi));
  const auto whole = claimed(allocator, 90);
  allocator.release(whole);
  const auto a = claimed(allocator, 30), b = claimed(allocator, 30), c = claimed(allocator, 30);
  allocator.release(a);
  allocator.release(c);
  EXPECT_EQ(allocator.use().allocated.value, 30 * kMebi);
  EXPECT_FALSE(allocator.claim(Bytes(60 * kMebi), 0));  // 70 of 100 MiB are free
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.use().unusable.value, 60 * kMebi);
  allocator.release(b);
  EXPECT_TRUE(allocator.claim(Bytes(60 * kMebi), 0));
  EXPECT_TRUE(allocator.is_consistent());
}

// The same with pages: those of the free blocks move behind the segment's end. Pages are of 20 MiB.
TEST(CachingAllocator, ExpandableSegmentsMapWhatIsFreeElsewhere) {
  CachingAllocator allocator({.expandable_segments = true}, Bytes(100 * kMebi));
  const auto a = claimed(allocator, 40), b = claimed(allocator, 20), c = claimed(allocator, 40);
  EXPECT_EQ(allocator.use().reserved.value, 100 * kMebi);
  allocator.release(a);
  allocator.release(c);
  EXPECT_EQ(allocator.use().unusable.value, 0);
  claimed(allocator, 60);  // no hole is as large until all free pages are given back; then 60 are mapped behind b
  EXPECT_EQ(allocator.use().reserved.value, 80 * kMebi);
  EXPECT_EQ(allocator.use().allocated.value, 80 * kMebi);
  EXPECT_EQ(allocator.retries(), 1);
  allocator.release(b);
  EXPECT_TRUE(allocator.is_consistent());
}

TEST(CachingAllocator, ExpandableSegmentsGrowByPages) {
  CachingAllocator allocator{AllocatorSettings{.expandable_segments = true}};
  claimed(allocator, 25);
  EXPECT_EQ(allocator.use().reserved.value, 40 * kMebi);
  claimed(allocator, 10);  // within the second page
  EXPECT_EQ(allocator.use().reserved.value, 40 * kMebi);
  claimed(allocator, 10);  // 5 MiB of it, and one page more
  EXPECT_EQ(allocator.use().reserved.value, 60 * kMebi);
  allocator.claim(Bytes(1), 0);  // the small pool's own segment, a page of 2 MiB
  EXPECT_EQ(allocator.use().reserved.value, 62 * kMebi);
  EXPECT_EQ(allocator.use().segments, 2);
}

TEST(CachingAllocator, ARetryGivesTheCacheBack) {
  CachingAllocator allocator({}, Bytes(100 * kMebi));
  for (const std::int64_t size : {30, 40}) allocator.release(claimed(allocator, size));
  const auto waiting = claimed(allocator, 20, 1);
  allocator.let_go(waiting);
  claimed(allocator, 90);
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.use().reserved.value, 90 * kMebi);
  EXPECT_EQ(allocator.use().active.value, 90 * kMebi);  // the retry waited for the other stream
  allocator.release(waiting);                           // stale
  EXPECT_EQ(allocator.use().active.value, 90 * kMebi);
}

TEST(CachingAllocator, OldCacheIsCollectedAboveTheThreshold) {
  CachingAllocator allocator({.collection_threshold = 0.5}, Bytes(100 * kMebi));
  allocator.release(claimed(allocator, 30));
  allocator.release(claimed(allocator, 40));
  // 70 MiB are reserved, 20 above the threshold: the older segment goes before 25 MiB are asked for on another stream.
  claimed(allocator, 25, 1);
  EXPECT_EQ(allocator.use().reserved.value, (40 + 26) * kMebi);
  EXPECT_EQ(allocator.retries(), 0);
}

TEST(CachingAllocator, OversizeBlocksAreGivenBackBeforeTheRest) {
  CachingAllocator allocator({.max_split_size = Bytes(50 * kMebi)}, Bytes(100 * kMebi));
  allocator.release(claimed(allocator, 60));
  allocator.release(claimed(allocator, 30));
  claimed(allocator, 40);  // 60 is kept for large requests, 30 is too small: the 60 are given back
  EXPECT_EQ(allocator.use().reserved.value, 70 * kMebi);
  EXPECT_EQ(allocator.retries(), 0);
}

}  // namespace stepsim
