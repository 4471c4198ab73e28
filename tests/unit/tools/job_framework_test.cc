// The framework section of a job, and what the preset decides elsewhere.
#include "tools/job_framework.h"

#include <gmock/gmock.h>

#include "tests/unit/tools/test_jobs.h"
#include "tools/step_run.h"

namespace stepsim {

using testing::ElementsAre;
using testing::HasSubstr;

static FlagValue set(const std::string& text) { return flag("--set", text); }

static JobInput job_of(const std::string& model, std::vector<FlagValue> more) {
  JobInput input{"", {flag("--model", model), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "4096")}};
  input.flags.insert(input.flags.end(), more.begin(), more.end());
  return input;
}

static Job llama(std::vector<FlagValue> more) { return resolve_job(job_of("llama3-8b", std::move(more))); }
static Job mixtral(std::vector<FlagValue> more) { return resolve_job(job_of("mixtral-8x7b", std::move(more))); }

static std::string problem(const JobInput& input) {
  return error_of([&] { resolve_job(input); });
}

static std::string source(const Job& job, const std::string& path) {
  for (const JobValue& value : job.values) {
    if (value.path == path) return value.value + ", " + value.source;
  }
  return "none";
}

TEST(JobFramework, EveryFieldOfThePresetCanBeSet) {
  const Job job = llama({set("framework.fused_norm=false"), set("framework.metric_passes=2"), set("framework.attention=fused"),
                         set("framework.reads_expert_counts=true")});
  EXPECT_FALSE(job.framework.fused_norm);
  EXPECT_EQ(job.framework.metric_passes, 2);
  EXPECT_TRUE(job.framework.reads_expert_counts);
  EXPECT_EQ(job.training.attention, AttentionKind::kFused);
  EXPECT_EQ(source(job, "framework.fused_norm"), "false, --set");
  EXPECT_EQ(source(job, "training.attention"), "fused, default: of megatron-core@2025");
  // A flag of its own stands above.
  EXPECT_EQ(llama({set("framework.attention=fused"), flag("--attention", "unfused")}).training.attention, AttentionKind::kUnfused);
  EXPECT_NE(fingerprint(run_step(llama({flag("--layers", "2")})).run.result),
            fingerprint(run_step(llama({flag("--layers", "2"), set("framework.fused_norm=false")})).run.result));
}

TEST(JobFramework, AJobFileHasTheSameFields) {
  const std::string file = written("framework.textproto",
                                   "framework {\n  name: \"torchtitan@2024-12\"\n  fused_norm: true\n"
                                   "  stored { slot: \"attention output\" bits: 8 }\n}\n");
  JobInput input = job_of("llama3-8b", {});
  input.file = file;
  const Job job = resolve_job(input);
  EXPECT_EQ(framework_label(job.framework), "torchtitan@2024-12");
  EXPECT_TRUE(job.framework.fused_norm);
  ASSERT_EQ(job.framework.stored.size(), 1u);
  EXPECT_EQ(source(job, "framework.fused_norm"), "true, " + file + ":3:3");
  EXPECT_EQ(source(job, "framework.stored[0].bits"), "8, " + file + ":4:37");
  input.flags.push_back(set("framework.fused_norm=false"));
  EXPECT_FALSE(resolve_job(input).framework.fused_norm);
}

TEST(JobFramework, ErrorsNameThePlaceAndTheNearestField) {
  const auto refused = [](const FlagValue& value) { return problem(job_of("llama3-8b", {value})); };
  EXPECT_THAT(refused(set("framework.fused_nrm=false")), HasSubstr("did you mean \"fused_norm\"?"));
  EXPECT_EQ(refused(set("framework.tensor_overlap=bulk")),
            "--set framework.tensor_overlap: found tensor_overlap \"bulk\", wanted none or ring");
  EXPECT_EQ(refused(set("framework.gather_limit=-1")),
            "--set framework.gather_limit: found gather_limit -1, wanted a number from 0 to 1000");
  EXPECT_THAT(refused(set("framework.fused_norm=2")), HasSubstr("--set framework.fused_norm: found"));
  EXPECT_EQ(refused(set("framework.version=2")),
            "--set framework.version: found a version, wanted framework.name (NAME@VERSION) and fields that differ from it");
  EXPECT_THAT(refused(set("framework.base=nemo@24.07")), HasSubstr("found a base, wanted framework.name"));
  EXPECT_THAT(refused(flag("--framework", "nemo@24.7")), HasSubstr("did you mean \"nemo@24.07\"?"));
  const std::string file = written("gates.textproto", "framework {\n  gather_limit: 5000 }\n");
  JobInput input = job_of("llama3-8b", {});
  input.file = file;
  EXPECT_EQ(problem(input), file + ":2:3: found gather_limit 5000, wanted a number from 0 to 1000");
}

