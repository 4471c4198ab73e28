// Host links against every row of host_links.csv, through simulate(): alone, with the other direction busy, with all GPUs copying.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "hardware/fit/measured_table.h"
#include "tests/unit/hardware/copy_run.h"
#include "tests/validation/csv_rows.h"

namespace stepsim {
namespace {

Bytes megabytes(const NamedCells& row) { return Bytes(std::llround(1e6 * std::stod(row.at("megabytes")))); }

// GB/s of copies that start together and, with the other direction, never see it idle.
struct Rates {
  double in = 0, out = 0;
};

Rates duplex_rates(const GpuSpec& gpu, const ClusterSpec& cluster, Bytes bytes) {
  Rates rates;
  for (const CopyDirection measured : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}) {
    const bool in = measured == CopyDirection::kHostToDevice;
    CopyRun copies(gpu, cluster);
    const OpId op = copies.copy({.bytes = bytes, .direction = measured});
    copies.copy({.bytes = bytes * 8, .direction = in ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice});
    copies.run();
    (in ? rates.in : rates.out) = copies.gigabytes_per_s(op);
  }
  return rates;
}

Rates one_way_rates(const GpuSpec& gpu, const ClusterSpec& cluster, Bytes bytes) {
  Rates rates;
  for (const CopyDirection direction : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost}) {
    CopyRun copies(gpu, cluster);
    const OpId op = copies.copy({.bytes = bytes, .direction = direction});
    copies.run();
    (direction == CopyDirection::kHostToDevice ? rates.in : rates.out) = copies.gigabytes_per_s(op);
  }
  return rates;
}

double kernel_rate(const GpuSpec& gpu, const ClusterSpec& cluster, Bytes bytes) {
  CopyRun copies(gpu, cluster);
  const OpId op = copies.kernel(MemoryBound{.read = bytes});
  copies.run();
  return static_cast<double>(bytes.value) / seconds(copies.ran(op).end - gpu.fit.memory_fixed) * 1e-9;
}

// Host time of a call, of 155 after one another.
Duration issue_time(const GpuSpec& gpu, const ClusterSpec& cluster, Bytes bytes, bool allocates) {
  CopyRun copies(gpu, cluster);
  OpId last;
  for (int i = 0; i < 155; ++i) last = copies.copy({.bytes = bytes, .allocates = allocates}, 0, true);
  copies.run();
  return copies.ran(last).issued / 155;
}

// In the unit of the row's `measured`.
double simulated(const NamedCells& row) {
  const GpuSpec gpu = load_gpu(row.at("machine"));
  const ClusterSpec all = usual_cluster(gpu), one = alone(all);
  const std::string& condition = row.at("condition");
  const Bytes bytes = megabytes(row);
  if (condition == "kernel") return kernel_rate(gpu, one, bytes);
  if (condition == "submit") return seconds(issue_time(gpu, one, bytes, false)) * 1e6;
  if (condition == "allocation") return seconds(issue_time(gpu, one, bytes, true) - issue_time(gpu, one, bytes, false)) * 1e3;
  const bool duplex = condition.find("duplex") != std::string::npos;
  const ClusterSpec& cluster = condition.rfind("all", 0) == 0 ? all : one;
  const Rates rates = duplex ? duplex_rates(gpu, cluster, bytes) : one_way_rates(gpu, cluster, bytes);
  if (condition == "duplex sum") return rates.in + rates.out;
  const std::string& direction = row.at("direction");
  if (direction == "both") {
    EXPECT_NEAR(rates.in, rates.out, 1e-6);
  }
  return direction == "D2H" ? rates.out : rates.in;
}

TEST(HostLinks, EveryMeasuredRow) {
  std::printf("## table: host-links\n| system | metric | direction | measured, GB/s | stepsim | error | machine | condition |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::size_t compared = 0;
  const std::vector<NamedCells> rows = csv_rows("host_links.csv");
  for (const NamedCells& row : rows) {
    const auto text = [&](const char* column) { return row.at(column).c_str(); };
    if (row.at("condition") == "none") {
      EXPECT_FALSE(row.at("reason").empty()) << row.at("system");
      std::printf("| %s | %s | %s | %s | | | none | %s |\n", text("system"), text("metric"), text("direction"), text("measured"),
                  text("reason"));
      continue;
    }
    const double measured = std::stod(row.at("measured")), tolerance = std::stod(row.at("tolerance"));
    const double value = simulated(row), error = value / measured - 1;
    std::printf("| %s | %s | %s | %s | %.2f | %+.1f %% | %s | %s |\n", text("system"), text("metric"), text("direction"), text("measured"),
                value, 100 * error, text("machine"), text("condition"));
    EXPECT_LE(std::abs(error), tolerance) << row.at("system") << " " << row.at("metric") << " " << row.at("direction") << ": " << value;
    EXPECT_TRUE(tolerance <= 0.01 || !row.at("reason").empty()) << row.at("system") << ": a tolerance without a reason";
    ++compared;
  }
  std::printf("\n");
  EXPECT_EQ(compared, 38u);
}

std::string without_commas(std::string text) {
  for (char& c : text) c = c == ',' ? ';' : c;
  return text;
}

// The table above has every row of the measured data, in its order, with its number.
TEST(HostLinks, TableHasEveryRowOfTheData) {
  const auto data = read_measured_table(STEPSIM_SHARED_DIR "/data/offload/bandwidth.csv");
  if (!data) GTEST_SKIP() << "no measured data";
  std::size_t next = 0;
  for (const NamedCells& row : csv_rows("host_links.csv")) {
    if (row.at("system") == "GB300 DGX Station") continue;  // of spec/kernels.md
    ASSERT_LT(next, data->rows.size());
    EXPECT_EQ(row.at("system"), data->at(next, "system"));
    EXPECT_EQ(row.at("metric"), without_commas(data->at(next, "metric")));
    EXPECT_EQ(row.at("direction"), data->at(next, "direction"));
    EXPECT_EQ(row.at("measured"), data->at(next, "GBps")) << row.at("system") << " " << row.at("metric");
    ++next;
  }
  EXPECT_EQ(next, data->rows.size());
}

}  // namespace
}  // namespace stepsim
