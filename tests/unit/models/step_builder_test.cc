#include "models/step_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "models/graph_limit.h"
#include "models/slot_table.h"
#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::int64_t resident_bytes(const OpGraph& graph, bool at_end) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) bytes += (at_end ? storage.live_at_end : storage.live_at_start) ? storage.size.value : 0;
  return bytes;
}

std::int64_t bytes_at_end(const StepResult& result) {
  std::int64_t bytes = 0;
  for (const MemoryEvent& event : result.memory) bytes += event.bytes.value;
  return bytes;
}

std::int64_t bytes_of_role(const OpGraph& graph, Role role) {
  std::int64_t bytes = 0;
  for (const Storage& storage : graph.storages()) {
    if (graph.bucket(storage.role) == static_cast<std::int32_t>(role)) bytes += storage.size.value;
  }
  return bytes;
}

std::string refusal(const StepRequest& request) {
  try {
    build_step(request);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

StepRequest gpt2(std::int32_t tensor = 1, bool sequence_parallel = false) {
  StepRequest request;
  request.model = load_model("gpt2-124m");
  request.framework = load_framework("megatron-lm@2022-05");
  request.training.sequence = 1024;
  request.training.dropout = 0.1;
  request.parallel.tensor = tensor;
  request.parallel.sequence_parallel = sequence_parallel;
  return request;
}

TEST(StepBuilder, SmallStepHasTheOpsThatOneCounts) {
  const BuiltStep built = build_step(small_request(2), small_templates());
  // Embedding 1 + 1, layers 2 x (3 + 3), head 1 + 1; gradient norm, AdamW for the embedding and two layers, clear.
  EXPECT_EQ(built.graph.ops().size(), 2u + 12u + 2u + 5u);
  EXPECT_EQ(count_ops(built.graph, "AdamW update"), 3);
  EXPECT_TRUE(find_cycle(built.graph).empty());
  EXPECT_EQ(built.graph.op_name(OpId{1}), "forward L0 fc1");
  EXPECT_EQ(built.parameters_per_device, 10 + 2 * 100);
}

TEST(StepBuilder, LayersShareWhatTheyHandOn) {
  const BuiltStep built = build_step(small_request(2), small_templates());
  const OpGraph& graph = built.graph;
  // Ops 0 embedding, 1..3 layer 0, 4..6 layer 1, 7 loss, 8 loss backward, 9..11 layer 1 backward.
  EXPECT_EQ(graph.reads(OpId{1})[0].storage, graph.writes(OpId{0})[2].storage);  // after the claimed token ids and labels
  EXPECT_EQ(graph.reads(OpId{4})[0].storage, graph.writes(OpId{3})[0].storage);
  EXPECT_EQ(graph.reads(OpId{7})[0].storage, graph.writes(OpId{6})[0].storage);
  EXPECT_EQ(graph.reads(OpId{9})[0].storage, graph.writes(OpId{8})[0].storage);
  EXPECT_EQ(graph.storage_name(graph.writes(OpId{3})[0].storage), "input L1");
}

TEST(StepBuilder, MemoryEndsWithTheResidents) {
  for (const std::int64_t global_batch : {1, 3}) {
    StepRequest request = small_request(4);
    request.training.global_batch = global_batch;
    request.placement.halving = true;
    const BuiltStep built = build_step(request, small_templates());
    const StepResult result = run_step(built);
    EXPECT_FALSE(result.deadlock.has_value());
    EXPECT_EQ(result.timeline.size(), built.graph.ops().size());
    // 410 parameters at 18 bytes (bf16): 2 weight, 4 gradient, 4 + 4 + 4 optimizer.
    EXPECT_EQ(resident_bytes(built.graph, true), 410 * 18);
    EXPECT_EQ(bytes_at_end(result), 410 * 18);
  }
}

TEST(StepBuilder, MicroBatchesAddToTheSameGradients) {
  StepRequest request = small_request(2);
  request.training.global_batch = 3;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(built.graph.ops().size(), 3u * 16u + 5u);
  // One input gradient buffer a layer: the same storage is updated in all three micro-batches.
  std::vector<StorageId> updated;
  for (std::int32_t op = 0; op < 48; ++op) {
    if (built.graph.label(built.graph.op(OpId{op}).kind) != "fc1 backward" || built.graph.op(OpId{op}).layer != 0) continue;
    updated.push_back(built.graph.writes(OpId{op}).front().storage);
  }
  ASSERT_EQ(updated.size(), 3u);
  EXPECT_EQ(updated[0], updated[1]);
  EXPECT_EQ(updated[0], updated[2]);
  // Each micro-batch is gone before the next: the peak is that of one.
  EXPECT_EQ(saved_peak(built).value, 2 * kSmallLayer);
  EXPECT_EQ(built.graph.op_name(OpId{17}), "forward L0 fc1 mb1");
}

TEST(StepBuilder, BytesPerParameterFollowThePrecision) {
  const auto bytes = [](Precision precision, std::optional<DType> gradient = {}) {
    StepRequest request = gpt2();
    request.training.precision = precision;
    request.training.gradient_dtype = gradient;
    const BuiltStep built = build_step(request);
    const OpGraph& graph = built.graph;
    const std::int64_t all =
        bytes_of_role(graph, Role::kWeights) + bytes_of_role(graph, Role::kGradients) + bytes_of_role(graph, Role::kOptimizerState);
    EXPECT_EQ(all % built.parameters_per_device, 0);
    return all / built.parameters_per_device;
  };
  EXPECT_EQ(bytes(Precision::kBf16), 18);                // 2 + 4 + 4 + 4 + 4
  EXPECT_EQ(bytes(Precision::kFp16), 20);                // 2 + 2 + 4 (fp32 gradient of the optimizer) + 4 + 4 + 4
  EXPECT_EQ(bytes(Precision::kFp32), 16);                // 4 + 4 + 4 + 4
  EXPECT_EQ(bytes(Precision::kFp16, DType::kFp32), 18);  // fp32 accumulation: no copy
}

TEST(StepBuilder, ParametersAreTheModelsWithThePaddedVocabulary) {
  const StepRequest request = gpt2();
  // 50,257 tokens padded to 50,304 rows of 768 (GPT-2 124M counts 124,439,808 parameters, tied head).
  EXPECT_EQ(build_step(request).parameters_per_device, 124'439'808 + (50'304 - 50'257) * 768);
}

TEST(StepBuilder, FirstIterationMakesTheMoments) {
  StepRequest request = small_request(2);
  const BuiltStep steady = build_step(request, small_templates());
  request.training.iteration = IterationKind::kFirst;
  const BuiltStep first = build_step(request, small_templates());
  EXPECT_EQ(resident_bytes(steady.graph, false), 210 * 18);
  EXPECT_EQ(resident_bytes(first.graph, false), 210 * 10);  // without m and v
  EXPECT_EQ(resident_bytes(first.graph, true), 210 * 18);
  EXPECT_EQ(bytes_at_end(run_step(first)), 210 * 18);
}

TEST(StepBuilder, GradientsMayBeFreedBetweenSteps) {
  StepRequest request = small_request(2);
  request.framework.gradients_always_allocated = false;
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(resident_bytes(built.graph, false), 210 * 14);
  EXPECT_EQ(bytes_at_end(run_step(built)), 210 * 14);
  EXPECT_EQ(count_ops(built.graph, "gradient clear"), 0);
}

TEST(StepBuilder, UpdateMovesTheBytesOfItsCopies) {
  const BuiltStep built = build_step(small_request(1), small_templates());
  const OpGraph& graph = built.graph;
  for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.ops().size()); ++op) {
    if (graph.op_name(OpId{op}) != "optimizer L0 AdamW update") continue;
    const auto& work = std::get<MemoryBound>(graph.work(OpId{op}));
    EXPECT_EQ(work.read.value, 100 * 16);     // gradient, master, m, v
    EXPECT_EQ(work.written.value, 100 * 14);  // master, m, v, bf16 weight
    return;
  }
  FAIL() << "no update of layer 0";
}

