// How saved tensors go to host memory and come back, as data: every choice that real systems make differently (their sources:
// offload_presets.cc). Turned into places in a plan by offload_plan.h; which tensors go: selection here, or rows of the placement table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/units.h"

namespace stepsim {

// Which tensors of a model chunk go. Names: modules of offload_modules(), saved tensors of a layer, "*" (all of a layer, its input too).
struct OffloadSelection {
  std::vector<std::string> names;       // empty: only what rows say
  std::int64_t first_layers = 0;        // only the first N layers of the chunk; 0: all
  std::int64_t keep_last_layers = 0;    // the last N layers of the chunk stay
  std::int64_t keep_last_groups = 0;    // of each micro-batch: the last N (layer, name) stay
  bool keep_last_of_each_name = false;  // as many groups as there are names stay (Megatron-LM)
  double groups_fraction = 1;           // only the first part of the groups, rounded up; 0 < f <= 1
  std::int64_t least_elements = 0;      // smaller tensors stay
  Bytes least_bytes{};                  // likewise
  std::optional<Bytes> budget;          // the largest tensors first, as long as they fit, for one micro-batch of the chunk
  Bytes less_per_stage{};               // stage s keeps at least s times this, its last groups first
};

enum class CopyOutPlace : std::uint8_t {
  kProduction,  // right after the op that makes the tensor
  kModuleEnd,   // after the last op of the module that saves it
  kLayerEnd,
  kNextLayer,  // before the first op of the next layer
};

// What lets go of the device storage. No place lets go before the last forward op that reads it.
enum class ReleasePlace : std::uint8_t {
  kWait,        // where compute waits for the copy under `in_flight`; of copies that it does not wait for, as kEvent
  kEvent,       // the program does at once, the allocator when the copy has ended (record_stream)
  kLayerStart,  // compute waits for the copy before the layer `release_distance` behind, then lets go
  kSamePlace,   // likewise, at the same op of that layer
  kTensor,      // likewise, when the copy of the tensor `release_distance` copies later is issued; 0: at once
};

enum class CopyInPlace : std::uint8_t {
  kLayerStart,  // before backward of the layer `lookahead` layers earlier in backward order
  kFirstOp,     // after the first op of that (behind what a layer's start launches itself)
  kModuleEnd,   // after backward of the module of the same name of that layer
  kSamePlace,   // before the op of that layer that reads the same tensor
};

// How long a host copy counts.
enum class HostLifetime : std::uint8_t {
  kReloadStart,  // given back when the copy back starts (a pool whose user hands the buffer back at once)
  kReloadEnd,
  kBackwardEnd,  // until backward of its layer is over
  kStep,         // static buffers that the micro-batches take in turn: until backward of its layer is over, in a pool that never shrinks
};

struct OffloadSchedule {
  CopyOutPlace copy_out = CopyOutPlace::kModuleEnd;
  bool copy_out_waits_for_compute = true;  // for the compute stream as it stands at the issue (wait_stream), not only for the maker
  ReleasePlace release = ReleasePlace::kWait;
  std::int64_t release_distance = 1;
  bool paced_by_kept_layers = false;  // with kLayerStart and K layers of the chunk that stay: release_distance K, lookahead K - 1
  bool in_place = false;              // a tensor whose release would come after forward is used where it is; its copy out is for nothing
  std::optional<std::int64_t> in_flight;  // at most N copies out of a name at a time: compute waits for the N-th last; 0: for its own
  CopyInPlace copy_in = CopyInPlace::kLayerStart;
  std::int64_t lookahead = 1;  // layers; 0: just before the first op that reads it
  bool copy_in_waits_for_compute = true;
  bool synchronous = false;  // host and compute wait for every copy, and each copy for compute
  // Latency-hiding: copies are moved to where a list scheduler puts them (sim/list_schedule.h); the places above are where it starts from.
  enum class Order : std::uint8_t { kProgram, kLatencyHiding, kLatencyHidingTrue } order = Order::kProgram;  // True: with true costs
  std::optional<std::int32_t> asynchronous_limit;  // of the list scheduler: copies in flight
  // Streams and engines
  std::int32_t streams = 2;  // 1: copies of both directions in one; 2: one each; above: copy n on stream n mod S
  std::int32_t engines = 2;  // 1: copies of both directions queue at one engine
  // Host memory
  bool pinned = true;
  bool allocates = false;     // a pinned buffer for each copy; false: from a pool
  bool power_of_two = false;  // host buffers are rounded up to powers of two
  bool pool_never_shrinks = false;
  HostLifetime host_lifetime = HostLifetime::kReloadEnd;
};
inline constexpr std::int32_t kMostCopyStreams = 4;

struct OffloadPolicy {
  OffloadSelection selection;
  OffloadSchedule schedule;
};

}  // namespace stepsim
