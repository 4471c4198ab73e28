// 500 random chains: the search against every baseline, the replay, the engine, and against an oracle that shares nothing with it.
#include "tools/studies/chain_search.h"

#include <cstdio>
#include <random>

#include "tests/unit/studies/chain_checks.h"
#include "tests/unit/studies/chain_oracle.h"
#include "tests/unit/studies/random_chain.h"
#include "tools/studies/chain_baselines.h"

namespace stepsim {
namespace {

TEST(ChainSearch, IsNeverWorseThanABaselineAndNeverAboveTheBudget) {
  const std::uint64_t seed = 20261201;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int proven = 0, fitting = 0, faster = 0, baselines_run = 0;
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE("chain " + std::to_string(i));
    const RandomChain drawn = random_chain(random, {});
    const ChainSearchResult found = fastest_schedule(drawn.chain, drawn.budget, {.state_limit = 100'000});
    EXPECT_LE(found.lower_bound, found.schedule ? found.time : std::numeric_limits<std::int64_t>::max());
    if (found.schedule) expect_runs(drawn.chain, drawn.budget, *found.schedule, found.time);
    bool beats_all = found.schedule.has_value();
    for (const ChainBaseline& baseline : chain_baselines(drawn.chain, drawn.budget)) {
      SCOPED_TRACE(baseline.name);
      if (!baseline.schedule) continue;
      ASSERT_TRUE(found.schedule);
      EXPECT_LE(found.time, baseline.time);
      EXPECT_LE(found.lower_bound, baseline.time);
      expect_runs(drawn.chain, drawn.budget, *baseline.schedule, baseline.time);
      beats_all = beats_all && found.time < baseline.time;
      ++baselines_run;
    }
    proven += found.proven;
    fitting += found.schedule.has_value();
    faster += beats_all;
  }
  std::printf("proven %d of 500, fitting %d, faster than every baseline %d, baseline schedules %d\n", proven, fitting, faster,
              baselines_run);
  EXPECT_GE(proven, 490);
  EXPECT_GE(fitting, 300);
  EXPECT_GE(faster, 50);
  EXPECT_GE(baselines_run, 1500);
}

// Without baselines to start from, so that the proof is the search's own.
TEST(ChainSearch, IsTheOptimumOfTheOracle) {
  const std::uint64_t seed = 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int compared = 0, with_copies = 0, fitting = 0;
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE("chain " + std::to_string(i));
    const RandomChain drawn = random_chain(random, {.most_layers = 3, .most_time = 3, .most_size = 4});
    const OracleAnswer expected = oracle_time(drawn.chain, drawn.budget, 30'000);
    if (!expected.finished) continue;
    const ChainSearchResult found = fastest_schedule(drawn.chain, drawn.budget, {.baselines = false});
    ASSERT_TRUE(found.proven);
    ASSERT_EQ(found.schedule.has_value(), expected.time.has_value());
    ++compared;
    with_copies += drawn.chain.has_copies();
    if (!expected.time) continue;
    ++fitting;
    EXPECT_EQ(found.time, *expected.time);
    EXPECT_EQ(found.lower_bound, *expected.time);
    EXPECT_EQ(fastest_schedule(drawn.chain, drawn.budget).time, *expected.time);
    expect_runs(drawn.chain, drawn.budget, *found.schedule, found.time);
  }
  std::printf("compared %d of 500, with copies %d, fitting %d\n", compared, with_copies, fitting);
  EXPECT_GE(compared, 300);
  EXPECT_GE(with_copies, 150);
  EXPECT_GE(fitting, 200);
}

// L layers: f 2, b 4, x 1, abar 8, g 1, a copy takes half its size.
Chain uniform_chain(std::size_t layers) {
  Chain chain{.forward_time = std::vector<std::int64_t>(layers, 2),
              .backward_time = std::vector<std::int64_t>(layers, 4),
              .output = std::vector<std::int64_t>(layers + 1, 1),
              .saved = std::vector<std::int64_t>(layers, 8),
              .gradient = std::vector<std::int64_t>(layers + 1, 1),
              .forward_transient = std::vector<std::int64_t>(layers, 0),
              .backward_transient = std::vector<std::int64_t>(layers, 0)};
  set_copy_rate(chain, 1, 2);
  return chain;
}

// A backward op alone needs 1 + 8 + 1 + 1 and its input 1; all kept, the last one needs 1 + 5 x 8 + 1 + 1.
TEST(ChainSearch, MoreMemoryNeverCostsTimeAndNothingMovesWhereAllFits) {
  const Chain chain = uniform_chain(5);
  EXPECT_TRUE(exceeds_alone(chain, 11));
  EXPECT_FALSE(exceeds_alone(chain, 12));
  EXPECT_FALSE(fastest_schedule(chain, {.device = 11}).schedule);
  EXPECT_TRUE(fastest_schedule(chain, {.device = 11}).proven);
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t device = 12; device <= 43; ++device) {
    SCOPED_TRACE(device);
    const ChainSearchResult found = fastest_schedule(chain, {.device = device});
    ASSERT_TRUE(found.proven);
    ASSERT_TRUE(found.schedule);
    EXPECT_LE(found.time, before);
    EXPECT_LE(found.time, fastest_schedule(chain, {.device = device}, {.copies = false}).time);
    before = found.time;
    if (device < 43) continue;
    EXPECT_EQ(found.time, 5 * (2 + 4));
    EXPECT_EQ(found.schedule->size(), 5u + 1 + 5);  // each layer forward and backward, and the loss
  }
}

// Scarce host memory lies between none and ample.
TEST(ChainSearch, HostMemoryIsABudget) {
  const Chain chain = uniform_chain(4);
  const auto time = [&](std::int64_t host) { return fastest_schedule(chain, {.device = 21, .host = host}).time; };
  EXPECT_EQ(time(0), fastest_schedule(chain, {.device = 21}, {.copies = false}).time);
  EXPECT_LT(time(8), time(0));
  EXPECT_LE(time(100), time(8));
  EXPECT_EQ(time(100), fastest_schedule(chain, {.device = 21}).time);
}

TEST(ChainSearch, ALimitLeavesTheBestFoundAndABound) {
  const Chain chain = uniform_chain(8);
  const ChainBudget budget{.device = 33};
  const ChainSearchResult full = fastest_schedule(chain, budget), limited = fastest_schedule(chain, budget, {.state_limit = 500});
  EXPECT_TRUE(full.proven);
  EXPECT_FALSE(limited.proven);
  EXPECT_GE(limited.stored, 500);
  ASSERT_TRUE(limited.schedule);
  expect_runs(chain, budget, *limited.schedule, limited.time);
  EXPECT_GE(limited.time, full.time);
  EXPECT_LE(limited.lower_bound, full.time);
  EXPECT_GE(limited.lower_bound, all_kept_time(chain));
}

TEST(ChainSearch, GivesTheSameTwice) {
  const Chain chain = uniform_chain(5);
  const ChainSearchResult first = fastest_schedule(chain, {.device = 25}), second = fastest_schedule(chain, {.device = 25});
  EXPECT_EQ(first.schedule, second.schedule);
  EXPECT_EQ(first.expanded, second.expanded);
}

}  // namespace
}  // namespace stepsim