TEST(StepBuilder, SegmentsRunCollectivesAgain) {
  StepRequest request = gpt2(2, true);
  const BuiltStep once = build_step(request);
  request.placement.granularity = RecomputeGranularity::kFull;
  const BuiltStep twice = build_step(request);
  // Sequence parallelism: two gathers and two scatters a layer forward, and none of them in a re-run without recompute.
  const LabelId forward = once.phase_labels[0], recompute = twice.phase_labels[2];
  for (const char* kind : {"norm 1 output all-gather", "norm 2 output all-gather", "mlp output reduce-scatter",
                           "attention projection output reduce-scatter"}) {
    EXPECT_EQ(count_ops(once.graph, kind, forward), 12) << kind;
    EXPECT_EQ(count_ops(once.graph, kind, once.phase_labels[2]), 0) << kind;
    EXPECT_EQ(count_ops(twice.graph, kind, twice.phase_labels[0]), 12) << kind;
    EXPECT_EQ(count_ops(twice.graph, kind, recompute), 12) << kind;
  }
  EXPECT_FALSE(run_step(twice).deadlock.has_value());
  EXPECT_TRUE(find_cycle(twice.graph).empty());
}

TEST(StepBuilder, ReRunsNameTheirFirstRun) {
  StepRequest request = small_request(2);
  request.training.global_batch = 2;
  request.placement.granularity = RecomputeGranularity::kFull;
  const BuiltStep built = build_step(request, small_templates());
  std::int64_t reruns = 0;
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(built.graph.ops().size()); ++index) {
    const Op& op = built.graph.op(OpId{index});
    EXPECT_EQ(op.origin.valid(), op.phase == built.phase_labels[2]);
    if (!op.origin.valid()) continue;
    ++reruns;
    const Op& origin = built.graph.op(op.origin);
    EXPECT_LT(op.origin.index, index);
    EXPECT_EQ(origin.kind, op.kind);
    EXPECT_EQ(origin.layer, op.layer);
    EXPECT_EQ(origin.micro_batch, op.micro_batch);
    EXPECT_EQ(origin.phase, built.phase_labels[0]);
  }
  EXPECT_EQ(reruns, 2 * 2 * 3);
}

