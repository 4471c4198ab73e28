// What nccl-tests print, in its newer and older forms.
#include <gtest/gtest.h>

#include "tests/unit/tools/test_jobs.h"
#include "tools/commands.h"
#include "tools/measurements.h"

namespace stepsim {
namespace {

const std::string kDevices =
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 2097152\n#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid  1 on  node device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid  1 on  node device  1 [0x0a] NVIDIA H100 80GB HBM3\n#\n";
const std::string kHead =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n";
const std::string kRows =
    "           8             2     float     sum      -1    10.00    0.00    0.00      0    11.00    0.00    0.00      0\n"
    "     1048576        262144     float     sum      -1    30.00   34.95   34.95      0    31.00   33.82   33.82      0\n"
    "# Out of bounds values : 0 OK\n";

Measurements read(const std::string& text, const MeasurementOptions& options = {}, const std::string& file = "all_reduce_perf.txt") {
  return read_measurements(file, text, options);
}

TEST(NcclTests, BothColumnsOfARow) {
  ASSERT_TRUE(is_nccl_tests(kDevices + kHead + kRows));
  const Measurements rows = read(kDevices + kHead + kRows);
  EXPECT_EQ(rows.gpu, "H100 80GB HBM3");
  ASSERT_EQ(rows.collectives.size(), 2u);  // 8 bytes are skipped, twice
  EXPECT_EQ(rows.skipped.at("collectives below 1 KiB"), 2u);
  EXPECT_EQ(rows.collectives[0].work.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(rows.collectives[0].work.ranks, 2);
  EXPECT_EQ(rows.collectives[0].work.message.value, 1048576);  // the column size, not count
  EXPECT_DOUBLE_EQ(rows.collectives[0].measured_s, 30e-6);
  EXPECT_DOUBLE_EQ(rows.collectives[1].measured_s, 31e-6);
  EXPECT_EQ(rows.collectives[0].line, 10);
}

// Older programs print no redop and root, and "error"; in place is not measured for an all-to-all.
TEST(NcclTests, OlderForm) {
  const Measurements rows =
      read(kDevices +
               "#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error\n"
               "     1048576        262144     float    30.00   34.95   17.48  0e+00      N/A     N/A     N/A    N/A\n",
           {}, "alltoall.txt");
  ASSERT_EQ(rows.collectives.size(), 1u);
  EXPECT_EQ(rows.collectives[0].work.kind, CollectiveKind::kAllToAll);
}

TEST(NcclTests, WhichCollective) {
  const std::string text = kDevices + kHead + kRows;
  EXPECT_EQ(read(text, {}, "log_reduce_scatter.txt").collectives[0].work.kind, CollectiveKind::kReduceScatter);
  EXPECT_EQ(read("# Collective test starting: all_gather_perf\n" + text, {}, "log.txt").collectives[0].work.kind,
            CollectiveKind::kAllGather);
  EXPECT_EQ(read(text, {.collective = "sendrecv"}, "log.txt").collectives[0].work.kind, CollectiveKind::kSendReceive);
  EXPECT_EQ(error_of([&] { read("# all_gather_perf\n" + text, {.collective = "sendrecv"}, "log.txt"); }),
            "--collective: found sendrecv, wanted all_gather as log.txt says in line 1");
  EXPECT_EQ(error_of([&] { read(text, {}, "log.txt"); }),
            "log.txt:7:1: found no name of the collective, wanted it in the text (all_reduce_perf), the file's name, or --collective");
  EXPECT_EQ(error_of([&] { read(text, {.collective = "reduce"}); }),
            "--collective: found \"reduce\", wanted all_reduce, all_gather, reduce_scatter, alltoall or sendrecv");
}

TEST(NcclTests, Ranks) {
  EXPECT_EQ(read(kHead + kRows, {.ranks = 16}).collectives[0].work.ranks, 16);
  EXPECT_EQ(error_of([] { read(kHead + kRows); }),
            "all_reduce_perf.txt:3:1: found no list of at least two devices above, wanted one, or --ranks N");
  EXPECT_EQ(error_of([] { read(kDevices + kHead + kRows, {.ranks = 4}); }),
            "--ranks: found 4, wanted 2 as all_reduce_perf.txt lists devices");
}

TEST(NcclTests, HostsOfTheRanks) {
  EXPECT_EQ(read(kDevices + kHead + kRows).hosts, std::vector<std::string>{"node"});
  const Measurements rows =
      read(kDevices + "#  Rank  2 Group  0 Pid  1 on  node2 device  0 [0x07] NVIDIA H100 80GB HBM3\n" + kHead + kRows);
  EXPECT_EQ(rows.hosts, (std::vector<std::string>{"node", "node2"}));
  EXPECT_EQ(rows.second_host_line, 7);
}

// The last line of a run that ended; a run that did not says why.
TEST(NcclTests, RunsThatDidNotEnd) {
  EXPECT_EQ(read(kDevices + kHead + kRows + "# Avg bus bandwidth    : 34.3\n").notes, std::vector<std::string>{});
  EXPECT_EQ(read(kDevices + kHead + kRows).notes,
            std::vector<std::string>{"all_reduce_perf.txt: no footer (# Avg bus bandwidth): the output may be cut"});
  const auto error = [](const std::string& text) { return error_of([&] { read(text); }); };
  EXPECT_EQ(error(kDevices + kHead + kRows + "node: Test NCCL failure common.cu:958 'unhandled system error, see NCCL_DEBUG=INFO'\n"),
            "all_reduce_perf.txt:12:1: found \"Test NCCL failure\", wanted the output of a run that ended well");
  EXPECT_EQ(error(kDevices + "node: Test CUDA failure common.cu:958 'out of memory'\n"),
            "all_reduce_perf.txt:7:1: found \"Test CUDA failure\", wanted the output of a run that ended well");
  EXPECT_FALSE(is_nccl_tests("dtype,m,n,k,latency_us,note\nbf16,1,1,1,5,after a Test NCCL failure\n"));
}

TEST(NcclTests, WrongRows) {
  const auto error = [](const std::string& row) { return error_of([&] { read(kDevices + kHead + row); }); };
  EXPECT_EQ(error("1048576 262144 float sum -1 30 1 1 0 31\n"), "all_reduce_perf.txt:9:1: found 10 columns, wanted 13 as in line 7");
  EXPECT_EQ(error("1048576 262144 float sum -1 x 1 1 0 31 1 1 0\n"), "all_reduce_perf.txt:9:29: found time \"x\", wanted a number");
  EXPECT_EQ(error("1048576 262144 float sum -1 -3 1 1 0 31 1 1 0\n"),
            "all_reduce_perf.txt:9:29: found time -3, wanted microseconds above zero");
  EXPECT_EQ(error("1048576 262144 float sum -1 1e13 1 1 0 31 1 1 0\n"),
            "all_reduce_perf.txt:9:29: found time 1e13, wanted at most 1000000000000 us");
  EXPECT_EQ(error("1048576 262144 float sum -1 30 1 1 7 31 1 1 0\n"),
            "all_reduce_perf.txt:9:36: found 7 wrong values, wanted none: the collective failed");
  EXPECT_EQ(error(""), "all_reduce_perf.txt:7:1: found no row of 1 KiB and more below, wanted some");
  EXPECT_EQ(error(kRows + kHead), "all_reduce_perf.txt:12:1: found a second table, wanted one a file (the first in line 7)");
}

TEST(NcclTests, FlagsOfThemAlone) {
  const std::string table = written("nccl_flags.csv", "op,dtype,m,n,k,latency_us\ngemm,bf16,64,64,64,5\n");
  CalibrateArguments ranks, collective;
  ranks.files = collective.files = {table};
  ranks.ranks = "8";
  collective.collective = "sendrecv";
  EXPECT_EQ(error_of([&] { calibrate_command(ranks); }), "--ranks: found it without nccl-tests output, wanted none");
  EXPECT_EQ(error_of([&] { calibrate_command(collective); }), "--collective: found it without nccl-tests output, wanted none");
}

}  // namespace
}  // namespace stepsim
