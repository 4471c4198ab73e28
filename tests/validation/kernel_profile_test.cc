// A profile of half of the measured products against the other half: nearer to it than the model that was fitted on that half?
#include <gtest/gtest.h>

#include "hardware/fit/measured_gemm.h"
#include "hardware/profile_cost_model.h"
#include "hardware/roofline_cost_model.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

double error(const CostModel& model, const MeasuredGemm& row) {
  const Cost cost = model.cost(row.work, DeviceId{0});
  return seconds(cost.fixed + cost.alone) / row.measured_s - 1;
}

struct Errors {
  ErrorSummary model, profile;
  std::size_t interpolated = 0;
};

// The profile has the rows that are not held out.
Errors errors_of(const RooflineCostModel& model, const std::vector<MeasuredGemm>& rows, bool training_sizes) {
  KernelProfile profile;
  for (const MeasuredGemm& row : rows) {
    if (!row.held_out) profile.kernels.push_back({row.work, duration_from_seconds(row.measured_s)});
  }
  const ProfileCostModel profiled(model, profile);
  Errors errors;
  std::vector<double> of_model, of_profile;
  for (const MeasuredGemm& row : rows) {
    if (!row.held_out || (training_sizes && !row.training_size())) continue;
    of_model.push_back(error(model, row));
    of_profile.push_back(error(profiled, row));
    errors.interpolated += profiled.origin(row.work) == CostOrigin::kInterpolated;
  }
  errors.model = summary(of_model);
  errors.profile = summary(of_profile);
  return errors;
}

TEST(KernelProfile, HalfOfTheProductsAgainstTheOther) {
  bool heading = false;
  for (const MeasuredGpu& measured : gemm_gpus()) {
    const auto table = measured_table(std::string("kernels/gemm_aic_") + measured.name + ".csv");
    if (!table) GTEST_SKIP() << "no measured data";
    if (!heading) print_heading("kernel-profile", "Products that a profile of the other half lacks: the tile model, the profile over it");
    heading = true;
    const GpuSpec gpu = load_gpu(measured.machine);
    const ClusterSpec cluster = usual_cluster(gpu);
    const RooflineCostModel model(gpu, cluster, make_machine(gpu, cluster, 1));
    for (const bool by_pair : {true, false}) {
      std::vector<MeasuredGemm> rows = measured_gemms(*table);  // every second pair (n, k) held out
      for (std::size_t i = 0; !by_pair && i < rows.size(); ++i) rows[i].held_out = i % 2 == 1;
      for (const bool training_sizes : {true, false}) {
        const Errors errors = errors_of(model, rows, training_sizes);
        const std::string name = std::string(measured.name) + (by_pair ? " pairs" : " rows") + (training_sizes ? " >= 1024" : "");
        if (by_pair) print_summary(name + ", model", errors.model);
        if (by_pair) print_summary(name + ", profile", errors.profile);
        EXPECT_GT(errors.interpolated, errors.profile.rows * 99 / 100) << name;
        EXPECT_LT(errors.profile.mean, errors.model.mean) << name;
      }
    }
  }
}

// Rows that are in the profile are met to the picosecond.
TEST(KernelProfile, MeasuredProductsAreMet) {
  const auto table = measured_table("kernels/gemm_aic_H100-SXM.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("h100");
  const ClusterSpec cluster = usual_cluster(gpu);
  const RooflineCostModel model(gpu, cluster, make_machine(gpu, cluster, 1));
  KernelProfile profile;
  for (const MeasuredGemm& row : measured_gemms(*table)) profile.kernels.push_back({row.work, duration_from_seconds(row.measured_s)});
  const ProfileCostModel profiled(model, profile);
  ASSERT_GT(profile.kernels.size(), 10000u);
  for (const MeasuredKernel& kernel : profile.kernels) {
    const Cost cost = profiled.cost(kernel.work, DeviceId{0});
    ASSERT_EQ(cost.fixed + cost.alone, kernel.time);
  }
}

}  // namespace
}  // namespace stepsim