// Another stream's op is waited for by an edge, once.
TEST(StepBuilder, EdgesJoinTheStreams) {
  StepTemplates templates = small_templates();
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("reduced", SlotKind::kGradient, 8));  // 10
  TemplateOp reduce = small_op("reduce", {7}, {10});
  reduce.work = Collective{.kind = CollectiveKind::kReduceScatter, .message = Bytes(8), .ranks = 2};
  reduce.group = Group::kTensor;
  reduce.stream = OpStream::kTensor;
  reduce.after = {2};
  layer.backward.push_back(reduce);
  layer.backward.push_back(small_op("weight gradient", {6}, {}, {9}));  // needs nothing of the collective
  layer.input_gradient = 10;
  StepRequest request = small_request(2);
  request.parallel.tensor = 2;
  const BuiltStep built = build_step(request, templates);
  const OpGraph& graph = built.graph;
  // 0 embedding, 1..6 layers, 7 8 head, 9..13 layer 1 backward, 14..18 layer 0 backward, 19 embedding backward, 20 norm, 21 its sum.
  const auto sources = [&graph](std::int32_t op) {
    std::vector<std::int32_t> from;
    for (const Edge& edge : graph.predecessors(OpId{op})) from.push_back(edge.from.index);
    return from;
  };
  EXPECT_EQ(graph.label(graph.op(OpId{12}).kind), "reduce");
  EXPECT_EQ(graph.queues(OpId{12}, 0).size(), 1u);
  EXPECT_THAT(sources(12), ElementsAre(11));
  EXPECT_THAT(sources(13), ElementsAre());
  EXPECT_THAT(sources(14), ElementsAre(12));
  EXPECT_THAT(sources(15), ElementsAre());
  EXPECT_THAT(sources(19), ElementsAre(17));
  EXPECT_THAT(sources(21), ElementsAre(20));
  EXPECT_THAT(sources(22), ElementsAre(21));
  EXPECT_TRUE(find_cycle(graph).empty());
  EXPECT_FALSE(run_step(built).deadlock.has_value());
}

