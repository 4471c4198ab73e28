// Baselines on a chain whose times and peaks a person can add up, and how far they stay behind the optimum on the truth instances.
#include "tools/studies/chain_baselines.h"

#include <cstdio>
#include <map>
#include <random>

#include "tests/unit/studies/chain_checks.h"
#include "tests/unit/studies/chain_file.h"
#include "tests/unit/studies/random_chain.h"
#include "tools/studies/chain_writer.h"
#include "tools/studies/rotor.h"

namespace stepsim {
namespace {

// Four layers: f 1, b 2, x 1, abar 3, g 1, no network input.
Chain four_layers() {
  return {.forward_time = {1, 1, 1, 1},
          .backward_time = {2, 2, 2, 2},
          .output = {0, 1, 1, 1, 1},
          .saved = {3, 3, 3, 3},
          .gradient = {0, 1, 1, 1, 1},
          .forward_transient = {0, 0, 0, 0},
          .backward_transient = {0, 0, 0, 0}};
}

void expect_time_and_peak(const MaybeSchedule& schedule, std::int64_t device, std::int64_t time, std::int64_t peak) {
  ASSERT_TRUE(schedule);
  expect_runs(four_layers(), {.device = device}, *schedule, time);
  EXPECT_EQ(replay(four_layers(), {.device = device}, *schedule).peak, peak);
}

TEST(ChainBaselines, TimesAndPeaks) {
  const Chain chain = four_layers();
  const ChainBudget ample{.device = 100};
  // B 4 with all saved sets: 4 x 3, d4, d3.
  expect_time_and_peak(keep_all(chain, ample), 100, 12, 14);
  EXPECT_FALSE(keep_all(chain, {.device = 13}));
  // Every layer twice; B 4 with a1 a2 a3, one saved set, d4, d3.
  expect_time_and_peak(drop_all(chain, ample), 100, 16, 8);
  // Segments of two: B 4 with a2, two saved sets, d4, d3: 9; of one: 8; of three: 1..3 when 4 is done, 3 x 3 + 2: 11.
  expect_time_and_peak(uniform_segments(chain, ample), 100, 16, 8);
  // Two layers run again, a1 and a2 held, two saved sets kept: B 4 with 2 + 6 + 2.
  expect_time_and_peak(block_recompute(chain, {.device = 10}), 10, 14, 10);
  EXPECT_FALSE(block_recompute(chain, {.device = 7}));
  // Segments 1..2, and 3..4 kept: B 4 with a2, 3 + 3, d4, d3.
  expect_time_and_peak(sqrt_segments(chain, ample), 100, 14, 9);
  // One layer run again, none of the others: a1 held, three saved sets, 2: 12. The same with layers 1..1 kept and 2..2 run again is 12 too.
  expect_time_and_peak(best_segments(chain, {.device = 12}), 12, 13, 12);
  expect_time_and_peak(best_segments(chain, {.device = 9}), 9, 14, 9);
  expect_time_and_peak(greedy_by_rate(chain, {.device = 12}), 12, 13, 12);
  EXPECT_FALSE(pofo(chain, ample));  // nothing can be copied
}

// A backward op needs its input 1, its saved set 3 and two gradients: nothing fits below 6.
TEST(ChainBaselines, RotorAtTheLeastBudget) {
  const Chain chain = four_layers();
  EXPECT_FALSE(rotor(chain, {.device = 5}));
  // At 6 only one a^i is held at a time: four forward ops up to the loss, then layers 1..3 again for B 3, 1..2 for B 2, 1 for B 1.
  const MaybeSchedule schedule = rotor(chain, {.device = 6});
  ASSERT_TRUE(schedule);
  expect_runs(chain, {.device = 6}, *schedule, 8 + 4 + 3 + 2 + 1);
}

TEST(ChainBaselines, RotorInUnitsRoundsSizesUp) {
  const Chain chain = four_layers();
  const RotorTable exact(chain, 14, 1), coarse(chain, 7, 2);  // saved sets of 3 become 4, all else 2
  EXPECT_EQ(exact.time(1, 5, 14), 12);
  EXPECT_EQ(exact.time(1, 5, 13), 13);
  EXPECT_GT(coarse.time(1, 5, 7).value_or(1000), 12);
}

// The fastest of all partitions from `first` on, behind those in `segments`, by replay alone.
std::optional<std::int64_t> fastest_partition(const Chain& chain, const ChainBudget& budget, std::vector<ChainSegment> segments) {
  const int first = segments.empty() ? 1 : segments.back().last + 1;
  if (first > chain.layers()) {
    const ChainReplay replayed = replay(chain, budget, with_drops(chain, segment_ops(segments)));
    return replayed.violation ? std::nullopt : std::optional(replayed.time);
  }
  std::optional<std::int64_t> best;
  for (int last = first; last <= chain.layers(); ++last) {
    for (const bool kept : {false, true}) {
      segments.push_back({first, last, kept});
      const std::optional<std::int64_t> time = fastest_partition(chain, budget, segments);
      segments.pop_back();
      if (time && (!best || *time < *best)) best = time;
    }
  }
  return best;
}

TEST(ChainBaselines, BestSegmentsAreTheFastestOfAllPartitions) {
  const std::uint64_t seed = 31;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int fitting = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("chain " + std::to_string(i));
    RandomChain drawn = random_chain(random, {.most_layers = 5, .copies = false});
    if (i % 2 == 0) drawn.chain.forward_transient.assign(drawn.chain.forward_transient.size(), 9);  // forward ops need the most
    const std::optional<std::int64_t> expected = fastest_partition(drawn.chain, drawn.budget, {});
    const MaybeSchedule found = best_segments(drawn.chain, drawn.budget);
    ASSERT_EQ(found.has_value(), expected.has_value());
    if (!found) continue;
    EXPECT_EQ(replay(drawn.chain, drawn.budget, *found).time, *expected);
    ++fitting;
  }
  EXPECT_GE(fitting, 150);
}

struct Distance {
  int fitting = 0, best = 0;
  double excess = 0;
};

TEST(ChainBaselines, DistanceFromTheOptimum) {
  const std::optional<nlohmann::json> file = shared_json("optimal_instances.json");
  if (!file) GTEST_SKIP() << "the shared data is absent";
  for (const bool copies : {false, true}) {
    std::map<std::string, Distance> distances;
    int instances = 0;
    for (const nlohmann::json& instance : (*file)["instances"]) {
      if ((instance["kind"] != "remat") != copies) continue;
      const std::optional<std::int64_t> optimum = optional_integer(instance, copies ? "optimal_with_offload" : "optimal_general");
      if (!optimum) continue;
      ++instances;
      const TruthInstance truth = truth_instance(instance);
      for (const ChainBaseline& baseline : chain_baselines(truth.chain, truth.budget)) {
        Distance& distance = distances[baseline.name];
        if (!baseline.schedule) continue;
        EXPECT_GE(baseline.time, *optimum) << instance["id"] << " " << baseline.name;
        ++distance.fitting;
        distance.best += baseline.time == *optimum;
        distance.excess += 100 * (static_cast<double>(baseline.time) / static_cast<double>(*optimum) - 1);
      }
    }
    std::printf("%s, %d instances\n| baseline | fits | optimal | mean excess where it fits |\n| --- | --- | --- | --- |\n",
                copies ? "recompute and copies" : "recompute only", instances);
    for (const auto& [name, distance] : distances) {
      std::printf("| %s | %d | %d | %.2f %% |\n", name.c_str(), distance.fitting, distance.best, distance.excess / distance.fitting);
    }
    EXPECT_EQ(instances, copies ? 31 : 26);
    EXPECT_GE(distances.at("rotor").fitting, 26);
    EXPECT_LT(distances.at("rotor").best, instances);  // the file was made with gaps
  }
}

}  // namespace
}  // namespace stepsim
