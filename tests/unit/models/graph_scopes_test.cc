// CUDA graphs: which ops are launched together.
#include "models/graph_scopes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "models/step_builder.h"
#include "tests/unit/models/mixture_case.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

StepRequest request_of(const std::string& model, CudaGraph graph) {
  StepRequest request;
  request.model = load_model(model);
  request.model.layers = 2;
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 2048;
  request.training.global_batch = 2;
  request.training.cuda_graph = graph;
  return request;
}

bool in_passes(const OpGraph& graph, const Op& op) {
  const std::string_view phase = graph.label(op.phase);
  return phase == kPhaseNames[static_cast<std::size_t>(Phase::kForward)] ||
         phase == kPhaseNames[static_cast<std::size_t>(Phase::kRecompute)] ||
         phase == kPhaseNames[static_cast<std::size_t>(Phase::kBackward)];
}

// Launches of the host: ops that are launched by themselves, and groups of consecutive ones.
std::int64_t launches(const OpGraph& graph) {
  std::int64_t count = 0;
  std::int32_t last = -1;
  for (const OpId id : graph.issue_order(IssuerId{0})) {
    const std::int32_t group = graph.op(id).launch_group;
    count += group < 0 || group != last;
    last = group;
  }
  return count;
}

TEST(GraphScopes, NoneLaunchesEachOp) {
  const OpGraph graph = build_step(request_of("llama3-8b", CudaGraph::kNone)).graph;
  EXPECT_EQ(launches(graph), static_cast<std::int64_t>(graph.issue_order(IssuerId{0}).size()));
}

// Two layers and two micro-batches: a graph for each layer, micro-batch and direction; what is in none is the MLP's, the ends', the
// optimizer's.
TEST(GraphScopes, AttentionAndRouterOfALayerAreOneGraph) {
  for (const char* const model : {"llama3-8b", "mixtral-8x7b"}) {
    const OpGraph graph = build_step(request_of(model, CudaGraph::kScopes)).graph;
    std::set<std::int32_t> groups;
    std::int64_t within = 0;
    for (const Op& op : graph.ops()) {
      if (op.launch_group < 0) continue;
      ++within;
      groups.insert(op.launch_group);
      EXPECT_GE(op.layer, 0) << graph.label(op.kind);
      for (const char* const outside : {"fc1", "fc2", "gate and up", "down", "permute", "dispatch", "combine"}) {
        EXPECT_EQ(std::string(graph.label(op.kind)).find(outside), std::string::npos) << graph.label(op.kind);
      }
    }
    EXPECT_EQ(groups.size(), 2u * 2 * 2) << model;
    EXPECT_EQ(launches(graph), static_cast<std::int64_t>(graph.issue_order(IssuerId{0}).size()) - within + 8) << model;
  }
}

TEST(GraphScopes, TheRouterIsWithinAndItsExpertsAreNot) {
  const LayerTemplate layer = experts_layer(catalog_case("mixtral-8x7b"));
  GraphScopes scopes(true);
  std::int32_t number = 0;
  bool router = false;
  for (std::size_t op = 0; op < layer.forward.size(); ++op) {
    const bool graphed = scopes.of(layer, 0, static_cast<std::int32_t>(op), Phase::kForward, number++) >= 0;
    if (layer.forward[op].module == "moe,router") {
      router = true;
      EXPECT_TRUE(graphed) << layer.forward[op].name;
    }
    if (layer.forward[op].module.starts_with("moe,experts") || layer.forward[op].name.find("permute") != std::string::npos) {
      EXPECT_FALSE(graphed) << layer.forward[op].name;
    }
  }
  EXPECT_TRUE(router);
  EXPECT_EQ(scopes.of(layer, -1, 0, Phase::kForward, number), -1);  // the embedding or the head
  EXPECT_EQ(GraphScopes(false).of(layer, 0, 0, Phase::kForward, 0), -1);
}

// All passes are one launch; the optimizer's ops are launched by themselves; no launch within waits for the device.
TEST(GraphScopes, AFullGraphIsOneLaunch) {
  for (const std::int32_t stages : {1, 2}) {
    StepRequest request = request_of("llama3-8b", CudaGraph::kFull);
    request.parallel.pipeline = stages;
    const OpGraph graph = build_step(request).graph;
    for (std::int32_t issuer = 0; issuer < stages; ++issuer) {
      std::int64_t changes = 0, outside = 0;
      std::int32_t last = -1;
      for (const OpId id : graph.issue_order(IssuerId{issuer})) {
        const std::int32_t group = graph.op(id).launch_group;
        changes += group == 0 && last != 0;
        outside += group < 0;
        last = group;
        const bool waits = !graph.issue_after(id).empty(), of_pass = in_passes(graph, graph.op(id)) && graph.op(id).stream.valid();
        EXPECT_FALSE(group == 0 && waits) << graph.label(graph.op(id).kind);
        EXPECT_FALSE(group < 0 && of_pass) << graph.label(graph.op(id).kind);
      }
      EXPECT_EQ(changes, 1);
      EXPECT_GT(outside, 0);
    }
  }
}

TEST(GraphScopes, ThePresetDecidesWhereTheRecipeIsSilent) {
  StepRequest request = request_of("llama3-8b", CudaGraph::kNone);
  request.training.cuda_graph.reset();
  request.framework.cuda_graph = CudaGraph::kScopes;
  EXPECT_LT(launches(build_step(request).graph), launches(build_step(request_of("llama3-8b", CudaGraph::kNone)).graph));
  request.framework.host_issue = false;
  EXPECT_TRUE(build_step(request).graph.issuers().empty());
}

}  // namespace
}  // namespace stepsim
