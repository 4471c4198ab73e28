#include "tools/job_stack.h"

#include <fmt/format.h>

#include "hardware/catalog_source.h"

namespace stepsim {

// The catalog's evidence is about the catalog's machines: not of a user's file, whatever its name, nor of rates that the user states.
static std::optional<StackSpec> usual_stack(const Job& job, const std::string& precision) {
  const auto machine = job.entries.values.find("hardware.name");
  if (machine != job.entries.values.end() && is_catalog_file(machine->second.value)) return std::nullopt;
  for (const auto& [path, value] : job.entries.machine) {
    if (path.compare(0, 4, "gemm") == 0 || path.compare(0, 4, "peak") == 0) return std::nullopt;
  }
  const std::optional<StackSpec> known = known_stack(job.gpu.name, precision, framework_label(job.framework));
  return known ? known : typical_stack(job.gpu, precision);
}

static std::string unknown_sentence(const Job& job, const std::string& precision) {
  const std::string begin = fmt::format("No stack is known for {} on {} with {} (stepsim list stacks): ", precision, job.gpu.name,
                                        framework_label(job.framework));
  if (!job.stack) {
    const SlowdownRange range = unknown_stack_range(job.gpu, precision);
    return begin + fmt::format(
                       "kernel times are those of benchmarks; measured training took {:.2f} to {:.2f} times as long for matrix "
                       "products",
                       range.lower, range.upper);
  }
  const SlowdownRange& range = job.stack->gemm;
  return begin + fmt::format(
                     "matrix products take {:.2f} times as long as in benchmarks, the middle of what training took with known ones, "
                     "{:.2f} to {:.2f}",
                     range.expected, range.lower, range.upper);
}

void resolve_stack(JobValues& values, Job& job) {
  const std::string path = "hardware.stack", precision = dtype_name(product_dtype(job.training.precision));
  const std::optional<std::string> given = values.optional_text(path);
  if (given == "none") return;
  if (given == kTypicalStack) {
    job.stack = typical_stack(job.gpu, precision);
    if (!job.stack) {
      const std::string what = fmt::format("{} on {}", precision, job.gpu.name);
      values.fail(path, fmt::format("found {}, wanted none or a stack: none of {} is in the catalog", kTypicalStack, what));
    }
  } else if (given) {
    job.stack = load_stack(*given);
  } else {
    job.stack = usual_stack(job, precision);
    const std::string who = fmt::format("{} on {} with {}", precision, job.gpu.name, framework_label(job.framework));
    const bool known = job.stack && !job.stack->typical;
    values.note(path, job.stack ? job.stack->name : "none",
                fmt::format("default: {} for {}", known ? "the catalog's" : "none is known", who), JobValue::Form::kText);
  }
  const bool typical = job.stack && job.stack->typical;
  // At the front: no other assumption moves the step time as much.
  std::vector<std::string> sentences;
  if (!job.stack || typical) sentences.push_back(unknown_sentence(job, precision));
  if (job.stack) {
    apply_stack(*job.stack, precision, job.gpu);
    if (!given && !typical) sentences.push_back("stack " + job.stack->name + " (measured with this framework on this machine)");
    sentences.insert(sentences.end(), job.stack->assumptions.begin(), job.stack->assumptions.end());
  }
  job.assumed.insert(job.assumed.begin(), sentences.begin(), sentences.end());
}

}  // namespace stepsim
