#include "tools/plan_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "hardware/backends/make_plan.h"
#include "hardware/backends/plan_text.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/backend_validation.h"

namespace stepsim {

namespace {

// A plan's name follows from its text: the same step has the same file.
std::string plan_name(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits (draft-eastlake-fnv)
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return fmt::format("{:016x}.plan", hash);
}

RecordedPlan pretended(const OpGraph& graph) {
  RecordedPlan plan{.step_s = {1e-6 * static_cast<double>(graph.ops().size())}};
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    const TimePoint start = duration_from_seconds(1e-6 * op);
    plan.ops.push_back({.op = OpId{op}, .issued = start, .start = start, .end = start + duration_from_seconds(1e-6)});
  }
  return plan;
}

}  // namespace

PlanFolder::PlanFolder(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw InputError({folder_}, "found no folder (" + error.message() + "), wanted one for plans");
  const std::string results = folder_ + "/results.json";
  if (std::filesystem::exists(results)) plans_ = parse_recorded(read_text_file(results, std::size_t{1} << 30), results);
}

RecordedPlan PlanFolder::recorded_or_written(const OpGraph& graph, const KernelProgram& program) {
  const std::string text = plan_text(execution_plan(graph, program, compared_storages(graph)));
  const std::string name = plan_name(text);
  if (const auto known = plans_.by_file.find(name); known != plans_.by_file.end()) return known->second;
  missing_.insert(name);
  const std::string file = folder_ + "/" + name;
  std::ofstream out(file + ".part", std::ios::binary);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(file + ".part", file, error);
  if (!out || error) throw InputError({file}, "found no room for it, wanted a file that can be written");
  return pretended(graph);
}

std::vector<Execution> PlanFolder::execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) {
  STEPSIM_CHECK(ranks.size() == 1);
  std::vector<Execution> executions;
  executions.push_back(execution_of(recorded_or_written(graph, ranks.front()), options.observed));
  return executions;
}

MeasuredOps PlanFolder::measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions&) {
  return measured_ops_of(recorded_or_written(graph, program), graph.ops().size());
}

}  // namespace stepsim
