#include "sim/simulate.h"

#include <algorithm>

#include "sim/run_loop.h"

namespace stepsim {

namespace {

// Keeps what started and was claimed not later than the first claim above capacity, to its end; nothing if the residents alone exceed it.
void stop_at_out_of_memory(StepResult& result) {
  const bool nothing_runs = !result.out_of_memory->op.has_value();
  const TimePoint last = result.out_of_memory->at;
  std::erase_if(result.timeline, [&](const OpRun& run) { return nothing_runs || run.start > last; });
  std::erase_if(result.memory, [&](const MemoryEvent& event) { return event.at > last; });
  result.end = TimePoint(0);
  std::vector<OpId> kept;
  for (const OpRun& run : result.timeline) {
    result.end = std::max(result.end, run.end);
    kept.push_back(run.op);
  }
  std::sort(kept.begin(), kept.end());
  std::erase_if(result.parts, [&](const PartRun& part) { return !std::binary_search(kept.begin(), kept.end(), part.op); });
}

}  // namespace

StepResult simulate(const OpGraph& graph, const Machine& machine, const CostModel& model, const SimulateOptions& options) {
  StepResult result = RunLoop(graph, machine, model).run();
  if (!options.memory || graph.storages().empty()) return result;  // without storages the ledger has nothing to say
  record_memory(graph, machine, options.device, options.host, result);
  if (options.stop_at_out_of_memory && result.out_of_memory) stop_at_out_of_memory(result);
  return result;
}

}  // namespace stepsim
