// The event loop of simulate(): time, streams, queues, and what starts when. Rules: ARCHITECTURE.md, "Time and order".
//
// At one instant: all ends, then markers until none is left, then starts, each time the least (priority, time met, op id) of what can
// start; again while ops without duration end or markers became ready. Rates of shared resources are renewed once, when the instant is
// over.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/contention.h"
#include "sim/event_queue.h"
#include "sim/host_issue.h"
#include "sim/op_costs.h"
#include "sim/op_graph.h"
#include "sim/pool_gate.h"
#include "sim/ready_set.h"
#include "sim/run_plan.h"
#include "sim/step_result.h"

namespace stepsim {

class RunLoop {
 public:
  RunLoop(const OpGraph&, const Machine&, const CostModel&);

  // Timeline, parts, end, deadlock and events; no memory. Call once.
  StepResult run();

 private:
  struct Slot {  // of a running op, or of a part that waits for the others and loads something meanwhile
    OpId op{};
    std::uint32_t run = 0;  // index into timeline; the next free slot if it is free
    TimePoint unslowed_end{};
    bool shares = false;
  };
  struct Server {  // a queue, or a stream that starts any ready op
    std::int32_t free = 0;
    ReadySet waiting;
  };
  struct PartState {  // by part candidate
    bool there = false;
    std::optional<std::uint32_t> slot{};  // while it waits and loads something
  };
  static constexpr std::uint32_t kNoSlot = 0xffffffff;
  bool has(OpId op, RunPlan::Flag flag) const { return (plan_.flags[at(op.index)] & flag) != 0; }

  // What one happening leads to: in run_loop.cc, where the functions are inline because they run once for each op.
  void begin();
  inline void instant();
  inline void take_events();
  inline void run_markers();
  inline void try_start(const Ready&);
  inline void start(OpId);
  inline void end(std::uint32_t slot);
  inline void released(OpId);  // what the end of an op or marker lets go
  inline void leave_stream(std::int32_t candidate);
  inline void let_go(std::int32_t candidate);
  inline void met(std::int32_t candidate);
  inline void arrive(OpId, std::int32_t candidate);
  void issue(IssuerId);
  void order_instant(std::size_t first);
  std::uint32_t new_slot(OpId op) {
    const std::uint32_t slot = free_slot_ == kNoSlot ? static_cast<std::uint32_t>(slots_.size()) : free_slot_;
    if (free_slot_ == kNoSlot) {
      slots_.emplace_back();
    } else {
      free_slot_ = slots_[slot].run;
    }
    slots_[slot].op = op;
    return slot;
  }
  void free_slot(std::uint32_t slot) {
    slots_[slot].run = free_slot_;
    free_slot_ = slot;
  }

  // Slots, bytes and parts (run_starts.cc).
  bool stopped(const Ready&);
  void wake(std::size_t server);
  void wake_pools(OpId);
  void free_servers(OpId);
  bool last_part_there(std::int32_t candidate);

  // After the last event, with ops left (run_deadlock.cc).
  Deadlock deadlock(const std::vector<bool>& done) const;
  OpId first_waiting(const std::vector<bool>& done) const;
  std::int32_t head_of(std::int32_t stream) const;
  std::vector<OpId> waits_for(OpId, const std::vector<bool>& done) const;

  template <class Use>
  void for_each_candidate(OpId op, const Use& use) const {
    if (!has(op, RunPlan::kParts)) return use(op.index);
    const std::int32_t first = plan_.first_part[at(op.index)];
    const auto parts = static_cast<std::int32_t>(graph_.parts(op).size());
    for (std::int32_t part = 0; part < parts; ++part) use(first + part);
  }
  // Calls `use` with each queue that the candidate needs a slot of, and with its stream if that starts any ready op.
  template <class Use>
  void for_each_server(std::int32_t candidate, const Use& use) const {
    const std::span<const QueueId> queues = graph_.queues(plan_.op_of(candidate), plan_.part_of(candidate));
    for (std::size_t i = 0; i < queues.size(); ++i) {
      bool again = false;
      for (std::size_t other = 0; other < i; ++other) again = again || queues[other] == queues[i];
      if (!again) use(at(queues[i].index));
    }
    const std::size_t stream = at(plan_.rows[at(candidate)].stream);
    if (graph_.streams()[stream].any_ready_op) use(graph_.queues().size() + stream);
  }

  const OpGraph& graph_;
  OpCosts costs_;
  RunPlan plan_;
  HostIssue host_;
  PoolGate gate_;
  Contention contention_;

  TimePoint now_{};
  EventQueue events_;
  ReadySet due_;  // candidates that wait for a launch which is not done; met is when it is done
  ReadySet ready_;
  std::vector<std::int32_t> markers_;       // ready
  std::vector<std::uint32_t> stream_next_;  // by stream: its head, in plan_.streams
  std::vector<Server> servers_;             // queues, then streams
  std::vector<Slot> slots_;
  std::uint32_t free_slot_ = kNoSlot;  // head of a list
  std::vector<PartState> parts_;
  StepResult result_;
};

}  // namespace stepsim
