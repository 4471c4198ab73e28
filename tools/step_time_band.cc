#include "tools/step_time_band.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stepsim {

namespace {

constexpr double kCoverage = 1.6;  // 80 % of a normal distribution lie within 1.28 sigma, and sigma is sqrt(pi/2) mean absolute errors
constexpr double kNoticed = 1.05;  // of a factor: less is not said
constexpr double kSharing = 0.5;   // accuracy.md B.2.3: what sharing costs beside collectives fits to .23 to .58 of their time
constexpr TimeRange kLaunches = {-0.5, 1};  // accuracy.md A.5: the host's time is uncertain by 2x

// Seconds of the longest chain over a step time: of one step, or what one has more than another.
struct Weights {
  std::map<KernelKind, double> work{};
  double slowed = 0, host = 0;
  double late = 0;  // by stragglers, at most
};

// `of` times `share` of what each part takes of its step.
void add(Weights& weights, const BandedStep& step, double share) {
  const StepShares& of = step.shares;
  const double scale = share / seconds(of.step);
  weights.late += share * step.errors.doublings * step.errors.straggler_per_doubling;
  for (const auto& [kind, time] : of.work) weights.work[kind] += seconds(time) * scale;
  weights.slowed += seconds(of.slowed) * scale;
  weights.host += seconds(of.host) * scale;
}

TimeRange both_ways(double size) { return {-size, size}; }

// A time of this weight, of either sign, that changes by the range.
TimeRange times(double weight, const TimeRange& range) {
  const double a = weight * range.lower, b = weight * range.upper;
  return {std::min({a, b, 0.0}), std::max({a, b, 0.0})};
}

TimeRange sum(const TimeRange& a, const TimeRange& b) { return {a.lower + b.lower, a.upper + b.upper}; }

// What is common counts by the sum of its weights; errors of single kernels average out.
double class_size(const StepErrors& errors, const Weights& weights, ErrorClass of) {
  const ClassError& error = errors.classes[static_cast<std::size_t>(of)];
  double all = 0, squares = 0;
  for (const auto& [kind, weight] : weights.work) {
    if (errors.error_class(kind.work) != of) continue;
    all += weight;
    squares += weight * weight;
  }
  return kCoverage * (error.common * std::abs(all) + error.single * std::sqrt(squares));
}

// Of all that has a cost, whichever way each kind is off: between steps it cancels where the same kernels take the same share.
double model_size(const StepErrors& errors, const Weights& weights) {
  double all = 0;
  for (const auto& [kind, weight] : weights.work) {
    if (errors.error_class(kind.work)) all += std::abs(weight);
  }
  return kCoverage * errors.model * all;
}

double weight_gradients(const Weights& weights) {
  double sum = 0;
  for (const auto& [kind, weight] : weights.work) {
    const Gemm* const product = std::get_if<Gemm>(&kind.work);
    if (product != nullptr && product->transpose_b && !product->transpose_a) sum += weight;
  }
  return sum;
}

TimeRange stack_size(const StepErrors& errors, const Weights& weights) {
  std::array<double, kErrorClasses> by_class{};
  for (const auto& [kind, weight] : weights.work) {
    if (const std::optional<ErrorClass> of = errors.error_class(kind.work)) by_class[static_cast<std::size_t>(*of)] += weight;
  }
  TimeRange range = times(weight_gradients(weights), errors.weight_gradient);
  for (std::size_t i = 0; i < kErrorClasses; ++i) range = sum(range, times(by_class[i], errors.stack_ranges[i]));
  return range;
}

class Sources {
 public:
  // Whose they are, behind each name: "", " of the first".
  explicit Sources(std::vector<BandSource>& sources, std::string owner = "") : sources_(sources), owner_(std::move(owner)) {}
  void independent(const std::string& name, const TimeRange& range, const std::string& reason) {
    push({name + owner_, range, true, reason});
  }
  void added(const std::string& name, const TimeRange& range, const std::string& reason) { push({name + owner_, range, false, reason}); }

