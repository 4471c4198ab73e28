#include "hardware/fit/collective_fit.h"

#include <map>
#include <utility>

#include "hardware/collective_cost.h"
#include "hardware/fit/curve_fit.h"
#include "hardware/fit/measured_table.h"
#include "sim/check.h"

namespace stepsim {

namespace {

struct Generation {
  const char* name;
  std::vector<std::string> measured;  // as nccl_aic.csv names them
  std::vector<std::string> machines;
};

std::vector<Generation> generations() {
  return {{"A100", {"a100_sxm"}, {"a100-sxm-80gb"}},
          {"Hopper", {"h100_sxm", "h200_sxm"}, {"h100-sxm-80gb"}},
          {"Blackwell", {"b200_sxm", "b300_sxm", "gb200", "gb300"}, {"b200", "b300", "gb200-nvl72", "gb300-nvl72"}}};
}

// Operations that share constants.
struct Family {
  CollectiveFit FittedCollectives::*set;
  CollectiveFit KernelFit::*model;
  std::vector<std::pair<std::string, CollectiveKind>> operations;
};

std::vector<Family> families() {
  return {{&FittedCollectives::all_reduce, &KernelFit::all_reduce, {{"all_reduce", CollectiveKind::kAllReduce}}},
          {&FittedCollectives::gather,
           &KernelFit::gather,
           {{"all_gather", CollectiveKind::kAllGather}, {"reduce_scatter", CollectiveKind::kReduceScatter}}},
          {&FittedCollectives::all_to_all, &KernelFit::all_to_all, {{"alltoall", CollectiveKind::kAllToAll}}}};
}

struct MeasuredMachine {
  GpuSpec gpu;
  ClusterSpec cluster;
};

struct Row {
  std::size_t machine = 0;  // in Generation::measured
  std::string group;
  Collective work;
  double measured_s = 0;
  bool held_out = false;
};

bool odd_power_of_two(std::int64_t bytes) {
  bool odd = false;
  for (; bytes > 1; bytes /= 2) odd = !odd;
  return odd;
}

std::vector<Row> rows_of(const MeasuredTable& table, const Generation& generation, const Family& family) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::int64_t bytes = table.integer(i, "message_bytes");  // message_size counts elements
    const auto ranks = static_cast<std::int32_t>(table.integer(i, "num_gpus"));
    if (bytes < (1 << 20) || ranks > 8) continue;
    for (std::size_t machine = 0; machine < generation.measured.size(); ++machine) {
      for (const auto& [operation, kind] : family.operations) {
        if (table.at(i, "gpu") != generation.measured[machine] || table.at(i, "op") != operation) continue;
        rows.push_back({.machine = machine,
                        .group = generation.measured[machine] + " " + operation,
                        .work = {.kind = kind, .message = Bytes(bytes), .ranks = ranks},
                        .measured_s = table.number(i, "latency_us") * 1e-6,
                        .held_out = odd_power_of_two(bytes)});
      }
    }
  }
  return rows;
}

// Constants that stand at their bound, where a square or sine has no slope: the others are then fitted alone.
struct AtBound {
  bool no_rank_latency = false, whole_link = false;
};

CollectiveFit constants(const std::vector<double>& x, AtBound at_bound) {
  constexpr double kMostSmallGroup = 1.9;  // 2 ranks would stand still at 2
  return {.fixed = op_duration(not_negative(x[0]) * 1e-6),
          .per_rank = at_bound.no_rank_latency ? Duration{} : op_duration(not_negative(x[1]) * 1e-6),
          .bus = at_bound.whole_link ? 1 : bounded(x[2], 1),
          .small_group = bounded(x[3], kMostSmallGroup),
          .pipeline = op_duration(not_negative(x[4]) * 1e-6)};
}

double simulated_s(const MeasuredMachine& machine, const Collective& work) {
  const DeviceCost cost = collective_cost(machine.gpu, machine.cluster, work);
  return seconds(cost.fixed + cost.alone);
}

CollectiveFit fit_family(const std::vector<Row>& rows, const Family& family, std::vector<MeasuredMachine>& machines) {
  const auto use = [&](const CollectiveFit& fit) {
    for (MeasuredMachine& machine : machines) machine.gpu.fit.*family.model = fit;
  };
  AtBound at_bound;
  const auto residuals = [&](const std::vector<double>& x) {
    use(constants(x, at_bound));
    std::vector<double> logs;
    for (const Row& row : rows) {
      if (!row.held_out) logs.push_back(std::log(simulated_s(machines[row.machine], row.work) / row.measured_s));
    }
    return logs;
  };
  // Ordinary values: 5 us, 1 us a rank, 0.8 of the link, 0.3, 5 us.
  std::vector<double> x = {not_negative_parameter(5), not_negative_parameter(1), bounded_parameter(0.8, 1), bounded_parameter(0.3, 1.9),
                           not_negative_parameter(5)};
  x = fitted_parameters(residuals, x, Loss::kAbsolute);
  const CollectiveFit free = constants(x, at_bound);
  at_bound = {.no_rank_latency = free.per_rank<op_duration(0.01e-6), .whole_link = free.bus> 0.995};
  if (at_bound.no_rank_latency || at_bound.whole_link) x = fitted_parameters(residuals, x, Loss::kAbsolute);
  const CollectiveFit fit = constants(x, at_bound);
  use(fit);
  return fit;
}

}  // namespace

std::optional<CollectiveFits> fit_collectives(const std::string& data) {
  const auto table = read_measured_table(data + "/kernels/nccl_aic.csv");
  if (!table) return std::nullopt;
  CollectiveFits fits;
  std::map<std::string, FitErrors> errors;
  for (const Generation& generation : generations()) {
    std::vector<MeasuredMachine> machines;
    for (const std::string& name : generation.measured) {
      const GpuSpec gpu = load_gpu(name);
      machines.push_back({gpu, usual_cluster(gpu)});
    }
    FittedCollectives set{.machines = generation.machines, .all_reduce = {}, .gather = {}, .all_to_all = {}};
    for (const Family& family : families()) {
      const std::vector<Row> rows = rows_of(*table, generation, family);
      set.*family.set = fit_family(rows, family, machines);
      for (const Row& row : rows) {
        FitErrors& group = errors[row.group];
        group.group = row.group;
        (row.held_out ? group.held_out : group.fitted).push_back(simulated_s(machines[row.machine], row.work) / row.measured_s - 1);
      }
    }
    fits.sets.push_back(set);
  }
  for (const auto& [name, group] : errors) fits.errors.push_back(group);
  return fits;
}

}  // namespace stepsim
