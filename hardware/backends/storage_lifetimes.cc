#include "hardware/backends/storage_lifetimes.h"

#include <algorithm>

namespace stepsim {

namespace {

std::vector<StorageId> storages_of(const OpGraph& graph, OpId op) {
  std::vector<StorageId> found;
  for (const Tensor& tensor : graph.reads(op)) found.push_back(tensor.storage);
  for (const Tensor& tensor : graph.writes(op)) found.push_back(tensor.storage);
  for (const StorageId held : graph.holds(op)) found.push_back(held);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// By storage: the op, first in issue order, that writes it; none for residents.
std::vector<OpId> claimers(const OpGraph& graph) {
  std::vector<OpId> found(graph.storages().size());
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    for (const Tensor& tensor : graph.writes(OpId{op})) {
      OpId& claimer = found[at(tensor.storage.index)];
      if (graph.storages()[at(tensor.storage.index)].live_at_start) continue;
      if (!claimer.valid() || graph.issue_position(OpId{op}) < graph.issue_position(claimer)) claimer = OpId{op};
    }
  }
  return found;
}

}  // namespace

StorageLifetimes::StorageLifetimes(const OpGraph& graph) : claim_begin_{0}, touch_begin_{0}, holders_(graph.storages().size(), 0) {
  const std::vector<OpId> claimer = claimers(graph);
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    for (const StorageId storage : storages_of(graph, OpId{op})) {
      touched_.push_back(storage);
      ++holders_[at(storage.index)];
      if (claimer[at(storage.index)] == OpId{op}) claims_.push_back(storage);
    }
    claim_begin_.push_back(claims_.size());
    touch_begin_.push_back(touched_.size());
  }
  for (std::int32_t storage = 0; at(storage) < graph.storages().size(); ++storage) {
    if (graph.storages()[at(storage)].live_at_start) residents_.push_back(StorageId{storage});
    if (graph.storages()[at(storage)].live_at_end) holders_[at(storage)] = 0;
  }
}

}  // namespace stepsim
