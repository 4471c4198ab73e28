#include "models/pipeline_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/chunk_placement.h"
#include "models/vocabulary.h"
#include "sim/check.h"
#include "sim/memory_ledger.h"

namespace stepsim {

namespace {

struct StageStreams {
  DeviceId device{};
  StreamId compute{};
  // By whether what is sent goes down.
  std::array<StreamId, 2> receive{}, send{};
};

// Of a stage, in this order behind the row of all transfers.
enum class CostRow : std::uint8_t { kForward, kBackward, kWeight, kWholeBackward, kPair, kNothing };
constexpr std::int32_t kCostRows = 6;

struct HeldStorages {  // of a chunk and micro-batch
  StorageId until_backward{}, until_weight{};
  bool put_off = false;  // it has a weight pass
};

class PipelineGraphBuilder {
 public:
  PipelineGraphBuilder(const std::vector<StagePasses>& passes, const ChunkPlacement& placement, PointToPoint mode,
                       const std::vector<PassDurations>& of_stage, Duration transfer);
  PipelineGraph build() &&;

 private:
  void add_stage(const PassDurations&);
  StreamId add_stream(DeviceId, std::string_view kind);
  void add_pass(std::int32_t stage, std::int32_t pass, CostRow row);
  void add_item(const PipelineItem&);
  CostRow row_of(std::int32_t stage, const Pass& pass) const;
  void add_transfer(const PipelineItem&);
  WorkId given(std::int32_t row, Given::Class of) { return builder_.work(Given{.index = row, .op_class = of}); }
  std::size_t place(const Pass& pass) const { return at(pass.chunk) * at(micro_batches_) + at(pass.micro_batch); }

