// How long a whole pipelined step takes in the engine: graph, timeline, memory, metrics, each apart. The graph has the shape of the largest
// published step (Megatron-LM, arXiv 2104.04473, table 1: 530B, 35 pipeline stages of 3 model chunks, 280 micro-batches) with made-up
// costs. Run: build/release/tests/bench/pipeline_bench
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <array>
#include <vector>

#include "sim/critical_path.h"
#include "sim/metrics.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

constexpr std::int32_t kStages = 35, kChunks = 3, kMicroBatches = 280;
constexpr std::int32_t kForwardOps = 26, kBackwardOps = 46;  // of one model chunk and micro-batch
constexpr std::int32_t kWeights = 8;                         // of one model chunk

enum Stage : std::size_t { kCompute, kTensor, kSend, kReceive, kStreamKinds };

bool forward_collective(std::int32_t i) { return i == 2 || i == 9 || i == 15 || i == 22; }
bool backward_collective(std::int32_t i) { return i == 4 || i == 16 || i == 28 || i == 40; }

// Every op's work is a row of costs; rows differ by kind of op only, as those of layers do.
constexpr std::int32_t kCollectiveRow = kForwardOps + kBackwardOps, kTransferRow = kCollectiveRow + 1, kRows = kTransferRow + 1;

// Compute fills the SMs and part of the memory bandwidth, collectives a tenth of the SMs and the links: beside one another both contend.
class PipelineCosts : public CostModel {
 public:
  PipelineCosts() : loads_(at(3 * kStages)) {
    for (std::int32_t stage = 0; stage < kStages; ++stage) {
      const ResourceId sm{3 * stage}, hbm{3 * stage + 1}, link{3 * stage + 2};
      loads_[at(3 * stage)] = {{.resource = sm, .fraction_2e30 = load_fraction(1)}, {.resource = hbm, .fraction_2e30 = load_fraction(0.4)}};
      loads_[at(3 * stage + 1)] = {{.resource = sm, .fraction_2e30 = load_fraction(0.1), .while_waiting = true},
                                   {.resource = hbm, .fraction_2e30 = load_fraction(0.2)},
                                   {.resource = link, .fraction_2e30 = load_fraction(0.9)}};
      loads_[at(3 * stage + 2)] = {{.resource = sm, .fraction_2e30 = load_fraction(0.02), .while_waiting = true},
                                   {.resource = hbm, .fraction_2e30 = load_fraction(0.02)}};
    }
  }
  Cost cost(const OpWork& work, DeviceId device, TransferSide) const override {
    const std::int32_t row = std::get<Given>(work).index;
    const std::int32_t loads = row < kCollectiveRow ? 0 : 1 + row - kCollectiveRow;
    return {.fixed = Duration(2'000'000),
            .alone = Duration(20'000'000 + 7'654'321 * (row % 11) + 1'234'567 * (row % 7)),
            .issue = Duration(4'000'000),
            .loads = loads_[at(3 * device.index + loads)]};
  }
  static Machine machine() {
    Machine machine = plain_machine(kStages);
    for (std::int32_t stage = 0; stage < kStages; ++stage) {
      for (const char* const kind : {"sm", "hbm", "nvlink"}) machine.resources.push_back({.name = kind, .kind = kind, .device = {stage}});
    }
    return machine;
  }

 private:
  std::vector<std::vector<Load>> loads_;
};

struct Pass {
  bool forward = true;
  std::int32_t chunk = 0, micro_batch = 0;
};

// Interleaved 1F1B (arXiv 2104.04473, section 2.2), as in Megatron-LM's schedules.py.
std::vector<Pass> passes_of(std::int32_t stage) {
  constexpr std::int32_t kPasses = kChunks * kMicroBatches;
  const auto pass = [](bool forward, std::int32_t i) {
    const std::int32_t chunk = i % (kStages * kChunks) / kStages;
    return Pass{forward, forward ? chunk : kChunks - 1 - chunk, i / (kStages * kChunks) * kStages + i % kStages};
  };
  const std::int32_t warmup = std::min(2 * (kStages - stage - 1) + (kChunks - 1) * kStages, kPasses);
  std::vector<Pass> passes;
  for (std::int32_t i = 0; i < warmup; ++i) passes.push_back(pass(true, i));
  for (std::int32_t i = 0; i < kPasses; ++i) {
    if (i + warmup < kPasses) passes.push_back(pass(true, i + warmup));
    passes.push_back(pass(false, i));
  }
  return passes;
}

