#include "sim/sharing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace stepsim {
namespace {

constexpr std::uint32_t kOne = 1u << 30;
constexpr std::uint32_t kHalf = kOne / 2;
using Loads = std::vector<Share>;

std::vector<std::uint64_t> rates(const std::vector<Loads>& loads) {
  std::vector<Sharer> sharers;
  for (const Loads& each : loads) sharers.push_back({each});
  return progress_rates(sharers, 8);
}

TEST(Sharing, NothingContendedRunsAtFullSpeed) {
  // 1/2 + 1/2 is full, not above.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kHalf}}, {{.resource = 0, .fraction = kHalf}}, {}}),
            (std::vector<std::uint64_t>{kFullSpeed, kFullSpeed, kFullSpeed}));
}

TEST(Sharing, EqualSharersGetEqualParts) {
  // Three full loads: t = floor(2^48 / 3).
  const std::uint64_t third = kFullSpeed / 3;
  const Loads full{{.resource = 0, .fraction = kOne}};
  EXPECT_EQ(rates({full, full, full}), (std::vector<std::uint64_t>{third, third, third}));
}

TEST(Sharing, ASmallUserKeepsItsSpeedAndTheLargeOneLosesItsShare) {
  // A GEMM (u = 1) beside a collective (u = 1/8): d = 1 and 1/8, the collective reaches x = 1 at t = 1/8, the GEMM goes on to 7/8.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kOne}}, {{.resource = 0, .fraction = kOne / 8}}}),
            (std::vector<std::uint64_t>{kFullSpeed / 8 * 7, kFullSpeed}));
}

TEST(Sharing, OnlyTheLargestShareOfAContendedResourceCounts) {
  // A copy uses 1/4 of resource 0 and all of resource 1; resource 1 has no other user, so d = 1/4. The kernel (u = 1) keeps 3/4.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kOne}}, {{.resource = 0, .fraction = kOne / 4}, {.resource = 1, .fraction = kOne}}}),
            (std::vector<std::uint64_t>{kFullSpeed / 4 * 3, kFullSpeed}));
}

TEST(Sharing, WeightsSplitAResourceUnevenly) {
  // u = 1 each, weights 3 : 1, so d = 1/3 and 1: x = 3t and t, 4t = 1.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kOne, .weight = 3}}, {{.resource = 0, .fraction = kOne}}}),
            (std::vector<std::uint64_t>{kFullSpeed / 4 * 3, kFullSpeed / 4}));
}

TEST(Sharing, PeersLoadTheResourceButNotTheFairness) {
  // Two ops of u = 1/2, one stands for three: the resource sees 1/2 x + 3/2 x with one level, so x = 1/2 for both.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kHalf, .peers = 3}}, {{.resource = 0, .fraction = kHalf}}}),
            (std::vector<std::uint64_t>{kFullSpeed / 2, kFullSpeed / 2}));
  // One op alone that stands for four full users: each gets a quarter.
  EXPECT_EQ(rates({{{.resource = 0, .fraction = kOne, .peers = 4}}}), (std::vector<std::uint64_t>{kFullSpeed / 4}));
}

TEST(Sharing, WhatAStoppedOpLeavesGoesToTheOthers) {
  // A on 0, B on 0 and 1, C and D on 1, all u = 1. Resource 1 is full at t = 1/3: B, C, D stop at 1/3; A goes on to 2/3.
  const Share zero{.resource = 0, .fraction = kOne}, one{.resource = 1, .fraction = kOne};
  const std::uint64_t third = kFullSpeed / 3;
  const std::vector<std::uint64_t> found = rates({{zero}, {zero, one}, {one}, {one}});
  EXPECT_EQ(found[1], third);
  EXPECT_EQ(found[2], third);
  EXPECT_EQ(found[3], third);
  EXPECT_EQ(found[0], kFullSpeed - third);  // exactly what is left
}

TEST(Sharing, TheSmallestFractionStillProgresses) {
  std::vector<Loads> loads(1, Loads{{.resource = 0, .fraction = 1}});
  for (int i = 0; i < 2000; ++i) loads.push_back({{.resource = 0, .fraction = kOne, .peers = 65535}});
  for (const std::uint64_t rate : rates(loads)) EXPECT_GE(rate, 1u);
}

