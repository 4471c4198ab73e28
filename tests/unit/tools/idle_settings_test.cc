#include "tools/idle_settings.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/report_json.h"
#include "tools/run_summary.h"

namespace stepsim {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

static FlagValue set(const std::string& text) { return flag("--set", text); }

// The main job without what it sets itself, tensor parallelism.
static JobInput job_with(std::vector<FlagValue> flags) {
  JobInput input{"",
                 {flag("--model", "llama3-8b"), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "2048"), flag("--layers", "4")}};
  input.flags.insert(input.flags.end(), flags.begin(), flags.end());
  return input;
}

// The sentence of the one setting that is added to the others, which say nothing; and it changes neither time nor memory.
static std::string idle(std::vector<FlagValue> others, const FlagValue& setting) {
  const Job before = resolve_job(job_with(others));
  EXPECT_THAT(before.warnings, IsEmpty()) << setting.path;
  others.push_back(setting);
  const Job after = resolve_job(job_with(others));
  EXPECT_EQ(fingerprint(run_step(before).run.result), fingerprint(run_step(after).run.result)) << setting.path << setting.value;
  EXPECT_EQ(after.warnings.size(), 1u) << setting.path;
  return after.warnings.empty() ? "" : after.warnings.front();
}

TEST(IdleSettings, OfOneStageAndOneRank) {
  EXPECT_EQ(idle({}, set("parallel.p2p=blocking")), "parallel.p2p blocking has no effect: --pp is 1: nothing is sent from stage to stage");
  EXPECT_THAT(idle({}, set("parallel.deallocate_outputs=false")), HasSubstr("--pp is 1"));
  EXPECT_THAT(idle({}, flag("--schedule", "gpipe")), HasSubstr("--schedule gpipe has no effect: --pp is 1"));
  EXPECT_THAT(idle({}, flag("--rank", "last")), HasSubstr("--rank last has no effect"));
  EXPECT_THAT(idle({}, flag("--pp-layout", "EttttL")), HasSubstr("--pp-layout EttttL has no effect"));
  EXPECT_EQ(idle({}, flag("--zero", "3")), "--zero 3 has no effect: --dp is 1: there are no ranks to share with");
  EXPECT_EQ(idle({}, flag("--sequence-parallel", "true")),
            "--sequence-parallel has no effect: --tp is 1: there are no ranks to share with");
  for (const char* const each : {"shard=1", "overlap_grad_reduce=true", "overlap_param_gather=true", "bucket_size=25 MB",
                                 "reduce_dtype=fp32", "reduce_every_micro_batch=false", "reshard_after_forward=false",
                                 "prefetch_forward=true", "prefetch_backward=false", "gather_limit=2"}) {
    EXPECT_THAT(idle({}, set("parallel." + std::string(each))), HasSubstr("has no effect: --dp is 1")) << each;
  }
  // sgd has no state, but cuBLAS's second handle makes its workspace in the first backward (megatron_memory.md 3.1).
  EXPECT_THAT(resolve_job(job_with({flag("--optimizer", "sgd"), flag("--iteration", "first")})).warnings, IsEmpty());
}

// Kernels that compute all pairs of the sequence take no documents; one micro-batch has nothing to run beside.
TEST(IdleSettings, OfOneMicroBatchAndOfUnfusedKernels) {
  const auto step_time = [](std::vector<FlagValue> flags) { return run_step(resolve_job(job_with(std::move(flags)))).run.result.end; };
  const std::vector<FlagValue> packed = {flag("--attention", "unfused"), flag("--packed", "1024,1024")};
  EXPECT_EQ(step_time(packed), step_time({flag("--attention", "unfused")}));
  EXPECT_THAT(resolve_job(job_with(packed)).warnings,
              ElementsAre("--packed makes attention no faster: --attention unfused computes and masks all pairs of the sequence"));
  const auto warnings = [](const char* batch) {
    return resolve_job(
               {"",
                {flag("--model", "mixtral-8x7b"), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "2048"), flag("--layers", "2"),
                 flag("--gpus", "8"), flag("--ep", "8"), flag("--global-batch", batch), flag("--overlap-expert-exchange", "true")}})
        .warnings;
  };
  EXPECT_THAT(warnings("8"),
              ElementsAre("--overlap-expert-exchange has no effect: there is one micro-batch, which has no other to run beside"));
  EXPECT_THAT(warnings("16"), IsEmpty());
}

