#include "tools/job.h"

#include "tests/unit/tools/test_jobs.h"
#include "tools/job_training.h"
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
  EXPECT_EQ(refused({flag("--gpus", "3"), flag("--tp", "2")}), "--gpus: found 3, wanted a multiple of 2 (tp 2 x pp 1)");
  EXPECT_EQ(refused({flag("--precision", "fp7")}),
            "--precision: found \"fp7\", wanted one of bf16, fp16, fp32, fp8, mxfp8, nvfp4, did you mean \"fp8\"?");
  EXPECT_EQ(refused({flag("--fp8-recipe", "delayed")}),
            "--fp8-recipe: found a recipe, wanted --precision fp8 with it (mxfp8 and nvfp4 have their own)");
  EXPECT_EQ(refused({flag("--optimizer", "adamW")}),
            "--optimizer: found \"adamW\", wanted one of adamw, sgd, adam8bit, lion, muon, none, did you mean \"adamw\"?");
  EXPECT_EQ(refused({flag("--loss", "chunked=0")}), "--loss: found \"chunked=0\", wanted one of plain, fused, chunked=N");
  EXPECT_EQ(refused({flag("--layers", "1000000000000")}), "--layers: found 1000000000000, wanted a whole number from 1 to 100000");
  EXPECT_EQ(refused({flag("--layers", "0")}), "--layers: found 0, wanted a whole number, at least 1");
  EXPECT_EQ(refused({flag("--dropout", "nan")}), "--dropout: found nan, wanted a finite number");
  EXPECT_EQ(refused({flag("--set", "placement.layers[3].mlp=move")}),
            "--set placement.layers[3].mlp: found \"move\", wanted keep, recompute or offload");
}

// gpt3-175b has 96 layers.
TEST(Job, GpusAreTheProductOfTheRanks) {
  const auto job = [](std::vector<FlagValue> flags) { return resolve_job(job_of("gpt3-175b", std::move(flags))); };
  const Job product = job({flag("--tp", "8"), flag("--pp", "4"), flag("--dp", "3")});
  EXPECT_EQ(product.gpus, 96);
  EXPECT_EQ(source(product, "hardware.gpus"), "96, default: tp x pp x dp");
  EXPECT_EQ(source(product, "parallel.dp"), "3, --dp");
  EXPECT_EQ(source(product, "training.global_batch"), "3, default: micro-batch x dp");
  const Job divided = job({flag("--gpus", "96"), flag("--tp", "8"), flag("--pp", "4"), flag("--micro-batch", "2")});
  EXPECT_EQ(divided.parallel.data, 3);
  EXPECT_EQ(divided.training.global_batch, 6);
  EXPECT_EQ(source(divided, "parallel.dp"), "3, default: gpus / (tp x pp)");
  EXPECT_EQ(job({flag("--gpus", "96"), flag("--tp", "8"), flag("--pp", "4"), flag("--dp", "3")}).gpus, 96);
  const auto refused = [](std::vector<FlagValue> flags) { return problem(job_of("gpt3-175b", std::move(flags))); };
  EXPECT_EQ(refused({flag("--gpus", "96"), flag("--tp", "8"), flag("--pp", "4"), flag("--dp", "2")}),
            "--gpus: found 96, wanted 64 (tp 8 x pp 4 x dp 2)");
  EXPECT_EQ(refused({flag("--gpus", "100"), flag("--tp", "8"), flag("--pp", "4")}),
            "--gpus: found 100, wanted a multiple of 32 (tp 8 x pp 4)");
  EXPECT_EQ(refused({flag("--gpus", "0")}), "--gpus: found 0, wanted a whole number, at least 1");
  EXPECT_EQ(refused({flag("--gpus", "2000000")}), "--gpus: found 2000000, wanted at most 1048576 x tp 1 x pp 1");
  EXPECT_EQ(refused({flag("--dp", "2"), flag("--global-batch", "3")}),
            "--global-batch: found 3, wanted a multiple of 2 (micro-batch 1 x data-parallel 2)");
}

