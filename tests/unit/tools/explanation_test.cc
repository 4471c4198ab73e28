#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_jobs.h"
#include "tools/explain_report.h"

namespace stepsim {

static Job gpt_job(std::vector<FlagValue> more) {
  JobInput input{"",
                 {flag("--model", "megatron-22b"), flag("--hardware", "a100-sxm-80gb"), flag("--layers", "4"),
                  flag("--attention", "unfused"), flag("--tp", "8")}};
  input.flags.insert(input.flags.end(), more.begin(), more.end());
  return resolve_job(input);
}

// 2205.05198 Table 2 with s = 2048, b = 1, h = 6144, a = 64, t = 8.
constexpr std::int64_t kSbh = 2048 * 6144, kScores = std::int64_t{5} * 64 * 2048 * 2048;  // 5 a s^2 b

TEST(Explanation, LayersSaveWhatThePaperSays) {
  const Job tensor = gpt_job({});
  const StepRun run = run_step(tensor);
  const Explanation explained = explanation(tensor, run);
  ASSERT_EQ(explained.layers.size(), 6u);  // embedding, 4 layers, head
  EXPECT_EQ(explained.layers[0].name, "embedding");
  EXPECT_EQ(explained.layers[5].name, "head");
  for (int i = 1; i <= 4; ++i) {
    EXPECT_EQ(explained.layers[static_cast<std::size_t>(i)].saved.value, 10 * kSbh + 24 * kSbh / 8 + kScores / 8);
  }
  const Job sequence = gpt_job({flag("--sequence-parallel", "true")});
  EXPECT_EQ(explanation(sequence, run_step(sequence)).layers[2].saved.value, (34 * kSbh + kScores) / 8);
  const Job selective = gpt_job({flag("--sequence-parallel", "true"), flag("--recompute", "selective")});
  EXPECT_EQ(explanation(selective, run_step(selective)).layers[2].saved.value, kSbh * 34 / 8);
  const Job full = gpt_job({flag("--recompute", "full")});
  EXPECT_EQ(explanation(full, run_step(full)).layers[2].saved.value, kSbh * 2);
}

TEST(Explanation, FlopsOfALayer) {
  const Job job = gpt_job({flag("--recompute", "full")});
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  // Per GPU: 24 s h^2 / t for the weights' products and 4 s^2 h / t for QK^T and PV, forward; twice that backward.
  const double forward = (24.0 * 2048 * 6144 * 6144 + 4.0 * 2048 * 2048 * 6144) / 8;
  EXPECT_DOUBLE_EQ(explained.layers[2].forward.value, forward);
  EXPECT_DOUBLE_EQ(explained.layers[2].backward.value, 2 * forward);
  EXPECT_GT(explained.layers[2].recompute.value, 0.5 * forward);
  EXPECT_LE(explained.layers[2].recompute.value, forward);
  EXPECT_EQ(explained.layers[0].recompute.value, 0);
}

TEST(Explanation, TensorsLiveBetweenTheirOps) {
  const Job job = gpt_job({flag("--recompute", "selective")});
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  bool made_again = false;
  for (const TensorAccount& account : explained.tensors) {
    ASSERT_FALSE(account.lives.empty()) << account.tensor->name;
    for (const TensorLife& life : account.lives) EXPECT_LE(life.born_at, life.dies_at) << account.tensor->name;
    made_again = made_again || (account.tensor->placement == "recompute" && account.lives.size() == 2);
  }
  EXPECT_TRUE(made_again);
  EXPECT_FALSE(explained.ops.empty());
  for (std::size_t i = 1; i < explained.ops.size(); ++i) EXPECT_LE(explained.ops[i - 1].start, explained.ops[i].start);
}

TEST(Explanation, APipelinesLayersAreThoseOfItsStages) {
  const Job one = gpt_job({flag("--sequence-parallel", "true")});
  const Job two = gpt_job({flag("--sequence-parallel", "true"), flag("--pp", "2"), flag("--global-batch", "4")});
  const StepRun of_one = run_step(one), of_two = run_step(two);
  const Explanation whole = explanation(one, of_one), cut = explanation(two, of_two);
  ASSERT_EQ(cut.layers.size(), whole.layers.size());
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    EXPECT_EQ(cut.layers[i].name, whole.layers[i].name);
    EXPECT_EQ(cut.layers[i].saved, whole.layers[i].saved) << whole.layers[i].name;
    EXPECT_EQ(cut.layers[i].forward, whole.layers[i].forward) << whole.layers[i].name;
    EXPECT_EQ(cut.layers[i].backward, whole.layers[i].backward) << whole.layers[i].name;
  }
  bool second = false;
  for (const OpAccount& op : cut.ops) second = second || op.stage == 1;
  EXPECT_TRUE(second);
  const std::string text = explain_text(two, of_two, cut);
  EXPECT_NE(text.find("one micro-batch, on one device of each pipeline stage"), std::string::npos);
  EXPECT_NE(text.find("2-3"), std::string::npos);
}

TEST(Explanation, ModuleTableSelectsTheAttentionCore) {
  const Job job = gpt_job({});
  const std::vector<ModuleAccount> table = module_table(job);
  ASSERT_FALSE(table.empty());
  EXPECT_EQ(table[0].name, "core_attn");
  // Softmax output, dropout mask, dropped softmax: (2 + 1 + 2) a s^2 b / t; the core's output stays for the projection.
  EXPECT_EQ(table[0].bytes.value, kScores / 8);
}

TEST(Explanation, JsonHasTheFieldsOfTheContract) {
  const Job job = gpt_job({});
  const StepRun run = run_step(job);
  const nlohmann::json json = nlohmann::json::parse(explain_json(job, run, explanation(job, run), module_table(job)));
  for (const char* const name : {"name", "saved_bytes", "forward_flops", "backward_flops", "recompute_flops"}) {
    EXPECT_TRUE(json["layers"][0].contains(name)) << name;
  }
  for (const char* const name : {"layer", "op", "name", "shape", "dtype", "bytes", "placement", "born", "dies"}) {
    EXPECT_TRUE(json["tensors"][0].contains(name)) << name;
  }
  for (const char* const name : {"name", "phase", "flops", "hbm_bytes", "link_bytes", "time_s", "bound_by"}) {
    EXPECT_TRUE(json["ops"][0].contains(name)) << name;
  }
  EXPECT_NE(explain_text(job, run, explanation(job, run)).find("layers 0-3"), std::string::npos);
}

}  // namespace stepsim
