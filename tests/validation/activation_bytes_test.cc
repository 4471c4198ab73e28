// The bytes that published tables give for what a layer saves, through the whole way: template, placement, graph, simulate, ledger.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "models/step_builder.h"
#include "sim/memory_ledger.h"
#include "sim/simulate.h"
#include "tests/validation/csv_rows.h"

namespace stepsim {
namespace {

StepRequest paper_request(const std::string& model) {
  StepRequest request;
  request.model = load_model(model);
  request.framework = load_framework("megatron-lm@2022-05");
  request.training.sequence = 2048;
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = request.model.dropout;
  return request;
}

StepResult run(const BuiltStep& step) {
  class OneCost : public CostModel {
   public:
    Cost cost(const OpWork&, DeviceId, TransferSide) const override {
      return Cost{.fixed = {}, .alone = Duration(1000), .issue = Duration(100), .loads = {}};
    }
  };
  return simulate(step.graph, plain_machine(step.graph.device_count()), OneCost());
}

PlacementPolicy policy(const std::string& name) {
  PlacementPolicy policy;
  if (name == "full") policy.granularity = RecomputeGranularity::kFull;
  if (name == "selective") policy.granularity = RecomputeGranularity::kSelective;
  return policy;
}

TEST(ActivationBytes, EveryRowOfTable2IsExact) {
  std::printf("## table: activation-bytes\n");
  std::printf("| model | TP | SP | policy | published formula | bytes | stepsim | difference |\n|---|---|---|---|---|---|---|---|\n");
  for (const NamedCells& row : csv_rows("activation_bytes.csv")) {
    StepRequest request = paper_request(row.at("model"));
    request.model.layers = 2;  // a layer is a layer; two keep the graph small
    request.training.micro_batch = request.training.global_batch = std::stoll(row.at("micro_batch"));
    request.parallel.tensor = std::stoi(row.at("tensor"));
    request.parallel.sequence_parallel = row.at("sequence_parallel") == "1";
    request.placement = policy(row.at("policy"));
    const BuiltStep step = build_step(request);
    const StepResult result = run(step);
    const Bytes both_layers = peak_of_roles(step.graph, result, DeviceId{0}, step.saved_roles);
    // Under full the peak is two inputs and one layer re-made; the table wants what is kept, which `saved` lists.
    Bytes kept;
    for (const SavedTensor& tensor : step.saved) {
      if (tensor.layer == 0 && tensor.placement != "recompute") kept += tensor.bytes;
    }
    const Bytes expected(std::stoll(row.at("bytes_per_layer")));
    EXPECT_EQ(kept, expected) << row.at("model") << " " << row.at("policy") << " tp" << row.at("tensor");
    if (row.at("policy") == "none") {
      EXPECT_EQ(both_layers, expected * 2);
    }
    std::printf("| %s | %s | %s | %s | %s | %s | %lld | %lld |\n", row.at("model").c_str(), row.at("tensor").c_str(),
                row.at("sequence_parallel").c_str(), row.at("policy").c_str(), row.at("formula").c_str(), row.at("bytes_per_layer").c_str(),
                static_cast<long long>(kept.value), static_cast<long long>(kept.value - expected.value));
  }
  std::printf("\n");
}

// "22x2+52x1": 22 segments of two layers, then 52 of one, from the input on.
std::vector<std::int64_t> segment_sizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string& group : split(text, '+')) {
    const std::vector<std::string> pair = split(group, 'x');
    sizes.insert(sizes.end(), static_cast<std::size_t>(std::stoll(pair.at(0))), std::stoll(pair.at(1)));
  }
  return sizes;
}

TEST(ActivationBytes, SegmentsOfGpt3) {
  std::printf("## table: segments\n");
  std::printf("| segments (count x layers, from the input) | stepsim bytes | arithmetic | seed |\n|---|---|---|---|\n");
  for (const NamedCells& row : csv_rows("segments.csv")) {
    StepRequest request = paper_request("gpt3-175b");
    request.placement.segment_sizes = segment_sizes(row.at("sizes"));
    const BuiltStep step = build_step(request);
    const Bytes peak = peak_of_roles(step.graph, run(step), DeviceId{0}, step.saved_roles);
    EXPECT_EQ(peak, Bytes(std::stoll(row.at("bytes")))) << row.at("sizes");
    std::printf("| %s | %lld | %s | %s GB |\n", row.at("sizes").c_str(), static_cast<long long>(peak.value), row.at("arithmetic").c_str(),
                row.at("seed_gb").c_str());
  }
  std::printf("\n");
}

