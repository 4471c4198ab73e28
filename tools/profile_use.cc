#include "tools/profile_use.h"

#include <fmt/format.h>

#include <set>

namespace stepsim {

std::optional<ProfileUse> profile_use(const Job& job, const StepRun& run) {
  if (run.profiled == nullptr) return std::nullopt;
  ProfileUse use{.file = job.profile->file, .kernels = job.profile->kernels.size()};
  const OpGraph& graph = run.step.graph;
  std::set<WorkId> seen;
  for (const OpRun& timed : run.run.result.timeline) {
    const WorkId id = graph.op(timed.op).work;
    const OpWork& work = graph.work(id);
    if (std::holds_alternative<Marker>(work)) continue;
    OriginUse& origin = use.origins[static_cast<std::size_t>(run.profiled->origin(work))];
    if (seen.insert(id).second) ++origin.works;
    ++origin.ops;
    origin.time += timed.end - timed.start;
  }
  return use;
}

std::vector<std::string> all_assumed(const Job& job, const StepRun& run) {
  std::vector<std::string> sentences;
  if (const std::optional<ProfileUse> use = profile_use(job, run)) {
    Duration all{};
    for (const OriginUse& origin : use->origins) all += origin.time;
    const auto share = [&](CostOrigin origin) {
      return all.count() > 0 ? 100 * seconds(use->origins[static_cast<std::size_t>(origin)].time) / seconds(all) : 0;
    };
    sentences.push_back(fmt::format("profile {}: of the ops' time {:.1f} % measured, {:.1f} % interpolated, {:.1f} % modelled", use->file,
                                    share(CostOrigin::kMeasured), share(CostOrigin::kInterpolated), share(CostOrigin::kModelled)));
  }
  sentences.insert(sentences.end(), job.assumed.begin(), job.assumed.end());
  return sentences;
}

}  // namespace stepsim
