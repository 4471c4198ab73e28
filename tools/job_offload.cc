#include "tools/job_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace stepsim {

namespace {

constexpr std::string_view kPlacementSection = "placement.";

// Reads knobs over values that a preset has, and notes the preset's where the job says nothing.
class Knobs {
 public:
  Knobs(JobValues& values, const std::string& preset)
      : values_(values), reason_(preset.empty() ? "usual for offload" : "of placement " + preset) {}

  void read(const char* name, std::int64_t& value, std::int64_t least, std::int64_t most) {
    value = values_.whole(path(name), value, reason_, least, most);
  }
  void read(const char* name, std::int32_t& value, std::int64_t least, std::int64_t most) {
    value = static_cast<std::int32_t>(values_.whole(path(name), value, reason_, least, most));
  }
  void read(const char* name, bool& value) {
    if (const std::optional<bool> given = values_.optional_flag(path(name))) {
      value = *given;
    } else if (value) {
      values_.note(path(name), "true", "default: " + reason_, JobValue::Form::kSwitch);
    }
  }
  void read(const char* name, Bytes& value) {
    const std::optional<std::string> given = values_.optional_text(path(name));
    if (!given) {
      if (value.value > 0) values_.note(path(name), fmt::format("{} B", value.value), "default: " + reason_, JobValue::Form::kText);
      return;
    }
    try {
      value = parse_bytes(*given);
    } catch (const QuantityError& error) {
      values_.fail(path(name), error.what());
    }
  }
  template <class T, std::size_t kCount>
  void read(const char* name, T& value, const std::array<std::string_view, kCount>& names) {
    value = static_cast<T>(values_.choice(path(name), names, {}, static_cast<std::size_t>(value), reason_));
  }

  // What the placement decides by itself.
  void note(const char* name, const std::string& value) { values_.note(path(name), value, "default: " + reason_, JobValue::Form::kText); }

  static std::string path(const char* name) { return std::string(kPlacementSection) + name; }
  const std::string& reason() const { return reason_; }

 private:
  JobValues& values_;
  std::string reason_;
};

constexpr std::int64_t kMany = 1'000'000;  // layers, copies: beyond any model

void read_selection(JobValues& values, Knobs& knobs, OffloadSelection& selection) {
  if (values.given("placement.offload_layers")) {
    selection.first_layers = values.whole("placement.offload_layers", 0, "", 0, kMany);
    if (!values.given("placement.keep_last_layers")) selection.keep_last_layers = 0;
  }
  if (values.given("placement.offload_groups_fraction"))
    selection.groups_fraction = values.real("placement.offload_groups_fraction", 1, "");
  const bool keeps = selection.keep_last_layers > 0 || values.given("placement.keep_last_layers");
  if (keeps) knobs.read("keep_last_layers", selection.keep_last_layers, 0, kMany);
  if (values.given("placement.keep_last_groups")) knobs.read("keep_last_groups", selection.keep_last_groups, 0, kMany * kMany);
  knobs.read("keep_last_of_each_name", selection.keep_last_of_each_name);
  if (selection.least_elements > 0 || values.given("placement.offload_min_elements")) {
    knobs.read("offload_min_elements", selection.least_elements, 0, kUnbounded);
  }
  knobs.read("offload_min_bytes", selection.least_bytes);
  Bytes budget = selection.budget.value_or(Bytes(0));
  knobs.read("offload_budget", budget);
  if (selection.budget || values.given("placement.offload_budget")) selection.budget = budget;
  knobs.read("less_per_stage", selection.less_per_stage);
}

// `program`: the named placement's own order is kept unless the job says another.
void read_order(JobValues& values, Knobs& knobs, OffloadSchedule& schedule) {
  using Order = OffloadSchedule::Order;
  constexpr std::array<std::string_view, 3> kNames = {"synchronous", "issue-order", "latency-hiding"};
  constexpr std::array<std::string_view, 2> kEstimates = {"blind", "true"};
  std::size_t named = schedule.synchronous ? 0 : schedule.order == Order::kProgram ? 1 : 2;
  named = values.choice("placement.offload_schedule", kNames, {}, named, knobs.reason());
  schedule.synchronous = named == 0;
  if (named < 2) {
    schedule.order = Order::kProgram;
  } else if (schedule.order == Order::kProgram) {
    // A list scheduler places copies itself: what they need holds them back, and --prefetch-layers the copies back, which no compiler
    // moves over the loop of a layer's forward or backward.
    schedule.order = Order::kLatencyHiding;
    schedule.copy_out_waits_for_compute = false;
    const bool limited = values.given("placement.max_in_flight");  // compute waits, and lets go, there
    if (schedule.release <= ReleasePlace::kEvent && !limited) schedule.release = ReleasePlace::kLayerStart;
  }
  for (const char* const knob : {"placement.offload_estimates", "placement.asynchronous_limit"}) {
    if (named < 2 && values.given(knob)) values.fail(knob, "found it with another schedule, wanted --offload-schedule latency-hiding");
  }
  if (named < 2) return;
  const std::size_t estimates =
      values.choice("placement.offload_estimates", kEstimates, {}, schedule.order == Order::kLatencyHidingTrue ? 1 : 0, "as XLA's");
  schedule.order = estimates == 1 ? Order::kLatencyHidingTrue : Order::kLatencyHiding;
  if (values.given("placement.asynchronous_limit") || schedule.asynchronous_limit) {
    std::int32_t limit = schedule.asynchronous_limit.value_or(1);
    knobs.read("asynchronous_limit", limit, 1, kMany);
    schedule.asynchronous_limit = limit;
  }
}

void read_schedule(JobValues& values, Knobs& knobs, OffloadSchedule& schedule) {
  constexpr std::array<std::string_view, 4> kCopyOut = {"production", "module-end", "layer-end", "next-layer"};
  constexpr std::array<std::string_view, 5> kRelease = {"wait", "event", "layer-start", "same-place", "tensor"};
  constexpr std::array<std::string_view, 4> kCopyIn = {"layer-start", "first-op", "module-end", "same-place"};
  constexpr std::array<std::string_view, 4> kLifetime = {"reload-start", "reload-end", "backward-end", "step"};
  read_order(values, knobs, schedule);
  constexpr std::array<const char*, 6> kOverlap = {"max_in_flight", "release", "release_distance", "copy_in", "in_place", "copy_streams"};
  for (const char* const knob : kOverlap) {
    const std::string path = Knobs::path(knob);
    if (schedule.synchronous && values.given(path)) {
      values.fail(path, "found it with synchronous copies, which nothing runs beside, wanted --offload-schedule issue-order");
    }
  }
  knobs.read("copy_out", schedule.copy_out, kCopyOut);
  knobs.read("release", schedule.release, kRelease);
  const bool paced = schedule.paced_by_kept_layers;
  schedule.paced_by_kept_layers = paced && !values.given("placement.release_distance") && !values.given("placement.prefetch_layers");
  if (!schedule.paced_by_kept_layers) {
    if (schedule.release > ReleasePlace::kEvent) knobs.read("release_distance", schedule.release_distance, 0, kMany);
    knobs.read("prefetch_layers", schedule.lookahead, 0, kMany);
  } else {
    knobs.note("release_distance", "K, the layers of a chunk that stay");
    knobs.note("prefetch_layers", "K - 1");
  }
  if (values.given("placement.max_in_flight")) schedule.in_flight = values.whole("placement.max_in_flight", 0, "", 0, kMany);
  knobs.read("in_place", schedule.in_place);
  knobs.read("copy_in", schedule.copy_in, kCopyIn);
  knobs.read("copy_out_waits_for_compute", schedule.copy_out_waits_for_compute);
  knobs.read("copy_in_waits_for_compute", schedule.copy_in_waits_for_compute);
  knobs.read("copy_streams", schedule.streams, 1, kMostCopyStreams);
  knobs.read("copy_engines", schedule.engines, 1, 2);
  knobs.read("pinned", schedule.pinned);
  if (!schedule.pinned && !values.given("placement.pinned")) knobs.note("pinned", "false");
  knobs.read("allocate_pinned", schedule.allocates);
  knobs.read("host_power_of_two", schedule.power_of_two);
  knobs.read("host_pool", schedule.pool_never_shrinks);
  knobs.read("host_lifetime", schedule.host_lifetime, kLifetime);
  if (schedule.release <= ReleasePlace::kEvent && values.given("placement.release_distance")) {
    values.fail("placement.release_distance",
                "found it with release by wait or event, wanted --set placement.release=layer-start, same-place or tensor");
  }
  if (!schedule.pinned && schedule.allocates && values.given("placement.allocate_pinned")) {
    values.fail("placement.allocate_pinned", "found it with pageable copies, wanted --set placement.pinned=true");
  }
}

}  // namespace

