// Collectives over NVLink domains, nodes and their NICs: who shares what follows from ranks and stride. Numbers by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hardware/collective_cost.h"
#include "hardware/roofline_cost_model.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

constexpr double kGigabyte = 1e9;

Collective all_reduce(std::int32_t ranks, std::int32_t stride) {
  return {.message = Bytes(1'000'000'000), .ranks = ranks, .stride = stride};
}

double alone_s(const GpuSpec& gpu, const ClusterSpec& cluster, const Collective& work) {
  return seconds(collective_cost(gpu, cluster, work).alone);
}

// Bytes of a ring all-reduce of 1 GB that each member sends on: 2 (n - 1) / n GB.
double ring_bytes(std::int32_t ranks) { return 2 * kGigabyte * (ranks - 1) / ranks; }

// accuracy.md A: 4 HDR NICs, 100 GB/s a node of 8; a ring for each tensor-parallel rank has 100 / min(tp, 8) GB/s, for the rings of all
// tp ranks of a node run at once. 0.95 of it is achievable (hardware/data/clusters/vtrain-a100.textproto).
TEST(Topology, RingsOfANodeShareItsNics) {
  const GpuSpec gpu = load_gpu("a100");
  const ClusterSpec cluster = load_cluster("vtrain-a100");
  EXPECT_EQ(cluster.network_per_gpu.value, 12.5e9);
  for (const std::int32_t tp : {1, 2, 4, 8, 16}) {
    const std::int32_t dp = 16;  // across at least two nodes with any tp
    const double ring = 100 * kGigabyte * 0.95 / std::min(tp, 8);
    EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(dp, tp)), ring_bytes(dp) / ring, 1e-9) << tp;
  }
  // Tensor parallel over two nodes: one ring with all NICs of both.
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(16, 1)), ring_bytes(16) / (95 * kGigabyte), 1e-9);
  // A pipeline's transfer between nodes has its GPU's share: all 8 send.
  const Collective send{.kind = CollectiveKind::kSendReceive, .message = Bytes(100'000'000), .ranks = 2, .stride = 8};
  EXPECT_NEAR(alone_s(gpu, cluster, send), 0.1 * kGigabyte / (12.5 * kGigabyte * 0.95), 1e-9);
}

// As above with a NIC a GPU: twice 25 GB/s beside one another are the same as 50 that two share.
TEST(Topology, OwnNicsAndSharedOnesGiveEachGpuItsPart) {
  const GpuSpec gpu = load_gpu("h100");
  ClusterSpec rails = load_cluster("dgx-h100"), shared = rails;
  shared.network_per_gpu = load_cluster("llm-foundry-h100").network_per_gpu;
  EXPECT_EQ(shared.network_per_gpu.value, rails.network_per_gpu.value);  // 400 GB/s over 8
  EXPECT_EQ(alone_s(gpu, rails, all_reduce(32, 2)), alone_s(gpu, shared, all_reduce(32, 2)));
}

// 12 ranks on nodes of 8: 8 and 4. All of the ring's bytes enter and leave the half-filled node by 4 NICs of 50 GB/s at 0.8.
TEST(Topology, TheDomainWithFewestMembersIsTheSlowest) {
  const GpuSpec gpu = load_gpu("h100");
  const ClusterSpec cluster = load_cluster("dgx-h100");
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(12, 1)), ring_bytes(12) / (4 * 40 * kGigabyte), 1e-9);
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(16, 1)), ring_bytes(16) / (8 * 40 * kGigabyte), 1e-9);
  // Two members a node with a stride of 4, 5 ranks: the third node has one.
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(5, 4)), ring_bytes(5) / (40 * kGigabyte), 1e-9);
  // Each of the 4 sends 8 of its 12 parts of 1 GB to the other node by its own NIC.
  const Collective exchange{.kind = CollectiveKind::kAllToAll, .message = Bytes(1'000'000'000), .ranks = 12};
  EXPECT_NEAR(alone_s(gpu, cluster, exchange), kGigabyte * 8 / 12 / (40 * kGigabyte), 1e-9);
}

TEST(Topology, DomainsOfFour) {
  const GpuSpec gpu = load_gpu("gh200");
  const ClusterSpec cluster = load_cluster("gh200-node");  // 4 GPUs, 25 GB/s each at 0.8
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(8, 1)), ring_bytes(8) / (4 * 20 * kGigabyte), 1e-9);
  EXPECT_EQ(collective_cost(gpu, cluster, all_reduce(4, 1)).network_in, 0);
}

