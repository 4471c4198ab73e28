// How far each op of a running step is: what threads of other streams wait for. Waiting looks for a while, as the wait is often short, then
// sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim::cpu {

class OpProgress {
 public:
  explicit OpProgress(std::size_t ops) : states_(ops) {}

  void started(OpId op) { set(op, kStarted); }
  void done(OpId op) { set(op, kDone); }
  // Returns false if the step was stopped.
  bool wait_started(OpId op) { return wait(op, kStarted); }
  bool wait_done(OpId op) { return wait(op, kDone); }

  void stop();  // nobody waits any more
  const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  enum State : int { kWaiting, kStarted, kDone };
  void set(OpId op, State state);
  bool wait(OpId op, State state);

  std::vector<std::atomic<int>> states_;
  std::atomic<bool> stopped_{false};
};

}  // namespace stepsim::cpu