TEST(JobFramework, ShowsWhatMattersAndWhoSaysIt) {
  const Job job = llama({flag("--framework", "megatron-bridge@26.06")});
  EXPECT_EQ(source(job, "framework.fused_rotary"), "true, default: of megatron-core@2025");
  EXPECT_EQ(source(job, "framework.dummy_gradients"), "true, default: of megatron-core@2026");
  EXPECT_EQ(source(job, "training.attention"), "fused, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(job, "training.loss"), "fused, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(job, "training.grad_dtype"), "bf16, default: of megatron-bridge@26.06");
  for (const char* const idle :
       {"framework.fused_expert_mlp", "framework.keeps_weight_shards", "framework.pipeline_buffers", "framework.fused_softmax",
        "framework.attention", "framework.gradient_bits", "parallel.dispatcher", "parallel.tensor_overlap"}) {
    EXPECT_EQ(source(job, idle), "none") << idle;
  }
  const Job wide = mixtral({flag("--framework", "megatron-bridge@26.06"), flag("--tp", "2"), flag("--sequence-parallel", "true"),
                            flag("--ep", "4"), flag("--dp", "4"), flag("--cp", "2"), set("parallel.expert_tp=1")});
  EXPECT_EQ(source(wide, "framework.fused_expert_mlp"), "true, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(wide, "parallel.tensor_overlap"), "ring, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(wide, "parallel.context_exchange"), "ring, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(wide, "parallel.overlap_expert_exchange"), "true, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(wide, "parallel.delay_weight_gradients"), "true, default: of megatron-bridge@26.06");
  EXPECT_EQ(source(llama({flag("--hardware", "a100-sxm-80gb")}), "framework.flash_version"),
            "2, default: megatron-core@2025 prefers 3, which a100-sxm-80gb has not");
}

// HybridEP exchanges within an NVLink domain that is larger than a node.
TEST(JobFramework, DispatchersOfBridgeFollowTheMachine) {
  const auto dispatcher = [](const std::string& machine, const std::string& framework) {
    JobInput input{"",
                   {flag("--model", "qwen3-30b-a3b"), flag("--hardware", machine), flag("--sequence", "4096"), flag("--gpus", "8"),
                    flag("--ep", "8"), flag("--framework", framework)}};
    return source(resolve_job(input), "parallel.dispatcher");
  };
  EXPECT_EQ(dispatcher("gb200-nvl72", "megatron-bridge@26.04"), "hybridep, default: of megatron-bridge@26.04");
  EXPECT_EQ(dispatcher("h100-sxm-80gb", "megatron-bridge@26.04"),
            "deepep, default: as megatron-bridge@26.04 where an NVLink domain is one node");
  EXPECT_EQ(dispatcher("h100-sxm-80gb", "megatron-bridge@25.09"), "alltoall, default: of megatron-bridge@25.09");
  EXPECT_EQ(dispatcher("h100-sxm-80gb", "automodel@2025"), "deepep, default: of automodel@2025");
}

// Recipes graph models with experts; dense ones are not graphed unless the job says so.
TEST(JobFramework, GraphsAreOfModelsWithExperts) {
  const FlagValue bridge = flag("--framework", "megatron-bridge@26.06");
  EXPECT_EQ(mixtral({bridge}).training.cuda_graph, CudaGraph::kFull);
  EXPECT_EQ(source(llama({bridge}), "training.cuda_graph"), "none, default: of megatron-bridge@26.06 for models without experts");
  EXPECT_EQ(llama({bridge, set("framework.cuda_graph=scopes")}).training.cuda_graph, CudaGraph::kScopes);
  EXPECT_EQ(llama({bridge, flag("--cuda-graph", "full")}).training.cuda_graph, CudaGraph::kFull);
  EXPECT_EQ(mixtral({bridge, flag("--cuda-graph", "none")}).training.cuda_graph, CudaGraph::kNone);
}

// A step of small kernels on a slow host waits for its launches; a graph does not.
TEST(JobFramework, GraphsSaveLaunches) {
  const auto seconds_with = [](const std::string& graph) {
    JobInput input{"",
                   {flag("--model", "qwen3-0.6b"), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "128"),
                    flag("--cuda-graph", graph), flag("--optimizer", "none"), set("hardware.kernel_issue=50 us")}};
    return seconds(run_step(resolve_job(input)).run.result.end);
  };
  const double none = seconds_with("none"), scopes = seconds_with("scopes"), full = seconds_with("full");
  EXPECT_LT(scopes, 0.8 * none);
  EXPECT_LT(full, 0.8 * scopes);
}

TEST(JobFramework, PresetsOfFsdpAndDeepSpeedRun) {
  for (const std::string& name : framework_names()) {
    const Job job = resolve_job(job_of("gpt2-124m", {flag("--framework", name), flag("--layers", "2"), flag("--sequence", "512"),
                                                     flag("--dp", "8"), flag("--zero", "3")}));
    EXPECT_GT(run_step(job).run.result.end.count(), 0) << name;
  }
}

