// Which part of an op receives and which sends, and that the two directions of a device's link do not disturb each other. Times in
// picoseconds.
#include <gtest/gtest.h>

#include "sim/metrics.h"
#include "simulated.h"

namespace stepsim {
namespace {

constexpr std::int32_t kDevices = 3;
constexpr std::int64_t kAlone = 100;

// Resources 2 d and 2 d + 1 are what device d receives and sends by. Every op takes 100 and all of the directions that it uses.
class FullDuplex : public CostModel {
 public:
  FullDuplex() {
    for (std::int32_t device = 0; device < kDevices; ++device) {
      const Load in = load_of(2 * device, 1), out = load_of(2 * device + 1, 1);
      loads_.insert(loads_.end(), {{in, out}, {in}, {out}});  // in the order of TransferSide
    }
  }
  Cost cost(const OpWork&, DeviceId device, TransferSide side) const override {
    return {.fixed = {}, .alone = Duration(kAlone), .issue = {}, .loads = loads_[static_cast<std::size_t>(3 * device.index) + at(side)]};
  }

 private:
  static std::size_t at(TransferSide side) { return static_cast<std::size_t>(side); }
  std::vector<std::vector<Load>> loads_;
};

Given transfer_work() { return {.index = 0, .op_class = Given::Class::kPointToPoint}; }
Given collective_work() { return {.index = 0, .op_class = Given::Class::kCollective}; }

// Each op has streams of its own, so that only the links order them.
struct Links {
  SmallGraph small;
  std::vector<DeviceId> devices;

  Links() {
    for (std::int32_t i = 0; i < kDevices; ++i) devices.push_back(small.builder.add_device());
  }
  StreamId stream(std::size_t device) { return small.stream(devices[device]); }
  // The receiver is the op's first part, as models/ makes it.
  OpId transfer(std::size_t sender, std::size_t receiver) {
    const OpPart sending[] = {{.stream = stream(sender), .queues = {}}};
    return small.add(stream(receiver), transfer_work(), {.writes = {small.storage(devices[receiver], 1)}}, sending);
  }
  Simulated run(const CostModel& costs) {
    OpGraph graph = std::move(small.builder).build();
    StepResult result = simulate(graph, small_machine(kDevices, 2 * kDevices), costs);
    return {.graph = std::move(graph), .result = std::move(result)};
  }
};

TEST(TransferSide, TheWrittenDeviceReceives) {
  Links links;
  const OpId first = links.transfer(0, 1);
  const OpPart receiving[] = {{.stream = links.stream(1), .queues = {}}};
  const OpId second =  // the same, the sender as the first part
      links.small.add(links.stream(0), transfer_work(), {.writes = {links.small.storage(links.devices[1], 1)}}, receiving);
  const OpPart other[] = {{.stream = links.stream(1), .queues = {}}};
  const OpId unwritten = links.small.add(links.stream(0), transfer_work(), {}, other);
  const OpGraph graph = std::move(links.small.builder).build();
  EXPECT_EQ(graph.side(first, 0), TransferSide::kReceives);
  EXPECT_EQ(graph.side(first, 1), TransferSide::kSends);
  for (const OpId op : {second, unwritten}) {
    EXPECT_EQ(graph.side(op, 0), TransferSide::kSends);
    EXPECT_EQ(graph.side(op, 1), TransferSide::kReceives);
  }
}

TEST(TransferSide, OtherOpsDoBoth) {
  Links links;
  const OpId alone = links.small.add(links.stream(0), transfer_work(), {});
  const OpPart second[] = {{.stream = links.stream(1), .queues = {}}};
  const OpId collective = links.small.add(links.stream(0), collective_work(), {}, second);
  const OpPart two_more[] = {{.stream = links.stream(1), .queues = {}}, {.stream = links.stream(2), .queues = {}}};
  const OpId grouped = links.small.add(links.stream(0), transfer_work(), {}, two_more);
  const OpGraph graph = std::move(links.small.builder).build();
  for (const OpId op : {alone, collective, grouped}) {
    const auto parts = static_cast<std::int32_t>(graph.parts(op).size());
    for (std::int32_t part = 0; part < parts; ++part) EXPECT_EQ(graph.side(op, part), TransferSide::kBoth) << op.index << " " << part;
  }
}

TEST(TransferSide, ASendAndAReceiveTakeTheTimeOfOne) {
  Links links;
  const OpId there = links.transfer(0, 1), back = links.transfer(1, 0);
  const Simulated step = links.run(FullDuplex());
  EXPECT_EQ(step.end(there), kAlone);
  EXPECT_EQ(step.end(back), kAlone);
  EXPECT_EQ(step.run(there).slowed.count(), 0);
}

TEST(TransferSide, TwoSendsTakeTwice) {
  Links links;
  const OpId one = links.transfer(0, 1), other = links.transfer(0, 2);
  const Simulated step = links.run(FullDuplex());
  EXPECT_EQ(step.end(one), 2 * kAlone);
  EXPECT_EQ(step.end(other), 2 * kAlone);
}

TEST(TransferSide, TwoReceivesTakeTwice) {
  Links links;
  const OpId one = links.transfer(1, 0), other = links.transfer(2, 0);
  const Simulated step = links.run(FullDuplex());
  EXPECT_EQ(step.end(one), 2 * kAlone);
  EXPECT_EQ(step.end(other), 2 * kAlone);
}

TEST(TransferSide, ACollectiveSharesWithEitherDirection) {
  for (const bool sends : {true, false}) {
    Links links;
    const OpId transfer = sends ? links.transfer(0, 1) : links.transfer(1, 0);
    const OpId collective = links.small.add(links.stream(0), collective_work(), {});
    const Simulated step = links.run(FullDuplex());
    EXPECT_EQ(step.end(transfer), 2 * kAlone);
    EXPECT_EQ(step.end(collective), 2 * kAlone);
  }
}

TEST(TransferSide, UseIsCountedByDirection) {
  // 0 to 1, then 0 to 2: device 0 sends for 200, devices 1 and 2 receive for 100 each.
  Links links;
  const OpId first = links.transfer(0, 1);
  const OpPart sending[] = {{.stream = links.stream(0), .queues = {}}};
  links.small.add(links.stream(2), transfer_work(), {.after = {{first}}, .writes = {links.small.storage(links.devices[2], 1)}}, sending);
  const Simulated step = links.run(FullDuplex());
  const std::vector<ResourceUse> uses = resource_use(step.graph, small_machine(kDevices, 2 * kDevices), FullDuplex(), step.result);
  std::vector<std::int64_t> busy;
  for (const ResourceUse& use : uses) busy.push_back(use.busy.count());
  EXPECT_EQ(busy, (std::vector<std::int64_t>{0, 200, 100, 0, 100, 0}));
}

}  // namespace
}  // namespace stepsim
