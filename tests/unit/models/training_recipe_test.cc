#include "models/training_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/input_error.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

TrainingRecipe recipe_of(std::int64_t sequence) {
  TrainingRecipe training;
  training.sequence = sequence;
  return training;
}

std::string error_of(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  try {
    check_layout(model, training, parallel);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

ParallelLayout tensor_ranks(std::int32_t ranks) {
  ParallelLayout parallel;
  parallel.tensor = ranks;
  return parallel;
}

const ModelSpec kLlama = load_model("llama3-8b");  // 32 heads, 8 key-value heads, ffn_hidden 14336

TEST(TrainingRecipe, AcceptsOrdinaryLayouts) {
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), {}), "no error");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(8)), "no error");
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), tensor_ranks(16)), "no error");  // two ranks share each key-value head
  EXPECT_EQ(error_of(kLlama, recipe_of(1 << 24), {}), "no error");             // 2^24 tokens with flash attention
  for (const std::string& name : model_names()) {
    EXPECT_EQ(error_of(load_model(name), recipe_of(1024), tensor_ranks(4)), "no error") << name;
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
  ParallelLayout parallel;
  parallel.pipeline = 2;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "--pp: found 2, wanted 1: not built yet");
  parallel.pipeline = 1;
  parallel.data = 4;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "--dp: found 4, wanted 1: not built yet");
  parallel.data = 1;
  parallel.context = 0;
  EXPECT_EQ(error_of(kLlama, recipe_of(8192), parallel), "--cp: found 0, wanted a whole number from 1 to 1048576");
}

TEST(TrainingRecipe, SequenceFitsModelAndRanks) {
  EXPECT_EQ(error_of(kLlama, recipe_of(0), {}), "--sequence: found 0, wanted a whole number from 1 to 16777216");
  EXPECT_EQ(error_of(kLlama, recipe_of((1 << 24) + 1), {}), "--sequence: found 16777217, wanted a whole number from 1 to 16777216");
  EXPECT_EQ(error_of(load_model("gpt2-124m"), recipe_of(2048), {}),
            "--sequence: found 2048, wanted at most the 1024 learned positions of gpt2-124m");
  EXPECT_EQ(error_of(load_model("mpt-1b"), recipe_of(65536), {}), "no error");  // its table follows the sequence
  ParallelLayout parallel = tensor_ranks(8);
  EXPECT_EQ(error_of(kLlama, recipe_of(2050), parallel), "no error");
  parallel.sequence_parallel = true;
  EXPECT_EQ(error_of(kLlama, recipe_of(2050), parallel), "--sequence: found 2050, wanted a multiple of --tp 8 with --sequence-parallel");
  ModelSpec window = kLlama;
  window.attention_window = 4096;
  EXPECT_EQ(error_of(window, recipe_of(4096), {}), "no error");
  EXPECT_EQ(error_of(window, recipe_of(8192), {}),
            "--sequence: found 8192, wanted at most the attention window of llama3-8b, 4096: longer is not built yet");
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
  EXPECT_EQ(error_of(kLlama, training, {}), "no error");
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
  EXPECT_EQ(error_of(kLlama, training, {}), "no error");
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
