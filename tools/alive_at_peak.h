// What a device's memory holds at its peak: which op made it so, which tensors, of which layers. Knows no form of output.
#pragma once

#include <string>
#include <vector>

#include "tools/graph_run.h"

namespace stepsim {

// Tensors of one name and role, whatever their layers and micro-batches.
struct AliveGroup {
  std::string name;         // "qkv output"
  std::int32_t bucket = 0;  // of the role
  Bytes bytes{};
  std::int64_t tensors = 0;
};

struct AliveLayer {
  std::int32_t layer = -1;  // -1: outside the layers
  Bytes bytes{};
};

struct AliveAtPeak {
  DeviceId device{};
  TimePoint at{};
  OpId op{};                         // whose claim made the peak; none: residents alone
  Bytes bytes{};                     // sum of all that lives
  std::vector<StorageId> tensors{};  // largest first
  std::vector<AliveGroup> groups{};  // largest first (tie: by name)
  std::vector<AliveLayer> layers{};  // in order
};

AliveAtPeak alive_at_peak(const OpGraph& graph, const StepResult& result, const DeviceMemory& memory);

// "optimizer moments 11.23, weights 1.87, logits 0.74 GiB", as many groups as asked for, and how much the others have.
std::string largest_groups_text(const std::vector<AliveGroup>& groups, std::size_t most);

// "backward L3 qkv dW", "the step's beginning" where residents alone are the peak.
std::string peak_op_text(const OpGraph& graph, const AliveAtPeak& alive);

}  // namespace stepsim
