#include "hardware/profile_cost_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "hardware/device_cost.h"
#include "hardware/work_memo.h"
#include "sim/check.h"

namespace stepsim {

namespace {

constexpr std::size_t kMostSizes = 5;
using Sizes = std::array<std::int64_t, kMostSizes>;

// What a work is apart from its sizes, and these; unused ones are 1 throughout.
struct Shape {
  OpWork kind;
  Sizes sizes;
};

struct ShapeOf {
  Shape operator()(const Marker& work) const { return {work, {1, 1, 1, 1, 1}}; }
  Shape operator()(const Given& work) const { return {work, {1, 1, 1, 1, 1}}; }
  Shape operator()(Gemm work) const {
    const Sizes sizes = {work.m, work.n, work.k, work.batch, 1};
    work.m = work.n = work.k = work.batch = 0;
    return {work, sizes};
  }
  Shape operator()(Attention work) const {  // head_dim stays: kernels are compiled for one
    const Sizes sizes = {work.batch, work.heads, work.kv_heads, work.queries, work.keys};
    work.batch = work.heads = work.kv_heads = work.queries = work.keys = 0;
    return {work, sizes};
  }
  Shape operator()(MemoryBound work) const {
    const Sizes sizes = {work.read.value, work.written.value, work.launches, 1, 1};
    work.read = work.written = Bytes();
    work.launches = 1;
    return {work, sizes};
  }
  Shape operator()(Collective work) const {
    const Sizes sizes = {work.message.value, 1, 1, 1, 1};
    work.message = Bytes();
    work.routing = {};  // profiles do not say it
    return {work, sizes};
  }
  Shape operator()(Copy work) const {
    const Sizes sizes = {work.bytes.value, 1, 1, 1, 1};
    work.bytes = Bytes();
    return {work, sizes};
  }
};

// The kind whose ratios stand for it where it was not measured itself.
OpWork plain_kind(const OpWork& kind) {
  const auto* gemm = std::get_if<Gemm>(&kind);
  return gemm == nullptr ? kind : OpWork(Gemm{.batch = 0, .dtype = gemm->dtype, .transpose_a = true});
}

}  // namespace

struct ProfiledRow {
  Sizes sizes;
  const MeasuredKernel* kernel;
  double ratio = 0;  // measured over modelled time; 0: not asked for yet
};

namespace {

// Where a row lies from a work: in which sizes it is larger, smaller, equal, and how far.
struct Direction {
  std::size_t side = 0;  // base 3
  double distance = 0;   // squared
};

std::optional<Direction> direction(const Sizes& from, const Sizes& to) {
  Direction result;
  for (std::size_t i = 0; i < kMostSizes; ++i) {
    const std::int64_t larger = std::max(from[i], to[i]), smaller = std::min(from[i], to[i]);
    result.side *= 3;
    if (larger == smaller) continue;
    if (smaller <= 0 || larger - smaller > smaller) return std::nullopt;  // beyond a factor of 2
    const double apart = static_cast<double>(larger) / static_cast<double>(smaller) - 1;
    result.distance += apart * apart;
    result.side += to[i] > from[i] ? 1 : 2;
  }
  return result;
}

constexpr std::size_t kDirections = 243;  // 3 to the power of kMostSizes

// Added to squared distances: a row that is next to the work (1025 beside 1024) may fill its tiles otherwise, and counts as one a tenth
// larger. Chosen on gemm_aic_*.csv of A100, H100 and B200: 0.001 to 0.1 differ by 0.3 points there, without it 0.7 worse.
constexpr double kNextTo = 0.01;

// Nearest row of each direction; null where there is none.
struct Neighbours {
  std::array<ProfiledRow*, kDirections> rows{};
  std::array<double, kDirections> distances{};
};

Neighbours neighbours(std::vector<ProfiledRow>& rows, const Sizes& sizes) {
  Neighbours nearest;
  for (ProfiledRow& row : rows) {
    const std::optional<Direction> found = direction(sizes, row.sizes);
    if (!found) continue;
    ProfiledRow*& known = nearest.rows[found->side];
    if (known != nullptr && nearest.distances[found->side] <= found->distance) continue;
    known = &row;
    nearest.distances[found->side] = found->distance;
  }
  return nearest;
}

}  // namespace

struct ProfileCostModel::Tables {
  struct Estimate {
    CostOrigin origin = CostOrigin::kModelled;
    Duration measured{};
    double ratio = 1;
  };

  Tables(const CostModel& otherwise, std::unique_ptr<const CostModel> of_kernels) : model(otherwise), alone(std::move(of_kernels)) {}

  const CostModel& model;
  std::unique_ptr<const CostModel> alone;
  std::vector<MeasuredKernel> kernels;
  std::map<OpWork, std::vector<ProfiledRow>> rows;  // by kind; in the order of their sizes
  WorkMemo<Estimate> estimates;                     // of any device and side: a transfer takes as long on either
  WorkMemo<Cost> costs;
  std::mutex inserting;

