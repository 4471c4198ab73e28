#include "tools/studies/chain_sequence.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "sim/check.h"

namespace stepsim {

namespace {

enum Lane : std::size_t { kCompute, kOut, kIn, kLanes };

Lane lane_of(ChainActionKind kind) {
  if (kind == ChainActionKind::kCopyOut) return kOut;
  return kind == ChainActionKind::kCopyIn ? kIn : kCompute;
}

// The device, its host copies and what runs, between two actions.
class Execution {
 public:
  Execution(const Chain& chain, const ChainBudget& budget, std::size_t actions)
      : chain_(chain), budget_(budget), gradient_(chain.layers() + 1), used_(chain.output[0]) {
    for (auto* there : {&resident_, &on_host_}) (*there)[0] = (*there)[1] = std::vector<bool>(chain.output.size());
    result_.peak = used_;
    result_.runs.resize(actions);
  }

  // False: the action breaks a rule, now and whenever what runs has ended.
  bool start_when_possible(std::size_t index, const ChainAction& action) {
    while (next_end() && *next_end() <= action.not_before) advance(*next_end());
    now_ = std::max(now_, action.not_before);
    for (const char* reason = blocked(action); reason != nullptr; reason = blocked(action)) {
      if (!next_end()) {
        result_.violation =
            "action " + std::to_string(index) + " (" + print_action(action) + ") at " + std::to_string(now_) + ": " + reason;
        return false;
      }
      advance(*next_end());
    }
    start(index, action);
    return true;
  }

  ChainReplay finish() && {
    while (next_end()) advance(*next_end());
    if (!result_.violation && gradient_ != 0) result_.violation = "the backward op of layer 1 has not run";
    return std::move(result_);
  }

 private:
  struct Running {
    ChainAction action{};
    std::size_t index = 0;
    std::int64_t end = 0;
    std::array<bool, 2> reads{};  // of the input layer's output and saved set, those that have been there since the start
  };

  static int input_layer(const ChainAction& op, int layers) { return op.kind == ChainActionKind::kLoss ? layers : op.layer - 1; }
  std::int64_t size(int layer, bool saved) const { return saved ? chain_.saved[by_layer(layer)] : chain_.output[from_zero(layer)]; }
  bool there(int layer, bool saved) const { return resident_[saved][from_zero(layer)]; }
  bool input_there(int layer) const { return layer == 0 || there(layer, false) || there(layer, true); }

  bool copying(Lane lane, int layer, bool saved) const {
    return running_[lane] && running_[lane]->action.layer == layer && running_[lane]->action.saved == saved;
  }

  bool computing(ChainActionKind kind, int layer) const {
    return running_[kCompute] && running_[kCompute]->action.kind == kind && running_[kCompute]->action.layer == layer;
  }

  // Of the compute op that runs: its output, or the only input that has been there all the time.
  bool in_use(int layer, bool saved) const {
    if (copying(kOut, layer, saved)) return true;
    if (saved && computing(ChainActionKind::kBackward, layer)) return true;
    if (!running_[kCompute]) return false;
    const Running& op = *running_[kCompute];
    if (input_layer(op.action, chain_.layers()) != layer) return false;
    return op.reads[saved] && !op.reads[!saved];
  }

  std::int64_t needed(const ChainAction& action) const {
    switch (action.kind) {
      case ChainActionKind::kForward:
      case ChainActionKind::kForwardSaved:
        return size(action.layer, action.kind == ChainActionKind::kForwardSaved) + transient(action);
      case ChainActionKind::kLoss:
        return chain_.gradient.back();
      case ChainActionKind::kBackward:
        return chain_.gradient[from_zero(action.layer - 1)] + transient(action);
      case ChainActionKind::kCopyIn:
        return size(action.layer, action.saved);
      case ChainActionKind::kDrop:
      case ChainActionKind::kCopyOut:
        return 0;
    }
    return 0;
  }

  std::int64_t transient(const ChainAction& action) const {
    if (action.kind == ChainActionKind::kBackward) return chain_.backward_transient[by_layer(action.layer)];
    return action.kind == ChainActionKind::kLoss ? 0 : chain_.forward_transient[by_layer(action.layer)];
  }

