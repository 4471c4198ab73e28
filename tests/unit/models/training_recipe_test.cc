#include "models/training_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

TrainingRecipe recipe_of(std::int64_t sequence) {
  TrainingRecipe training;
  training.sequence = sequence;
  return training;
}

std::string error_of(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  return stepsim::error_of([&] { check_layout(model, training, parallel); });
}

ParallelLayout tensor_ranks(std::int32_t ranks) {
  ParallelLayout parallel;
  parallel.tensor = ranks;
  return parallel;
}

const ModelSpec kLlama = load_model("llama3-8b");  // 32 heads, 8 key-value heads, ffn_hidden 14336

TEST(TrainingRecipe, AcceptsOrdinaryLayouts) {
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), {}), "");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(8)), "");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(16)), "");  // two ranks share each key-value head
  EXPECT_EQ(error_of(kLlama, recipe_of(1 << 24), {}), "");             // 2^24 tokens with flash attention
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    TrainingRecipe training = recipe_of(512);
    training.decoder_sequence = model.encoder_layers > 0 ? 128 : 0;
    ParallelLayout parallel = tensor_ranks(model.heads % 4 == 0 ? 4 : 1);
    parallel.sequence_parallel = model.has_experts();
    EXPECT_EQ(error_of(model, training, parallel), "") << name;
  }
}

TEST(TrainingRecipe, HeadsDivideOverTensorRanks) {
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(3)), "--tp: found 3, wanted a divisor of 32 heads (1, 2, 4, 8, 16, 32)");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(64)), "--tp: found 64, wanted a divisor of 32 heads (1, 2, 4, 8, 16, 32)");
  ModelSpec model = load_model("llama3.2-3b");  // 24 heads, 8 key-value heads: 6 ranks split the heads but not those
  EXPECT_EQ(error_of(model, recipe_of(8192), tensor_ranks(6)),
            "--tp: found 6, wanted a divisor or a multiple of 8 key-value heads (1, 2, 4, 8, 24)");
  model.ffn_hidden = 8190;
  EXPECT_EQ(error_of(model, recipe_of(8192), tensor_ranks(4)), "--tp: found 4, wanted a divisor of ffn_hidden 8190");
}

