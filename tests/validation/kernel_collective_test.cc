// Collectives within a node against NCCL's measured latencies: fitted (hardware/fit) on 16-bit rows of even powers of two from 1 KiB,
// tested on odd ones from 1 MiB.
#include <gtest/gtest.h>

#include <map>

#include "hardware/collective_cost.h"
#include "hardware/roofline_cost_model.h"
#include "tests/validation/measured_rows.h"

namespace stepsim {
namespace {

CollectiveKind kind_of(const std::string& operation) {
  if (operation == "all_reduce") return CollectiveKind::kAllReduce;
  if (operation == "all_gather") return CollectiveKind::kAllGather;
  if (operation == "reduce_scatter") return CollectiveKind::kReduceScatter;
  return CollectiveKind::kAllToAll;
}

bool odd_power_of_two(std::int64_t bytes) {
  bool odd = false;
  for (; bytes > 1; bytes /= 2) odd = !odd;
  return odd;
}

struct SystemErrors {
  std::vector<double> fitted, held_out, held_out_8_bits, small;  // the first two of 16-bit types from 1 MiB on
  std::map<std::string, std::vector<double>> by_operation;       // of held_out
};

std::map<std::string, SystemErrors> errors_by_system(const MeasuredTable& table) {
  std::map<std::string, std::pair<GpuSpec, ClusterSpec>> machines;
  std::map<std::string, SystemErrors> systems;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const auto bytes = static_cast<std::int64_t>(table.number(row, "message_bytes"));  // message_size counts elements
    const std::string& name = table.at(row, "gpu");
    if (bytes < (1 << 10)) continue;
    if (machines.count(name) == 0) {
      const GpuSpec gpu = load_gpu(name);
      machines[name] = {gpu, usual_cluster(gpu)};
    }
    const std::string& operation = table.at(row, "op");
    const Collective work{
        .kind = kind_of(operation), .message = Bytes(bytes), .ranks = static_cast<std::int32_t>(table.integer(row, "num_gpus"))};
    const double simulated = seconds(collective_time(machines[name].first, machines[name].second, work)) * 1e6;
    const double error = simulated / table.number(row, "latency_us") - 1;
    SystemErrors& system = systems[name];
    const bool wide = table.at(row, "dtype") == "half", held_out = odd_power_of_two(bytes);
    if (bytes < (1 << 20)) {
      system.small.push_back(error);
    } else if (!held_out && wide) {
      system.fitted.push_back(error);
    } else if (held_out) {
      (wide ? system.held_out : system.held_out_8_bits).push_back(error);
      if (wide) system.by_operation[operation].push_back(error);
    }
  }
  return systems;
}

TEST(KernelCollective, NcclWithinANode) {
  const auto table = measured_table("kernels/nccl_aic.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const std::map<std::string, SystemErrors> systems = errors_by_system(*table);
  EXPECT_EQ(systems.size(), 7u);
  print_heading("kernel-collectives", "Collectives: 2-8 GPUs, nccl_aic.csv");
  for (const auto& [name, errors] : systems) {
    std::vector<double> held_out = errors.held_out;
    print_summary(name + ", 1-512 MiB, 16 bits, fitted half", summary(errors.fitted));
    print_summary(name + ", 1-512 MiB, 16 bits, held-out half", summary(held_out));
    held_out.insert(held_out.end(), errors.held_out_8_bits.begin(), errors.held_out_8_bits.end());
    print_summary(name + ", 1-512 MiB, 8 bits too, held-out half", summary(held_out));
    print_summary(name + ", 1-512 KiB, both halves", summary(errors.small));
    // Issue 5: 10 % per system from 1 MiB on; found 5.2 to 8.1 %, with 8-bit rows, which are not fitted, to 8.7 %.
    EXPECT_LE(summary(errors.held_out).mean, 0.09) << name;
    EXPECT_LE(summary(held_out).mean, 0.10) << name;
    EXPECT_LE(summary(errors.small).mean, 0.11) << name;  // found 3 to 9 %
    EXPECT_GE(errors.held_out.size(), 55u) << name;
  }
  print_heading("kernel-collectives-by-operation", "Collectives: held-out half from 1 MiB on, 16 bits, by operation");
  for (const auto& [name, errors] : systems) {
    for (const auto& [operation, of_operation] : errors.by_operation) {
      print_summary(name + " " + operation, summary(of_operation));
      EXPECT_LE(summary(of_operation).mean, 0.15) << name << " " << operation;  // found at most 12 %: protocols change at a size
    }
  }
}

// The rates of the machine files are the table's own; between its counts nothing was measured. The file is named after the pull request
// (DeepEP 420, HybridEP), its numbers are those of that text's table of DeepEP.
TEST(KernelCollective, DeepEp) {
  const auto table = measured_table("kernels/hybridep_gb200.csv");
  if (!table) GTEST_SKIP() << "no measured data";
  const GpuSpec gpu = load_gpu("gb200-nvl72");
  const ClusterSpec cluster = usual_cluster(gpu);
  int compared = 0;
  print_heading("kernel-expert-exchange", "Dispatch and combine: DeepEP on GB200, 32 SMs, 1 GiB");
  for (std::size_t row = 0; row < table->rows.size(); ++row) {
    if (table->integer(row, "sms") != 32) continue;
    for (const bool dispatch : {true, false}) {
      const Collective work{.kind = dispatch ? CollectiveKind::kDispatch : CollectiveKind::kCombine,
                            .message = Bytes(1 << 30),
                            .ranks = static_cast<std::int32_t>(table->integer(row, "ranks")),
                            .library = CollectiveLibrary::kDeepEp};
      const double measured = table->number(row, dispatch ? "dispatch_bf16_GBps" : "combine_GBps") * 1e9;
      const double simulated = static_cast<double>(1 << 30) / seconds(collective_time(gpu, cluster, work));
      print_summary(std::to_string(work.ranks) + (dispatch ? " ranks, dispatch" : " ranks, combine"), summary({simulated / measured - 1}));
      EXPECT_NEAR(simulated / measured, 1, 0.01) << work.ranks;  // the fixed part: 13 of 1700 us at least
      ++compared;
    }
  }
  EXPECT_EQ(compared, 6);
}

}  // namespace
}  // namespace stepsim
