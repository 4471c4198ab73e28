#include "tools/memory_changes.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static const MemoryChange* change_of(const MemoryChanges& changes, const std::string& flags) {
  for (const MemoryChange& change : changes.tried) {
    if (change.flags == flags) return &change;
  }
  return nullptr;
}

TEST(MemoryChanges, AreEachSimulated) {
  const JobInput input = main_job("2", {flag("--dp", "2"), flag("--set", "parallel.sequence_parallel=false"), flag("--micro-batch", "2")});
  const Job job = resolve_job(input);
  const MemoryChanges changes = memory_changes(input, job, run_step(job));
  EXPECT_EQ(changes.not_searched, "");
  const std::vector<std::pair<std::string, FlagValue>> wanted = {{"--zero 1", flag("--zero", "1")},
                                                                 {"--sequence-parallel", flag("--sequence-parallel", "true")},
                                                                 {"--loss fused", flag("--loss", "fused")}};
  for (const auto& [name, value] : wanted) {
    const MemoryChange* const change = change_of(changes, name);
    ASSERT_NE(change, nullptr) << name;
    JobInput with = main_job("2", {flag("--dp", "2"), flag("--micro-batch", "2"), value});
    if (name != "--sequence-parallel") with.flags.push_back(flag("--set", "parallel.sequence_parallel=false"));
    const StepRun run = run_step(resolve_job(with));
    EXPECT_EQ(change->figures.peak, run.run.worst().peak.bytes) << name;
    EXPECT_EQ(change->figures.step, run.run.result.end) << name;
  }
  const MemoryChange* const half = change_of(changes, "--micro-batch 1");
  ASSERT_NE(half, nullptr);
  EXPECT_LT(half->figures.peak, changes.own.peak);
  EXPECT_GT(half->figures.step, changes.own.step);  // the same batch in twice the micro-batches
  const auto best = cheapest_change(changes);
  ASSERT_TRUE(best.has_value());
  EXPECT_LT(changes.tried[*best].figures.peak, changes.own.peak);
}

TEST(MemoryChanges, LargeJobsAreNotSearched) {
  const JobInput input = pipeline_job({flag("--global-batch", "512")});
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  const MemoryChanges changes = memory_changes(input, job, run);
  EXPECT_NE(changes.not_searched.find("more than 300000"), std::string::npos) << changes.not_searched;
  EXPECT_TRUE(changes.tried.empty());
  EXPECT_FALSE(cheapest_change(changes).has_value());
}

TEST(MemoryChanges, TheCheapestCostsLeastTimeAByte) {
  MemoryChanges changes;
  const auto figures = [](std::int64_t milliseconds, std::int64_t gibibytes) {
    return StepFigures{.step = Duration(milliseconds * 1'000'000'000), .peak = Bytes(gibibytes << 30)};
  };
  changes.own = figures(100, 50);
  changes.tried = {
      {"slow", "", figures(120, 40)},                        // 2 ms a GiB
      {"cheap", "", figures(104, 46)},                       // 1 ms a GiB
      {"elsewhere", "with twice the GPUs", figures(50, 20)}  // not the same job
  };
  EXPECT_EQ(cheapest_change(changes), std::optional<std::size_t>(1));
  changes.tried.push_back({"free", "", figures(100, 49)});
  EXPECT_EQ(cheapest_change(changes), std::optional<std::size_t>(3));
  changes.tried = {{"too little", "", StepFigures{.step = Duration(1), .peak = Bytes((std::int64_t{50} << 30) - 1000)}}};
  EXPECT_FALSE(cheapest_change(changes).has_value());
}

}  // namespace stepsim
