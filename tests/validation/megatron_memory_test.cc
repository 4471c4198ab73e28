// Measured peaks of Megatron-LM's functional tests (../shared/data/memory): how far the simulated steps are from them, which rule explains
// how much (spec/megatron_memory.md section 1), and 20 runs component by component.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "hardware/roofline_cost_model.h"
#include "schema/read_message.h"
#include "sim/simulate.h"
#include "tests/validation/golden_peak.h"
#include "tools/error_statistics.h"
#include "tools/published_format.h"
#include "tools/stage_memory.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

const std::string kFolder = STEPSIM_SHARED_DIR "/data/memory/";
const std::string kGoldens = kFolder + "megatron_golden_memory.csv";

bool is_there(const std::string& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(file, ignored);
}

CsvTable golden_table() { return parse_published(read_text_file(kGoldens, kLargestTable), kGoldens); }

double share_within(const std::vector<double>& errors, double bound) {
  const auto within = std::count_if(errors.begin(), errors.end(), [bound](double error) { return std::abs(error) <= bound; });
  return static_cast<double>(within) / static_cast<double>(errors.size());
}

std::size_t rows_within(const std::vector<double>& errors, double bound) {
  return static_cast<std::size_t>(std::llround(share_within(errors, bound) * static_cast<double>(errors.size())));
}

double median(const std::vector<double>& errors) { return error_statistics(errors)->median; }

void print_statistics(const std::string& name, const std::vector<double>& errors) {
  std::printf("| %s | %zu | %zu | %zu | %zu | %zu | %.2f %% | %.1f %% |\n", name.c_str(), errors.size(), rows_within(errors, 0.01),
              rows_within(errors, 0.03), rows_within(errors, 0.05), rows_within(errors, 0.1), 100 * median(errors),
              100 * error_statistics(errors)->max);
}

// By the values of a label; "core" and "all" too.
std::map<std::string, std::vector<double>> errors_by(const PublishedComparison& comparison, const std::string& label) {
  std::map<std::string, std::vector<double>> errors;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    errors[comparison.labels.at(label)[i]].push_back(comparison.rows[i].error());
  }
  return errors;
}

