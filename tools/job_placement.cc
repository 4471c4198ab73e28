#include "tools/job_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "models/offload_presets.h"
#include "tools/job_offload.h"
#include "tools/placement_names.h"

namespace stepsim {

static std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// K, a list of sizes or "halving".
static void read_segments(JobValues& values, const std::string& text, PlacementPolicy& policy) {
  const std::string wanted = "\", wanted a number of segments, sizes such as 2,2,1, or halving";
  if (text == "halving") {
    policy.halving = true;
    return;
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::optional<std::int64_t> size = whole_number(std::string_view(text).substr(begin, end - begin));
    if (!size || *size < 1) values.fail("placement.recompute_segments", "found \"" + text + wanted);
    sizes.push_back(*size);
    begin = end + 1;
  }
  if (sizes.size() == 1) {
    policy.segments = sizes.front();
  } else {
    policy.segment_sizes = sizes;
  }
}

static PlacementRow read_row(JobValues& values, const std::string& prefix) {
  PlacementRow row;
  row.first_layer = values.optional_whole(prefix + "first_layer").value_or(0);
  const std::optional<std::int64_t> last = values.optional_whole(prefix + "last_layer");
  if (row.first_layer < 0) values.fail(prefix + "first_layer", fmt::format("found {}, wanted 0 or more", row.first_layer));
  if (last && *last < row.first_layer)
    values.fail(prefix + "last_layer", fmt::format("found {}, wanted {} or more", *last, row.first_layer));
  row.last_layer = last.value_or(-1);
  row.module_or_slot = values.required(prefix + "tensor", "a module, a tensor or \"*\" (`explain --module-table` lists them)");
  constexpr std::array<std::string_view, 3> kActions = {"keep", "recompute", "offload"};
  const std::string action = values.required(prefix + "action", "keep, recompute or offload");
  const auto known = std::find(kActions.begin(), kActions.end(), action);
  if (known == kActions.end()) values.fail(prefix + "action", "found \"" + action + "\", wanted keep, recompute or offload");
  row.action = static_cast<PlacementAction>(known - kActions.begin());
  row.first_micro_batch = values.optional_whole(prefix + "first_micro_batch").value_or(0);
  const std::optional<std::int64_t> last_micro_batch = values.optional_whole(prefix + "last_micro_batch");
  if (row.first_micro_batch < 0) {
    values.fail(prefix + "first_micro_batch", fmt::format("found {}, wanted 0 or more", row.first_micro_batch));
  }
  if (last_micro_batch && *last_micro_batch < row.first_micro_batch) {
    values.fail(prefix + "last_micro_batch", fmt::format("found {}, wanted {} or more", *last_micro_batch, row.first_micro_batch));
  }
  row.last_micro_batch = last_micro_batch.value_or(-1);
  if (const std::optional<std::string> slices = values.optional_text(prefix + "slices")) {
    const std::size_t slash = slices->find('/');
    const auto number = [](std::string_view text) { return whole_number(text).value_or(0); };
    const std::int64_t part = number(std::string_view(*slices).substr(0, slash));
    const std::int64_t of = slash == std::string::npos ? 0 : number(std::string_view(*slices).substr(slash + 1));
    if (of < 1 || of > kMostSlices || part < 1 || part > of) {
      values.fail(prefix + "slices",
                  fmt::format("found \"{}\", wanted K/N: the first K of N equal parts, N at most {}", *slices, kMostSlices));
    }
    if (row.action != PlacementAction::kOffload) values.fail(prefix + "slices", "found slices with " + action + ", wanted action offload");
    row.slices = static_cast<std::int32_t>(part);
    row.of_slices = static_cast<std::int32_t>(of);
  }
  return row;
}

static void refuse_unless(JobValues& values, bool allowed, const std::string& path, const std::string& wanted) {
  if (!allowed && values.given(path)) values.fail(path, "found it with another kind of recompute, wanted " + wanted);
}

// "placement.rows[3]." for the row with this index.
static std::string row_prefix(int index) { return fmt::format("placement.rows[{}].", index); }

static bool has_row(const JobEntries& entries, int index) {
  const std::string prefix = row_prefix(index);
  const auto entry = entries.values.lower_bound(prefix);
  return entry != entries.values.end() && entry->first.compare(0, prefix.size(), prefix) == 0;
}

// A usual placement says which recompute it is; what says another one contradicts it.
static void check_name(JobValues& values, const JobEntries& entries, const std::string& name) {
  if (!values.given("placement.name")) return;
  for (const NamedPlacement& named : named_placements()) {
    if (named.name != name) continue;
    const auto recompute = entries.values.find("placement.recompute");
    if (!named.offloads && recompute != entries.values.end() && recompute->second.value != named.recompute) {
      values.fail("placement.recompute",
                  fmt::format("found \"{}\" with --placement {}, wanted one of the two", recompute->second.value, name));
    }
    const bool none = named.recompute == "none" && !named.offloads;
    const auto refuse = [&](bool contradicts, const char* path) {
      if (contradicts && values.given(path)) values.fail(path, fmt::format("found it with --placement {}, wanted one of the two", name));
    };
    refuse(none || !named.segments.empty(), "placement.recompute_segments");
    refuse(none, "placement.recompute_modules[0]");
  }
}

PlacementPolicy resolve_placement(JobValues& values, const JobEntries& entries) {
  PlacementPolicy policy;
  std::string recompute = "none", segments;
  const std::string name = values.optional_text("placement.name").value_or("none");
  for (const NamedPlacement& named : named_placements()) {
    if (named.name == name) recompute = named.recompute, segments = named.segments;
  }
  const OffloadPreset* const preset = offload_preset(name);
  if (preset != nullptr) {
    policy.rows = preset->rows;
    policy.offload = preset->offload;
  }
  check_name(values, entries, name);
  const std::optional<std::string> given_segments = values.optional_text("placement.recompute_segments");
  if (given_segments) segments = *given_segments;
  const bool modules = values.given("placement.recompute_modules[0]");
  if (!segments.empty() && recompute == "none") recompute = "full";
  if (modules && recompute == "none") recompute = "selective";
  constexpr std::array<std::string_view, 3> kNames = {"none", "full", "selective"};
  std::size_t otherwise = 0;
  while (kNames[otherwise] != recompute) ++otherwise;
  const std::string reason = otherwise == 0 ? "every saved tensor is kept" : "what the other placement values mean";
  policy.granularity = static_cast<RecomputeGranularity>(values.choice("placement.recompute", kNames, {}, otherwise, reason));

  const bool full = policy.granularity == RecomputeGranularity::kFull;
  const bool selective = policy.granularity == RecomputeGranularity::kSelective;
  refuse_unless(values, full, "placement.recompute_segments", "--recompute full");
  refuse_unless(values, full && segments.empty(), "placement.recompute_method", "--recompute full without segments");
  refuse_unless(values, full && segments.empty(), "placement.recompute_num_layers", "--recompute full without segments");
  refuse_unless(values, selective, "placement.recompute_modules[0]", "--recompute selective");
  if (full && !segments.empty()) read_segments(values, segments, policy);
  if (full && segments.empty()) {
    constexpr std::array<std::string_view, 2> kMethods = {"uniform", "block"};
    policy.method = static_cast<RecomputeMethod>(values.choice("placement.recompute_method", kMethods, {}, 0, "segments of equal size"));
    policy.num_layers = values.whole("placement.recompute_num_layers", 1, "every layer by itself", 1, kUnbounded);
  }
  for (int i = 0; selective; ++i) {
    const std::optional<std::string> module = values.optional_text(fmt::format("placement.recompute_modules[{}]", i));
    if (!module) break;
    policy.modules.push_back(*module);
  }
  if (selective && policy.modules.empty()) {
    values.note("placement.recompute_modules[0]", "core_attn", "default: the attention core", JobValue::Form::kText);
  }
  for (int i = 0; has_row(entries, i); ++i) policy.rows.push_back(read_row(values, row_prefix(i)));
  resolve_offload(values, preset != nullptr ? name : "", policy);
  return policy;
}

std::string placement_label(const PlacementPolicy& policy) {
  std::string rows = policy.rows.empty() ? "" : fmt::format(" with {} rows", policy.rows.size());
  if (policy.offloads()) rows += (rows.empty() ? " with " : ", ") + offload_label(policy);
  if (policy.halving) return "full by halving" + rows;
  if (policy.segments > 0) return fmt::format("full in {} segments", policy.segments) + rows;
  if (!policy.segment_sizes.empty()) return fmt::format("full in {} given segments", policy.segment_sizes.size()) + rows;
  switch (policy.granularity) {
    case RecomputeGranularity::kNone:
      return "none" + rows;
    case RecomputeGranularity::kFull:
      return fmt::format("full ({} {})", policy.method == RecomputeMethod::kUniform ? "uniform" : "block", policy.num_layers) + rows;
    case RecomputeGranularity::kSelective:
      return fmt::format("selective ({})", policy.modules.empty() ? "core_attn" : fmt::format("{}", fmt::join(policy.modules, ", "))) +
             rows;
  }
  return "";
}

}  // namespace stepsim