class PipelineGraph {
 public:
  PipelineGraph() {
    constexpr std::size_t kUnits = std::size_t{kStages} * kChunks * kMicroBatches;
    builder_.reserve(kUnits * (kForwardOps + kBackwardOps + 4), kUnits * (kForwardOps + kBackwardOps + 2));
    units_.resize(kUnits);
    for (std::int32_t row = 0; row < kRows; ++row) {
      Given::Class op_class = row == kCollectiveRow ? Given::Class::kCollective : Given::Class::kCompute;
      if (row == kTransferRow) op_class = Given::Class::kPointToPoint;
      works_.push_back(builder_.work(Given{.index = row, .op_class = op_class}));
    }
    marker_ = builder_.work(Marker{});
    for (std::int32_t stage = 0; stage < kStages; ++stage) add_device();
  }

  OpGraph built() && {
    std::vector<std::vector<Pass>> passes;
    for (std::int32_t stage = 0; stage < kStages; ++stage) passes.push_back(passes_of(stage));
    std::vector<std::size_t> next(at(kStages), 0);
    for (bool any = true; any;) {  // whatever a pass waits for comes before it
      any = false;
      for (std::int32_t stage = 0; stage < kStages; ++stage) {
        if (next[at(stage)] == passes[at(stage)].size() || !can_follow(stage, passes[at(stage)][next[at(stage)]])) continue;
        add_pass(stage, passes[at(stage)][next[at(stage)]++]);
        any = true;
      }
    }
    return std::move(builder_).build();
  }

 private:
  struct Device {
    DeviceId id{};
    std::array<StreamId, kStreamKinds> streams{};
    QueueId communicator{};
    IssuerId host{};
    std::array<std::array<StorageId, kWeights>, kChunks> weights{}, gradients{};
    std::array<OpId, 2> last_of_kind{};  // by forward: of the last pass
  };
  struct Unit {  // a model chunk of a stage with a micro-batch
    OpId last_forward{}, last_backward{};
    StorageId output{}, input_gradient{};
    std::array<StorageId, kForwardOps> saved{};
  };

  void add_device() {
    Device device{.id = builder_.add_device()};
    for (std::size_t kind = 0; kind < kStreamKinds; ++kind) {
      device.streams[kind] =
          builder_.add_stream({.device = device.id, .kind = builder_.label(kStreamNames[kind]), .compute = kind == kCompute});
    }
    device.communicator = builder_.add_queue({.device = device.id, .kind = builder_.label("tp communicator")});
    device.host = builder_.add_issuer({.device = device.id});
    const auto resident = [&] {
      return builder_.add_storage(
          {.size = Bytes(100'000'000), .role = weights_, .device = device.id, .live_at_start = true, .live_at_end = true});
    };
    for (auto* const storages : {&device.weights, &device.gradients}) {
      for (auto& chunk : *storages) {
        for (StorageId& each : chunk) each = resident();
      }
    }
    devices_.push_back(device);
  }

  Unit& unit(std::int32_t stage, std::int32_t chunk, std::int32_t micro_batch) {
    return units_[at((chunk * kStages + stage) * kMicroBatches + micro_batch)];
  }
  // The unit that the pass gets its input from; none for the first forward and the first backward one.
  const Unit* source(std::int32_t stage, const Pass& pass) {
    const std::int32_t part = pass.chunk * kStages + stage + (pass.forward ? -1 : 1);
    return part < 0 || part == kStages * kChunks ? nullptr : &unit(part % kStages, part / kStages, pass.micro_batch);
  }
  bool can_follow(std::int32_t stage, const Pass& pass) {
    const Unit* from = source(stage, pass);
    return from == nullptr || (pass.forward ? from->last_forward : from->last_backward).valid();
  }

  StorageId storage(const Device& device, const Pass& pass, std::int64_t size) {
    return builder_.add_storage(
        {.size = Bytes(size), .role = activations_, .device = device.id, .layer = pass.chunk, .micro_batch = pass.micro_batch});
  }
  Tensor view(StorageId id) { return {.storage = id, .offset = Bytes(0), .size = builder_.storage(id).size}; }
  Op op_of(const Device& device, const Pass& pass, WorkId work, Stage stream) const {
    return {.work = work,
            .stream = device.streams[stream],
            .phase = phases_[pass.forward ? 0 : 1],
            .kind = kinds_[stream],
            .layer = pass.chunk,
            .micro_batch = pass.micro_batch,
            .issuer = device.host};
  }

