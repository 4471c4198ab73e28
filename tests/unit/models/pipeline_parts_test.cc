// What each stage of a pipeline does with its own part of the model: recomputation, tables and norms shared by stages, the batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

// Megatron-LM: each model chunk applies the method to its own layers.
TEST(PipelineParts, ChunksRecomputeTheirOwnLayers) {
  StepRequest request = staged_request(4, 2, 2);
  const auto again = [&](std::int32_t device) { return layers_on(build_step(request, small_templates()), device, Phase::kRecompute); };
  request.placement.rows = {{1, 2, "*", PlacementAction::kRecompute}};  // layers of the model
  EXPECT_EQ(again(0), std::set<std::int32_t>{1});
  EXPECT_EQ(again(1), std::set<std::int32_t>{2});
  request.placement.rows = {{3, -1, "*", PlacementAction::kRecompute}};
  EXPECT_EQ(again(0), std::set<std::int32_t>{});
  EXPECT_EQ(again(1), std::set<std::int32_t>{3});
  request.placement = {};
  request.placement.granularity = RecomputeGranularity::kFull;
  request.placement.method = RecomputeMethod::kBlock;  // one layer a chunk
  EXPECT_EQ(again(0), std::set<std::int32_t>{0});
  EXPECT_EQ(again(1), std::set<std::int32_t>{2});
  request.placement.num_layers = 3;  // more than a chunk has
  EXPECT_EQ(again(1), (std::set<std::int32_t>{2, 3}));
  request.parallel.schedule = PipelineKind::kInterleaved;
  request.parallel.virtual_stages = 2;
  request.placement.num_layers = 1;
  EXPECT_EQ(again(0), (std::set<std::int32_t>{0, 2}));
  EXPECT_EQ(again(1), (std::set<std::int32_t>{1, 3}));
  request.placement = {};
  request.placement.segments = 4;
  EXPECT_EQ(again(0), (std::set<std::int32_t>{0, 2}));
  request.placement = {};
  request.placement.granularity = RecomputeGranularity::kSelective;
  request.placement.modules = {"act"};
  EXPECT_EQ(again(1), (std::set<std::int32_t>{1, 3}));
}

TEST(PipelineParts, SizesOfSegmentsNeedOneChunk) {
  StepRequest request = staged_request(4, 2, 2);
  request.placement.segment_sizes = {2, 2};
  try {
    build_step(request, small_templates());
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "--recompute-segments: found sizes of segments, wanted their number or halving with 2 model chunks, which apply it to their "
        "own layers");
  }
}

// Full recomputation, two layers a stage, two micro-batches in flight on stage 0: two inputs of each (4 x 8), and of the layer that runs
// again fc1 and act output (40 + 16), whose input is kept. Without recomputation 2 x 2 x 64.
TEST(PipelineParts, RecomputationKeepsTheInputsInFlight) {
  StepRequest request = staged_request(4, 2, 4);
  EXPECT_EQ(saved_peak(build_step(request, small_templates())).value, 4 * kSmallLayer);
  request.placement.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(saved_peak(build_step(request, small_templates())).value, 4 * kSmallCheckpoint + 40 + 16);
}

StepRequest gpt2(std::int32_t stages, std::int64_t micro_batches = 2) {
  StepRequest request;
  request.model = load_model("gpt2-124m");
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 1024;
  request.training.global_batch = micro_batches;
  request.parallel.pipeline = stages;
  return request;
}

std::vector<std::int32_t> devices_of_parts(const OpGraph& graph, OpId op) {
  std::vector<std::int32_t> devices;
  for (const StreamId stream : graph.parts(op)) devices.push_back(device_of(graph, stream).index);
  return devices;
}