TEST(TrainingRecipe, RanksAreCounts) {
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(0)), "--tp: found 0, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(-8)), "--tp: found -8, wanted a whole number from 1 to 1048576");
  const auto with = [](auto set) {
    ParallelLayout parallel;
    set(parallel);
    return error_of(kLlama, recipe_of(8192), parallel);
  };
  EXPECT_EQ(with([](ParallelLayout& p) { p.pipeline = 0; }), "--pp: found 0, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(with([](ParallelLayout& p) { p.virtual_stages = -1; }), "--virtual-stages: found -1, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(with([](ParallelLayout& p) { p.data = 1 << 21; }), "--dp: found 2097152, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(with([](ParallelLayout& p) { p.context = 0; }), "--cp: found 0, wanted a whole number from 1 to 1048576");
  EXPECT_EQ(with([](ParallelLayout& p) { p.context = 2; }), "");
  EXPECT_EQ(with([](ParallelLayout& p) { p.expert = 2; }), "--ep: found 2, wanted 1: llama3-8b has no experts");
  const auto together = [](ParallelLayout& p) { p.tensor = 32, p.pipeline = 1, p.data = 1 << 20; };  // 2^25
  EXPECT_EQ(with(together), "--gpus: found 32 x 1 x 1048576 (tp x pp x dp), wanted at most 16777216 GPUs");
  const auto all = [](ParallelLayout& p) { p.pipeline = p.context = p.data = 1 << 20; };  // 2^60
  EXPECT_EQ(with(all), "--gpus: found 1 x 1048576 x 1048576 x 1048576 (tp x pp x cp x dp), wanted at most 16777216 GPUs");
}

ParallelLayout pipeline_of(std::int32_t stages, std::int32_t chunks, PipelineKind schedule) {
  ParallelLayout parallel;
  parallel.pipeline = stages;
  parallel.virtual_stages = chunks;
  parallel.schedule = schedule;
  return parallel;
}

// Llama-3 8B has 32 layers.
TEST(TrainingRecipe, LayersDivideOverStagesAndChunks) {
  TrainingRecipe training = recipe_of(8192);
  training.global_batch = 64;
  const auto with = [&](std::int32_t stages, std::int32_t chunks, PipelineKind schedule) {
    return error_of(kLlama, training, pipeline_of(stages, chunks, schedule));
  };
  for (const PipelineKind schedule : {PipelineKind::kGPipe, PipelineKind::k1F1B, PipelineKind::kZbH1}) {
    EXPECT_EQ(with(4, 1, schedule), "");
    EXPECT_EQ(with(1, 1, schedule), "");
    EXPECT_EQ(with(4, 2, schedule), "--virtual-stages: found 2 with --schedule " + std::string(pipeline_name(schedule)) +
                                        ", wanted 1, or --schedule interleaved");
  }
  EXPECT_EQ(with(4, 2, PipelineKind::kInterleaved), "");
  EXPECT_EQ(with(4, 1, PipelineKind::kInterleaved),
            "--schedule: found interleaved with --virtual-stages 1, wanted --virtual-stages 2 or more, or another schedule");
  EXPECT_EQ(with(1, 2, PipelineKind::kInterleaved), "--virtual-stages: found 2 with --pp 1, wanted 1, or --pp 2 and more");
  EXPECT_EQ(with(64, 1, PipelineKind::k1F1B), "--pp: found 64, wanted a divisor of 32 layers (or --pp-layout)");
  EXPECT_THAT(with(16, 4, PipelineKind::kInterleaved), HasSubstr("--virtual-stages: found 4"));
  EXPECT_THAT(with(3, 1, PipelineKind::k1F1B), HasSubstr("--pp: found 3"));
  EXPECT_THAT(with(4, 3, PipelineKind::kInterleaved), HasSubstr("--virtual-stages: found 3"));
}

TEST(TrainingRecipe, UnevenStagesAreLayersOfTheModel) {
  ParallelLayout parallel = pipeline_of(4, 1, PipelineKind::k1F1B);
  parallel.split.first_stage_layers = 33;
  EXPECT_THAT(error_of(kLlama, recipe_of(8192), parallel), HasSubstr("--set parallel.first_stage_layers: found 33"));
  parallel.split.first_stage_layers = 7;
  parallel.split.last_stage_layers = 7;  // 9 each for the two between
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "");
}

TEST(TrainingRecipe, InterleavingGoesInGroupsOfMicroBatches) {
  TrainingRecipe training = recipe_of(8192);
  training.global_batch = 12;
  ParallelLayout parallel = pipeline_of(8, 2, PipelineKind::kInterleaved);
  EXPECT_EQ(error_of(kLlama, training, parallel),
            "--global-batch: found 12 (12 micro-batches), wanted a multiple of 8: the interleaved schedule needs micro-batches that are a "
            "multiple of --pp 8");
  parallel.data = 2;
  EXPECT_THAT(error_of(kLlama, training, parallel), HasSubstr("found 12 (6 micro-batches), wanted a multiple of 16"));
  training.global_batch = 16;
  EXPECT_EQ(error_of(kLlama, training, parallel), "");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), pipeline_of(8, 1, PipelineKind::k1F1B)), "");  // one micro-batch on 8 stages
}

