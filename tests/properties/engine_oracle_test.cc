// simulate() against a slow oracle on random graphs, and what every schedule must obey. Each failure names its seed:
// STEPSIM_SEED=n runs that seed only.
#include "engine_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "random_graph.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

bool all_seeds() { return std::getenv("STEPSIM_SEED") == nullptr; }

template <class Test>
void for_each_seed(std::uint64_t first, std::uint64_t count, const Test& test) {
  const char* only = std::getenv("STEPSIM_SEED");
  if (only != nullptr) first = std::strtoull(only, nullptr, 10), count = 1;
  for (std::uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test(seed);
  }
}

void expect_equal(const StepResult& result, const EngineOracle::Outcome& wanted) {
  EXPECT_EQ(result.deadlock.has_value(), wanted.stuck);
  ASSERT_EQ(result.timeline.size(), wanted.timeline.size());
  for (std::size_t i = 0; i < wanted.timeline.size(); ++i) {
    const OpRun& a = result.timeline[i];
    const OpRun& b = wanted.timeline[i];
    ASSERT_EQ(a.op.index, b.op.index) << "run " << i << " at " << a.start.count() << " or " << b.start.count();
    ASSERT_EQ(a.issued.count(), b.issued.count()) << "op " << a.op.index;
    ASSERT_EQ(a.start.count(), b.start.count()) << "op " << a.op.index;
    ASSERT_EQ(a.end.count(), b.end.count()) << "op " << a.op.index;
    ASSERT_EQ(a.slowed.count(), b.slowed.count()) << "op " << a.op.index;
  }
  ASSERT_EQ(result.parts.size(), wanted.parts.size());
  for (std::size_t i = 0; i < wanted.parts.size(); ++i) {
    ASSERT_EQ(result.parts[i].op.index, wanted.parts[i].op.index);
    ASSERT_EQ(result.parts[i].part, wanted.parts[i].part);
    ASSERT_EQ(result.parts[i].occupied.count(), wanted.parts[i].occupied.count()) << "op " << wanted.parts[i].op.index;
  }
}

// Unlike devices: each takes another row for the same work, so the parts of an op differ in cost and loads.
class CostsByDevice : public CostModel {
 public:
  explicit CostsByDevice(std::vector<GivenCostModel::Row> rows) : rows_(static_cast<std::int32_t>(rows.size())), given_(std::move(rows)) {}
  Cost cost(const OpWork& work, DeviceId device, TransferSide side) const override {
    const Given* given = std::get_if<Given>(&work);
    return given == nullptr ? Cost{}
                            : given_.cost(Given{.index = (given->index + device.index + static_cast<std::int32_t>(side)) % rows_}, device);
  }

 private:
  std::int32_t rows_;
  GivenCostModel given_;
};

struct Tally {
  int stuck = 0, slowed = 0, with_parts = 0, runs = 0;
};

Tally compare(std::uint64_t first, std::uint64_t count, const RandomGraphShape& shape) {
  Tally tally;
  for_each_seed(first, count, [&](std::uint64_t seed) {
    const RandomCase random = random_case(seed, shape);
    const CostsByDevice costs(random.rows);
    const StepResult result = simulate(random.graph, random.machine, costs, {.memory = false});
    expect_equal(result, EngineOracle(random.graph, costs).run());
    tally.stuck += result.deadlock ? 1 : 0;
    tally.with_parts += result.parts.empty() ? 0 : 1;
    tally.runs += static_cast<int>(result.timeline.size());
    tally.slowed += static_cast<int>(
        std::count_if(result.timeline.begin(), result.timeline.end(), [](const OpRun& run) { return run.slowed.count() > 0; }));
  });
  return tally;
}

TEST(EngineOracle, OrderOnly) {
  const Tally tally = compare(1, 3000, {.sharing = false, .parts = false, .any_ready = false, .gates = false});
  EXPECT_GT(tally.runs, 0);
}

