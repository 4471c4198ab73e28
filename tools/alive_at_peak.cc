#include "tools/alive_at_peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/memory_ledger.h"

namespace stepsim {

static OpId op_at_peak(const OpGraph& graph, const StepResult& result, const MemoryPeak& peak, DeviceId device,
                       const std::vector<StorageId>& alive) {
  std::vector<bool> lives(graph.storages().size(), false);
  for (const StorageId id : alive) lives[static_cast<std::size_t>(id.index)] = true;
  OpId op;
  for (const MemoryEvent& event : result.memory) {
    if (event.at > peak.at) break;
    const auto index = static_cast<std::size_t>(event.storage.index);
    const Storage& storage = graph.storages()[index];
    const bool counts = lives[index] && storage.device == device && storage.space == MemorySpace::kDevice;
    if (counts && event.bytes.value > 0) op = event.by;
  }
  return op;
}

AliveAtPeak alive_at_peak(const OpGraph& graph, const StepResult& result, const DeviceMemory& memory) {
  AliveAtPeak alive{.device = memory.device, .at = memory.peak.at};
  alive.tensors = holders_at_peak(graph, result, memory.device, MemorySpace::kDevice);
  alive.op = op_at_peak(graph, result, memory.peak, memory.device, alive.tensors);
  std::map<std::pair<std::int32_t, std::int32_t>, AliveGroup> groups;  // by name and role
  std::map<std::int32_t, Bytes> layers;
  for (const StorageId id : alive.tensors) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(id.index)];
    AliveGroup& group = groups[{storage.name.index, storage.role.index}];
    if (group.tensors++ == 0) {
      const std::string_view name = graph.label(storage.name), role = graph.label(storage.role);
      group.name = std::string(name.empty() ? role : name);
      group.bucket = graph.bucket(storage.role);
    }
    group.bytes += storage.size;
    layers[storage.layer] += storage.size;
    alive.bytes += storage.size;
  }
  for (auto& [key, group] : groups) alive.groups.push_back(std::move(group));
  std::stable_sort(alive.groups.begin(), alive.groups.end(),
                   [](const AliveGroup& a, const AliveGroup& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name; });
  for (const auto& [layer, bytes] : layers) alive.layers.push_back({layer, bytes});
  return alive;
}

std::string largest_groups_text(const std::vector<AliveGroup>& groups, std::size_t most) {
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  std::string text;
  Bytes rest;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i >= most) {
      rest += groups[i].bytes;
      continue;
    }
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", groups[i].name, gib(groups[i].bytes));
  }
  if (groups.empty()) return "nothing";
  if (groups.size() > most) {
    text += fmt::format("{}{} {} {:.2f}", text.empty() ? "" : ", ", groups.size() - most, most == 0 ? "tensors" : "others", gib(rest));
  }
  return text + " GiB";
}

std::string peak_op_text(const OpGraph& graph, const AliveAtPeak& alive) {
  return alive.op.valid() ? graph.op_name(alive.op) : "the beginning of the step";
}

}  // namespace stepsim