  struct Received {
    OpId transfer{};
    StorageId storage{};
  };
  // Launched by the receiver, after the last pass of this kind. What is sent is held by a marker of the sender's thread, and not named by
  // the transfer: the sender's memory is a matter of its own thread.
  Received receive(std::int32_t stage, const Pass& pass, const Unit& from) {
    const Device& receiver = devices_[at(stage)];
    const Device& sender = devices_[at((stage + kStages + (pass.forward ? -1 : 1)) % kStages)];
    const StorageId sent = pass.forward ? from.output : from.input_gradient, received = storage(receiver, pass, kOutput);
    const OpId posted_after = receiver.last_of_kind[pass.forward];
    const std::array<Edge, 2> edges = {Edge{pass.forward ? from.last_forward : from.last_backward}, Edge{posted_after}};
    const std::array<Tensor, 1> writes = {view(received)};
    const std::array<OpPart, 1> further = {OpPart{.stream = sender.streams[kSend]}};
    const OpId transfer =
        builder_.add_op(op_of(receiver, pass, works_[kTransferRow], kReceive),
                        {.predecessors = std::span(edges).first(posted_after.valid() ? 2 : 1), .writes = writes}, further);
    const std::array<Edge, 1> over = {Edge{transfer}};
    const std::array<StorageId, 1> held = {sent};
    Op release = op_of(sender, pass, marker_, kCompute);
    release.stream = {};
    builder_.add_op(release, {.predecessors = over, .holds = held});
    return {transfer, received};
  }

  void add_pass(std::int32_t stage, const Pass& pass) {
    Received input;
    if (const Unit* from = source(stage, pass)) input = receive(stage, pass, *from);
    Device& device = devices_[at(stage)];
    Unit& here = unit(stage, pass.chunk, pass.micro_batch);
    OpId last = input.transfer, collective{};
    StorageId value = input.storage;
    const std::int32_t ops = pass.forward ? kForwardOps : kBackwardOps;
    for (std::int32_t i = 0; i < ops; ++i) {
      const bool communicates = pass.forward ? forward_collective(i) : backward_collective(i);
      const StorageId out = storage(device, pass, i + 1 == ops ? kOutput : kOutput / (1 + i % 4));
      std::array<Edge, 2> edges = {Edge{last}, Edge{collective}};
      std::array<Tensor, 4> reads, writes = {view(out)};
      std::size_t edge_count = last.valid() ? 1 : 0, read_count = 0, write_count = 1;
      // A collective of a backward pass runs beside the two ops after it.
      if (collective.valid() && (pass.forward || i % 4 == 3)) {
        edges[edge_count++].from = std::exchange(collective, OpId{});
      }
      if (value.valid()) reads[read_count++] = view(value);
      if (i % 3 == 0) reads[read_count++] = view(device.weights[at(pass.chunk)][at(i / 3 % kWeights)]);
      if (!pass.forward && i < kForwardOps) reads[read_count++] = view(here.saved[at(kForwardOps - 1 - i)]);
      if (!pass.forward && i % 5 == 4) writes[write_count++] = view(device.gradients[at(pass.chunk)][at(i / 5 % kWeights)]);
      const WorkId work = works_[at(communicates ? kCollectiveRow : (pass.forward ? i : kForwardOps + i))];
      const std::array<QueueId, 1> queues = {device.communicator};
      const OpId op = builder_.add_op(op_of(device, pass, work, communicates ? kTensor : kCompute),
                                      {.predecessors = std::span(edges).first(edge_count),
                                       .reads = std::span(reads).first(read_count),
                                       .writes = std::span(writes).first(write_count),
                                       .queues = std::span(queues).first(communicates ? 1 : 0)});
      if (communicates) {
        collective = op;
      } else {
        last = op;
      }
      if (pass.forward) here.saved[at(i)] = out;
      value = out;
    }
    device.last_of_kind[pass.forward] = last;
    (pass.forward ? here.output : here.input_gradient) = value;
    (pass.forward ? here.last_forward : here.last_backward) = last;
  }

