#include "tools/recorded_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/input_error.h"

namespace stepsim {

namespace {

TimePoint recorded_time(const nlohmann::json& seconds) {
  const double value = seconds.get<double>();
  return duration_from_seconds(std::isfinite(value) ? std::clamp(value, 0.0, 1e6) : 0.0);
}

std::vector<OpRun> recorded_ops(const nlohmann::json& ops) {
  std::vector<OpRun> runs;
  for (const auto& each : ops) {
    const TimePoint start = recorded_time(each.at(1)), end = std::max(start, recorded_time(each.at(2)));
    runs.push_back({.op = OpId{each.at(0).get<std::int32_t>()}, .issued = start, .start = start, .end = end});
  }
  std::sort(runs.begin(), runs.end(), [](const OpRun& a, const OpRun& b) { return std::pair(a.start, a.op) < std::pair(b.start, b.op); });
  return runs;
}

RecordedPlan recorded(const nlohmann::json& json) {
  RecordedPlan plan{.step_s = json.at("step_s").get<std::vector<double>>(), .ops = recorded_ops(json.at("ops"))};
  plan.device_peak = Bytes(json.at("device_peak_bytes").get<std::int64_t>());
  plan.host_peak = Bytes(json.at("host_peak_bytes").get<std::int64_t>());
  const nlohmann::json& norm = json.at("gradient_norm");
  plan.gradient_norm = norm.is_null() ? std::nanf("") : norm.get<float>();
  for (const auto& each : json.at("observed")) plan.hashes[StorageId{each.at(0).get<std::int32_t>()}] = each.at(1).get<std::string>();
  return plan;
}

}  // namespace

RecordedPlans parse_recorded(std::string_view text, const std::string& file) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RecordedPlans plans{.device = json.at("device").get<std::string>()};
    for (const auto& each : json.at("plans")) {
      plans.by_file[std::filesystem::path(each.at("plan").get<std::string>()).filename().string()] = recorded(each);
    }
    return plans;
  } catch (const nlohmann::json::exception& error) {
    throw InputError({file}, std::string("found ") + error.what() + ", wanted what stepsim_cuda_validate prints");
  }
}

Execution execution_of(const RecordedPlan& plan, const std::vector<StorageId>& observed) {
  Execution execution;
  execution.result.timeline = plan.ops;
  double best = plan.step_s.empty() ? 0 : plan.step_s.front();
  for (const double each : plan.step_s) best = std::min(best, each);
  execution.result.end = duration_from_seconds(best);
  execution.device_peak = plan.device_peak;
  execution.host_peak = plan.host_peak;
  execution.gradient_norm = plan.gradient_norm;
  for (const StorageId storage : observed) {
    Observation observation{storage, {}};
    if (const auto known = plan.hashes.find(storage); known != plan.hashes.end()) {
      for (const char digit : known->second) observation.contents.push_back(static_cast<std::byte>(digit));
    }
    execution.observed.push_back(std::move(observation));
  }
  return execution;
}

MeasuredOps measured_ops_of(const RecordedPlan& plan, std::size_t ops) {
  MeasuredOps measured;
  measured.alone.resize(ops);
  for (const OpRun& run : plan.ops) {
    if (run.op.valid() && at(run.op.index) < ops) measured.alone[at(run.op.index)] = run.end - run.start;
  }
  return measured;
}

}  // namespace stepsim
