// Every instance of planner/optimal_instances.json, every number of it; and rotor on the chains of planner/chain_rotor_reference.json.
#include <cstdio>
#include <ctime>

#include "tests/unit/studies/chain_checks.h"
#include "tests/unit/studies/chain_file.h"
#include "tools/studies/chain_baselines.h"
#include "tools/studies/chain_search.h"
#include "tools/studies/chain_writer.h"
#include "tools/studies/rotor.h"

namespace stepsim {
namespace {

// Processor time: other programs of the machine do not count.
double processor_time_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Timing {
  double longest_s = 0, sum_s = 0;
  int searches = 0;
};

void expect_optimum(const std::string& name, const TruthInstance& truth, bool copies, std::optional<std::int64_t> expected,
                    Timing& timing) {
  const double start = processor_time_s();
  const ChainSearchResult found = fastest_schedule(truth.chain, truth.budget, {.copies = copies});
  const double time_s = processor_time_s() - start;
  std::printf("| %s | %s | %s | %lld | %lld | %.4f |\n", name.c_str(), copies ? "copies" : "recompute",
              found.schedule ? std::to_string(found.time).c_str() : "none", static_cast<long long>(found.expanded),
              static_cast<long long>(found.stored), time_s);
  timing.longest_s = std::max(timing.longest_s, time_s);
  timing.sum_s += time_s;
  ++timing.searches;
  EXPECT_TRUE(found.proven);
  ASSERT_EQ(found.schedule.has_value(), expected.has_value());
  if (expected) {
    EXPECT_EQ(found.time, *expected);
    EXPECT_EQ(found.lower_bound, *expected);
    expect_runs(truth.chain, truth.budget, *found.schedule, *expected);
  }
  // By itself, too.
  const ChainSearchResult alone = fastest_schedule(truth.chain, truth.budget, {.copies = copies, .baselines = false});
  EXPECT_TRUE(alone.proven);
  EXPECT_EQ(alone.schedule.has_value(), expected.has_value());
  EXPECT_EQ(alone.time, expected.value_or(0));
}

void expect_baseline(const TruthInstance& truth, const MaybeSchedule& schedule, std::optional<std::int64_t> expected) {
  ASSERT_EQ(schedule.has_value(), expected.has_value());
  if (expected) expect_runs(truth.chain, truth.budget, *schedule, *expected);
}

TEST(TruthInstances, EveryOptimumIsFoundAndProven) {
  const std::optional<nlohmann::json> file = shared_json("optimal_instances.json");
  if (!file) GTEST_SKIP() << "the shared data is absent";
  std::printf("| instance | may | time | expanded | stored | seconds |\n| --- | --- | --- | --- | --- | --- |\n");
  Timing timing;
  for (const nlohmann::json& instance : (*file)["instances"]) {
    const std::string name = instance["id"].get<std::string>();
    SCOPED_TRACE(name);
    const TruthInstance truth = truth_instance(instance);
    if (instance["kind"] == "remat") {
      expect_optimum(name, truth, false, optional_integer(instance, "optimal_general"), timing);
      expect_baseline(truth, rotor(truth.chain, truth.budget), optional_integer(instance, "optimal_persistent"));
      expect_baseline(truth, best_segments(truth.chain, truth.budget), optional_integer(instance, "optimal_single_level_segments"));
    } else {
      expect_optimum(name, truth, false, optional_integer(instance, "optimal_remat_only_general"), timing);
      expect_optimum(name, truth, true, optional_integer(instance, "optimal_with_offload"), timing);
      expect_baseline(truth, rotor(truth.chain, truth.budget), optional_integer(instance, "optimal_persistent_remat_only"));
    }
    ChainBudget ample = truth.budget;
    ample.device = instance["all_kept"]["peak"].get<std::int64_t>();
    const MaybeSchedule kept = keep_all(truth.chain, ample);
    ASSERT_TRUE(kept);
    EXPECT_EQ(replay(truth.chain, ample, *kept).time, instance["all_kept"]["time"].get<std::int64_t>());
    EXPECT_EQ(replay(truth.chain, ample, *kept).peak, ample.device);
    EXPECT_EQ(all_kept_time(truth.chain), instance["all_kept"]["time"].get<std::int64_t>());
  }
  std::printf("%d searches, %.3f s of one core, the longest %.3f s\n", timing.searches, timing.sum_s, timing.longest_s);
  EXPECT_EQ(timing.searches, 30 + 2 * 34);  // as the file was when this was written
  EXPECT_LE(timing.longest_s, 1);           // what the planner promises
}

// Below the least budget nothing fits, at it something does.
TEST(TruthInstances, LeastBudgets) {
  const std::optional<nlohmann::json> file = shared_json("optimal_instances.json");
  if (!file) GTEST_SKIP() << "the shared data is absent";
  int checked = 0;
  for (const nlohmann::json& instance : (*file)["instances"]) {
    const std::optional<std::int64_t> least = optional_integer(instance, "min_feasible_budget_general");
    if (!least) continue;
    SCOPED_TRACE(instance["id"].get<std::string>());
    TruthInstance truth = truth_instance(instance);
    truth.budget.device = *least;
    EXPECT_TRUE(fastest_schedule(truth.chain, truth.budget).schedule);
    truth.budget.device = *least - 1;
    const ChainSearchResult below = fastest_schedule(truth.chain, truth.budget);
    EXPECT_FALSE(below.schedule);
    EXPECT_TRUE(below.proven);
    ++checked;
  }
  EXPECT_EQ(checked, 30);
}

ChainSchedule sequence_of(const nlohmann::json& actions) {
  ChainSchedule schedule;
  for (const nlohmann::json& action : actions) {
    const bool timed = action.is_array();
    const std::string text = (timed ? action[1] : action).get<std::string>();
    EXPECT_TRUE(append_actions(text, timed ? action[0].get<std::int64_t>() : 0, schedule)) << text;
  }
  return schedule;
}

// The file's own schedules: at the listed times, with the listed peaks.
TEST(TruthInstances, SchedulesOfTheFileReplay) {
  const std::optional<nlohmann::json> file = shared_json("optimal_instances.json");
  if (!file) GTEST_SKIP() << "the shared data is absent";
  int replayed_schedules = 0;
  for (const nlohmann::json& instance : (*file)["instances"]) {
    SCOPED_TRACE(instance["id"].get<std::string>());
    const TruthInstance truth = truth_instance(instance);
    const std::pair<const char*, const char*> fields[] = {
        {"general_sequence", "optimal_general"}, {"persistent_sequence", "optimal_persistent"}, {"schedule", "optimal_with_offload"}};
    for (const auto& [sequence, optimum] : fields) {
      const std::optional<std::int64_t> expected = optional_integer(instance, optimum);
      if (!expected || !instance.contains(sequence)) continue;
      ChainSchedule schedule = sequence_of(instance[sequence]);
      if (std::string(sequence) == "persistent_sequence") {  // which names no drop of an output that has become useless
        std::erase_if(schedule, [](const ChainAction& action) { return action.kind == ChainActionKind::kDrop; });
        schedule = with_drops(truth.chain, schedule);
      }
      const ChainReplay replayed = replay(truth.chain, truth.budget, schedule);
      ASSERT_FALSE(replayed.violation) << sequence << " " << *replayed.violation;
      EXPECT_EQ(replayed.time, *expected) << sequence;
      expect_runs(truth.chain, truth.budget, settled(truth.chain, truth.budget, schedule), *expected);
      ++replayed_schedules;
      const std::optional<std::int64_t> peak = optional_integer(instance, "schedule_peak");
      if (!peak) continue;
      EXPECT_EQ(replayed.peak, *peak);
      for (std::size_t i = 0; i < schedule.size(); ++i) EXPECT_EQ(replayed.runs[i].start, schedule[i].not_before) << "action " << i;
    }
  }
  EXPECT_EQ(replayed_schedules, 26 + 26 + 31);
}

TEST(RotorReference, EveryRow) {
  const std::optional<nlohmann::json> file = shared_json("chain_rotor_reference.json");
  if (!file) GTEST_SKIP() << "the shared data is absent";
  int rows = 0;
  std::string name;
  std::optional<RotorTable> table;
  Chain chain;
  for (const nlohmann::json& row : (*file)["rows"]) {
    const std::string row_name = row["chain"].get<std::string>();
    const std::int64_t unit = row["unit_bytes"].get<std::int64_t>(), units = row["budget_units"].get<std::int64_t>();
    SCOPED_TRACE(row_name + " " + std::to_string(units));
    if (row_name != name) {
      name = row_name;
      chain = logged_chain(name);
      EXPECT_EQ(chain.layers(), row["L"].get<int>());
      EXPECT_EQ(all_kept_time(chain), row["all_kept_time"].get<std::int64_t>());
      table.emplace(chain, 300, unit);
    }
    const std::optional<std::int64_t> expected = optional_integer(row, "persistent_time");
    EXPECT_EQ(table->time(1, chain.layers() + 1, units), expected);
    // In units rounded up the schedule fits; in bytes it then does so all the more.
    const ChainBudget budget{.device = unit * units};
    const MaybeSchedule schedule = rotor(chain, budget, units);
    ASSERT_EQ(schedule.has_value(), expected.has_value());
    if (schedule) {
      EXPECT_EQ(replay(chain, budget, *schedule).time, *expected);
    }
    ++rows;
  }
  EXPECT_EQ(rows, 55);
}

}  // namespace
}  // namespace stepsim
