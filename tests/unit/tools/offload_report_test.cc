#include "tools/offload_report.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/report_json.h"
#include "tools/run_summary.h"

namespace stepsim {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

FlagValue set(const std::string& text) { return parse_set(text); }

// Llama-3 8B on 8 GPUs with sequence parallelism: a layer's input is s h / t elements of 2 bytes.
constexpr std::int64_t kInput = 8192 * 4096 / 8 * 2;

struct Reported {
  Job job;
  StepRun run;
  OffloadReport report;
  explicit Reported(const JobInput& input) : job(resolve_job(input)), run(run_step(job)), report(*offload_report(job, run)) {}
};

JobInput inputs_of_layers(std::vector<FlagValue> more = {}) {
  more.push_back(flag("--offload-modules", "input"));
  return main_job("4", more);
}

TEST(OffloadReport, CountsBytesAndCopies) {
  const Reported four(inputs_of_layers());
  EXPECT_EQ(four.report.out.value, 4 * kInput);  // four layers' inputs
  EXPECT_EQ(four.report.in.value, 4 * kInput);
  EXPECT_EQ(four.report.copies, 8);
  ASSERT_EQ(four.report.stages.size(), 1u);
  EXPECT_EQ(four.report.stages[0].host_peak.value, 4 * kInput);
  EXPECT_EQ(four.report.stages[0].host_copied.value, 4 * kInput);
  EXPECT_EQ(four.report.slack.size(), 4u);
  const Job kept = resolve_job(main_job("4"));
  EXPECT_FALSE(offload_report(kept, run_step(kept)));
}

TEST(OffloadReport, RoundingIsToldFromWhatWasCopied) {
  // 5 x 1,048,576 elements of 2 bytes need 16 MiB of powers of two.
  const Reported rounded(
      main_job("4", {flag("--offload-modules", "input"), set("placement.host_power_of_two=true"), set("training.sequence=5120")}));
  const std::int64_t copied = std::int64_t{4} * 5120 * 4096 / 8 * 2;
  EXPECT_EQ(rounded.report.stages[0].host_copied.value, copied);  // 4 x 5 MiB
  EXPECT_EQ(rounded.report.stages[0].host_peak.value, 4 * (std::int64_t{8} << 20));
}

TEST(OffloadReport, LinksAreAsBusyAsTheResources) {
  const Reported job(inputs_of_layers());
  const auto json = nlohmann::json::parse(run_json(job.job, job.run, placement_alternatives(job.job, job.run)));
  std::size_t found = 0;
  for (const auto& link : json["offload"]["links"]) {
    for (const auto& resource : json["resources"]) {
      if (resource["name"] != link["name"]) continue;
      EXPECT_EQ(resource["busy_s"], link["busy_s"]) << link["name"];
      EXPECT_DOUBLE_EQ(resource["busy_fraction"].get<double>(), link["busy_fraction"].get<double>()) << link["name"];
      ++found;
    }
  }
  EXPECT_EQ(found, json["offload"]["links"].size());
  const auto named = [&](const std::string& name) {
    return std::find_if(job.report.links.begin(), job.report.links.end(), [&](const CopyUse& use) { return use.name == name; });
  };
  for (const char* const name : {"gpu0 link out", "gpu0 link in", "gpu0 copy engine out", "gpu0 copy engine in"}) {
    ASSERT_NE(named(name), job.report.links.end()) << name;
  }
  EXPECT_GT(named("gpu0 link out")->of_forward, 0);
  EXPECT_EQ(named("gpu0 link in")->of_forward, 0);  // nothing comes back before backward
  EXPECT_GT(named("gpu0 link in")->of_backward, 0);
}

TEST(OffloadReport, ASlowLinkMakesReloadsLate) {
  const Reported fast(inputs_of_layers());
  EXPECT_EQ(fast.report.late(), 0u);
  EXPECT_GE(fast.report.slack.front().slack, Duration{});
  // 8 MiB at 10 MB/s are 0.84 s, longer than all of backward: each copy back is late.
  const Reported slow(inputs_of_layers({set("hardware.host_to_device=10 MB/s")}));
  EXPECT_EQ(slow.report.late(), 4u);
  EXPECT_LT(slow.report.median().slack, Duration{});
  EXPECT_LE(slow.report.slack.front().slack, slow.report.median().slack);
  const Duration exposed = exposed_copies(slow.run.run.time, slow.run.step.phases).backward;
  Duration late{};
  for (const ReloadSlack& each : slow.report.slack) late -= each.slack;
  // Compute waits for each of them alone, and for nothing but copies meanwhile.
  EXPECT_GT(late, exposed * 99 / 100);
  EXPECT_LT(late, exposed * 101 / 100);
  ASSERT_TRUE(slow.report.hidden_in);
  const TimePartition& time = slow.run.run.time;
  const Duration hiding = time.busy[static_cast<std::size_t>(Phase::kBackward)] + time.busy[static_cast<std::size_t>(Phase::kRecompute)];
  EXPECT_DOUBLE_EQ(slow.report.hidden_in->value, 4.0 * kInput / seconds(hiding));
}

std::vector<std::string> warnings_of(const JobInput& input) {
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  return offload_warnings(job, run, offload_verdict(job, run));
}

TEST(OffloadWarnings, SayWhyNothingMoves) {
  const auto warnings = [](const std::string& limit) { return warnings_of(inputs_of_layers({set(limit)})); };
  EXPECT_THAT(warnings("placement.offload_min_elements=1000000000"),
              ElementsAre("offload moves nothing: every selected tensor is below offload_min_elements or offload_min_bytes"));
  EXPECT_THAT(warnings("placement.offload_budget=1 MiB"),
              ElementsAre("offload moves nothing: no selected tensor goes into offload_budget"));
  EXPECT_THAT(warnings("placement.keep_last_layers=4"), ElementsAre(HasSubstr("lies in layers or groups that stay")));
  EXPECT_THAT(warnings_of(main_job("4", {flag("--recompute", "full"), flag("--offload-modules", "norm 1 output")})),
              ElementsAre(HasSubstr("is dropped and run again")));
  EXPECT_THAT(warnings_of(main_job("4")), IsEmpty());
}

TEST(OffloadWarnings, SayThatFreesComeTooLate) {
  // The host is through forward before the first copy ends: 8 MiB at 1 GB/s are 8 ms, the launches of 4 layers below 1 ms.
  const std::vector<FlagValue> flags = {set("hardware.device_to_host=1 GB/s"), set("placement.release=event")};
  const std::vector<std::string> warnings = warnings_of(inputs_of_layers(flags));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("offload frees nothing: the peak is ")));
  EXPECT_THAT(warnings.front(), HasSubstr("record_stream"));
  EXPECT_THAT(warnings_of(inputs_of_layers({set("placement.release=layer-start")})), IsEmpty());
}