TEST(StepBuilder, SequenceParallelismSumsNormGradients) {
  const OpGraph graph = build_step(gpt2(2, true)).graph;
  ASSERT_EQ(count_ops(graph, "norm gradient all-reduce"), 1);
  EXPECT_EQ(count_ops(build_step(gpt2(2, false)).graph, "norm gradient all-reduce"), 0);
  for (const Op& op : graph.ops()) {
    if (graph.label(op.kind) != "norm gradient all-reduce") continue;
    // 12 layers x (two norms of 2 x 768, two biases of 768) and the final norm, in fp32.
    EXPECT_EQ(std::get<Collective>(graph.work(op.work)).message.value, 4 * (12 * (4 * 768 + 2 * 768) + 2 * 768));
    EXPECT_EQ(graph.bucket(op.kind), static_cast<std::int32_t>(Group::kTensor));
  }
}

// PaLM has one key and value head: at tp 8 all eight ranks hold it, each with the gradient of its own six query heads. A layer's key and
// value weights are 2 x 18432 x 256 = 9,437,184 parameters without bias, 4 bytes each in the main gradient, summed over 8 ranks.
TEST(StepBuilder, ReplicatedKeyAndValueGradientsAreSummed) {
  StepRequest request;
  request.model = load_model("palm-540b");
  request.model.layers = 3;
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 2048;
  const auto sums = [&] {
    const BuiltStep built = build_step(request);
    std::vector<Collective> found;
    for (const Op& op : built.graph.ops()) {
      if (built.graph.label(op.kind) != "key and value gradient all-reduce") continue;
      found.push_back(std::get<Collective>(built.graph.work(op.work)));
    }
    return found;
  };
  EXPECT_TRUE(sums().empty());
  request.parallel.tensor = 8;
  const std::vector<Collective> found = sums();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().message, Bytes(3 * 9'437'184 * std::int64_t{4}));
  EXPECT_EQ(found.front().ranks, 8);
}