  std::int64_t duration(const ChainAction& action) const {
    switch (action.kind) {
      case ChainActionKind::kForward:
      case ChainActionKind::kForwardSaved:
        return chain_.forward_time[by_layer(action.layer)];
      case ChainActionKind::kLoss:
        return chain_.loss_time;
      case ChainActionKind::kBackward:
        return chain_.backward_time[by_layer(action.layer)];
      case ChainActionKind::kDrop:
        return 0;
      case ChainActionKind::kCopyOut:
      case ChainActionKind::kCopyIn:
        break;
    }
    const ChainCopy& copy = (action.saved ? chain_.saved_copy : chain_.output_copy)[by_layer(action.layer)];
    return action.kind == ChainActionKind::kCopyOut ? copy.out : copy.in;
  }

  // Why it cannot start now, nullptr if it can. Forward, backward and loss only.
  const char* compute_blocked(const ChainAction& action) const {
    if (running_[kCompute]) return "the compute stream is busy";
    if (!input_there(input_layer(action, chain_.layers()))) return "its input is not in device memory";
    if (action.kind == ChainActionKind::kLoss) return gradient_ <= chain_.layers() ? "the loss has run before" : nullptr;
    if (action.kind == ChainActionKind::kBackward) {
      if (gradient_ != action.layer) return "the gradient of its output is not there";
      return there(action.layer, true) ? nullptr : "the saved set is not in device memory";
    }
    const bool saved = action.kind == ChainActionKind::kForwardSaved;
    if (there(action.layer, saved) || copying(kIn, action.layer, saved)) return "what it makes is in device memory";
    return nullptr;
  }

  const char* copy_blocked(const ChainAction& action) const {
    if (!chain_.has_copies()) return "the chain has no copies";
    const bool out = action.kind == ChainActionKind::kCopyOut;
    if (running_[out ? kOut : kIn] || (chain_.one_engine && running_[out ? kIn : kOut])) return "the copy engine is busy";
    const bool on_host = on_host_[action.saved][from_zero(action.layer)];
    if (out) {
      if (on_host) return "it is in host memory already";
      if (!there(action.layer, action.saved)) return "it is not in device memory";
      return size(action.layer, action.saved) > budget_.host - result_.host_peak ? "the host copy does not fit" : nullptr;
    }
    if (!on_host) return "it is not in host memory";
    if (gradient_ < action.layer) return "it is of no use any more";
    const auto maker = action.saved ? ChainActionKind::kForwardSaved : ChainActionKind::kForward;
    return there(action.layer, action.saved) || computing(maker, action.layer) ? "it is in device memory" : nullptr;
  }

  const char* blocked(const ChainAction& action) const {
    const bool has_layer = action.kind != ChainActionKind::kLoss;
    if (has_layer && (action.layer < 1 || action.layer > chain_.layers())) return "there is no such layer";
    const char* reason = nullptr;
    if (action.kind == ChainActionKind::kDrop) {
      if (!there(action.layer, action.saved)) return "it is not in device memory";
      return in_use(action.layer, action.saved) ? "it is in use" : nullptr;
    }
    reason = lane_of(action.kind) == kCompute ? compute_blocked(action) : copy_blocked(action);
    if (reason == nullptr && used_ + needed(action) > budget_.device) return "it does not fit in device memory";
    return reason;
  }

  void set_there(int layer, bool saved, bool value) {
    resident_[saved][from_zero(layer)] = value;
    if (!value) used_ -= size(layer, saved);
  }

  void start(std::size_t index, const ChainAction& action) {
    ChainRun& run = result_.runs[index];
    run.start = now_;
    run.end = now_ + duration(action);
    if (action.kind == ChainActionKind::kDrop) {
      set_there(action.layer, action.saved, false);
      if (running_[kCompute] && input_layer(running_[kCompute]->action, chain_.layers()) == action.layer) {
        running_[kCompute]->reads[action.saved] = false;
      }
      return;
    }
    used_ += needed(action);
    result_.peak = std::max(result_.peak, used_);
    Running running{action, index, run.end, {}};
    if (lane_of(action.kind) == kCompute) {
      const int input = input_layer(action, chain_.layers());
      running.reads = {input == 0 || there(input, false), input > 0 && there(input, true)};
    }
    if (action.kind == ChainActionKind::kCopyOut) result_.host_peak += size(action.layer, action.saved);
    running_[lane_of(action.kind)] = running;
  }

  std::optional<std::int64_t> next_end() const {
    std::optional<std::int64_t> first;
    for (const auto& lane : running_) {
      if (lane && (!first || lane->end < *first)) first = lane->end;
    }
    return first;
  }

  void advance(std::int64_t time) {
    now_ = time;
    for (auto& lane : running_) {
      if (!lane || lane->end != time) continue;
      const Running ended = *lane;
      lane.reset();
      end(ended);
    }
  }