 private:
  void push(BandSource source) {
    if (source.range.lower < 0 || source.range.upper > 0) sources_.push_back(std::move(source));
  }
  std::vector<BandSource>& sources_;
  std::string owner_;
};

void add_class(ErrorClass of, const StepErrors& errors, const Weights& weights, Sources& sources) {
  const auto i = static_cast<std::size_t>(of);
  sources.independent(kErrorClassNames[i], both_ways(class_size(errors, weights, of)), errors.classes[i].reason);
}

void add_products(const StepErrors& errors, const Weights& weights, Sources& sources) {
  add_class(ErrorClass::kGemm, errors, weights, sources);
  sources.independent("weight gradients", both_ways(kCoverage * errors.weight_gradient_error * std::abs(weight_gradients(weights))),
                      "1.03 to 1.13 of other layouts' time (accuracy.md C.0)");
}

void add_kernels(const StepErrors& errors, const Weights& weights, Sources& sources) {
  add_class(ErrorClass::kAttention, errors, weights, sources);
  add_class(ErrorClass::kMemory, errors, weights, sources);
  sources.independent("model", both_ways(model_size(errors, weights)), errors.model_reason);
  sources.independent("contention", both_ways(kSharing * std::abs(weights.slowed)),
                      "half of what ops are slowed by sharing (accuracy.md B.2.3: kappa .23 to .58)");
  sources.independent("launches", times(weights.host, kLaunches), "host time per launch is uncertain by 2x (accuracy.md A.5)");
}

void add_links(const StepErrors& errors, const Weights& weights, Sources& sources) {
  add_class(ErrorClass::kCollective, errors, weights, sources);
  add_class(ErrorClass::kNetwork, errors, weights, sources);
  add_class(ErrorClass::kCopy, errors, weights, sources);
}

void add_stack(const StepErrors& errors, const Weights& weights, Sources& sources) {
  sources.added("stack", stack_size(errors, weights), errors.stack_reason);
}

void add_stragglers(const StepErrors& errors, const Weights& weights, Sources& sources) {
  sources.added("stragglers", times(weights.late, {0, 1}),
                fmt::format("up to {:.1f} % per doubling beyond {} GPUs (accuracy.md B.4, or the stack)",
                            100 * errors.straggler_per_doubling, errors.held_out ? "those" : "8"));
}

TimeRange combined(const std::vector<BandSource>& sources) {
  TimeRange squares, sum_of_rest;
  for (const BandSource& source : sources) {
    if (source.independent) {
      squares.lower += source.range.lower * source.range.lower;
      squares.upper += source.range.upper * source.range.upper;
    } else {
      sum_of_rest = sum(sum_of_rest, source.range);
    }
  }
  return {sum_of_rest.lower - std::sqrt(squares.lower), sum_of_rest.upper + std::sqrt(squares.upper)};
}

// What two jobs have in common.
struct Shared {
  bool kernels = false, products = false, links = false, stack = false;
};

Shared shared_by(const StepErrors& a, const StepErrors& b) {
  const bool machine = a.machine == b.machine;
  return {.kernels = machine,
          .products = machine && a.products == b.products,
          .links = machine && a.cluster == b.cluster,
          .stack = machine && a.stack == b.stack};
}

// Of one machine: they differ where the stacks do.
StepErrors larger_of(const StepErrors& a, const StepErrors& b) {
  StepErrors larger = a;
  for (std::size_t i = 0; i < kErrorClasses; ++i) {
    larger.classes[i].common = std::max(a.classes[i].common, b.classes[i].common);
    larger.classes[i].single = std::max(a.classes[i].single, b.classes[i].single);
  }
  larger.model = std::max(a.model, b.model);
  larger.weight_gradient_error = std::max(a.weight_gradient_error, b.weight_gradient_error);
  return larger;
}

std::string shared_text(const Shared& shared) {
  if (!shared.kernels) return "";
  std::string text = shared.products ? "kernels" : "kernels other than products";
  if (shared.links) text += ", links";
  if (shared.stack) text += ", stack";
  return text;
}

// What is not known of the kernels and of what runs them, whatever was measured of steps.
std::vector<BandSource> kernel_sources(const StepErrors& errors, const Weights& weights) {
  std::vector<BandSource> list;
  Sources sources(list);
  add_products(errors, weights, sources);
  add_kernels(errors, weights, sources);
  add_links(errors, weights, sources);
  sources.independent("experts", both_ways(kCoverage * errors.experts), errors.experts_reason);
  return list;
}

// Steps that were measured say how far the model is off, of steps like them; a step that hangs more on uncertain kernels is off by more.
void add_held_out(const StepErrors& errors, const Weights& weights, Sources& sources) {
  const HeldOutBand& band = *errors.held_out;
  const double width = -combined(kernel_sources(errors, weights)).lower;
  const double scale = band.kernel_width > 0 ? std::max(1.0, width / band.kernel_width) : 1;
  std::string reason = band.reason;
  if (scale > kNoticed) reason += fmt::format("; {:.1f} times, as its kernels are less certain than theirs", scale);
  sources.added("measured steps", {band.range.lower * scale, band.range.upper * scale}, reason);
}

}  // namespace

std::optional<BandedStep> banded_step(const Job& job, const GraphRun& run, const OpGraph& graph) {
  if (run.stopped || run.result.deadlock || run.result.end <= TimePoint{}) return std::nullopt;
  return BandedStep{step_shares(graph, run.result, critical_path(graph, run.result)), step_errors(job)};
}

StepTimeBand step_time_band(const BandedStep& step) {
  Weights weights;
  add(weights, step, 1);
  StepTimeBand band;
  Sources sources(band.sources);
  if (step.errors.held_out) {
    add_held_out(step.errors, weights, sources);
  } else {
    band.sources = kernel_sources(step.errors, weights);
    add_stack(step.errors, weights, sources);
  }
  sources.independent("release", both_ways(step.errors.release), step.errors.release_reason);
  add_stragglers(step.errors, weights, sources);
  const TimeRange range = combined(band.sources);
  const double step_s = seconds(step.shares.step);
  band.lower_s = step_s * std::max(0.0, 1 + range.lower);
  band.upper_s = step_s * (1 + range.upper);
  return band;
}

DifferenceBand difference_band(const BandedStep& base, const BandedStep& other) {
  const double ratio = seconds(other.shares.step) / seconds(base.shares.step);
  const Shared shared = shared_by(base.errors, other.errors);
  DifferenceBand band{.difference = ratio - 1, .shared = shared_text(shared)};
  // d(other/base) = ratio (d other / other - d base / base): shares of the steps that are alike cancel, whatever the lengths.
  Weights of_base, of_other, both;
  add(of_base, base, -ratio);
  add(of_other, other, ratio);
  add(both, base, -ratio);
  add(both, other, ratio);
  const StepErrors errors_of_both = larger_of(base.errors, other.errors);
  Sources common(band.sources), first(band.sources, " of the first"), second(band.sources, " of the other");
  const auto add_each = [&](bool is_shared, const auto& add_sources) {
    if (is_shared) {
      add_sources(errors_of_both, both, common);
    } else {
      add_sources(base.errors, of_base, first);
      add_sources(other.errors, of_other, second);
    }
  };
  add_each(shared.products, add_products);
  add_each(shared.kernels, add_kernels);
  add_each(shared.links, add_links);
  add_each(shared.stack, add_stack);
  add_each(shared.stack, add_stragglers);
  band.range = combined(band.sources);
  return band;
}

}  // namespace stepsim
