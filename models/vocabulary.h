// The words that this program's graphs are labelled with, and the buckets that metrics add them up by. sim/ sees only the numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace stepsim {

// Buckets of phase labels.
enum class Phase : std::uint8_t { kForward, kBackward, kRecompute, kOptimizer };
inline constexpr std::array<std::string_view, 4> kPhaseNames = {"forward", "backward", "recompute", "optimizer"};

// Buckets of role labels: memory.at_peak of the JSON result, in this order.
enum class Role : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizerState,
  kActivations,
  kActivationGradients,
  kRecomputed,
  kOffloadStaging,
  kCommunication,
  kWorkspace,
  kLogits,
  kOther
};
inline constexpr std::array<std::string_view, 11> kRoleNames = {
    "weights",       "gradients", "optimizer_state", "activations", "activation_gradients", "recomputed", "offload_staging",
    "communication", "workspace", "logits",          "other"};

// Role labels (text) with bucket kActivations or kRecomputed. Saved ones are what saved_activations_peak_bytes counts:
// storages of Transformer layers that a backward op reads. The others (embedding mask, final norm, head input, batch) are "activations"
// too.
inline constexpr std::string_view kSavedActivations = "saved activations";            // bucket kActivations
inline constexpr std::string_view kSavedRecomputed = "saved activations, run again";  // bucket kRecomputed
inline constexpr std::string_view kOtherActivations = "activations outside layers";   // bucket kActivations
inline constexpr std::string_view kSavedReloaded = "saved activations, copied back";  // bucket kOffloadStaging; saved ones too
inline constexpr std::string_view kOnHost = "activations on the host";                // bucket kOffloadStaging, in host memory

// Buckets of kind labels: which exposed time a collective counts as. 0: no collective.
enum class Group : std::uint8_t { kNone, kTensor, kData, kPipeline, kContext, kExpert };
inline constexpr std::array<std::string_view, 6> kGroupNames = {"", "tp", "dp", "pp", "cp", "ep"};

// Stream and queue kinds.
inline constexpr std::string_view kComputeStream = "compute";
inline constexpr std::string_view kTensorStream = "tp communication";
inline constexpr std::string_view kContextStream = "cp communication", kExpertStream = "ep communication";
inline constexpr std::string_view kDataGroup = "dp communicator", kContextGroup = "cp communicator", kExpertGroup = "ep communicator";
inline constexpr std::string_view kGatherStream = "dp gather", kReduceStream = "dp reduce";
inline constexpr std::string_view kTransferStream = "pp";  // blocking point-to-point
inline constexpr std::array<std::string_view, 4> kTransferStreamNames = {"pp receive forward", "pp send forward", "pp receive backward",
                                                                         "pp send backward"};  // by TransferStream
inline constexpr std::string_view kCopyOutStream = "copy out", kCopyInStream = "copy in";
inline constexpr std::array<std::string_view, 2> kCopyEngines = {"copy engine out", "copy engine in"};
inline constexpr std::string_view kModelParallelStream = "model-parallel communication";

}  // namespace stepsim
