// What torchtitan's checkpointing policies save of a Llama layer: ../shared/spec/accuracy.md B.5, in 16-bit values per token and layer, a
// log-sum-exp counted twice.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "models/offload_presets.h"
#include "models/step_builder.h"

namespace stepsim {
namespace {

StepRequest request_of(const std::string& model, const std::string& framework) {
  StepRequest request;
  request.model = load_model(model);
  request.model.layers = 2;
  request.training.sequence = 1024;
  request.framework = load_framework(framework);
  return request;
}

// 16-bit values of the first layer that are there until its backward. Of fp32 copies that eager norms make the table has norm 1's, as the
// 16-bit input that it was made from: autograd keeps the copy in its place (tests/backends/torch_saved_tensors.py).
double kept_values(const StepRequest& request) {
  double values = 0;
  for (const SavedTensor& tensor : build_step(request).saved) {
    const bool first_copy = tensor.name == "norm 1 input, fp32";
    const bool copy = tensor.name.find("input, fp32") != std::string::npos || tensor.name.find("statistics") != std::string::npos;
    if (tensor.layer != 0 || tensor.placement == "recompute" || (copy && !first_copy)) continue;
    values += static_cast<double>(tensor.bytes.value) / (first_copy ? 4 : 2);
  }
  return values / static_cast<double>(request.training.sequence);
}

StepRequest with_keeps(StepRequest request, const std::vector<std::string>& keeps) {
  request.placement.rows = offload_preset("torchtitan:op")->rows;
  request.framework.kept_for_reruns = keeps;
  return request;
}

StepRequest with_preset_of(StepRequest request, const std::string& name) { return with_keeps(request, offload_preset(name)->keeps); }

TEST(TorchtitanPolicies, ValuesOfLlama38B) {
  const StepRequest none = request_of("llama3-8b", "torchtitan@2024-12");
  StepRequest full = none;
  full.placement.granularity = RecomputeGranularity::kFull;
  const double kept = kept_values(none), checkpoint = kept_values(full);
  EXPECT_EQ(kept, 88128);
  EXPECT_EQ(checkpoint, 4096);
  EXPECT_EQ((kept + checkpoint) / 2, 46112);  // every second layer
  const double op = kept_values(with_preset_of(none, "torchtitan:op"));
  EXPECT_EQ(op, 31808);  // input, wq, wv, sdpa with its log-sum-exp, w1, w2
  // The counter of the graph runs on from one layer to the next: seven products, so layers alternate.
  const std::vector<std::string> odd = {"key output", "attention projection output", "up output", "attention output",
                                        "attention log-sum-exp"};
  const double other = kept_values(with_keeps(none, odd));
  EXPECT_EQ(other, 27712);
  EXPECT_EQ((op + other) / 2, 29760);
  const double graph = kept_values(with_preset_of(none, "torchtitan:graph"));
  EXPECT_EQ(graph, 51264);
  std::printf("## table: torchtitan-policies\n| policy | values per token and layer (B.5) | stepsim |\n|---|---|---|\n");
  std::printf("| none | 88128 | %.0f |\n| full | 4096 | %.0f |\n| every second layer | 46112 | %.0f |\n", kept, checkpoint,
              (kept + checkpoint) / 2);
  std::printf("| op | 31808 | %.0f |\n| graph, alternating | 29760 | %.0f |\n| graph, default | 51264 | %.0f |\n\n", op, (op + other) / 2,
              graph);
}

TEST(TorchtitanPolicies, OpOfLlama2) {
  EXPECT_EQ(kept_values(with_preset_of(request_of("llama2-13b", "torchtitan@2024-12"), "torchtitan:op")), 39504);
  EXPECT_EQ(kept_values(with_preset_of(request_of("llama2-70b", "torchtitan@2024-12"), "torchtitan:op")), 62592);
}

// "wk + wo + w3 = 36.5 %" of the products' operations run again; under the graph's default none.
TEST(TorchtitanPolicies, ProductsRunAgain) {
  const auto again = [](const StepRequest& request) {
    double first = 0, second = 0;
    const BuiltStep step = build_step(request);
    const OpGraph& graph = step.graph;
    for (const Op& op : graph.ops()) {
      const OpWork& work = graph.work(op.work);
      if (std::get_if<Gemm>(&work) == nullptr) continue;
      const double operations = arithmetic(work).value;
      if (op.phase == step.phase_labels[static_cast<std::size_t>(Phase::kForward)]) first += operations;
      if (op.phase == step.phase_labels[static_cast<std::size_t>(Phase::kRecompute)]) second += operations;
    }
    const double head = 2.0 * 1024 * 4096 * 128256;  // the head's product is no part of a layer
    return second / (first - head);
  };
  const StepRequest none = request_of("llama3-8b", "torchtitan@2024-12");
  EXPECT_NEAR(again(with_preset_of(none, "torchtitan:op")), 0.365, 0.0005);
  EXPECT_EQ(again(with_preset_of(none, "torchtitan:graph")), 0);
}

}  // namespace
}  // namespace stepsim
