#include "tools/studies/pofo.h"

#include <algorithm>
#include <limits>

#include "sim/check.h"

namespace stepsim {

namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostUnits = 1 << 12;  // a State packs its units in twelve bits each

double real(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

PofoTable::PofoTable(const Chain& chain, std::int64_t budget_units, std::int64_t unit)
    : chain_(chain), unit_(unit), rotor_(chain, budget_units, unit) {
  STEPSIM_CHECK(chain.has_copies());
  STEPSIM_CHECK(budget_units < kMostUnits);
  std::int64_t size = 0, time = 0;
  for (int i = 1; i <= chain.layers(); ++i) {
    size += units(chain.saved[by_layer(i)]) * 2;
    time += chain.saved_copy[by_layer(i)].out + chain.saved_copy[by_layer(i)].in;
  }
  rate_ = real(std::max<std::int64_t>(size, 1)) / real(std::max<std::int64_t>(time, 1));
}

std::int64_t PofoTable::input_units(const State& state) const {
  if (state.layer == 0) return 0;  // the network's input: always there
  return units(state.saved ? chain_.saved[by_layer(state.layer)] : chain_.output[from_zero(state.layer)]);
}

std::optional<PofoTable::Passage> PofoTable::kept_passage(const State& state) const {
  const std::size_t next = from_zero(state.layer);  // by_layer of the layer that runs
  const std::int64_t input = input_units(state), memory = available_ - state.kept - input;
  const std::int64_t saved = units(chain_.saved[next]);
  const std::int64_t forward = saved + units(chain_.forward_transient[next]);
  const std::int64_t backward =
      saved + units(chain_.gradient[next + 1]) + units(chain_.gradient[next]) + units(chain_.backward_transient[next]);
  if (std::max(forward, backward) > memory) return std::nullopt;
  const double wait_forward = real(std::max<std::int64_t>(0, forward - available_ + state.kept + state.to_offload + input));
  const double wait_backward = real(std::max<std::int64_t>(0, backward - available_ + state.kept + state.to_prefetch + input));
  const double forward_time = real(chain_.forward_time[next]), backward_time = real(chain_.backward_time[next]);
  return Passage{forward_time + backward_time + (wait_forward + wait_backward) / rate_, forward_time * rate_ + wait_forward,
                 backward_time * rate_ + wait_backward};
}

std::optional<PofoTable::Passage> PofoTable::rerun_passage(const State& state, int next) const {
  const std::int64_t input = input_units(state), memory = available_ - state.kept - input;
  const std::optional<std::int64_t> again = rotor_.time(state.layer + 1, next, memory);
  if (!again) return std::nullopt;
  double forward_time = 0, most = 0;
  for (int i = state.layer + 1; i <= next; ++i) {
    const std::int64_t read = i == state.layer + 1 ? 0 : units(chain_.output[from_zero(i - 1)]);
    const std::int64_t need = read + units(chain_.output[from_zero(i)]) + units(chain_.forward_transient[by_layer(i)]);
    if (need > memory) return std::nullopt;
    most = std::max(most, real(need) - rate_ * forward_time);
    forward_time += real(chain_.forward_time[by_layer(i)]);
  }
  const double wait = std::max(0.0, most - real(available_) + real(state.kept + state.to_offload + input));
  const double copies = real(state.to_prefetch) / rate_, compute = real(*again);
  const double backward_time = (std::max(compute, copies) + compute + copies) / 2;  // the approximation of that solver
  return Passage{forward_time + wait / rate_ + backward_time, forward_time * rate_ + wait, backward_time * rate_};
}

PofoTable::State PofoTable::following(const State& state, std::int64_t input, const Passage& passage, int next, bool keeps, bool offloads) {
  const auto left = [](std::int64_t units, double done) { return std::max<std::int64_t>(0, units - static_cast<std::int64_t>(done)); };
  return {.layer = next,
          .saved = keeps,
          .kept = state.kept + (offloads ? 0 : input),
          .to_offload = left(state.to_offload + (offloads ? input : 0), passage.offloaded),
          .to_prefetch = left(state.to_prefetch, passage.prefetched) + (offloads ? input : 0)};
}

void PofoTable::consider(const State& state, const Passage& passage, int next, bool keeps, Choice& found) {
  const std::int64_t input = input_units(state);
  for (const bool offloads : {false, true}) {
    if (offloads && input == 0) continue;
    const State after = following(state, input, passage, next, keeps, offloads);
    // What has not gone yet is in the way now, or the wait for it is counted later.
    if (after.kept > available_ || std::max(after.to_offload, after.to_prefetch) >= kMostUnits) continue;
    const double time = passage.time + best(after).time;
    if (time < found.time) found = {time, next, keeps, offloads};
  }
}

PofoTable::Choice PofoTable::best(const State& state) {
  const auto packed = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t key = ((packed(state.layer) << 1 | (state.saved ? 1 : 0)) << 36) | packed(state.kept) << 24 |
                            packed(state.to_offload) << 12 | packed(state.to_prefetch);
  const auto known = choices_.find(key);
  if (known != choices_.end()) return known->second;
  Choice found{.time = kImpossible};
  if (state.layer == chain_.layers()) {
    const std::int64_t memory = available_ - state.kept - input_units(state);
    if (units(chain_.gradient.back()) <= memory) found.time = real(chain_.loss_time) + real(state.to_offload + state.to_prefetch) / rate_;
  } else {
    if (const auto passage = kept_passage(state)) consider(state, *passage, state.layer + 1, true, found);
    for (int next = state.layer + 1; next <= chain_.layers(); ++next) {
      if (const auto passage = rerun_passage(state, next)) consider(state, *passage, next, false, found);
    }
  }
  choices_.emplace(key, found);
  return found;
}

std::optional<PofoPlan> PofoTable::plan(std::int64_t budget_units) {
  available_ = budget_units - units(chain_.output[0]);
  choices_.clear();
  if (available_ < 0 || best({}).time == kImpossible) return std::nullopt;
  PofoPlan plan{{}, {std::vector<bool>(chain_.output.size()), std::vector<bool>(chain_.output.size())}};
  struct Step {
    State state;
    Choice choice;
  };
  std::vector<Step> steps;
  for (State state; state.layer < chain_.layers();) {
    const Choice choice = best(state);
    steps.push_back({state, choice});
    if (choice.offloads) (state.saved ? plan.offload.saved : plan.offload.output)[from_zero(state.layer)] = true;
    const auto passage = choice.keeps ? kept_passage(state) : rerun_passage(state, choice.next);
    STEPSIM_CHECK(passage);
    state = following(state, input_units(state), *passage, choice.next, choice.keeps, choice.offloads);
  }
  for (const Step& step : steps) {
    const ChainActionKind kind = step.choice.keeps ? ChainActionKind::kForwardSaved : ChainActionKind::kForward;
    for (int i = step.state.layer + 1; i <= step.choice.next; ++i) plan.ops.push_back({kind, i});
  }
  plan.ops.push_back({ChainActionKind::kLoss});
  for (std::size_t i = steps.size(); i-- > 0;) {
    const State& state = steps[i].state;
    if (steps[i].choice.keeps) {
      plan.ops.push_back({ChainActionKind::kBackward, steps[i].choice.next});
    } else {
      rotor_.append_ops(state.layer + 1, steps[i].choice.next, available_ - state.kept - input_units(state), plan.ops);
    }
  }
  return plan;
}

}  // namespace stepsim
