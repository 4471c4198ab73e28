#include "hardware/stack_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "hardware/catalog_source.h"
#include "hardware/field_reader.h"
#include "hardware/stack.pb.h"
#include "schema/nearest_name.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> stack_files();

namespace {

constexpr double kLeast = 0.5, kMost = 10;  // beyond them a slowdown is a slip of the pen

// In the order of the message that lists them.
const std::vector<std::string>& product_precisions() {
  static const std::vector<std::string> names = {"bf16", "fp16", "fp32", "tf32", "fp8", "mxfp8", "nvfp4"};
  return names;
}

double factor(const FieldReader& reader, const std::string& path, double value) {
  if (!(value >= kLeast && value <= kMost)) reader.fail(path, fmt::format("found {}, wanted a number from {} to {}", value, kLeast, kMost));
  return value;
}

SlowdownRange slowdown(const files::Slowdown& message, const std::string& path, const FieldReader& reader) {
  if (!message.has_expected()) reader.fail(path + ".expected", fmt::format("found none, wanted a number from {} to {}", kLeast, kMost));
  SlowdownRange range;
  range.expected = factor(reader, path + ".expected", message.expected());
  range.lower = message.has_lower() ? factor(reader, path + ".lower", message.lower()) : range.expected;
  range.upper = message.has_upper() ? factor(reader, path + ".upper", message.upper()) : range.expected;
  if (range.lower > range.expected) {
    reader.fail(path + ".lower", fmt::format("found {}, wanted at most the expected {}", range.lower, range.expected));
  }
  if (range.upper < range.expected) {
    reader.fail(path + ".upper", fmt::format("found {}, wanted at least the expected {}", range.upper, range.expected));
  }
  return range;
}

// Names with something in them, each once.
std::vector<std::string> name_list(const google::protobuf::RepeatedPtrField<std::string>& texts, const std::string& path,
                                   const FieldReader& reader) {
  std::vector<std::string> names;
  for (int i = 0; i < texts.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (texts[i].empty()) reader.fail(at, "found an empty text, wanted a name");
    if (among(names, texts[i])) reader.fail(at, fmt::format("found \"{}\" twice, wanted it once", texts[i]));
    names.push_back(texts[i]);
  }
  return names;
}

void read_precisions(const files::Stack& message, const FieldReader& reader, StackSpec& stack) {
  stack.precisions = name_list(message.precision(), "precision", reader);
  const std::string wanted = fmt::format("{}", fmt::join(product_precisions(), ", "));
  if (stack.precisions.empty()) reader.fail("precision", "found none, wanted at least one of " + wanted);
  for (std::size_t i = 0; i < stack.precisions.size(); ++i) {
    const std::string& name = stack.precisions[i];
    if (among(product_precisions(), name)) continue;
    reader.fail(fmt::format("precision[{}]", i),
                fmt::format("found \"{}\", wanted one of {}{}", name, wanted, suggestion(name, product_precisions())));
  }
}

std::optional<HeldOutSteps> held_out_steps(const files::Evidence& evidence, const std::string& at, const FieldReader& reader) {
  if (!evidence.has_held_out_rows()) return std::nullopt;
  const HeldOutSteps steps{.rows = evidence.held_out_rows(),
                           .jobs = evidence.has_held_out_jobs() ? evidence.held_out_jobs() : evidence.held_out_rows(),
                           .lower = evidence.held_out_lower(),
                           .upper = evidence.held_out_upper(),
                           .kernel_width = evidence.kernel_width(),
                           .most_gpus = evidence.most_gpus()};
  if (steps.rows < 1) reader.fail(at + "held_out_rows", fmt::format("found {}, wanted a whole number above zero", steps.rows));
  if (steps.jobs < 1 || steps.jobs > steps.rows) {
    reader.fail(at + "held_out_jobs", fmt::format("found {}, wanted 1 to the {} rows", steps.jobs, steps.rows));
  }
  if (!(steps.lower > -1 && steps.lower <= steps.upper)) {
    reader.fail(at + "held_out_lower", fmt::format("found {}, wanted more than -1, at most held_out_upper {}", steps.lower, steps.upper));
  }
  constexpr double kMostOver = 100;
  if (!(steps.upper <= kMostOver)) reader.fail(at + "held_out_upper", fmt::format("found {}, wanted at most {}", steps.upper, kMostOver));
  if (!(steps.kernel_width >= 0 && steps.kernel_width <= 1)) {
    reader.fail(at + "kernel_width", fmt::format("found {}, wanted a fraction of the step", steps.kernel_width));
  }
  return steps;
}

void read_evidence(const files::Stack& message, const FieldReader& reader, StackSpec& stack) {
  for (int i = 0; i < message.evidence_size(); ++i) {
    const files::Evidence& evidence = message.evidence(i);
    const std::string at = fmt::format("evidence[{}].", i);
    const auto error = [&](const char* field, bool has, double value) {
      constexpr double kMostError = 100;
      if (has && !(value >= 0 && value <= kMostError)) {
        reader.fail(at + field, fmt::format("found {}, wanted a mean of absolute errors as a fraction, such as 0.05", value));
      }
      return has ? value : 0;
    };
    if (evidence.source().empty()) reader.fail(at + "source", "found none, wanted what was measured and by whom");
    if (evidence.has_rows() && evidence.rows() < 1) {
      reader.fail(at + "rows", fmt::format("found {}, wanted a whole number above zero", evidence.rows()));
    }
    StackEvidence row{.source = evidence.source(),
                      .conditions = evidence.conditions(),
                      .rows = evidence.rows(),
                      .error_before = error("error_before", evidence.has_error_before(), evidence.error_before()),
                      .error_after = error("error_after", evidence.has_error_after(), evidence.error_after())};
    if (evidence.has_left_out()) row.left_out = error("left_out", true, evidence.left_out());
    row.frameworks = name_list(evidence.framework(), at + "framework", reader);
    row.models = evidence.models();
    if (!row.models.empty() && row.models != "dense" && row.models != "experts") {
      reader.fail(at + "models", fmt::format("found \"{}\", wanted dense or experts", row.models));
    }
    row.held_out = held_out_steps(evidence, at, reader);
    row.fitted_on = evidence.fitted_on();
    row.command = evidence.command();
    row.date = evidence.date();
    stack.evidence.push_back(std::move(row));
  }
}

StackSpec stack_of(const CatalogSource& source) {
  files::Stack message;
  read_source(source, message);
  const FieldReader reader(source.text, source.path, {});
  StackSpec stack;
  stack.name = source.name;
  stack.aliases = name_list(message.alias(), "alias", reader);
  stack.machines = name_list(message.machine(), "machine", reader);
  if (stack.machines.empty()) reader.fail("machine", "found none, wanted the machine that it was measured on");
  read_precisions(message, reader, stack);
  stack.frameworks = name_list(message.framework(), "framework", reader);
  stack.software = message.software();
  if (!message.has_gemm()) reader.fail("gemm", "found none, wanted the slowdown of matrix products: gemm { expected: 1.2 }");
  stack.gemm = slowdown(message.gemm(), "gemm", reader);
  if (message.has_attention()) stack.attention = slowdown(message.attention(), "attention", reader);
  if (message.has_memory()) stack.memory = slowdown(message.memory(), "memory", reader);
  if (message.has_collective()) stack.collective = slowdown(message.collective(), "collective", reader);
  stack.gives_weight_gradient = message.has_weight_gradient();
  if (stack.gives_weight_gradient) stack.weight_gradient = slowdown(message.weight_gradient(), "weight_gradient", reader);
  if (message.has_straggler_per_doubling()) {
    const double share = message.straggler_per_doubling();
    if (!(share >= 0 && share <= 1)) {
      reader.fail("straggler_per_doubling", fmt::format("found {}, wanted a fraction of the step from 0 to 1", share));
    }
    stack.straggler_per_doubling = share;
  }
  read_evidence(message, reader, stack);
  stack.assumptions.assign(message.assumption().begin(), message.assumption().end());
  return stack;
}

std::vector<std::string> aliases_of(const CatalogSource& source) { return stack_of(source).aliases; }

// What the catalog has, with the generation of each stack's first machine.
struct CatalogStack {
  StackSpec stack;
  std::int32_t generation = 0;
};

std::int32_t generation_of(const GpuSpec& gpu) { return gpu.compute_capability / 10; }

const std::vector<CatalogStack>& catalog() {
  static const std::vector<CatalogStack> stacks = [] {
    std::vector<CatalogStack> read;
    for (const EmbeddedFile& file : stack_files()) {
      StackSpec stack = stack_of({std::string(file.name), std::string(file.path), std::string(file.text)});
      const std::int32_t generation = generation_of(load_gpu(stack.machines.front()));
      read.push_back({std::move(stack), generation});
    }
    return read;
  }();
  return stacks;
}

bool holds_for(const StackSpec& stack, const GpuSpec& gpu) {
  return std::any_of(stack.machines.begin(), stack.machines.end(), [&](const std::string& machine) {
    const std::string name = normalized_name(machine);
    const auto same = [&](const std::string& other) { return normalized_name(other) == name; };
    return same(gpu.name) || std::any_of(gpu.aliases.begin(), gpu.aliases.end(), same);
  });
}

// Both 16-bit formats run at one rate.
std::string rate_of(const std::string& precision) { return precision == "fp16" ? "bf16" : precision; }

// Of products, ascending.
template <class Wanted>
std::vector<double> slowdowns(const Wanted& wanted) {
  std::vector<double> found;
  for (const CatalogStack& entry : catalog()) {
    if (wanted(entry)) found.push_back(entry.stack.gemm.expected);
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Relatives {
  std::int32_t generation;
  std::string rate;

  bool of_generation(const CatalogStack& entry) const { return entry.generation == generation; }
  bool of_precision(const CatalogStack& entry) const {
    const std::vector<std::string>& all = entry.stack.precisions;
    return std::any_of(all.begin(), all.end(), [this](const std::string& name) { return rate_of(name) == rate; });
  }
  std::vector<double> nearest() const {
    return slowdowns([this](const CatalogStack& entry) { return of_generation(entry) && of_precision(entry); });
  }
};

}  // namespace

StackSpec load_stack(const std::string& name_or_file) { return stack_of(open_source(stack_files(), name_or_file, "--stack", aliases_of)); }

std::vector<std::string> stack_names() { return catalog_names(stack_files()); }

std::optional<StackSpec> known_stack(const std::string& machine, const std::string& precision, const std::string& framework) {
  for (const std::string& name : {framework, framework.substr(0, framework.find('@'))}) {
    for (const CatalogStack& entry : catalog()) {
      const StackSpec& stack = entry.stack;
      if (among(stack.frameworks, name) && among(stack.machines, machine) && among(stack.precisions, precision)) return stack;
    }
  }
  return std::nullopt;
}

SlowdownRange unknown_stack_range(const GpuSpec& gpu, const std::string& precision) {
  const Relatives relatives{generation_of(gpu), rate_of(precision)};
  // Of the nearest relatives of which anything is known.
  std::vector<double> found = relatives.nearest();
  if (found.empty()) found = slowdowns([&](const CatalogStack& entry) { return relatives.of_generation(entry); });
  if (found.empty()) found = slowdowns([&](const CatalogStack& entry) { return relatives.of_precision(entry); });
  if (found.empty()) found = slowdowns([](const CatalogStack&) { return true; });
  STEPSIM_CHECK(!found.empty());
  return {1, found.front(), found.back()};
}

std::optional<StackSpec> typical_stack(const GpuSpec& gpu, const std::string& precision) {
  const std::vector<double> found = Relatives{generation_of(gpu), rate_of(precision)}.nearest();
  if (found.empty()) return std::nullopt;
  StackSpec stack;
  stack.name = kTypicalStack;
  stack.typical = true;
  stack.machines = {gpu.name};
  stack.precisions = {precision};
  stack.software = "not known";
  const double middle = (found[(found.size() - 1) / 2] + found[found.size() / 2]) / 2;
  stack.gemm = {middle, found.front(), found.back()};
  return stack;
}

void apply_stack(const StackSpec& stack, const std::string& precision, GpuSpec& gpu) {
  if (!holds_for(stack, gpu)) {
    throw InputError({"--stack"},
                     fmt::format("found {} of {}, wanted a stack of {}, or none", stack.name, fmt::join(stack.machines, ", "), gpu.name));
  }
  if (!among(stack.precisions, precision)) {
    throw InputError({"--stack"}, fmt::format("found {} of {}, wanted a stack for {}, or none", stack.name,
                                              fmt::join(stack.precisions, ", "), precision));
  }
  if (stack.gives_weight_gradient && !gpu.fit.gemm_tile) {
    throw InputError({"--stack"},
                     fmt::format("found {} with weight_gradient, wanted one without it: {} has no gemm_tile", stack.name, gpu.name));
  }
  SustainedSlowdown& sustained = gpu.fit.sustained;
  sustained = {};
  for (const std::string& name : stack.precisions) sustained.gemm[name] = stack.gemm.expected;
  sustained.attention = stack.attention.expected;
  sustained.memory = stack.memory.expected;
  sustained.collective = stack.collective.expected;
  if (stack.gives_weight_gradient) gpu.fit.gemm_tile->weight_gradient = stack.weight_gradient.expected;
}

}  // namespace stepsim
