// Offload over PCIe beside FSDP2, as torchtitan measured it: what a small copy costs that queues behind the big ones on the same engine.
#include <gtest/gtest.h>

#include <cstdio>

#include "sim/op_graph.h"
#include "tests/validation/csv_rows.h"
#include "tools/job.h"
#include "tools/job_flags.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

using Settings = std::vector<std::string>;

StepRun run_of(const Settings& settings) {
  JobInput input;
  for (const std::string& setting : settings) input.flags.push_back(parse_set(setting));
  return run_step(resolve_job(input));
}

const Settings kJob{"model.name=llama3-8b", "hardware.name=h100-sxm-80gb",       "hardware.gpus=8",
                    "parallel.zero=3",      "framework.name=torchtitan@2024-12", "training.sequence=8192"};
// After layer i's forward compute waits for the copies of layer i - 1, then lets go of them: before layer i + 1. Copies back of layer i - 1
// are issued when backward of layer i begins. One stream in the code; four here, since the engine takes all copies of a layer that are
// queued when the small one arrives, while one stream would let that in between (offload_policy.h: streams).
const Settings kOffload{"placement.offload_modules=*",   "placement.offload_min_elements=117440512",
                        "placement.copy_out=production", "placement.release=layer-start",
                        "placement.release_distance=2",  "placement.prefetch_layers=1",
                        "placement.copy_streams=4"};

Settings joined(Settings all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Bytes copied(const OpGraph& graph, CopyDirection direction) {
  Bytes sum;
  for (std::size_t op = 0; op < graph.ops().size(); ++op) {
    const auto* copy = std::get_if<Copy>(&graph.work(OpId{static_cast<std::int32_t>(op)}));
    if (copy != nullptr && copy->direction == direction && copy->bytes.value > (1 << 20)) sum += copy->bytes;
  }
  return sum;
}

// Step times by row, of the machine with this share of peak in matrix products ("": the catalog's).
std::vector<double> ladder(const std::vector<NamedCells>& rows, const std::string& gemm_compute) {
  std::vector<double> seconds;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Settings settings = row == 0 ? kJob : joined(kJob, kOffload);
    for (const std::string& setting : split(rows[row].at("settings"), ';')) settings.push_back(setting);
    if (!gemm_compute.empty()) settings.push_back("hardware.gemm.compute=" + gemm_compute);
    seconds.push_back(run_of(settings).step_time_s());
  }
  return seconds;
}

double step_s(const Settings& settings) { return run_of(settings).step_time_s(); }

// The share of peak of matrix products with which the job takes so long; more of it takes less.
std::string fitted_share(double wanted_s) {
  double slow = 0.1, fast = 1;
  const auto text = [](double share) { return std::to_string(share); };
  for (int i = 0; i < 20; ++i) {
    const double middle = (slow + fast) / 2;
    (step_s(joined(kJob, {"hardware.gemm.compute=" + text(middle)})) > wanted_s ? slow : fast) = middle;
  }
  return text(fast);
}

// No stack is known for this run on an H100: with the catalog's costs its step without offload takes 0.9 s, not 1.29. So the share of peak
// is fitted to that one row (0.50, below what products alone reach: it stands for what else this run loses); the other three rows are
// the test. With the catalog's costs only the order is asked for.
TEST(OffloadLadder, TorchtitanOverPcie) {
  const std::vector<NamedCells> rows = csv_rows("offload_ladder.csv");
  ASSERT_EQ(rows.size(), 4u);
  const double tokens = 8192;
  const double measured_s = tokens / std::stod(rows[0].at("tokens_per_s"));
  const std::string share = fitted_share(measured_s);
  EXPECT_NEAR(std::stod(share), 0.50, 0.02);
  const std::vector<double> fitted = ladder(rows, share), catalog = ladder(rows, "");
  EXPECT_NEAR(fitted[0] / measured_s, 1, 0.001);
  std::printf(
      "## table: offload-ladder\n| variant | measured | stepsim, first row fitted | stepsim, catalog |\n| --- | --- | --- | --- |\n");
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const double measured = 100 * (std::stod(rows[0].at("tokens_per_s")) / std::stod(rows[row].at("tokens_per_s")) - 1);
    const double found = 100 * (fitted[row] / fitted[0] - 1);
    EXPECT_NEAR(found, measured, std::stod(rows[row].at("tolerance")) + 1e-9) << rows[row].at("variant");
    std::printf("| %s | %+.1f %% | %+.1f %% | %+.1f %% |\n", rows[row].at("variant").c_str(), measured, found,
                100 * (catalog[row] / catalog[0] - 1));
  }
  std::printf("\n");
  for (const std::vector<double>& times : {fitted, catalog}) {
    EXPECT_LT(times[0], times[1]);
    EXPECT_LT(times[1], times[3]);
    EXPECT_LT(times[3], times[2]);
  }
}

// 4 tensors of 224 MiB in each of 32 layers: 28.0 GiB each way.
TEST(OffloadLadder, MovesWhatTheRunMoved) {
  const StepRun run = run_of(joined(kJob, kOffload));
  const Bytes wanted(32 * 4 * (std::int64_t{224} << 20));
  EXPECT_EQ(copied(run.step.graph, CopyDirection::kDeviceToHost), wanted);
  EXPECT_EQ(copied(run.step.graph, CopyDirection::kHostToDevice), wanted);
  EXPECT_EQ(run.run.memory[0].host_peak, wanted);
}

}  // namespace
}  // namespace stepsim
