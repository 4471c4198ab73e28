// What each op of a finished timeline waited for: edges, the ops before it on its streams and queues, released bytes of a gated pool, its
// launch. Knows no reason why an op exists.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

class Waits {
 public:
  // Both must outlive it. Linear in ops and edges.
  Waits(const OpGraph&, const StepResult&);

  struct Cause {
    OpId op{};        // none: the op's own launch
    TimePoint met{};  // end of `op`, its start if only that was waited for, or when the launch was done
    bool only_start = false;
  };
  // The condition of `waiting` that was met last, but not after `until`. Tie: an op before a launch, then the lower id. None: no condition.
  std::optional<Cause> last_cause(OpId waiting, TimePoint until) const;

  // The op that last held up the thread that launched `launched`: among what this launch and those before it had to come after, of the
  // latest launch that had to, the one that ended last. None: launches only waited for one another.
  OpId held_up_launch(OpId launched) const { return held_up_.empty() ? OpId{} : held_up_[static_cast<std::size_t>(launched.index)]; }

  // None if the op did not run.
  const OpRun* run(OpId op) const;

  // From when a part had its stream and queues: the start of the op, or earlier if the part waited for the others. The op must have run.
  TimePoint occupied(OpId op, std::int32_t part) const;

 private:
  void note(OpId waiting, OpId before);
  void note_streams();
  void note_queues_and_ready_streams();
  void note_gated_pools();
  void note_launches();

  const OpGraph& graph_;
  const StepResult& result_;
  std::vector<std::int32_t> run_;                    // by op: index into the timeline, -1 if it did not run
  std::vector<OpId> before_;                         // by op: what freed its streams, queues or bytes last; none if they were free
  std::vector<OpId> held_up_;                        // by op: what held up its launch; empty: nothing held up any
  std::vector<std::pair<OpId, OpId>> before_parts_;  // all such pairs of ops with several parts, which come in place at different times
};

// Keeps a walk from cause to cause out of circles: at one instant ops without duration can seem to wait for one another, since a timeline
// does not say which of them came first.
class Trail {
 public:
  explicit Trail(const OpGraph& graph) : seen_(graph.ops().size(), TimePoint::min()) {}
  // False if the op was entered at this time before.
  bool enter(OpId op, TimePoint time) { return std::exchange(seen_[static_cast<std::size_t>(op.index)], time) != time; }

 private:
  std::vector<TimePoint> seen_;  // by op
};

}  // namespace stepsim
