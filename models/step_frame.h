// What every op of a step refers to: the representative device, its streams, the communicator of the tensor-parallel group, the host thread
// that launches, and the words that phases and roles are labelled with.
#pragma once

#include <array>

#include "models/framework_preset.h"
#include "models/training_recipe.h"
#include "models/vocabulary.h"
#include "sim/op_graph.h"

namespace stepsim {

struct StepFrame {
  DeviceId device;
  StreamId compute;
  StreamId tensor;                                 // none with one tensor-parallel rank
  QueueId tensor_queue;                            // likewise
  IssuerId issuer;                                 // none where launches cost no host time
  std::array<LabelId, kPhaseNames.size()> phases;  // by Phase
  std::array<LabelId, kRoleNames.size()> roles;    // by Role, named as in the JSON result
  LabelId saved, saved_again, outside_layers;      // kSavedActivations, kSavedRecomputed, kOtherActivations

  LabelId phase(Phase each) const { return phases[static_cast<std::size_t>(each)]; }
  LabelId role(Role each) const { return roles[static_cast<std::size_t>(each)]; }
};

StepFrame add_step_frame(OpGraphBuilder&, const ParallelLayout&, const FrameworkPreset&);

}  // namespace stepsim
