// Part of RunLoop: who gets a slot or bytes, and parts that wait for one another.
#include "sim/run_loop.h"

namespace stepsim {

// Whether a slot or bytes are missing; it then waits there and reserves nothing elsewhere, so others may have what it leaves.
bool RunLoop::stopped(const Ready& ready) {
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t missing = kNone;
  for_each_server(ready.candidate, [&](std::size_t server) {
    if (missing == kNone && servers_[server].free == 0) missing = server;
  });
  bool stops = missing != kNone;
  if (stops) servers_[missing].waiting.push(ready);
  const bool gated = has(ready.op, RunPlan::kGated);
  const bool starts = !has(ready.op, RunPlan::kParts) || plan_.rows[at(ready.op.index)].unmet == 1;
  if (!stops && gated && starts) {
    if (const std::optional<std::int32_t> pool = gate_.stopped_by(ready)) {
      gate_.wait(*pool, ready);
      stops = true;
    }
  }
  if (!stops) return false;
  for_each_server(ready.candidate, [&](std::size_t server) {
    if (server != missing) wake(server);
  });
  if (gated) wake_pools(ready.op);
  return true;
}

void RunLoop::wake(std::size_t server) {
  Server& state = servers_[server];
  if (state.free > 0 && !state.waiting.empty()) ready_.push(state.waiting.pop());
}

void RunLoop::wake_pools(OpId op) {
  while (const std::optional<Ready> next = gate_.next(op)) ready_.push(*next);
}

void RunLoop::free_servers(OpId op) {
  for_each_candidate(op, [&](std::int32_t candidate) {
    for_each_server(candidate, [&](std::size_t server) {
      ++servers_[server].free;
      wake(server);
    });
  });
}

// The part occupies its stream and queues. True if all parts are there now; until then it loads what it loads while waiting.
bool RunLoop::last_part_there(std::int32_t candidate) {
  const OpId op = plan_.op_of(candidate);
  result_.parts.push_back({.op = op, .part = plan_.part_of(candidate), .occupied = now_});
  PartState& state = parts_[at(candidate) - plan_.ops()];
  state.there = true;
  if (--plan_.rows[at(op.index)].unmet > 0) {
    const OpCosts::Row& cost = costs_.row(plan_.rows[at(candidate)].cost);
    if (cost.waiting == 0) return false;
    state.slot = new_slot(op);
    contention_.join_waiting(*state.slot, {costs_.waiting_loads(cost), cost.first_waiting});
    return false;
  }
  for_each_candidate(op, [&](std::int32_t each) {
    std::optional<std::uint32_t>& slot = parts_[at(each) - plan_.ops()].slot;
    if (!slot) return;
    contention_.leave(*slot);
    free_slot(*slot);
    slot.reset();
  });
  return true;
}

}  // namespace stepsim
