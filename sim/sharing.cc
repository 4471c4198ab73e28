#include "sim/sharing.h"

#include <algorithm>
#include <limits>

#include "sim/check.h"
#include "sim/units.h"

namespace stepsim {

namespace {

constexpr std::uint64_t kCapacity = std::uint64_t{1} << 30;
constexpr int kSlopeBits = 60;

// x = t / d at level t, in 2^-48, rounded down; at least 1, so that every op ends.
std::uint64_t rate_at(std::uint64_t level, std::uint32_t fraction, std::uint32_t weight) {
  const Uint128 scaled = (Uint128{level} * weight) << 30;
  const Uint128 rate = fraction == kCapacity ? scaled >> 30 : scaled / fraction;
  if (rate >= kFullSpeed) return kFullSpeed;
  return std::max(std::uint64_t{1}, static_cast<std::uint64_t>(rate));
}

}  // namespace

RateFilling::RateFilling(std::int32_t resources) : levels_(at(resources)) {}

std::span<const RateFilling::Term> RateFilling::terms(const Rising& op) const {
  std::size_t end = op.first_term;
  while (terms_[end].resource >= 0) ++end;
  return std::span<const Term>(terms_).subspan(op.first_term, end - op.first_term);
}

void RateFilling::add_demand(std::span<const Sharer> sharers) {
  for (const Sharer& sharer : sharers) {
    for (const Share& load : sharer.loads) {
      Level& level = levels_[at(load.resource)];
      if (level.demand == 0) touched_.push_back(load.resource);
      level.demand += std::uint64_t{load.peers} * load.fraction;
    }
  }
  for (const std::int32_t resource : touched_) {
    Level& level = levels_[at(resource)];
    level.left = Uint128{1} << 78;
    level.slope = 0;
    level.rising = 0;
  }
}

void RateFilling::add_rising(std::uint32_t sharer, std::span<const Share> loads) {
  Rising op{.sharer = sharer, .first_term = static_cast<std::uint32_t>(terms_.size())};
  for (const Share& load : loads) {
    if (levels_[at(load.resource)].demand <= kCapacity) continue;
    if (std::uint64_t{load.fraction} * op.weight <= std::uint64_t{op.fraction} * load.weight) continue;
    op.fraction = load.fraction;
    op.weight = load.weight;
  }
  if (op.fraction == 0) return;  // no contended resource: full speed
  // x = 1 where t * w * 2^30 / fraction reaches 2^48.
  op.full_speed_at = ((std::uint64_t{op.fraction} << 18) + op.weight - 1) / op.weight;
  for (const Share& load : loads) {
    Level& level = levels_[at(load.resource)];
    if (level.demand <= kCapacity || load.fraction == 0) continue;
    const std::uint64_t use = std::uint64_t{load.peers} * load.fraction;
    Uint128 slope = (Uint128{use} * op.weight) << kSlopeBits;
    slope = op.fraction == kCapacity ? slope >> 30 : (slope + op.fraction - 1) / op.fraction;
    level.slope += slope;
    ++level.rising;
    terms_.push_back({.resource = load.resource, .use = use, .slope = slope});
  }
  terms_.push_back({.resource = -1});
  rising_.push_back(op);
}

std::uint64_t RateFilling::next_level() {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const std::int32_t resource : touched_) {
    Level& level = levels_[at(resource)];
    level.full_at = std::numeric_limits<std::uint64_t>::max();
    if (level.rising == 0) continue;
    // No op rises beyond t = d <= 1, so a level above 2^48 means the same as 2^48.
    const Uint128 full_at = (level.left << (kSlopeBits - 30)) / level.slope;
    level.full_at = static_cast<std::uint64_t>(std::min(full_at, Uint128{kFullSpeed}));
    least = std::min(least, level.full_at);
  }
  return least;
}

void RateFilling::stop(const Rising& op, std::uint64_t rate) {
  rates_[op.sharer] = rate;
  for (const Term& term : terms(op)) {
    Level& level = levels_[at(term.resource)];
    const Uint128 used = Uint128{term.use} * rate;
    level.left = level.left > used ? level.left - used : 0;
    level.slope -= term.slope;
    --level.rising;
  }
}

// What stops at x = 1 leaves more for the others, so all that reach it below `level` can stop at once.
bool RateFilling::stop_at_full_speed(std::uint64_t level) {
  const auto stopped = std::remove_if(rising_.begin(), rising_.end(), [&](const Rising& op) {
    if (op.full_speed_at > level) return false;
    stop(op, kFullSpeed);
    return true;
  });
  if (stopped == rising_.end()) return false;
  rising_.erase(stopped, rising_.end());
  return true;
}

void RateFilling::stop_at_full_resources(std::uint64_t level) {
  const auto stopped = std::remove_if(rising_.begin(), rising_.end(), [&](const Rising& op) {
    const std::span<const Term> loads = terms(op);
    if (std::none_of(loads.begin(), loads.end(), [&](const Term& term) { return levels_[at(term.resource)].full_at == level; }))
      return false;
    stop(op, rate_at(level, op.fraction, op.weight));
    return true;
  });
  STEPSIM_CHECK(stopped != rising_.end());
  rising_.erase(stopped, rising_.end());
}

// Where the answer to the sharers stands or, if its rows are others, may be put. None: not to be remembered.
RateFilling::Answer* RateFilling::remembered(std::span<const Sharer> sharers) {
  constexpr int kBits = 12;  // measured: more answers than that are seldom asked for again
  if (sharers.size() < 2 || sharers.size() > kMostRemembered) return nullptr;
  std::uint64_t hash = 0;
  for (const Sharer& sharer : sharers) {
    if (sharer.row == Sharer::kNoRow) return nullptr;
    hash = (hash + sharer.row + 1) * 0x9E3779B97F4A7C15u;
  }
  if (answers_.empty()) answers_.resize(std::size_t{1} << kBits);
  return &answers_[hash >> (64 - kBits)];
}

std::span<const std::uint64_t> RateFilling::rates(std::span<const Sharer> sharers) {
  Answer* const answer = remembered(sharers);
  if (answer == nullptr) {
    fill(sharers);
    return rates_;
  }
  std::array<std::uint32_t, kMostRemembered> rows;
  rows.fill(Sharer::kNoRow);
  for (std::size_t i = 0; i < sharers.size(); ++i) rows[i] = sharers[i].row;
  if (answer->rows != rows) {
    fill(sharers);
    answer->rows = rows;
    std::copy(rates_.begin(), rates_.end(), answer->rates.begin());
  }
  return std::span(answer->rates).first(sharers.size());
}

void RateFilling::fill(std::span<const Sharer> sharers) {
  rates_.assign(sharers.size(), kFullSpeed);
  add_demand(sharers);
  for (std::size_t i = 0; i < sharers.size(); ++i) add_rising(static_cast<std::uint32_t>(i), sharers[i].loads);
  while (!rising_.empty()) {
    const std::uint64_t level = next_level();
    if (!stop_at_full_speed(level)) stop_at_full_resources(level);
  }
  for (const std::int32_t resource : touched_) levels_[at(resource)].demand = 0;
  touched_.clear();
  terms_.clear();
}

std::vector<std::uint64_t> progress_rates(std::span<const Sharer> sharers, std::int32_t resources) {
  RateFilling filling(resources);
  const std::span<const std::uint64_t> rates = filling.rates(sharers);
  return {rates.begin(), rates.end()};
}

}  // namespace stepsim
