// What a step is taken to need before it is made, against what it then has or what was measured.
#include "models/graph_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>


#include "models/step_builder.h"
#include "sim/input_error.h"
#include "small_step.h"

namespace stepsim {
namespace {

using ::testing::HasSubstr;

StepRequest gpt3(std::int32_t stages, std::int64_t micro_batches) {
  StepRequest request;
  request.model = load_model("gpt3-175b");
  request.framework = load_framework("megatron-lm@2022-05");
  request.model.layers = stages;
  request.parallel.pipeline = stages;
  request.training.sequence = 2048;
  request.training.global_batch = micro_batches;
  return request;
}

LayerTemplate layer_of(const StepRequest& request) {
  StepRequest resolved = request;
  resolved.parallel = with_preset(request.parallel, request.training, request.framework);
  return transformer_layer({resolved.model, resolved.training, resolved.parallel, resolved.framework});
}

// Peak resident memory of `stepsim run --model gpt3-175b --hardware a100-sxm-80gb --layers 4096 --pp 4096 --gpus 4096` as /usr/bin/time -v
// shows it on x86-64 Debian 12, less 10 MiB of the program itself: 135 MiB with one micro-batch, 298 MiB with --global-batch 4.
TEST(GraphLimit, KnowsTheMemoryOfManyStages) {
  for (const auto& [micro_batches, mebibytes] : {std::pair{1, 135.0}, std::pair{4, 298.0}}) {
    const LayerTemplate layer = layer_of(gpt3(4096, micro_batches));
    const GraphSize layers = least_graph_size(layer, 4096, micro_batches);
    const GraphSize all = layers + pipeline_size(layer, {.stages = 4096, .chunks = 1}, micro_batches);
    EXPECT_NEAR(static_cast<double>(all.bytes) / (1 << 20), mebibytes, 0.2 * mebibytes);
    EXPECT_LT(static_cast<double>(layers.bytes) / (1 << 20), 0.9 * mebibytes);  // the layers alone are not enough
  }
}

// Two transfers and their two markers for each of 4,096 chunks less the ends, and the optimizer's ops of a stage: within a tenth.
TEST(GraphLimit, KnowsTheOpsOfManyStages) {
  const StepRequest request = gpt3(4096, 2);
  const LayerTemplate layer = layer_of(request);
  const GraphSize size = least_graph_size(layer, 4096, 2) + pipeline_size(layer, {.stages = 4096, .chunks = 1}, 2);
  const auto ops = static_cast<double>(build_step(request).graph.ops().size());
  EXPECT_NEAR(static_cast<double>(size.ops), ops, 0.1 * ops);
}

TEST(GraphLimit, AddsNothingForOneStage) {
  const GraphSize none = pipeline_size(layer_of(gpt3(1, 8)), {}, 8);
  EXPECT_EQ(none.ops, 0);
  EXPECT_EQ(none.bytes, 0);
}

// A chunk may hold no layer: what its passes and transfers take is refused before any of it is made, and named.
TEST(GraphLimit, RefusesAbsurdPipelines) {
  const auto refusal = [](const StepRequest& request) {
    try {
      build_step(request);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  StepRequest request = gpt3(1 << 20, 64);
  request.model.layers = 1;
  request.parallel.split.layout = "Et(|)*1048575L";
  EXPECT_THAT(refusal(request), HasSubstr("--pp: found a step of "));
  EXPECT_THAT(refusal(request), HasSubstr("1 layers, 1048576 stages, 64 micro-batches), wanted at most 200000000 ops and 16 GiB"));
  request = gpt3(100'000, 64);
  EXPECT_THAT(refusal(request), HasSubstr("--layers: found a step of "));
  request = gpt3(64, 1 << 20);
  EXPECT_THAT(refusal(request), HasSubstr("--global-batch: found a step of "));
}

}  // namespace
}  // namespace stepsim