TEST(TrainingRecipe, ShardingGroupsDivideTheRanks) {
  TrainingRecipe training = recipe_of(8192);
  training.global_batch = 8;
  const auto with = [&](std::int32_t zero, std::int32_t shard, std::int32_t stages = 1) {
    ParallelLayout parallel = pipeline_of(stages, 1, PipelineKind::k1F1B);
    parallel.data = 8;
    parallel.zero = zero;
    parallel.shard = shard;
    return error_of(kLlama, training, parallel);
  };
  for (const std::int32_t zero : {0, 1, 2, 3}) EXPECT_EQ(with(zero, 0), "");
  EXPECT_EQ(with(4, 0), "--zero: found 4, wanted 0, 1, 2 or 3");
  EXPECT_EQ(with(3, 4), "");
  EXPECT_EQ(with(3, 3), "--set parallel.shard: found 3, wanted a divisor of --dp 8");
  EXPECT_EQ(with(3, -1), "--set parallel.shard: found -1, wanted 0 (all of --dp) or the ranks of a sharding group");
  EXPECT_EQ(with(1, 4), "--set parallel.shard: found 4 with --zero 1, wanted --zero 2 or 3, whose groups may be replicated");
  EXPECT_EQ(with(1, 8), "");  // one group: all ranks
  EXPECT_EQ(with(1, 0, 2), "");
  for (const std::int32_t zero : {2, 3}) {
    EXPECT_EQ(with(zero, 0, 2), "--zero: found " + std::to_string(zero) +
                                    " with --pp 2, wanted 0 or 1: sharded gradients and weights under a pipeline are not built yet");
  }
}

TEST(TrainingRecipe, GradientsAreOfTheProductsDtypeOrFp32) {
  const auto with = [](Precision precision, std::optional<DType> gradient, std::optional<DType> reduce) {
    TrainingRecipe training = recipe_of(8192);
    training.precision = precision;
    training.gradient_dtype = gradient;
    ParallelLayout parallel;
    parallel.reduce_dtype = reduce;
    return error_of(kLlama, training, parallel);
  };
  EXPECT_EQ(with(Precision::kBf16, DType::kBf16, DType::kFp32), "");
  EXPECT_EQ(with(Precision::kBf16, DType::kFp16, {}), "--grad-dtype: found fp16, wanted fp32 or bf16 with --precision bf16");
  EXPECT_EQ(with(Precision::kFp16, DType::kBf16, {}), "--grad-dtype: found bf16, wanted fp32 or fp16 with --precision fp16");
  EXPECT_EQ(with(Precision::kFp32, DType::kBf16, {}), "--grad-dtype: found bf16, wanted fp32 with --precision fp32");
  EXPECT_EQ(with(Precision::kFp32, {}, DType::kBf16), "");  // bf16_compress_hook
  EXPECT_EQ(with(Precision::kBf16, {}, DType::kFp16), "--set parallel.reduce_dtype: found fp16, wanted fp32 or bf16 with --precision bf16");
}

TEST(TrainingRecipe, BucketsAndLimitsAreInRange) {
  ParallelLayout parallel;
  parallel.bucket = Bytes(-1);
  EXPECT_THAT(error_of(kLlama, recipe_of(8192), parallel), HasSubstr("--set parallel.bucket_size: found"));
  parallel.bucket = Bytes(0);
  parallel.gather_limit = -1;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "--set parallel.gather_limit: found -1, wanted 0 (no limit) to 1048576 units");
  parallel.gather_limit = 0;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "");
}

TEST(TrainingRecipe, SequenceFitsModelAndRanks) {
  EXPECT_EQ(error_of(kLlama, recipe_of(0), {}), "--sequence: found 0, wanted a whole number from 1 to 16777216");
  EXPECT_EQ(error_of(kLlama, recipe_of((1 << 24) + 1), {}), "--sequence: found 16777217, wanted a whole number from 1 to 16777216");
  EXPECT_EQ(error_of(load_model("gpt2-124m"), recipe_of(2048), {}),
            "--sequence: found 2048, wanted at most the 1024 learned positions of gpt2-124m");
  EXPECT_EQ(error_of(load_model("mpt-1b"), recipe_of(65536), {}), "");  // its table follows the sequence
  ParallelLayout parallel = tensor_ranks(8);
  EXPECT_EQ(error_of(kLlama, recipe_of(2050), parallel), "");
  parallel.sequence_parallel = true;
  EXPECT_EQ(error_of(kLlama, recipe_of(2050), parallel), "--sequence: found 2050, wanted a multiple of --tp 8 with --sequence-parallel");
  ModelSpec window = kLlama;
  window.attention_window = 4096;
  EXPECT_EQ(error_of(window, recipe_of(4096), {}), "");
  EXPECT_EQ(error_of(window, recipe_of(8192), {}), "");
}