TEST(Job, PipelineOfFlags) {
  const auto job = [](std::vector<FlagValue> flags) {
    flags.push_back(flag("--global-batch", "16"));
    return resolve_job(job_of("gpt3-175b", std::move(flags)));
  };
  EXPECT_EQ(job({flag("--pp", "8")}).parallel.schedule, PipelineKind::k1F1B);
  const Job interleaved = job({flag("--pp", "8"), flag("--virtual-stages", "3")});
  EXPECT_EQ(interleaved.parallel.schedule, PipelineKind::kInterleaved);
  EXPECT_EQ(source(interleaved, "parallel.schedule"), "interleaved, default: for virtual stages");
  EXPECT_EQ(interleaved.parallel.virtual_stages, 3);
  EXPECT_EQ(source(interleaved, "parallel.p2p"), "batched, default: of megatron-lm@2022-05");  // its schedules.py
  EXPECT_EQ(source(interleaved, "parallel.deallocate_outputs"), "true, default: of megatron-lm@2022-05");
  EXPECT_EQ(source(job({}), "parallel.schedule"), "none");  // without effect, not shown
  EXPECT_EQ(job({flag("--pp", "8"), flag("--schedule", "gpipe")}).parallel.schedule, PipelineKind::kGPipe);
  EXPECT_EQ(job({flag("--pp", "8"), flag("--schedule", "zb-h1")}).parallel.schedule, PipelineKind::kZbH1);
  const Job set = job({flag("--pp", "2"), flag("--set", "parallel.p2p=overlapped"), flag("--set", "parallel.deallocate_outputs=false"),
                       flag("--pp-layout", "Et*40|t*56L")});
  EXPECT_EQ(set.parallel.point_to_point, PointToPoint::kOverlapped);
  EXPECT_EQ(set.parallel.deallocate_outputs, false);
  EXPECT_EQ(set.parallel.split.layout, "Et*40|t*56L");
  const Job uneven =
      job({flag("--pp", "3"), flag("--set", "parallel.first_stage_layers=31"), flag("--set", "parallel.last_stage_layers=31")});
  EXPECT_EQ(uneven.parallel.split.first_stage_layers, 31);
  const auto refused = [](std::vector<FlagValue> flags) { return problem(job_of("gpt3-175b", std::move(flags))); };
  EXPECT_EQ(job({flag("--pp", "2"), flag("--schedule", "dualpipe")}).parallel.schedule, PipelineKind::kDualPipe);
  EXPECT_EQ(job({flag("--pp", "2"), flag("--schedule", "zb-v")}).parallel.schedule, PipelineKind::kZbV);
  EXPECT_EQ(refused({flag("--pp", "2"), flag("--schedule", "zb-v"), flag("--virtual-stages", "3")}),
            "--virtual-stages: found 3 with --schedule zb-v, wanted 1 or 2");
  EXPECT_EQ(refused({flag("--pp", "2"), flag("--schedule", "1f1c")}),
            "--schedule: found \"1f1c\", wanted one of gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe, did you mean \"1f1b\"?");
  EXPECT_EQ(refused({flag("--pp", "8"), flag("--virtual-stages", "3"), flag("--global-batch", "12")}),
            "--global-batch: found 12 (12 micro-batches), wanted a multiple of 8: the interleaved schedule needs micro-batches that are a "
            "multiple of --pp 8");
  EXPECT_TRUE(refused({flag("--pp", "7")}).starts_with("--pp: found 7, wanted a divisor of 96 layers"));
  EXPECT_TRUE(refused({flag("--pp", "2"), flag("--pp-layout", "Et*40|x")}).starts_with("--pp-layout: found \"x\" at column 7, wanted"));
  EXPECT_TRUE(refused({flag("--pp", "4"), flag("--set", "parallel.first_stage_layers=200")})
                  .starts_with("--set parallel.first_stage_layers: found 200, wanted"));
  const std::string file = written("uneven.textproto", "parallel {\n pp: 4\n  last_stage_layers: 200 }\n");
  JobInput input = job_of("gpt3-175b");
  input.file = file;
  EXPECT_TRUE(problem(input).starts_with(file + ":3:3: found 200, wanted")) << problem(input);
}

TEST(Job, RankIsAStage) {
  const auto stage = [](std::vector<FlagValue> flags) { return resolve_job(job_of("gpt3-175b", std::move(flags))).reported_stage; };
  EXPECT_EQ(stage({flag("--pp", "4")}), std::nullopt);
  EXPECT_EQ(stage({flag("--pp", "4"), flag("--rank", "worst")}), std::nullopt);
  EXPECT_EQ(stage({flag("--pp", "4"), flag("--rank", "last")}), 3);
  EXPECT_EQ(stage({flag("--pp", "4"), flag("--rank", "0")}), 0);
  EXPECT_EQ(stage({flag("--rank", "last")}), 0);
  for (const char* const rank : {"4", "-1", "first", "1x", "99999999999999999999"}) {
    EXPECT_EQ(problem(job_of("gpt3-175b", {flag("--pp", "4"), flag("--rank", rank)})),
              "--rank: found \"" + std::string(rank) + "\", wanted worst, last or a pipeline stage from 0 to 3");
  }
}

