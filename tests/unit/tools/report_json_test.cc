#include "tools/report_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

using Json = nlohmann::json;

static Json report(const Job& job) {
  const StepRun run = run_step(job);
  return Json::parse(run_json(job, run, placement_alternatives(job, run)));
}

TEST(ReportJson, HasTheFieldsOfTheContract) {
  const Json json = report(resolve_job(main_job()));
  for (const char* const name :
       {"schema_version", "version",      "job",      "step_time_s",        "step_time_band", "tokens_per_s", "tokens_per_s_per_gpu",
        "flops",          "memory",       "time",     "exposed_collective", "exposed_copy",   "resources",    "critical_path",
        "out_of_memory",  "alternatives", "evidence", "warnings",           "not_modelled",   "simulation"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  for (const char* const name : {"convention", "model_flops", "hardware_flops", "model_tflops_per_s_per_gpu", "peak_tflops_per_s",
                                 "peak_dtype", "mfu", "hfu", "by_convention"}) {
    EXPECT_TRUE(json["flops"].contains(name)) << name;
  }
  for (const char* const name :
       {"fits", "device", "stage", "margin_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "capacity_bytes", "host_peak_bytes",
        "first_iteration_peak_bytes", "saved_activations_peak_bytes", "at_peak", "per_device"}) {
    EXPECT_TRUE(json["memory"].contains(name)) << name;
  }
  for (const std::string_view role : kRoleNames) EXPECT_TRUE(json["memory"]["at_peak"].contains(std::string(role))) << role;
  for (const char* const name : {"ops", "events", "wall_s", "fingerprint"}) EXPECT_TRUE(json["simulation"].contains(name)) << name;
  for (const char* const name : {"tp", "dp", "pp", "cp", "ep"}) EXPECT_TRUE(json["exposed_collective"].contains(name)) << name;
  for (const char* const name : {"forward", "backward", "tail"}) EXPECT_TRUE(json["exposed_copy"].contains(name)) << name;
  EXPECT_EQ(json["simulation"]["fingerprint"].get<std::string>().size(), 16u);
  EXPECT_EQ(json["flops"]["by_convention"].size(), all_conventions().size());
  EXPECT_LT(json["step_time_band"]["lower"], json["step_time_s"]);
  EXPECT_GT(json["step_time_band"]["upper"], json["step_time_s"]);
  for (const Json& source : json["step_time_band"]["sources"]) {
    EXPECT_LE(source["lower"], 0) << source;
    EXPECT_GE(source["upper"], 0) << source;
    EXPECT_GT(source["reason"].get<std::string>().size(), 10u) << source;
  }
  EXPECT_TRUE(json["evidence"].is_array());
  EXPECT_TRUE(json["out_of_memory"].is_null());
  EXPECT_LE(json["critical_path"].size(), 50u);
}

TEST(ReportJson, AlternativesAreAllThatWereTried) {
  const Job job = resolve_job(main_job("4", {flag("--recompute", "full")}));
  const Json rows = report(job)["alternatives"];
  ASSERT_EQ(rows.size(), usual_placements(job).size());
  EXPECT_EQ(rows[0]["placement"], "none");
  EXPECT_EQ(rows[0]["flags"], "--recompute none");
  EXPECT_EQ(rows[0]["fits"], true);
  const Json none = report(resolve_job(main_job("4", {flag("--recompute", "none")})));
  EXPECT_EQ(rows[0]["step_time_s"], none["step_time_s"]);
  EXPECT_EQ(rows[0]["peak_allocated_bytes"], none["memory"]["peak_allocated_bytes"]);
}

TEST(ReportJson, TheCheapestAreAmongTheAlternatives) {
  const Job job = resolve_job(main_job("4", {flag("--recompute", "full")}));
  const Json json = report(job);
  EXPECT_TRUE(json["cheapest"]["memory"].is_null());  // full recompute leaves nothing to free
  const Json& time = json["cheapest"]["time"];
  ASSERT_TRUE(time.is_object());
  const auto same = [&](const Json& row) { return row["flags"] == time["flags"]; };
  const auto row = std::find_if(json["alternatives"].begin(), json["alternatives"].end(), same);
  ASSERT_NE(row, json["alternatives"].end());
  const double saved = json["step_time_s"].get<double>() - (*row)["step_time_s"].get<double>();
  EXPECT_NEAR(time["saved_time_s"].get<double>(), saved, 1e-12);  // a picosecond
  EXPECT_EQ(time["added_bytes"],
            (*row)["peak_allocated_bytes"].get<std::int64_t>() - json["memory"]["peak_allocated_bytes"].get<std::int64_t>());
}

TEST(ReportJson, SumsAddUp) {
  const Json json = report(resolve_job(main_job("4", {flag("--global-batch", "2")})));
  double time = 0, exposed = 0;
  for (const auto& part : json["time"]) time += part.get<double>();
  EXPECT_NEAR(time, json["step_time_s"].get<double>(), 1e-15);
  for (const auto& part : json["exposed_collective"]) exposed += part.get<double>();
  EXPECT_NEAR(exposed, json["time"]["exposed_collective_s"].get<double>(), 1e-15);
  std::int64_t bytes = 0;
  for (const auto& part : json["memory"]["at_peak"]) bytes += part.get<std::int64_t>();
  EXPECT_EQ(bytes, json["memory"]["peak_allocated_bytes"].get<std::int64_t>());
  EXPECT_EQ(json["memory"]["margin_bytes"].get<std::int64_t>(), json["memory"]["capacity_bytes"].get<std::int64_t>() - bytes);
  // Two sequences of 8,192 tokens a step on 8 GPUs.
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * json["step_time_s"].get<double>(), 2 * 8192, 1e-6);
  EXPECT_NEAR(json["tokens_per_s_per_gpu"].get<double>() * 8, json["tokens_per_s"].get<double>(), 1e-6);
}

TEST(ReportJson, HasARowAStage) {
  const Json json = report(resolve_job(pipeline_job({flag("--virtual-stages", "2"), flag("--dp", "2"), flag("--global-batch", "16")})));
  const Json& memory = json["memory"];
  ASSERT_EQ(memory["per_device"].size(), 4u);
  std::int64_t largest = 0;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const Json& row = memory["per_device"][stage];
    EXPECT_EQ(row["stage"], stage);
    EXPECT_EQ(row["rank"], 16 * stage);  // tp 8 x dp 2
    EXPECT_EQ(row["layers"], std::to_string(stage) + ", " + std::to_string(stage + 4));
    EXPECT_EQ(row["embedding"], stage == 0);
    EXPECT_EQ(row["head"], stage == 3);
    EXPECT_GT(row["parameters"], 0);
    EXPECT_GT(row["saved_activations_peak_bytes"], 0);
    EXPECT_GT(row["first_iteration_peak_bytes"], 0);
    std::int64_t bytes = 0;
    for (const auto& part : row["at_peak"]) bytes += part.get<std::int64_t>();
    EXPECT_EQ(row["peak_allocated_bytes"], bytes);
    largest = std::max(largest, bytes);
  }
  EXPECT_EQ(memory["peak_allocated_bytes"], largest);
  const Json& reported = memory["per_device"][memory["stage"].get<std::size_t>()];
  for (const char* const name :
       {"device", "peak_allocated_bytes", "first_iteration_peak_bytes", "saved_activations_peak_bytes", "at_peak"}) {
    EXPECT_EQ(memory[name], reported[name]) << name;
  }
  EXPECT_EQ(json["pipeline"]["stages"], 4);
  EXPECT_EQ(json["pipeline"]["micro_batches"], 8);
  EXPECT_DOUBLE_EQ(json["pipeline"]["ideal_bubble_ratio"], 3.0 / 16);
  EXPECT_GE(json["time_of"]["stage"], 0);
  double time = 0;
  for (const auto& part : json["time"]) time += part.get<double>();
  EXPECT_NEAR(time, json["step_time_s"].get<double>(), 1e-12);
  EXPECT_EQ(json["job"]["hardware"]["gpus"]["value"], 64);
}

