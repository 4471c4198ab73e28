// The usual placements tried on a job in place of its own: which frees memory for the least time, which saves time for the least memory.
// Knows no form of output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/offload_verdict.h"
#include "tools/step_figures.h"

namespace stepsim {

struct PlacementAlternative {
  PlacementPolicy policy{};
  std::string flags{};  // that say it, where the job's placement section says nothing
  StepFigures figures{};
};

struct PlacementAlternatives {
  std::string not_searched{};  // why, "" if it was
  StepFigures own{};
  std::vector<PlacementAlternative> tried{};
  std::optional<OffloadVerdict> offload{};  // none: the job moves nothing to the host, or nothing was to be tried
};

// Above this many ops of all alternatives together nothing is tried: `run` shall answer at once.
inline constexpr std::int64_t kMostAlternativeOps = 300'000;

// Policies that the model takes and that are not the job's own, in a fixed order.
std::vector<PlacementPolicy> usual_placements(const Job& job);

// "--recompute full --recompute-method block --recompute-num-layers 16". For policies of usual_placements(): no segments, no rows.
std::string placement_flags(const PlacementPolicy& policy);

// Each on the machine of the run and in the job's kind of iteration. Not searched when the job stops at out of memory: its time is not
// that of a step.
PlacementAlternatives placement_alternatives(const Job& job, const StepRun& run);

// Lowers the peak by 1 % or 64 MiB, at least. One that is no slower wins over all slower ones, of several the one that frees most;
// otherwise the least time per byte.
std::optional<std::size_t> cheapest_memory(const StepFigures& own, const std::vector<PlacementAlternative>& tried);

// Shortens the step by 0.1 % at least. Those that fit before those that do not; then one that takes no more memory, of several the
// fastest; otherwise the fewest bytes per time.
std::optional<std::size_t> cheapest_time(const StepFigures& own, const std::vector<PlacementAlternative>& tried);

}  // namespace stepsim