// Fields of the framework are settings like others.
TEST(IdleSettings, OfTheFramework) {
  EXPECT_THAT(idle({}, set("framework.pipeline_buffers=8")), HasSubstr("framework.pipeline_buffers 8 has no effect: --pp is 1"));
  EXPECT_THAT(idle({}, set("framework.tensor_overlap=ring")), HasSubstr("has no effect: --tp is 1"));
  EXPECT_THAT(idle({}, set("framework.context_exchange=allgather")), HasSubstr("has no effect: --cp is 1"));
  EXPECT_THAT(idle({}, set("framework.overlaps_expert_exchange=true")), HasSubstr("has no effect: llama3-8b has no experts"));
  EXPECT_THAT(idle({}, set("framework.delays_weight_gradients=true")), HasSubstr("has no effect: llama3-8b has no experts"));
  EXPECT_THAT(resolve_job(job_with({set("framework.tensor_overlap=none")})).warnings, IsEmpty());
}

// Zero-bubble schedules put off all weight gradients.
TEST(IdleSettings, DeferredHeadGradients) {
  const FlagValue deferred = set("training.deferred_head_gradients=4");
  const std::vector<FlagValue> stages = {flag("--pp", "2"), flag("--global-batch", "8"), flag("--schedule", "zb-h1")};
  EXPECT_THAT(idle(stages, deferred), HasSubstr("has no effect: --schedule puts off weight gradients by itself"));
}

TEST(IdleSettings, OfAnotherKindOfSharding) {
  const std::vector<FlagValue> replicas = {flag("--dp", "8"), flag("--global-batch", "16")};
  const auto sharded = [&](const char* zero) {
    std::vector<FlagValue> flags = replicas;
    flags.push_back(flag("--zero", zero));
    return flags;
  };
  EXPECT_EQ(
      idle(sharded("1"), set("parallel.reduce_every_micro_batch=true")),
      "parallel.reduce_every_micro_batch true has no effect: with --zero 1 gradients are reduced once a step, after the last micro-batch");
  EXPECT_THAT(idle(replicas, set("parallel.bucket_size=25 MB")), HasSubstr("without overlap_grad_reduce gradients are one bucket"));
  EXPECT_THAT(idle(replicas, set("parallel.overlap_param_gather=true")), HasSubstr("with --zero 0 no updated weights are gathered"));
  EXPECT_THAT(idle(sharded("3"), set("parallel.overlap_param_gather=true")), HasSubstr("with --zero 3 no updated weights are gathered"));
  EXPECT_THAT(idle(sharded("2"), set("parallel.overlap_grad_reduce=false")), HasSubstr("unit by unit"));
  EXPECT_THAT(idle(sharded("2"), set("parallel.bucket_size=25 MB")), HasSubstr("unit by unit"));
  EXPECT_THAT(idle(sharded("1"), set("parallel.shard=8")), HasSubstr("with --zero 1 no weights or gradients are sharded"));
  for (const char* const each : {"reshard_after_forward=false", "prefetch_forward=true", "prefetch_backward=false", "gather_limit=1"}) {
    for (const char* const zero : {"1", "2"}) {
      EXPECT_THAT(idle(sharded(zero), set("parallel." + std::string(each))), HasSubstr("no weights are gathered for a layer")) << each;
    }
  }
}

