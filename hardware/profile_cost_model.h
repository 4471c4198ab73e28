// Costs from measured kernels where there are some, from another model elsewhere.
#pragma once

#include <cstdint>
#include <memory>

#include "hardware/kernel_profile.h"
#include "sim/cost_model.h"

namespace stepsim {

enum class CostOrigin : std::uint8_t { kMeasured, kInterpolated, kModelled };

// A work that was measured takes that long. One between measured works of its kind (the same dtype, layout, mask, kernel, ranks, ...) takes
// the model's time, times the ratio of measured to modelled times of its neighbours. A neighbour has every size within a factor of 2; of
// those that are larger and smaller in the same sizes only the nearest counts, by 1 / (d^2 + 0.01), d^2 the sum of (larger size / smaller -
// 1)^2. A product of a layout, or with an accumulation, of which nothing was measured takes the ratios of the plain TN products. Everything
// else is the model's, also all loads.
class ProfileCostModel : public CostModel {
 public:
  // The model must outlive this one. `alone`: what it says of kernels that are measured alone, where a software stack makes them slower in
  // the model: measured times then take as much longer as the model's do. Null: the model itself.
  ProfileCostModel(const CostModel& model, const KernelProfile& profile, std::unique_ptr<const CostModel> alone = nullptr);
  ~ProfileCostModel() override;
  // Remembered as RooflineCostModel's; any number of threads may ask.
  Cost cost(const OpWork& work, DeviceId device, TransferSide side = TransferSide::kBoth) const override;
  CostOrigin origin(const OpWork& work) const;

 private:
  struct Tables;
  Cost first_cost(const OpWork& work, DeviceId device, TransferSide side) const;
  std::unique_ptr<Tables> tables_;
};

}  // namespace stepsim
