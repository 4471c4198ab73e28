// FLOPs, MFU and HFU that papers and repositories print, from dimensions and printed times alone: no simulation, no calibration.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/flops.h"
#include "models/framework_preset.h"
#include "models/layer_template.h"
#include "models/placement_plan.h"
#include "tests/validation/csv_rows.h"

namespace stepsim {
namespace {

constexpr std::int64_t kVocabMultiple = 128;  // Megatron's make_vocab_size_divisible_by

FlopsConvention convention_of(const NamedCells& row) {
  const auto convention = convention_from_name(row.at("convention"));
  EXPECT_TRUE(convention.has_value()) << row.at("convention");
  return convention.value_or(FlopsConvention::k6N);
}

Rerun rerun_named(const std::string& name, const ModelSpec& model) {
  const auto layers = static_cast<double>(model.layers);
  if (name == "selective") return {.attention = layers};
  if (name == "full") return {.layer_matrices = layers, .attention = layers};
  if (name == "palm") return {.layer_matrices = 0.75 * layers, .attention = layers, .head = 0.75};
  EXPECT_EQ(name, "none");
  return {};
}

TrainingRecipe recipe_of(std::int64_t sequence, std::int64_t global_batch) {
  TrainingRecipe training;
  training.sequence = sequence;
  training.global_batch = global_batch;
  return training;
}

TEST(PublishedFlops, ConventionsPerToken) {
  const std::vector<NamedCells> rows = csv_rows("flops_conventions.csv");
  EXPECT_EQ(rows.size(),
            2 * all_conventions().size());  // llm-foundry's has no published value for DeepSeek-V3, multi-token prediction adds one
  for (const NamedCells& row : rows) {
    ModelSpec model = load_model(row.at("model"));
    model.multi_token_layers = std::stoll(row.at("multi_token_layers"));
    const std::int64_t vocab = padded_vocab(model.vocab, kVocabMultiple, 1);
    const double flops = flops_per_token(convention_of(row), model, std::stoll(row.at("sequence")), vocab).model;
    EXPECT_EQ(flops, std::stod(row.at("flops"))) << row.at("convention");
    EXPECT_NEAR(flops / 1e9, std::stod(row.at("printed_g")), 0.0005) << row.at("convention");
  }
}

// The table above is the shared one, number by number.
TEST(PublishedFlops, ConventionsAreTheSharedOnes) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/papers/flops_conventions.json");
  if (!file) GTEST_SKIP() << "no shared data";
  const nlohmann::json shared = nlohmann::json::parse(file);
  const std::map<std::string, std::string> columns = {{"llama3-8b", "llama3_8b_seq8192"}, {"deepseek-v3", "deepseek_v3_seq4096"}};
  for (const NamedCells& row : csv_rows("flops_conventions.csv")) {
    std::set<double> values;
    for (const auto& [name, value] : shared.at(columns.at(row.at("model"))).items()) values.insert(value.get<double>());
    const bool derived = row.at("model") == "deepseek-v3" && row.at("convention") == "megatron-full";  // the table has no such row
    EXPECT_EQ(values.count(std::stod(row.at("flops"))), derived ? 0u : 1u) << row.at("model") << " " << row.at("convention");
  }
}

TEST(PublishedFlops, StepsOfEquations7And8) {
  for (const NamedCells& row : csv_rows("step_flops.csv")) {
    const ModelSpec model = load_model(row.at("model"));
    const TrainingRecipe training = recipe_of(2048, std::stoll(row.at("global_batch")));
    const std::int64_t vocab = padded_vocab(model.vocab, kVocabMultiple, 8);
    EXPECT_EQ(vocab, 51200);
    for (const char* rerun : {"none", "selective", "full"}) {
      const StepFlops flops = step_flops(FlopsConvention::kMegatronFull, model, training, vocab, rerun_named(rerun, model));
      const double expected = std::stod(row.at(std::string(rerun) == "none" ? "model_flops" : rerun));
      EXPECT_NEAR(flops.hardware.value / expected, 1, 1e-12) << row.at("model") << " " << rerun;
      EXPECT_NEAR(flops.model.value / std::stod(row.at("model_flops")), 1, 1e-12) << row.at("model");
    }
  }
}

// The same numbers from the placement: what a plan runs again of the paper's own layer, t = 8 with sequence parallelism.
TEST(PublishedFlops, StepsOfPlans) {
  for (const NamedCells& row : csv_rows("step_flops.csv")) {
    const ModelSpec model = load_model(row.at("model"));
    const FrameworkPreset framework = load_framework("megatron-lm@2022-05");
    TrainingRecipe training = recipe_of(2048, std::stoll(row.at("global_batch")));
    training.attention = AttentionKind::kUnfused;
    training.dropout = model.dropout;
    const ParallelLayout parallel = {.tensor = 8, .sequence_parallel = true};
    const LayerTemplate layer = transformer_layer({model, training, parallel, framework});
    const std::pair<const char*, RecomputeGranularity> policies[] = {{"model_flops", RecomputeGranularity::kNone},
                                                                     {"selective", RecomputeGranularity::kSelective},
                                                                     {"full", RecomputeGranularity::kFull}};
    for (const auto& [column, granularity] : policies) {
      PlacementPolicy policy;
      policy.granularity = granularity;
      const Rerun rerun = rerun_of_plan(make_plan(layer, model.layers, policy, framework), layer, model.layers);
      const StepFlops flops =
          step_flops(FlopsConvention::kMegatronFull, model, training, padded_vocab(model.vocab, kVocabMultiple, 8), rerun);
      EXPECT_NEAR(flops.hardware.value / std::stod(row.at(column)), 1, 1e-12) << row.at("model") << " " << column;
    }
  }
}

Utilisation utilisation_of(const NamedCells& row) {
  const ModelSpec model = load_model(row.at("model"));
  const TrainingRecipe training = recipe_of(std::stoll(row.at("sequence")), std::stoll(row.at("global_batch")));
  const std::int64_t vocab = padded_vocab(model.vocab, kVocabMultiple, 1);
  const StepFlops flops = step_flops(convention_of(row), model, training, vocab, rerun_named(row.at("rerun"), model));
  const double step = row.at("step_time_s").empty()
                          ? static_cast<double>(training.sequence * training.global_batch) / std::stod(row.at("tokens_per_s"))
                          : std::stod(row.at("step_time_s"));
  const NamedPeak peak = {row.at("peak_name"), FlopsPerSecond(std::stod(row.at("peak_tflops")) * 1e12)};
  return utilisation(flops, duration_from_seconds(step), std::stoll(row.at("devices")), peak);
}

TEST(PublishedFlops, Utilisation) {
  for (const NamedCells& row : csv_rows("utilisation.csv")) {
    const Utilisation found = utilisation_of(row);
    const double tolerance = std::stod(row.at("tolerance"));
    EXPECT_NEAR(100 * found.mfu, std::stod(row.at("mfu")), tolerance) << row.at("source") << " " << row.at("model");
    const double hfu = row.at("hfu").empty() ? 100 * found.mfu : std::stod(row.at("hfu"));  // none printed: nothing runs again
    EXPECT_NEAR(100 * found.hfu, hfu, tolerance) << row.at("source") << " " << row.at("model");
    EXPECT_EQ(found.peak_name, row.at("peak_name"));
  }
}

// 6ND with the nominal N = 175e9 is 50.13 %; with the exact N (Table 3's P and the last LayerNorm) 50.02 %.
TEST(PublishedFlops, SixNdOfTheNominalSize) {
  NamedCells row = csv_rows("utilisation.csv").front();
  for (const NamedCells& candidate : csv_rows("utilisation.csv")) {
    if (candidate.at("convention") == "6n" && candidate.at("model") == "gpt3-175b") row = candidate;
  }
  ASSERT_EQ(row.at("convention"), "6n");
  const double exact = static_cast<double>(parameter_count(load_model("gpt3-175b"), 2048).total);
  const double mfu = 100 * utilisation_of(row).mfu;
  EXPECT_NEAR(mfu, 50.02, 0.005);                    // 6 x 174.616e9 x 131072 / (13.75 x 64 x 312e12)
  EXPECT_NEAR(mfu * 175e9 / exact, 50.126, 0.0005);  // seed_numbers_check.csv: 50.1259
}

TEST(PublishedFlops, OnePeakPerName) {
  const ModelSpec model = load_model("llama3-405b");
  const StepFlops flops = step_flops(FlopsConvention::kMegatronCausal, model, recipe_of(8192, 2048), padded_vocab(model.vocab, 128, 8), {});
  std::set<std::string> names;
  std::set<double> fractions;
  for (const NamedCells& row : csv_rows("peaks.csv")) {
    const NamedPeak peak = {row.at("peak_name"), FlopsPerSecond(std::stod(row.at("peak_tflops")) * 1e12)};
    const Utilisation found = utilisation(flops, duration_from_seconds(12.081), 8192, peak);
    EXPECT_NEAR(100 * found.mfu, std::stod(row.at("mfu")), 0.005) << peak.name;
    EXPECT_EQ(found.hfu, found.mfu) << "nothing runs again";
    names.insert(found.peak_name);
    fractions.insert(found.mfu);
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(fractions.size(), 3u) << "FP8 dense and BF16 sparse are one number with two names";
}

TEST(PublishedFlops, ParametersOfTable1) {
  for (const NamedCells& row : csv_rows("gpt_parameters.csv")) {
    ModelSpec model = load_model("gpt3-175b");
    model.layers = std::stoll(row.at("layers"));
    model.hidden = std::stoll(row.at("hidden"));
    model.heads = model.kv_heads = std::stoll(row.at("heads"));
    model.head_dim = model.hidden / model.heads;
    model.ffn_hidden = 4 * model.hidden;
    ASSERT_FALSE(model_problem(model).has_value());
    EXPECT_NEAR(static_cast<double>(parameter_count(model, 2048).total) / 1e9, std::stod(row.at("parameters_b")), 0.05);
  }
}

std::int64_t router_weights(const ModelSpec& model) {
  std::int64_t weights = 0;
  for (const auto& [kind, layers] : kind_counts(model)) weights += layers * layer_parameters(model, kind).router;
  return weights;
}

// Dimensions of the catalog against the shared table, every row of it: matrices, embeddings and learned positions, without norms and biases
// (a table of token types is none of its matrices, nor are BERT's other heads).
TEST(PublishedFlops, CatalogIsTheSharedOne) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/published/models.json");
  if (!file) GTEST_SKIP() << "no shared data";
  const nlohmann::json shared = nlohmann::json::parse(file);
  EXPECT_EQ(shared.size(), 60u);
  for (const auto& [name, row] : shared.items()) {
    const ModelSpec model = load_model(name);
    const ParameterCount count = parameter_count(model, 2048);
    const bool table = row.at("pos_emb_len").is_number() && row.at("pos_emb_len").get<int>() > 0;
    const std::int64_t vocab = model.vocab * model.hidden;
    const std::int64_t head = model.tied_head ? 0 : vocab;
    EXPECT_EQ(count.layer_matrices + vocab + head + (table ? count.positions : 0), row.at("params_from_dims").get<std::int64_t>()) << name;
    const std::int64_t active = count.active_layer_matrices - router_weights(model) + vocab;
    // The column counts the router's product of most rows, so the difference is that or nothing.
    const std::int64_t published = row.at("active_matmul_params_incl_lm_head").get<std::int64_t>();
    EXPECT_TRUE(published == active || published == active + router_weights(model)) << name << " " << published - active;
  }
}

// A row of llm-foundry's table as header -> field; the first field is quoted and holds commas.
NamedCells mpt_row(const std::vector<std::string>& header, std::string line) {
  if (line.back() == '\r') line.pop_back();
  const std::size_t close = line.find("\",");
  const std::vector<std::string> fields = split(line.substr(line[0] == '"' ? close + 2 : line.find(',') + 1), ',');
  EXPECT_EQ(fields.size() + 1, header.size()) << line;
  NamedCells row;
  for (std::size_t i = 0; i < fields.size() && i + 1 < header.size(); ++i) row[header[i + 1]] = fields[i];
  return row;
}

// The steps of llm-foundry's tables: N exact, MFU (6N + 12Ld s) and HFU (4/3 with checkpointing) from tokens per second.
// Peaks: 312, 989.4 and for FP8 1978.9 TFLOP/s (../shared/spec/published_facts.md, NVIDIA datasheet). Tolerance 0.6 point,
// published_checks.csv: throughputs are rounded.
TEST(PublishedFlops, StepsOfMpt) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/published/mpt_llmfoundry.csv");
  if (!file) GTEST_SKIP() << "no shared data";
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  if (line.back() == '\r') line.pop_back();
  const std::vector<std::string> header = split(line, ',');
  int rows = 0;
  while (std::getline(file, line)) {
    const NamedCells row = mpt_row(header, line);
    const ModelSpec model = load_model("mpt-" + row.at("Model"));
    const std::int64_t sequence = std::stoll(row.at("SeqLen (T)"));
    EXPECT_EQ(parameter_count(model, sequence).total, std::stoll(row.at("NumParams"))) << line;
    const bool again = row.at("Activation Checkpointing") == "True";
    const TrainingRecipe training = recipe_of(sequence, std::stoll(row.at("GlobalBatchSize")));
    const StepFlops flops =
        step_flops(FlopsConvention::kLlmFoundry, model, training, model.vocab, rerun_named(again ? "full" : "none", model));
    const double step = std::stod(row.at("GlobalBatchSize (T)")) / std::stod(row.at("Throughput (T/s)"));
    const bool h100 = row.at("GPU").find("h100") != std::string::npos;
    const bool fp8 = row.at("Precision") == "amp_fp8";
    const NamedPeak peak = fp8    ? NamedPeak{"h100 fp8 dense", FlopsPerSecond(1978.9e12)}
                           : h100 ? NamedPeak{"h100 bf16 dense", FlopsPerSecond(989.4e12)}
                                  : NamedPeak{"a100 bf16 dense", FlopsPerSecond(312e12)};
    const Utilisation found = utilisation(flops, duration_from_seconds(step), std::stoll(row.at("# GPUs")), peak);
    EXPECT_NEAR(100 * found.mfu, std::stod(row.at("MFU")), 0.02) << line;
    EXPECT_NEAR(100 * found.hfu, std::stod(row.at("HFU")), 0.02) << line;
    ++rows;
  }
  EXPECT_GE(rows, 139);
}

}  // namespace
}  // namespace stepsim
