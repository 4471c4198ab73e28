#include "tools/step_shares.h"

#include <algorithm>
#include <array>

#include "models/vocabulary.h"
#include "sim/check.h"

namespace stepsim {

namespace {

struct WithoutSize {
  OpWork operator()(const Gemm& work) const { return work; }
  OpWork operator()(const Attention& work) const {
    return Attention{
        .head_dim = work.head_dim, .dtype = work.dtype, .causal = work.causal, .backward = work.backward, .kernel = work.kernel};
  }
  OpWork operator()(const MemoryBound& work) const { return MemoryBound{.kernel = work.kernel}; }
  OpWork operator()(const Collective& work) const {
    return Collective{.kind = work.kind, .ranks = work.ranks, .stride = work.stride, .library = work.library};
  }
  OpWork operator()(const Copy& work) const { return Copy{.direction = work.direction, .pinned = work.pinned}; }
  template <class Other>
  OpWork operator()(const Other& work) const {
    return work;
  }
};

StepPass pass_of(const OpGraph& graph, OpId op) {
  switch (static_cast<Phase>(graph.bucket(graph.op(op).phase))) {
    case Phase::kForward:
    case Phase::kRecompute:
      return StepPass::kForward;
    case Phase::kBackward:
      return StepPass::kBackward;
    case Phase::kOptimizer:
      break;
  }
  return StepPass::kOther;
}

}  // namespace

OpWork without_size(const OpWork& work) { return std::visit(WithoutSize{}, work); }

StepShares step_shares(const OpGraph& graph, const StepResult& result, const std::vector<PathStep>& path) {
  std::vector<Duration> slowed(graph.ops().size());
  for (const OpRun& run : result.timeline) slowed[static_cast<std::size_t>(run.op.index)] = run.slowed;
  std::array<std::vector<Duration>, 3> by_work{};  // by pass
  for (std::vector<Duration>& works : by_work) works.resize(graph.works().size());
  StepShares shares{.step = result.end};
  TimePoint until = result.end;  // backwards: each instant belongs to the step of the path that started last
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const TimePoint end = std::min(step->start + step->duration, until), start = std::min(step->start, until);
    shares.host += until - end;
    const Duration lost = std::clamp(slowed[static_cast<std::size_t>(step->op.index)], Duration(0), end - start);
    shares.slowed += lost;
    by_work[static_cast<std::size_t>(pass_of(graph, step->op))][static_cast<std::size_t>(graph.op(step->op).work.index)] +=
        end - start - lost;
    until = start;
  }
  shares.host += until;
  Duration sum = shares.slowed + shares.host;
  for (std::size_t pass = 0; pass < by_work.size(); ++pass) {
    for (std::size_t i = 0; i < by_work[pass].size(); ++i) {
      const Duration time = by_work[pass][i];
      if (time > Duration(0)) shares.work[{static_cast<StepPass>(pass), without_size(graph.works()[i])}] += time;
      sum += time;
    }
  }
  STEPSIM_CHECK(sum == shares.step);
  return shares;
}

}  // namespace stepsim
