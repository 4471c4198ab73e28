// stepsim_cuda_validate --device | [--repeats N] [--ops] [--observe] PLAN...: runs execution plans on the first CUDA device and prints what
// they took as JSON: {"device", "plans": [{"plan": file, "step_s": [of each repeat], "device_peak_bytes", "host_peak_bytes",
// "gradient_norm", "ops":
// [[op, start_s, end_s], ...] (--ops: of one more run, with events around each op), "observed": [[storage, "hash", sum, sum of squares],
// ...]
// (--observe: of one more run)}]}. --device: names the device alone. Needs CUDA and the standard library alone. Exit code 77: there is no
// device; 2: bad arguments, a plan that cannot be read; 1: CUDA failed.
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hardware/backends/cuda/cuda_step.h"
#include "hardware/backends/plan_text.h"

namespace {

using stepsim::ExecutionPlan;
using stepsim::cuda::CudaStep;
using stepsim::cuda::CudaStepResult;

constexpr int kNoDevice = 77;  // ctest's SKIP_RETURN_CODE

constexpr std::uintmax_t kLargestPlan = std::uintmax_t{1} << 30;

std::string read(const char* file) {
  if (!std::filesystem::is_regular_file(file)) throw std::runtime_error("found no file, wanted a plan");
  if (std::filesystem::file_size(file) > kLargestPlan) throw std::runtime_error("found more than 1 GiB, wanted a plan");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || !text) throw std::runtime_error("cannot be read whole");
  return text.str();
}

struct Arguments {
  int repeats = 10;
  bool ops = false, observe = false, device = false;
  std::vector<const char*> plans;
};

// No plans and not `device`: bad arguments.
Arguments parsed(int count, char** texts) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string text = texts[i];
    if (text == "--ops") {
      arguments.ops = true;
    } else if (text == "--observe") {
      arguments.observe = true;
    } else if (text == "--device") {
      arguments.device = true;
    } else if (text == "--repeats" && i + 1 < count) {
      const std::string number = texts[++i];
      const auto read = std::from_chars(number.data(), number.data() + number.size(), arguments.repeats);
      if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return {};
    } else if (text.rfind("--", 0) == 0) {
      return {};
    } else {
      arguments.plans.push_back(texts[i]);
    }
  }
  return arguments.repeats > 0 ? arguments : Arguments{};
}

// As a text of JSON.
std::string escaped(const std::string& text) {
  std::string found;
  for (const char each : text) {
    if (each == '"' || each == '\\') found += '\\';
    found += static_cast<unsigned char>(each) < 0x20 ? '?' : each;
  }
  return found;
}

void print_ops(const std::vector<stepsim::cuda::TimedOp>& ops) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    std::printf("%s[%d, %.9g, %.9g]", i == 0 ? "" : ", ", ops[i].op, ops[i].start_s, ops[i].end_s);
  }
}

void print_observed(const std::vector<stepsim::cuda::ContentSums>& observed) {
  for (std::size_t i = 0; i < observed.size(); ++i) {
    const auto& each = observed[i];
    std::printf("%s[%d, \"%016llx\", %.17g, %.17g]", i == 0 ? "" : ", ", each.storage.index, static_cast<unsigned long long>(each.hash),
                each.sum, each.squares);
  }
}

void print_plan(const char* file, const ExecutionPlan& plan, const Arguments& arguments) {
  CudaStep step(plan);
  step.run({});  // allocates, finds algorithms of products
  std::printf("{\"plan\": \"%s\", \"step_s\": [", escaped(file).c_str());
  CudaStepResult result;
  for (int repeat = 0; repeat < arguments.repeats; ++repeat) {
    result = step.run({});
    std::printf("%s%.9g", repeat == 0 ? "" : ", ", result.step_s);
  }
  std::printf("], \"device_peak_bytes\": %lld, \"host_peak_bytes\": %lld, \"gradient_norm\": ", static_cast<long long>(result.device_peak),
              static_cast<long long>(result.host_peak));
  std::printf(std::isfinite(result.gradient_norm) ? "%.9g" : "null", static_cast<double>(result.gradient_norm));
  std::printf(",\n  \"ops\": [");
  if (arguments.ops) print_ops(step.run({.times_ops = true}).ops);
  std::printf("],\n  \"observed\": [");
  if (arguments.observe) print_observed(step.run({.observes = true}).observed);
  std::printf("]}");
}

}  // namespace

int main(int count, char** texts) {
  const Arguments arguments = parsed(count, texts);
  if (arguments.plans.empty() && !arguments.device) {
    std::fprintf(stderr, "stepsim_cuda_validate: wanted --device, or [--repeats N] [--ops] [--observe] and plans that stepsim wrote\n");
    return 2;
  }
  std::vector<ExecutionPlan> plans;
  for (const char* file : arguments.plans) {
    try {
      plans.push_back(stepsim::parse_plan(read(file)));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", file, error.what());
      return 2;
    }
  }
  if (const std::string why = stepsim::cuda::why_no_device(); !why.empty()) {
    std::fprintf(stderr, "SKIP: %s\n", why.c_str());
    return kNoDevice;
  }
  try {
    std::printf("{\"device\": \"%s\", \"plans\": [\n ", escaped(CudaStep::device_name()).c_str());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (i > 0) std::printf(",\n ");
      print_plan(arguments.plans[i], plans[i], arguments);
    }
    std::printf("\n]}\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stepsim_cuda_validate: %s\n", error.what());
    return 1;
  }
  return 0;
}