std::vector<double> joined(const std::map<std::string, std::vector<double>>& errors, const std::string& start) {
  std::vector<double> all;
  for (const auto& [name, some] : errors) {
    if (name.compare(0, start.size(), start) == 0) all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(MegatronMemory, MeetsThePeaksThatWereMeasured) {
  if (!is_there(kGoldens)) GTEST_SKIP();
  const CsvTable table = golden_table();
  const PublishedComparison comparison = compare_memory(table);
  const std::map<std::string, std::vector<double>> groups = errors_by(comparison, "group");
  std::printf(
      "## table: megatron-memory\n| peak allocated | rows | <= 1 %% | <= 3 %% | <= 5 %% | <= 10 %% | median | max "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const auto& [name, errors] : groups) print_statistics(name, errors);
  for (const auto& [name, errors] : errors_by(comparison, "size")) print_statistics(name, errors);

  std::map<std::string, std::vector<double>> of_core;
  const std::vector<GoldenRow> rows = golden_rows(table);
  const auto note = [&](const std::string& name, const std::vector<Comparison>& compared) {
    for (const Comparison& row : compared) {
      if (is_core(rows[row.row].run)) of_core[name].push_back(row.error());
    }
  };
  note("core", comparison.rows);
  note("core, first iteration", comparison.other.at("mem_max_first"));
  note("core, between steps", comparison.other.at("mem_alloc_last"));
  for (const auto& [name, errors] : of_core) print_statistics(name, errors);

  // Issue 6: "It must show". Dense: all of GPT without experts.
  const std::vector<double> dense = joined(groups, "dense"), experts = joined(groups, "MoE");
  EXPECT_LE(median(dense), 0.01);
  EXPECT_GE(share_within(dense, 0.05), 0.90);
  EXPECT_GE(share_within(dense, 0.10), 0.95);
  EXPECT_LE(median(experts), 0.03);
  EXPECT_GE(share_within(experts, 0.10), 0.90);
  EXPECT_DOUBLE_EQ(share_within(groups.at("T5"), 0.05), 1);
  EXPECT_DOUBLE_EQ(share_within(groups.at("BERT"), 0.05), 1);
  EXPECT_GE(share_within(of_core.at("core, first iteration"), 0.03), 0.90);
  EXPECT_LE(median(of_core.at("core, between steps")), 0.01);
  EXPECT_LE(median(of_core.at("core")), 0.0033);  // section 0: what a developer has, without dates
  EXPECT_EQ(of_core.at("core").size(), 381u);
  // Section 6: 58 rows are not to be taken, of which the three DeepSeek proxies have no reason there and are compared.
  std::size_t skipped = 0;
  for (const auto& [reason, count] : comparison.skipped) skipped += count;
  EXPECT_EQ(skipped, 55u);
  EXPECT_TRUE(comparison.notes.empty());
}

// What the rules give without those behind a stage.
enum Stage : std::size_t {
  kStatic,
  kFp32Loss,
  kWithScores,
  kWithMasks,
  kWorkspaces,
  kLastStage,
  kInFlight,
  kCopy,
  kBuffers,
  kWithExperts,
  kFp16,
  kFusedLoss,
  kRest,
  kStages
};
constexpr std::array<const char*, kStages> kStageNames = {"A weights, gradients, optimizer, first stage, two 16-bit logits",
                                                          "B + loss in fp32",
                                                          "C + attention scores",
                                                          "D + dropout masks",
                                                          "E + cuBLAS and TE workspaces",
                                                          "F last stage",
                                                          "G + interleaved passes in flight",
                                                          "H + copy of flash attention's output",
                                                          "I + global buffers, q and k norms",
                                                          "J + experts and their workspaces",
                                                          "K + fp16 gradients, last iteration",
                                                          "L + out-of-place loss, waiting gradients",
                                                          "M + pipeline buffers, final norm, batch"};

struct AblatedRow {
  const GoldenRow* golden = nullptr;
  GoldenPeaks peaks;
  bool fp16() const { return golden->run.arguments.on("fp16"); }
};

double error_of_bytes(const AblatedRow& row, std::int64_t bytes, bool last_iteration) {
  const double measured = row.fp16() && last_iteration ? *row.golden->last_peak : *row.golden->second_peak;
  return static_cast<double>(bytes) / measured - 1;
}

double error_at(const AblatedRow& row, std::size_t stage) {
  const GoldenPeak& peak = stage >= kLastStage ? row.peaks.last : row.peaks.first;
  std::int64_t bytes = peak.total();
  const auto without = [&](std::size_t since, std::initializer_list<PeakPart> parts) {
    for (const PeakPart part : parts) bytes -= stage < since ? peak.of(part) : 0;
  };
  without(kRest, {PeakPart::kPipelineBuffers, PeakPart::kFinalNorm, PeakPart::kEmbeddingMask, PeakPart::kBatch});
  without(kFusedLoss, {PeakPart::kFurtherLogits});
  without(kWithExperts, {PeakPart::kExperts, PeakPart::kGroupedEngine});
  without(kBuffers, {PeakPart::kGlobalBuffer, PeakPart::kNormalisedHeads});
  without(kCopy, {PeakPart::kAttentionCopy});
  if (stage >= kLastStage) without(kInFlight, {PeakPart::kEarlierChunks});
  without(kWorkspaces, {PeakPart::kBlas, PeakPart::kEngine});
  without(kWithMasks, {PeakPart::kMasks});
  without(kWithScores, {PeakPart::kScores});
  if (stage < kFp32Loss) bytes -= peak.of(PeakPart::kLogits) / 3;           // 2 of 3 Lg
  if (stage < kFp16 && row.fp16()) bytes += peak.of(PeakPart::kGradients);  // as fp32
  return error_of_bytes(row, bytes, stage >= kFp16);
}

std::vector<AblatedRow> ablated_rows(const std::vector<GoldenRow>& rows) {
  std::vector<AblatedRow> ablated;
  for (const GoldenRow& row : rows) {
    if (row.peak() && is_core(row.run) && reason_to_skip(row.run).empty()) ablated.push_back({&row, golden_peaks(row)});
  }
  return ablated;
}

TEST(MegatronMemory, EachRuleOfTheAblationExplainsMore) {
  if (!is_there(kGoldens)) GTEST_SKIP();
  const std::vector<GoldenRow> rows = golden_rows(golden_table());
  const std::vector<AblatedRow> ablated = ablated_rows(rows);
  std::printf(
      "## table: megatron-ablation\n| rules | rows | <= 1 %% | <= 3 %% | <= 5 %% | <= 10 %% | median | max "
      "|\n|---|---|---|---|---|---|---|---|\n");
  std::vector<double> before;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    std::vector<double> errors;
    for (const AblatedRow& row : ablated) errors.push_back(error_at(row, stage));
    print_statistics(kStageNames[stage], errors);
    if (!before.empty()) {
      EXPECT_LE(median(errors), median(before)) << kStageNames[stage];
      EXPECT_GE(rows_within(errors, 0.1), rows_within(before, 0.1)) << kStageNames[stage];
    }
    before = errors;
  }
  // Section 1, stage M, which has no allocator: median 0.33 %; 356 of 381 rows within 3 %, 350 without dates (section 0).
  EXPECT_LE(median(before), 0.006);
  EXPECT_GE(rows_within(before, 0.03), 345u);
}

TEST(MegatronMemory, EachRuleIsMissedWhenItAloneIsLeftOut) {
  if (!is_there(kGoldens)) GTEST_SKIP();
  const std::vector<GoldenRow> rows = golden_rows(golden_table());
  const std::vector<AblatedRow> ablated = ablated_rows(rows);
  const auto errors_with = [&](const std::function<std::int64_t(const AblatedRow&)>& bytes) {
    std::vector<double> errors;
    for (const AblatedRow& row : ablated) errors.push_back(error_of_bytes(row, bytes(row), true));
    return errors;
  };
  const auto without = [&](std::initializer_list<PeakPart> parts) {
    return errors_with([parts](const AblatedRow& row) {
      std::int64_t bytes = row.peaks.last.total();
      for (const PeakPart part : parts) bytes -= row.peaks.last.of(part);
      return bytes;
    });
  };
  const std::vector<double> full = without({});
  const std::map<std::string, std::vector<double>> left_out = {
      {"the last stage: the first", errors_with([](const AblatedRow& row) { return row.peaks.first.total(); })},
      {"the loss in fp32",
       errors_with([](const AblatedRow& row) { return row.peaks.last.total() - row.peaks.last.of(PeakPart::kLogits) * 2 / 3; })},
      {"attention scores", without({PeakPart::kScores})},
      {"dropout masks", without({PeakPart::kMasks, PeakPart::kEmbeddingMask})},
      {"workspaces", without({PeakPart::kBlas, PeakPart::kEngine})},
      {"interleaved passes in flight", without({PeakPart::kEarlierChunks})},
      {"the copy of flash attention's output", without({PeakPart::kAttentionCopy})},
      {"global buffers", without({PeakPart::kGlobalBuffer})},
      {"experts", without({PeakPart::kExperts})},
      {"workspaces of grouped products", without({PeakPart::kGroupedEngine})},
      {"pipeline buffers", without({PeakPart::kPipelineBuffers})},
      {"the batch", without({PeakPart::kBatch})}};
  print_statistics("all rules, sums of tensors", full);
  for (const auto& [name, errors] : left_out) {
    print_statistics("all but " + name, errors);
    EXPECT_LT(rows_within(errors, 0.03), rows_within(full, 0.03)) << name;
  }
}

using Json = nlohmann::json;

const GoldenRow& row_named(const std::vector<GoldenRow>& rows, const std::string& test_case, const std::string& golden) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const GoldenRow& row) { return row.run.test_case == test_case && row.run.golden == golden; });
  EXPECT_NE(found, rows.end()) << test_case << " " << golden;
  return *found;
}

