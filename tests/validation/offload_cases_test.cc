// Offload as it was measured: each case is simulated from its facts and printed beside what was measured.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "models/flops.h"
#include "models/offload_presets.h"
#include "tests/validation/published_job.h"

namespace stepsim {
namespace {

NamedCells case_row(const std::string& name) {
  for (NamedCells& row : csv_rows("offload_cases.csv")) {
    if (row.at("case") == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

void print_head() {
  static const bool printed = [] {
    std::printf("## table: offload-cases\n| case | measured | stepsim | error |\n| --- | --- | --- | --- |\n");
    return true;
  }();
  (void)printed;
}

void compare(const std::string& name, double simulated) {
  print_head();
  const NamedCells row = case_row(name);
  const double measured = std::stod(row.at("measured")), tolerance = std::stod(row.at("tolerance"));
  const std::string unit = row.at("unit");
  const bool absolute = unit == "percent" || measured == 0;
  const double error = absolute ? simulated - measured : simulated / measured - 1;
  EXPECT_LE(std::abs(error), tolerance + 1e-12) << name << ": " << simulated << " " << unit;
  if (absolute) {
    std::printf("| %s | %s %s | %.3f | %+.3f |\n", name.c_str(), row.at("measured").c_str(), unit.c_str(), simulated, error);
  } else {
    std::printf("| %s | %s %s | %.3f | %+.2f %% |\n", name.c_str(), row.at("measured").c_str(), unit.c_str(), simulated, 100 * error);
  }
}

// Three copies of momentum that the optimizer issues together at the end of the step, on one engine, in training on GB200: 155 GB/s.
TEST(OffloadCases, MarinTail) {
  const GpuSpec gpu = load_gpu("gb200", std::vector<std::pair<std::string, std::string>>{{"device_to_host", "155 GB/s"}});
  const ClusterSpec cluster = usual_cluster(gpu);
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const StreamId compute = builder.add_stream({.device = device, .compute = true}), copies = builder.add_stream({.device = device});
  const QueueId engine = builder.add_queue({.device = device});
  const OpId issued = builder.add_op({.work = builder.work(Given{0}), .stream = compute}, {});
  const Edge after{issued};
  for (int i = 0; i < 3; ++i) {
    builder.add_op({.work = builder.work(Copy{.bytes = Bytes(10871635968)}), .stream = copies},
                   {.predecessors = std::span(&after, 1), .queues = std::span(&engine, 1)});
  }
  const OpGraph graph = std::move(builder).build();
  const Machine machine = make_machine(gpu, cluster, 1);
  const RooflineCostModel roofline(gpu, cluster, machine);
  const GivenCostModel costs({{.alone = duration_from_seconds(13.448)}}, &roofline);
  compare("marin tail", seconds(simulate(graph, machine, costs).end));
  // One layer's carry, at the rate of that size.
  const GpuSpec small = load_gpu("gb200", std::vector<std::pair<std::string, std::string>>{{"device_to_host", "183 GB/s"}});
  const RooflineCostModel of_layer(small, cluster, machine);
  const Cost cost = of_layer.cost(Copy{.bytes = Bytes(805306368)}, device);
  compare("marin layer copy", 1e3 * seconds(cost.fixed + cost.alone));
}

ModelSpec model_of(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn, std::int64_t vocab) {
  ModelSpec model = load_model("llama3-8b");
  model.name = "shape of a published run";
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.ffn_hidden = ffn;
  model.vocab = vocab;
  return model;
}

StepRequest full_recompute(const ModelSpec& model, std::int64_t sequence, std::int64_t micro_batch, const std::string& framework) {
  StepRequest request;
  request.model = model;
  request.framework = load_framework(framework);
  request.training.sequence = sequence;
  request.training.micro_batch = request.training.global_batch = micro_batch;
  request.placement.granularity = RecomputeGranularity::kFull;
  return request;
}

// The carry of 48 layers, bf16[16, 4096, 6144] each: 48 x 805,306,368 B.
TEST(OffloadCases, MarinHostStack) {
  StepRequest request = full_recompute(model_of(48, 6144, 48, 6144, 128256), 4096, 16, "megatron-core@2025");
  request.placement.offload.selection.names = {"input"};
  request.placement.offload.schedule.host_lifetime = HostLifetime::kStep;
  const PublishedRun run = run_published(request, "gb200");
  EXPECT_EQ(run.run.memory[0].host_peak, Bytes(48 * std::int64_t{805306368}));
  compare("marin host stack", gib(run.run.memory[0].host_peak));
}

// Query and value projections are not run again: what that saves of a step whose copies are hidden, from FLOPs alone (MaxText's: 3 times
// forward, causal attention halved, what runs again not counted).
TEST(OffloadCases, LlamaQueryAndValue) {
  const ModelSpec model = load_model("llama3-405b");
  TrainingRecipe training;
  double saved[2] = {};
  for (const std::int64_t sequence : {4096, 8192}) {
    training.sequence = sequence;
    const double tokens = static_cast<double>(sequence);
    const double width = static_cast<double>((model.heads + model.kv_heads) * model.head_dim);  // of q and v
    const double again = 2 * tokens * static_cast<double>(model.hidden) * width * static_cast<double>(model.layers);
    saved[sequence == 8192] = 100 * again / step_flops(FlopsConvention::kMaxText, model, training, model.vocab, {}).model.value;
  }
  EXPECT_NEAR(saved[0], 2.91, 0.005);
  EXPECT_NEAR(saved[1], 2.85, 0.005);
  compare("llama-405b q and v offload", saved[0]);
  compare("llama-405b q and v offload", saved[1]);
}

// One tensor of 2.250 GiB: 131072 tokens x 9216 x 2 B. The allocator of pinned memory takes the next power of two.
TEST(OffloadCases, PowersOfTwo) {
  StepRequest request = full_recompute(model_of(2, 9216, 72, 9216, 32000), 131072, 1, "torchtitan@2024-12");
  request.placement.offload = offload_preset("deepspeed")->offload;
  const PublishedRun run = run_published(request, "gb200");
  EXPECT_EQ(run.run.memory[0].host_peak, Bytes(std::int64_t{4} << 30));
  compare("pinned power of two", gib(run.run.memory[0].host_peak));
}

// Host time of 155 tensors that are pinned one by one.
TEST(OffloadCases, PinnedAllocation) {
  const GpuSpec gpu = load_gpu("h100-sxm-80gb");
  const ClusterSpec cluster = usual_cluster(gpu);
  const Machine machine = make_machine(gpu, cluster, 1);
  const RooflineCostModel costs(gpu, cluster, machine);
  const Copy pooled{.bytes = Bytes(1 << 20)}, fresh{.bytes = Bytes(1 << 20), .allocates = true};
  compare("pinned allocation", 155e3 * seconds(costs.cost(fresh, DeviceId{0}).issue - costs.cost(pooled, DeviceId{0}).issue));
}

// What is live when the host has launched the last forward op.
Bytes after_forward(const PublishedRun& run) {
  const OpGraph& graph = run.step.graph;
  Bytes live{}, after{};
  for (const MemoryEvent& event : run.run.result.memory) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(event.storage.index)];
    if (storage.space != MemorySpace::kDevice) continue;
    live = live + event.bytes;
    if (event.by.valid() && graph.label(graph.op(event.by).phase) == "forward") after = live;
  }
  return after;
}

// A model of 24 layers whose inputs are 1.61 GB together, as in the thread (which does not name it): 24 x 16384 x 2048 x 2 B. Gradients
// come into being in backward there, so memory grows from layer to layer and peaks at the first one, when no input is left to free.
TEST(OffloadCases, AccelerateSavesAfterForwardNotAtThePeak) {
  StepRequest request = full_recompute(model_of(24, 2048, 16, 8192, 32000), 4096, 4, "torchtitan@2024-12");
  request.training.loss = LossKind::kChunked;  // the logits of so small a model would be the peak
  request.training.loss_chunks = 16;
  const PublishedRun kept = run_published(request, "h100-sxm-80gb");
  request.placement.offload = offload_preset("save-on-cpu")->offload;
  request.placement.offload.selection.names = {"input"};
  const PublishedRun moved = run_published(request, "h100-sxm-80gb");
  EXPECT_EQ(moved.run.memory[0].host_peak, Bytes(24 * std::int64_t{16384} * 2048 * 2));
  compare("accelerate after forward", static_cast<double>((after_forward(kept) - after_forward(moved)).value) / 1e9);
  compare("accelerate peak", static_cast<double>((kept.run.worst().peak.bytes - moved.run.worst().peak.bytes).value) / 1e9);
  EXPECT_GT(moved.run.result.end, kept.run.result.end);
}

}  // namespace
}  // namespace stepsim