TEST(ReportJson, RankChoosesTheTopLevelMemory) {
  const Json last = report(resolve_job(pipeline_job({flag("--rank", "last")})));
  EXPECT_EQ(last["memory"]["stage"], 3);
  EXPECT_EQ(last["memory"]["device"], "gpu3");
  EXPECT_EQ(last["memory"]["peak_allocated_bytes"], last["memory"]["per_device"][3]["peak_allocated_bytes"]);
  EXPECT_EQ(last["memory"]["per_device"], report(resolve_job(pipeline_job()))["memory"]["per_device"]);
  EXPECT_TRUE(report(resolve_job(main_job()))["pipeline"].is_null());
}

TEST(ReportJson, TheJobSaysWhereEachValueCameFrom) {
  const std::string file = written("source.textproto", "training {\n  sequence: 8192\n}");
  JobInput input{file, {flag("--model", "llama3-8b"), flag("--hardware", "h100-sxm-80gb"), flag("--layers", "2")}};
  const Json json = report(resolve_job(input))["job"];
  EXPECT_EQ(json["training"]["sequence"]["value"], 8192);
  EXPECT_EQ(json["training"]["sequence"]["source"], file + ":2:3");
  EXPECT_EQ(json["model"]["name"]["source"], "--model");
  EXPECT_EQ(json["training"]["micro_batch"]["source"], "default: one sequence at a time");
  EXPECT_EQ(json["parallel"]["sequence_parallel"]["value"], false);
}

TEST(ReportJson, OutOfMemoryNamesOpRequestAndHolders) {
  // 4 layers fit in 5 GB before the step begins, not at its peak.
  const Json fits = report(resolve_job(main_job("4")));
  const std::int64_t peak = fits["memory"]["peak_allocated_bytes"];
  const Job job = resolve_job(main_job("4", {flag("--set", "hardware.memory=" + std::to_string(peak - 1) + " B")}));
  const Json json = report(job);
  EXPECT_FALSE(json["memory"]["fits"].get<bool>());
  EXPECT_EQ(json["memory"]["margin_bytes"], -1);
  const Json& out = json["out_of_memory"];
  ASSERT_TRUE(out.is_object());
  EXPECT_TRUE(out["op"].is_string());
  EXPECT_GT(out["requested_bytes"].get<std::int64_t>(), out["free_bytes"].get<std::int64_t>());
  EXPECT_FALSE(out["held_by"].empty());
  std::int64_t held = out["held_by_others_bytes"];
  for (const Json& holder : out["held_by"]) held += holder["bytes"].get<std::int64_t>();
  EXPECT_EQ(held + out["free_bytes"].get<std::int64_t>(), peak - 1);
  EXPECT_EQ(json["step_time_s"], fits["step_time_s"]);
}

}  // namespace stepsim