// GPT-2 124M with its table padded to 50,304 rows of 768: 38,633,472 parameters in it, 1,024 x 768 positions, 12 layers of 7,087,872, a
// final norm of 2 x 768. Layer: 4 x 768^2 + 8 x 768^2 of matrices, 13 x 768 of biases and norms.
TEST(PipelineParts, BothEndsOfAPipelineHoldATiedTable) {
  constexpr std::int64_t kTable = 38'633'472, kPositions = 786'432, kGpt2Layer = 7'087'872;
  for (const std::int32_t stages : {2, 4}) {
    const BuiltStep built = build_step(gpt2(stages));
    const std::int64_t layers = 12 / stages * kGpt2Layer;
    ASSERT_EQ(built.parameters_of_stage.size(), static_cast<std::size_t>(stages));
    EXPECT_EQ(built.parameters_of_stage.front(), kTable + kPositions + layers);
    EXPECT_EQ(built.parameters_of_stage.back(), layers + 2 * 768 + kTable);
    if (stages == 4) {
      EXPECT_EQ(built.parameters_of_stage[1], layers);
    }
    const std::vector<OpId> sums = ops_of(built.graph, "embedding gradient all-reduce");
    ASSERT_EQ(sums.size(), 1u);
    EXPECT_THAT(devices_of_parts(built.graph, sums[0]), ElementsAre(0, stages - 1));
    const Collective& work = std::get<Collective>(built.graph.work(sums[0]));
    EXPECT_EQ(work.kind, CollectiveKind::kAllReduce);
    EXPECT_EQ(work.message.value, 4 * kTable);  // fp32 gradients
    EXPECT_EQ(work.ranks, 2);
    EXPECT_EQ(work.stride, stages - 1);
    // Behind the backward passes of both, before their norms.
    const std::vector<OpRun> runs = runs_by_op(built.graph, run_step(built));
    const OpRun& sum = runs[static_cast<std::size_t>(sums[0].index)];
    for (const std::int32_t device : {0, stages - 1}) {
      for (const OpId id : compute_ops(built.graph, DeviceId{device})) {
        const OpRun& run = runs[static_cast<std::size_t>(id.index)];
        const bool optimizer = built.graph.op(id).phase == built.phase_labels[3];
        EXPECT_TRUE(optimizer ? run.start >= sum.end : run.end <= sum.start) << built.graph.op_name(id);
      }
    }
  }
  EXPECT_EQ(count_ops(build_step(gpt2(1)).graph, "embedding gradient all-reduce"), 0);
  StepRequest untied = gpt2(2);
  untied.model = load_model("llama3-8b");
  EXPECT_EQ(count_ops(build_step(untied).graph, "embedding gradient all-reduce"), 0);
}