  const std::vector<StagePasses>& passes_;
  const ChunkPlacement placement_;
  const PointToPoint mode_;
  std::int32_t micro_batches_ = 0;
  bool weight_passes_ = false;
  OpGraphBuilder builder_;
  PipelineGraph made_;
  LabelId forward_{}, backward_{}, weight_{}, pass_{}, transfer_{};
  std::vector<StageStreams> streams_;
  std::vector<std::vector<HeldStorages>> held_;         // by stage and place()
  std::vector<std::vector<OpId>> ops_;                  // by stage and pass
  std::vector<std::vector<std::vector<Edge>>> before_;  // by stage and pass: transfers that it waits for
};

PipelineGraphBuilder::PipelineGraphBuilder(const std::vector<StagePasses>& passes, const ChunkPlacement& placement, PointToPoint mode,
                                           const std::vector<PassDurations>& of_stage, Duration transfer)
    : passes_(passes), placement_(placement), mode_(mode) {
  STEPSIM_CHECK(of_stage.size() == passes.size());
  for (const StagePasses& stage : passes) {
    ops_.emplace_back(stage.passes.size());
    before_.emplace_back(stage.passes.size());
    for (const Pass& pass : stage.passes) {
      micro_batches_ = std::max(micro_batches_, pass.micro_batch + 1);
      weight_passes_ = weight_passes_ || pass.kind == PassKind::kWeight;
    }
  }
  const auto bucket = [](auto word) { return static_cast<std::int32_t>(word); };
  forward_ = builder_.label("forward", bucket(Phase::kForward));
  backward_ = builder_.label("backward", bucket(Phase::kBackward));
  weight_ = builder_.label("weight gradients", bucket(Phase::kBackward));
  pass_ = builder_.label("pass", bucket(Group::kNone));
  transfer_ = builder_.label("transfer", bucket(Group::kPipeline));
  made_.until_backward = builder_.label("activations until backward", bucket(Role::kActivations));
  if (weight_passes_) made_.until_weight = builder_.label("activations until weight gradients", bucket(Role::kActivations));
  made_.costs.push_back({.alone = transfer});
  for (const PassDurations& stage : of_stage) add_stage(stage);
  for (std::size_t stage = 0; stage < passes.size(); ++stage) {
    for (const Pass& pass : passes[stage].passes) held_[stage][place(pass)].put_off |= pass.kind == PassKind::kWeight;
  }
}

StreamId PipelineGraphBuilder::add_stream(DeviceId device, std::string_view kind) {
  return builder_.add_stream({.device = device, .kind = builder_.label(kind), .compute = kind == kComputeStream});
}

void PipelineGraphBuilder::add_stage(const PassDurations& durations) {
  const Duration whole = weight_passes_ ? durations.backward + durations.weight : durations.backward;
  for (const Duration each :
       {durations.forward, durations.backward, durations.weight, whole, durations.pair.value_or(durations.forward + whole), Duration{}}) {
    made_.costs.push_back({.alone = each});
  }
  StageStreams& streams = streams_.emplace_back();
  streams.device = builder_.add_device();
  streams.compute = add_stream(streams.device, kComputeStream);
  held_.emplace_back(at(placement_.chunks) * at(micro_batches_));
  if (mode_ == PointToPoint::kBlocking) {
    const StreamId one = add_stream(streams.device, "pp");
    streams.receive = streams.send = {one, one};
    return;
  }
  streams.receive[1] = add_stream(streams.device, "pp receive forward");
  streams.send[1] = add_stream(streams.device, "pp send forward");
  streams.receive[0] = add_stream(streams.device, "pp receive backward");
  streams.send[0] = add_stream(streams.device, "pp send backward");
}

CostRow PipelineGraphBuilder::row_of(std::int32_t stage, const Pass& pass) const {
  if (pass.kind == PassKind::kBackward) return held_[at(stage)][place(pass)].put_off ? CostRow::kBackward : CostRow::kWholeBackward;
  return pass.kind == PassKind::kForward ? CostRow::kForward : CostRow::kWeight;
}

// Both passes of a pair have what they wait for before the first starts.
void PipelineGraphBuilder::add_item(const PipelineItem& item) {
  if (!item.pair) {
    add_pass(item.stage, item.pass, row_of(item.stage, passes_[at(item.stage)].passes[at(item.pass)]));
    return;
  }
  std::vector<Edge>& first = before_[at(item.stage)][at(item.pass)];
  const std::vector<Edge>& second = before_[at(item.stage)][at(item.pass) + 1];
  first.insert(first.end(), second.begin(), second.end());
  add_pass(item.stage, item.pass, CostRow::kPair);
  add_pass(item.stage, item.pass + 1, CostRow::kNothing);
}

void PipelineGraphBuilder::add_pass(std::int32_t stage, std::int32_t index, CostRow row) {
  const Pass& pass = passes_[at(stage)].passes[at(index)];
  HeldStorages& held = held_[at(stage)][place(pass)];
  std::vector<Tensor> reads, writes;
  const auto add_storage = [&](LabelId role) {
    const StorageId storage = builder_.add_storage(
        {.size = Bytes(1), .role = role, .device = streams_[at(stage)].device, .layer = pass.chunk, .micro_batch = pass.micro_batch});
    writes.push_back({.storage = storage, .size = Bytes(1)});
    return storage;
  };
  const auto read = [&](StorageId storage) { reads.push_back({.storage = storage, .size = Bytes(1)}); };
  Op op{.stream = streams_[at(stage)].compute, .kind = pass_, .layer = pass.chunk, .micro_batch = pass.micro_batch};
  switch (pass.kind) {
    case PassKind::kForward:
      op.phase = forward_;
      held.until_backward = add_storage(made_.until_backward);
      if (weight_passes_) held.until_weight = add_storage(made_.until_weight);
      break;
    case PassKind::kBackward:
      op.phase = backward_;
      read(held.until_backward);
      if (weight_passes_ && !held.put_off) read(held.until_weight);
      break;
    case PassKind::kWeight:
      op.phase = weight_;
      read(held.until_weight);
      break;
  }
  op.work = given(1 + kCostRows * stage + static_cast<std::int32_t>(row), Given::Class::kCompute);
  ops_[at(stage)][at(index)] = builder_.add_op(op, {.predecessors = before_[at(stage)][at(index)], .reads = reads, .writes = writes});
}

void PipelineGraphBuilder::add_transfer(const PipelineItem& item) {
  const Pass& pass = passes_[at(item.stage)].passes[at(item.pass)];
  const bool forward = pass.kind == PassKind::kForward;
  const std::size_t down = placement_.goes_down(pass.kind, item.from_stage, item.stage) ? 1 : 0;
  std::vector<Edge> after = {{ops_[at(item.from_stage)][at(item.from_pass)]}};
  if (item.posted_after >= 0) after.push_back({ops_[at(item.stage)][at(item.posted_after)]});
  const OpPart sender[] = {{.stream = streams_[at(item.from_stage)].send[down]}};
  const OpId op = builder_.add_op({.work = given(0, Given::Class::kPointToPoint),
                                   .stream = streams_[at(item.stage)].receive[down],
                                   .phase = forward ? forward_ : backward_,
                                   .kind = transfer_,
                                   .layer = pass.chunk,
                                   .micro_batch = pass.micro_batch},
                                  {.predecessors = after}, sender);
  const auto hold = [&](std::int32_t stage, std::int32_t waiting) {
    if (waiting >= 0) before_[at(stage)][at(waiting)].push_back({op});
  };
  hold(item.stage, item.pass);
  if (item.receiver_waits != item.pass) hold(item.stage, item.receiver_waits);
  hold(item.from_stage, item.sender_waits);
}

PipelineGraph PipelineGraphBuilder::build() && {
  const std::vector<PipelineItem> items = pipeline_program(passes_, placement_.chunks, mode_, placement_.kind);
  builder_.reserve(items.size(), 2 * passes_.size() * at(placement_.chunks) * at(micro_batches_));
  for (const PipelineItem& item : items) {
    if (item.is_transfer) {
      add_transfer(item);
    } else {
      add_item(item);
    }
  }
  made_.graph = std::move(builder_).build();
  return std::move(made_);
}

}  // namespace

PipelineGraph pipeline_graph(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint mode,
                             const std::vector<PassDurations>& of_stage, Duration transfer, PipelineKind kind) {
  const ChunkPlacement placement{kind, static_cast<std::int32_t>(passes.size()), chunks};
  return PipelineGraphBuilder(passes, placement, mode, of_stage, transfer).build();
}

std::vector<std::int64_t> passes_in_flight(const PipelineGraph& pipeline, const StepResult& result, LabelId role) {
  STEPSIM_CHECK(role.valid());
  std::vector<std::int64_t> most;
  const LabelId roles[] = {role};
  for (const Bytes bytes : peaks_of_roles(pipeline.graph, result, roles)) most.push_back(bytes.value);
  return most;
}

}  // namespace stepsim
