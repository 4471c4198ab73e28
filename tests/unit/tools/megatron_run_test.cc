#include "tools/megatron_run.h"

#include "models/stage_layout.h"
#include "tests/unit/tools/test_jobs.h"
#include "tools/megatron_layout.h"
#include "tools/megatron_model.h"
#include "tools/megatron_recipe.h"

namespace stepsim {
namespace {

using Values = std::map<std::string, std::string>;

// The test suite's usual GPT, changed as `changes` say; "" takes a flag away.
MegatronRun run_with(const Values& changes, const std::string& golden = "golden_values_dev_dgx_a100.json",
                     const std::string& test_case = "gpt/some_case") {
  Values values = {{"num-layers", "12"},
                   {"hidden-size", "512"},
                   {"num-attention-heads", "8"},
                   {"seq-length", "1024"},
                   {"micro-batch-size", "4"},
                   {"global-batch-size", "32"},
                   {"bf16", "true"},
                   {"max-position-embeddings", "1024"},
                   {"transformer-impl", "transformer_engine"}};
  for (const auto& [flag, value] : changes) values[flag] = value;
  return {test_case, golden, MegatronArguments(values, {"rows.csv", 7, 1})};
}

ParallelLayout layout_with(const Values& changes, const std::string& test_case = "gpt/some_case") {
  const MegatronRun run = run_with(changes, "golden_values_dev_dgx_h100.json", test_case);
  return megatron_layout(run, megatron_model(run));
}

std::vector<std::int64_t> layers_of(const ParallelLayout& parallel, std::int64_t layers) {
  std::vector<std::int64_t> counts;
  for (const ModelChunk& part : stage_layout(layers, parallel.pipeline, parallel.virtual_stages, parallel.split).parts)
    counts.push_back(part.layers);
  return counts;
}

TEST(MegatronArguments, TakesQuotesBackslashesAndUnderscoresOff) {
  const MegatronArguments arguments(
      {{"override_opt_param", "true"}, {"layout", "\"Et\\|tL\""}, {"empty", ""}, {"env.A_B", "\":4096:8\""}, {"no", "false"}}, {"f", 2, 1});
  EXPECT_TRUE(arguments.on("override-opt-param"));
  EXPECT_EQ(arguments.text("layout"), "Et|tL");
  EXPECT_FALSE(arguments.given("empty"));
  EXPECT_EQ(arguments.text("env.A_B"), ":4096:8");
  EXPECT_TRUE(arguments.given("no"));
  EXPECT_FALSE(arguments.on("no"));
  EXPECT_EQ(arguments.whole("absent", 5), 5);
  EXPECT_EQ(error_of([&] { arguments.whole("layout", 1); }),
            "f:2:1: found --layout \"Et|tL\", wanted a whole number from 1 to 1099511627776");
  EXPECT_EQ(MegatronArguments({{"modules", "[core_attn mlp]"}}, {}).words("modules"), (std::vector<std::string>{"core_attn", "mlp"}));
}

TEST(MegatronArguments, NamesFlagsThatNobodyKnows) {
  EXPECT_EQ(
      unknown_flags(MegatronArguments({{"num-layers", "2"}, {"lr-decay-iters", "3"}, {"env.NCCL_ALGO", "Ring"}, {"turbo", "true"}}, {})),
      (std::vector<std::string>{"turbo"}));
}

TEST(MegatronModel, HasMegatronsDefaults) {
  const ModelSpec model = megatron_model(run_with({}));
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.ffn_hidden, 2048);  // 4 hidden
  EXPECT_EQ(model.vocab, 50257);
  EXPECT_EQ(model.position, Position::kLearned);
  EXPECT_DOUBLE_EQ(model.dropout, 0.1);
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(megatron_model(run_with({{"swiglu", "true"}})).ffn_hidden, 1344);    // floor(4 x 512 x 2/3 / 64) x 64
  EXPECT_EQ(megatron_model(run_with({{"num-query-groups", "2"}})).kv_heads, 8);  // without --group-query-attention
  EXPECT_EQ(megatron_model(run_with({{"num-query-groups", "2"}, {"group-query-attention", "true"}})).kv_heads, 2);
}

TEST(MegatronModel, ReadsVocabularies) {
  EXPECT_EQ(megatron_model(run_with({{"tokenizer-type", "GPTSentencePieceTokenizer"}})).vocab, 256000);
  EXPECT_EQ(megatron_model(run_with({{"tokenizer-type", "NullTokenizer"}, {"vocab-size", "131073"}})).vocab, 131073);
  EXPECT_EQ(
      megatron_model(run_with({{"encoder-num-layers", "12"}, {"vocab-extra-ids", "100"}, {"decoder-num-layers", "12"}}, "a100", "t5/x"))
          .vocab,
      29096);
  EXPECT_NE(error_of([] { megatron_model(run_with({{"tokenizer-type", "Strange"}})); }), "");
}

TEST(MegatronModel, ReadsExpertLayers) {
  const Values experts = {{"num-experts", "8"}, {"disable-bias-linear", "true"}, {"moe-layer-freq", "([0]*3+[1]*9)"}};
  const ModelSpec model = megatron_model(run_with(experts));
  EXPECT_EQ(model.expert_layers, (std::vector<std::uint8_t>{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(model.experts.ffn_hidden, 2048);
  EXPECT_EQ(model.experts.top_k, 2);
  Values every = experts;
  every["moe-layer-freq"] = "3";
  EXPECT_EQ(megatron_model(run_with(every)).expert_layers, (std::vector<std::uint8_t>{1, 0, 0}));
  every["moe-layer-freq"] = "[0]-1";
  EXPECT_NE(error_of([&] { megatron_model(run_with(every)); }), "");
}

TEST(MegatronLayout, CountsChunksOfAStage) {
  const ParallelLayout parallel = layout_with({{"pipeline-model-parallel-size", "4"}, {"num-layers-per-virtual-pipeline-stage", "1"}});
  EXPECT_EQ(parallel.virtual_stages, 3);  // 12 layers / 4 stages / 1
  EXPECT_EQ(parallel.schedule, PipelineKind::kInterleaved);
  EXPECT_EQ(parallel.data, 2);
  EXPECT_EQ(parallel.micro_batch_group, 4);
  EXPECT_EQ(layout_with({{"num-layers-per-virtual-pipeline-stage", "1"}}).virtual_stages, 1);  // without stages
}

TEST(MegatronLayout, SplitsUnevenly) {
  // transformer_block.py: 6 layers, embedding and loss are 8 over 4 x 2 chunks, one each; the ends hold no layer.
  const ParallelLayout ends = layout_with({{"num-layers", "6"},
                                           {"pipeline-model-parallel-size", "4"},
                                           {"num-virtual-stages-per-pipeline-rank", "2"},
                                           {"account-for-embedding-in-pipeline-split", "true"},
                                           {"account-for-loss-in-pipeline-split", "true"}});
  EXPECT_EQ(layers_of(ends, 6), (std::vector<std::int64_t>{0, 1, 1, 1, 1, 1, 1, 0}));
  const ParallelLayout given = layout_with(
      {{"pipeline-model-parallel-size", "4"}, {"decoder-first-pipeline-num-layers", "2"}, {"decoder-last-pipeline-num-layers", "4"}});
  EXPECT_EQ(layers_of(given, 12), (std::vector<std::int64_t>{2, 3, 3, 4}));
  const ParallelLayout text = layout_with({{"num-layers", "16"},
                                           {"pipeline-model-parallel-size", "2"},
                                           {"mtp-num-layers", "1"},
                                           {"pipeline-model-parallel-layout", "Et*3|(tt|)*6tmL"}});
  EXPECT_EQ(text.virtual_stages, 4);
  EXPECT_EQ(layers_of(text, 16), (std::vector<std::int64_t>{3, 2, 2, 2, 2, 2, 2, 1}));
}

TEST(MegatronLayout, RanksAreThoseOfTheTestsMachine) {
  EXPECT_EQ(layout_with({{"tensor-model-parallel-size", "2"}}).data, 4);
  EXPECT_EQ(layout_with({{"tensor-model-parallel-size", "2"}}, "gpt/case_1node").data, 2);
  EXPECT_EQ(layout_with({{"tensor-model-parallel-size", "8"}}, "gpt/gpt3_15b_8t_release").data, 32);  // 256 GPUs
  EXPECT_NE(error_of([] { layout_with({{"tensor-model-parallel-size", "3"}}); }), "");
  const ParallelLayout experts = layout_with({{"num-experts", "8"},
                                              {"expert-model-parallel-size", "4"},
                                              {"tensor-model-parallel-size", "2"},
                                              {"expert-tensor-parallel-size", "1"},
                                              {"disable-bias-linear", "true"}});
  EXPECT_EQ(experts.expert, 4);
  EXPECT_EQ(experts.expert_replicas(), 2);  // 8 / (1 x 4)
  EXPECT_EQ(experts.dispatcher, Dispatcher::kAllGather);
  EXPECT_EQ(golden_machine("golden_values_lts.json"), "a100-sxm-80gb");
  EXPECT_EQ(golden_machine("golden_values_dev_dgx_gb200_2nd.json"), "gb200-nvl72");
}

TEST(MegatronLayout, ReadsHowContextParallelRanksExchange) {
  const auto exchange = [](const std::string& type) {
    return layout_with({{"context-parallel-size", "2"}, {"cp-comm-type", type}}).context_exchange;
  };
  EXPECT_EQ(exchange(""), ContextExchange::kRing);  // transformer_config.py: p2p
  EXPECT_EQ(exchange("p2p"), ContextExchange::kRing);
  EXPECT_EQ(exchange("all_gather"), ContextExchange::kAllGather);
  EXPECT_EQ(exchange("a2a a2a p2p"), ContextExchange::kAllToAll);  // of each layer: the first
  EXPECT_EQ(exchange("a2a+p2p"), ContextExchange::kRing);
  EXPECT_NE(error_of([&] { exchange("mail"); }), "");
  EXPECT_EQ(layout_with({}).context_exchange, std::nullopt);
}

// spec/megatron_memory.md section 4.
TEST(MegatronRecipe, ChoosesTheAttentionKernel) {
  const auto attention = [](const Values& changes, const std::string& golden) {
    return megatron_recipe(run_with(changes, golden)).attention;
  };
  const Values deterministic = {{"env.NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"}}, free = {{"env.NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"}};
  EXPECT_EQ(attention({{"attention-backend", "unfused"}}, "golden_values_dev_dgx_h100.json"), AttentionKind::kUnfused);
  EXPECT_EQ(attention({{"transformer-impl", "local"}}, "golden_values_dev_dgx_h100.json"), AttentionKind::kUnfused);
  EXPECT_EQ(attention(deterministic, "golden_values_dev_dgx_h100.json"), AttentionKind::kFused);
  EXPECT_EQ(attention(deterministic, "golden_values_dev_dgx_a100.json"), AttentionKind::kFlash);
  EXPECT_EQ(attention(deterministic, "golden_values_dev_dgx_gb200.json"), AttentionKind::kFlash);
  EXPECT_EQ(attention(free, "golden_values_dev_dgx_gb200.json"), AttentionKind::kFused);
  EXPECT_EQ(attention(deterministic, "golden_values_lts_dgxa100_dracooci.json"), AttentionKind::kUnfused);
  EXPECT_EQ(attention(free, "golden_values_lts_dgxa100_dracooci.json"), AttentionKind::kFlash);
  EXPECT_EQ(attention(deterministic, "golden_values_lts_dgx_a100.json"), AttentionKind::kFlash);
}

TEST(MegatronRecipe, ReadsPrecisionAndLoss) {
  EXPECT_EQ(megatron_recipe(run_with({})).gradient_dtype, std::nullopt);
  EXPECT_EQ(megatron_recipe(run_with({{"grad-reduce-in-bf16", "true"}})).gradient_dtype, DType::kBf16);
  EXPECT_EQ(megatron_recipe(run_with({{"bf16", ""}, {"fp16", "true"}})).precision, Precision::kFp16);
  EXPECT_EQ(megatron_recipe(run_with({{"cross-entropy-loss-fusion", "true"}, {"cross-entropy-fusion-impl", "te"}})).loss, LossKind::kFused);
  const MegatronRun native = run_with({{"cross-entropy-loss-fusion", "true"}});
  EXPECT_EQ(megatron_recipe(native).loss, LossKind::kPlain);
  EXPECT_FALSE(megatron_preset(native).loss_in_place);
  EXPECT_TRUE(megatron_preset(run_with({})).loss_in_place);
  EXPECT_EQ(megatron_recipe(run_with({{"hidden-dropout", "0.0"}})).attention_dropout, 0.1);
  EXPECT_EQ(
      megatron_recipe(run_with({{"step-batch-size-schedule", "\"0:384 200B:768 400B:1152\""}, {"global-batch-size", ""}})).global_batch,
      384);
  const TrainingRecipe aware = megatron_recipe(run_with({{"use-precision-aware-optimizer", "true"}, {"exp-avg-dtype", "bf16"}}));
  EXPECT_EQ(aware.master_bits, 16);
  EXPECT_EQ(aware.moment_dtype, DType::kBf16);
  EXPECT_EQ(aware.second_moment_dtype, DType::kFp32);
}

TEST(MegatronRecipe, ReadsTheBlasWorkspace) {
  const auto workspace = [](const std::string& text) {
    return configured_blas_workspace(run_with({{"env.CUBLAS_WORKSPACE_CONFIG", text}}).arguments);
  };
  EXPECT_EQ(workspace(":4096:8"), Bytes(33554432));
  EXPECT_EQ(workspace(":4096:2:16:8"), Bytes(8519680));  // PyTorch's default below sm_90
  EXPECT_EQ(workspace(""), std::nullopt);
  EXPECT_NE(error_of([&] { workspace(":4096"); }), "");
  EXPECT_NE(error_of([&] { workspace("4096:8"); }), "");
}

TEST(MegatronRecipe, ReadsRecompute) {
  EXPECT_EQ(megatron_placement(run_with({})).granularity, RecomputeGranularity::kNone);
  const PlacementPolicy full =
      megatron_placement(run_with({{"recompute-granularity", "full"}, {"recompute-method", "block"}, {"recompute-num-layers", "3"}}));
  EXPECT_EQ(full.granularity, RecomputeGranularity::kFull);
  EXPECT_EQ(full.method, RecomputeMethod::kBlock);
  EXPECT_EQ(full.num_layers, 3);
  const PlacementPolicy some =
      megatron_placement(run_with({{"recompute-granularity", "selective"}, {"recompute-modules", "[mlp moe_act]"}}));
  EXPECT_EQ(some.modules, (std::vector<std::string>{"mlp", "moe_act"}));
}

TEST(MegatronRun, SkipsOnlyWhatItCannotPredict) {
  EXPECT_EQ(reason_to_skip(run_with({})), "");
  for (const Values& changes : std::vector<Values>{{{"hybrid-layer-pattern", "M-M*"}},
                                                   {{"fp8-format", "hybrid"}},
                                                   {{"perform-rl-step", "true"}},
                                                   {{"optimizer", "muon"}},
                                                   {{"fine-grained-activation-offloading", "true"}},
                                                   {{"use-megatron-fsdp", "true"}, {"num-experts", "8"}}}) {
    EXPECT_NE(reason_to_skip(run_with(changes)), "") << changes.begin()->first;
  }
  EXPECT_EQ(reason_to_skip(run_with({{"use-megatron-fsdp", "true"}})), "");
}

}  // namespace
}  // namespace stepsim