// Each rank has a part of the beginning and one of the end: 2 cp parts of causal sequences.
TEST(TrainingRecipe, SequencesAreSharedEvenly) {
  ParallelLayout parallel;
  parallel.context = 4;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "");
  EXPECT_EQ(error_of(kLlama, recipe_of(8196), parallel),
            "--sequence: found 8196, wanted a multiple of 8 (2 x cp, so that causal work is even)");
  const ModelSpec bert = load_model("bert-large");
  EXPECT_EQ(error_of(bert, recipe_of(508), parallel), "");  // 127 each
  EXPECT_EQ(error_of(bert, recipe_of(510), parallel), "--sequence: found 510, wanted a multiple of 4 (cp)");
  parallel.tensor = 16;
  parallel.sequence_parallel = true;
  EXPECT_EQ(error_of(kLlama, recipe_of(8), parallel), "--sequence: found 8, wanted a multiple of 64 (tp x cp) with --sequence-parallel");
  TrainingRecipe t5 = recipe_of(512);
  t5.decoder_sequence = 128;
  EXPECT_THAT(error_of(load_model("t5-base"), t5, {.context = 2}), HasSubstr("--cp: found 2, wanted 1: t5-base has an encoder"));
}

// 32 heads and 8 key-value heads: with tp 2 a rank has 16 and 4.
TEST(TrainingRecipe, HeadsAreExchangedWhole) {
  ParallelLayout parallel = tensor_ranks(2);
  parallel.context = 8;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "");
  parallel.context_exchange = ContextExchange::kAllToAll;
  EXPECT_EQ(
      error_of(kLlama, recipe_of(8192), parallel),
      "--cp-exchange: found alltoall with 4 key-value heads of a tensor-parallel rank, wanted ring or allgather, or --cp a divisor of "
      "them (found 8)");
  parallel.context = 32;
  EXPECT_THAT(error_of(kLlama, recipe_of(8192), parallel), HasSubstr("alltoall with 16 heads of a tensor-parallel rank"));
  parallel.context = 4;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "");
}

TEST(TrainingRecipe, PackedDocumentsAddUp) {
  TrainingRecipe training = recipe_of(4096);
  training.packed = {1024, 3072};
  EXPECT_EQ(error_of(kLlama, training, {}), "");
  ParallelLayout shared;
  shared.context = 4;
  EXPECT_EQ(error_of(kLlama, training, shared), "");
  training.packed = {1020, 3076};
  EXPECT_EQ(error_of(kLlama, training, shared), "--packed: found a document of 1020 tokens, wanted a multiple of 8 (2 x cp)");
  EXPECT_EQ(error_of(kLlama, training, {}), "");
  training.packed = {1024, 3071};
  EXPECT_EQ(error_of(kLlama, training, {}), "--packed: found documents of 4095 tokens, wanted 4096 together, as --sequence says");
  training.packed = {4096, 0};
  EXPECT_EQ(error_of(kLlama, training, {}), "--packed: found 0, wanted a whole number from 1 to 16777216");
  training.packed.assign(100, 1 << 24);
  EXPECT_EQ(error_of(kLlama, training, {}),
            "--packed: found documents of more than 16777216 tokens, wanted 4096 together, as --sequence says");
  TrainingRecipe encoder = recipe_of(512);
  encoder.decoder_sequence = 128;
  encoder.packed = {512};
  EXPECT_EQ(error_of(load_model("t5-base"), encoder, {}),
            "--packed: found documents, wanted none: t5-base has an encoder, whose sequences are not packed");
}