TEST(OffloadWarnings, SayThatTheHostIsFull) {
  // 32 MiB are on the host; a GPU has an eighth of its node's memory.
  EXPECT_THAT(warnings_of(inputs_of_layers({set("cluster.host_memory=400 MiB"), set("placement.release=layer-start")})),
              ElementsAre(HasSubstr("offload takes 64 % of the 0.05 GiB of host memory that gpu0 has")));  // 32 / 50
  EXPECT_THAT(warnings_of(inputs_of_layers({set("cluster.host_memory=440 MiB"), set("placement.release=layer-start")})),
              IsEmpty());  // 32 / 55 = 58 %
}

TEST(OffloadReport, AFullHostIsAVerdict) {
  // 255 MiB / 8 hold three inputs of 8 MiB, not four.
  const Reported job(inputs_of_layers({set("cluster.host_memory=255 MiB")}));
  const auto json = nlohmann::json::parse(run_json(job.job, job.run, placement_alternatives(job.job, job.run)));
  EXPECT_EQ(json["memory"]["fits"], false);
  EXPECT_GT(json["memory"]["margin_bytes"], 0);  // the card has room
  EXPECT_EQ(json["out_of_memory"]["space"], "host");
  EXPECT_EQ(json["out_of_memory"]["requested_bytes"], kInput);
  EXPECT_EQ(json["out_of_memory"]["free_bytes"], (std::int64_t{255} << 20) / 8 - 3 * kInput);
  EXPECT_EQ(json["out_of_memory"]["held_by"].size(), 3u);
  EXPECT_EQ(json["offload"]["verdict"]["offload"]["host_short_by_bytes"], 4 * kInput - (std::int64_t{255} << 20) / 8);
  EXPECT_THAT(run_summary(job.job, job.run, {}),
              AllOf(StartsWith("OUT OF MEMORY: forward L3 copy out input wants 0.01 GiB, 0.01 GiB are free on the host memory of gpu0"),
                    HasSubstr("  held by: offload_staging 0.02 GiB\n")));
  // Likewise where a pool keeps the buffers.
  const Reported pool(inputs_of_layers({set("cluster.host_memory=255 MiB"), set("placement.host_pool=true")}));
  ASSERT_TRUE(pool.run.run.result.out_of_memory);
  EXPECT_EQ(pool.run.run.result.out_of_memory->space, MemorySpace::kHost);
}

TEST(OffloadReport, JsonHasTheFieldsOfTheContract) {
  const Reported job(inputs_of_layers());
  const auto json = nlohmann::json::parse(run_json(job.job, job.run, placement_alternatives(job.job, job.run)))["offload"];
  for (const char* const name :
       {"bytes_out", "bytes_in", "copies", "exposed_s", "links", "host_peak_bytes", "host_copied_bytes", "host_capacity_bytes",
        "staging_at_peak_bytes", "staging_peak_bytes", "slack_s", "verdict", "per_device"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["verdict"]["offload"]["step_time_s"], job.run.step_time_s());
  EXPECT_EQ(json["verdict"]["not_rerun"], nlohmann::json::array({"input"}));
  EXPECT_TRUE(json["verdict"]["recompute"].is_null());
  EXPECT_EQ(json["slack_s"]["copies_back"], 4);
  const Job kept = resolve_job(main_job("4"));
  const StepRun run = run_step(kept);
  EXPECT_TRUE(nlohmann::json::parse(run_json(kept, run, placement_alternatives(kept, run)))["offload"].is_null());
}

TEST(OffloadReport, TheSummaryHasItInThreeLines) {
  for (const JobInput& input :
       {inputs_of_layers(), main_job("4", {flag("--placement", "torchtune")}), pipeline_job({flag("--placement", "te")}),
        pipeline_job({flag("--offload-modules", "*"), set("hardware.memory=1 GB"), set("cluster.host_memory=1 GiB")})}) {
    const Job job = resolve_job(input);
    const StepRun run = run_step(job);
    const std::string text = run_summary(job, run, placement_alternatives(job, run));
    EXPECT_THAT(text, HasSubstr("\noffload: "));
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 26);
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
      EXPECT_LE(end - begin, 110u) << text.substr(begin, end - begin);
    }
  }
  const Job kept = resolve_job(main_job("4"));
  const StepRun run = run_step(kept);
  EXPECT_THAT(run_summary(kept, run, placement_alternatives(kept, run)), Not(HasSubstr("\noffload: ")));
}

}  // namespace
}  // namespace stepsim