// Chen et al. (1604.06174) section 4.4: recursive halving keeps O(log L) checkpoints for O(L log L) forwards. For L = 2^k layers the right
// half is always the one that backward needs next, so at the deepest point k checkpoints and one layer are alive, the live checkpoint
// being the layer's own input: k c + A. Each level runs the left half of its range once more: L / 2 layers a level, k L / 2 in all.
TEST(ActivationBytes, RecursiveHalving) {
  constexpr std::int64_t kCheckpoint = 50331648, kLayer = 2868903936;  // 2sbh and sbh(34 + 5as/h) of GPT-3 175B
  std::printf("## table: halving\n");
  std::printf(
      "| layers | peak of saved activations | checkpoints beside the open layer | forwards of a layer, per layer |\n|---|---|---|---|\n");
  for (std::int64_t k = 0; k <= 7; ++k) {
    StepRequest request = paper_request("gpt3-175b");
    request.model.layers = std::int64_t{1} << k;
    request.placement.halving = true;
    const BuiltStep step = build_step(request);
    const Bytes peak = peak_of_roles(step.graph, run(step), DeviceId{0}, step.saved_roles);
    EXPECT_EQ(peak, Bytes(k * kCheckpoint + kLayer)) << request.model.layers;
    const LayerTemplate layer = transformer_layer({request.model, request.training, request.parallel, request.framework});
    const double runs =
        forward_runs(make_plan(layer, request.model.layers, request.placement, request.framework), layer, request.model.layers);
    EXPECT_DOUBLE_EQ(runs, 1 + static_cast<double>(k) / 2) << request.model.layers;
    std::printf("| %lld | %lld | %lld | %.1f |\n", static_cast<long long>(request.model.layers), static_cast<long long>(peak.value),
                static_cast<long long>((peak.value - kLayer) / kCheckpoint), runs);
  }
  std::printf("\n");
}

// Figure 7 of 2205.05198: percent of the TP baseline kept by sequence parallelism, selective, both, and full recompute. Read from the plot
// by pixel (../shared/data/papers/megatron_2205.05198_fig7_digitised.csv): 0.5 point is the reading error of a 100-point axis.
TEST(ActivationBytes, Figure7) {
  std::printf("## table: figure-7\n");
  std::printf("| model | SP | selective | SP + selective | full | (stepsim, percent of the TP baseline) |\n|---|---|---|---|---|---|\n");
  const std::vector<NamedCells> table = csv_rows("activation_bytes.csv");
  const auto bytes = [&](const std::string& model, const std::string& sequence_parallel, const std::string& name) {
    StepRequest request = paper_request(model);
    request.model.layers = 1;
    request.parallel.tensor = 8;
    request.parallel.sequence_parallel = sequence_parallel == "1";
    request.placement = policy(name);
    Bytes kept;
    for (const SavedTensor& tensor : build_step(request).saved) {
      if (tensor.layer == 0 && tensor.placement != "recompute") kept += tensor.bytes;
    }
    return static_cast<double>(kept.value);
  };
  for (const NamedCells& row : csv_rows("figure7.csv")) {
    const std::string model = row.at("model");
    const double base = bytes(model, "0", "none");
    const double shares[] = {100 * bytes(model, "1", "none") / base, 100 * bytes(model, "0", "selective") / base,
                             100 * bytes(model, "1", "selective") / base, 100 * bytes(model, "0", "full") / base};
    const char* columns[] = {"sequence_parallel", "selective", "both", "full"};
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], std::stod(row.at(columns[i])), 0.5) << model << " " << columns[i];
    std::printf("| %s | %.1f (%s) | %.1f (%s) | %.1f (%s) | %.1f (%s) | figure in brackets |\n", model.c_str(), shares[0],
                row.at(columns[0]).c_str(), shares[1], row.at(columns[1]).c_str(), shares[2], row.at(columns[2]).c_str(), shares[3],
                row.at(columns[3]).c_str());
  }
  std::printf("\n");
}

// Bytes per token and layer of Llama-3 under each policy (../shared/spec/published_facts.md section 4).
TEST(ActivationBytes, Llama3Policies) {
  std::printf("## table: llama3-bytes\n");
  std::printf("| model | policy | published bytes per token | stepsim |\n|---|---|---|---|\n");
  for (const NamedCells& row : csv_rows("llama3_bytes.csv")) {
    StepRequest request;
    request.model = load_model(row.at("model"));
    request.model.layers = 1;
    request.framework = load_framework("megatron-core@2025");
    request.training.sequence = 8192;
    if (row.at("policy") == "full") {
      request.placement.granularity = RecomputeGranularity::kFull;
    } else if (row.at("policy") != "none") {
      request.placement.granularity = RecomputeGranularity::kSelective;
      request.placement.modules = split(row.at("policy"), '+');
    }
    Bytes kept;
    for (const SavedTensor& tensor : build_step(request).saved) {
      if (tensor.layer == 0 && tensor.placement != "recompute") kept += tensor.bytes;
    }
    EXPECT_EQ(kept.value, std::stoll(row.at("bytes_per_token")) * 8192) << row.at("model") << " " << row.at("policy");
    std::printf("| %s | %s | %s | %lld |\n", row.at("model").c_str(), row.at("policy").c_str(), row.at("bytes_per_token").c_str(),
                static_cast<long long>(kept.value / 8192));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace stepsim
