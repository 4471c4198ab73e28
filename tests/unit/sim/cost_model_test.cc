#include "sim/cost_model.h"

#include <gtest/gtest.h>

#include "sim/machine.h"

namespace stepsim {
namespace {

class OneSecondModel : public CostModel {
 public:
  Cost cost(const OpWork&, DeviceId, TransferSide) const override { return {.alone = Duration(1'000'000'000'000)}; }
};

TEST(CostModel, RowsAreGivenBack) {
  const GivenCostModel model({{.fixed = Duration(3),
                               .alone = Duration(5),
                               .issue = Duration(7),
                               .loads = {{.resource = ResourceId{0}, .fraction_2e30 = kFullLoad}}}});
  const Cost cost = model.cost(Given{.index = 0}, DeviceId{0});
  EXPECT_EQ(cost.fixed, Duration(3));
  EXPECT_EQ(cost.alone, Duration(5));
  EXPECT_EQ(cost.issue, Duration(7));
  ASSERT_EQ(cost.loads.size(), 1u);
  EXPECT_EQ(cost.loads[0].fraction_2e30, kFullLoad);
}

TEST(CostModel, OtherWorkGoesToTheOtherModel) {
  const OneSecondModel other;
  const GivenCostModel model({}, &other);
  EXPECT_EQ(model.cost(Gemm{}, DeviceId{0}).alone, Duration(1'000'000'000'000));
  EXPECT_EQ(model.cost(Marker{}, DeviceId{0}).alone, Duration(0));  // a marker costs nothing whoever is asked
  EXPECT_THROW(GivenCostModel({}).cost(Gemm{}, DeviceId{0}), std::logic_error);
  EXPECT_THROW(model.cost(Given{.index = 0}, DeviceId{0}), std::logic_error);
}

TEST(CostModel, LoadFractionsRoundDownAndStayInRange) {
  EXPECT_EQ(load_fraction(1), kFullLoad);
  EXPECT_EQ(load_fraction(1.5), kFullLoad);
  EXPECT_EQ(load_fraction(0.5), kFullLoad / 2);
  EXPECT_EQ(load_fraction(1.0 / 3), 357913941u);  // 2^30 / 3 = 357913941.33
  EXPECT_EQ(load_fraction(1e-12), 1u);            // 0.001 units: a load is never lost
  EXPECT_EQ(load_fraction(0), 0u);
}

TEST(Machine, PlainMachineHasOneHostADevice) {
  const Machine machine = plain_machine(2);
  EXPECT_EQ(machine.host_of_device, (std::vector<std::int32_t>{0, 1}));
  ASSERT_EQ(machine.device_capacity.size(), 2u);
  EXPECT_FALSE(machine.device_capacity[1].has_value());
  EXPECT_EQ(machine.host_capacity.size(), 2u);
}

}  // namespace
}  // namespace stepsim
