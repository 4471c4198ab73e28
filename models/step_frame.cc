#include "models/step_frame.h"

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

}  // namespace

StepFrame add_step_frame(OpGraphBuilder& builder, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  StepFrame frame;
  for (std::int32_t index = 0; index < parallel.pipeline; ++index) {
    StageFrame& stage = frame.stages.emplace_back();
    stage.device = builder.add_device();
    stage.streams[0] = builder.add_stream({.device = stage.device, .kind = builder.label(kComputeStream), .compute = true});
    if (parallel.tensor > 1) {
      add_group(builder, stage, PassStream::kTensor, kTensorStream, add_communicator(builder, stage, kTensorStream));
    }
    if (parallel.data > 1) {
      const QueueId communicator = add_communicator(builder, stage, kDataGroup);
      add_group(builder, stage, PassStream::kGather, kGatherStream, communicator);
      add_group(builder, stage, PassStream::kReduce, kReduceStream, communicator);
    }
    if (parallel.pipeline > 1) add_transfer_streams(builder, stage, *parallel.point_to_point);
    // 1,024 launches: the depth of a CUDA stream's queue before a launch blocks (spec/engine.md section 3).
    if (framework.host_issue) stage.issuer = builder.add_issuer({.device = stage.device, .run_ahead = 1024});
  }
  frame.labels = add_labels(builder);
  return frame;
}

}  // namespace stepsim
