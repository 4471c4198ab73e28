#include "models/graph_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "models/micro_batch_script.h"
#include "models/step_builder.h"
#include "sim/input_error.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

// What a run needs for one op or for several, in parts that are there at different times.
struct RunBytes {
  std::int64_t kept = 0;    // to the end: graph, timeline, memory log
  std::int64_t ledger = 0;  // while the memory log is made
  std::int64_t script = 0;  // of one micro-batch, while the graph is made
  RunBytes& operator+=(const RunBytes& other) {
    kept += other.kept;
    ledger += other.ledger;
    script += other.script;
    return *this;
  }
  friend RunBytes operator-(const RunBytes& a, const RunBytes& b) { return {a.kept - b.kept, a.ledger - b.ledger, a.script - b.script}; }
};

template <class T>
constexpr std::int64_t size_of(std::size_t count) {
  return static_cast<std::int64_t>(sizeof(T) * count);
}

// Sizes of a 64-bit machine. By op: its row of 40 bytes in ops(), 7 ends of rows and 4 places in orders and parts of 4 bytes each, 40 bytes
// of timeline; where the ledger works, 4 bytes to find the op in the timeline. By read, write and update in place: 24 bytes, an update
// twice; by hold 4. A collective joins two streams: 2 edges of 8 bytes and a queue. By storage: 40 bytes, claim and release of 24 bytes
// each in the log; where the ledger works, 32 bytes of its state and the log once more before it is put together.
RunBytes bytes_of(const TemplateOp& op) {
  constexpr std::int64_t kLedgerStorage = 32;  // Ledger::StorageUse of sim/memory_ledger.cc
  const std::size_t tensors = op.reads.size() + op.writes.size() + 2 * op.updates.size(), holds = op.holds.size();
  const std::size_t edges = op.group == Group::kNone ? 0 : 2;
  const auto storages = static_cast<std::int64_t>(op.writes.size());
  const std::int64_t links = size_of<Tensor>(tensors) + size_of<StorageId>(holds);
  const std::int64_t log = storages * size_of<MemoryEvent>(2);
  RunBytes bytes;
  bytes.kept = size_of<Op>(1) + size_of<std::uint32_t>(7) + size_of<std::int32_t>(4) + size_of<OpRun>(1) + links + size_of<Edge>(edges) +
               size_of<QueueId>(edges / 2) + storages * size_of<Storage>(1) + log;
  bytes.ledger = size_of<std::int32_t>(1) + storages * kLedgerStorage + log;
  bytes.script = size_of<ScriptOp>(1) + 2 * links + storages * size_of<ScriptStorage>(1);  // links a second time with ids of the graph
  return bytes;
}

// A copy reads and writes a storage, of which it makes one; what waits for it holds one.
const TemplateOp kCopyOp{.name = {}, .module = {}, .work = {}, .reads = {0}, .writes = {0}, .updates = {}, .holds = {}, .after = {}};
const TemplateOp kWaitOp{.name = {}, .module = {}, .work = {}, .reads = {}, .writes = {}, .updates = {}, .holds = {0}, .after = {}};

// Sums of bytes_of over the first 0, 1, .. ops.
std::vector<RunBytes> running_bytes(const std::vector<TemplateOp>& ops) {
  std::vector<RunBytes> sums{{}};
  for (const TemplateOp& op : ops) {
    sums.push_back(sums.back());
    sums.back() += bytes_of(op);
  }
  return sums;
}

// SavedTensor rows of micro-batch 0, with the pieces of the heap behind two names, a shape and a storage.
std::int64_t saved_bytes_of_layer(const LayerTemplate& layer) {
  constexpr std::size_t kPieces = 4, kPiece = 32;  // the least that malloc gives to more than 24 bytes
  return static_cast<std::int64_t>(saved_slots(layer).size() * (sizeof(SavedTensor) + kPieces * kPiece));
}

std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

// Of one micro-batch's ops and bytes, and all layers' saved tensors.
GraphSize run_size(std::int64_t ops, const RunBytes& bytes, std::int64_t saved, std::int64_t micro_batches) {
  const auto of_step = [=](std::int64_t each) { return saturating_product(each, micro_batches); };
  // The ledger, and beside it the partition of the time, whose tables are about as large.
  const std::int64_t working = std::max(saturating_product(of_step(bytes.ledger), 2), bytes.script);
  const std::int64_t kept = saturating_sum(of_step(bytes.kept), saved);
  return {of_step(ops), saturating_sum(kept, working)};
}

std::int64_t saved_bytes_of_layers(const LayerStack& stack) {
  const std::vector<std::int64_t> layers = stack.layers_of_kinds();
  std::int64_t saved = 0;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    saved = saturating_sum(saved, saturating_product(saved_bytes_of_layer(stack.kind(kind)), layers[at(kind)]));
  }
  return saved;
}

}  // namespace