// An empty text and a zero that means nothing were taken for "not given".
TEST(Job, WhatMeansNothingIsNoDefault) {
  const auto refused = [](const FlagValue& value) {
    return problem(job_of("gpt3-175b", {flag("--pp", "4"), flag("--dp", "2"), flag("--global-batch", "8"), value}));
  };
  for (const char* const path :
       {"parallel.pp_layout", "parallel.rank", "parallel.schedule", "parallel.bucket_size", "placement.name", "hardware.cluster",
        "placement.recompute_segments", "placement.recompute_modules[0]", "framework.name", "training.loss"}) {
    EXPECT_EQ(refused(flag("--set", std::string(path) + "=")),
              "--set " + std::string(path) + ": found an empty text, wanted a value, or no " + path + " at all");
  }
  EXPECT_EQ(refused(flag("--set", "parallel.first_stage_layers=0")),
            "--set parallel.first_stage_layers: found 0, wanted a whole number, at least 1");
  EXPECT_EQ(refused(flag("--set", "parallel.last_stage_layers=-1")),
            "--set parallel.last_stage_layers: found -1, wanted a whole number, at least 1");
  EXPECT_EQ(refused(flag("--set", "parallel.shard=0")), "--set parallel.shard: found 0, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(refused(flag("--set", "parallel.bucket_size=0.3 B")),
            "--set parallel.bucket_size: found \"0.3 B\", a fraction of a byte, wanted whole bytes");
  EXPECT_EQ(refused(flag("--set", "parallel.bucket_size=0 B")), "");  // one bucket
  EXPECT_EQ(refused(flag("--set", "parallel.gather_limit=0")), "");   // no limit
}

TEST(Job, ShardingOfFlags) {
  const auto job = [](std::vector<FlagValue> flags) {
    flags.insert(flags.end(), {flag("--sequence", "8192"), flag("--gpus", "8")});
    return resolve_job(job_of("llama3-8b", std::move(flags)));
  };
  const Job fsdp = job({flag("--zero", "3")});
  EXPECT_EQ(fsdp.parallel.zero, 3);
  EXPECT_EQ(fsdp.parallel.sharding_ranks(), 8);
  EXPECT_EQ(source(fsdp, "training.grad_dtype"), "bf16, default: as backward makes them");
  EXPECT_EQ(source(fsdp, "parallel.reduce_dtype"), "fp32, default: of megatron-core@2025");
  EXPECT_EQ(source(fsdp, "parallel.gather_limit"), std::to_string(fsdp.framework.gather_limit) + ", default: of megatron-core@2025");
  EXPECT_EQ(source(fsdp, "parallel.p2p"), "none");
  const Job narrow = job({flag("--grad-dtype", "bf16")});  // reduced in the buffer where they accumulate
  EXPECT_EQ(narrow.parallel.reduce_dtype, DType::kBf16);
  EXPECT_EQ(source(narrow, "parallel.reduce_dtype"), "bf16, default: of megatron-core@2025");
  const Job set = job({flag("--zero", "2"), flag("--set", "parallel.shard=4"), flag("--set", "parallel.bucket_size=25 MiB"),
                       flag("--set", "parallel.overlap_grad_reduce=true"), flag("--set", "parallel.reduce_dtype=bf16"),
                       flag("--set", "parallel.reduce_every_micro_batch=false")});
  EXPECT_EQ(set.parallel.sharding_ranks(), 4);
  EXPECT_EQ(set.parallel.bucket, Bytes(25 << 20));
  EXPECT_EQ(set.parallel.overlap_gradient_reduce, true);
  EXPECT_EQ(set.parallel.reduce_dtype, DType::kBf16);
  EXPECT_EQ(set.parallel.reduce_every_micro_batch, false);
  const Job gathers = job({flag("--zero", "3"), flag("--set", "parallel.reshard_after_forward=false"),
                           flag("--set", "parallel.prefetch_forward=true"), flag("--set", "parallel.prefetch_backward=false"),
                           flag("--set", "parallel.gather_limit=0"), flag("--set", "parallel.overlap_param_gather=true")});
  EXPECT_EQ(gathers.parallel.reshard_after_forward, false);
  EXPECT_EQ(gathers.parallel.prefetch_forward, true);
  EXPECT_EQ(gathers.parallel.prefetch_backward, false);
  EXPECT_EQ(gathers.parallel.gather_limit, 0);
  EXPECT_EQ(gathers.parallel.overlap_weight_gather, true);
  const auto refused = [&](std::vector<FlagValue> flags) { return error_of([&] { job(std::move(flags)); }); };
  EXPECT_EQ(refused({flag("--zero", "4")}), "--zero: found 4, wanted a whole number from 0 to 3");
  EXPECT_EQ(refused({flag("--zero", "3"), flag("--set", "parallel.shard=3")}), "--set parallel.shard: found 3, wanted a divisor of --dp 8");
  EXPECT_EQ(refused({flag("--zero", "3"), flag("--pp", "2")}),
            "--zero: found 3 with --pp 2, wanted 0 or 1: sharded gradients and weights under a pipeline are not built yet");
  EXPECT_TRUE(refused({flag("--set", "parallel.bucket_size=25")}).starts_with("--set parallel.bucket_size: found \"25\""));
  EXPECT_EQ(refused({flag("--grad-dtype", "fp16")}), "--grad-dtype: found fp16, wanted fp32 or bf16 with --precision bf16");
}

