#include "tools/studies/rotor.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

RotorTable::RotorTable(const Chain& chain, std::int64_t budget_units, std::int64_t unit)
    : layers_(chain.layers()), budget_units_(std::max<std::int64_t>(budget_units, 0)) {
  check_chain(chain);
  STEPSIM_CHECK(unit > 0);
  const auto units = [&](std::int64_t size) { return (size + unit - 1) / unit; };
  free_units_ = budget_units_ - units(chain.output[0]);
  for (const std::int64_t size : chain.output) output_.push_back(units(size));
  for (const std::int64_t size : chain.gradient) gradient_.push_back(units(size));
  saved_ = forward_ = backward_ = forward_transient_ = backward_transient_ = {0};
  for (int i = 1; i <= layers_; ++i) {
    forward_.push_back(chain.forward_time[by_layer(i)]);
    backward_.push_back(chain.backward_time[by_layer(i)]);
    saved_.push_back(units(chain.saved[by_layer(i)]));
    forward_transient_.push_back(units(chain.forward_transient[by_layer(i)]));
    backward_transient_.push_back(units(chain.backward_transient[by_layer(i)]));
  }
  for (auto* sizes : {&output_, &gradient_, &saved_, &forward_transient_, &backward_transient_}) sizes->push_back(0);
  forward_.push_back(chain.loss_time);
  backward_.push_back(0);
  if (free_units_ < 0) return;
  const std::size_t side = from_zero(layers_ + 2);
  times_.assign(side * side * static_cast<std::size_t>(budget_units_ + 1), -1);
  for (int length = 0; length <= layers_; ++length) {
    for (int first = 1; first + length <= layers_ + 1; ++first) {
      for (std::int64_t m = 0; m <= free_units_; ++m) {
        const std::optional<Choice> choice = best(first, first + length, m);
        if (choice) times_[place(first, first + length, m)] = choice->time;
      }
    }
  }
}

std::size_t RotorTable::place(int first, int last, std::int64_t units) const {
  const std::size_t side = from_zero(layers_ + 2);
  return (from_zero(first) * side + from_zero(last)) * static_cast<std::size_t>(budget_units_ + 1) + static_cast<std::size_t>(units);
}

std::optional<std::int64_t> RotorTable::time(int first, int last, std::int64_t units) const {
  if (units < 0 || units > free_units_) return std::nullopt;
  const std::int64_t time = times_[place(first, last, units)];
  return time < 0 ? std::nullopt : std::optional(time);
}

// C2 of the recurrence, and its base case: forward keeping everything, the rest, backward.
std::optional<RotorTable::Choice> RotorTable::best_kept(int first, int last, std::int64_t units) const {
  const std::size_t s = from_zero(first), t = from_zero(last);
  if (first > layers_) return units >= gradient_[s - 1] ? std::optional(Choice{forward_[s], 0}) : std::nullopt;
  const std::int64_t forward_need = gradient_[t] + saved_[s] + forward_transient_[s];
  const std::int64_t backward_need = gradient_[s] + saved_[s] + gradient_[s - 1] + backward_transient_[s];
  if (units < std::max(forward_need, backward_need)) return std::nullopt;
  if (first == last) return Choice{forward_[s] + backward_[s], 0};
  const std::optional<std::int64_t> rest = time(first + 1, last, units - saved_[s]);
  return rest ? std::optional(Choice{forward_[s] + *rest + backward_[s], 0}) : std::nullopt;
}

std::optional<RotorTable::Choice> RotorTable::best(int first, int last, std::int64_t units) const {
  std::optional<Choice> found = best_kept(first, last, units);
  const std::size_t s = from_zero(first), t = from_zero(last);
  if (first > layers_) return found;
  // C1: forward keeping only the input, up to the next input that is kept. `need` grows with the layers that are run over.
  std::int64_t need = gradient_[t] + output_[s] + forward_transient_[s], forward_time = 0;
  for (int next = first + 1; next <= last; ++next) {
    const std::size_t j = from_zero(next);
    forward_time += forward_[j - 1];
    if (next > first + 1) need = std::max(need, gradient_[t] + output_[j - 2] + output_[j - 1] + forward_transient_[j - 1]);
    if (units < need) break;
    const std::optional<std::int64_t> rest = time(next, last, units - output_[j - 1]), again = time(first, next - 1, units);
    if (!rest || !again) continue;
    const std::int64_t total = forward_time + *rest + *again;
    if (!found || total < found->time) found = Choice{total, next};
  }
  return found;
}

void RotorTable::append_ops(int first, int last, std::int64_t units, ChainSchedule& schedule) const {
  const std::optional<Choice> choice = best(first, last, units);
  STEPSIM_CHECK(choice);
  if (first > layers_) {
    schedule.push_back({ChainActionKind::kLoss});
  } else if (choice->checkpoint == 0) {
    schedule.push_back({ChainActionKind::kForwardSaved, first});
    if (first < last) append_ops(first + 1, last, units - saved_[from_zero(first)], schedule);
    schedule.push_back({ChainActionKind::kBackward, first});
  } else {
    for (int i = first; i < choice->checkpoint; ++i) schedule.push_back({ChainActionKind::kForward, i});
    append_ops(choice->checkpoint, last, units - output_[from_zero(choice->checkpoint - 1)], schedule);
    append_ops(first, choice->checkpoint - 1, units, schedule);
  }
}

}  // namespace stepsim