// The examples round: statistics of all norms to 8 bytes a token (RMSNorm keeps 4), a router's tensors to 16 bytes a token and expert (here
// scores, probabilities, map and the row map of spec/published_facts.md section 4). They keep the output of latent attention's product
// down for keys and values, 2 T' (kl + qp), beside the latent that is copied out of it; here it dies. That is 0.26 % of its layers.
constexpr double kLayersTolerance = 0.003;
// Theirs is a layer, six hidden states and 2 Lg; here each of its tensors.
constexpr double kMultiTokenTolerance = 0.012;
constexpr double kSumTolerance = 0.001;

TEST(MegatronMemory, WorkedExamplesAreMetComponentByComponent) {
  const std::string file = kFolder + "worked_examples.json";
  if (!is_there(kGoldens) || !is_there(file)) GTEST_SKIP();
  const std::vector<GoldenRow> rows = golden_rows(golden_table());
  const Json examples = Json::parse(read_text_file(file));
  ASSERT_EQ(examples.size(), 20u);
  for (const Json& example : examples) {
    const std::string test_case = example.at("case"), golden = example.at("golden");
    SCOPED_TRACE(test_case + " " + golden);
    const GoldenPeak peak = golden_peaks(row_named(rows, test_case, golden)).last;
    const auto bytes = [&](std::initializer_list<const char*> names) {
      std::int64_t sum = 0;
      for (const char* const name : names) sum += example.at("components_bytes").value(name, std::int64_t{0});
      return sum;
    };
    const auto near = [&](PeakPart part, std::initializer_list<const char*> names, double tolerance) {
      const auto wanted = static_cast<double>(bytes(names));
      EXPECT_NEAR(static_cast<double>(peak.of(part)), wanted, wanted * tolerance) << *names.begin();
    };
    near(PeakPart::kWeights, {"dense.param", "exp.param"}, 1e-4);
    near(PeakPart::kGradients, {"dense.grad", "exp.grad"}, 1e-4);
    near(PeakPart::kOptimizer, {"dense.opt", "exp.opt"}, 1e-4);
    near(PeakPart::kBlas, {"cublas"}, 0);
    near(PeakPart::kEngine, {"te_ws"}, 0);
    near(PeakPart::kGroupedEngine, {"grouped_ws"}, 0);
    near(PeakPart::kGlobalBuffer, {"glob_gather", "glob_scores"}, 0);
    near(PeakPart::kPipelineBuffers, {"p2p"}, 0);
    near(PeakPart::kEmbeddingMask, {"emb_do"}, 0);
    near(PeakPart::kFinalNorm, {"final_ln"}, 0);
    near(PeakPart::kBatch, {"batch"}, 0);
    EXPECT_EQ(peak.of(PeakPart::kLogits) + peak.of(PeakPart::kFurtherLogits), bytes({"ce"}));
    std::int64_t layers = 0;
    for (const PeakPart part : {PeakPart::kLayers, PeakPart::kScores, PeakPart::kMasks, PeakPart::kAttentionCopy,
                                PeakPart::kNormalisedHeads, PeakPart::kExperts, PeakPart::kEarlierChunks})
      layers += peak.of(part);
    const auto wanted = static_cast<double>(bytes({"layers"}));
    EXPECT_NEAR(static_cast<double>(layers), wanted, wanted * kLayersTolerance);
    near(PeakPart::kMultiToken, {"mtp"}, kMultiTokenTolerance);
    // The sum, and with it what has no place in the example: statistics of the loss and of the final norm.
    const auto predicted = example.at("predicted").get<double>();
    EXPECT_NEAR(static_cast<double>(peak.total()), predicted, predicted * kSumTolerance);
  }
}