  static constexpr std::int64_t kOutput = 40'000'000;
  static constexpr std::array<const char*, kStreamKinds> kStreamNames = {"compute", "tp", "pp send", "pp receive"};
  OpGraphBuilder builder_;
  LabelId weights_ = builder_.label("weights", 0), activations_ = builder_.label("activations", 1);
  std::array<LabelId, 2> phases_ = {builder_.label("forward", 0), builder_.label("backward", 1)};
  std::array<LabelId, kStreamKinds> kinds_ = {builder_.label("compute", 0), builder_.label("tp", 1), builder_.label("pp", 2),
                                              builder_.label("pp", 2)};
  std::vector<WorkId> works_;
  WorkId marker_{};
  std::vector<Device> devices_;
  std::vector<Unit> units_;
};

struct FinishedStep {
  OpGraph graph = PipelineGraph().built();
  Machine machine = PipelineCosts::machine();
  PipelineCosts costs;
  StepResult result = simulate(graph, machine, costs);
};
FinishedStep& finished_step() {
  static FinishedStep step;
  return step;
}

void report(benchmark::State& state, std::size_t ops, const char* target) {
  state.SetLabel(target);
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["ops/s"] =
      benchmark::Counter(static_cast<double>(ops) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void build(benchmark::State& state) {
  std::size_t ops = 0;
  for (auto _ : state) {
    const OpGraph graph = PipelineGraph().built();
    ops = graph.ops().size();
  }
  report(state, ops, "under 0.6 s");
}
BENCHMARK(build)->Unit(benchmark::kMillisecond);

void timeline(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  for (auto _ : state) {
    const StepResult result = simulate(step.graph, step.machine, step.costs, {.memory = false});
    if (result.deadlock || result.end != step.result.end) state.SkipWithError("the step did not run to its end");
  }
  report(state, step.graph.ops().size(), "under 1 s with memory");
  state.counters["events/op"] = static_cast<double>(step.result.events) / static_cast<double>(step.graph.ops().size());
  state.counters["slowed"] = static_cast<double>(
      std::count_if(step.result.timeline.begin(), step.result.timeline.end(), [](const OpRun& run) { return run.slowed.count() > 0; }));
}
BENCHMARK(timeline)->Unit(benchmark::kMillisecond);

void memory(benchmark::State& state) {
  FinishedStep& step = finished_step();
  for (auto _ : state) record_memory(step.graph, step.machine, LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, step.result);
  report(state, step.graph.ops().size(), "");
  state.counters["events"] = static_cast<double>(step.result.memory.size());
}
BENCHMARK(memory)->Unit(benchmark::kMillisecond);

void peaks(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  for (auto _ : state) benchmark::DoNotOptimize(memory_peaks(step.graph, step.result));
  report(state, step.graph.ops().size(), "");
}
BENCHMARK(peaks)->Unit(benchmark::kMillisecond);

// The residents born in the step instead: the same timeline, another ledger.
void peaks_of_a_first_step(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  std::vector<StorageId> residents;
  for (std::int32_t id = 0; step.graph.storages()[at(id)].live_at_start; ++id) residents.push_back(StorageId{id});
  for (auto _ : state) {
    benchmark::DoNotOptimize(device_peaks(step.graph, step.machine, step.result, LedgerRule::kIssueOrder, {.storages = residents}));
  }
  report(state, step.graph.ops().size(), "");
}
BENCHMARK(peaks_of_a_first_step)->Unit(benchmark::kMillisecond);

void partition_of_time(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  for (auto _ : state) benchmark::DoNotOptimize(time_partition(step.graph, step.result, {}));
  report(state, step.graph.ops().size(), "");
}
BENCHMARK(partition_of_time)->Unit(benchmark::kMillisecond);

void path(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  for (auto _ : state) benchmark::DoNotOptimize(critical_path(step.graph, step.result));
  report(state, step.graph.ops().size(), "");
}
BENCHMARK(path)->Unit(benchmark::kMillisecond);

void use_of_resources(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  for (auto _ : state) benchmark::DoNotOptimize(resource_use(step.graph, step.machine, step.costs, step.result));
  report(state, step.graph.ops().size(), "");
}
BENCHMARK(use_of_resources)->Unit(benchmark::kMillisecond);

void hash(benchmark::State& state) {
  const FinishedStep& step = finished_step();
  std::uint64_t value = 0;
  for (auto _ : state) value = fingerprint(step.result);
  report(state, step.graph.ops().size(), "");
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  state.SetLabel(text);
}
BENCHMARK(hash)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepsim

BENCHMARK_MAIN();
