#include "tests/properties/pipeline_oracle.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "sim/units.h"

namespace stepsim {

namespace {

// Groups of as many micro-batches as stages, through all chunks of the stage before the next group (2104.04473 section 2.2, figure 4).
std::vector<OraclePass> in_turn(const OraclePipeline& of, char kind) {
  std::vector<OraclePass> passes;
  const int group = of.chunks == 1 ? of.micro_batches : of.stages;
  for (int first = 0; first < of.micro_batches; first += group) {
    for (int turn = 0; turn < of.chunks; ++turn) {
      const int chunk = kind == 'F' ? turn : of.chunks - 1 - turn;
      for (int i = 0; i < group; ++i) passes.push_back({kind, chunk, first + i});
    }
  }
  return passes;
}

// How many forward passes may wait for their backward passes (placement_and_memory.md, section 4).
int most_in_flight(const OraclePipeline& of, int stage) {
  if (of.schedule == "gpipe") return of.micro_batches;
  if (of.schedule == "interleaved") return 2 * (of.stages - stage - 1) + (of.chunks - 1) * of.stages + 1;
  return of.stages - stage;
}

}  // namespace

// Forward as long as that is allowed, otherwise backward; zero bubble H1: a weight pass behind each backward pass but the first `stage`.
std::vector<OraclePass> oracle_order(const OraclePipeline& of, int stage) {
  const std::vector<OraclePass> forward = in_turn(of, 'F'), backward = in_turn(of, 'B');
  const bool zero_bubble = of.schedule == "zb-h1";
  std::vector<OraclePass> order;
  std::size_t forwards = 0, backwards = 0;
  int weights = 0;
  while (backwards < backward.size()) {
    const bool allowed = static_cast<int>(forwards - backwards) < most_in_flight(of, stage);
    if (forwards < forward.size() && allowed) {
      order.push_back(forward[forwards++]);
      continue;
    }
    order.push_back(backward[backwards++]);
    if (zero_bubble && static_cast<int>(backwards) > stage) order.push_back({'W', 0, weights++});
  }
  while (zero_bubble && weights < of.micro_batches) order.push_back({'W', 0, weights++});
  return order;
}

OracleOutcome oracle_outcome(const OraclePipeline& of) {
  std::vector<std::vector<OraclePass>> orders;
  for (int stage = 0; stage < of.stages; ++stage) orders.push_back(oracle_order(of, stage));
  std::map<std::tuple<char, int, int>, std::int64_t> ends;          // by kind, model part and micro-batch
  std::map<std::pair<int, char>, std::int64_t> last_end, link_end;  // by receiving stage and kind
  std::vector<std::int64_t> free(at(of.stages), 0);
  std::vector<std::size_t> next(at(of.stages), 0);
  const auto run = [&](int stage) {  // whether its next pass could be timed
    const OraclePass& pass = orders[at(stage)][next[at(stage)]];
    const int part = pass.chunk * of.stages + stage, parts = of.chunks * of.stages;
    const int source = pass.kind == 'F' ? part - 1 : pass.kind == 'B' ? part + 1 : part;
    std::int64_t arrival = 0;
    if (pass.kind != 'W' && source >= 0 && source < parts) {
      const auto made = ends.find({pass.kind, source, pass.micro_batch});
      if (made == ends.end()) return false;
      arrival = made->second;
      if (source % of.stages != stage) {
        const std::pair<int, char> link{stage, pass.kind};
        arrival = std::max({arrival, last_end[link], link_end[link]}) + of.transfer;
        link_end[link] = arrival;
      }
    }
    const OracleDurations& durations = of.durations[at(stage)];
    const std::int64_t duration = pass.kind == 'F' ? durations.forward : pass.kind == 'B' ? durations.backward : durations.weight;
    const std::int64_t end = std::max(free[at(stage)], arrival) + duration;
    free[at(stage)] = last_end[{stage, pass.kind}] = ends[{pass.kind, part, pass.micro_batch}] = end;
    ++next[at(stage)];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < of.stages; ++stage) {
      while (next[at(stage)] < orders[at(stage)].size() && run(stage)) moved = true;
    }
  }
  OracleOutcome outcome;
  for (int stage = 0; stage < of.stages; ++stage) {
    if (next[at(stage)] < orders[at(stage)].size()) throw std::logic_error("the oracle's passes wait for one another");
    std::int64_t backward = 0, weight = 0, most_backward = 0, most_weight = 0;
    for (const OraclePass& pass : orders[at(stage)]) {
      backward += pass.kind == 'F' ? 1 : pass.kind == 'B' ? -1 : 0;
      weight += pass.kind == 'F' ? 1 : pass.kind == 'W' ? -1 : 0;
      most_backward = std::max(most_backward, backward);
      most_weight = std::max(most_weight, weight);
    }
    outcome.makespan = std::max(outcome.makespan, free[at(stage)]);
    outcome.until_backward.push_back(most_backward);
    if (of.schedule == "zb-h1") outcome.until_weight.push_back(most_weight);
  }
  return outcome;
}

}  // namespace stepsim