struct RandomLoads {
  std::mt19937_64 random;
  std::vector<Loads> draw(std::int32_t first_resource) {
    std::vector<Loads> all(1 + random() % 8);
    for (Loads& loads : all) {
      for (std::int32_t resource = first_resource; resource < first_resource + 4; ++resource) {
        if (random() % 2 == 0) continue;
        loads.push_back({.resource = resource,
                         .fraction = 1 + static_cast<std::uint32_t>(random() % kOne),
                         .peers = static_cast<std::uint16_t>(1 + random() % 3),
                         .weight = static_cast<std::uint16_t>(1 + random() % 40)});
      }
    }
    return all;
  }
};

TEST(Sharing, NeverAboveCapacityAndSomethingIsFullForEveryoneWhoIsSlowed) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomLoads source{std::mt19937_64(seed)};
    const std::vector<Loads> loads = source.draw(0);
    const std::vector<std::uint64_t> found = rates(loads);
    std::vector<long double> used(8, 0);
    for (std::size_t i = 0; i < loads.size(); ++i) {
      for (const Share& load : loads[i]) {
        used[static_cast<std::size_t>(load.resource)] +=
            static_cast<long double>(load.peers) * load.fraction * static_cast<long double>(found[i]);
      }
    }
    const long double capacity = 0x1p78L;
    for (const long double use : used) EXPECT_LE(use, capacity * (1 + 1e-18L));
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (found[i] == kFullSpeed) continue;
      // Rounding down loses at most a few units of 2^-48 for each op.
      EXPECT_TRUE(std::any_of(loads[i].begin(), loads[i].end(),
                              [&](const Share& load) { return used[static_cast<std::size_t>(load.resource)] > capacity * (1 - 1e-9L); }));
    }
  }
}

TEST(Sharing, IndependentOfOrderAndOfStrangers) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomLoads source{std::mt19937_64(seed)};
    const std::vector<Loads> ours = source.draw(0), strangers = source.draw(4);
    const std::vector<std::uint64_t> alone = rates(ours);
    std::vector<Loads> mixed = ours;
    mixed.insert(mixed.end(), strangers.begin(), strangers.end());
    std::vector<std::size_t> order(mixed.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), source.random);
    std::vector<Loads> shuffled;
    for (const std::size_t i : order) {
      shuffled.push_back(mixed[i]);
      std::shuffle(shuffled.back().begin(), shuffled.back().end(), source.random);
    }
    const std::vector<std::uint64_t> found = rates(shuffled);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i] < ours.size()) {
        EXPECT_EQ(found[i], alone[order[i]]);
      }
    }
  }
}

// Sharers that are named meet in more ways than are remembered, each of them twice: the answers are those to the loads themselves.
TEST(Sharing, RememberedAnswersAreThoseToTheLoads) {
  std::vector<std::vector<Share>> rows;
  for (std::uint32_t i = 0; i < 20; ++i) {
    rows.push_back({{.resource = static_cast<std::int32_t>(i % 5), .fraction = (1u << 29) + (i << 22)},
                    {.resource = 5, .fraction = (i + 1) << 24, .peers = 2, .weight = static_cast<std::uint16_t>(1 + i % 3)}});
  }
  RateFilling filling(8);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t code = 0; code < 8000; ++code) {
      std::vector<Sharer> named, unnamed;
      for (const std::size_t row : {code % 20, code / 20 % 20, code / 400}) {
        named.push_back({rows[row], static_cast<std::uint32_t>(row)});
        unnamed.push_back({rows[row]});
        if (code % 7 == 0 && named.size() == 2) break;  // pairs too
      }
      const std::span<const std::uint64_t> found = filling.rates(named);
      ASSERT_EQ(std::vector<std::uint64_t>(found.begin(), found.end()), progress_rates(unnamed, 8)) << code;
    }
  }
}

}  // namespace
}  // namespace stepsim
