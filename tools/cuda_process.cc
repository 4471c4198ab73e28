#include "tools/cuda_process.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "hardware/backends/make_plan.h"
#include "hardware/backends/plan_text.h"
#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/recorded_plan.h"

namespace stepsim {

namespace {

constexpr int kNoDevice = 77;

// A file that is gone with its owner.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& ending) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) refuse("--backend", "no folder for temporary files (" + error.message() + ")", "TMPDIR to name one");
    std::string pattern = (folder / ("stepsim-XXXXXX" + ending)).string();
    const int descriptor = ::mkstemps(pattern.data(), static_cast<int>(ending.size()));
    if (descriptor < 0) refuse("--backend", "no room for a file in " + folder.string(), "some");
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

void check_ran(const std::string& program, const ProcessOutput& output) {
  std::string why = first_line(output.errors);
  if (why.starts_with("SKIP: ")) why = why.substr(6);
  if (output.exit_code == kNoDevice) refuse("--backend", "cuda without a device: " + why, "cpu, or a machine with one");
  if (output.exit_code != 0) refuse("--backend", program + " failing: " + why, "a run");
}

RecordedPlans run_plans(const std::string& program, const ExecutionPlan& executed, const std::string& flags) {
  const TemporaryFile plan(".plan");
  {
    std::ofstream out(plan.path(), std::ios::binary);
    out << plan_text(executed);
    out.close();
    if (!out) refuse("--backend", "no room for a plan in " + plan.path(), "some");
  }
  const ProcessOutput output = run_process(program, flags + " " + in_quotes(plan.path()));
  check_ran(program, output);
  return parse_recorded(output.printed, program);
}

RecordedPlan run_plan(const std::string& program, const ExecutionPlan& executed, const std::string& flags) {
  const RecordedPlans plans = run_plans(program, executed, flags);
  if (plans.by_file.size() != 1) refuse("--backend", program + " that prints nothing of its plan", "what it took");
  return plans.by_file.begin()->second;
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
  const ProcessOutput output = run_process(program_, "--device");
  check_ran(program_, output);
  device_ = parse_recorded(output.printed, program_).device;
}

std::vector<Execution> CudaProcess::execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) {
  STEPSIM_CHECK(ranks.size() == 1);
  const char* const flags = options.observed.empty() ? "--repeats 3 --ops" : "--repeats 1 --observe";
  std::vector<Execution> executions;
  executions.push_back(execution_of(run_plan(program_, execution_plan(graph, ranks.front(), options.observed), flags), options.observed));
  return executions;
}

MeasuredOps CudaProcess::measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) {
  const std::string flags = fmt::format("--repeats {} --ops", options.repeats);
  return measured_ops_of(run_plan(program_, execution_plan(graph, program), flags), graph.ops().size());
}

}  // namespace stepsim