// 128 experts: gpus = tp x pp x cp x dp, ep and expert_tp are of tp x cp x dp.
TEST(Job, ExpertsAndContextOfFlags) {
  const auto job = [](std::vector<FlagValue> flags) {
    flags.insert(flags.end(), {flag("--sequence", "4096"), flag("--gpus", "64")});
    return resolve_job(job_of("qwen3-30b-a3b", std::move(flags)));
  };
  const Job layout = job({flag("--tp", "2"), flag("--sequence-parallel", "true"), flag("--pp", "2"), flag("--cp", "4"), flag("--ep", "8"),
                          flag("--dispatcher", "deepep"), flag("--imbalance", "1.5"), flag("--set", "parallel.expert_tp=1")});
  EXPECT_EQ(layout.parallel.data, 4);
  EXPECT_EQ(source(layout, "parallel.dp"), "4, default: gpus / (tp x pp x cp)");
  EXPECT_EQ(layout.parallel.context, 4);
  EXPECT_EQ(layout.parallel.expert, 8);
  EXPECT_EQ(layout.parallel.expert_tensor_ranks(), 1);
  EXPECT_EQ(layout.parallel.expert_replicas(), 4);  // 2 x 4 x 4 ranks of a stage over 8
  EXPECT_EQ(layout.parallel.dispatcher, Dispatcher::kDeepEp);
  EXPECT_EQ(layout.training.imbalance, 1.5);
  const Job usual = job({flag("--ep", "8")});
  EXPECT_EQ(source(usual, "parallel.dispatcher"), "alltoall, default: of megatron-core@2025");
  EXPECT_EQ(source(usual, "parallel.expert_tp"), "1, default: as --tp");
  EXPECT_EQ(source(usual, "training.capacity"), "0, default: dropless");
  EXPECT_EQ(source(resolve_job(job_of("gpt3-175b")), "parallel.ep"), "none");  // without effect, not shown
  const auto refused = [&](std::vector<FlagValue> flags) { return error_of([&] { job(std::move(flags)); }); };
  EXPECT_EQ(refused({flag("--cp", "3")}), "--gpus: found 64, wanted a multiple of 3 (tp 1 x pp 1 x cp 3)");
  EXPECT_EQ(refused({flag("--ep", "7")}), "--ep: found 7, wanted a divisor of the 128 experts");
  EXPECT_EQ(refused({flag("--set", "training.capacity=-1")}),
            "--set training.capacity: found -1.000000, wanted 0 (dropless) to the 128 experts");
  EXPECT_TRUE(refused({flag("--dispatcher", "flex")}).starts_with("--dispatcher: found \"flex\", wanted one of allgather, alltoall"));
  EXPECT_EQ(problem(job_of("llama3-8b", {flag("--sequence", "8192"), flag("--cp", "1048576"), flag("--dp", "1048576")})),
            "--cp: found 1048576, wanted at most 16777216 GPUs (tp 1 x pp 1 x cp 1048576 x dp 1048576)");
}

