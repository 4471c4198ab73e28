#include "models/offload_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/graph_limit.h"
#include "models/vocabulary.h"
#include "sim/check.h"
#include "sim/memory_ledger.h"
#include "sim/saturating_sum.h"

namespace stepsim {

namespace {

// Why the memory gate is edges. With N = L - K copies out (K stay) and M = max_resident:
// - Before the head ends only forward claims sets, since a copy in is queued at its end at the earliest. Copies out end in the order of
//   their layers, so of the j - 1 sets that forward j finds as many are gone as copies out have ended: fewer than M are resident exactly
//   when copy out j - M has ended. There is none if j - M > N, which some layer j has exactly if M < K; and with M = 0 forward 1 would wait
//   for the copy of its own set.
// - The first copy in is of layer N and needs copy out N, the last one. From then on nothing is copied out, compute only releases, and
//   copies in are the only claims, in a fixed order: copy in k finds K + k - 1 sets less the backward passes that have ended, so fewer than
//   M exactly when backward pass K + k - M has ended (in backward order, from 1; none if K + k - M < 1).
//   Its own set is needed by backward pass K + k, which is later: with M >= 1 no copy in waits for itself, and the graph has no cycle,
//   since every edge goes from an op added earlier to one added later.
// Both directions may thus share one engine at no price: no copy in could start before the last copy out has ended.

constexpr std::int64_t kOpsOfLayer = 4;  // at most: forward, copy out, copy in, backward

enum OffloadCostRow : std::int32_t { kForward, kHead, kBackward, kCopyOut, kCopyIn };

// Of everything one behind another; largest int64 if that is too little.
Duration serial_time(const OffloadStack& of) {
  std::int64_t layer = 0, all = 0;
  for (const Duration each : {of.forward, of.backward, of.copy_out, of.copy_in}) layer = saturating_sum(layer, each.count());
  if (__builtin_mul_overflow(layer, of.layers, &all)) return Duration::max();
  return saturating_sum(Duration(all), of.head);
}

std::int64_t kept_layers(const OffloadStack& of) { return std::min(of.keep_last, of.layers); }

class OffloadGraphBuilder {
 public:
  explicit OffloadGraphBuilder(const OffloadStack& of);
  OffloadGraph build() &&;

 private:
  struct Layer {
    StorageId device{}, host{};
    OpId forward{}, copy_out{}, copy_in{}, backward{};
  };
  StreamId add_stream(std::string_view kind);
  QueueId add_queue(std::string_view kind);
  StorageId add_set(std::int64_t layer, MemorySpace);
  void add_forward(std::int64_t layer);
  void add_copy_out(std::int64_t layer);
  void add_copy_in(std::int64_t layer);
  void add_backward(std::int64_t layer);
  OpId add_op(OffloadCostRow row, std::int64_t layer, const OpLinks&);
  Edge queued_by(std::int64_t layer) const;
  Layer& at(std::int64_t layer) { return layers_[static_cast<std::size_t>(layer - 1)]; }
  const Layer& at(std::int64_t layer) const { return layers_[static_cast<std::size_t>(layer - 1)]; }

