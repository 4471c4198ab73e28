// Expectations on a schedule that every test of planners shares.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/memory_ledger.h"
#include "sim/simulate.h"
#include "tools/studies/chain_graph.h"
#include "tools/studies/chain_sequence.h"

namespace stepsim {

// It replays within the budget in `time`, and the engine runs it in the same time with the same peaks.
inline void expect_runs(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule, std::int64_t time) {
  const ChainReplay replayed = replay(chain, budget, schedule);
  ASSERT_FALSE(replayed.violation) << *replayed.violation;
  EXPECT_EQ(replayed.time, time);
  EXPECT_LE(replayed.peak, budget.device);
  EXPECT_LE(replayed.host_peak, budget.host);
  const ChainGraph built = chain_graph(chain, budget, schedule);
  const StepResult result = simulate(built.graph, built.machine, GivenCostModel(built.costs), {.device = LedgerRule::kDeviceOrder});
  ASSERT_FALSE(result.deadlock);
  EXPECT_FALSE(result.out_of_memory);
  const MemoryPeak device = memory_peak(built.graph, result, DeviceId{0}, MemorySpace::kDevice);
  const MemoryPeak host = memory_peak(built.graph, result, DeviceId{0}, MemorySpace::kHost);
  EXPECT_EQ(device.bytes, Bytes(replayed.peak));
  EXPECT_EQ(host.bytes, Bytes(replayed.host_peak));
  // Copies may still run when the last backward op has ended; they are not waited for.
  std::int64_t last_backward = 0;
  for (const OpRun& run : result.timeline) {
    if (op_class(built.graph.work(run.op)) == OpClass::kCompute) last_backward = std::max<std::int64_t>(last_backward, run.end.count());
  }
  EXPECT_EQ(last_backward, time);
}

}  // namespace stepsim
