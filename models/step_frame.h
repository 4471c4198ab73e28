// What every op of a step refers to: the representative device of each pipeline stage, its streams, its communicators, the host thread that
// launches, and the words that phases and roles are labelled with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/framework_preset.h"
#include "models/placement_table.h"
#include "models/training_recipe.h"
#include "models/vocabulary.h"
#include "sim/op_graph.h"

namespace stepsim {

// Streams that a pass writes to. Ops of one are in order; an op waits for what it needs on the others.
enum class PassStream : std::uint8_t {
  kCompute,
  kTensor,   // collectives of the tensor-parallel group
  kContext,  // of the context-parallel group, beside compute
  kExpert,   // of the expert-parallel group, beside compute
  kGather,   // of weights, data-parallel
  kReduce,   // of gradients, data-parallel
  kCopy0,    // to and from the host; which copies: OffloadSchedule::streams
  kCopy1,
  kCopy2,
  kCopy3,
};
constexpr std::size_t at(PassStream stream) { return static_cast<std::size_t>(stream); }
inline constexpr std::size_t kPassStreams = 10;

enum class OpStream : std::uint8_t;
PassStream pass_stream(OpStream);

enum class CopyEngine : std::uint8_t { kOut, kIn, kNone };

enum class TransferStream : std::uint8_t { kReceiveForward, kSendForward, kReceiveBackward, kSendBackward };
inline constexpr std::size_t kTransferStreams = 4;

struct StageFrame {
  DeviceId device;
  std::array<StreamId, kPassStreams> streams;        // none where there is no such group
  std::array<QueueId, kPassStreams> queues;          // communicators; gathers and reductions share one
  QueueId context, expert;                           // communicators of those groups, whichever stream their collectives run on
  std::array<StreamId, kTransferStreams> transfers;  // none with one stage; all one under blocking point-to-point
  StreamId model_parallel;                           // collectives over the stages; none with one stage
  std::array<QueueId, 2> engines;                    // by CopyEngine; none without offload, one for both where the device has one
  std::int32_t host_pool = -1;                       // of what is offloaded; -1: none of its own
  IssuerId issuer;                                   // none where launches cost no host time

  StreamId compute() const { return streams[0]; }
  StreamId stream(PassStream each) const { return streams[static_cast<std::size_t>(each)]; }
  QueueId queue(PassStream each) const { return queues[static_cast<std::size_t>(each)]; }
  // Of an op of a pass: on compute's stream its group's, the tensor-parallel one where it names no other.
  QueueId communicator(PassStream stream, Group group) const;
  StreamId stream(TransferStream each) const { return transfers[static_cast<std::size_t>(each)]; }
};

struct StepLabels {
  std::array<LabelId, kPhaseNames.size()> phases;  // by Phase
  std::array<LabelId, kRoleNames.size()> roles;    // by Role, named as in the JSON result
  LabelId saved, saved_again, outside_layers;      // kSavedActivations, kSavedRecomputed, kOtherActivations
  LabelId reloaded, on_host;                       // kSavedReloaded, kOnHost; none without offload

  LabelId phase(Phase each) const { return phases[static_cast<std::size_t>(each)]; }
  LabelId role(Role each) const { return roles[static_cast<std::size_t>(each)]; }
};

struct StepFrame {
  StepLabels labels;
  std::vector<StageFrame> stages;
};

// Streams beside compute that a step has only where an op of its templates is on them.
struct BesideStreams {
  bool context = false, expert = false;
};

// The layout has everything decided (with_preset).
StepFrame add_step_frame(OpGraphBuilder&, const ParallelLayout&, const FrameworkPreset&, const PlacementPolicy&,
                         const BesideStreams& used = {});

}  // namespace stepsim
