#include "tools/backend_validation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/check.h"
#include "sim/simulate.h"
#include "tools/kernel_times.h"
#include "tools/step_program.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

constexpr std::int64_t kCalibrationLayers = 2;
constexpr double kDifferentTimes = 0.05;  // placements closer than this are not ordered
constexpr double kExposedShare = 0.02;    // below this share of a step, exposed time is noise

struct ExecutableStep {
  BuiltStep built;
  KernelProgram program;
};

ExecutableStep executable(const BackendModel& model, const PlacementPolicy& policy, const BackendOptions& options) {
  const StepRequest request = backend_request(model, policy, options.recipe);
  ExecutableStep step{build_step(request), {}};
  step.program = step_program(request, step.built.graph, {.seed = options.seed, .fills_values = options.fills_values});
  return step;
}

Bytes largest_copy(const OpGraph& graph) {
  Bytes largest{};
  for (const OpWork& work : graph.works()) {
    if (const auto* copy = std::get_if<Copy>(&work)) largest = std::max(largest, copy->bytes);
  }
  return largest;
}

// What kernels and copies of a model take: of the same layers, fewer of them, all kept; copies where all is offloaded, one at a time. A
// machine changes its speed within seconds (14 % in a quarter of an hour: kernels.md 5), so a short step beside each that is to be
// predicted says how fast it is just then.
class Calibration {
 public:
  Calibration(KernelBackend& backend, const BackendModel& model, const BackendOptions& options) : backend_(backend), options_(options) {
    BackendModel shallow = model;
    shallow.model.layers = std::min(model.model.layers, kCalibrationLayers);
    kept_ = executable(shallow, backend_placement("none"), options);
    offloaded_ = executable(model, backend_placement("offload"), options);
  }

  void measure() {
    const MeasureOptions beside{.repeats = options_.calibration_repeats, .copy_beside = largest_copy(offloaded_.built.graph)};
    keep_faster(kept_.built.graph, false, of_kept_, backend_.measure(kept_.built.graph, kept_.program, beside));
    const MeasureOptions alone{.repeats = options_.calibration_repeats};
    keep_faster(offloaded_.built.graph, true, of_offloaded_, backend_.measure(offloaded_.built.graph, offloaded_.program, alone));
  }

  // The sum of all kernels of the short step, now.
  Duration level() { return total(kept_.built.graph, false, backend_.measure(kept_.built.graph, kept_.program, {.repeats = 2})); }
  Duration calibrated_level() const { return total(kept_.built.graph, false, of_kept_); }

  KernelTimes times() const {
    KernelTimes times;
    times.add(kept_.built.graph, kept_.program, of_kept_, false);
    times.add(offloaded_.built.graph, offloaded_.program, of_offloaded_, true);
    return times;
  }

 private:
  // Of all copies, or of all else.
  static Duration total(const OpGraph& graph, bool copies, const MeasuredOps& ops) {
    Duration sum{};
    for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
      if (std::holds_alternative<Copy>(graph.work(OpId{op})) == copies) sum += ops.alone[at(op)];
    }
    return sum;
  }
  static void keep_faster(const OpGraph& graph, bool copies, MeasuredOps& best, MeasuredOps round) {
    const Duration handoff = best.alone.empty() ? round.handoff : std::min(best.handoff, round.handoff);
    if (best.alone.empty() || total(graph, copies, round) < total(graph, copies, best)) best = std::move(round);
    best.handoff = handoff;
  }

  KernelBackend& backend_;
  const BackendOptions& options_;
  ExecutableStep kept_, offloaded_;
  MeasuredOps of_kept_, of_offloaded_;
};

Duration exposed_copy(const OpGraph& graph, const StepResult& result, const PhaseMeaning& phases) {
  Duration sum{};
  for (const Duration part : time_partition(graph, result, phases).exposed_copy) sum += part;
  return sum;
}

