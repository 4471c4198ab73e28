#include "models/step_frame.h"

#include <string>

#include "models/data_parallel.h"
#include "models/layer_template.h"
#include "sim/check.h"

namespace stepsim {

namespace {

StepLabels add_labels(OpGraphBuilder& builder) {
  StepLabels labels{};
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) labels.phases[i] = builder.label(kPhaseNames[i], static_cast<std::int32_t>(i));
  for (std::size_t i = 0; i < kRoleNames.size(); ++i) labels.roles[i] = builder.label(kRoleNames[i], static_cast<std::int32_t>(i));
  labels.saved = builder.label(kSavedActivations, static_cast<std::int32_t>(Role::kActivations));
  labels.saved_again = builder.label(kSavedRecomputed, static_cast<std::int32_t>(Role::kRecomputed));
  labels.outside_layers = builder.label(kOtherActivations, static_cast<std::int32_t>(Role::kActivations));
  return labels;
}

void add_group(OpGraphBuilder& builder, StageFrame& stage, PassStream which, std::string_view kind, QueueId queue) {
  const auto i = static_cast<std::size_t>(which);
  stage.streams[i] = builder.add_stream({.device = stage.device, .kind = builder.label(kind)});
  stage.queues[i] = queue;
}

QueueId add_communicator(OpGraphBuilder& builder, const StageFrame& stage, std::string_view kind) {
  return builder.add_queue({.device = stage.device, .kind = builder.label(kind)});
}

void add_transfer_streams(OpGraphBuilder& builder, StageFrame& stage, PointToPoint mode) {
  const auto add = [&](std::string_view kind) { return builder.add_stream({.device = stage.device, .kind = builder.label(kind)}); };
  if (mode == PointToPoint::kBlocking) {
    stage.transfers.fill(add(kTransferStream));
  } else {
    for (std::size_t i = 0; i < kTransferStreams; ++i) stage.transfers[i] = add(kTransferStreamNames[i]);
  }
  stage.model_parallel = add(kModelParallelStream);
}

void add_engines(OpGraphBuilder& builder, StageFrame& stage, std::int32_t engines) {
  for (std::size_t i = 0; i < 2; ++i) {
    const bool shared = i > 0 && engines == 1;
    stage.engines[i] = shared ? stage.engines[0] : builder.add_queue({.device = stage.device, .kind = builder.label(kCopyEngines[i])});
  }
}

void add_copies(OpGraphBuilder& builder, StageFrame& stage, std::int32_t index, const OffloadSchedule& schedule) {
  constexpr std::array<std::string_view, 2> kBothWays = {kCopyOutStream, kCopyInStream};
  for (std::int32_t i = 0; i < schedule.streams; ++i) {
    const std::string name = schedule.streams == 2   ? std::string(kBothWays[static_cast<std::size_t>(i)])
                             : schedule.streams == 1 ? "copies"
                                                     : "copies " + std::to_string(i);
    stage.streams[static_cast<std::size_t>(PassStream::kCopy0) + static_cast<std::size_t>(i)] =
        builder.add_stream({.device = stage.device, .kind = builder.label(name)});
  }
  if (!schedule.pool_never_shrinks && schedule.host_lifetime != HostLifetime::kStep) return;
  stage.host_pool = builder.add_pool({.space = MemorySpace::kHost, .host = index, .capacity = Bytes(0), .never_shrinks = true});
}

}  // namespace

PassStream pass_stream(OpStream stream) {
  switch (stream) {
    case OpStream::kCompute:
      return PassStream::kCompute;
    case OpStream::kTensor:
      return PassStream::kTensor;
    case OpStream::kContext:
      return PassStream::kContext;
    case OpStream::kExpert:
      return PassStream::kExpert;
  }
  check_failed("stream of a template's op", __FILE__, __LINE__);
}

QueueId StageFrame::communicator(PassStream where, Group group) const {
  if (where != PassStream::kCompute) return queue(where);
  if (group == Group::kContext) return context;
  // An expert's tensor-parallel ranks are those of the layer where it has no others.
  return group == Group::kExpert && expert.valid() ? expert : queue(PassStream::kTensor);
}

StepFrame add_step_frame(OpGraphBuilder& builder, const ParallelLayout& parallel, const FrameworkPreset& framework,
                         const PlacementPolicy& placement, const BesideStreams& used) {
  StepFrame frame;
  for (std::int32_t index = 0; index < parallel.pipeline; ++index) {
    StageFrame& stage = frame.stages.emplace_back();
    stage.device = builder.add_device();
    stage.streams[0] = builder.add_stream({.device = stage.device, .kind = builder.label(kComputeStream), .compute = true});
    if (parallel.tensor > 1) {
      add_group(builder, stage, PassStream::kTensor, kTensorStream, add_communicator(builder, stage, kTensorStream));
    }
    if (parallel.context > 1) stage.context = add_communicator(builder, stage, kContextGroup);
    if (parallel.expert > 1 || parallel.expert_tensor > 1) stage.expert = add_communicator(builder, stage, kExpertGroup);
    if (used.context) add_group(builder, stage, PassStream::kContext, kContextStream, stage.context);
    if (used.expert) {
      add_group(builder, stage, PassStream::kExpert, kExpertStream, stage.communicator(PassStream::kCompute, Group::kExpert));
    }
    if (has_replicas(parallel)) {
      const QueueId communicator = add_communicator(builder, stage, kDataGroup);
      add_group(builder, stage, PassStream::kGather, kGatherStream, communicator);
      add_group(builder, stage, PassStream::kReduce, kReduceStream, communicator);
    }
    if (parallel.pipeline > 1) add_transfer_streams(builder, stage, *parallel.point_to_point);
    const bool tables = has_replicas(parallel) && parallel.zero >= 2 && framework.copies_pointer_tables;
    if (placement.offloads() || tables) add_engines(builder, stage, placement.offloads() ? placement.offload.schedule.engines : 2);
    if (placement.offloads()) add_copies(builder, stage, index, placement.offload.schedule);
    // 1,024 launches: the depth of a CUDA stream's queue before a launch blocks (spec/engine.md section 3).
    if (framework.host_issue) stage.issuer = builder.add_issuer({.device = stage.device, .run_ahead = 1024});
  }
  frame.labels = add_labels(builder);
  if (placement.offloads()) {
    frame.labels.reloaded = builder.label(kSavedReloaded, static_cast<std::int32_t>(Role::kOffloadStaging));
    frame.labels.on_host = builder.label(kOnHost, static_cast<std::int32_t>(Role::kOffloadStaging));
  }
  return frame;
}

}  // namespace stepsim
