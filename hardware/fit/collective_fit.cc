#include "hardware/fit/collective_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "hardware/collective_cost.h"
#include "hardware/fit/curve_fit.h"
#include "hardware/fit/nelder_mead.h"

namespace stepsim {

double simulated_s(const GpuSpec& gpu, const ClusterSpec& cluster, const MeasuredCollective& row) {
  const DeviceCost cost = collective_cost(gpu, cluster, row.work);
  return seconds(cost.fixed + cost.alone);
}

void use(const FittedCollectives& fit, KernelFit& kernels) {
  if (fit.all_reduce) kernels.all_reduce = *fit.all_reduce;
  if (fit.gather) kernels.gather = *fit.gather;
  if (fit.all_to_all) kernels.all_to_all = *fit.all_to_all;
}

namespace {

// Operations that share constants.
struct Family {
  const char* name;
  std::optional<CollectiveFit> FittedCollectives::*fit;
  CollectiveFit KernelFit::*model;
};

constexpr Family kFamilies[] = {{"all_reduce", &FittedCollectives::all_reduce, &KernelFit::all_reduce},
                                {"gather", &FittedCollectives::gather, &KernelFit::gather},
                                {"all_to_all", &FittedCollectives::all_to_all, &KernelFit::all_to_all}};

bool belongs(CollectiveKind kind, const Family& family) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return family.model == &KernelFit::all_reduce;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
      return family.model == &KernelFit::gather;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendReceive:
      return family.model == &KernelFit::all_to_all;
    case CollectiveKind::kDispatch:
    case CollectiveKind::kCombine:
      return false;
  }
  return false;
}

constexpr std::int64_t kLeastBytes = 1 << 10, kLargeBytes = 1 << 20;
constexpr double kLargeWeight = 2;

// All measurements of one shape, however often it was measured: their median.
struct Shape {
  MeasuredCollective row;
  double weight = 1;
};

std::vector<Shape> shapes_of(const MeasuredCollectives& machine, const Family& family) {
  std::map<Collective, std::vector<double>> times;
  for (const MeasuredCollective& row : machine.rows) {
    const bool one_domain = row.work.ranks <= machine.cluster.nvlink_domain / std::max(1, row.work.stride);
    const bool counts = belongs(row.work.kind, family) && !row.held_out && row.work.message.value >= kLeastBytes && row.work.ranks > 1;
    if (counts && one_domain) times[row.work].push_back(row.measured_s);
  }
  std::vector<Shape> shapes;
  for (auto& [work, all] : times) {
    std::sort(all.begin(), all.end());
    shapes.push_back(
        {.row = {.work = work, .measured_s = all[all.size() / 2]}, .weight = work.message.value >= kLargeBytes ? kLargeWeight : 1});
  }
  return shapes;
}

// Free parameters, each of the order of 1. The terms of ranks stay below the latency that NCCL counts for a step of its ring over NVLink,
// 3.4 us and, of its protocol of little latency, 1.9 us (NVIDIA/nccl src/graph/tuning.cc hwLat), so that what was measured with 8 ranks
// says something of 72; small_group at most 1, so that more ranks never take less time.
constexpr double kMostPerRank = 3.4, kMostQuickPerRank = 1.9;
constexpr std::size_t kOwn = 5, kAll = 8;

Duration microseconds(double us) { return op_duration(std::round(us * 1e3) * 1e-9); }

CollectiveFit constants(const std::vector<double>& x) {
  return {.fixed = microseconds(std::exp(x[0])),
          .per_rank = microseconds(bounded(x[5], kMostPerRank)),
          .bus = round_to(bounded(x[1], 1), 1e-4),
          .small_group = round_to(bounded(x[6], 1), 1e-4),
          .pipeline = microseconds(not_negative(x[2])),
          .quick_fixed = microseconds(std::exp(x[3])),
          .quick_per_rank = microseconds(bounded(x[7], kMostQuickPerRank)),
          .quick_bus = round_to(bounded(x[4], 1), 1e-4)};
}

double clamped(double value, double least, double most) { return std::min(most, std::max(least, value)); }

std::vector<double> parameters(const CollectiveFit& fit) {
  const auto us = [](Duration duration) { return seconds(duration) * 1e6; };
  const bool quick = fit.quick_bus > 0;
  return {std::log(std::max(0.1, us(fit.fixed))),
          bounded_parameter(clamped(fit.bus, 0.01, 0.99), 1),
          not_negative_parameter(std::max(0.1, us(fit.pipeline))),
          std::log(quick ? std::max(0.1, us(fit.quick_fixed)) : 10),
          bounded_parameter(quick ? clamped(fit.quick_bus, 0.01, 0.99) : 0.2, 1),
          bounded_parameter(clamped(us(fit.per_rank), 0.02, 3.38), kMostPerRank),
          bounded_parameter(clamped(fit.small_group, 0.01, 0.99), 1),
          bounded_parameter(quick ? clamped(us(fit.quick_per_rank), 0.02, 1.88) : 1, kMostQuickPerRank)};
}

// Where a fit of enough rows begins, whatever the machine's file says: 5 us, 0.85 of the link, 3 us, 10 us, 0.25, 1 us a rank, 0.3, 1 us.
std::vector<double> ordinary() {
  return {std::log(5),
          bounded_parameter(0.85, 1),
          not_negative_parameter(3),
          std::log(10),
          bounded_parameter(0.25, 1),
          bounded_parameter(1, kMostPerRank),
          bounded_parameter(0.3, 1),
          bounded_parameter(1, kMostQuickPerRank)};
}

