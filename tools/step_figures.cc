#include "tools/step_figures.h"

#include <algorithm>

namespace stepsim {

StepFigures figures_of(const GraphRun& run) {
  const DeviceMemory& worst = run.worst();
  const std::int64_t over = worst.capacity ? worst.peak.bytes.value - worst.capacity->value : 0;
  StepFigures figures{.step = run.result.end,
                      .peak = worst.peak.bytes,
                      .short_by = Bytes(std::max(over, std::int64_t{0})),
                      .fits = !run.result.out_of_memory.has_value()};
  for (const DeviceMemory& device : run.memory) {
    figures.host_peak = std::max(figures.host_peak, device.host_peak);
    if (device.host_capacity && device.host_peak > *device.host_capacity) {
      figures.host_short_by = std::max(figures.host_short_by, device.host_peak - *device.host_capacity);
    }
  }
  figures.fits_cards = figures.fits;
  return figures;
}

static StepFigures figures_of(const GraphRun& run, const StepMemory& memory) {
  StepFigures figures = figures_of(run);
  if (!memory.replayed()) return figures;
  figures.reserved = reserved_peak(memory.devices[memory.fullest]);
  figures.fits_cards = figures.fits && memory.fits();
  return figures;
}

StepFigures figures_of(const StepRun& run) { return figures_of(run.run, run.allocation); }

StepFigures figures_with(const Job& job, const StepRun& run, const PlacementPolicy& policy) {
  StepRequest request = step_request(job);
  request.placement = policy;
  BuiltStep step = build_step(request);
  const std::vector<StorageId> born = first_born(step.graph);
  const GraphRun other = run_built(job, step, run.run.machine, *run.costs);
  return figures_of(other, step_memory(job, step.graph, other, born));
}

}  // namespace stepsim
