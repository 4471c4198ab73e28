// Rows of published tables as jobs, and what running them gives. The rows are made up in the layouts of the tables, or cited.
#include <algorithm>

#include "tests/unit/tools/test_jobs.h"
#include "tools/published_format.h"
#include "tools/published_results.h"
#include "tools/published_step.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

std::string value_of(const PublishedStep& step, const std::string& path) {
  for (const FlagValue& flag : step.input.flags) {
    if (flag.path == path) return flag.value;
  }
  return "";
}

std::int64_t dimension_of(const PublishedStep& step, const std::string& name) {
  for (const auto& [field, value] : step.dimensions) {
    if (field == name) return value;
  }
  return 0;
}

constexpr const char* kVtrainHead =
    "Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,data "
    "parallelism,pipeline parallelism,iteration time (ms)\n";

// The first row of vTrain's multi-node table.
TEST(PublishedSteps, VTrainRowIsAFullyRecomputedGpt) {
  const CsvTable table = parse_csv(std::string(kVtrainHead) + "3.6,64,512,4,3072,32,30,2048,1,64,1,3638.3\n", "f");
  const PublishedStep step = vtrain_step(RowCells(table, 0));
  EXPECT_DOUBLE_EQ(step.measured_s, 3.6383);
  EXPECT_EQ(value_of(step, "framework.name"), "megatron-deepspeed@2021");
  EXPECT_EQ(value_of(step, "hardware.gpus"), "64");
  EXPECT_EQ(value_of(step, "parallel.dp"), "64");
  EXPECT_EQ(value_of(step, "model.layers"), "30");
  EXPECT_EQ(value_of(step, "placement.recompute"), "full");
  EXPECT_EQ(value_of(step, "training.precision"), "fp16");
  EXPECT_EQ(dimension_of(step, "hidden"), 3072);
  EXPECT_EQ(dimension_of(step, "head_dim"), 96);  // 3072 / 32
  EXPECT_EQ(dimension_of(step, "ffn_hidden"), 12288);
  EXPECT_FALSE(step.guesses.empty());
  const CsvTable odd = parse_csv(std::string(kVtrainHead) + "3.6,64,512,4,3072,31,30,2048,1,64,1,3638.3\n", "f");
  EXPECT_EQ(error_of([&] { vtrain_step(RowCells(odd, 0)); }), "f:2:19: found attention heads 31, wanted a divisor of the hidden size");
}