  Duration alone_time(const OpWork& work) const {
    const Cost cost = (alone != nullptr ? *alone : model).cost(work, DeviceId{0});
    return cost.fixed + cost.alone;
  }
  double ratio(ProfiledRow& row) const {
    if (row.ratio > 0) return row.ratio;
    const double modelled_s = seconds(alone_time(row.kernel->work));
    row.ratio = modelled_s > 0 ? seconds(row.kernel->time) / modelled_s : 1;
    return row.ratio;
  }
  Duration time(const OpWork& work, const Estimate& estimate, Duration modelled) const;
  Estimate interpolated(std::vector<ProfiledRow>& of_kind, const Sizes& sizes);
  Estimate estimated(const OpWork& work);
  const Estimate& estimate(const OpWork& work);
};

ProfileCostModel::Tables::Estimate ProfileCostModel::Tables::interpolated(std::vector<ProfiledRow>& of_kind, const Sizes& sizes) {
  const Neighbours nearest = neighbours(of_kind, sizes);
  if (nearest.rows[0] != nullptr) return {CostOrigin::kInterpolated, {}, ratio(*nearest.rows[0])};  // of another kind, but the same sizes
  double sum = 0, weights = 0;
  for (std::size_t side = 0; side < kDirections; ++side) {
    if (nearest.rows[side] == nullptr) continue;
    const double weight = 1 / (nearest.distances[side] + kNextTo);
    sum += weight * ratio(*nearest.rows[side]);
    weights += weight;
  }
  if (!(weights > 0)) return {};
  return {CostOrigin::kInterpolated, {}, sum / weights};
}

ProfileCostModel::Tables::Estimate ProfileCostModel::Tables::estimated(const OpWork& work) {
  const Shape shape = std::visit(ShapeOf{}, work);
  auto found = rows.find(shape.kind);
  if (found == rows.end()) {
    found = rows.find(plain_kind(shape.kind));
    return found == rows.end() ? Estimate{} : interpolated(found->second, shape.sizes);
  }
  std::vector<ProfiledRow>& of_kind = found->second;
  const auto row = std::lower_bound(of_kind.begin(), of_kind.end(), shape.sizes,
                                    [](const ProfiledRow& each, const Sizes& sizes) { return each.sizes < sizes; });
  const bool exact = row != of_kind.end() && row->sizes == shape.sizes;
  return exact ? Estimate{CostOrigin::kMeasured, row->kernel->time, 1} : interpolated(of_kind, shape.sizes);
}

const ProfileCostModel::Tables::Estimate& ProfileCostModel::Tables::estimate(const OpWork& work) {
  const Estimate* const known = estimates.find(work, DeviceId{}, TransferSide::kBoth);
  return known != nullptr ? *known : estimates.insert(work, DeviceId{}, TransferSide::kBoth, estimated(work));
}

Duration ProfileCostModel::Tables::time(const OpWork& work, const Estimate& estimate, Duration modelled) const {
  if (estimate.origin == CostOrigin::kInterpolated) return op_duration(seconds(modelled) * estimate.ratio);
  const Duration in_benchmark = alone_time(work);
  if (in_benchmark == modelled || in_benchmark.count() <= 0) return estimate.measured;
  return op_duration(seconds(estimate.measured) * (seconds(modelled) / seconds(in_benchmark)));
}

ProfileCostModel::ProfileCostModel(const CostModel& model, const KernelProfile& profile, std::unique_ptr<const CostModel> alone)
    : tables_(std::make_unique<Tables>(model, std::move(alone))) {
  tables_->kernels = profile.kernels;
  for (const MeasuredKernel& kernel : tables_->kernels) {
    STEPSIM_CHECK(kernel.time.count() > 0);
    const Shape shape = std::visit(ShapeOf{}, kernel.work);
    tables_->rows[shape.kind].push_back({shape.sizes, &kernel});
  }
  for (auto& [kind, rows] : tables_->rows) {
    std::stable_sort(rows.begin(), rows.end(), [](const ProfiledRow& a, const ProfiledRow& b) { return a.sizes < b.sizes; });
  }
}

ProfileCostModel::~ProfileCostModel() = default;

Cost ProfileCostModel::cost(const OpWork& work, DeviceId device, TransferSide side) const {
  const Cost* const known = tables_->costs.find(work, device, side);
  return known != nullptr ? *known : first_cost(work, device, side);
}

Cost ProfileCostModel::first_cost(const OpWork& work, DeviceId device, TransferSide side) const {
  const std::lock_guard lock(tables_->inserting);
  const Cost* const known = tables_->costs.find(work, device, side);  // another thread may have been faster
  if (known != nullptr) return *known;
  Cost cost = tables_->model.cost(work, device, side);
  const Tables::Estimate& estimate = tables_->estimate(work);
  if (estimate.origin != CostOrigin::kModelled) {
    const double modelled_s = seconds(cost.fixed + cost.alone);
    const Duration time = tables_->time(work, estimate, cost.fixed + cost.alone);
    // The fixed part keeps its share of the time.
    const double fixed_share = modelled_s > 0 ? seconds(cost.fixed) / modelled_s : 0;
    cost.fixed = std::min(time, op_duration(seconds(time) * fixed_share));
    cost.alone = time - cost.fixed;
  }
  return tables_->costs.insert(work, device, side, cost);
}

CostOrigin ProfileCostModel::origin(const OpWork& work) const {
  const Tables::Estimate* const known = tables_->estimates.find(work, DeviceId{}, TransferSide::kBoth);
  if (known != nullptr) return known->origin;
  const std::lock_guard lock(tables_->inserting);
  return tables_->estimate(work).origin;
}

}  // namespace stepsim
