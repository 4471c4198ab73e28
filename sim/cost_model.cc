#include "sim/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/check.h"

namespace stepsim {

GivenCostModel::GivenCostModel(std::vector<Row> rows, const CostModel* otherwise) : rows_(std::move(rows)), otherwise_(otherwise) {
  for (const Row& row : rows_) {
    STEPSIM_CHECK(row.fixed.count() >= 0);
    STEPSIM_CHECK(row.alone.count() >= 0);
    STEPSIM_CHECK(row.issue.count() >= 0);
  }
}

Cost GivenCostModel::cost(const OpWork& work, DeviceId device, TransferSide side) const {
  if (std::holds_alternative<Marker>(work)) return {};
  if (const Given* given = std::get_if<Given>(&work)) {
    STEPSIM_CHECK(given->index >= 0);
    const auto index = static_cast<std::size_t>(given->index);
    STEPSIM_CHECK(index < rows_.size());
    const Row& row = rows_[index];
    return {.fixed = row.fixed, .alone = row.alone, .issue = row.issue, .loads = row.loads};
  }
  STEPSIM_CHECK(otherwise_ != nullptr);
  return otherwise_->cost(work, device, side);
}

std::uint32_t load_fraction(double u) {
  STEPSIM_CHECK(!std::isnan(u));
  if (u <= 0) return 0;
  if (u >= 1) return kFullLoad;
  return std::max(std::uint32_t{1}, static_cast<std::uint32_t>(u * static_cast<double>(kFullLoad)));
}

}  // namespace stepsim
