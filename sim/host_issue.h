// Host threads that launch ops: each launches in order, one after another, and waits where it must. Knows nothing of streams.
//
// A launch begins at the latest of: the end of the launch before it, the ends of what the op is issued after, and the moment when fewer
// than run_ahead launches of the thread are issued and not yet started. It takes the issue cost; an op cannot start before its launch is
// done. Consecutive ops of one launch group are one launch: it waits for what any of them is issued after, takes the cost of the first that
// is not a marker, and has started when the first of them starts. A marker by itself is no launch: it costs nothing and is issued as soon
// as the thread gets to it. Times are running sums: a thread runs ahead of the simulated time until something blocks it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/op_costs.h"
#include "sim/op_graph.h"
#include "sim/run_plan.h"

namespace stepsim {

class HostIssue {
 public:
  static constexpr TimePoint kNotIssued = TimePoint::max();

  HostIssue(const OpGraph&, const RunPlan&, const OpCosts&);

  // When the launch of the op is done (maybe in the future); kNotIssued if the thread has not got there. 0 without an issuer.
  TimePoint issued(OpId op) const { return launches_.empty() ? TimePoint(0) : launches_[index(op)].issued; }

  // Lets a thread launch what it can; it was blocked until `now`. The ops it launched, in order.
  std::span<const OpId> advance(IssuerId, TimePoint now);

  // An op with an issuer, not a marker, has started. The thread to advance if it was blocked by run-ahead.
  IssuerId started(OpId);
  // An op has ended. The threads to advance because they waited for it; valid until the next call.
  std::span<const IssuerId> ended(OpId op) { return has_ended_.empty() ? std::span<const IssuerId>() : waiting_for(op); }

  // What a thread that has not launched everything waits for: an op to end, or else some launch to start.
  struct Block {
    OpId op{};
    std::span<const OpId> launched{};  // if op is none: all it has launched, started or not
  };
  Block block(IssuerId) const;

 private:
  struct Thread {
    std::span<const OpId> order{};  // of all its ops
    TimePoint free{};               // end of its last launch
    std::size_t next = 0;           // in issue_order
    std::size_t checked = 0;        // ops of the next launch, up to here, wait for nothing more
    std::int32_t outstanding = 0;   // launches issued and not yet started
    std::int32_t run_ahead = 1;
    OpId waits_for{};
    bool full = false;        // blocked by run-ahead
    IssuerId next_waiting{};  // for the same op
  };
  struct Launch {
    TimePoint issued{};
    IssuerId issuer{};
    std::int32_t cost = -1;  // row; -1 for markers
  };
  static std::size_t index(OpId op) { return static_cast<std::size_t>(op.index); }
  std::size_t launch_end(std::span<const OpId> order, std::size_t begin) const;
  std::span<const IssuerId> waiting_for(OpId);
  bool waits(IssuerId, std::span<const OpId> order, std::size_t end);

  const OpGraph& graph_;
  const OpCosts& costs_;
  std::vector<Thread> threads_;
  std::vector<Launch> launches_;         // by op; empty without issuers
  std::vector<OpId> launch_;             // by op: one op of its launch, the same for all; empty without launch groups
  std::vector<bool> launch_started_;     // by that op; empty without launch groups
  std::vector<bool> has_ended_;          // by op; empty if no op is issued after another
  std::vector<IssuerId> first_waiting_;  // by op: threads that wait for it to end; empty likewise
  std::vector<IssuerId> resumed_;
};

}  // namespace stepsim
