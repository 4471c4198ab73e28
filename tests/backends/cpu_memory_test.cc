// The arenas of the CPU backend against the simulator: to the byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "sim/simulate.h"
#include "tests/backends/executed_step.h"

namespace stepsim {

namespace {

using cpu::CountedArena;

Bytes peak_of(const OpGraph& graph, const StepResult& result, MemorySpace space) {
  return memory_peak(graph, result, DeviceId{0}, space).bytes;
}

// Simulated with what each op took in a run of its own.
StepResult simulated(CpuBackend& backend, const TestStep& step) {
  KernelTimes times;
  const MeasuredOps measured = backend.measure(step.graph(), step.ranks.front(), {.repeats = 3});
  times.add(step.graph(), step.ranks.front(), measured, false);
  times.add(step.graph(), step.ranks.front(), measured, true);
  const MeasuredCosts costs = times.costs(step.graph(), step.ranks.front());
  return simulate(costs.graph, costs.machine, costs.costs, {.device = LedgerRule::kDeviceOrder, .host = LedgerRule::kDeviceOrder});
}

// Whether the order of all ops follows from the graph alone, so that the peak depends on no duration: one stream, or copies that compute
// waits for.
bool is_ordered(const PlacementPolicy& policy) { return !policy.offloads() || policy.offload.schedule.synchronous; }

BackendModel random_model(std::mt19937_64& random) {
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  BackendModel model = draw(0, 1) == 0 ? tiny_gpt() : tiny_llama();
  ModelSpec& spec = model.model;
  spec.layers = draw(1, 5);
  spec.head_dim = 2 * draw(2, 10);
  spec.kv_heads = draw(1, 3);
  spec.heads = spec.kv_heads * (spec.position == Position::kRotary ? draw(1, 3) : 1);
  spec.hidden = spec.heads * spec.head_dim;
  spec.ffn_hidden = draw(10, 150);
  spec.vocab = draw(20, 300);
  spec.tied_head = draw(0, 1) == 0;
  model.sequence = draw(2, 31);
  model.micro_batch = draw(1, 3);
  return model;
}

PlacementPolicy random_policy(std::mt19937_64& random, std::int64_t layers) {
  const std::vector<BackendPlacement> placements = backend_placements();
  PlacementPolicy policy = placements[random() % placements.size()].policy;
  if (policy.granularity == RecomputeGranularity::kFull) {
    policy.num_layers = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(layers));
    if (random() % 2 == 0) policy.method = RecomputeMethod::kBlock;
  }
  return policy;
}

}  // namespace

TEST(CountedArena, CountsToTheByte) {
  CountedArena arena;
  std::byte* const first = arena.claim(Bytes(100));
  std::byte* const second = arena.claim(Bytes(7));
  EXPECT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % 64, 0u);
  EXPECT_EQ(arena.in_use(), Bytes(107));
  arena.release(first, Bytes(100));
  EXPECT_EQ(arena.in_use(), Bytes(7));
  EXPECT_EQ(arena.peak(), Bytes(107));
  EXPECT_EQ(arena.claim(Bytes(100)), first);  // the block again
  EXPECT_EQ(arena.peak(), Bytes(107));
  arena.release(second, Bytes(7));
  arena.restart_peak();
  EXPECT_EQ(arena.peak(), Bytes(100));
  arena.release(first, Bytes(100));
}

TEST(CountedArena, RefusesWhatIsAboveItsCapacity) {
  CountedArena arena;
  arena.set_capacity(Bytes(10));
  std::byte* const all = arena.claim(Bytes(10));
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(arena.claim(Bytes(1)), nullptr);
  EXPECT_EQ(arena.available(), Bytes(0));
  arena.release(all, Bytes(10));
  EXPECT_EQ(arena.available(), Bytes(10));
}

TEST(CountedArena, PoisonedMemoryIsNoNumber) {
  CountedArena arena;
  arena.set_poison(true);
  std::byte* const block = arena.claim(Bytes(8));
  float value = 0;
  std::memcpy(&value, block, sizeof value);
  EXPECT_NE(value, value);  // NaN when claimed
  std::memset(block, 0, 8);
  arena.release(block, Bytes(8));
  ASSERT_EQ(arena.claim(Bytes(8)), block);
  std::memcpy(&value, block, sizeof value);
  EXPECT_NE(value, value);  // and again: what it held is gone
  arena.release(block, Bytes(8));
}

// Whatever ran at the same time: what the arenas counted is what the ledger makes of the measured times.
TEST(CpuMemory, IsTheLedgersOfTheMeasuredTimes) {
  CpuBackend backend;
  for (const BackendModel& model : {tiny_gpt(4), tiny_llama(3)}) {
    for (const BackendPlacement& placement : backend_placements()) {
      SCOPED_TRACE(model.name + ", " + std::string(placement.name));
      const TestStep step = executable_step(model, placement.policy);
      const Execution run = std::move(backend.execute(step.graph(), step.ranks, {}).front());
      StepResult ledger = run.result;
      ledger.memory.clear();
      record_memory(step.graph(), plain_machine(1), LedgerRule::kDeviceOrder, LedgerRule::kDeviceOrder, ledger);
      EXPECT_EQ(peak_of(step.graph(), ledger, MemorySpace::kDevice), run.device_peak);
      EXPECT_EQ(peak_of(step.graph(), ledger, MemorySpace::kHost), run.host_peak);
      EXPECT_EQ(peak_of(step.graph(), run.result, MemorySpace::kDevice), run.device_peak);
      Bytes left{};
      for (const MemoryEvent& event : run.result.memory) left += event.bytes;
      Bytes resident{};
      for (const Storage& storage : step.graph().storages()) {
        if (storage.live_at_end) resident += storage.size;
      }
      EXPECT_EQ(left, resident);
    }
  }
}

TEST(CpuMemory, SimulatedPeaksOfRandomModelsAreMeasuredOnes) {
  const char* const given = std::getenv("STEPSIM_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261201;
  RecordProperty("seed", std::to_string(seed));
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  CpuBackend backend;
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    const BackendModel model = random_model(random);
    const PlacementPolicy policy = random_policy(random, model.model.layers);
    const TestStep step = executable_step(model, policy, {.dropout = round % 3 == 0 ? 0.0 : 0.1});
    SCOPED_TRACE("round " + std::to_string(round) + " of " + model.name);
    const Execution run = std::move(backend.execute(step.graph(), step.ranks, {.poison = round % 4 == 0}).front());
    StepResult ledger = run.result;
    ledger.memory.clear();
    record_memory(step.graph(), plain_machine(1), LedgerRule::kDeviceOrder, LedgerRule::kDeviceOrder, ledger);
    EXPECT_EQ(peak_of(step.graph(), ledger, MemorySpace::kDevice), run.device_peak);
    EXPECT_EQ(peak_of(step.graph(), ledger, MemorySpace::kHost), run.host_peak);
    if (!is_ordered(policy)) continue;
    ++compared;
    const StepResult result = simulated(backend, step);
    EXPECT_EQ(peak_of(step.graph(), result, MemorySpace::kDevice), run.device_peak);
    EXPECT_EQ(peak_of(step.graph(), result, MemorySpace::kHost), run.host_peak);
  }
  EXPECT_GT(compared, 20);
}

}  // namespace stepsim