// Each simulation takes milliseconds: a table of a million is a mistake.
TEST(PublishedSteps, ATableOfTooManyStepsIsRefused) {
  std::string rows = kVtrainHead;
  for (int i = 0; i <= 20'000; ++i) rows += "3.6,64,512,4,3072,32,30,2048,1,64,1,3638.3\n";
  EXPECT_EQ(error_of([&] { compare_published("vtrain", parse_csv(rows, "f")); }), "f: found 20001 rows of steps, wanted at most 20000");
}

constexpr const char* kMptHead =
    "Model,SeqLen (T),# GPUs,GPU,MFU,HFU,MicroBatchSize,GlobalBatchSize,Throughput (T/s),Precision,MP Mode,Sharding Strategy,Activation "
    "Checkpointing,Activation CPUOffload\n";

TEST(PublishedSteps, MptRowSaysItsKernelsByItsModes) {
  const CsvTable table = parse_csv(std::string(kMptHead) +
                                       "7b,2048,8,a100_80gb,50,60,6,96,20000,amp_bf16,DEFAULT,FULL_SHARD,True,False\n"
                                       "7b,2048,8,a100_40gb,50,60,6,96,20000,bf16,PURE,SHARD_GRAD_OP,False,False\n"
                                       "7b,2048,8,v100_32gb,50,60,6,96,20000,bf16,PURE,FULL_SHARD,False,False\n",
                                   "f");
  const PublishedStep mixed = mpt_step(RowCells(table, 0)), pure = mpt_step(RowCells(table, 1));
  EXPECT_DOUBLE_EQ(mixed.measured_s, 96 * 2048 / 20000.0);
  EXPECT_EQ(value_of(mixed, "framework.name"), "llm-foundry@2023-10");
  EXPECT_EQ(value_of(mixed, "placement.recompute"), "full");
  EXPECT_EQ(value_of(mixed, "hardware.name"), "a100-sxm-80gb");
  EXPECT_EQ(mixed.labels.at("checkpointing"), "checkpointing");
  EXPECT_EQ(value_of(pure, "framework.name"), "llm-foundry@2023-05");
  EXPECT_EQ(value_of(pure, "parallel.reshard_after_forward"), "false");
  EXPECT_EQ(value_of(pure, "placement.recompute"), "");
  EXPECT_THROW(mpt_step(RowCells(table, 2)), UntranslatedRow);
}

constexpr const char* kResultsHead =
    "id,category,source_repo,source_date,framework,model,layers,hidden,heads,kv_heads,head_dim,ffn,vocab,seq_len,task,gpu,n_gpus,precision,"
    "compile,micro_batch,grad_accum,global_batch,tp,pp,vpp,cp,ep,dp,dp_mode,recompute,recompute_detail,act_offload,step_time_s,peak_mem_"
    "gib,"
    "mem_kind,status,quality,notes\n";

CsvTable results_table(const std::string& rows) { return parse_csv(kResultsHead + rows, "f"); }

std::string reason_of(const CsvTable& table, std::size_t row) {
  try {
    results_step(RowCells(table, row));
  } catch (const UntranslatedRow& untranslated) {
    return (untranslated.allowed ? "" : "gap: ") + untranslated.reason;
  }
  return "";
}

TEST(PublishedSteps, TorchtitanRowTakesThePresetOfItsTime) {
  const CsvTable table = results_table(
      "T1,single_node,pytorch/torchtitan,2024-12,torchtitan "
      "FSDP2,llama3-8b,32,,,,,,,8192,pretrain,H100-96GB-HBM2e-500W,8,bf16,yes,2,1,16,1,1,"
      ",1,1,8,FSDP2,selective,selective op,no,2.4,77,torchtitan log,ok,A,\n"
      "T2,multi_node,pytorch/torchtitan,2024-04,torchtitan "
      "FSDP2,llama2-13b,4,,,,,,,4096,pretrain,A100-80GB,64,bf16,unknown,2,1,128,1,1,,1,1,"
      "64,FSDP2,selective,selective layer,no,3.7,,,ok,A,\n"
      "T3,multi_node,pytorch/torchtitan,2024-12,torchtitan FSDP2,llama3.1-405b,126,,,,,,,8192,pretrain,H100-96GB-HBM2e-500W,512,"
      "fp8-tensorwise,yes,,,256,8,8,,1,1,8,FSDP2,full,,no,32,,,ok,B,Interleaved1F1B; AsyncTP on\n");
  const PublishedStep compiled = results_step(RowCells(table, 0));
  EXPECT_EQ(value_of(compiled, "framework.name"), "torchtitan-compiled@2024-12");
  EXPECT_EQ(value_of(compiled, "placement.name"), "torchtitan:op");
  EXPECT_EQ(value_of(compiled, "parallel.zero"), "3");
  EXPECT_TRUE(compiled.peak_is_reserved);
  EXPECT_DOUBLE_EQ(*compiled.peak_bytes, 77.0 * (1 << 30));
  EXPECT_EQ(compiled.labels.at("class"), "dense, h100-sxm-96gb-hbm2e, bf16");
  const PublishedStep layers = results_step(RowCells(table, 1));
  EXPECT_EQ(value_of(layers, "framework.name"), "torchtitan@2024-04");
  EXPECT_EQ(value_of(layers, "placement.layers[0].*"), "");  // every second of the row's 4 layers
  EXPECT_EQ(value_of(layers, "placement.layers[1].*"), "recompute");
  EXPECT_EQ(value_of(layers, "placement.layers[3].*"), "recompute");
  EXPECT_EQ(value_of(layers, "placement.layers[5].*"), "");
  const PublishedStep pipeline = results_step(RowCells(table, 2));
  EXPECT_EQ(value_of(pipeline, "training.micro_batch"), "2");  // 256 / 8 replicas in 16 micro-batches, as many as chunks
  EXPECT_EQ(value_of(pipeline, "parallel.virtual_stages"), "2");
  EXPECT_EQ(value_of(pipeline, "parallel.pp_layout"), "Et*7|(t*8|)*14t*7L");  // 7 + 14 x 8 + 7 = 126
  EXPECT_EQ(value_of(pipeline, "parallel.tensor_overlap"), "ring");
}

TEST(PublishedSteps, RowsThatAreNoJobsSayWhy) {
  const std::string rest = ",no,1,,,ok,A,\n";
  const CsvTable table = results_table(
      "N1,single_node,pytorch/"
      "torchtitan,2026,torchtitan,nemotron-3-nano-30b,,,,,,,,8192,pretrain,H100-96GB,8,bf16,no,1,1,8,1,1,,1,1,8,FSDP2,full," +
      rest +
      "N2,single_gpu,axolotl-ai-cloud/axolotl,2026,axolotl,qwen3-8b,,,,,,,,8192,sft,unknown (single GPU),1,bf16,,1,1,1,1,1,,1,1,1,,full," +
      rest +
      "N3,single_node,pytorch/torchtitan,2026,torchtitan,llama3-8b,,,,,,,,8192,pretrain,H100-96GB,8,bf16,no,,,,1,1,,1,1,8,FSDP2,full," +
      rest +
      "N4,single_node,pytorch/torchtitan,2026,torchtitan,llama3-8b,,,,,,,,8192,pretrain,H100-96GB,8,bf16,no,1,1,8,1,1,,1,1,8,FSDP2,mixed," +
      rest + "N5,single_node,somebody/else,2026,theirs,llama3-8b,,,,,,,,8192,pretrain,H100-80GB,8,bf16,no,1,1,8,1,1,,1,1,8,FSDP2,full," +
      rest);
  EXPECT_EQ(reason_of(table, 0), "a hybrid of attention and state-space or linear-attention layers");
  EXPECT_EQ(reason_of(table, 1), "GPU unknown (single GPU) is unknown");
  EXPECT_EQ(reason_of(table, 2), "the micro-batch is not stated");
  EXPECT_EQ(reason_of(table, 3), "gap: what is kept, run again and offloaded is a solver's choice that is not published");
  EXPECT_EQ(reason_of(table, 4), "kernels of theirs: no preset");
}

TEST(PublishedSteps, AFilledCellLeavesTheTableAlone) {
  const CsvTable table = parse_csv("id,gpu\nR1,\n", "f");
  FilledRow row(RowCells(table, 0));
  row.fill("gpu", "H100", "the GPU is an H100");
  row.fill("gpu", "A100", "not asked for");
  row.fill("layers", "4");
  EXPECT_EQ(row.cells().text("gpu"), "H100");
  EXPECT_EQ(row.cells().whole("layers", 1), 4);
  EXPECT_EQ(row.guesses(), std::vector<std::string>{"the GPU is an H100"});
  EXPECT_EQ(RowCells(table, 0).text("gpu"), "");
}

PublishedStep small_step(const std::string& layers) {
  PublishedStep step;
  step.input = main_job(layers);
  return step;
}

TEST(PublishedSteps, EachStepIsTheRunOfItsJob) {
  std::vector<PublishedStep> steps = {small_step("2"), small_step("3"), small_step("2")};
  steps[1].dimensions = {{"ffn_hidden", 8192}};
  std::size_t calls = 0, last = 0;
  const std::vector<SimulatedStep> simulated = simulate_published(steps, [&](std::size_t done, std::size_t all) {
    ++calls;
    last = done;
    EXPECT_EQ(all, 2u);  // the first and the third are one job
  });
  EXPECT_EQ(calls, 2u);
  EXPECT_EQ(last, 2u);
  ASSERT_EQ(simulated.size(), 3u);
  const StepRun run = run_step(resolve_job(main_job("2")));
  EXPECT_EQ(simulated[0].step_s, run.step_time_s());
  EXPECT_EQ(simulated[0].peak_bytes, static_cast<double>(run.reported().peak.bytes.value));
  EXPECT_EQ(simulated[2].step_s, simulated[0].step_s);
  EXPECT_GT(simulated[1].step_s, simulated[0].step_s);  // 3 layers of 57 % of the MLP above 2 whole ones, beside the same ends
  EXPECT_LE(simulated[0].lower_s, simulated[0].step_s);
  EXPECT_GE(simulated[0].upper_s, simulated[0].step_s);
  EXPECT_TRUE(simulated[0].fits);
  EXPECT_TRUE(simulated[0].mfu.has_value());
}

TEST(PublishedSteps, WhatIsReservedIsReplayedWhereItIsAskedFor) {
  std::vector<PublishedStep> steps = {small_step("2"), small_step("2")};
  EXPECT_EQ(simulate_published(steps)[0].reserved_bytes, 0);
  steps[1].peak_bytes = 1;
  steps[1].peak_is_reserved = true;
  const std::vector<SimulatedStep> simulated = simulate_published(steps);
  EXPECT_GE(simulated[1].reserved_bytes, simulated[1].peak_bytes);
  EXPECT_EQ(simulated[0].reserved_bytes, simulated[1].reserved_bytes);  // one job
}

TEST(PublishedSteps, PartsAreShorterThanTheStep) {
  std::vector<PublishedStep> steps = {small_step("1"), small_step("1"), small_step("1")};
  steps[1].part = MeasuredPart::kForwardBackward;
  steps[2].part = MeasuredPart::kLayer;
  const std::vector<SimulatedStep> simulated = simulate_published(steps);
  EXPECT_LT(simulated[1].step_s, simulated[0].step_s);  // without the optimizer
  EXPECT_LT(simulated[2].step_s, simulated[1].step_s);  // without embedding and head
  EXPECT_GT(simulated[2].forward_s, 0);
  EXPECT_GT(simulated[2].backward_s, simulated[2].forward_s);  // two products for each of forward's
  EXPECT_DOUBLE_EQ(simulated[2].step_s, simulated[2].forward_s + simulated[2].backward_s);
}

TEST(PublishedSteps, AJobThatIsNoneSaysWhy) {
  std::vector<PublishedStep> steps = {small_step("2")};
  steps[0].set("--tp", "parallel.tp", "3");
  EXPECT_TRUE(simulate_published(steps)[0].refused.starts_with("--tp: found 3")) << simulate_published(steps)[0].refused;
  steps[0] = small_step("2");
  steps[0].dimensions = {{"kv_heads", 5}};
  EXPECT_EQ(simulate_published(steps)[0].refused, "--model: found kv_heads 5, wanted a divisor of the 32 heads");
}

TEST(PublishedSteps, ResultsCompareTimePeakAndVerdict) {
  const std::string row =
      ",single_node,pytorch/torchtitan,2024-12,torchtitan FSDP2,llama3-8b,2,,,,,,,8192,pretrain,H100-96GB-HBM2e-500W,8,bf16,no,";
  const CsvTable table = results_table("R1" + row + "1,1,8,1,1,,1,1,8,FSDP2,none,,no,0.5,20,torchtitan log,ok,A,\n" +  //
                                       "R2" + row + "1,1,8,1,1,,1,1,8,FSDP2,none,,no,0.5,20,torchtitan log,ok,C,\n" +  // filtered
                                       "R3" + row + "512,1,4096,1,1,,1,1,8,FSDP2,none,,no,,,,oom,B,\n" +  // 4 Mi tokens a GPU fit no card
                                       "R4" + row + "1,1,8,1,1,,1,1,8,FSDP2,mixed,,no,0.5,,,ok,A,\n");
  const PublishedComparison comparison = compare_published("results", table);
  ASSERT_EQ(comparison.rows.size(), 1u);
  EXPECT_EQ(comparison.rows[0].id, "R1");
  EXPECT_TRUE(comparison.rows[0].banded());
  EXPECT_EQ(comparison.filtered, 1u);
  EXPECT_EQ(comparison.gaps, 1u);
  EXPECT_EQ(comparison.skipped.at("no step time is measured (peak and verdict are compared)"), 1u);
  ASSERT_EQ(comparison.other.at("peak_bytes").size(), 1u);
  const std::vector<Comparison>& fits = comparison.other.at("fits");
  ASSERT_EQ(fits.size(), 2u);
  EXPECT_EQ(fits[0].error(), 0);
  EXPECT_EQ(fits[1].measured, 0);
  EXPECT_EQ(fits[1].error(), 0);
  EXPECT_EQ(compare_published("results", table, {.quality = "C"}).rows.size(), 1u);
  EXPECT_EQ(error_of([&] { compare_published("results", table, {.quality = "A,E"}); }), "--quality: found \"A,E\", wanted some of A,B,C,D");
}

// Also where nothing reads the cell.
TEST(PublishedSteps, ResultsRefuseNumbersThatAreNone) {
  const std::string row =
      ",single_node,pytorch/torchtitan,2024-12,torchtitan FSDP2,llama3-8b,2,,,,,,,8192,pretrain,H100-96GB-HBM2e-500W,8,bf16,no,";
  const auto error = [&](const std::string& cells) {
    return error_of([&] { compare_published("results", results_table("R1" + row + cells)); });
  };
  EXPECT_THAT(error("1,1,8,1,1,,1,1,-8,FSDP2,none,,no,0.5,20,,ok,A,\n"), testing::HasSubstr("dp"));
  EXPECT_THAT(error("1,1,8,1,1,two,1,1,8,FSDP2,none,,no,0.5,20,,ok,A,\n"), testing::HasSubstr("vpp"));
  EXPECT_THAT(error("1,0,8,1,1,,1,1,8,FSDP2,none,,no,0.5,20,,ok,A,\n"), testing::HasSubstr("grad_accum"));
  EXPECT_THAT(error("1,1,8,1,1,,1,1,8,FSDP2,none,,no,1e300,20,,ok,A,\n"), testing::HasSubstr("wanted seconds, at most 104 days"));
}

TEST(PublishedSteps, PairsAreRatiosOfTheRowsBesideThem) {
  const std::string row =
      ",single_node,pytorch/torchtitan,2024-12,torchtitan FSDP2,llama3-8b,2,,,,,,,8192,pretrain,H100-96GB-HBM2e-500W,8,bf16,no,";
  written("results.csv", kResultsHead + ("R1" + row + "1,1,8,1,1,,1,1,8,FSDP2,none,,no,0.5,20,torchtitan log,ok,A,\n") +
                             ("R2" + row + "1,1,8,1,1,,1,1,8,FSDP2,full,,no,0.6,18,torchtitan log,ok,A,\n"));
  const CsvTable pairs = parse_csv("base_id,var_id,time_ratio,mem_delta_gib,quality\nR1,R2,1.2,-2,A\nR1,R9,1.2,,A\nR1,R2,1.2,,C\n",
                                   testing::TempDir() + "pairs.csv");
  const PublishedComparison comparison = compare_published("pairs", pairs);
  ASSERT_EQ(comparison.rows.size(), 1u);
  EXPECT_GT(comparison.rows[0].simulated, 1);  // full recompute takes longer
  EXPECT_EQ(comparison.rows[0].id, "2");       // its line
  EXPECT_EQ(comparison.other.at("sign")[0].error(), 0);
  EXPECT_LT(comparison.other.at("peak_difference_bytes")[0].simulated, 0);  // and keeps less
  EXPECT_EQ(comparison.filtered, 1u);
  EXPECT_EQ(comparison.skipped.at("results.csv has no such row"), 1u);
}

TEST(PublishedSteps, BandsAreCountedByRowsInside) {
  const auto row = [](double measured, double lower, double upper) {
    return Comparison{.id = "", .measured = measured, .simulated = 1, .lower = lower, .upper = upper};
  };
  const std::vector<Comparison> rows = {
      row(1, 0.9, 1.1), row(1.2, 0.9, 1.1), row(1.1, 0.8, 1.2), {.id = "", .measured = 1, .simulated = 1}};
  const std::optional<BandStatistics> bands = band_statistics(rows);
  ASSERT_TRUE(bands.has_value());
  EXPECT_DOUBLE_EQ(bands->inside, 2.0 / 3);    // the fourth has no band
  EXPECT_NEAR(bands->half_width, 0.1, 1e-12);  // of 0.1, 0.1 and 0.2 the middle one
  EXPECT_FALSE(band_statistics({}).has_value());
  const Comparison wrong{.id = "", .measured = 0, .simulated = 1, .verdict = true};
  EXPECT_EQ(wrong.error(), 1);
}

}  // namespace
}  // namespace stepsim