TEST(TrainingRecipe, OptimizersAreOffloadedInParts) {
  TrainingRecipe training = recipe_of(8192);
  for (const double share : {0.0, 0.25, 1.0}) {
    training.optimizer_offload = share;
    EXPECT_EQ(error_of(kLlama, training, {}), "");
  }
  for (const double share : {-0.1, 1.5, std::nan("")}) {
    training.optimizer_offload = share;
    EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("wanted a share from 0 to 1"));
  }
  training.optimizer_offload = 0.5;
  training.optimizer = OptimizerKind::kNone;
  EXPECT_EQ(error_of(kLlama, training, {}), "");  // in vain, but possible
  training.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(error_of(kLlama, training, {}), "--optimizer-offload: found 0.500000 with --optimizer muon, wanted another optimizer");
  training.optimizer = OptimizerKind::kAdamW;
  training.optimizer_in_backward = true;
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("found 0.500000 with training.optimizer_in_backward"));
}

TEST(TrainingRecipe, AttentionIsAsNarrowAsTheProducts) {
  TrainingRecipe training = recipe_of(8192);
  training.low_precision_attention = true;
  EXPECT_EQ(error_of(kLlama, training, {}), "--fp8-attention: found it with --precision bf16, wanted fp8, mxfp8 or nvfp4 with it");
  training.precision = Precision::kMxFp8;
  EXPECT_EQ(error_of(kLlama, training, {}), "");
  training.attention = AttentionKind::kUnfused;
  EXPECT_EQ(error_of(kLlama, training, {}), "--fp8-attention: found it with --attention unfused, wanted fused with it");
}

TEST(TrainingRecipe, EncoderDecodersHaveTwoSequences) {
  const ModelSpec t5 = load_model("t5-base");
  TrainingRecipe training = recipe_of(512);
  EXPECT_EQ(error_of(t5, training, {}), "--set training.decoder_sequence: found 0, wanted a whole number from 1 to 16777216");
  training.decoder_sequence = 513;
  EXPECT_THAT(error_of(t5, training, {}), HasSubstr("at most the 512 learned positions of t5-base"));
  training.decoder_sequence = 130;
  EXPECT_EQ(error_of(t5, training, {}), "");
  EXPECT_EQ(error_of(t5, training, {.tensor = 4, .sequence_parallel = true}),
            "--set training.decoder_sequence: found 130, wanted a multiple of --tp 4 with --sequence-parallel");
  EXPECT_EQ(error_of(kLlama, training, {}), "--set training.decoder_sequence: found 130, wanted none: llama3-8b has no encoder");
}

// 128 experts of 768; tp x cp x dp ranks of a stage.
TEST(TrainingRecipe, ExpertsDivideOverTheirRanks) {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  TrainingRecipe training = recipe_of(4096);
  training.global_batch = 16;
  const auto with = [&](ParallelLayout parallel) {
    parallel.sequence_parallel = true;
    return error_of(model, training, parallel);
  };
  EXPECT_EQ(with({.tensor = 2, .expert = 8, .data = 4}),
            "--ep: found 8 x expert_tp 2, wanted a divisor of the 8 ranks of a stage (tp x cp x dp); --set parallel.expert_tp=1 keeps "
            "experts whole");
  EXPECT_EQ(with({.tensor = 2, .expert = 8, .expert_tensor = 1, .data = 4}), "");
  EXPECT_EQ(with({.context = 2, .expert = 8, .data = 4}), "");
  EXPECT_EQ(with({.expert = 3, .data = 8}), "--ep: found 3, wanted a divisor of the 128 experts");
  EXPECT_EQ(with({.expert_tensor = 5, .data = 8}), "--set parallel.expert_tp: found 5, wanted a divisor of an expert's ffn_hidden 768");
  EXPECT_EQ(with({.expert = 16, .data = 8}), "--ep: found 16 x expert_tp 1, wanted a divisor of the 8 ranks of a stage (tp x cp x dp)");
  EXPECT_EQ(with({.dispatcher = Dispatcher::kDeepEp, .data = 8}),
            "--dispatcher: found deepep with --ep 1, wanted allgather or alltoall, or --ep 2 and more");
  EXPECT_EQ(with({.expert = 2, .dispatcher = Dispatcher::kDeepEp, .data = 8}), "");
  EXPECT_THAT(error_of(model, training, {.tensor = 2}), HasSubstr("wanted 1, or --sequence-parallel: else each rank routes every token"));
  EXPECT_EQ(error_of(kLlama, recipe_of(4096), {.expert_tensor = 2}),
            "--set parallel.expert_tp: found 2, wanted none: llama3-8b has no experts");
}

