#include "tools/job.h"

#include "tests/unit/tools/test_jobs.h"
#include "tools/step_run.h"

namespace stepsim {

static JobInput job_of(const std::string& model, std::vector<FlagValue> more = {}) {
  JobInput input{"", {flag("--model", model), flag("--hardware", "a100-sxm-80gb")}};
  input.flags.insert(input.flags.end(), more.begin(), more.end());
  return input;
}

static std::string source(const Job& job, const std::string& path) {
  for (const JobValue& value : job.values) {
    if (value.path == path) return value.value + ", " + value.source;
  }
  return "none";
}

static std::string problem(const JobInput& input) {
  return error_of([&] { resolve_job(input); });
}

TEST(Job, DefaultsOfALayerNormGeluModel) {
  const Job job = resolve_job(job_of("gpt3-175b"));
  EXPECT_EQ(framework_label(job.framework), "megatron-lm@2022-05");
  EXPECT_EQ(job.convention, FlopsConvention::kMegatronFull);
  EXPECT_EQ(job.training.dropout, 0.1);
  EXPECT_EQ(job.training.sequence, 2048);  // its learned positions
  EXPECT_EQ(job.training.attention, AttentionKind::kFlash);
  EXPECT_EQ(job.training.precision, Precision::kBf16);
  EXPECT_EQ(job.training.optimizer, OptimizerKind::kAdamW);
  EXPECT_EQ(job.training.iteration, IterationKind::kSteady);
  EXPECT_EQ(job.training.micro_batch, 1);
  EXPECT_EQ(job.training.global_batch, 1);
  EXPECT_EQ(job.gpus, 1);
  EXPECT_EQ(job.cluster.name, "selene-a100");
  EXPECT_EQ(job.placement.granularity, RecomputeGranularity::kNone);
  EXPECT_EQ(source(job, "training.sequence"), "2048, default: the learned positions of gpt3-175b");
  EXPECT_EQ(source(job, "model.name"), "gpt3-175b, --model");
}

TEST(Job, DefaultsOfOtherModels) {
  const Job job = resolve_job(job_of("llama3-8b", {flag("--sequence", "8192"), flag("--tp", "4"), flag("--micro-batch", "2")}));
  EXPECT_EQ(framework_label(job.framework), "megatron-core@2025");
  EXPECT_EQ(job.convention, FlopsConvention::kMegatronCausal);
  EXPECT_EQ(job.training.dropout, 0);
  EXPECT_EQ(job.training.global_batch, 2);  // micro-batch x dp
  EXPECT_EQ(job.gpus, 4);                   // tp x pp x dp
  EXPECT_EQ(problem(job_of("llama3-8b")), "--sequence: found none, wanted the tokens of a sequence (llama3-8b has no usual length)");
  EXPECT_EQ(framework_label(resolve_job(job_of("palm-540b", {flag("--sequence", "2048")})).framework),
            "megatron-core@2025");  // LayerNorm, SwiGLU
}

TEST(Job, UsualClusterIsAnAssumptionUnlessGiven) {
  const auto mentions = [](const Job& job) {
    for (const std::string& sentence : job.assumed) {
      if (sentence.find("cluster") != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_TRUE(mentions(resolve_job(job_of("gpt3-175b"))));
  const Job given = resolve_job(job_of("gpt3-175b", {flag("--cluster", "dgx-h100")}));
  EXPECT_FALSE(mentions(given));
  EXPECT_EQ(given.cluster.name, "dgx-h100");
}

TEST(Job, RecomputePolicies) {
  const auto policy = [](std::vector<FlagValue> flags) { return resolve_job(job_of("gpt3-175b", std::move(flags))).placement; };
  const PlacementPolicy full = policy({flag("--recompute", "full")});
  EXPECT_EQ(full.granularity, RecomputeGranularity::kFull);
  EXPECT_EQ(full.method, RecomputeMethod::kUniform);
  EXPECT_EQ(full.num_layers, 1);
  EXPECT_EQ(placement_label(full), "full (uniform 1)");
  EXPECT_EQ(
      placement_label(policy({flag("--recompute", "full"), flag("--recompute-method", "block"), flag("--recompute-num-layers", "5")})),
      "full (block 5)");
  EXPECT_EQ(placement_label(policy({flag("--recompute", "selective")})), "selective (core_attn)");
  EXPECT_EQ(placement_label(policy({flag("--recompute-modules", "mlp,layernorm")})), "selective (mlp, layernorm)");
  EXPECT_EQ(policy({flag("--recompute-segments", "74")}).segments, 74);
  EXPECT_EQ(policy({flag("--recompute-segments", "90,5,1")}).segment_sizes, (std::vector<std::int64_t>{90, 5, 1}));
  EXPECT_TRUE(policy({flag("--recompute-segments", "halving")}).halving);
  EXPECT_TRUE(policy({flag("--placement", "halving")}).halving);
  EXPECT_EQ(placement_label(policy({flag("--placement", "full")})), "full (uniform 1)");
  const PlacementPolicy rows = policy({flag("--set", "placement.layers[3].core_attn=recompute")});
  ASSERT_EQ(rows.rows.size(), 1u);
  EXPECT_EQ(rows.rows[0].first_layer, 3);
  EXPECT_EQ(rows.rows[0].last_layer, 3);
  EXPECT_EQ(rows.rows[0].module_or_slot, "core_attn");
  EXPECT_EQ(rows.rows[0].action, PlacementAction::kRecompute);
}

TEST(Job, ContradictionsAreRefused) {
  const auto refused = [](std::vector<FlagValue> flags) { return problem(job_of("gpt3-175b", std::move(flags))); };
  EXPECT_EQ(refused({flag("--recompute-num-layers", "4")}),
            "--recompute-num-layers: found it with another kind of recompute, wanted --recompute full without segments");
  EXPECT_EQ(refused({flag("--recompute", "none"), flag("--recompute-segments", "4")}),
            "--recompute-segments: found it with another kind of recompute, wanted --recompute full");
  EXPECT_EQ(refused({flag("--placement", "full"), flag("--recompute", "selective")}),
            "--recompute: found \"selective\" with --placement full, wanted one of the two");
  EXPECT_EQ(refused({flag("--placement", "halving"), flag("--recompute-segments", "4")}),
            "--recompute-segments: found it with --placement halving, wanted one of the two");
  EXPECT_EQ(refused({flag("--placement", "full"), flag("--recompute", "full"), flag("--recompute-segments", "4")}), "");
  EXPECT_EQ(refused({flag("--recompute-segments", "2,x")}),
            "--recompute-segments: found \"2,x\", wanted a number of segments, sizes such as 2,2,1, or halving");
  EXPECT_EQ(refused({flag("--gpus", "3"), flag("--tp", "2")}), "--gpus: found 3, wanted a multiple of tp 2 x pp 1");
  EXPECT_EQ(refused({flag("--gpus", "16"), flag("--tp", "8")}),
            "--gpus: found 2 data-parallel groups, wanted 1: data parallelism is not built yet");
  EXPECT_EQ(refused({flag("--pp", "2")}), "--pp: found 2, wanted 1: pipeline parallelism is not built yet");
  EXPECT_EQ(refused({flag("--dp", "1"), flag("--pp", "1")}), "");
  EXPECT_EQ(refused({flag("--precision", "fp8")}), "--precision: found fp8, which is not built yet, wanted one of bf16, fp16, fp32");
  EXPECT_EQ(refused({flag("--optimizer", "adamW")}), "--optimizer: found \"adamW\", wanted one of adamw, sgd, did you mean \"adamw\"?");
  EXPECT_EQ(refused({flag("--loss", "chunked=0")}), "--loss: found \"chunked=0\", wanted one of plain, fused, chunked=N");
  EXPECT_EQ(refused({flag("--layers", "1000000000000")}), "--layers: found 1000000000000, wanted a whole number from 1 to 100000");
  EXPECT_EQ(refused({flag("--layers", "0")}), "--layers: found 0, wanted a whole number, at least 1");
  EXPECT_EQ(refused({flag("--dropout", "nan")}), "--dropout: found nan, wanted a finite number");
  EXPECT_EQ(refused({flag("--set", "placement.layers[3].mlp=offload")}),
            "--set placement.layers[3].mlp: found offload, which is not built yet, wanted keep or recompute");
}

TEST(Job, ErrorsOfTheLibrariesNameThePlaceInTheJobFile) {
  const std::string file = written("tp.textproto",
                                   "model { name: \"gpt3-175b\" }\nhardware { name: \"a100-sxm-80gb\" }\n"
                                   "parallel {\n  tp: 5\n}\n");
  EXPECT_TRUE(problem({file, {}}).starts_with(file + ":4:3: found 5, wanted a divisor"));
  EXPECT_TRUE(problem({file, {flag("--tp", "7")}}).starts_with("--tp: found 7, wanted a divisor"));
  const std::string unknown = written("unknown.textproto", "model {\n name: \"gpt3-175c\" }\nhardware { name: \"a100-sxm-80gb\" }");
  EXPECT_TRUE(problem({unknown, {}}).starts_with(unknown + ":2:2: found \"gpt3-175c\", wanted"));
  EXPECT_NE(problem({unknown, {}}).find("did you mean \"gpt3-175b\"?"), std::string::npos);
}

TEST(Job, ErrorsOfRowsNameTheRow) {
  const std::string file =
      written("rows.textproto", "placement {\n rows { tensor: \"act\" action: \"keep\" }\n rows { tensor: \"akt\" action: \"keep\" } }\n");
  const auto row_error = [&file](std::vector<FlagValue> flags) {
    JobInput input = job_of("gpt2-124m", std::move(flags));
    input.file = file;
    return error_of([&] { run_step(resolve_job(input)); });
  };
  EXPECT_TRUE(row_error({}).starts_with(file + ":3:9: found \"akt\", wanted")) << row_error({});
  const std::string full = row_error({flag("--recompute", "full")});
  EXPECT_TRUE(full.starts_with(file + ":2:9: found rows with full recompute, wanted")) << full;
}

TEST(Job, TheUsualClusterOfAFileIsWrongInThatFile) {
  const std::string machine = written("usual.textproto", "base: \"h100-sxm-80gb\"\nusual_cluster: \"nowhere\"\n");
  const std::string error = problem({"", {flag("--model", "gpt2-124m"), flag("--hardware", machine)}});
  EXPECT_TRUE(error.starts_with(machine + ":2:1: found \"nowhere\", wanted")) << error;
}

TEST(Job, GradientsHaveAValueThatTheFlagTakes) {
  const Job job = resolve_job(job_of("gpt3-175b"));
  const std::string value = source(job, "training.grad_dtype");
  EXPECT_EQ(value, "fp32, default: of megatron-lm@2022-05");
  EXPECT_EQ(problem(job_of("gpt3-175b", {flag("--grad-dtype", value.substr(0, value.find(',')))})), "");
}

TEST(Job, FieldsOfTheMachineCanBeSet) {
  EXPECT_TRUE(
      problem(job_of("gpt3-175b", {flag("--set", "hardware.peak.bf17=1 TFLOP/s")})).starts_with("--set hardware.peak.bf17: found "));
  EXPECT_TRUE(problem(job_of("gpt3-175b", {flag("--set", "hardware.hbm=1")})).starts_with("--set hardware.hbm: found "));
  EXPECT_TRUE(problem(job_of("gpt3-175b", {flag("--set", "cluster.node=1")})).starts_with("--set cluster.node: found "));
  const Job job =
      resolve_job(job_of("gpt3-175b", {flag("--set", "hardware.peak.bf16=624 TFLOP/s"), flag("--set", "cluster.gpus_per_node=4")}));
  EXPECT_EQ(peak(job.gpu, DType::kBf16).value, 624e12);
  EXPECT_EQ(job.cluster.gpus_per_node, 4);
  EXPECT_EQ(source(job, "hardware.peak.bf16"), "624 TFLOP/s, --set");
}

}  // namespace stepsim