GraphSize least_graph_size(const LayerStack& stack, std::int64_t micro_batches) {
  const std::vector<std::int64_t> layers = stack.layers_of_kinds();
  std::int64_t ops = 0;
  RunBytes bytes;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const LayerTemplate& layer = stack.kind(kind);
    RunBytes of_layer = running_bytes(layer.forward).back();
    of_layer += running_bytes(layer.backward).back();
    const auto add = [&](std::int64_t& sum, std::int64_t each) { sum = saturating_sum(sum, saturating_product(each, layers[at(kind)])); };
    add(ops, static_cast<std::int64_t>(layer.forward.size() + layer.backward.size()));
    add(bytes.kept, of_layer.kept);
    add(bytes.ledger, of_layer.ledger);
    add(bytes.script, of_layer.script);
  }
  return run_size(ops, bytes, saved_bytes_of_layers(stack), micro_batches);
}

GraphSize graph_size(const LayerStack& stack, const PlacementPlan& plan, std::int64_t micro_batches) {
  std::vector<std::vector<RunBytes>> forward, backward;  // by kind
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    forward.push_back(running_bytes(stack.kind(kind).forward));
    backward.push_back(running_bytes(stack.kind(kind).backward));
  }
  std::int64_t ops = 0;
  RunBytes bytes;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb == PlanVerb::kDrop) continue;
      if (moves_storage(step.verb)) {
        const bool copy = step.verb == PlanVerb::kCopyOut || step.verb == PlanVerb::kCopyIn;
        ops += 1;
        bytes += bytes_of(copy ? kCopyOp : kWaitOp);
        continue;
      }
      const std::vector<RunBytes>& sums = (step.verb == PlanVerb::kForward ? forward : backward)[at(stack.kind_of(step.layer))];
      ops += step.last - step.first + 1;
      bytes += sums[static_cast<std::size_t>(step.last) + 1] - sums[static_cast<std::size_t>(step.first)];
    }
  }
  return run_size(ops, bytes, saved_bytes_of_layers(stack), micro_batches);
}

GraphSize operator+(const GraphSize& a, const GraphSize& b) { return {saturating_sum(a.ops, b.ops), saturating_sum(a.bytes, b.bytes)}; }

GraphSize pipeline_size(const LayerStack& stack, const PipelineShape& shape, std::int64_t micro_batches) {
  if (shape.stages <= 1) return {};
  // Measured, as tests/unit/models/graph_limit_test.cc has it. Of a chunk and micro-batch: two passes, two transfers and what frees what
  // they sent, their buffers, their places in the program. Of a stage: streams and ends, and what each work costs there.
  constexpr std::int64_t kPart = 4600, kStage = 2048, kCost = 200;
  constexpr std::int64_t kPartOps = 4, kStageOps = 8;
  std::int64_t works = 0;
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    works += static_cast<std::int64_t>(stack.kind(kind).forward.size() + stack.kind(kind).backward.size());
  }
  const std::int64_t parts = saturating_product(saturating_product(shape.stages, shape.chunks), micro_batches);
  const GraphSize of_stages{saturating_product(shape.stages, kStageOps), saturating_product(shape.stages, kStage + works * kCost)};
  return of_stages + GraphSize{saturating_product(parts, kPartOps), saturating_product(parts, kPart)};
}

void check_graph_size(const GraphSize& size, std::int64_t layers, const PipelineShape& shape, std::int64_t micro_batches) {
  if (size.ops <= kMostGraphOps && size.bytes <= kMostGraphBytes) return;
  const bool pipeline = shape.stages > 1;
  const std::int64_t parts = pipeline ? saturating_product(shape.stages, shape.chunks) : 0;
  const std::string flag = layers >= std::max(parts, micro_batches) ? "--layers" : parts >= micro_batches ? "--pp" : "--global-batch";
  const std::string stages = !pipeline          ? ""
                             : shape.chunks > 1 ? fmt::format("{} stages of {} chunks, ", shape.stages, shape.chunks)
                                                : fmt::format("{} stages, ", shape.stages);
  throw InputError(
      {flag, 0, 0},
      fmt::format("found a step of {}{} ops and {:.1f} GiB of memory to run it ({} layers, {}{} micro-batches), wanted at most "
                  "{} ops and {} GiB",
                  size.ops == kMost ? "more than " : "", size.ops,
                  static_cast<double>(size.bytes) / static_cast<double>(std::int64_t{1} << 30), layers, stages, micro_batches,
                  kMostGraphOps, kMostGraphBytes >> 30));
}

}  // namespace stepsim
