// Copies between host and device through simulate(): how they share the link, the root port, host memory, HBM and the copy engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/input_error.h"
#include "tests/unit/hardware/copy_run.h"

namespace stepsim {
namespace {

constexpr CopyDirection kIn = CopyDirection::kHostToDevice, kOut = CopyDirection::kDeviceToHost;
Copy gigabyte(CopyDirection direction, double gigabytes = 1) {
  return {.bytes = Bytes(static_cast<std::int64_t>(gigabytes * 1e9)), .direction = direction};
}

Duration length(const OpRun& run) { return run.end - run.start; }

// t = t0 + bytes / BW, t0 = 6 us: half speed where bytes = t0 BW = 1.269 MB at 211.5 GB/s in.
TEST(HostLink, RampOfSmallCopies) {
  const GpuSpec gpu = load_gpu("gb300");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  const OpId half = copies.copy({.bytes = Bytes(1'269'000), .direction = kIn});
  copies.run();
  EXPECT_EQ(length(copies.ran(half)), std::chrono::microseconds(12));
}

// H100: 1 GB out at 52.8 GB/s pinned, at half of it pageable.
TEST(HostLink, PageableCopiesAreSlower) {
  const GpuSpec gpu = load_gpu("h100");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  Copy pageable = gigabyte(kOut);
  pageable.pinned = false;
  const OpId a = copies.copy(gigabyte(kOut)), b = copies.copy(pageable);
  copies.run();
  EXPECT_NEAR(copies.gigabytes_per_s(a), 52.8, 1e-6);
  EXPECT_NEAR(copies.gigabytes_per_s(b), 26.4, 1e-6);
}

// A kernel that takes all of HBM beside a copy that takes u of it ends at We + u Wc where the copy ends first (engine.md 7). u = 193.5 of
// 8000 GB/s; Wc = 1 GB / 193.5 GB/s = 5.168 ms; We = 80 GB / 8000 GB/s = 10 ms, and 0.125 ms more.
TEST(HostLink, CopyTakesItsShareOfMemoryFromAKernel) {
  GpuSpec gpu = load_gpu("gb300");
  gpu.fit.memory_fused = 1;                   // the catalog's 0.85 leaves the copy its share
  gpu.fit.memory_fixed = gpu.fit.copy_fixed;  // both start to move bytes at once
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  const OpId kernel = copies.kernel(MemoryBound{.read = Bytes(80'000'000'000)});
  const OpId copy = copies.copy(gigabyte(kOut));
  copies.run();
  EXPECT_NEAR(copies.gigabytes_per_s(copy), 193.5, 1e-6);
  EXPECT_NEAR(seconds(length(copies.ran(kernel)) - gpu.fit.memory_fixed), 10e-3 + 0.125e-3, 1e-10);
}

TEST(HostLink, CatalogKernelsLeaveAHostCopyItsShareButNotADeviceCopy) {
  const GpuSpec gpu = load_gpu("gb300");
  const MemoryBound work{.read = Bytes(80'000'000'000)};
  for (const CopyDirection direction : {kOut, CopyDirection::kDeviceToDevice}) {
    CopyRun copies(gpu, alone(usual_cluster(gpu)));
    const OpId kernel = copies.kernel(work), copy = copies.copy(gigabyte(direction));
    copies.run();
    // 0.85 and 0.024 of HBM fit, 0.85 and 0.9 do not (xla#46150: device copies beside such kernels make little progress).
    EXPECT_EQ(copies.ran(kernel).slowed.count() > 0, direction != kOut);
    EXPECT_EQ(copies.ran(copy).slowed.count() > 0, direction != kOut);
  }
}

// Host copies move their bytes through HBM once, copies within the device twice.
TEST(HostLink, BytesThroughDeviceMemory) {
  const GpuSpec gpu = load_gpu("gb300");
  const Machine machine = make_machine(gpu, usual_cluster(gpu), 1);
  const RooflineCostModel model(gpu, usual_cluster(gpu), machine);
  const auto moved = [&](CopyDirection direction) {
    const Cost cost = model.cost(gigabyte(direction), DeviceId{0});
    for (const Load& load : cost.loads) {
      const Resource& resource = machine.resources.at(static_cast<std::size_t>(load.resource.index));
      if (resource.kind == "hbm") return load.fraction_2e30 * 0x1p-30 * resource.bandwidth.value * seconds(cost.alone);
    }
    return 0.0;
  };
  EXPECT_NEAR(moved(kIn), 1e9, 50);  // loads are in 2^-30 of 8 TB/s
  EXPECT_NEAR(moved(kOut), 1e9, 50);
  EXPECT_NEAR(moved(CopyDirection::kDeviceToDevice), 2e9, 50);
}

// NVIDIA forum 365145: concurrent copies of a direction serialise, whatever their streams: W, 2W, ... nW, never all at nW.
TEST(HostLink, CopiesOfADirectionQueueAtOneEngine) {
  const GpuSpec gpu = load_gpu("h100");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  std::vector<OpId> ops;
  for (int i = 0; i < 4; ++i) ops.push_back(copies.copy_beside(gigabyte(kIn)));
  const OpId other = copies.copy(gigabyte(kOut));
  copies.run();
  const Duration one = length(copies.ran(ops[0]));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(copies.ran(ops[static_cast<std::size_t>(i)]).end, (i + 1) * one) << i;
  EXPECT_EQ(copies.ran(other).start.count(), 0);  // the other direction has its own
}

// A small control copy behind a 10 GB prefetch waits for all of it.
TEST(HostLink, SmallCopyWaitsBehindALargeOne) {
  const GpuSpec gpu = load_gpu("h100");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  const OpId large = copies.copy(gigabyte(kIn, 10)), small = copies.copy_beside({.bytes = Bytes(4), .direction = kIn});
  copies.run();
  EXPECT_EQ(copies.ran(small).start, copies.ran(large).end);
  EXPECT_NEAR(seconds(length(copies.ran(small))), 6e-6, 1e-9);
}

// A100, one GPU: 24 out and 12.5 GB/s in while both run, 25.5 when one has ended (nvbandwidth#11). 1 GB in 80 ms in; of the 2.4 GB out 1.92
// GB move in that time, the other 0.48 GB at 25.5 GB/s: 98.82 ms.
TEST(HostLink, DuplexUntilOneEnds) {
  const GpuSpec gpu = load_gpu("a100");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  const OpId in = copies.copy(gigabyte(kIn)), out = copies.copy(gigabyte(kOut, 2.4));
  copies.run();
  EXPECT_NEAR(copies.gigabytes_per_s(in), 12.5, 1e-4);  // weights are exact, loads rounded to 2^-30
  EXPECT_NEAR(seconds(length(copies.ran(out)) - gpu.fit.copy_fixed), 80e-3 + 0.48 / 25.5, 0.1e-3);
}

// Two A100 behind one root port, both directions busy on both: 11 / 2 in, 24 / 2 out; one direction alone: 25.5 / 2.
TEST(HostLink, RootPortIsShared) {
  const GpuSpec gpu = load_gpu("a100");
  CopyRun both(gpu, usual_cluster(gpu));
  const OpId in = both.copy(gigabyte(kIn)), out = both.copy(gigabyte(kOut, 24.0 / 11));
  both.run();
  EXPECT_NEAR(both.gigabytes_per_s(in), 5.5, 1e-4);
  EXPECT_NEAR(both.gigabytes_per_s(out), 12, 1e-4);
  CopyRun one(gpu, usual_cluster(gpu));
  const OpId only = one.copy(gigabyte(kIn));
  one.run();
  EXPECT_NEAR(one.gigabytes_per_s(only), 12.75, 1e-6);
}

// The table of hardware/README.md where no measurement says it: both directions at once, on one GPU or on all that share.
TEST(HostLink, BothDirectionsOfTheReadme) {
  struct Row {
    const char* name;
    bool all;
    double in, out;
  };
  const Row rows[] = {
      {"gb300", false, 172, 183},            // half of the Grace's time each: 344 / 2, 366 / 2
      {"gb300", true, 86, 91.5},             // a quarter
      {"gh200", false, 243, 243},            // 486 / 2
      {"gh200-quad-96gb", false, 316, 170},  // out takes what its link has, in the rest of 486
      {"v100", true, 6, 6},                  // 12 / 2 by the port
      {"rubin-nvl144", false, 423, 387},     // 810 of 1200
      {"rubin-nvl144", true, 300, 300},      // 1200 / 4
      {"h100", false, 55.6, 52.8},           // assumed
      {"h100", true, 307.2 / 8, 307.2 / 8},  // 4 GPUs of a socket, both directions
  };
  for (const Row& row : rows) {
    const GpuSpec gpu = load_gpu(row.name);
    const ClusterSpec cluster = usual_cluster(gpu);
    CopyRun copies(gpu, row.all ? cluster : alone(cluster));
    const OpId in = copies.copy(gigabyte(kIn, row.in / row.out)), out = copies.copy(gigabyte(kOut));
    copies.run();
    EXPECT_NEAR(copies.gigabytes_per_s(in), row.in, 0.01 * row.in) << row.name << row.all;
    EXPECT_NEAR(copies.gigabytes_per_s(out), row.out, 0.01 * row.out) << row.name << row.all;
  }
}

// Peers stand for GPUs that do the same: one GPU with a peer runs as either of two explicit GPUs on one host, to the picosecond.
TEST(HostLink, PeersAreExplicitDevices) {
  for (const char* name : {"gb300", "gb200", "a100", "v100"}) {
    const GpuSpec gpu = load_gpu(name);
    ClusterSpec peers = usual_cluster(gpu);
    peers.gpus_per_host_memory = 2;
    const auto add = [](CopyRun& copies, std::size_t device) {
      return std::pair(copies.copy(gigabyte(kIn, 0.7), device), copies.copy(gigabyte(kOut), device));
    };
    CopyRun represented(gpu, peers);
    const auto [in, out] = add(represented, 0);
    represented.run();
    // Both GPUs on the first host and its root port, each a load of its own.
    Machine machine = make_machine(gpu, peers, 2);
    machine.host_of_device = {0, 0};
    CopyRun devices(gpu, alone(peers), machine);
    const auto [in0, out0] = add(devices, 0);
    const auto [in1, out1] = add(devices, 1);
    devices.run();
    for (const OpId op : {in0, in1}) EXPECT_EQ(devices.ran(op).end, represented.ran(in).end) << name;
    for (const OpId op : {out0, out1}) EXPECT_EQ(devices.ran(op).end, represented.ran(out).end) << name;
    EXPECT_GT(represented.ran(in).slowed.count(), 0) << name;
  }
}

// pytorch#186161: 155 tensors, each allocated and pinned for its copy, cost 465 ms of host time.
TEST(HostLink, PinnedAllocationIsHostTime) {
  const GpuSpec gpu = load_gpu("h100");
  const auto issued_last = [&](Copy work) {
    CopyRun copies(gpu, alone(usual_cluster(gpu)));
    OpId last;
    for (int i = 0; i < 155; ++i) last = copies.copy(work, 0, true);
    copies.run();
    return copies.ran(last).issued;
  };
  const Duration launches = 155 * gpu.fit.copy_issue;
  EXPECT_EQ(issued_last({.bytes = Bytes(1000)}), launches);
  EXPECT_EQ(issued_last({.bytes = Bytes(1000), .allocates = true}), launches + std::chrono::milliseconds(465));
  EXPECT_EQ(issued_last({.bytes = Bytes(1000), .pinned = false, .allocates = true}), launches);
}

// Bytes above 805,306,368 at 153 GB/s: 4.162 ms for the first at 193.5, 6.537 ms a GB.
TEST(HostLink, LargeCopiesOfAGb200AreSlower) {
  const GpuSpec gpu = load_gpu("gb200");
  CopyRun copies(gpu, alone(usual_cluster(gpu)));
  const OpId small = copies.copy({.bytes = gpu.large_copy.beyond}),
             large = copies.copy({.bytes = gpu.large_copy.beyond + Bytes(1'000'000'000)});
  copies.run();
  const Duration more = length(copies.ran(large)) - length(copies.ran(small));
  EXPECT_NEAR(seconds(more), 1 / 153.0, 1e-10);
  EXPECT_EQ(load_gpu("gb300").large_copy.beyond.value, 0);  // measured on a GB200 only
}

TEST(HostLink, OneBandwidthOfAUserCountsBothWays) {
  const std::vector<std::pair<std::string, std::string>> slow = {{"host_memory_bandwidth", "100 GB/s"}};
  const ClusterSpec cluster = load_cluster("gb300", slow);
  EXPECT_EQ(cluster.host_memory_read.value, 0);  // a bandwidth that a user states counts for both directions
  const GpuSpec gpu = load_gpu("gb300");
  CopyRun copies(gpu, cluster);
  const OpId copy = copies.copy(gigabyte(kOut));
  copies.run();
  EXPECT_GT(copies.ran(copy).slowed.count(), 0);
}

TEST(HostLink, RootPortFieldsOfUserFiles) {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const auto error = [](const Fields& fields) -> std::string {
    try {
      load_cluster("dgx-h100", fields);
    } catch (const InputError& problem) {
      return problem.what();
    }
    return "no error";
  };
  const Fields whole = {{"root_port.gpus", "2"}, {"root_port.host_to_device", "50 GB/s"}, {"root_port.device_to_host", "40 GB/s"}};
  const RootPort port = load_cluster("dgx-h100", whole).root_port;
  EXPECT_EQ(port.gpus, 2);
  EXPECT_EQ(port.device_to_host.value, 40e9);
  EXPECT_EQ(port.both_host_to_device.value, 0);
  EXPECT_THAT(error({{"root_port.gpus", "2"}}), testing::HasSubstr("found no root_port.host_to_device"));
  EXPECT_THAT(error({{"root_port.gpus", "2000"}}), testing::StartsWith("--set root_port.gpus: found 2000"));
}

}  // namespace
}  // namespace stepsim
