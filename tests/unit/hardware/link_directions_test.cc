// NVLink and the network carry either direction at full speed at once: network_per_gpu and nvlink_per_direction are each way.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "hardware/collective_cost.h"
#include "hardware/roofline_cost_model.h"
#include "sim/op_graph.h"
#include "sim/simulate.h"

namespace stepsim {
namespace {

constexpr std::int32_t kNextNode = 8, kNeighbour = 1;  // strides on dgx-h100

Collective gigabyte_send(std::int32_t stride) {
  return {.kind = CollectiveKind::kSendReceive, .message = Bytes(1'000'000'000), .ranks = 2, .stride = stride};
}

Collective gigabyte_sum(std::int32_t stride) {
  return {.kind = CollectiveKind::kAllReduce, .message = Bytes(1'000'000'000), .ranks = 2, .stride = stride};
}

ClusterSpec ideal_network() {
  ClusterSpec cluster = load_cluster("dgx-h100");
  cluster.network_efficiency = 1;  // one transfer takes all of a direction
  return cluster;
}

struct Links {
  GpuSpec gpu = load_gpu("h100");
  ClusterSpec cluster = ideal_network();
  Machine machine = make_machine(gpu, cluster, 3);
  RooflineCostModel model{gpu, cluster, machine};
  OpGraphBuilder builder;
  std::vector<DeviceId> devices;

  Links() {
    for (int i = 0; i < 3; ++i) devices.push_back(builder.add_device());
  }
  StreamId stream(std::size_t device) { return builder.add_stream({.device = devices[device], .kind = {}}); }
  void transfer(std::size_t sender, std::size_t receiver, std::int32_t stride) {
    const Collective work = gigabyte_send(stride);
    const StorageId received = builder.add_storage({.size = work.message, .device = devices[receiver]});
    const Tensor written{received, Bytes(0), work.message};
    const OpPart sending[] = {{.stream = stream(sender), .queues = {}}};
    builder.add_op({.work = builder.work(work), .stream = stream(receiver)}, {.writes = std::span(&written, 1)}, sending);
  }
  void on_device(std::size_t device, const Collective& work) { builder.add_op({.work = builder.work(work), .stream = stream(device)}, {}); }
  Duration end() { return simulate(std::move(builder).build(), machine, model, {.memory = false}).end; }

  std::map<std::string, double> loads(const Collective& work, TransferSide side) const {
    std::map<std::string, double> by_kind;
    for (const Load& load : model.cost(work, DeviceId{0}, side).loads) {
      by_kind[machine.resources[static_cast<std::size_t>(load.resource.index)].kind] = load.fraction_2e30 / double{kFullLoad};
    }
    return by_kind;
  }
};

TEST(LinkDirections, TheMachineListsEach) {
  const Links links;
  std::map<std::string, double> bandwidth;
  for (const Resource& resource : links.machine.resources) {
    if (resource.device == DeviceId{1}) bandwidth[resource.kind] = resource.bandwidth.value;
  }
  for (const char* kind : {"nvlink in", "nvlink out"}) EXPECT_EQ(bandwidth.at(kind), links.gpu.nvlink_per_direction.value) << kind;
  for (const char* kind : {"network in", "network out"}) EXPECT_EQ(bandwidth.at(kind), links.cluster.network_per_gpu.value) << kind;
  EXPECT_EQ(bandwidth.count("nvlink") + bandwidth.count("network"), 0u);
}

TEST(LinkDirections, ASideOfATransferLoadsOne) {
  const Links links;
  for (const std::int32_t stride : {kNeighbour, kNextNode}) {
    const std::string link = stride == kNeighbour ? "nvlink" : "network";
    const std::map<std::string, double> in = links.loads(gigabyte_send(stride), TransferSide::kReceives),
                                        out = links.loads(gigabyte_send(stride), TransferSide::kSends),
                                        both = links.loads(gigabyte_send(stride), TransferSide::kBoth);
    EXPECT_GT(in.at(link + " in"), 0.6);
    EXPECT_EQ(in.count(link + " out"), 0u);
    EXPECT_EQ(out.at(link + " out"), in.at(link + " in"));
    EXPECT_EQ(out.count(link + " in"), 0u);
    EXPECT_EQ(both.at(link + " in"), both.at(link + " out"));
    // One reads the gigabyte, the other writes it: 1 GB / (time x HBM) each. One GPU that does both moves it twice.
    const double alone_s = seconds(links.model.cost(gigabyte_send(stride), DeviceId{0}, TransferSide::kSends).alone);
    EXPECT_NEAR(out.at("hbm"), 1e9 / (alone_s * links.gpu.hbm.value), 1e-8);
    EXPECT_EQ(in.at("hbm"), out.at("hbm"));
    EXPECT_NEAR(both.at("hbm"), 2 * out.at("hbm"), 1e-8);
  }
}

TEST(LinkDirections, CollectivesLoadBoth) {
  const Links links;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllToAll, CollectiveKind::kBroadcast}) {
    // Over two domains of 8 GPUs: both links.
    const std::map<std::string, double> loads = links.loads({.kind = kind, .message = Bytes(1 << 30), .ranks = 16}, TransferSide::kBoth);
    for (const char* link : {"nvlink", "network"}) {
      EXPECT_GT(loads.at(std::string(link) + " in"), 0);
      EXPECT_EQ(loads.at(std::string(link) + " in"), loads.at(std::string(link) + " out"));
    }
  }
}

TEST(LinkDirections, EitherSideTakesAsLong) {
  const Links links;
  const Collective work = gigabyte_send(kNextNode);
  const Cost in = links.model.cost(work, DeviceId{0}, TransferSide::kReceives),
             out = links.model.cost(work, DeviceId{0}, TransferSide::kSends);
  EXPECT_EQ(in.fixed, out.fixed);
  EXPECT_EQ(in.alone, out.alone);
  EXPECT_EQ(in.fixed + in.alone, collective_time(links.gpu, links.cluster, work));
}

TEST(LinkDirections, ASendAndAReceiveTakeTheTimeOfOne) {
  for (const std::int32_t stride : {kNeighbour, kNextNode}) {
    Links links;
    links.transfer(0, 1, stride);
    links.transfer(1, 0, stride);
    EXPECT_EQ(links.end(), collective_time(links.gpu, links.cluster, gigabyte_send(stride))) << stride;
  }
}

TEST(LinkDirections, TwoSendsTakeTwice) {
  // Both share the direction after their latency. 1 GB over 50 GB/s: 20 ms alone, 40 ms together.
  Links links;
  links.transfer(0, 1, kNextNode);
  links.transfer(0, 2, kNextNode);
  const Duration latency = links.model.cost(gigabyte_send(kNextNode), DeviceId{0}).fixed;
  EXPECT_NEAR(seconds(links.end() - latency), 40e-3, 1e-9);
}

TEST(LinkDirections, AnAllReduceBesideATransferSharesItsDirection) {
  // Two ranks a node apart: each sends and receives 2 (n - 1) / n = 1 GB, 20 ms. From the shorter latency on the direction is full until
  // 2 GB are through, 40 ms, whether the GPU sends or receives beside it.
  for (const bool sends : {true, false}) {
    Links links;
    sends ? links.transfer(0, 1, kNextNode) : links.transfer(1, 0, kNextNode);
    links.on_device(0, gigabyte_sum(kNextNode));
    const Duration first = std::min(links.model.cost(gigabyte_send(kNextNode), DeviceId{0}).fixed,
                                    links.model.cost(gigabyte_sum(kNextNode), DeviceId{0}).fixed);
    EXPECT_NEAR(seconds(links.end() - first), 40e-3, 1e-9) << sends;
  }
}

}  // namespace
}  // namespace stepsim