TEST(StepBuilder, TiedHeadHasNoWeightsOfItsOwn) {
  StepRequest request = gpt2();
  const BuiltStep tied = build_step(request);
  request.model.tied_head = false;
  const BuiltStep untied = build_step(request);
  EXPECT_EQ(untied.parameters_per_device - tied.parameters_per_device, 50'304 * 768);
  EXPECT_TRUE(find_cycle(tied.graph).empty());
  EXPECT_EQ(bytes_at_end(run_step(tied)), resident_bytes(tied.graph, true));
}

TEST(StepBuilder, SavedTensorsSayWhatBecameOfThem) {
  StepRequest request = small_request(2);
  request.placement.segment_sizes = {2};
  const BuiltStep built = build_step(request, small_templates());
  std::vector<std::string> lines;
  for (const SavedTensor& tensor : built.saved) {
    lines.push_back(std::to_string(tensor.layer) + " " + tensor.op + ": " + tensor.name + " " + tensor.placement + " " +
                    std::to_string(tensor.storages.size()));
    for (const StorageId storage : tensor.storages)
      EXPECT_EQ(built.graph.storages()[static_cast<std::size_t>(storage.index)].size, tensor.bytes);
  }
  EXPECT_THAT(lines, ElementsAre("0 embedding: input checkpoint 1", "0 fc1: fc1 output recompute 2", "0 act: act output recompute 2",
                                 "1 fc2: input recompute 2", "1 fc1: fc1 output recompute 2", "1 act: act output recompute 2",
                                 "2 fc2: input keep 2"));
}

TEST(StepBuilder, SavedTensorsOfAKeptLayerAddUp) {
  const BuiltStep built = build_step(gpt2());
  std::vector<std::int64_t> bytes(12, 0);
  for (const SavedTensor& tensor : built.saved) {
    if (tensor.layer < 0 || tensor.layer >= 12) continue;
    bytes[static_cast<std::size_t>(tensor.layer)] += tensor.bytes.value;
    EXPECT_EQ(tensor.placement, "keep");
    EXPECT_EQ(tensor.storages.size(), 1u);
  }
  for (const std::int64_t each : bytes) EXPECT_EQ(each, bytes.front());
  EXPECT_EQ(saved_peak(built).value, 12 * bytes.front());
}

// Bytes per token that a layer keeps under Megatron-LM's module names: spec/published_facts.md section 4, Llama-3 8B.
TEST(StepBuilder, ModulesKeepThePublishedBytes) {
  StepRequest request;
  request.model = load_model("llama3-8b");
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 8192;
  const auto kept_per_token = [&request](std::vector<std::string> modules) {
    request.placement.granularity = modules.empty() ? RecomputeGranularity::kNone : RecomputeGranularity::kSelective;
    request.placement.modules = std::move(modules);
    std::int64_t kept = 0;
    for (const SavedTensor& tensor : build_step(request).saved) {
      if (tensor.layer == 7 && tensor.placement != "recompute") kept += tensor.bytes.value;
    }
    EXPECT_EQ(kept % 8192, 0);
    return kept / 8192;
  };
  EXPECT_EQ(kept_per_token({}), 139'400);
  EXPECT_EQ(kept_per_token({"core_attn"}), 139'272);
  EXPECT_EQ(kept_per_token({"layernorm"}), 123'016);
  EXPECT_EQ(kept_per_token({"act"}), 110'728);
  EXPECT_EQ(kept_per_token({"layernorm", "act"}), 94'344);
  EXPECT_EQ(kept_per_token({"mlp"}), 53'384);
}

TEST(StepBuilder, SlotTableAgreesWithTheTemplates) {
  const StepRequest request = gpt2(2, true);
  const TemplateContext context{request.model, request.training, request.parallel, request.framework};
  const LayerTemplate layer = transformer_layer(context);
  const SlotTable table(layer);
  std::vector<SlotIndex> saved;
  for (std::size_t slot = 0; slot < layer.slots.size(); ++slot) {
    if (table.saved[slot]) saved.push_back(static_cast<SlotIndex>(slot));
  }
  EXPECT_EQ(saved, saved_slots(layer));
}

TEST(StepBuilder, LibraryWorkspaceLivesAllStep) {
  StepRequest request = small_request(1);
  request.workspaces.other = Bytes(1000);
  const BuiltStep built = build_step(request, small_templates());
  EXPECT_EQ(resident_bytes(built.graph, true), 110 * 18 + 1000);
}

TEST(StepBuilder, PhasesCoverTheMeaningOfWaits) {
  const BuiltStep built = build_step(small_request(1), small_templates());
  EXPECT_THAT(built.phases.copy_wait_of_bucket, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(built.phases.copy_out_first_is_tail, ElementsAre(false, true, false, true));
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) {
    EXPECT_EQ(built.graph.label(built.phase_labels[i]), kPhaseNames[i]);
    EXPECT_EQ(built.graph.bucket(built.phase_labels[i]), static_cast<std::int32_t>(i));
  }
}

TEST(StepBuilder, RefusesGraphsThatAreTooLargeBeforeMakingThem) {
  const auto start = std::chrono::steady_clock::now();
  StepRequest request = gpt2();
  request.model.layers = 1'000'000'000'000;
  EXPECT_THAT(refusal(request), HasSubstr("found"));
  request.model.layers = 100'000;
  request.training.global_batch = 1 << 20;
  const std::string many = refusal(request);
  EXPECT_THAT(many, HasSubstr("--global-batch: found a step of "));
  EXPECT_THAT(many, HasSubstr("100000 layers, 1048576 micro-batches), wanted at most 200000000 ops and 16 GiB"));
  StepRequest small = small_request(1'000'000'000'000);
  EXPECT_THROW(build_step(small, small_templates()), InputError);  // 6 x 10^12 ops
  small = small_request(std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(build_step(small, small_templates()), InputError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// Peak resident memory of `stepsim run --model llama3-405b --tp 8 --sequence 8192 --hardware h100-sxm-80gb` as /usr/bin/time -v shows it on
// x86-64 Debian 12: 210 MiB with --global-batch 128, 760 MiB with 512; of which about 10 MiB are the program itself.
TEST(StepBuilder, TheSizeLimitKnowsTheMemoryOfARun) {
  StepRequest request;
  request.model = load_model("llama3-405b");
  request.framework = load_framework("megatron-core@2025");
  request.training.sequence = 8192;
  request.parallel.tensor = 8;
  const TemplateContext context{request.model, request.training, request.parallel, request.framework};
  const LayerTemplate layer = transformer_layer(context);
  const PlacementPlan plan = make_plan(layer, 126, {}, request.framework);
  for (const auto& [micro_batches, mebibytes] : {std::pair{128, 210.0}, std::pair{512, 760.0}}) {
    const GraphSize size = graph_size(layer, plan, 126, micro_batches);
    const GraphSize least = least_graph_size(layer, 126, micro_batches);
    EXPECT_NEAR(static_cast<double>(size.bytes) / (1 << 20), mebibytes, 0.25 * mebibytes);
    EXPECT_EQ(least.bytes, size.bytes);  // without re-runs the plan adds nothing
    EXPECT_EQ(least.ops, size.ops);
  }
  request.training.global_batch = 10'240;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(refusal(request), HasSubstr("--global-batch: found a step of "));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(StepBuilder, WarnsOfAttentionWithoutKernel) {
  StepRequest request = gpt2();
  request.training.precision = Precision::kFp32;
  request.training.attention = AttentionKind::kUnfused;
  EXPECT_THAT(build_step(request).warnings, ElementsAre());
  request.training.attention = AttentionKind::kFlash;
  EXPECT_THAT(build_step(request).warnings,
              ElementsAre("flash attention has no fp32 kernel: priced as if it had; use --attention unfused"));
  request.training.attention = AttentionKind::kFused;
  EXPECT_THAT(build_step(request).warnings, ElementsAre(HasSubstr("cuDNN's fused attention has no fp32 kernel")));
  request.training.precision = Precision::kBf16;
  EXPECT_THAT(build_step(request).warnings, ElementsAre());
}

TEST(StepBuilder, RefusesLayoutsAndPolicies) {
  StepRequest request = gpt2();
  request.parallel.pipeline = 5;
  EXPECT_THAT(refusal(request), HasSubstr("--pp: found 5, wanted a divisor of 12 layers"));
  request = gpt2();
  request.training.micro_batch = 2;
  request.training.global_batch = 3;
  EXPECT_THAT(refusal(request), HasSubstr("--global-batch: found 3"));
  request = gpt2();
  request.placement.granularity = RecomputeGranularity::kSelective;
  request.placement.modules = {"moe"};
  EXPECT_THAT(refusal(request), HasSubstr("\"moe\", which this model has not"));
}

// Every policy on real layers, with and without a tensor-parallel group: valid plans, no cycle, no deadlock, nothing left over.
TEST(StepBuilder, RealLayersRunUnderEveryPolicy) {
  std::vector<PlacementPolicy> policies(8);
  policies[1].granularity = RecomputeGranularity::kFull;
  policies[2].granularity = RecomputeGranularity::kFull;
  policies[2].num_layers = 5;
  policies[3].granularity = RecomputeGranularity::kFull;
  policies[3].method = RecomputeMethod::kBlock;
  policies[3].num_layers = 3;
  policies[4].halving = true;
  policies[5].granularity = RecomputeGranularity::kSelective;
  policies[6].granularity = RecomputeGranularity::kSelective;
  policies[6].modules = {"layernorm", "mlp", "core_attn"};
  policies[7].rows = {{2, 7, "*", PlacementAction::kRecompute}, {4, 4, "layernorm", PlacementAction::kKeep}};
  for (const char* framework : {"megatron-lm@2022-05", "megatron-core@2025"}) {
    for (const char* model : {"gpt2-124m", "llama3.2-1b"}) {
      for (const auto& [tensor, sequence] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        for (const AttentionKind attention : {AttentionKind::kUnfused, AttentionKind::kFlash}) {
          StepRequest request = gpt2(tensor, sequence);
          request.model = load_model(model);
          request.model.layers = 12;
          request.framework = load_framework(framework);
          request.training.attention = attention;
          for (std::size_t i = 0; i < policies.size(); ++i) {
            request.placement = policies[i];
            const TemplateContext context{request.model, request.training, request.parallel, request.framework};
            const LayerTemplate layer = transformer_layer(context);
            EXPECT_EQ(plan_error(make_plan(layer, 12, policies[i], request.framework), layer, 12), "") << framework << model << i;
            const BuiltStep built = build_step(request);
            EXPECT_TRUE(find_cycle(built.graph).empty());
            const StepResult result = run_step(built);
            EXPECT_FALSE(result.deadlock.has_value());
            EXPECT_EQ(bytes_at_end(result), resident_bytes(built.graph, true));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepsim
