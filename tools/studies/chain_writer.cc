#include "tools/studies/chain_writer.h"

#include <algorithm>
#include <array>

namespace stepsim {

namespace {

constexpr std::size_t kNever = static_cast<std::size_t>(-1);

// One tensor from the op that makes it to the op after which nothing reads it; ops by their place in a list.
struct Life {
  int layer = 0;
  bool saved = false;
  std::size_t made = 0;
  std::vector<std::size_t> uses{};  // ascending
  std::size_t freed = kNever;       // the backward op at whose end the rules free it

  std::size_t last_use() const { return uses.empty() ? made : uses.back(); }
};

std::vector<Life> lives_of(const Chain& chain, const ChainSchedule& ops) {
  std::vector<Life> lives;
  std::array<std::vector<std::size_t>, 2> live;  // [saved][layer]: index of lives
  for (auto& indices : live) indices.assign(chain.output.size(), kNever);
  const auto use = [&](int layer, std::size_t op) {
    for (const bool saved : {true, false}) {
      const std::size_t life = live[saved][from_zero(layer)];
      if (life == kNever) continue;
      lives[life].uses.push_back(op);
      return;
    }
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ChainAction& op = ops[i];
    const bool loss = op.kind == ChainActionKind::kLoss;
    use(loss ? chain.layers() : op.layer - 1, i);
    if (loss) continue;
    if (op.kind != ChainActionKind::kBackward) {
      const bool saved = op.kind == ChainActionKind::kForwardSaved;
      live[saved][from_zero(op.layer)] = lives.size();
      lives.push_back({.layer = op.layer, .saved = saved, .made = i});
      continue;
    }
    use(op.layer, i);
    for (int layer = op.layer; layer <= chain.layers(); ++layer) {
      for (auto& indices : live) {
        if (indices[from_zero(layer)] != kNever) lives[indices[from_zero(layer)]].freed = i;
        indices[from_zero(layer)] = kNever;
      }
    }
  }
  return lives;
}

std::int64_t size_of(const Chain& chain, const Life& life) {
  return life.saved ? chain.saved[by_layer(life.layer)] : chain.output[from_zero(life.layer)];
}

// Counts memory in the order of the list, as if each compute op had ended before the next action.
class CopyWriter {
 public:
  CopyWriter(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops, const ChainOffload& offload, int lookahead)
      : chain_(chain), budget_(budget), ops_(ops), lives_(lives_of(chain, ops)), used_(chain.output[0]) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].kind == ChainActionKind::kLoss) loss_ = i;
    }
    for (const Life& life : lives_) {
      Copy copy;
      const bool wanted = (life.saved ? offload.saved : offload.output)[from_zero(life.layer)];
      const auto back = std::upper_bound(life.uses.begin(), life.uses.end(), loss_);
      copy.goes = wanted && life.made < loss_ && back != life.uses.end();
      if (copy.goes) {
        copy.last_forward_use = back == life.uses.begin() ? life.made : *(back - 1);
        copy.needed = *back;
        copy.fetched = copy.needed;
        for (int ahead = 0; ahead < lookahead; ++ahead) copy.fetched = backward_before(copy.fetched);
      }
      copies_.push_back(copy);
    }
  }

  ChainSchedule write() {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      fetch(i);
      const std::int64_t need = needed(ops_[i]);
      make_room(i, need);
      schedule_.push_back(ops_[i]);
      used_ += lasting(ops_[i]);
      end(i);
    }
    return std::move(schedule_);
  }

 private:
  struct Copy {
    bool goes = false, dropped = false, back = false, gone = false;
    std::size_t last_forward_use = 0, fetched = 0, needed = 0;  // ops
  };

  std::size_t backward_before(std::size_t op) const {
    for (std::size_t i = op; i > loss_ + 1; --i) {
      if (ops_[i - 1].kind == ChainActionKind::kBackward) return i - 1;
    }
    return std::min(op, loss_ + 1);
  }

  std::int64_t made(const ChainAction& op) const {
    switch (op.kind) {
      case ChainActionKind::kForward:
        return chain_.output[from_zero(op.layer)];
      case ChainActionKind::kForwardSaved:
        return chain_.saved[by_layer(op.layer)];
      case ChainActionKind::kLoss:
        return chain_.gradient.back();
      default:
        return chain_.gradient[from_zero(op.layer - 1)];
    }
  }

  std::int64_t needed(const ChainAction& op) const {
    if (op.kind == ChainActionKind::kLoss) return made(op);
    const auto& transients = op.kind == ChainActionKind::kBackward ? chain_.backward_transient : chain_.forward_transient;
    return made(op) + transients[by_layer(op.layer)];
  }

  // What is held beyond the op's end, less the gradient that it reads.
  std::int64_t lasting(const ChainAction& op) const {
    return op.kind == ChainActionKind::kBackward ? made(op) - chain_.gradient[from_zero(op.layer)] : made(op);
  }

  void fetch(std::size_t op) {
    // In the order in which they are needed: the last layers first.
    for (std::size_t i = lives_.size(); i-- > 0;) {
      Copy& copy = copies_[i];
      if (!copy.goes || !copy.dropped || copy.back || copy.fetched > op) continue;
      if (copy.needed != op && used_ + size_of(chain_, lives_[i]) + needed(ops_[op]) > budget_.device) continue;
      make_room(op, size_of(chain_, lives_[i]));
      schedule_.push_back({ChainActionKind::kCopyIn, lives_[i].layer, lives_[i].saved});
      used_ += size_of(chain_, lives_[i]);
      copy.back = true;
    }
  }

  void make_room(std::size_t op, std::int64_t need) {
    for (std::size_t i = 0; i < lives_.size() && used_ + need > budget_.device; ++i) {
      Copy& copy = copies_[i];
      if (!copy.goes || copy.dropped || copy.gone || lives_[i].made >= op || copy.last_forward_use >= op || copy.needed <= op) continue;
      schedule_.push_back({ChainActionKind::kDrop, lives_[i].layer, lives_[i].saved});
      used_ -= size_of(chain_, lives_[i]);
      copy.dropped = true;
    }
  }

  void end(std::size_t op) {
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      const Life& life = lives_[i];
      Copy& copy = copies_[i];
      if (copy.goes && life.made == op) schedule_.push_back({ChainActionKind::kCopyOut, life.layer, life.saved});
      const bool freed = life.freed == op;
      if (copy.gone || (life.last_use() != op && !freed)) continue;
      copy.gone = true;
      used_ -= size_of(chain_, life);
      if (!freed) schedule_.push_back({ChainActionKind::kDrop, life.layer, life.saved});
    }
  }

  const Chain& chain_;
  const ChainBudget& budget_;
  const ChainSchedule& ops_;
  std::vector<Life> lives_;
  std::vector<Copy> copies_;  // by life
  std::size_t loss_ = 0;
  std::int64_t used_;
  ChainSchedule schedule_;
};

}  // namespace

