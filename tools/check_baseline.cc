#include "tools/check_baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "schema/read_message.h"
#include "tools/report_json.h"

namespace stepsim {

using ParsedJson = nlohmann::json;

constexpr int kDeepest = 64;              // levels of JSON
constexpr double kPicosPerSecond = 1e12;  // of picoseconds

// "+2%" as 0.02.
static std::optional<double> percentage(const std::string& text) {
  if (text.size() < 3 || text.front() != '+' || text.back() != '%') return std::nullopt;
  double value = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto read = std::from_chars(text.data() + 1, end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value) || value < 0) return std::nullopt;
  return value / 100;
}

struct Baseline {
  bool given = false;
  double value = 0;  // in the smallest unit
};

// The limit of one quantity in its smallest unit: above the baseline in percent or units ("+2%", "+1 GiB"), or as it is ("70 GiB").
template <class Parse>
static std::int64_t limit_of(const std::string& flag, const std::string& text, const Baseline& baseline, Parse parse) {
  const bool above = text.front() == '+';
  if (above && !baseline.given)
    throw InputError({flag}, "found " + text + " without --check, wanted a baseline to add it to, or a limit without +");
  const std::optional<double> share = percentage(text);
  double limit = 0;
  if (share) {
    limit = baseline.value * (1 + *share);
  } else {
    try {
      limit = static_cast<double>(parse(std::string_view(text).substr(above ? 1 : 0))) + (above ? baseline.value : 0);
    } catch (const QuantityError& error) {
      throw InputError({flag}, std::string(error.what()) + ", or a percentage such as +2%");
    }
  }
  constexpr double kMost = 9e18;  // below 2^63
  if (limit > kMost) throw InputError({flag}, "found " + text + ", wanted a smaller tolerance");
  return static_cast<std::int64_t>(limit);
}

static double number_of(const ParsedJson& json, const std::string& file, const char* name) {
  if (!json.contains(name) || !json[name].is_number()) {
    throw InputError({file}, std::string("found no number ") + name + ", wanted the JSON of an earlier run");
  }
  const double value = json[name];
  if (!(value >= 0 && value < 9e18)) throw InputError({file}, fmt::format("found {} {}, wanted the JSON of an earlier run", name, value));
  return value;
}

// Deeper nesting than any run writes would only cost memory.
static ParsedJson parse_baseline(const std::string& file) {
  const std::string text = read_text_file(file);
  const auto shallow = [&file](int depth, ParsedJson::parse_event_t, const ParsedJson&) {
    if (depth > kDeepest) throw InputError({file}, fmt::format("found JSON nested deeper than {}, wanted less", kDeepest));
    return true;
  };
  return ParsedJson::parse(text, shallow, false);
}

// "llama3-8b" of {"job": {"model": {"name": {"value": "llama3-8b"}}}}.
static std::string name_in(const ParsedJson& json, const std::string& file, const char* section) {
  const ParsedJson::json_pointer pointer(fmt::format("/job/{}/name/value", section));
  if (!json.contains(pointer) || !json[pointer].is_string()) {
    throw InputError({file}, fmt::format("found no {} of a job, wanted the JSON of an earlier run", section));
  }
  return json[pointer];
}

// Which stage a report is about. The number of the last stage is another way to say "last"; one stage is the worst and the last.
static std::string described_rank(const std::string& rank, std::int64_t stages) {
  if (stages == 1 || rank.empty()) return "worst";
  return rank == std::to_string(stages - 1) ? "last" : rank;
}

CheckedJob checked_job(const Job& job) {
  const auto value = [&job](const char* path) {
    const auto found = std::find_if(job.values.begin(), job.values.end(), [&](const JobValue& each) { return each.path == path; });
    return found == job.values.end() ? std::string() : found->value;
  };
  return {value("model.name"), value("hardware.name"), described_rank(value("parallel.rank"), job.parallel.pipeline)};
}

// Files are the same by their names alone: the baseline may have been made in another folder.
static bool same_name(const std::string& a, const std::string& b) {
  return std::filesystem::path(a).filename() == std::filesystem::path(b).filename();
}

// What --rank described in the run that wrote the file.
static std::string rank_in(const ParsedJson& json, const std::string& file) {
  const ParsedJson::json_pointer rank("/job/parallel/rank/value"), stages("/job/parallel/pp/value");
  if (!json.contains(rank)) return "worst";
  if (!json[rank].is_string() || !json.contains(stages) || !json[stages].is_number_integer()) {
    throw InputError({file}, "found a rank that is no text, or no pipeline stages, wanted the JSON of an earlier run");
  }
  return described_rank(json[rank], json[stages]);
}