TEST(TrainingRecipe, RoutingIsPossible) {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const ParallelLayout parallel = {.expert = 8, .data = 8};
  TrainingRecipe training = recipe_of(4096);
  training.global_batch = 8;
  training.imbalance = 0.5;
  EXPECT_EQ(error_of(model, training, parallel), "--imbalance: found 0.500000, wanted from 1 to 8, the ranks that experts are on");
  training.imbalance = 9;  // more tokens than there are
  EXPECT_THAT(error_of(model, training, parallel), HasSubstr("wanted from 1 to 8, the ranks that experts are on"));
  training.imbalance = 8;
  EXPECT_EQ(error_of(model, training, parallel), "");
  training.capacity = 1.25;
  EXPECT_THAT(error_of(model, training, parallel), HasSubstr("--imbalance: found 8.000000, wanted 1 with a capacity"));
  training.imbalance = 1;
  EXPECT_EQ(error_of(model, training, parallel), "");
  training.capacity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(error_of(model, training, parallel), HasSubstr("--set training.capacity: found inf"));
  training.capacity = 1;
  EXPECT_THAT(error_of(model, training, {.expert = 8, .dispatcher = Dispatcher::kAllGather, .data = 8}),
              HasSubstr("wanted --dispatcher alltoall"));
}

TEST(TrainingRecipe, OptimizersAndTheirShards) {
  TrainingRecipe training = recipe_of(8192);
  training.global_batch = 8;
  const auto with = [&](std::int32_t zero) { return error_of(kLlama, training, {.data = 8, .zero = zero}); };
  training.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(with(1), "");
  EXPECT_EQ(with(3), "--optimizer: found muon with --zero 3, wanted --zero 0 or 1: it orthogonalises whole matrices");
  training.optimizer = OptimizerKind::kAdam8Bit;
  EXPECT_EQ(with(3), "");
  training.moment_dtype = DType::kBf16;
  EXPECT_EQ(with(3), "--set training.moment_dtype: found bf16 with --optimizer adam8bit, wanted none: its moments have 8 bits");
  training.optimizer = OptimizerKind::kAdamW;
  EXPECT_EQ(with(3), "");
  training.momentum = 0.9;
  EXPECT_THAT(with(0), HasSubstr("--set training.momentum: found 0.900000 with --optimizer adamw, wanted --optimizer sgd"));
  training.optimizer = OptimizerKind::kSgd;
  EXPECT_EQ(with(0), "");
  training.optimizer_in_backward = true;
  EXPECT_EQ(with(0), "");
  EXPECT_THAT(with(1), HasSubstr("--set training.optimizer_in_backward: found true with --zero 1"));
  training.global_batch = 16;
  EXPECT_THAT(with(0), HasSubstr("found true with 2 micro-batches, wanted one"));
}

// Groups of replicas that each share the optimizer state.
TEST(TrainingRecipe, OptimizerInstancesDivideTheReplicas) {
  TrainingRecipe training = recipe_of(8192);
  training.global_batch = 8;
  EXPECT_EQ(error_of(kLlama, training, {.optimizer_instances = 4, .data = 8, .zero = 1}), "");
  EXPECT_EQ(error_of(kLlama, training, {.optimizer_instances = 3, .data = 8, .zero = 1}),
            "--set parallel.optimizer_instances: found 3, wanted a divisor of the 8 replicas (dp x cp)");
  EXPECT_THAT(error_of(kLlama, training, {.optimizer_instances = 2, .data = 8}), HasSubstr("wanted 1, or --zero 1"));
}