ChainSchedule with_drops(const Chain& chain, const ChainSchedule& ops) {
  const std::vector<Life> lives = lives_of(chain, ops);
  ChainSchedule schedule;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    schedule.push_back(ops[i]);
    for (const Life& life : lives) {
      if (life.last_use() == i && life.freed != i) schedule.push_back({ChainActionKind::kDrop, life.layer, life.saved});
    }
  }
  return schedule;
}

ChainSchedule segment_ops(const std::vector<ChainSegment>& segments) {
  ChainSchedule ops;
  const auto run = [&](ChainActionKind kind, const ChainSegment& segment) {
    for (int i = segment.first; i <= segment.last; ++i) ops.push_back({kind, i});
  };
  for (const ChainSegment& segment : segments) run(segment.kept ? ChainActionKind::kForwardSaved : ChainActionKind::kForward, segment);
  ops.push_back({ChainActionKind::kLoss});
  for (std::size_t i = segments.size(); i-- > 0;) {
    if (!segments[i].kept) run(ChainActionKind::kForwardSaved, segments[i]);
    for (int layer = segments[i].last; layer >= segments[i].first; --layer) ops.push_back({ChainActionKind::kBackward, layer});
  }
  return ops;
}

std::optional<ChainSchedule> with_copies(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops,
                                         const ChainOffload& offload, int lookahead) {
  ChainSchedule schedule = CopyWriter(chain, budget, ops, offload, lookahead).write();
  if (replay(chain, budget, schedule).violation) return std::nullopt;
  return settled(chain, budget, schedule);
}

std::optional<ChainSchedule> with_best_copies(const Chain& chain, const ChainBudget& budget, const ChainSchedule& ops,
                                              const ChainOffload& offload) {
  std::optional<ChainSchedule> best;
  std::int64_t best_time = 0;
  for (int lookahead = 0; lookahead <= 3; ++lookahead) {
    std::optional<ChainSchedule> schedule = with_copies(chain, budget, ops, offload, lookahead);
    if (!schedule) continue;
    const std::int64_t time = replay(chain, budget, *schedule).time;
    if (best && best_time <= time) continue;
    best = std::move(schedule);
    best_time = time;
  }
  return best;
}

}  // namespace stepsim
