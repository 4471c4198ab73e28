// A schedule of a chain, as a list of actions, and its replay: time, peaks, or the first rule that it breaks. The replay is the only judge
// of schedules; it knows nothing of how they were found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/studies/chain.h"

namespace stepsim {

enum class ChainActionKind : std::uint8_t {
  kForward,       // makes a^i; its input stays ("run forward keeping the input")
  kForwardSaved,  // makes abar^i ("keeping all")
  kLoss,          // makes d^L of a^L or abar^L
  kBackward,      // makes d^{i-1}; lets go of d^i and of every tensor of layers i and above
  kDrop,          // a tensor, at once
  kCopyOut,
  kCopyIn,
};

struct ChainAction {
  ChainActionKind kind = ChainActionKind::kForward;
  int layer = 0;                // of the op or tensor; unused by the loss
  bool saved = false;           // drops and copies: of abar^layer, otherwise of a^layer
  std::int64_t not_before = 0;  // an action never starts before this
  friend bool operator==(const ChainAction&, const ChainAction&) = default;
};
using ChainSchedule = std::vector<ChainAction>;

// "F 2", "FALL 2", "LOSS", "B 2", "DEL a2", "DEL abar2", "D2H a2", "H2D abar2": the words of the truth file.
std::string print_action(const ChainAction& action);
// The same words, also "FCK 2" (as "F 2") and "F0 2" ("F 2" and "DEL a1": run forward keeping nothing; a^0 is never dropped). Appends;
// false for other text.
bool append_actions(std::string_view text, std::int64_t not_before, ChainSchedule& schedule);

// What a replay saw of each action, by its place in the schedule.
struct ChainRun {
  std::int64_t start = 0, end = 0;  // a drop has end == start
  bool reads_saved = false;         // a forward op, loss or backward op of layer i read abar^{i-1} and not a^{i-1} (the loss: of L)
};

struct ChainReplay {
  std::optional<std::string> violation{};  // the first rule that is broken, with the action; then the rest is as far as it got
  std::int64_t time = 0;                   // end of the backward op of layer 1
  std::int64_t peak = 0, host_peak = 0;
  std::vector<ChainRun> runs{};
};

// Actions start in the order of the list, each at the earliest instant (not before its predecessor's start, not before `not_before`) at
// which its inputs are there, its engine is idle and what it makes fits the budget. An op that reads a layer's input reads a^{i-1} or
// abar^{i-1}, whichever is there from its start to its end; the last such one cannot be dropped while it runs. Memory of an instant is
// counted action by action, in list order.
ChainReplay replay(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule);

// The list with what takes no time, drops included, before what takes time, at each instant of its replay; otherwise in the same order.
// Such a list never needs more memory, and the ledger of sim/ counts in this order too. The schedule must replay without a violation.
ChainSchedule settled(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule);

}  // namespace stepsim
