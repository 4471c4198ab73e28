#include "models/step_frame.h"

namespace stepsim {

StepFrame add_step_frame(OpGraphBuilder& builder, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  StepFrame frame{};
  frame.device = builder.add_device();
  frame.compute = builder.add_stream({.device = frame.device, .kind = builder.label(kComputeStream), .compute = true});
  if (parallel.tensor > 1) {
    const LabelId kind = builder.label(kTensorStream);
    frame.tensor = builder.add_stream({.device = frame.device, .kind = kind});
    frame.tensor_queue = builder.add_queue({.device = frame.device, .kind = kind});
  }
  // 1,024 launches: the depth of a CUDA stream's queue before a launch blocks (spec/engine.md section 3).
  if (framework.host_issue) frame.issuer = builder.add_issuer({.device = frame.device, .run_ahead = 1024});
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) frame.phases[i] = builder.label(kPhaseNames[i], static_cast<std::int32_t>(i));
  for (std::size_t i = 0; i < kRoleNames.size(); ++i) frame.roles[i] = builder.label(kRoleNames[i], static_cast<std::int32_t>(i));
  frame.saved = builder.label(kSavedActivations, static_cast<std::int32_t>(Role::kActivations));
  frame.saved_again = builder.label(kSavedRecomputed, static_cast<std::int32_t>(Role::kRecomputed));
  frame.outside_layers = builder.label(kOtherActivations, static_cast<std::int32_t>(Role::kActivations));
  return frame;
}

}  // namespace stepsim