Bytes peak(const OpGraph& graph, const StepResult& result, MemorySpace space) {
  return memory_peak(graph, result, DeviceId{0}, space).bytes;
}

// `slower`: than when it was calibrated the machine was then.
void simulate_case(BackendCase& each, const KernelTimes& times, const KernelProgram& program, double slower, LedgerRule ledger) {
  const MeasuredCosts costs = times.costs(each.graph, program, slower);
  each.simulated = simulate(costs.graph, costs.machine, costs.costs, {.device = ledger, .host = LedgerRule::kDeviceOrder});
  each.simulated_peak = peak(costs.graph, each.simulated, MemorySpace::kDevice);
  each.simulated_host_peak = peak(costs.graph, each.simulated, MemorySpace::kHost);
  each.simulated_exposed = exposed_copy(each.graph, each.simulated, each.phases);
}

// Steps of all placements in turn, so that a machine that changes its speed changes it for all; of each the best.
void measure_cases(KernelBackend& backend, std::span<BackendCase> cases, std::span<const ExecutableStep> steps, Calibration& calibration,
                   int repeats, std::vector<Duration>& levels, const std::function<void()>& step_done) {
  levels.assign(cases.size(), {});
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first one maps memory
    if (repeat >= 0) calibration.measure();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Duration before = repeat >= 0 ? calibration.level() : Duration{};
      Execution run = std::move(backend.execute(cases[i].graph, std::span(&steps[i].program, 1), {}).front());
      step_done();
      if (repeat < 0) {
        cases[i].measured_peak = run.device_peak;
        cases[i].measured_host_peak = run.host_peak;
      }
      STEPSIM_CHECK(run.result.memory.empty() || run.device_peak == peak(cases[i].graph, run.result, MemorySpace::kDevice));
      if (repeat >= 0) cases[i].slowest = std::max(cases[i].slowest, run.result.end);
      if (repeat < 0 || (repeat > 0 && run.result.end >= cases[i].measured.end)) continue;
      levels[i] = (before + calibration.level()) / 2;
      cases[i].measured = std::move(run.result);
      cases[i].measured_peak = run.device_peak;
      cases[i].measured_host_peak = run.host_peak;
    }
  }
}

std::vector<std::vector<std::byte>> contents(const Execution& run) {
  std::vector<std::vector<std::byte>> found;
  for (const Observation& each : run.observed) found.push_back(each.contents);
  return found;
}

void compare_gradients(KernelBackend& backend, std::span<BackendCase> cases, std::span<const ExecutableStep> steps) {
  std::vector<std::vector<std::byte>> first;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const ExecuteOptions options{.poison = true, .observed = compared_storages(cases[i].graph)};
    const Execution run = std::move(backend.execute(cases[i].graph, std::span(&steps[i].program, 1), options).front());
    const auto found = contents(run);
    if (i == 0) first = found;
    const bool whole = !found.empty() && std::none_of(found.begin(), found.end(), [](const auto& each) { return each.empty(); });
    cases[i].gradients_equal = whole && std::isfinite(run.gradient_norm) && found == first;
  }
}

std::vector<BackendCase> validate_model(KernelBackend& backend, const BackendModel& model, std::span<const BackendPlacement> placements,
                                        const BackendOptions& options, const std::function<void(double, const std::string&)>& progress) {
  Calibration calibration(backend, model, options);
  std::vector<BackendCase> cases;
  std::vector<ExecutableStep> steps;
  for (const BackendPlacement& placement : placements) {
    steps.push_back(executable(model, placement.policy, options));
    cases.push_back({.model = model.name,
                     .placement = std::string(placement.name),
                     .graph = steps.back().built.graph,
                     .phases = steps.back().built.phases});
  }
  const double all = static_cast<double>(cases.size()) * (options.repeats + 1);
  double done = 0;
  std::vector<Duration> levels;  // of the short step, beside the best of each case
  measure_cases(backend, cases, steps, calibration, options.repeats, levels,
                [&] { progress(0.9 * ++done / all, "running " + model.name); });
  const KernelTimes times = calibration.times();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].slower = as_double(levels[i].count()) / as_double(calibration.calibrated_level().count());
    simulate_case(cases[i], times, steps[i].program, cases[i].slower, backend.device_ledger());
    cases[i].peak_tolerance = backend.peak_tolerance();
  }
  compare_gradients(backend, cases, steps);
  for (BackendCase& each : cases) {
    each.measured_exposed = exposed_copy(each.graph, each.measured, each.phases);
    each.difference = timeline_difference(each.graph, each.simulated, each.measured);
  }
  return cases;
}