TEST(JobFramework, LossesOfPresets) {
  EXPECT_EQ(llama({flag("--framework", "llm-foundry@2023-05")}).training.loss, LossKind::kFused);
  const Job chunked = llama({set("framework.loss=chunked"), set("framework.loss_chunks=8")});
  EXPECT_EQ(chunked.training.loss, LossKind::kChunked);
  EXPECT_EQ(chunked.training.loss_chunks, 8);
  EXPECT_EQ(source(chunked, "training.loss"), "chunked=8, default: of megatron-core@2025");
  EXPECT_EQ(llama({flag("--framework", "megatron-deepspeed@2021")}).training.attention, AttentionKind::kUnfused);
}

TEST(JobFramework, DocumentsArePacked) {
  const auto packed = [](std::vector<FlagValue> flags) {
    flags.insert(flags.begin(), {flag("--model", "llama3-8b"), flag("--hardware", "h100-sxm-80gb")});
    return JobInput{"", std::move(flags)};
  };
  const Job list = resolve_job(packed({flag("--packed", "1024,3072")}));
  EXPECT_THAT(list.training.packed, ElementsAre(1024, 3072));
  EXPECT_EQ(source(list, "training.sequence"), "4096, default: the documents of --packed");
  const std::string file = written("lengths.txt", "1024\n2048, 1024\n");
  const Job read = resolve_job(packed({flag("--packed", file)}));
  EXPECT_THAT(read.training.packed, ElementsAre(1024, 2048, 1024));
  EXPECT_THAT(read.files, testing::Contains(file));
  const auto refused = [&](std::vector<FlagValue> flags) { return problem(packed(std::move(flags))); };
  EXPECT_EQ(refused({flag("--packed", "1024,3072"), flag("--sequence", "8192")}),
            "--packed: found documents of 4096 tokens, wanted 8192 together, as --sequence says");
  EXPECT_EQ(refused({flag("--packed", "0,4096")}),
            "--packed: found \"0,4096\", wanted the tokens of each document, such as 1024,3072, or a file of them");
  EXPECT_THAT(refused({flag("--packed", "/nowhere/lengths")}), HasSubstr("/nowhere/lengths"));
  EXPECT_EQ(refused({flag("--packed", written("words.txt", "one two"))}),
            testing::TempDir() + "words.txt: found something else, wanted the tokens of each document, such as 1024,3072");
  EXPECT_THAT(refused({flag("--packed", "9223372036854775807,9223372036854775807")}), HasSubstr("found"));
}

TEST(JobFramework, FlagsOfTheNewFields) {
  const Job job =
      mixtral({flag("--precision", "fp8"), flag("--fp8-attention", "true"), flag("--optimizer-offload", "0.5"),
               set("training.overlap_optimizer_copies=false"), flag("--cp", "2"), flag("--cp-exchange", "alltoall"), flag("--ep", "2"),
               flag("--overlap-expert-exchange", "true"), flag("--delay-weight-gradients", "true"), flag("--tp", "2"),
               flag("--sequence-parallel", "true"), flag("--tp-overlap", "ring"), flag("--gpus", "8"), set("parallel.expert_tp=1")});
  EXPECT_TRUE(job.training.low_precision_attention);
  EXPECT_EQ(job.training.optimizer_offload, 0.5);
  EXPECT_FALSE(job.training.overlap_optimizer_copies);
  EXPECT_EQ(job.parallel.context_exchange, ContextExchange::kAllToAll);
  EXPECT_EQ(job.parallel.overlap_expert_exchange, true);
  EXPECT_EQ(job.parallel.delay_weight_gradients, true);
  EXPECT_EQ(job.parallel.tensor_overlap, TensorOverlap::kRing);
  EXPECT_EQ(llama({flag("--optimizer", "none")}).training.optimizer, OptimizerKind::kNone);
  EXPECT_EQ(problem(job_of("llama3-8b", {flag("--cp-exchange", "p2p")})),
            "--cp-exchange: found \"p2p\", wanted one of allgather, ring, alltoall");
  EXPECT_THAT(llama({flag("--tp-overlap", "ring")}).warnings,
              ElementsAre("--tp-overlap ring has no effect: --tp is 1: there are no collectives"));
  EXPECT_THAT(llama({flag("--tp-overlap", "ring"), flag("--tp", "2")}).warnings,
              ElementsAre("--tp-overlap ring has no effect: without --sequence-parallel there are no gathers and scatters to overlap"));
  EXPECT_THAT(llama({flag("--cp-exchange", "ring"), flag("--overlap-expert-exchange", "true")}).warnings,
              ElementsAre("--overlap-expert-exchange has no effect: llama3-8b has no experts",
                          "--cp-exchange ring has no effect: --cp is 1: each rank has whole sequences"));
  EXPECT_THAT(llama({flag("--optimizer", "none"), flag("--optimizer-offload", "0.5")}).warnings,
              ElementsAre("--optimizer-offload 0.5 has no effect: --optimizer none updates nothing"));
}

}  // namespace stepsim
