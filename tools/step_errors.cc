#include "tools/step_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stepsim {

namespace {

constexpr std::array<const char*, 4> kRecordNames = {"gemm", "attention", "memory", "collective"};  // FitRecord::op_class, by ErrorClass

// Without a record: mean errors of constants of one machine used for another of its kind, or of one set of kernels for another.
const std::array<ClassError, kErrorClasses> kUnrecorded = {{
    {.common = 0.07, .single = 0.05, .reason = "no fit recorded: constants of a sibling are off by 4.8 to 14 % (kernels.md 2.1)"},
    {.common = 0.07, .single = 0.06, .reason = "no fit recorded: attention fits are off by 7 to 10 % (kernels.md 6)"},
    {.common = 0.06, .single = 0.10, .reason = "no fit recorded: softmax .64-.79, norms .59-.64 of bandwidth (kernels.md 2.3)"},
    {.common = 0.06, .single = 0.08, .reason = "no fit recorded: collectives of one system are off by 10 % (issue of part 4)"},
    {.common = 0.12, .single = 0.08, .reason = "shares of the network's rate fit to .69 to 1.10 (accuracy.md A.3)"},
    {.common = 0.08, .single = 0, .reason = "375 and 346 GB/s measured on one link (kernels.md 3)"},
}};

// What a held-out error on one data set leaves open: other kernels of the same class, in a step.
constexpr std::array<double, 4> kLeastCommon = {
    0.02,  // accuracy.md A.5: scale of the products of A100 steps 0.98 +- 0.02
    0.03,  // kernels.md 2.2: backward at .85 to .89 of the forward rate
    0.04,  // accuracy.md B.2.3: fractions of bandwidth fit to 0.96 to 1.02 of those assumed
    0.03,  // accuracy.md A.5: two tables of one system's collectives differ by 3 %
};
constexpr double kNarrowProducts = 0.14;         // kernels.md 2.1: fp8 products, whose benchmark quantises too
constexpr double kModel = 0.03;                  // accuracy.md C.0: 2.9 % of ten layer times of 2205.05198 with nothing fitted
constexpr double kWeightGradient = 0.05;         // accuracy.md C.0: weight gradients by 1.13, 1.08 or nothing longer than benchmarks say
constexpr std::int64_t kUndisturbedGpus = 8;     // accuracy.md B.4
constexpr double kStragglerPerDoubling = 0.012;  // accuracy.md B.4: 1.0 +- 0.2 % per doubling beyond 8 GPUs

constexpr double kExperts = 0.11, kUnknownExperts = 0.25;  // accuracy.md C.4: 10-12 % where flags are known, else 20-30 %
constexpr double kRelease = 0.047;                         // accuracy.md C.4: median range of 38 groups over releases

bool is_narrow(Precision precision) { return bits_of(product_dtype(precision)) < 16; }

// Of the records of a class these are about other work than a step's: ratios of layouts, inference attention, fp32 beside narrower formats,
// elementwise kernels beside norms and what is not fused.
bool of_other_work(const FitRecord& record, Precision precision) {
  if (record.part == "fp32") return precision != Precision::kFp32;
  return !record.part.empty();
}

double size_of_error(const FitRecord& record) {
  return record.held_out_rows > 0 ? record.held_out_error + std::abs(record.held_out_bias) : record.fitted_error;
}

// The record with the largest error of those of the class, the first of equals; one about other work only where there is no other, and
// never elementwise kernels for all that are bound by memory.
const FitRecord* worst_record(const Job& job, const std::string& op_class) {
  const FitRecord* worst = nullptr;
  for (const bool other_work : {false, true}) {
    for (const FitRecord& record : job.gpu.fits) {
      if (record.op_class != op_class || record.part == "elementwise") continue;
      if (of_other_work(record, job.training.precision) != other_work) continue;
      if (worst == nullptr || size_of_error(*worst) < size_of_error(record)) worst = &record;
    }
    if (worst != nullptr) return worst;
  }
  return worst;
}

ClassError class_error(const Job& job, ErrorClass of) {
  const auto i = static_cast<std::size_t>(of);
  if (of == ErrorClass::kGemm && is_narrow(job.training.precision)) {
    return {.common = kNarrowProducts, .reason = "products of 8 and 4 bits are off by 14 % (kernels.md 2.1)"};
  }
  const FitRecord* const record = i < kRecordNames.size() ? worst_record(job, kRecordNames[i]) : nullptr;
  if (record == nullptr) return kUnrecorded[i];
  if (record->held_out_rows == 0) {
    return {.common = std::max(record->fitted_error, kLeastCommon[i]), .reason = fmt::format("{}, none held out", record->data)};
  }
  return {.common = std::max(std::abs(record->held_out_bias), kLeastCommon[i]),
          .single = record->held_out_error,
          .reason = fmt::format("{} held out of {}: {:.1f} %, bias {:+.1f} %", record->held_out_rows, record->data,
                                100 * record->held_out_error, 100 * record->held_out_bias)};
}

TimeRange relative(const SlowdownRange& range) {
  return {std::min(range.lower / range.expected - 1, 0.0), std::max(range.upper / range.expected - 1, 0.0)};
}

// Beyond 8: 1 for 16 GPUs, 1.5 for 24, 2 for 32: straight lines between powers of two.
double doublings_beyond(std::int64_t known, std::int64_t gpus) {
  double rest = static_cast<double>(gpus) / static_cast<double>(known), whole = 0;
  for (; rest >= 2; rest /= 2) whole += 1;
  return rest <= 1 ? whole : whole + rest - 1;
}

// Steps of one stack tell what is wrong with products and model together, better than kernels do: the largest mean error of steps that
// were left out.
void take_measured_steps(const StackSpec& stack, StepErrors& errors) {
  constexpr std::int64_t kLeastRows = 3;  // of which the others fit something
  const StackEvidence* worst = nullptr;
  for (const StackEvidence& each : stack.evidence) {
    if (!each.left_out || each.rows < kLeastRows) continue;
    if (worst == nullptr || *worst->left_out < *each.left_out) worst = &each;
  }
  if (worst == nullptr) return;
  ClassError& products = errors.classes[static_cast<std::size_t>(ErrorClass::kGemm)];
  products.common = 0;
  products.reason += "; what is common to products is in the stack, which steps were fitted with";
  errors.model = *worst->left_out;
  errors.model_reason =
      fmt::format("steps of {}, each by the others, are off by {:.1f} % ({})", stack.name, 100 * errors.model, worst->source);
}

constexpr std::int64_t kEnoughJobs = 8;  // whose 5th and 95th percentile say something of further ones

bool is_of_kind(const StackEvidence& evidence, bool experts) {
  return evidence.models.empty() || evidence.models == (experts ? "experts" : "dense");
}

// Of models like this one, else of any; none: no step of the stack was held out.
const StackEvidence* held_out_evidence(const StackSpec& stack, bool experts) {
  const StackEvidence* found = nullptr;
  for (const StackEvidence& each : stack.evidence) {
    if (!each.held_out) continue;
    const bool like = is_of_kind(each, experts);
    if (found == nullptr || like) found = &each;
    if (like) break;
  }
  return found;
}

// Means over all stacks of the catalog, each as often as it has steps.
HeldOutSteps pooled_steps(bool experts) {
  HeldOutSteps pooled;
  for (const std::string& name : stack_names()) {
    for (const StackEvidence& each : load_stack(name).evidence) {
      if (!each.held_out || !is_of_kind(each, experts)) continue;
      const auto rows = static_cast<double>(each.held_out->rows);
      pooled.rows += each.held_out->rows;
      pooled.jobs += each.held_out->jobs;
      pooled.lower += rows * each.held_out->lower;
      pooled.upper += rows * each.held_out->upper;
      pooled.kernel_width += rows * each.held_out->kernel_width;
    }
  }
  const double rows = static_cast<double>(std::max(pooled.rows, std::int64_t{1}));
  pooled.lower /= rows;
  pooled.upper /= rows;
  pooled.kernel_width /= rows;
  return pooled;
}

const HeldOutSteps& pooled_held_out(bool experts) {
  static const HeldOutSteps kOfDense = pooled_steps(false), kOfExperts = pooled_steps(true);
  return experts ? kOfExperts : kOfDense;
}

// Few steps tell little of further ones: then what steps of all stacks did, around what these did not miss.
void take_held_out(const Job& job, StepErrors& errors) {
  const bool experts = job.model.has_experts();
  const StackEvidence* const evidence = held_out_evidence(*job.stack, experts);
  if (evidence == nullptr) return;
  const HeldOutSteps& own = *evidence->held_out;
  const bool enough = own.jobs >= kEnoughJobs && is_of_kind(*evidence, experts);
  const HeldOutSteps& steps = enough ? own : pooled_held_out(experts);
  constexpr double kShortest = -0.95;
  const std::string whose = enough ? fmt::format("{} steps of {} jobs that {} was not fitted on", own.rows, own.jobs, job.stack->name)
                                   : fmt::format("{} has {} held-out jobs like this; {} steps of {} jobs that stacks were not fitted on",
                                                 job.stack->name, own.jobs, steps.rows, steps.jobs);
  errors.held_out = HeldOutBand{.range = {std::max(std::min(steps.lower, 0.0), kShortest), std::max(steps.upper, 0.0)},
                                .kernel_width = steps.kernel_width,
                                .reason = fmt::format("{} took {:+.1f} to {:+.1f} % (5th to 95th percentile); {}", whose, 100 * steps.lower,
                                                      100 * steps.upper, evidence->source)};
  errors.doublings = doublings_beyond(std::max(own.most_gpus, kUndisturbedGpus), job.gpus);
}

// By the user or a file, not by default.
bool is_said(const Job& job, const std::string& path) {
  const auto found = std::find_if(job.values.begin(), job.values.end(), [&](const JobValue& value) { return value.path == path; });
  return found != job.values.end() && found->source.rfind("default", 0) != 0;
}

// A named release of a framework says dispatcher and overlap, as the job may.
void add_experts(const Job& job, StepErrors& errors) {
  if (!job.model.has_experts()) return;
  const bool known = is_said(job, "parallel.dispatcher") || is_said(job, "framework.name");
  errors.experts = known ? kExperts : kUnknownExperts;
  errors.experts_reason =
      known ? "models with experts are off by 10 to 12 % where the recipe is known (accuracy.md C.4)"
            : "models with experts are off by 20 to 30 % where neither framework nor dispatcher is said (accuracy.md C.4)";
}

void add_release(const Job& job, StepErrors& errors) {
  const std::string label = framework_label(job.framework);
  bool measured = true;
  for (const StackEvidence& each : job.stack->evidence) {
    if (each.frameworks.empty()) continue;
    measured = std::find(each.frameworks.begin(), each.frameworks.end(), label) != each.frameworks.end();
    if (measured) return;
  }
  if (measured) return;
  errors.release = kRelease;
  errors.release_reason =
      fmt::format("{} has no measured steps of {}; releases differ by 0.3 to 10 %, median 4.7 % (accuracy.md C.4)", job.stack->name, label);
}

void add_stack_error(const Job& job, StepErrors& errors) {
  const std::string precision = dtype_name(product_dtype(job.training.precision));
  auto& ranges = errors.stack_ranges;
  if (!job.stack || job.stack->typical) {
    errors.stack = fmt::format("unknown ({}, {})", framework_label(job.framework), precision);
    const SlowdownRange range = job.stack ? job.stack->gemm : unknown_stack_range(job.gpu, precision);
    ranges[static_cast<std::size_t>(ErrorClass::kGemm)] = relative(range);
    errors.stack_reason = fmt::format("no known stack: catalog stacks on such machines take {:.2f} to {:.2f} of the products' time",
                                      range.lower, range.upper);
    return;
  }
  const StackSpec& stack = *job.stack;
  errors.stack = stack.name;
  ranges[static_cast<std::size_t>(ErrorClass::kGemm)] = relative(stack.gemm);
  ranges[static_cast<std::size_t>(ErrorClass::kAttention)] = relative(stack.attention);
  ranges[static_cast<std::size_t>(ErrorClass::kMemory)] = relative(stack.memory);
  ranges[static_cast<std::size_t>(ErrorClass::kCollective)] = relative(stack.collective);
  ranges[static_cast<std::size_t>(ErrorClass::kNetwork)] = relative(stack.collective);
  if (stack.gives_weight_gradient) errors.weight_gradient = relative(stack.weight_gradient);
  take_held_out(job, errors);
  if (!errors.held_out) take_measured_steps(stack, errors);
  add_release(job, errors);
  if (stack.straggler_per_doubling) errors.straggler_per_doubling = *stack.straggler_per_doubling;
  errors.stack_reason =
      fmt::format("{}: products {:.2f}, {:.2f} to {:.2f}", stack.name, stack.gemm.expected, stack.gemm.lower, stack.gemm.upper);
}

struct ClassOf {
  std::int32_t nvlink_domain;
  std::optional<ErrorClass> operator()(const Gemm&) const { return ErrorClass::kGemm; }
  std::optional<ErrorClass> operator()(const Attention&) const { return ErrorClass::kAttention; }
  std::optional<ErrorClass> operator()(const MemoryBound&) const { return ErrorClass::kMemory; }
  std::optional<ErrorClass> operator()(const Collective& work) const {
    const bool within = (std::int64_t{work.ranks} - 1) * work.stride < nvlink_domain;
    return within ? ErrorClass::kCollective : ErrorClass::kNetwork;
  }
  std::optional<ErrorClass> operator()(const Copy& copy) const {
    return copy.direction == CopyDirection::kDeviceToDevice ? ErrorClass::kMemory : ErrorClass::kCopy;
  }
  std::optional<ErrorClass> operator()(const Given&) const { return std::nullopt; }
  std::optional<ErrorClass> operator()(const Marker&) const { return std::nullopt; }
};

}  // namespace

std::optional<ErrorClass> StepErrors::error_class(const OpWork& work) const { return std::visit(ClassOf{nvlink_domain}, work); }

StepErrors step_errors(const Job& job) {
  const DType products = product_dtype(job.training.precision);
  StepErrors errors{.machine = job.gpu.name,
                    .products = products == DType::kFp16 ? dtype_name(DType::kBf16) : dtype_name(products),  // one rate
                    .cluster = job.cluster.name,
                    .nvlink_domain = job.cluster.nvlink_domain,
                    .model = kModel,
                    .model_reason = "layers of known kernels, nothing fitted, are off by 2 to 4 % (accuracy.md C.0)",
                    .weight_gradient_error = job.stack && job.stack->gives_weight_gradient ? 0 : kWeightGradient,
                    .doublings = doublings_beyond(kUndisturbedGpus, job.gpus),
                    .straggler_per_doubling = kStragglerPerDoubling};
  for (std::size_t i = 0; i < kErrorClasses; ++i) errors.classes[i] = class_error(job, static_cast<ErrorClass>(i));
  add_experts(job, errors);
  add_stack_error(job, errors);
  return errors;
}

}  // namespace stepsim