TEST(EngineOracle, EverythingWithoutSharing) {
  const Tally tally = compare(100'000, 4000, {.sharing = false});
  EXPECT_GT(tally.runs, 0);
  if (all_seeds()) {
    EXPECT_GT(tally.stuck, 10);
  }  // deadlocks are compared too
}

TEST(EngineOracle, SharingOfOrdinaryOps) {
  const Tally tally = compare(200'000, 3000, {.parts = false, .host = false, .gates = false, .longest = 1'000'000});
  EXPECT_GT(tally.runs, 0);
  if (all_seeds()) {
    EXPECT_GT(tally.slowed, 1000);
  }
}

TEST(EngineOracle, Everything) {
  const Tally tally = compare(300'000, 5000, {});
  EXPECT_GT(tally.runs, 0);
  if (all_seeds()) {
    EXPECT_GT(tally.slowed, 1000);
    EXPECT_GT(tally.with_parts, 100);
  }
}

TEST(EngineProperties, StreamsAreExclusiveAndInOrder) {
  for_each_seed(400'000, 1500, [](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {});
    const OpGraph& graph = random.graph;
    const StepResult result = simulate(graph, random.machine, GivenCostModel(random.rows), {.memory = false});
    std::map<OpId, OpRun> runs;
    for (const OpRun& run : result.timeline) runs.emplace(run.op, run);
    for (std::int32_t i = 0; at(i) < graph.streams().size(); ++i) {
      std::vector<OpRun> on_stream;
      for (const OpId op : graph.stream_order(StreamId{i})) {
        if (runs.count(op) > 0) on_stream.push_back(runs.at(op));
      }
      Duration busy{};
      for (const OpRun& run : on_stream) busy += run.end - run.start;
      EXPECT_LE(busy, result.end);
      if (graph.streams()[at(i)].any_ready_op) {
        std::stable_sort(on_stream.begin(), on_stream.end(), [](const OpRun& a, const OpRun& b) { return a.start < b.start; });
        // Markers have no duration and need no slot there.
        std::erase_if(on_stream, [&](const OpRun& run) { return std::holds_alternative<Marker>(graph.work(run.op)); });
        std::stable_sort(on_stream.begin(), on_stream.end(),
                         [](const OpRun& a, const OpRun& b) { return a.start != b.start ? a.start < b.start : a.end < b.end; });
      }
      for (std::size_t j = 1; j < on_stream.size(); ++j) EXPECT_LE(on_stream[j - 1].end, on_stream[j].start);
    }
  });
}

TEST(EngineProperties, NeverShorterThanTheLongestPath) {
  for_each_seed(500'000, 1500, [](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {.shuffled = false});
    const OpGraph& graph = random.graph;
    const StepResult result = simulate(graph, random.machine, GivenCostModel(random.rows), {.memory = false});
    if (result.deadlock) return;
    // Edges go from lower to higher ids here.
    std::vector<Duration> start(graph.ops().size()), end(graph.ops().size());
    Duration longest{};
    for (std::size_t i = 0; i < graph.ops().size(); ++i) {
      const OpId op{static_cast<std::int32_t>(i)};
      for (const Edge& edge : graph.predecessors(op)) {
        const std::size_t from = at(edge.from.index);
        start[i] = std::max(start[i], edge.kind == EdgeKind::kEndToStart ? end[from] : start[from]);
      }
      const Given* given = std::get_if<Given>(&graph.work(op));
      end[i] = start[i];
      if (given != nullptr) end[i] += random.rows[at(given->index)].fixed + random.rows[at(given->index)].alone;
      longest = std::max(longest, end[i]);
    }
    EXPECT_GE(result.end, longest);
  });
}

TEST(EngineProperties, SameArgumentsSameResult) {
  for_each_seed(600'000, 300, [](std::uint64_t seed) {
    const RandomCase first = random_case(seed, {}), second = random_case(seed, {});
    EXPECT_EQ(fingerprint(simulate(first.graph, first.machine, GivenCostModel(first.rows), {.memory = false})),
              fingerprint(simulate(second.graph, second.machine, GivenCostModel(second.rows), {.memory = false})));
  });
}

// Monotone only where the order is fixed: FIFO streams and edges; no sharing, no queues, no gates, no run-ahead.
TEST(EngineProperties, ShorterOpsNeverMakeALongerStepInIssueOrder) {
  for_each_seed(700'000, 1500, [](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {.sharing = false, .queues = false, .any_ready = false, .gates = false});
    std::mt19937_64 draws(seed);
    std::vector<GivenCostModel::Row> shorter = random.rows;
    for (GivenCostModel::Row& row : shorter) {
      row.alone = Duration(static_cast<std::int64_t>(draws() % static_cast<std::uint64_t>(row.alone.count() + 1)));
    }
    const StepResult before = simulate(random.graph, random.machine, GivenCostModel(random.rows), {.memory = false});
    const StepResult after = simulate(random.graph, random.machine, GivenCostModel(shorter), {.memory = false});
    EXPECT_EQ(before.deadlock.has_value(), after.deadlock.has_value());
    if (!before.deadlock) {
      EXPECT_LE(after.end, before.end);
    }
  });
}

// What a deadlock names has not run; in its cycle and among the holders are ops that are left.
TEST(EngineProperties, ADeadlockNamesOpsThatAreLeft) {
  int deadlocks = 0;
  for_each_seed(800'000, 2000, [&](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {});
    const StepResult result = simulate(random.graph, random.machine, GivenCostModel(random.rows), {.memory = false});
    std::vector<bool> ran(random.graph.ops().size(), false);
    for (const OpRun& run : result.timeline) ran[at(run.op.index)] = true;
    EXPECT_EQ(result.deadlock.has_value(), result.timeline.size() < ran.size());
    if (!result.deadlock) return;
    ++deadlocks;
    ASSERT_TRUE(result.deadlock->first_waiting.valid());
    EXPECT_FALSE(ran[at(result.deadlock->first_waiting.index)]);
    for (const OpId op : result.deadlock->holders) EXPECT_FALSE(ran[at(op.index)]);
    for (const OpId op : result.deadlock->cycle) EXPECT_FALSE(ran[at(op.index)]);
    const bool explained = !result.deadlock->holders.empty() || !result.deadlock->cycle.empty() || !random.graph.pools().empty();
    EXPECT_TRUE(explained);
  });
  if (all_seeds()) {
    EXPECT_GT(deadlocks, 10);
  }
}

}  // namespace
}  // namespace stepsim