  void end(const Running& ended) {
    const ChainAction& action = ended.action;
    const int layer = action.layer;
    switch (action.kind) {
      case ChainActionKind::kForward:
      case ChainActionKind::kForwardSaved:
        used_ -= transient(action);
        set_there(layer, action.kind == ChainActionKind::kForwardSaved, true);
        break;
      case ChainActionKind::kLoss:
        gradient_ = chain_.layers();
        break;
      case ChainActionKind::kBackward:
        used_ -= transient(action) + chain_.gradient[from_zero(layer)];
        gradient_ = layer - 1;
        for (int i = layer; i <= chain_.layers(); ++i) drop_useless(i);
        if (gradient_ == 0) result_.time = now_;
        break;
      case ChainActionKind::kCopyOut:
        on_host_[action.saved][from_zero(layer)] = true;
        drop_useless(layer);
        break;
      case ChainActionKind::kCopyIn:
        set_there(layer, action.saved, true);
        drop_useless(layer);
        break;
      case ChainActionKind::kDrop:
        break;
    }
    if (lane_of(action.kind) == kCompute) result_.runs[ended.index].reads_saved = !ended.reads[0];
  }

  void drop_useless(int layer) {
    if (layer <= gradient_) return;
    for (const bool saved : {false, true}) {
      if (there(layer, saved) && !copying(kOut, layer, saved)) set_there(layer, saved, false);
    }
  }

  const Chain& chain_;
  const ChainBudget& budget_;
  int gradient_;  // index of the gradient that is there; L + 1 before the loss has run, 0 at the end
  std::int64_t now_ = 0, used_;
  std::array<std::vector<bool>, 2> resident_, on_host_;  // [saved][layer]
  std::array<std::optional<Running>, kLanes> running_;
  ChainReplay result_;
};

constexpr const char* kWords[] = {"F", "FALL", "LOSS", "B", "DEL", "D2H", "H2D"};

}  // namespace

std::string print_action(const ChainAction& action) {
  std::string text = kWords[static_cast<std::size_t>(action.kind)];
  if (action.kind == ChainActionKind::kLoss) return text;
  text += ' ';
  if (action.kind >= ChainActionKind::kDrop) text += action.saved ? "abar" : "a";
  return text + std::to_string(action.layer);
}

bool append_actions(std::string_view text, std::int64_t not_before, ChainSchedule& schedule) {
  const std::size_t space = text.find(' ');
  std::string_view word = text.substr(0, space), rest = space == text.npos ? std::string_view() : text.substr(space + 1);
  const bool drops_input = word == "F0";
  if (drops_input || word == "FCK") word = "F";
  const auto* const found = std::find(std::begin(kWords), std::end(kWords), word);
  if (found == std::end(kWords)) return false;
  ChainAction action{.kind = static_cast<ChainActionKind>(found - std::begin(kWords)), .not_before = not_before};
  if (action.kind >= ChainActionKind::kDrop) {
    action.saved = rest.starts_with("abar");
    if (!rest.starts_with('a')) return false;
    rest.remove_prefix(action.saved ? 4 : 1);
  }
  if (action.kind != ChainActionKind::kLoss) {
    const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), action.layer);
    if (read.ec != std::errc() || read.ptr != rest.data() + rest.size()) return false;
  } else if (!rest.empty()) {
    return false;
  }
  schedule.push_back(action);
  if (drops_input && action.layer > 1) schedule.push_back({ChainActionKind::kDrop, action.layer - 1, false, not_before});
  return true;
}

ChainReplay replay(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule) {
  check_chain(chain);
  Execution execution(chain, budget, schedule.size());
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (!execution.start_when_possible(i, schedule[i])) break;
  }
  return std::move(execution).finish();
}

ChainSchedule settled(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule) {
  ChainSchedule result = schedule;
  // A drop that has moved ahead of an op may now take place earlier, so until nothing moves; no start ever becomes later.
  for (bool moved = true; moved;) {
    const ChainReplay replayed = replay(chain, budget, result);
    STEPSIM_CHECK(!replayed.violation);
    std::vector<std::size_t> order(result.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const ChainRun &first = replayed.runs[a], &second = replayed.runs[b];
      if (first.start != second.start) return first.start < second.start;
      return first.end == first.start && second.end != second.start;
    });
    moved = !std::is_sorted(order.begin(), order.end());
    ChainSchedule sorted;
    for (const std::size_t i : order) sorted.push_back(result[i]);
    result = std::move(sorted);
  }
  return result;
}

}  // namespace stepsim