TEST(Job, TrainableMasksOfFlags) {
  const auto mask = [](const std::string& text) { return parse_trainable(text); };
  EXPECT_TRUE(mask("all")->trains_all());
  const TrainableMask lora = *mask("lora(r=16,targets=qkv+attention projection)");
  EXPECT_EQ(lora.kind, TrainableMask::Kind::kLora);
  EXPECT_EQ(lora.rank, 16);
  EXPECT_EQ(lora.base_bits, 0);
  EXPECT_EQ(lora.targets, (std::vector<std::string>{"qkv", "attention projection"}));
  EXPECT_EQ(mask("qlora(targets=qkv,down, r=8)")->base_bits, 4);
  EXPECT_EQ(mask("qlora(targets=qkv,down,r=8)")->targets, (std::vector<std::string>{"qkv", "down"}));
  EXPECT_EQ(mask("frozen(embedding,layers)")->targets, (std::vector<std::string>{"embedding", "layers"}));
  for (const char* const text :
       {"", "none", "lora", "lora(", "lora(r=x,targets=qkv)", "lora(alpha=1)", "frozen", "LORA(r=1,targets=qkv)"}) {
    EXPECT_FALSE(mask(text).has_value()) << text;
  }
  EXPECT_EQ(problem(job_of("gpt3-175b", {flag("--trainable", "lora")})),
            "--trainable: found \"lora\", wanted all, lora(r=16,targets=A+B), qlora(r=16,targets=A+B) or frozen(A+B)");
  EXPECT_TRUE(problem(job_of("gpt3-175b", {flag("--trainable", "lora(r=16,targets=qvk)")})).starts_with("--trainable: found "));
  EXPECT_EQ(resolve_job(job_of("gpt3-175b", {flag("--trainable", "lora(r=16,targets=qkv)")})).training.trainable.rank, 16);
}

TEST(Job, PrecisionsAndOptimizersOfFlags) {
  const auto job = [](std::vector<FlagValue> flags) {
    flags.insert(flags.end(), {flag("--sequence", "8192")});
    flags.insert(flags.begin(), {flag("--model", "llama3-8b"), flag("--hardware", "b200")});
    return resolve_job({"", std::move(flags)});
  };
  const Job fp8 = job({flag("--precision", "fp8"), flag("--fp8-recipe", "blockwise")});
  EXPECT_EQ(fp8.training.precision, Precision::kFp8);
  EXPECT_EQ(fp8.training.scaling, ScalingRecipe::kBlockwise);
  EXPECT_EQ(product_dtype(fp8.training.precision), DType::kFp8);
  EXPECT_EQ(product_dtype(job({flag("--precision", "mxfp8")}).training.precision), DType::kMxFp8);
  EXPECT_EQ(product_dtype(job({flag("--precision", "nvfp4")}).training.precision), DType::kNvFp4);
  const Job state = job({flag("--optimizer", "muon"), flag("--set", "training.moment_dtype=bf16")});
  EXPECT_EQ(state.training.optimizer, OptimizerKind::kMuon);
  EXPECT_EQ(state.training.moment_dtype, DType::kBf16);
  const Job sgd =
      job({flag("--optimizer", "sgd"), flag("--set", "training.momentum=0.9"), flag("--set", "training.optimizer_in_backward=true")});
  EXPECT_EQ(sgd.training.momentum, 0.9);
  EXPECT_TRUE(sgd.training.optimizer_in_backward);
  EXPECT_EQ(job({flag("--optimizer", "adam8bit")}).training.optimizer, OptimizerKind::kAdam8Bit);
  EXPECT_EQ(job({flag("--optimizer", "lion")}).training.optimizer, OptimizerKind::kLion);
}

TEST(Job, ModelsAreCutAndExtended) {
  const Job t5 = resolve_job(job_of("t5-base", {flag("--layers", "4"), flag("--set", "training.decoder_sequence=128")}));
  EXPECT_EQ(t5.model.encoder_layers, 2);  // 12 of 24
  EXPECT_EQ(t5.training.decoder_sequence, 128);
  EXPECT_EQ(source(resolve_job(job_of("t5-base")), "training.decoder_sequence"), "512, default: as the encoder's");
  const std::vector<FlagValue> sequence = {flag("--sequence", "4096"), flag("--layers", "4"), flag("--set", "model.multi_token_layers=1")};
  const Job deepseek = resolve_job(job_of("deepseek-v3", sequence));
  EXPECT_EQ(deepseek.model.multi_token_layers, 1);
  EXPECT_EQ(deepseek.model.kinds().size(), 2u);
  EXPECT_TRUE(
      problem(job_of("gpt3-175b", {flag("--set", "model.multi_token_layers=-1")})).starts_with("--set model.multi_token_layers: found -1"));
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