// Jobs larger than a rack take 64 GPUs of each, so that 128 consecutive ranks are 64 and 64, not 72 and 56; 72 are one rack.
TEST(Topology, RacksOf72AreFilledBy64) {
  const GpuSpec gpu = load_gpu("gb300");
  const ClusterSpec cluster = load_cluster("gb300-nvl72");
  EXPECT_EQ(collective_cost(gpu, cluster, all_reduce(72, 1)).network_in, 0);
  EXPECT_EQ(collective_cost(gpu, cluster, all_reduce(18, 4)).network_in, 0);
  const DeviceCost two_racks = collective_cost(gpu, cluster, all_reduce(128, 1));
  // 64 NICs of 100 GB/s share the ring's bytes: what a NIC carries over what it could in that time.
  EXPECT_NEAR(two_racks.network_in * seconds(two_racks.alone), ring_bytes(128) / 64 / (100 * kGigabyte), 1e-9);
  // Data parallel beside expert groups of a rack: each of 64 rings has one GPU a rack.
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(4, 64)), ring_bytes(4) / (80 * kGigabyte), 1e-9);
}

TEST(Topology, InAndBetweenDomainsRunAtOnce) {
  const GpuSpec gpu = load_gpu("h100");
  ClusterSpec cluster = load_cluster("dgx-h100");
  cluster.network_per_gpu = BytesPerSecond(1e15);  // no limit: what remains is the ring within the node
  const double inside = alone_s(gpu, cluster, all_reduce(16, 1));
  cluster.network_per_gpu = BytesPerSecond(50e9);
  const double network = ring_bytes(16) / (8 * 40 * kGigabyte);
  EXPECT_NEAR(alone_s(gpu, cluster, all_reduce(16, 1)), std::max(inside, network), 1e-9);  // chunks of a ring are on all its links
}

// NCCL broadcasts by rings alone: what it sends passes every rank, 7 in each of 4 nodes and from node to node 3 times, where other
// collectives of 4 nodes climb two levels of a tree.
TEST(Topology, ABroadcastPassesEveryRank) {
  GpuSpec gpu = load_gpu("a100");
  const ClusterSpec cluster = load_cluster("selene");
  gpu.fit.gather = {.fixed = std::chrono::microseconds(10), .per_rank = std::chrono::microseconds(1), .bus = 1};
  gpu.fit.network_hop = std::chrono::microseconds(5);
  const auto latency = [&](CollectiveKind kind, std::int32_t ranks) {
    return collective_cost(gpu, cluster, {.kind = kind, .message = Bytes(1), .ranks = ranks}).fixed;
  };
  EXPECT_EQ(latency(CollectiveKind::kBroadcast, 32), std::chrono::microseconds(10 + 28 * 1 + 3 * 5));
  EXPECT_EQ(latency(CollectiveKind::kAllGather, 32), std::chrono::microseconds(10 + 7 * 1 + 2 * 5));
  EXPECT_EQ(latency(CollectiveKind::kBroadcast, 8), latency(CollectiveKind::kAllGather, 8));
}

TEST(Topology, ClustersOfPublishedTables) {
  const std::pair<const char*, double> clusters[] = {// GB/s a node, accuracy.md A.2, B.1, B.2.6; results.csv B1059
                                                     {"vtrain-a100", 100},     {"llm-foundry-a100", 200}, {"llm-foundry-h100", 400},
                                                     {"torchtitan-a100", 200}, {"torchtitan-h100", 400},  {"internevo-a100", 50},
                                                     {"internevo-a800", 50},   {"fms-fsdp-a100", 50},     {"fms-fsdp-h100", 100},
                                                     {"selene-a100", 200},     {"dgx-b200", 400},         {"dgx-b300", 800}};
  for (const auto& [name, node] : clusters) {
    const ClusterSpec cluster = load_cluster(name);
    EXPECT_EQ(cluster.gpus_per_node, 8) << name;
    EXPECT_EQ(cluster.nvlink_domain, 8) << name;
    EXPECT_NEAR(cluster.network_per_gpu.value * 8, node * kGigabyte, 1) << name;
  }
  EXPECT_EQ(load_cluster("gb300-nvl72").network_per_gpu.value, 100e9);
}

std::string written(const std::string& text) {
  const std::string path = testing::TempDir() + "topology_cluster.textproto";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(Topology, ANodesNetworkInsteadOfAGpus) {
  const std::string path = written("base: \"dgx-h100\"\nnetwork_per_node: \"100 GB/s\"\n");
  EXPECT_EQ(load_cluster(path).network_per_gpu.value, 12.5e9);  // the base's 50 GB/s a GPU is replaced
  const std::pair<std::string, std::string> faster[] = {{"network_per_gpu", "20 GB/s"}};
  EXPECT_EQ(load_cluster(path, faster).network_per_gpu.value, 20e9);
  const std::pair<std::string, std::string> node[] = {{"network_per_node", "400 GB/s"}};
  EXPECT_EQ(load_cluster("selene", node).network_per_gpu.value, 50e9);
  EXPECT_THAT(error_of([] { load_cluster(written("base: \"dgx-h100\"\nnetwork_per_node: \"100 GB/s\"\nnetwork_per_gpu: \"10 GB/s\"\n")); }),
              HasSubstr(":2:1: found network_per_node"));
  EXPECT_THAT(error_of([] { load_cluster(written("base: \"dgx-h100\"\nsegment: 9\n")); }),
              HasSubstr("found segment 9, wanted at most the 8 GPUs of the domain"));
}

}  // namespace
}  // namespace stepsim
