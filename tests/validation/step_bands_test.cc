// How many measured steps the bands hold, and how wide they are: whole jobs as `stepsim run` takes them, nothing fitted on these rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/unit/tools/test_jobs.h"
#include "tests/validation/csv_rows.h"
#include "tests/validation/measured_rows.h"
#include "tools/step_time_band.h"

namespace stepsim {
namespace {

struct Covered {
  std::size_t rows = 0, inside = 0, above = 0;  // above: measured above the band
  std::vector<double> widths;                   // upper - lower, of the simulated step

  void add(const BandedStep& step, double measured_s, const std::string& name) {
    const StepTimeBand band = step_time_band(step);
    const double step_s = seconds(step.shares.step);
    const bool holds = band.lower_s <= measured_s && measured_s <= band.upper_s;
    ++rows;
    if (holds) ++inside;
    if (measured_s > band.upper_s) ++above;
    widths.push_back((band.upper_s - band.lower_s) / step_s);
    std::printf("| %s | %.2f s | %.2f s | %.2f to %.2f s | %s |\n", name.c_str(), measured_s, step_s, band.lower_s, band.upper_s,
                holds ? "inside" : "outside");
    EXPECT_LE(band.lower_s, step_s);
    EXPECT_GE(band.upper_s, step_s);
  }
  double coverage() const { return static_cast<double>(inside) / static_cast<double>(rows); }
  void print(const char* of) {
    std::sort(widths.begin(), widths.end());
    std::printf("| %s | %zu of %zu rows inside, %zu above | median width %.1f %% of the step | | |\n\n", of, inside, rows, above,
                100 * widths[widths.size() / 2]);
  }
};

void print_head(const char* table) { std::printf("## table: %s\n| step | measured | stepsim | band | |\n|---|---|---|---|---|\n", table); }

BandedStep banded(const JobInput& input) {
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  return banded_step(job, run.run, run.step.graph).value();
}

// 2205.05198: sequence 2048, TP 8, unfused attention.
JobInput megatron_job(const NamedCells& row) {
  std::vector<FlagValue> flags = {flag("--model", row.at("model")),
                                  flag("--hardware", "a100-sxm-80gb"),
                                  flag("--framework", "megatron-lm@2022-05"),
                                  flag("--attention", "unfused"),
                                  flag("--sequence", "2048"),
                                  flag("--tp", "8"),
                                  flag("--sequence-parallel", row.at("sequence_parallel") == "1" ? "true" : "false"),
                                  flag("--pp", row.at("pipeline")),
                                  flag("--dp", row.at("data")),
                                  flag("--micro-batch", row.at("micro_batch")),
                                  flag("--global-batch", row.at("global_batch")),
                                  flag("--recompute", row.at("recompute"))};
  if (row.at("virtual_stages") != "1") flags.push_back(flag("--virtual-stages", row.at("virtual_stages")));
  return {"", flags};
}

TEST(StepBands, HoldTheStepsOf220505198) {
  print_head("step_bands");
  Covered covered, differences;
  std::optional<BandedStep> before;
  double measured_before = 0;
  std::string model;
  std::string pairs;
  for (const NamedCells& row : csv_rows("published_steps.csv")) {
    if (row.at("data") != "1") continue;  // of the 2240 GPUs the representative is a job of its own: test_published_steps
    const BandedStep step = banded(megatron_job(row));
    const double measured_s = std::stod(row.at("measured_s"));
    covered.add(step, measured_s, row.at("model") + ", " + row.at("recompute"));
    if (row.at("model") == model) {  // full recompute, then the paper's own way
      const DifferenceBand band = difference_band(*before, step);
      const double measured = measured_s / measured_before - 1;
      const bool holds = band.lower() <= measured && measured <= band.upper();
      ++differences.rows;
      if (holds) ++differences.inside;
      differences.widths.push_back(band.upper() - band.lower());
      EXPECT_TRUE(band.sign_certain()) << model;
      EXPECT_LT(band.upper(), 0) << model;  // as measured: faster
      pairs += "| " + model + ", selective from full | ";
      char text[160];
      std::snprintf(text, sizeof text, "%+.1f %% | %+.1f %% | %+.1f to %+.1f %% | %s |\n", 100 * measured, 100 * band.difference,
                    100 * band.lower(), 100 * band.upper(), holds ? "inside" : "outside");
      pairs += text;
    }
    model = row.at("model");
    before = step;
    measured_before = measured_s;
  }
  covered.print("2205.05198 Table 5");
  std::printf("%s", pairs.c_str());
  differences.print("differences of pairs");
  EXPECT_GE(covered.coverage(), 0.8);
}

// Megatron-DeepSpeed on A100, fp16, full recompute, 1F1B (accuracy.md A.2).
JobInput multi_node_job(const MeasuredTable& table, std::size_t row) {
  const auto column = [&](const char* name) { return table.at(row, name); };
  const std::string hidden = column("hidden size"), sequence = column("sequence length"), heads = column("attention heads");
  const std::int64_t head_dim = table.integer(row, "hidden size") / table.integer(row, "attention heads");
  const std::string model =
      written("vtrain" + std::to_string(row) + ".textproto",
              "name: \"vtrain\" layers: " + column("# layers") + " hidden: " + hidden + " heads: " + heads + " kv_heads: " + heads +
                  " head_dim: " + std::to_string(head_dim) + " ffn_hidden: " + std::to_string(4 * table.integer(row, "hidden size")) +
                  " vocab: 51200 max_positions: " + sequence +
                  " normalization: LAYER_NORM activation: GELU position: LEARNED linear_bias: true tied_head: true dropout: 0.1");
  return {
      "",
      {flag("--model", model), flag("--hardware", "a100-sxm-80gb"), flag("--framework", "megatron-lm@2022-05"), flag("--precision", "fp16"),
       flag("--attention", "unfused"), flag("--recompute", "full"), flag("--sequence", sequence),
       flag("--tp", column("tensor parallelism")), flag("--dp", column("data parallelism")), flag("--pp", column("pipeline parallelism")),
       flag("--micro-batch", column("micro batch")), flag("--global-batch", column("global batch"))}};
}

TEST(StepBands, HoldTheMultiNodeStepsOfVtrain) {
  const auto table = measured_table("published/vtrain_megatron_multi_node_a100.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  print_head("step_bands_multi_node");
  Covered covered;
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    const std::string name = table->at(row, "Parameters (billion)") + "B, tp " + table->at(row, "tensor parallelism") + ", dp " +
                             table->at(row, "data parallelism") + ", pp " + table->at(row, "pipeline parallelism") + ", mb " +
                             table->at(row, "micro batch");
    covered.add(banded(multi_node_job(*table, row)), table->number(row, "iteration time (ms)") / 1e3, name);
  }
  covered.print("vTrain, Megatron-DeepSpeed");
  EXPECT_EQ(covered.rows, 59u);
  // 8 rows of 59 are slow for no known reason (accuracy.md A.3), 4 are tensor-parallel over two nodes: too much for 0.8 to be safe.
  EXPECT_GE(covered.coverage(), 0.75);
}

}  // namespace
}  // namespace stepsim