// A machine and its shapes of one family.
struct Target {
  GpuSpec gpu;
  ClusterSpec cluster;
  std::vector<Shape> shapes;
};

double loss(std::vector<Target>& targets, const Family& family, const CollectiveFit& fit) {
  double sum = 0, weights = 0;
  for (Target& target : targets) {
    target.gpu.fit.*family.model = fit;
    for (const Shape& shape : target.shapes) {
      sum += shape.weight * std::abs(std::log(simulated_s(target.gpu, target.cluster, shape.row) / shape.row.measured_s));
      weights += shape.weight;
    }
  }
  return sum / weights;
}

// The least of the simplexes that begin at `start` and at starts with more or less latency, each continued once from where it ends.
std::vector<double> least(const std::function<double(const std::vector<double>&)>& function, const std::vector<double>& start) {
  constexpr double kLatencies[] = {3, 20}, kPipelines[] = {1, 6};  // us
  std::vector<std::vector<double>> starts = {start};
  for (const double latency : kLatencies) {
    for (const double pipeline : kPipelines) {
      starts.push_back(start);
      starts.back()[0] = std::log(latency);
      starts.back()[2] = not_negative_parameter(pipeline);
    }
  }
  std::vector<double> best;
  for (const std::vector<double>& from : starts) {
    std::vector<double> x = simplex_minimum(function, from, 0.5, 600);
    x = simplex_minimum(function, x, 0.2, 400);
    if (best.empty() || function(x) < function(best)) best = x;
  }
  return best;
}

// Only latency and bandwidth: `start` with another x[0] and x[1].
std::vector<double> line(std::vector<Target>& targets, const Family& family, const std::vector<double>& start) {
  const auto with = [&](const std::vector<double>& x) {
    std::vector<double> all = start;
    all[0] = x[0];
    all[1] = x[1];
    return all;
  };
  const auto function = [&](const std::vector<double>& x) {
    CollectiveFit fit = constants(with(x));
    fit.quick_bus = 0;
    return loss(targets, family, fit);
  };
  return with(simplex_minimum(function, {start[0], start[1]}, 0.5, 200));
}

std::size_t rank_counts(const std::vector<Target>& targets) {
  std::set<std::int32_t> ranks;
  for (const Target& target : targets) {
    for (const Shape& shape : target.shapes) ranks.insert(shape.row.work.ranks);
  }
  return ranks.size();
}

// Constants that all targets share.
std::vector<double> generation_parameters(std::vector<Target>& targets, const Family& family) {
  return least([&](const std::vector<double>& x) { return loss(targets, family, constants(x)); }, ordinary());
}

// Terms of ranks of the machine's file; the rest begins there too where it is not found.
std::vector<double> of_machine(const Target& target, const CollectiveFit& base) {
  std::vector<double> x = parameters(base);
  const std::vector<double> start = ordinary();
  if (target.shapes.size() >= kLeastCollectiveCurveShapes) std::copy(start.begin(), start.begin() + kOwn, x.begin());
  return x;
}

std::optional<CollectiveFit> machine_fit(Target& target, const Family& family, const std::vector<double>& start, std::string& fewer) {
  if (target.shapes.size() < kLeastCollectiveShapes) return std::nullopt;
  std::vector<Target> one = {target};
  if (target.shapes.size() < kLeastCollectiveCurveShapes) {
    fewer += (fewer.empty() ? "" : "; ") + std::string(family.name) + ": latency and bandwidth only";
    CollectiveFit fit = constants(line(one, family, start));
    fit.quick_fixed = fit.quick_per_rank = {};
    fit.quick_bus = 0;
    return fit;
  }
  const auto with = [&](const std::vector<double>& own) {
    std::vector<double> x = start;
    std::copy(own.begin(), own.end(), x.begin());
    return x;
  };
  const auto function = [&](const std::vector<double>& own) { return loss(one, family, constants(with(own))); };
  return constants(with(least(function, {start.begin(), start.begin() + kOwn})));
}

}  // namespace

std::vector<FittedCollectives> fit_collectives(std::span<const MeasuredCollectives> generation) {
  std::vector<FittedCollectives> fits(generation.size());
  for (const Family& family : kFamilies) {
    std::vector<Target> targets;
    std::size_t shapes = 0;
    for (const MeasuredCollectives& machine : generation) {
      targets.push_back({machine.gpu, machine.cluster, shapes_of(machine, family)});
      shapes += targets.back().shapes.size();
    }
    if (shapes < kLeastCollectiveShapes) continue;
    const bool ranks = rank_counts(targets) > 1 && shapes >= kLeastCollectiveCurveShapes + kAll - kOwn;
    std::vector<double> of_generation;
    if (ranks) of_generation = generation_parameters(targets, family);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      std::string& fewer = fits[i].fewer;
      const std::vector<double> start = ranks ? of_generation : of_machine(targets[i], generation[i].gpu.fit.*family.model);
      fits[i].*family.fit = machine_fit(targets[i], family, start, fewer);
      if (!ranks && fits[i].*family.fit) fewer += (fewer.empty() ? "" : "; ") + std::string(family.name) + ": terms of ranks of the base";
    }
  }
  return fits;
}

}  // namespace stepsim
