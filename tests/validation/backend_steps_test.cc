// Steps of real kernels against their simulation, small ones. Gates are wide: the machine is shared; tests/validation/README.md has what
// `stepsim validate --backend cpu` measures on larger steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "hardware/backends/cpu/cpu_backend.h"
#include "tools/backend_validation.h"

namespace stepsim {

namespace {

constexpr double kWidestMedian = 0.25;  // kernels.md section 5: not tighter than that in continuous integration
constexpr double kBusy = 1.4;           // the machine changed its speed by so much while it was measured: nothing can be said

BackendModel shrunk(BackendModel model) {
  model.model.layers = 3;
  model.model.vocab = 512;
  model.sequence = 128;
  return model;
}

std::vector<BackendCase> small_cases() {
  CpuBackend backend;
  std::vector<BackendModel> models = processor_models();
  models.resize(2);
  for (BackendModel& model : models) model = shrunk(model);
  return validate_backend(backend, models, backend_placements(), {.repeats = 2, .calibration_repeats = 2},
                          [](double, const std::string&) {});
}

}  // namespace

TEST(BackendSteps, SimulatedStepsAreMeasuredOnes) {
  const std::vector<BackendCase> cases = small_cases();
  ASSERT_EQ(cases.size(), 14u);
  double slowest = 0, fastest = 1e9;
  for (const BackendCase& each : cases) {
    std::printf("%-12s %-22s measured %7.2f ms, simulated %7.2f ms (%+5.1f %%), exposed copies %5.2f and %5.2f ms\n", each.model.c_str(),
                each.placement.c_str(), 1e3 * seconds(each.measured.end), 1e3 * seconds(each.simulated.end), 100 * each.error(),
                1e3 * seconds(each.measured_exposed), 1e3 * seconds(each.simulated_exposed));
    EXPECT_TRUE(each.gradients_equal) << each.model << ", " << each.placement;
    EXPECT_TRUE(each.peaks_equal()) << each.model << ", " << each.placement << ": " << each.measured_peak.value << " and "
                                    << each.simulated_peak.value << " bytes, host " << each.measured_host_peak.value << " and "
                                    << each.simulated_host_peak.value;
    slowest = std::max(slowest, each.slower);
    fastest = std::min(fastest, each.slower);
  }
  const BackendSummary summary = summary_of(cases);
  std::printf("median error %.1f %%, largest %.1f %%; speed of the machine between %.2f and %.2f of the calibration's\n",
              100 * summary.median_error, 100 * summary.max_error, 1 / slowest, 1 / fastest);
  if (slowest > kBusy * fastest) GTEST_SKIP() << "the machine is busy: its speed changed by " << slowest / fastest;
  EXPECT_LE(summary.median_error, kWidestMedian);
}

}  // namespace stepsim