// A step of all micro-batches has the peaks of one of few (stage_memory.h).
TEST(MegatronMemory, FewMicroBatchesTellThePeak) {
  if (!is_there(kGoldens)) GTEST_SKIP();
  std::size_t compared = 0;
  for (const GoldenRow& row : golden_rows(golden_table())) {
    if (row.run.golden != "golden_values_dev_dgx_h100.json" || !is_core(row.run) || !reason_to_skip(row.run).empty()) continue;
    const Job job = megatron_job(row.run).job;
    const std::int64_t all = micro_batches_of(job), few = telling_micro_batches(job.training, job.parallel);
    if (all == few || all > 32) continue;
    ++compared;
    StepRequest request = step_request(job);
    const auto peaks_of = [&](std::int64_t micro_batches) {
      request.training.global_batch = micro_batches * request.training.micro_batch * request.parallel.data;
      const BuiltStep built = build_step(request);
      const Machine machine = make_machine(job.gpu, job.cluster, built.graph.device_count());
      const StepResult result = simulate(built.graph, machine, RooflineCostModel(job.gpu, job.cluster, machine));
      std::vector<Bytes> peaks;
      for (const MemoryPeak& peak : memory_peaks(built.graph, result).device) peaks.push_back(peak.bytes);
      return peaks;
    };
    EXPECT_EQ(peaks_of(all), peaks_of(few)) << row.id();
  }
  EXPECT_GE(compared, 5u);
}

}  // namespace
}  // namespace stepsim