double end_in_seconds(const StepResult& result) { return seconds(result.end); }

std::optional<double> order_agreement(std::span<const BackendCase> cases) {
  double pairs = 0, agreeing = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t j = i + 1; j < cases.size(); ++j) {
      if (cases[i].model != cases[j].model) continue;
      const double measured = end_in_seconds(cases[i].measured) / end_in_seconds(cases[j].measured);
      if (std::max(measured, 1 / measured) < 1 + kDifferentTimes) continue;
      ++pairs;
      agreeing += (measured > 1) == (cases[i].simulated.end > cases[j].simulated.end) ? 1 : 0;
    }
  }
  return pairs > 0 ? std::optional(agreeing / pairs) : std::nullopt;
}

bool nearly_equal(Bytes a, Bytes b, double tolerance) {
  return std::abs(as_double(a.value) - as_double(b.value)) <= tolerance * as_double(std::max(a.value, b.value));
}

}  // namespace

bool BackendCase::peaks_equal() const {
  return nearly_equal(measured_peak, simulated_peak, peak_tolerance) && measured_host_peak == simulated_host_peak;
}

std::vector<StorageId> compared_storages(const OpGraph& graph) {
  std::vector<StorageId> found;
  for (std::int32_t id = 0; at(id) < graph.storages().size(); ++id) {
    const Storage& storage = graph.storages()[at(id)];
    if (graph.label(storage.role) == "gradients" || graph.label(storage.name) == "loss" || graph.label(storage.role) == "weights") {
      found.push_back(StorageId{id});
    }
  }
  return found;
}

std::vector<BackendCase> validate_backend(KernelBackend& backend, std::span<const BackendModel> models,
                                          std::span<const BackendPlacement> placements, const BackendOptions& options,
                                          const BackendProgress& progress) {
  std::vector<BackendCase> cases;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto show = [&](double part, const std::string& what) {
      progress((static_cast<double>(i) + part) / static_cast<double>(models.size()), what);
    };
    for (BackendCase& each : validate_model(backend, models[i], placements, options, show)) cases.push_back(std::move(each));
  }
  return cases;
}

BackendSummary summary_of(std::span<const BackendCase> cases) {
  BackendSummary summary;
  std::vector<double> errors;
  for (const BackendCase& each : cases) {
    errors.push_back(std::abs(each.error()));
    summary.peak_mismatches += each.peaks_equal() ? 0 : 1;
    summary.gradient_mismatches += each.gradients_equal ? 0 : 1;
    summary.spread = std::max(summary.spread, as_double(each.slowest.count()) / as_double(each.measured.end.count()) - 1);
    if (as_double(each.measured_exposed.count()) < kExposedShare * as_double(each.measured.end.count())) continue;
    const double error = as_double(each.simulated_exposed.count()) / as_double(each.measured_exposed.count()) - 1;
    summary.copy_error = std::max(summary.copy_error, std::abs(error));
  }
  std::sort(errors.begin(), errors.end());
  if (!errors.empty()) {
    summary.median_error = errors[(errors.size() - 1) / 2];
    summary.max_error = errors.back();
  }
  summary.order_agreement = order_agreement(cases);
  return summary;
}

}  // namespace stepsim
