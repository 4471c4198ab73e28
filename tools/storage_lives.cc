#include "tools/storage_lives.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/vocabulary.h"
#include "tools/alive_at_peak.h"
#include "tools/memory_report.h"
#include "tools/text_lines.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

std::vector<StorageLife> storage_lives(const StepRun& run, DeviceId device) {
  const OpGraph& graph = run.step.graph;
  std::vector<std::int32_t> place(graph.storages().size(), -1);
  std::vector<StorageLife> lives;
  for (const MemoryEvent& event : run.run.result.memory) {
    const auto index = static_cast<std::size_t>(event.storage.index);
    const Storage& storage = graph.storages()[index];
    if (storage.device != device || storage.micro_batch > 0) continue;
    if (event.bytes.value > 0) {
      place[index] = static_cast<std::int32_t>(lives.size());
      lives.push_back({.storage = event.storage,
                       .resident = !event.by.valid(),
                       .claimed_by = event.by,
                       .born = event.at,
                       .dies = run.run.result.end,
                       .lives_on = true});
    } else if (place[index] >= 0) {
      StorageLife& life = lives[static_cast<std::size_t>(place[index])];
      life.released_by = event.by;
      life.dies = event.at;
      life.lives_on = false;
    }
  }
  for (const StorageId id : holders_at_peak(graph, run.run.result, device, MemorySpace::kDevice)) {
    const std::int32_t known = place[static_cast<std::size_t>(id.index)];
    if (known >= 0) lives[static_cast<std::size_t>(known)].at_peak = true;
  }
  return lives;
}

static std::string role_name(const OpGraph& graph, const Storage& storage) {
  const auto bucket = static_cast<std::size_t>(graph.bucket(storage.role));
  return storage.role.valid() && bucket < kRoleNames.size() ? std::string(kRoleNames[bucket]) : "";
}

static std::string claimed_by(const OpGraph& graph, const StorageLife& life) {
  return life.resident ? "before the step" : graph.op_name(life.claimed_by);
}

static std::string released_by(const OpGraph& graph, const StorageLife& life) {
  if (life.lives_on) return "lives on";
  return life.released_by.valid() ? graph.op_name(life.released_by) : "an event of another stream";
}

std::string storage_lives_json(const StepRun& run, const std::vector<StorageLife>& lives) {
  const OpGraph& graph = run.step.graph;
  const auto in_seconds = [](Duration time) { return static_cast<double>(time.count()) / 1e12; };
  Json rows = Json::array();
  for (const StorageLife& life : lives) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(life.storage.index)];
    rows.push_back({{"name", std::string(graph.label(storage.name))},
                    {"layer", storage.layer < 0 ? Json(nullptr) : Json(storage.layer)},
                    {"role", role_name(graph, storage)},
                    {"space", storage.space == MemorySpace::kHost ? "host" : "device"},
                    {"bytes", storage.size.value},
                    {"block_bytes", storage.space == MemorySpace::kHost ? Json(nullptr) : Json(block_size(storage.size).value)},
                    {"born", claimed_by(graph, life)},
                    {"born_s", in_seconds(life.born)},
                    {"dies", released_by(graph, life)},
                    {"dies_s", in_seconds(life.dies)},
                    {"at_peak", life.at_peak}});
  }
  return rows.dump(-1, ' ', false, Json::error_handler_t::replace);
}

static double mib(Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 20); }

std::string storage_lives_text(const StepRun& run, const std::vector<StorageLife>& lives) {
  const OpGraph& graph = run.step.graph;
  const auto milliseconds = [](TimePoint at) { return fmt::format("{:.3f}", seconds(at) * 1e3); };
  std::vector<std::vector<std::string>> table = {
      {"layer", "tensor", "role", "MiB", "claimed by", "ms", "released by", "ms", "at the peak"}};
  for (const StorageLife& life : lives) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(life.storage.index)];
    table.push_back({storage.layer < 0 ? "-" : std::to_string(storage.layer), std::string(graph.label(storage.name)),
                     role_name(graph, storage), fmt::format("{:.3f}", mib(storage.size)), claimed_by(graph, life), milliseconds(life.born),
                     released_by(graph, life), milliseconds(life.dies), life.at_peak ? "alive" : ""});
  }
  return fmt::format("tensors of {} (first micro-batch)\n", device_name(run.reported().device)) + table_text(table);
}

static std::string layers_text(const AliveAtPeak& alive) {
  std::string text;
  for (std::size_t i = 0; i < alive.layers.size();) {
    std::size_t end = i + 1;
    const auto follows = [&] {
      return alive.layers[end].bytes == alive.layers[i].bytes && alive.layers[end].layer == alive.layers[end - 1].layer + 1;
    };
    while (alive.layers[i].layer >= 0 && end < alive.layers.size() && follows()) ++end;
    const AliveLayer& first = alive.layers[i];
    const std::string name = first.layer < 0 ? "outside layers"
                             : end - i == 1  ? fmt::format("layer {}", first.layer)
                                             : fmt::format("layers {} to {}, each", first.layer, alive.layers[end - 1].layer);
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : "; ", name, mib(first.bytes));
    i = end;
  }
  return text + " MiB";
}

std::string peak_contents_text(const StepRun& run) {
  const OpGraph& graph = run.step.graph;
  const AliveAtPeak alive = alive_at_peak(graph, run.run.result, run.reported());
  TextLines head;
  head.add("", fmt::format("what is alive at the peak of {}, {:.2f} MiB, at {} ({:.3f} ms)", device_name(alive.device), mib(alive.bytes),
                           peak_op_text(graph, alive), seconds(alive.at) * 1e3));
  std::vector<std::vector<std::string>> table = {{"tensor", "role", "tensors", "MiB", "of the peak"}};
  for (const AliveGroup& group : alive.groups) {
    const double share = alive.bytes.value > 0 ? static_cast<double>(group.bytes.value) / static_cast<double>(alive.bytes.value) : 0;
    const auto bucket = static_cast<std::size_t>(group.bucket);
    table.push_back({group.name, bucket < kRoleNames.size() ? std::string(kRoleNames[bucket]) : "", std::to_string(group.tensors),
                     fmt::format("{:.3f}", mib(group.bytes)), fmt::format("{:.1f} %", 100 * share)});
  }
  TextLines tail;
  tail.add("by layer: ", layers_text(alive), 20);
  if (const std::string reserved = reserved_text(run); !reserved.empty()) tail.add("", reserved);
  if (const std::string subtraction = subtraction_text(run); !subtraction.empty()) tail.add("", subtraction);
  return head.text() + table_text(table) + tail.text();
}

}  // namespace stepsim