// The limiter of FSDP1 bounds what is gathered ahead; under FSDP2's presets the device does, whatever the host waits for.
TEST(IdleSettings, ALimitOfGathersFreesNothingUnderFsdp2) {
  const auto with = [](const char* framework, const char* limit) {
    return resolve_job(job_with(
        {flag("--dp", "8"), flag("--zero", "3"), flag("--framework", framework), set("parallel.gather_limit=" + std::string(limit))}));
  };
  const Job first = with("torchtitan@2024-12", "1"), second = with("torchtitan@2024-12", "3");
  ASSERT_EQ(first.warnings.size(), 1u);
  EXPECT_EQ(first.warnings.front(),
            "parallel.gather_limit 1 frees no memory: with torchtitan@2024-12 (FSDP2) each gather waits for the copy-out before it anyhow; "
            "only the host "
            "waits more");
  EXPECT_EQ(run_step(first).run.worst().peak.bytes, run_step(second).run.worst().peak.bytes);
  const Job limited = with("pytorch-fsdp", "1"), ahead = with("pytorch-fsdp", "3");
  EXPECT_THAT(limited.warnings, IsEmpty());
  EXPECT_LT(run_step(limited).run.worst().peak.bytes, run_step(ahead).run.worst().peak.bytes);
}

// Only what the user set: not what a preset says, and not what says that nothing is wanted.
TEST(IdleSettings, NoneOfWhatNobodyAskedFor) {
  for (const char* const framework : {"megatron-core", "megatron-lm", "torchtitan", "pytorch-fsdp"}) {
    EXPECT_THAT(resolve_job(job_with({flag("--framework", framework)})).warnings, IsEmpty()) << framework;
  }
  EXPECT_THAT(resolve_job(job_with({flag("--tp", "1"), flag("--pp", "1"), flag("--dp", "1"), flag("--zero", "0"),
                                    flag("--virtual-stages", "1"), flag("--iteration", "steady"), set("parallel.sequence_parallel=false")}))
                  .warnings,
              IsEmpty());
  const Job used = resolve_job(pipeline_job({set("parallel.p2p=blocking"), flag("--rank", "1"), flag("--dp", "2"), flag("--zero", "1"),
                                             set("parallel.overlap_grad_reduce=true"), set("parallel.bucket_size=25 MB")}));
  EXPECT_THAT(used.warnings, IsEmpty());
}

TEST(IdleSettings, StandInTheSummaryAndTheJson) {
  const Job job = resolve_job(job_with({set("parallel.p2p=blocking"), flag("--zero", "3")}));
  const StepRun run = run_step(job);
  const std::string text = run_summary(job, run, {});
  for (const std::string& sentence : job.warnings) EXPECT_THAT(text, HasSubstr("\nwarning: " + sentence + "\n"));
  const auto json = nlohmann::json::parse(run_json(job, run, {}));
  ASSERT_EQ(json["warnings"].size(), 2u);
  EXPECT_EQ(json["warnings"][0], job.warnings[0]);
  EXPECT_EQ(json["warnings"][1], job.warnings[1]);
}

TEST(IdleSettings, OfExpertsAndMomentum) {
  EXPECT_EQ(idle({}, flag("--dispatcher", "allgather")), "--dispatcher allgather has no effect: llama3-8b has no experts");
  EXPECT_EQ(idle({flag("--optimizer", "sgd")}, set("training.moment_dtype=bf16")),
            "training.moment_dtype bf16 has no effect: sgd keeps no momentum (training.momentum)");
  const auto experts = [](const FlagValue& value) {
    return resolve_job({"", {flag("--model", "mixtral-8x7b"), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "2048"), value}})
        .warnings;
  };
  EXPECT_THAT(experts(flag("--dispatcher", "allgather")),
              testing::ElementsAre("--dispatcher allgather has no effect: --ep is 1: tokens stay where they are"));
  EXPECT_THAT(experts(set("training.capacity=1.25")), IsEmpty());
}

}  // namespace stepsim
