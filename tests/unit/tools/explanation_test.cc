#include <algorithm>
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

// Two stages: the second one waits for its first input while the first computes, and that is no part of the transfer's time.
TEST(Explanation, TransfersWaitApartFromTheirTime) {
  const Job job = gpt_job({flag("--sequence-parallel", "true"), flag("--pp", "2"), flag("--global-batch", "4")});
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  Duration waiting{};
  for (const OpAccount& op : explained.ops) {
    const Cost cost = run.costs->cost(run.step.graph.work(op.op), DeviceId{op.stage});
    EXPECT_EQ(op.time - op.slowed, cost.fixed + cost.alone) << op.name;
    if (run.step.graph.label(run.step.graph.op(op.op).kind) == "send forward") waiting += op.waiting;
  }
  EXPECT_GT(waiting, Duration{});
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
  for (const char* const name :
       {"name", "phase", "flops", "hbm_bytes", "link_bytes", "time_s", "bound_by", "efficiency", "efficiency_of", "detail"}) {
    EXPECT_TRUE(json["ops"][0].contains(name)) << name;
  }
  EXPECT_NE(explain_text(job, run, explanation(job, run)).find("layers 0-3"), std::string::npos);
}

// Of two pipeline stages on two nodes: products on the tensor cores, collectives of a node on NVLink, transfers between nodes.
TEST(Explanation, OpsSayWhatBoundsThem) {
  const Job job = gpt_job({flag("--sequence-parallel", "true"), flag("--pp", "2"), flag("--global-batch", "4")});
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  std::map<std::string, std::string> bounds;  // by kind of op
  for (const OpAccount& op : explained.ops) {
    const Cost cost = run.costs->cost(run.step.graph.work(op.op), DeviceId{op.stage});
    const double alone_s = seconds(cost.fixed + cost.alone);
    bounds[std::string(run.step.graph.label(run.step.graph.op(op.op).kind))] = op.kernel.bound_by;
    EXPECT_GE(op.kernel.efficiency, 0) << op.name;
    EXPECT_LE(op.kernel.efficiency, 1) << op.name;
    if (std::holds_alternative<Gemm>(run.step.graph.work(op.op))) {
      EXPECT_NEAR(op.kernel.efficiency, op.flops.value / (alone_s * 312e12), 1e-9) << op.name;  // an A100's dense peak
      EXPECT_EQ(op.kernel.of, "312 TFLOP/s bf16");
    }
    if (std::holds_alternative<MemoryBound>(run.step.graph.work(op.op)) && op.kernel.bound_by == "memory") {
      EXPECT_NEAR(op.kernel.efficiency, static_cast<double>(op.memory.value) / (alone_s * 2039e9), 1e-6) << op.name;
    }
  }
  EXPECT_EQ(bounds.at("fc1"), "compute");
  EXPECT_EQ(bounds.at("norm 1 output all-gather"), "link");
  EXPECT_EQ(bounds.at("send forward"), "network");
  EXPECT_EQ(bounds.at("AdamW update"), "memory");
  EXPECT_EQ(bounds.at("gradient norm all-reduce"), "latency");
}

// Lines of the table of bounds fit a screen.
TEST(Explanation, BoundsFitTheColumns) {
  const Job job = gpt_job({flag("--sequence-parallel", "true"), flag("--recompute", "full")});
  const StepRun run = run_step(job);
  const std::string text = explain_text(job, run, explanation(job, run));
  std::size_t at = text.find("\nwhat bounds them, alone on the device, by time: compute ");
  ASSERT_NE(at, std::string::npos);
  std::size_t lines = 0;
  while (at < text.size() - 1) {
    const std::size_t end = text.find('\n', at + 1);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - at - 1, 110u) << text.substr(at + 1, end - at - 1);
    ++lines;
    at = end;
  }
  EXPECT_GT(lines, 20u);
  EXPECT_NE(text.find(" % of 312 TFLOP/s bf16  256x128 tiles, "), std::string::npos);
}

TEST(Explanation, OffloadedTensorsLiveTwice) {
  const Job job = resolve_job(main_job("2", {flag("--offload-modules", "norm 1 output"), parse_set("placement.release=layer-start"),
                                             parse_set("placement.keep_last_layers=1")}));
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  const std::int64_t bytes = std::int64_t{8192} * 4096 / 8 * 2;  // s h / t of 2 bytes: sequence-parallel
  EXPECT_EQ(explained.layers[1].moved.value, bytes);
  EXPECT_EQ(explained.layers[2].moved.value, 0);
  EXPECT_EQ(explained.layers[1].saved, explained.layers[2].saved);  // the layers save the same
  bool found = false;
  for (const TensorAccount& account : explained.tensors) {
    if (account.tensor->name != "norm 1 output" || account.tensor->placement != "offload") continue;
    found = true;
    EXPECT_EQ(account.layer, "layer 0");
    ASSERT_EQ(account.lives.size(), 2u);
    EXPECT_EQ(account.lives[0].born, "forward L0 norm 1");
    EXPECT_EQ(account.lives[0].dies, "forward wait for copies");  // before layer 1
    EXPECT_EQ(account.lives[1].born, "backward L0 copy in norm 1 output");
    EXPECT_LE(account.lives[0].dies_at, account.lives[1].born_at);
    EXPECT_LT(account.lives[1].born_at, account.lives[1].dies_at);
  }
  EXPECT_TRUE(found);
}

TEST(Explanation, MemoryThatIsFreedByEventNamesTheCopy) {
  const Job job = resolve_job(main_job("2", {flag("--offload-modules", "norm 1 output"), parse_set("placement.release=event")}));
  const StepRun run = run_step(job);
  const Explanation explained = explanation(job, run);
  const auto moved = [](const TensorAccount& account) { return account.tensor->placement == "offload"; };
  const auto first = std::find_if(explained.tensors.begin(), explained.tensors.end(), moved);
  ASSERT_NE(first, explained.tensors.end());
  EXPECT_EQ(first->lives.front().dies, "forward L0 copy out norm 1 output");
}

TEST(Explanation, OffloadModulesAreWhatTheirOpsSave) {
  const Job job = resolve_job(main_job("2"));
  const std::vector<ModuleAccount> modules = offload_modules_of(job);
  const auto core = std::find_if(modules.begin(), modules.end(), [](const ModuleAccount& module) { return module.name == "core_attn"; });
  ASSERT_NE(core, modules.end());
  // A GPU of eight has 4 of 32 query heads and 1 of 8 key and value heads, of 128; its output too, and a statistic in fp32 for each head.
  EXPECT_EQ(core->bytes.value, std::int64_t{8192} * (2 * 128 * (4 + 1 + 1 + 4) + 4 * 4));
  const std::string text = module_table_text(job, module_table(job), modules);
  EXPECT_NE(text.find("\n--offload-modules of llama3-8b with megatron-core@2025: "), std::string::npos) << text;
}

}  // namespace stepsim
