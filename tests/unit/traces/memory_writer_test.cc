#include "traces/memory_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/unit/traces/traced_step.h"

namespace stepsim {
namespace {

std::string memory_csv(const OpGraph& graph, const StepResult& result, std::span<const std::string_view> roles) {
  std::string text;
  write_memory_csv(graph, result, roles, [&](std::string_view piece) { text += piece; });
  return text;
}

struct TwoStorages {
  OpGraph graph;
  StorageId weights, activation, other;
};

TwoStorages two_storages() {
  OpGraphBuilder builder;
  const DeviceId device = builder.add_device();
  const LabelId weight = builder.label("weights", 0), activation = builder.label("activations", 1);
  TwoStorages made;
  made.weights = builder.add_storage({.size = Bytes(1000), .role = weight, .name = {}, .device = device});
  made.activation = builder.add_storage({.size = Bytes(20), .role = activation, .name = {}, .device = device});
  made.other = builder.add_storage({.size = Bytes(20), .role = activation, .name = {}, .device = device, .space = MemorySpace::kHost});
  made.graph = std::move(builder).build();
  return made;
}

constexpr std::array<std::string_view, 2> kRoles = {"weights", "the \"act\", or so"};

TEST(MemoryWriter, OneRowAnInstant) {
  const TwoStorages two = two_storages();
  StepResult result;
  result.memory = {{.at = Duration(0), .storage = two.weights, .by = {}, .bytes = Bytes(1000)},
                   {.at = Duration(1'500'000), .storage = two.activation, .by = {}, .bytes = Bytes(20)},
                   {.at = Duration(1'500'000), .storage = two.other, .by = {}, .bytes = Bytes(20)},
                   {.at = Duration(2'000'001), .storage = two.activation, .by = {}, .bytes = Bytes(-20)}};
  EXPECT_EQ(memory_csv(two.graph, result, kRoles),
            "time_s,device,space,in_use_bytes,weights,\"the \"\"act\"\", or so\"\n"
            "0.000000000000,0,device,1000,1000,0\n"
            "0.000001500000,0,device,1020,1000,20\n"
            "0.000001500000,0,host,20,0,20\n"
            "0.000002000001,0,device,1000,1000,0\n");
}

TEST(MemoryWriter, AnAllocatorHasTwoColumns) {
  const TwoStorages two = two_storages();
  StepResult result;
  result.memory = {{.at = Duration(0), .storage = two.weights, .by = {}, .bytes = Bytes(1000)},
                   {.at = Duration(3), .storage = two.other, .by = {}, .bytes = Bytes(20)},
                   {.at = Duration(7), .storage = two.activation, .by = {}, .bytes = Bytes(20)},
                   {.at = Duration(7), .storage = two.activation, .by = {}, .bytes = Bytes(-20)},
                   {.at = Duration(9), .storage = two.weights, .by = {}, .bytes = Bytes(-1000)}};
  AllocatorCurve curve(1);
  const auto add = [&](std::int64_t at, std::int64_t allocated) {
    const AllocatorUse use{.allocated = Bytes(allocated), .reserved = Bytes(2 << 20)};
    curve.add({Duration(at), DeviceId{0}, use});
  };
  for (const auto& [at, allocated] : {std::pair(0, 1024), std::pair(7, 1536), std::pair(7, 1024), std::pair(9, 0)}) add(at, allocated);
  std::string text;
  write_memory_csv(
      two.graph, result, kRoles, [&](std::string_view piece) { text += piece; }, &curve);
  EXPECT_EQ(text,
            "time_s,device,space,in_use_bytes,weights,\"the \"\"act\"\", or so\",allocated_bytes,reserved_bytes\n"
            "0.000000000000,0,device,1000,1000,0,1024,2097152\n"
            "0.000000000003,0,host,20,0,20,,\n"
            "0.000000000007,0,device,1020,1000,20,1536,2097152\n"
            "0.000000000007,0,device,1000,1000,0,1024,2097152\n"
            "0.000000000009,0,device,0,0,0,0,2097152\n");
}

// Claim first, release after, at one host instant: the peak of 1020 would not show in the state after the instant.
TEST(MemoryWriter, PeakWithinAnInstantHasARow) {
  const TwoStorages two = two_storages();
  StepResult result;
  result.memory = {{.at = Duration(0), .storage = two.weights, .by = {}, .bytes = Bytes(1000)},
                   {.at = Duration(7), .storage = two.activation, .by = {}, .bytes = Bytes(20)},
                   {.at = Duration(7), .storage = two.weights, .by = {}, .bytes = Bytes(-1000)},
                   {.at = Duration(9), .storage = two.weights, .by = {}, .bytes = Bytes(1000)},
                   {.at = Duration(9), .storage = two.weights, .by = {}, .bytes = Bytes(-1000)},  // 1020 again: no new maximum
                   {.at = Duration(11), .storage = two.weights, .by = {}, .bytes = Bytes(1001)},
                   {.at = Duration(11), .storage = two.weights, .by = {}, .bytes = Bytes(-1000)}};
  EXPECT_EQ(memory_csv(two.graph, result, {}),
            "time_s,device,space,in_use_bytes,role 0,role 1\n"
            "0.000000000000,0,device,1000,1000,0\n"
            "0.000000000007,0,device,1020,1000,20\n"
            "0.000000000007,0,device,20,0,20\n"
            "0.000000000011,0,device,1021,1001,20\n"
            "0.000000000011,0,device,21,1,20\n");
}

TEST(MemoryWriter, LargestRowIsThePeak) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/offload.textproto");
  for (const LedgerRule rule : {LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, LedgerRule::kScheduleOrder}) {
    const StepResult result = run_graph(file, {.device = rule});
    std::int64_t largest = 0;
    std::string text = memory_csv(file.graph, result, {});
    for (std::size_t line = text.find('\n'); line + 1 < text.size(); line = text.find('\n', line + 1)) {
      const std::size_t device = text.find(",device,", line + 1);
      if (device < text.find('\n', line + 1)) largest = std::max<std::int64_t>(largest, std::stoll(text.substr(device + 8)));
    }
    EXPECT_EQ(largest, memory_peak(file.graph, result, DeviceId{0}, MemorySpace::kDevice).bytes.value);
    EXPECT_GE(largest, 400 << 20);  // weights and one activation at least
  }
}

}  // namespace
}  // namespace stepsim