TEST(PipelineParts, AllStagesJoinInTheGradientNorm) {
  for (const bool reads : {true, false}) {
    StepRequest request = staged_request(4, 4, 4);
    request.parallel.split.layout = "Et|t|tt|L";  // the head of the small templates has no parameters: its stage joins all the same
    request.framework.reads_gradient_norm = reads;
    const BuiltStep built = build_step(request, small_templates());
    const OpGraph& graph = built.graph;
    const std::vector<OpId> sums = ops_of(graph, "gradient norm all-reduce");
    ASSERT_EQ(sums.size(), 1u);
    EXPECT_THAT(devices_of_parts(graph, sums[0]), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(std::get<Collective>(graph.work(sums[0])).ranks, 4);
    EXPECT_EQ(std::get<Collective>(graph.work(sums[0])).message.value, 4);
    EXPECT_EQ(ops_of(graph, "gradient norm").size(), 3u);
    const std::vector<OpRun> runs = runs_by_op(graph, run_step(built));
    const std::vector<OpId> updates = ops_of(graph, "AdamW update");
    EXPECT_EQ(updates.size(), 5u);  // the embedding and four layers
    std::vector<std::int32_t> waiting;
    for (const OpId update : updates) {
      EXPECT_GE(runs[static_cast<std::size_t>(update.index)].start, runs[static_cast<std::size_t>(sums[0].index)].end);
      const std::span<const OpId> after = graph.issue_after(update);
      if (!after.empty()) waiting.push_back(device_of(graph, update).index);
      for (const OpId each : after) EXPECT_EQ(each, sums[0]);
    }
    // Each host waits once, before its first update.
    EXPECT_EQ(waiting, reads ? (std::vector<std::int32_t>{0, 1, 2}) : std::vector<std::int32_t>());
  }
}

// Without sequence parallelism Megatron-LM sends each rank's part of an activation and gathers it on arrival (2104.04473 section 4.1).
TEST(PipelineParts, TensorParallelRanksMaySendTheirParts) {
  StepRequest request = gpt2(2);
  request.framework = load_framework("megatron-lm@2022-05");
  request.parallel.tensor = 2;
  const std::int64_t whole = 1024 * 768 * 2;  // bf16
  const auto first_send = [](const BuiltStep& built, std::string_view kind) {
    return std::get<Collective>(built.graph.work(ops_of(built.graph, kind).front()));
  };
  const BuiltStep parts = build_step(request);
  for (const char* kind : {"send forward", "send backward"}) {
    EXPECT_EQ(first_send(parts, kind).message.value, whole / 2);
    EXPECT_EQ(first_send(parts, kind).stride, 2);  // ranks of one stage in between
  }
  EXPECT_EQ(count_ops(parts.graph, "pipeline input all-gather"), 2);  // micro-batches
  EXPECT_EQ(count_ops(parts.graph, "pipeline gradient all-gather"), 2);
  const OpId gather = ops_of(parts.graph, "pipeline input all-gather").front();
  EXPECT_EQ(std::get<Collective>(parts.graph.work(gather)).message.value, whole);
  const StorageId part = parts.graph.reads(gather).front().storage;
  EXPECT_EQ(life_of(parts.graph, run_step(parts), part), (Life{"forward send forward mb0", "forward pipeline input all-gather mb0"}));
  EXPECT_EQ(parts.graph.label(storage_of(parts.graph, parts.graph.writes(gather).front().storage).role), kSavedActivations);
  // With sequence parallelism the activation is a part by itself.
  request.parallel.sequence_parallel = true;
  const BuiltStep sequence = build_step(request);
  EXPECT_EQ(first_send(sequence, "send forward").message.value, whole / 2);
  EXPECT_EQ(count_ops(sequence.graph, "pipeline input all-gather"), 0);
  request.parallel.sequence_parallel = false;
  request.framework.scatters_pipeline_messages = false;
  EXPECT_EQ(first_send(build_step(request), "send forward").message.value, whole);
}

// The data loader's mask, one byte for each of 1024 x 1024 pairs. Held by the caller until the forward pass is over, by attention until it
// has run the last time.
TEST(PipelineParts, AttentionMasksLiveUntilAttentionHasRunForTheLastTime) {
  StepRequest request = gpt2(2);
  const auto lives = [&](std::int32_t device) {
    const BuiltStep built = build_step(request);
    const std::vector<StorageId> masks = storages_of(built.graph, "attention mask", DeviceId{device});
    EXPECT_EQ(masks.size(), 2u);  // micro-batches
    EXPECT_EQ(storage_of(built.graph, masks.front()).size.value, 1024 * 1024);
    return life_of(built.graph, run_step(built), masks.front());
  };
  EXPECT_EQ(lives(0).born, "forward embedding mb0");
  const std::string last = lives(0).dead;
  EXPECT_EQ(last.substr(0, 10), "forward L5");  // the last layer of stage 0
  EXPECT_EQ(lives(1).dead, "forward softmax mb0");
  request.placement.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(lives(0).dead, "recompute L0 attention mb0");
  EXPECT_EQ(lives(1).dead, "recompute L6 attention mb0");
  request.framework.creates_attention_mask = false;
  EXPECT_TRUE(storages_of(build_step(request).graph, "attention mask").empty());
}

// The batch belongs to the caller until its forward pass is over.
TEST(PipelineParts, BatchesAreHeldUntilTheForwardPassIsOver) {
  const BuiltStep built = build_step(staged_request(2, 2, 2), small_templates());
  const StepResult result = run_step(built);
  EXPECT_TRUE(storages_of(built.graph, "labels", DeviceId{0}).empty());
  EXPECT_TRUE(storages_of(built.graph, "token ids", DeviceId{1}).empty());
  EXPECT_EQ(life_of(built.graph, result, storages_of(built.graph, "labels").front()),
            (Life{"forward L1 fc1 mb0", "backward loss backward mb0"}));
  StepTemplates templates = small_templates();
  templates.embedding.backward.front().reads = {3};  // nobody reads the token ids again
  const BuiltStep unread = build_step(staged_request(2, 2, 2), templates);
  EXPECT_EQ(life_of(unread.graph, run_step(unread), storages_of(unread.graph, "token ids").front()),
            (Life{"forward embedding mb0", "forward L0 fc2 mb0"}));
}

}  // namespace
}  // namespace stepsim