void resolve_offload(JobValues& values, const std::string& preset, PlacementPolicy& policy) {
  if (values.given("placement.offload_modules[0]")) policy.offload.selection.names.clear();
  for (int i = 0;; ++i) {
    const std::optional<std::string> name = values.optional_text(fmt::format("placement.offload_modules[{}]", i));
    if (!name) break;
    policy.offload.selection.names.push_back(*name);
  }
  if (!policy.offloads()) {
    constexpr std::array<const char*, 28> kKnobs = {"offload_layers",
                                                    "offload_groups_fraction",
                                                    "keep_last_layers",
                                                    "keep_last_groups",
                                                    "keep_last_of_each_name",
                                                    "offload_min_elements",
                                                    "offload_min_bytes",
                                                    "offload_budget",
                                                    "less_per_stage",
                                                    "prefetch_layers",
                                                    "max_in_flight",
                                                    "offload_schedule",
                                                    "offload_estimates",
                                                    "asynchronous_limit",
                                                    "copy_out",
                                                    "copy_out_waits_for_compute",
                                                    "release",
                                                    "release_distance",
                                                    "in_place",
                                                    "copy_in",
                                                    "copy_in_waits_for_compute",
                                                    "copy_streams",
                                                    "copy_engines",
                                                    "pinned",
                                                    "allocate_pinned",
                                                    "host_power_of_two",
                                                    "host_pool",
                                                    "host_lifetime"};
    for (const char* const knob : kKnobs) {
      const std::string path = Knobs::path(knob);
      if (values.given(path))
        values.fail(path, "found it without anything to offload, wanted --offload-modules, rows or a placement that offloads");
    }
    return;
  }
  Knobs knobs(values, preset);
  for (std::size_t i = 0; !values.given("placement.offload_modules[0]") && i < policy.offload.selection.names.size(); ++i) {
    values.note(fmt::format("placement.offload_modules[{}]", i), policy.offload.selection.names[i], "default: " + knobs.reason(),
                JobValue::Form::kText);
  }
  read_selection(values, knobs, policy.offload.selection);
  read_schedule(values, knobs, policy.offload.schedule);
}

std::string offload_label(const PlacementPolicy& policy) {
  if (!policy.offloads()) return "";
  if (!policy.offload.selection.names.empty()) return fmt::format("offload {}", fmt::join(policy.offload.selection.names, ", "));
  const auto rows = std::count_if(policy.rows.begin(), policy.rows.end(),
                                  [](const PlacementRow& row) { return row.action == PlacementAction::kOffload; });
  return fmt::format("offload by {} rows", rows);
}

}  // namespace stepsim
