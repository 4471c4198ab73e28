#include "tools/cuda_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "hardware/backends/make_plan.h"
#include "hardware/backends/plan_text.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

constexpr int kNoDevice = 77;

// A file that is gone with its owner.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& ending) {
    std::string pattern = (std::filesystem::temp_directory_path() / ("stepsim-XXXXXX" + ending)).string();
    const int descriptor = ::mkstemps(pattern.data(), static_cast<int>(ending.size()));
    if (descriptor < 0) refuse("--backend", "no room for a file in " + std::filesystem::temp_directory_path().string(), "some");
    std::fclose(::fdopen(descriptor, "w"));
    path_ = pattern;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

 private:
  std::string path_;
};

std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  for (const char each : text) quoted += each == '\'' ? std::string("'\\''") : std::string(1, each);
  return quoted + "'";
}

struct ProcessOutput {
  int exit_code = 0;
  std::string printed, errors;
};

ProcessOutput run_process(const std::string& program, const std::string& arguments) {
  const TemporaryFile printed(".json"), errors(".txt");
  const std::string command = in_quotes(program) + " " + arguments + " > " + in_quotes(printed.path()) + " 2> " + in_quotes(errors.path());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, printed.text(), errors.text()};
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

nlohmann::json run_plan(const std::string& program, const OpGraph& graph, const KernelProgram& kernels,
                        const std::vector<StorageId>& observed, const std::string& flags) {
  const TemporaryFile plan(".plan");
  {
    std::ofstream out(plan.path(), std::ios::binary);
    out << plan_text(execution_plan(graph, kernels, observed));
  }
  const ProcessOutput output = run_process(program, flags + " " + in_quotes(plan.path()));
  if (output.exit_code == kNoDevice)
    refuse("--backend", "cuda without a device: " + first_line(output.errors), "cpu, or a machine with one");
  if (output.exit_code != 0) refuse("--backend", program + " failing: " + first_line(output.errors), "a run");
  return nlohmann::json::parse(output.printed);
}

std::vector<OpRun> timeline_of(const nlohmann::json& ops) {
  std::vector<OpRun> runs;
  for (const auto& each : ops) {
    const TimePoint start = duration_from_seconds(std::max(each.at(1).get<double>(), 0.0));
    const TimePoint end = std::max(start, duration_from_seconds(std::max(each.at(2).get<double>(), 0.0)));
    runs.push_back({.op = OpId{each.at(0).get<std::int32_t>()}, .issued = start, .start = start, .end = end});
  }
  std::sort(runs.begin(), runs.end(), [](const OpRun& a, const OpRun& b) { return std::pair(a.start, a.op) < std::pair(b.start, b.op); });
  return runs;
}

}  // namespace

std::string cuda_program_beside() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "stepsim_cuda_validate").string();
}

CudaProcess::CudaProcess(std::string program) : program_(std::move(program)) {
  if (!std::filesystem::exists(program_)) {
    refuse("--backend", "cuda without " + program_,
           "that program: it is built where nvcc is found, or by hardware/backends/cuda/CMakeLists.txt");
  }
  const TemporaryFile plan(".plan");
  {
    std::ofstream out(plan.path(), std::ios::binary);
    out << plan_text({});  // nothing to run: asks for the device alone
  }
  const ProcessOutput output = run_process(program_, "--repeats 1 " + in_quotes(plan.path()));
  if (output.exit_code == kNoDevice)
    refuse("--backend", "cuda without a device: " + first_line(output.errors), "cpu, or a machine with one");
  if (output.exit_code != 0) refuse("--backend", program_ + " failing: " + first_line(output.errors), "a run");
  device_ = nlohmann::json::parse(output.printed).at("device").get<std::string>();
}

std::vector<Execution> CudaProcess::execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) {
  STEPSIM_CHECK(ranks.size() == 1);
  const std::string flags = options.observed.empty() ? "--repeats 3 --ops" : "--repeats 1 --observe";
  const nlohmann::json json = run_plan(program_, graph, ranks.front(), options.observed, flags);
  const nlohmann::json& plan = json.at("plans").at(0);
  Execution execution;
  execution.result.timeline = timeline_of(plan.at("ops"));
  double best = plan.at("step_s").at(0).get<double>();
  for (const auto& each : plan.at("step_s")) best = std::min(best, each.get<double>());
  execution.result.end = duration_from_seconds(best);
  execution.device_peak = Bytes(plan.at("device_peak_bytes").get<std::int64_t>());
  execution.host_peak = Bytes(plan.at("host_peak_bytes").get<std::int64_t>());
  execution.gradient_norm = plan.at("gradient_norm").get<float>();
  for (const StorageId storage : options.observed) {
    Observation observation{storage, {}};
    for (const auto& each : plan.at("observed")) {
      if (each.at(0).get<std::int32_t>() != storage.index) continue;
      for (const char digit : each.at(1).get<std::string>()) observation.contents.push_back(static_cast<std::byte>(digit));
    }
    execution.observed.push_back(std::move(observation));
  }
  std::vector<Execution> executions;
  executions.push_back(std::move(execution));
  return executions;
}

MeasuredOps CudaProcess::measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) {
  const nlohmann::json json = run_plan(program_, graph, program, {}, fmt::format("--repeats {} --ops", options.repeats));
  MeasuredOps measured;
  measured.alone.resize(graph.ops().size());
  for (const OpRun& run : timeline_of(json.at("plans").at(0).at("ops"))) measured.alone[at(run.op.index)] = run.end - run.start;
  return measured;
}

}  // namespace stepsim