static void check_same_job(const ParsedJson& json, const std::string& file, const CheckedJob& job) {
  if (!json.contains("schema_version") || json["schema_version"] != kSchemaVersion) {
    const std::string found = json.contains("schema_version") ? json["schema_version"].dump(-1, ' ', true) : "none";
    throw InputError({file},
                     fmt::format("found schema_version {}, wanted {}: a baseline of this version of stepsim", found, kSchemaVersion));
  }
  const std::string model = name_in(json, file, "model"), hardware = name_in(json, file, "hardware"), rank = rank_in(json, file);
  if (same_name(model, job.model) && same_name(hardware, job.hardware)) {
    if (rank == job.rank) return;
    throw InputError({file}, fmt::format("found the baseline of --rank {}, wanted one of --rank {}", rank, job.rank));
  }
  throw InputError({file}, fmt::format("found the baseline of {} on {}, wanted one of {} on {}", model, hardware, job.model, job.hardware));
}

static void read_baseline(const std::string& file, const CheckedJob& job, CheckLimits& limits) {
  const ParsedJson json = parse_baseline(file);
  if (!json.is_object() || !json.contains("memory") || !json["memory"].is_object()) {
    throw InputError({file}, "found no JSON of a run, wanted what `stepsim run --json` writes");
  }
  check_same_job(json, file, job);
  const double picoseconds = number_of(json, file, "step_time_s") * kPicosPerSecond;
  if (picoseconds > 9e18) throw InputError({file}, "found a step_time_s above 106 days, wanted the JSON of an earlier run");
  limits.baseline_time = Duration(std::llround(picoseconds));
  limits.baseline_peak = Bytes(std::llround(number_of(json["memory"], file, "peak_allocated_bytes")));
}

CheckLimits check_limits(const CheckOptions& options, const CheckedJob& job) {
  CheckLimits limits;
  limits.must_fit = options.must_fit;
  if (!options.baseline.empty()) read_baseline(options.baseline, job, limits);
  const bool nothing_may_grow = !options.baseline.empty() && options.max_time.empty() && options.max_peak.empty();
  if (nothing_may_grow) {
    limits.time = limits.baseline_time;
    limits.peak = limits.baseline_peak;
  }
  if (!options.max_time.empty()) {
    const Baseline baseline{limits.baseline_time.has_value(), static_cast<double>(limits.baseline_time.value_or(Duration{}).count())};
    limits.time =
        Duration(limit_of("--max-time", options.max_time, baseline, [](std::string_view text) { return parse_duration(text).count(); }));
  }
  if (!options.max_peak.empty()) {
    const Baseline baseline{limits.baseline_peak.has_value(), static_cast<double>(limits.baseline_peak.value_or(Bytes()).value)};
    limits.peak_of_all = options.max_peak.front() != '+';
    limits.peak = Bytes(limit_of("--max-peak", options.max_peak, baseline, [](std::string_view text) { return parse_bytes(text).value; }));
  }
  if (!options.min_margin.empty()) {
    try {
      limits.margin = parse_bytes(options.min_margin);
    } catch (const QuantityError& error) {
      throw InputError({"--min-margin"}, error.what());
    }
  }
  return limits;
}

// "1.234 s (baseline 1.200 s, +2.83 %)"
template <class Value>
static std::string moved(const std::string& now, const std::optional<Value>& baseline, const std::string& before, double ratio) {
  return baseline ? fmt::format("{} (baseline {}, {:+.2f} %)", now, before, 100 * (ratio - 1)) : now;
}

std::string check_failure(const CheckLimits& limits, const StepRun& run) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "check: " : "; ") + part; };
  const Duration time = run.run.result.end;
  if (limits.time && time > *limits.time) {
    const double ratio = limits.baseline_time ? seconds(time) / seconds(*limits.baseline_time) : 1;
    const std::string before = limits.baseline_time ? print_duration(*limits.baseline_time) : "";
    add("step time " + moved(print_duration(time), limits.baseline_time, before, ratio) + ", at most " + print_duration(*limits.time) +
        " allowed");
  }
  const Bytes peak = limits.peak_of_all ? run.run.worst().peak.bytes : run.reported().peak.bytes;
  if (limits.peak && peak > *limits.peak) {
    const std::optional<Bytes> baseline = limits.peak_of_all ? std::nullopt : limits.baseline_peak;
    const double ratio = baseline ? static_cast<double>(peak.value) / static_cast<double>(baseline->value) : 1;
    const std::string before = baseline ? print_bytes(*baseline) : "";
    add("peak " + moved(print_bytes(peak), baseline, before, ratio) + ", at most " + print_bytes(*limits.peak) + " allowed");
  }
  if (limits.must_fit && !run.fits()) add("the step does not fit, --must-fit");
  const DeviceMemory* const tightest = run.run.tightest();
  if (limits.margin && tightest != nullptr && *tightest->margin() < limits.margin->value) {
    const std::int64_t margin = *tightest->margin();
    add((margin < 0 ? "margin -" + print_bytes(Bytes(-margin)) : "margin " + print_bytes(Bytes(margin))) + ", at least " +
        print_bytes(*limits.margin) + " wanted");
  }
  return text;
}

}  // namespace stepsim