TEST(TrainingRecipe, ProductsBelowSixteenBitsNeedWholeBlocks) {
  TrainingRecipe training = recipe_of(8192);
  training.primary_weights_low = true;
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("--set training.low_precision_weights: found true, wanted --precision fp8"));
  for (const Precision precision : {Precision::kFp8, Precision::kMxFp8, Precision::kNvFp4}) {
    training.precision = precision;
    EXPECT_EQ(error_of(kLlama, training, {}), "");
  }
  training.precision = Precision::kMxFp8;
  training.sequence = 8208;  // 16 x 513
  EXPECT_EQ(error_of(kLlama, training, {}),
            "--precision: found mxfp8 with 8208 tokens of a micro-batch on a rank, wanted a multiple of 32");
  training.precision = Precision::kFp8;
  EXPECT_EQ(error_of(kLlama, training, {}), "");
  training.gradient_dtype = DType::kFp16;
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("wanted fp32 or bf16 with a --precision below 16 bits"));
}

TEST(TrainingRecipe, DeferredHeadGradientsNeedAPipeline) {
  TrainingRecipe training = recipe_of(8192);
  training.deferred_head_gradients = 2;
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("--set training.deferred_head_gradients: found 2 with --pp 1, wanted 0"));
  EXPECT_EQ(error_of(kLlama, training, {.pipeline = 2}), "");
}

TEST(TrainingRecipe, BatchIsWholeMicroBatches) {
  TrainingRecipe training = recipe_of(8192);
  training.micro_batch = 0;
  EXPECT_EQ(error_of(kLlama, training, {}), "--micro-batch: found 0, wanted a whole number from 1 to 1048576");
  training.micro_batch = 2;
  training.global_batch = -2;
  EXPECT_EQ(error_of(kLlama, training, {}), "--global-batch: found -2, wanted a whole number from 1 to 1048576");
  training.global_batch = 5;
  EXPECT_EQ(error_of(kLlama, training, {}), "--global-batch: found 5, wanted a multiple of 2 (micro-batch 2 x data-parallel 1)");
  training.global_batch = 6;
  EXPECT_EQ(error_of(kLlama, training, {}), "");
}

TEST(TrainingRecipe, DropoutIsAProbability) {
  TrainingRecipe training = recipe_of(8192);
  for (const double dropout : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    training.dropout = dropout;
    EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("--dropout: found")) << dropout;
  }
}

TEST(TrainingRecipe, LossChunksAreTokens) {
  TrainingRecipe training = recipe_of(8192);
  training.loss = LossKind::kChunked;
  training.loss_chunks = 0;
  EXPECT_EQ(error_of(kLlama, training, {}), "--loss: found 0, wanted a whole number from 1 to 8192");
  training.loss_chunks = 8192;
  EXPECT_EQ(error_of(kLlama, training, {}), "");
}

TEST(TrainingRecipe, RefusesSizesBeyondInt64) {
  TrainingRecipe training = recipe_of(1 << 24);
  training.attention = AttentionKind::kUnfused;  // 2^48 scores x 32 heads x 32 layers x 64 bytes = 2^64
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("--sequence: found 16777216, wanted a smaller one"));
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("--attention unfused"));
  training.attention = AttentionKind::kFlash;
  training.micro_batch = training.global_batch = 1 << 20;  // 2^44 tokens of 1.2e6 elements
  EXPECT_THAT(error_of(kLlama, training, {}), HasSubstr("with --micro-batch 1048576: the activations"));
}

TEST(TrainingRecipe, PadsTheVocabulary) {
  EXPECT_EQ(padded_vocab(50257, 128, 1), 50304);    // 393 x 128
  EXPECT_EQ(padded_vocab(51200, 128, 8), 51200);    // 50 x 1024
  EXPECT_EQ(padded_vocab(128256, 128, 8), 129024);  // 125.25 x 1024 -> 126
  EXPECT_EQ(padded_vocab(50257, 1, 1), 50257);
  EXPECT_THROW(padded_vocab(50257, 0, 1), std::logic_error);
}

}  // namespace
}  // namespace stepsim
