#include "tools/offload_verdict.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/tools/test_jobs.h"
#include "tools/placement_alternatives.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

StepFigures figures(std::int64_t milliseconds, std::int64_t short_by_gib = 0) {
  return {.step = Duration(milliseconds * 1'000'000'000),
          .peak = Bytes(std::int64_t{10} << 30),
          .short_by = Bytes(short_by_gib << 30),
          .fits = short_by_gib == 0};
}

TEST(OffloadVerdict, TakesTheFastestThatFits) {
  EXPECT_EQ(best_of(figures(359), figures(446), figures(452)), OffloadChoice::kKeep);
  EXPECT_EQ(best_of(figures(359, 3), figures(446), figures(452)), OffloadChoice::kOffload);
  EXPECT_EQ(best_of(figures(359, 3), figures(446), figures(440)), OffloadChoice::kRecompute);
  EXPECT_EQ(best_of(figures(359, 3), figures(446), std::nullopt), OffloadChoice::kOffload);
  EXPECT_EQ(best_of(figures(359, 3), figures(446, 1), figures(440, 2)), OffloadChoice::kOffload);  // none fits: it lacks least
  EXPECT_EQ(best_of(figures(2000), figures(1999), std::nullopt), OffloadChoice::kKeep);            // 0.05 % are no reason to move
  EXPECT_EQ(best_of(figures(2000, 1), figures(1000), figures(1000)), OffloadChoice::kOffload);
}

TEST(OffloadVerdict, IsALine) {
  OffloadVerdict verdict{.own = figures(400), .kept = figures(300, 3), .recomputed = figures(404)};
  verdict.best = OffloadChoice::kOffload;
  EXPECT_EQ(verdict_text(verdict), "offload 400.00 ms; recompute 404.00 ms (+1.0 %); keep 300.00 ms (-25.0 %), 3.00 GiB short -> offload");
  verdict.recomputed.reset();
  verdict.not_rerun = {"input"};
  EXPECT_EQ(verdict_text(verdict),
            "offload 400.00 ms; keep 300.00 ms (-25.0 %), 3.00 GiB short -> offload; input cannot be run again without the layer before");
  verdict.own = figures(400, 1);
  EXPECT_THAT(verdict_text(verdict), HasSubstr("-> none fits, offload lacks least"));
  EXPECT_EQ(verdict_text({.not_compared = "nothing moves", .own = {}, .kept = {}, .recomputed = {}, .not_rerun = {}}),
            "not compared: nothing moves");
}

struct Compared {
  Job job;
  StepRun run;
  OffloadVerdict verdict;
  explicit Compared(const JobInput& input) : job(resolve_job(input)), run(run_step(job)), verdict(*offload_verdict(job, run)) {}
};

void expect_same(const StepFigures& a, const StepFigures& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_EQ(a.host_peak, b.host_peak);
}

TEST(OffloadVerdict, KeepsAndRerunsTheSameTensors) {
  const Compared moved(main_job("4", {flag("--offload-modules", "gate and up output,norm 1 output")}));
  EXPECT_THAT(moved.verdict.not_rerun, IsEmpty());
  expect_same(moved.verdict.kept, figures_of(run_step(resolve_job(main_job("4"))).run));
  // As a user would say it, by tensor.
  std::vector<FlagValue> rows;
  for (const char* const layer : {"0", "1", "2", "3"}) {
    rows.push_back(parse_set(std::string("placement.layers[") + layer + "].gate and up output=recompute"));
    rows.push_back(parse_set(std::string("placement.layers[") + layer + "].norm 1 output=recompute"));
  }
  ASSERT_TRUE(moved.verdict.recomputed);
  expect_same(*moved.verdict.recomputed, figures_of(run_step(resolve_job(main_job("4", rows))).run));
  EXPECT_GT(moved.verdict.own.host_peak, Bytes(0));
  EXPECT_EQ(moved.verdict.kept.host_peak, Bytes(0));
}

TEST(OffloadVerdict, OnlyTheLayersThatMoveAreCompared) {
  const Compared moved(main_job("4", {flag("--offload-modules", "norm 1 output"), flag("--offload-layers", "2")}));
  const OffloadCounterparts counterparts = offload_counterparts(moved.job, moved.run.step.stages);
  EXPECT_EQ(counterparts.moved, 2u);
  ASSERT_TRUE(counterparts.recomputed);
  ASSERT_EQ(counterparts.recomputed->rows.size(), 1u);
  EXPECT_EQ(counterparts.recomputed->rows[0].module_or_slot, "norm 1 output");
  EXPECT_EQ(counterparts.recomputed->rows[0].first_layer, 0);
  EXPECT_EQ(counterparts.recomputed->rows[0].last_layer, 1);
}

// Rows of a preset say that all is run again but what moves: kept, it stays; run again, all is.
TEST(OffloadVerdict, OfAPresetThatRecomputesTheRest) {
  const Compared moved(
      main_job("4", {flag("--placement", "maxtext:qkv_proj_offloaded"), parse_set("placement.offload_schedule=issue-order")}));
  ASSERT_TRUE(moved.verdict.recomputed);
  PlacementPolicy all = moved.job.placement;
  all.offload = {};
  std::erase_if(all.rows, [](const PlacementRow& row) { return row.action == PlacementAction::kOffload; });
  ASSERT_EQ(all.rows.size(), 1u);  // "*": recompute
  EXPECT_EQ(moved.verdict.recomputed->peak, figures_with(moved.job, moved.run, all).peak);
  EXPECT_GT(moved.verdict.recomputed->step, moved.verdict.kept.step);
  EXPECT_GT(moved.verdict.kept.peak, moved.verdict.recomputed->peak);
}

// What a limit of the job keeps is kept in its counterparts too, not run again with the rest.
TEST(OffloadVerdict, KeepsWhatALimitKeeps) {
  const Compared moved(main_job("4", {flag("--placement", "maxtext:qkv_proj_offloaded"), flag("--offload-groups-fraction", "0.25"),
                                      flag("--offload-schedule", "issue-order")}));
  EXPECT_EQ(offload_counterparts(moved.job, moved.run.step.stages).moved, 3u);  // query, key and value of one layer
  const Compared all(main_job("4", {flag("--placement", "maxtext:qkv_proj_offloaded"), flag("--offload-schedule", "issue-order")}));
  expect_same(moved.verdict.kept, all.verdict.kept);
}

TEST(OffloadVerdict, InputsCannotBeRunAgain) {
  const Compared moved(main_job("4", {flag("--placement", "deepspeed")}));
  EXPECT_THAT(moved.verdict.not_rerun, ElementsAre("input"));
  EXPECT_FALSE(moved.verdict.recomputed);
  expect_same(moved.verdict.kept, figures_of(run_step(resolve_job(main_job("4", {flag("--recompute", "full")}))).run));
}

TEST(OffloadVerdict, StagesAndMicroBatchesMoveTheirOwn) {
  const Compared moved(pipeline_job({flag("--placement", "te")}));
  // Two layers a stage, of which te keeps the last: layers 0, 2, 4, 6 of eight.
  const OffloadCounterparts counterparts = offload_counterparts(moved.job, moved.run.step.stages);
  ASSERT_TRUE(counterparts.recomputed);
  for (const PlacementRow& row : counterparts.recomputed->rows) {
    EXPECT_EQ(row.first_layer, row.last_layer);
    EXPECT_EQ(row.first_layer % 2, 0);
    EXPECT_EQ(row.last_micro_batch, -1);
  }
  expect_same(moved.verdict.kept, figures_of(run_step(resolve_job(pipeline_job())).run));
  const std::string file =
      written("second.textproto", "rows { tensor: \"norm 1 output\" action: \"offload\" first_micro_batch: 1 last_micro_batch: 1 }\n");
  const Compared second(pipeline_job({flag("--placement", file)}));
  const OffloadCounterparts of_second = offload_counterparts(second.job, second.run.step.stages);
  EXPECT_EQ(of_second.moved, 8u);
  ASSERT_TRUE(of_second.recomputed);
  ASSERT_EQ(of_second.recomputed->rows.size(), 2u);  // the job's own row as one that keeps, then all layers of micro-batch 1
  const PlacementRow& row = of_second.recomputed->rows[1];
  EXPECT_EQ(row.action, PlacementAction::kRecompute);
  EXPECT_EQ(row.first_micro_batch, 1);
  EXPECT_EQ(row.last_micro_batch, 1);
  EXPECT_EQ(row.last_layer, 7);
}

TEST(OffloadVerdict, LargeStepsAreNotCompared) {
  const Job job = resolve_job(main_job("32", {flag("--offload-modules", "*"), flag("--global-batch", "640")}));
  const StepRun run = run_step(job);
  ASSERT_GT(3 * run.step.graph.ops().size(), static_cast<std::size_t>(kMostVerdictOps));
  EXPECT_THAT(offload_verdict(job, run)->not_compared, HasSubstr("ops, more than 3000000"));
  EXPECT_FALSE(offload_verdict(resolve_job(main_job("4")), run));
}

}  // namespace
}  // namespace stepsim