  const OffloadStack of_;
  const std::int64_t kept_, offloaded_;
  OpGraphBuilder builder_;
  OffloadGraph made_;
  DeviceId device_{};
  StreamId compute_{}, out_{}, in_{};
  QueueId out_engine_{}, in_engine_{};
  LabelId forward_{}, backward_{}, set_{};
  std::array<LabelId, 5> kinds_{};  // by OffloadCostRow
  OpId head_{};
  std::vector<Layer> layers_;
};

OffloadGraphBuilder::OffloadGraphBuilder(const OffloadStack& of)
    : of_(of), kept_(kept_layers(of)), offloaded_(of.layers - kept_), layers_(static_cast<std::size_t>(of.layers)) {
  const auto bucket = [](auto word) { return static_cast<std::int32_t>(word); };
  for (const Duration each : {of.forward, of.head, of.backward, of.copy_out, of.copy_in}) made_.costs.push_back({.alone = each});
  device_ = builder_.add_device();
  compute_ = add_stream(kComputeStream);
  out_ = add_stream("copy out");
  in_ = add_stream("copy in");
  out_engine_ = add_queue(of.engines == 1 ? "copy engine" : "copy engine out");
  in_engine_ = of.engines == 1 ? out_engine_ : add_queue("copy engine in");
  forward_ = builder_.label("forward", bucket(Phase::kForward));
  backward_ = builder_.label("backward", bucket(Phase::kBackward));
  set_ = builder_.label("saved set", bucket(Role::kActivations));
  const LabelId pass = builder_.label("pass");
  kinds_ = {pass, builder_.label("head"), pass, builder_.label("copy out"), builder_.label("copy in")};
}

StreamId OffloadGraphBuilder::add_stream(std::string_view kind) {
  return builder_.add_stream({.device = device_, .kind = builder_.label(kind), .compute = kind == kComputeStream});
}

QueueId OffloadGraphBuilder::add_queue(std::string_view kind) {
  return builder_.add_queue({.device = device_, .kind = builder_.label(kind)});
}

StorageId OffloadGraphBuilder::add_set(std::int64_t layer, MemorySpace space) {
  return builder_.add_storage(
      {.size = Bytes(1), .role = set_, .device = device_, .space = space, .layer = static_cast<std::int32_t>(layer)});
}

OpId OffloadGraphBuilder::add_op(OffloadCostRow row, std::int64_t layer, const OpLinks& links) {
  using Class = Given::Class;
  const Class of = row == kCopyOut ? Class::kCopyToHost : row == kCopyIn ? Class::kCopyToDevice : Class::kCompute;
  const StreamId stream = row == kCopyOut ? out_ : row == kCopyIn ? in_ : compute_;
  const bool forward = row == kForward || row == kHead || row == kCopyOut;
  return builder_.add_op({.work = builder_.work(Given{.index = row, .op_class = of}),
                          .stream = stream,
                          .phase = forward ? forward_ : backward_,
                          .kind = kinds_[static_cast<std::size_t>(row)],
                          .layer = static_cast<std::int32_t>(layer)},
                         links);
}

void OffloadGraphBuilder::add_forward(std::int64_t layer) {
  at(layer).device = add_set(layer, MemorySpace::kDevice);
  std::vector<Edge> after;
  if (of_.max_resident && layer > *of_.max_resident) after.push_back({at(layer - *of_.max_resident).copy_out});
  const Tensor writes[] = {{.storage = at(layer).device, .size = Bytes(1)}};
  at(layer).forward = add_op(kForward, layer, {.predecessors = after, .writes = writes});
}

void OffloadGraphBuilder::add_copy_out(std::int64_t layer) {
  at(layer).host = add_set(layer, MemorySpace::kHost);
  const Edge after[] = {{at(layer).forward}};
  const Tensor reads[] = {{.storage = at(layer).device, .size = Bytes(1)}};
  const Tensor writes[] = {{.storage = at(layer).host, .size = Bytes(1)}};
  at(layer).copy_out = add_op(kCopyOut, layer, {.predecessors = after, .reads = reads, .writes = writes, .queues = {&out_engine_, 1}});
}

Edge OffloadGraphBuilder::queued_by(std::int64_t layer) const {
  if (!of_.lookahead || *of_.lookahead > of_.layers - layer) return {head_};
  if (*of_.lookahead > 0) return {at(layer + *of_.lookahead).backward, EdgeKind::kStartToStart};
  // Compute reaches backward of the layer when that of the layer above has ended.
  return {layer == of_.layers ? head_ : at(layer + 1).backward};
}

void OffloadGraphBuilder::add_copy_in(std::int64_t layer) {
  std::vector<Edge> after = {{at(layer).copy_out}, queued_by(layer)};
  const std::int64_t place = offloaded_ - layer + 1;  // among the copies in
  const std::int64_t passes = of_.max_resident ? std::max<std::int64_t>(kept_ + place - *of_.max_resident, 0) : 0;
  if (passes > 0) after.push_back({at(of_.layers - passes + 1).backward});
  at(layer).device = add_set(layer, MemorySpace::kDevice);
  const Tensor reads[] = {{.storage = at(layer).host, .size = Bytes(1)}};
  const Tensor writes[] = {{.storage = at(layer).device, .size = Bytes(1)}};
  at(layer).copy_in = add_op(kCopyIn, layer, {.predecessors = after, .reads = reads, .writes = writes, .queues = {&in_engine_, 1}});
}

void OffloadGraphBuilder::add_backward(std::int64_t layer) {
  std::vector<Edge> after;
  if (layer <= offloaded_) after.push_back({at(layer).copy_in});
  const Tensor reads[] = {{.storage = at(layer).device, .size = Bytes(1)}};
  at(layer).backward = add_op(kBackward, layer, {.predecessors = after, .reads = reads});
}

OffloadGraph OffloadGraphBuilder::build() && {
  builder_.reserve(static_cast<std::size_t>(2 * (of_.layers + offloaded_) + 1), static_cast<std::size_t>(of_.layers + 2 * offloaded_));
  for (std::int64_t layer = 1; layer <= of_.layers; ++layer) {
    add_forward(layer);
    if (layer <= offloaded_) add_copy_out(layer);
  }
  head_ = add_op(kHead, -1, {});
  for (std::int64_t layer = of_.layers; layer >= 1; --layer) {
    if (layer <= offloaded_) add_copy_in(layer);
    add_backward(layer);
  }
  made_.last_forward = at(of_.layers).forward;
  made_.last_backward = at(1).backward;
  made_.graph = std::move(builder_).build();
  return std::move(made_);
}

std::string layer_range(std::int64_t first, std::int64_t last) {
  return first == last ? "layer " + std::to_string(first) : "layers " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

std::optional<OffloadFinding> offload_finding(const OffloadStack& of) {
  const std::int64_t kept = kept_layers(of);
  if (!of.max_resident || *of.max_resident >= std::max<std::int64_t>(kept, 1)) return std::nullopt;
  if (*of.max_resident == 0)
    return OffloadFinding{1, "max_resident 0 has no place for the set of any layer: forward of layer 1 never starts"};
  const std::int64_t waiting = of.layers - kept + *of.max_resident + 1;
  return OffloadFinding{waiting, "max_resident " + std::to_string(*of.max_resident) + " is full with " +
                                     layer_range(of.layers - kept + 1, waiting - 1) + ", kept until backward: forward of layer " +
                                     std::to_string(waiting) + " never starts"};
}

OffloadGraph offload_graph(const OffloadStack& of) {
  STEPSIM_CHECK(of.layers >= 1);
  STEPSIM_CHECK(of.layers <= kMostGraphOps / kOpsOfLayer);
  for (const Duration each : {of.forward, of.backward, of.head, of.copy_out, of.copy_in}) STEPSIM_CHECK(each.count() >= 0);
  STEPSIM_CHECK(of.keep_last >= 0);
  STEPSIM_CHECK(of.max_resident.value_or(0) >= 0);
  STEPSIM_CHECK(of.lookahead.value_or(0) >= 0);
  STEPSIM_CHECK(of.engines == 1 || of.engines == 2);
  STEPSIM_CHECK(serial_time(of) < Duration::max());
  STEPSIM_CHECK(!offload_finding(of));
  return OffloadGraphBuilder(of).build();
}

OffloadFigures offload_figures(const OffloadStack& of, const OffloadGraph& made, const StepResult& result) {
  STEPSIM_CHECK(!result.deadlock);  // offload_graph() has no cycle
  OffloadFigures figures;
  for (const OpRun& run : result.timeline) {
    if (run.op == made.last_forward) figures.forward_end = run.end;
    if (run.op == made.last_backward) figures.total = run.end;
  }
  figures.exposed = figures.total - of.head - (of.forward + of.backward) * of.layers;
  const MemoryPeaks peaks = memory_peaks(made.graph, result);
  figures.resident_sets = peaks.device[0].bytes.value;
  figures.host_sets = peaks.host[0].bytes.value;
  return figures;
}

}  // namespace stepsim
