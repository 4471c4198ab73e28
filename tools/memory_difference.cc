#include "tools/memory_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tools/alive_at_peak.h"

namespace stepsim {

PeakAccount peak_account(const StepRun& run) {
  const OpGraph& graph = run.step.graph;
  const DeviceMemory& worst = run.run.worst();
  const AliveAtPeak alive = alive_at_peak(graph, run.run.result, worst);
  PeakAccount account{.stage = worst.device.index,
                      .stages = static_cast<std::int32_t>(run.run.memory.size()),
                      .op = peak_op_text(graph, alive),
                      .peak = worst.peak.bytes};
  account.place = account.op.substr(0, account.op.find(" mb"));
  for (const StagePeaks& peaks : run.stage_peaks) account.saved = std::max(account.saved, peaks.saved_activations);
  if (run.allocation.replayed()) account.reserved = reserved_peak(run.allocation.devices[run.run.worst_device]);
  for (const AliveGroup& group : alive.groups) account.alive[group.name] += group.bytes;
  return account;
}

namespace {

struct Added {
  std::string name;
  std::int64_t bytes = 0;
};

// What lives at the other peak and not at the base's, the most first.
std::vector<Added> added_tensors(const PeakAccount& base, const PeakAccount& other) {
  std::vector<Added> added;
  for (const auto& [name, bytes] : other.alive) {
    const auto known = base.alive.find(name);
    const std::int64_t more = bytes.value - (known == base.alive.end() ? 0 : known->second.value);
    if (more > 0) added.push_back({name, more});
  }
  std::stable_sort(added.begin(), added.end(), [](const Added& a, const Added& b) { return a.bytes > b.bytes; });
  return added;
}

std::string added_text(const std::vector<Added>& added) {
  constexpr std::size_t kMostNamed = 4;
  std::string text;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < added.size(); ++i) {
    all += added[i].bytes;
    if (i < kMostNamed) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", added[i].name, gib(added[i].bytes));
  }
  if (added.size() > kMostNamed) text += ", others";
  return fmt::format("{:.2f} GiB more are alive ({})", gib(all), text);
}

std::string place_text(const PeakAccount& account) {
  return account.op + (account.stages > 1 ? fmt::format(" of stage {}", account.stage) : "");
}

}  // namespace

std::string memory_difference_text(const PeakAccount& base, const PeakAccount& other, std::size_t number) {
  constexpr std::int64_t kSame = std::int64_t{1} << 20;
  const std::int64_t freed = base.saved.value - other.saved.value, fallen = base.peak.value - other.peak.value;
  if (std::abs(freed) < kSame && std::abs(fallen) < kSame) return "";
  const std::vector<Added> added = added_tensors(base, other);
  const bool moved = base.place != other.place || base.stage != other.stage;
  std::string text = std::abs(freed) < kSame
                         ? fmt::format("{} saves the same activations", number)
                         : fmt::format("{} {} {:.2f} GiB of saved activations", number, freed > 0 ? "frees" : "adds", gib(std::abs(freed)));
  const char* const joint = freed > 0 && fallen < freed - kSame ? "but" : "and";
  text += std::abs(fallen) < kSame
              ? fmt::format(", {} the peak stays", joint)
              : fmt::format(", {} the peak {} by {:.2f} GiB", joint, fallen > 0 ? "falls" : "rises", gib(std::abs(fallen)));
  if (moved) {
    text += fmt::format(": it moved from {} to {}", place_text(base), place_text(other));
  } else {
    text += fmt::format(": it is at {} as before", place_text(other));
  }
  if (!added.empty()) text += ", where " + added_text(added);
  return text;
}

}  // namespace stepsim
