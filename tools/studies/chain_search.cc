#include "tools/studies/chain_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <utility>

#include "sim/check.h"
#include "tools/studies/chain_baselines.h"
#include "tools/studies/chain_expansion.h"
#include "tools/studies/chain_state.h"

namespace stepsim {

namespace {

using NodeIndex = std::uint32_t;
constexpr NodeIndex kNoNode = std::numeric_limits<NodeIndex>::max();

struct Node {
  ChainState state{};
  std::int64_t time = 0;
  std::int64_t start_sum = 0;  // of the start times of all ops and copies so far: between equals, the earlier starts win
  NodeIndex parent = kNoNode;
  bool dominated = false;
};

// What of a node decides whether another is as good, beside what memory holds.
struct Merit {
  std::array<std::int64_t, 3> ends{};  // of what runs: compute, copy out, copy in; 0 where nothing does
  std::int64_t start_sum = 0;
  std::uint8_t op_inputs = 0;
  NodeIndex node = kNoNode;
};

Merit merit_of(const Node& node, NodeIndex index) {
  const ChainState& state = node.state;
  Merit merit{.start_sum = node.start_sum, .op_inputs = state.op_inputs, .node = index};
  if (state.op != ChainOp::kNone) merit.ends[0] = node.time + state.compute_left;
  if (state.gradient == 0) merit.ends[0] = node.time;  // the end itself
  if (state.copied_out != kNoTensor) merit.ends[1] = node.time + state.out_left;
  if (state.copied_in != kNoTensor) merit.ends[2] = node.time + state.in_left;
  return merit;
}

// Of one group and where memory holds no less, all of which can be dropped when its room is needed: whatever follows `b` can follow `a` in
// its place and no later, as what runs ends no later.
bool as_good(const Merit& a, const Merit& b) {
  if ((a.op_inputs & b.op_inputs) != b.op_inputs) return false;
  bool all_earlier = true;
  for (std::size_t i = 0; i < a.ends.size(); ++i) {
    if (a.ends[i] > b.ends[i]) return false;
    all_earlier = all_earlier && (a.ends[i] < b.ends[i] || a.ends[i] == 0);
  }
  return all_earlier || a.start_sum <= b.start_sum;
}

// Nodes in groups of one gradient and the same running ops: only within a group can a state be as good as another in every respect. A group
// is a list of chunks in one vector; an open-addressing table finds it.
class NodeTable {
 public:
  explicit NodeTable(bool host_is_ample) : host_is_ample_(host_is_ample), groups_(std::size_t{1} << 10) {}

  // None if a stored node is as good. Stored nodes that are no better than the new one become dominated.
  NodeIndex insert(const Node& node) {
    if (group_count_ * 2 > groups_.size()) grow();
    Group& group = groups_[slot_of(group_of(node.state))];
    if (group.first == kNoChunk) {
      group = {group_of(node.state), new_chunk(kNoChunk)};
      ++group_count_;
    }
    const Merit merit = merit_of(node, static_cast<NodeIndex>(nodes.size()));
    if (is_dominated(group, node.state, merit)) return kNoNode;
    remove_dominated(group, node.state, merit);
    if (chunks_[group.first].count == kChunkSize) group.first = new_chunk(group.first);
    Chunk& chunk = chunks_[group.first];
    chunk.resident[chunk.count] = node.state.resident;
    chunk.host[chunk.count] = node.state.host;
    chunk.merits[chunk.count++] = merit;
    nodes.push_back(node);
    return merit.node;
  }

  std::vector<Node> nodes;

 private:
  static constexpr std::uint32_t kNoChunk = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t kChunkSize = 16;
  struct Chunk {
    std::array<TensorSet, kChunkSize> resident{}, host{};  // apart from the rest: most comparisons end with them
    std::array<Merit, kChunkSize> merits{};
    std::uint32_t count = 0, next = kNoChunk;
  };
  struct Group {
    std::uint64_t key = 0;
    std::uint32_t first = kNoChunk;
  };

  static std::uint64_t group_of(const ChainState& state) {
    std::uint64_t key = state.gradient;
    for (const int part : {int{state.op_layer}, static_cast<int>(state.op), int{state.copied_out}, int{state.copied_in}}) {
      key = key << 8 | static_cast<std::uint64_t>(part);
    }
    return key;
  }

  // Whether the first host memory is as good as the second.
  bool host_as_good(TensorSet a, TensorSet b) const { return host_is_ample_ ? (a & b) == b : a == b; }

  bool is_dominated(const Group& group, const ChainState& state, const Merit& merit) const {
    for (std::uint32_t index = group.first; index != kNoChunk; index = chunks_[index].next) {
      const Chunk& chunk = chunks_[index];
      for (std::uint32_t i = 0; i < chunk.count; ++i) {
        if ((chunk.resident[i] & state.resident) != state.resident || !host_as_good(chunk.host[i], state.host)) continue;
        if (as_good(chunk.merits[i], merit)) return true;
      }
    }
    return false;
  }

  // Fills each gap with the last merit of the first chunk, so that only that one is not full.
  void remove_dominated(Group& group, const ChainState& state, const Merit& merit) {
    for (std::uint32_t index = group.first; index != kNoChunk;) {
      const std::uint32_t next = chunks_[index].next;
      Chunk& chunk = chunks_[index];
      for (std::uint32_t i = 0; i < chunk.count;) {
        if ((chunk.resident[i] & state.resident) != chunk.resident[i] || !host_as_good(state.host, chunk.host[i]) ||
            !as_good(merit, chunk.merits[i])) {
          ++i;
          continue;
        }
        nodes[chunk.merits[i].node].dominated = true;
        Chunk& first = chunks_[group.first];
        --first.count;
        chunk.resident[i] = first.resident[first.count];
        chunk.host[i] = first.host[first.count];
        chunk.merits[i] = first.merits[first.count];
        if (first.count == 0 && first.next != kNoChunk) {
          const std::uint32_t empty = group.first;
          group.first = first.next;
          free_chunk(empty);
          if (empty == index) break;
        }
      }
      index = next;
    }
  }

  std::uint32_t new_chunk(std::uint32_t next) {
    if (free_ == kNoChunk) {
      chunks_.push_back({.next = next});
      return static_cast<std::uint32_t>(chunks_.size() - 1);
    }
    const std::uint32_t index = free_;
    free_ = chunks_[index].next;
    chunks_[index].count = 0;
    chunks_[index].next = next;
    return index;
  }

  void free_chunk(std::uint32_t index) {
    chunks_[index].next = free_;
    free_ = index;
  }

  // Of the group with this key, or where it belongs.
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t slot = (key * 0x9e3779b97f4a7c15u) >> 32;  // Fibonacci hashing: the upper half of the product is well mixed
    for (;; ++slot) {
      slot &= groups_.size() - 1;
      if (groups_[slot].first == kNoChunk || groups_[slot].key == key) return slot;
    }
  }

  void grow() {
    std::vector<Group> old(groups_.size() * 2);
    old.swap(groups_);
    for (const Group& group : old) {
      if (group.first != kNoChunk) groups_[slot_of(group.key)] = group;
    }
  }

  bool host_is_ample_;
  std::vector<Group> groups_;
  std::size_t group_count_ = 0;
  std::vector<Chunk> chunks_;
  std::uint32_t free_ = kNoChunk;
};

struct Open {
  std::int64_t bound = 0, time = 0;
  NodeIndex node = kNoNode;
};

struct ComesLater {  // the least bound first, among equals what has come furthest
  bool operator()(const Open& a, const Open& b) const {
    if (a.bound != b.bound) return a.bound > b.bound;
    if (a.time != b.time) return a.time < b.time;
    return a.node > b.node;
  }
};

ChainActionKind kind_of(ChainOp op) {
  if (op == ChainOp::kForward) return ChainActionKind::kForward;
  if (op == ChainOp::kForwardSaved) return ChainActionKind::kForwardSaved;
  return op == ChainOp::kLoss ? ChainActionKind::kLoss : ChainActionKind::kBackward;
}

// The decisions between two neighbouring states.
void append_decisions(const ChainTables& tables, const ChainState& before, const ChainState& after, ChainSchedule& schedule) {
  const ChainState instant = tables.later(before, tables.until_next_end(before));
  for_each(instant.resident & ~after.resident, [&](TensorBit bit) {
    schedule.push_back({ChainActionKind::kDrop, layer_of(bit), is_saved(bit)});
  });
  if (after.op != instant.op) schedule.push_back({kind_of(after.op), after.op == ChainOp::kLoss ? 0 : after.op_layer});
  if (after.copied_out != instant.copied_out) {
    schedule.push_back({ChainActionKind::kCopyOut, layer_of(after.copied_out), is_saved(after.copied_out)});
  }
  if (after.copied_in != instant.copied_in) {
    schedule.push_back({ChainActionKind::kCopyIn, layer_of(after.copied_in), is_saved(after.copied_in)});
  }
}

// Of the baselines the fastest, if any fits.
std::optional<ChainSchedule> best_baseline(const Chain& chain, const ChainBudget& budget, bool copies) {
  std::optional<ChainSchedule> best;
  std::int64_t best_time = 0;
  for (ChainBaseline& baseline : chain_baselines(chain, budget, copies)) {
    if (!baseline.schedule || (best && best_time <= baseline.time)) continue;
    best = std::move(baseline.schedule);
    best_time = baseline.time;
  }
  return best;
}

// Best first from nothing done. Ends with a proof or at the limit.
class Search {
 public:
  Search(const ChainTables& tables, const ChainSearchOptions& options) : tables_(tables), options_(options), table_(tables.host_is_ample) {}

  // Only what ends before `found_time` is looked for. The states up to the end of the fastest; none: there is nothing faster or it was not
  // found.
  std::optional<NodeIndex> run(std::optional<std::int64_t> found_time, ChainSearchResult& result) {
    const std::int64_t limit = found_time.value_or(std::numeric_limits<std::int64_t>::max());
    store({.state = {.gradient = static_cast<std::uint8_t>(tables_.layers + 1)}}, limit);
    ChainExpansion expansion(tables_);
    std::optional<NodeIndex> last;
    while (!open_.empty() && !last && std::ssize(nodes()) < options_.state_limit) {
      const Open first = open_.top();
      open_.pop();
      const Node node = nodes()[first.node];  // by value: storing moves nodes
      if (node.dominated) continue;
      if (node.state.gradient == 0) {
        last = first.node;
        result.lower_bound = node.time;
        break;
      }
      ++result.expanded;
      const std::int64_t time = node.time + tables_.until_next_end(node.state);
      for (const ChainSuccessor& successor : expansion.successors(node.state)) {
        store({.state = successor.state, .time = time, .start_sum = node.start_sum + successor.starts * time, .parent = first.node}, limit);
      }
    }
    result.stored = std::ssize(nodes());
    result.proven = last || open_.empty();
    if (!last) result.lower_bound = open_.empty() ? found_time.value_or(0) : open_.top().bound;
    return last;
  }

  ChainSchedule schedule_to(NodeIndex last) const {
    std::vector<NodeIndex> path;
    for (NodeIndex node = last; node != kNoNode; node = nodes()[node].parent) path.push_back(node);
    ChainSchedule schedule;
    for (std::size_t i = path.size() - 1; i > 0; --i)
      append_decisions(tables_, nodes()[path[i]].state, nodes()[path[i - 1]].state, schedule);
    return schedule;
  }

 private:
  const std::vector<Node>& nodes() const { return table_.nodes; }

  void store(const Node& node, std::int64_t limit) {
    const std::int64_t bound = node.time + tables_.bound(node.state);
    if (bound >= limit) return;
    const NodeIndex index = table_.insert(node);
    if (index != kNoNode) open_.push({bound, node.time, index});
  }

  const ChainTables& tables_;
  const ChainSearchOptions& options_;
  NodeTable table_;
  std::priority_queue<Open, std::vector<Open>, ComesLater> open_;
};

}  // namespace

bool exceeds_alone(const Chain& chain, std::int64_t device_budget) {
  for (int i = 1; i <= chain.layers(); ++i) {
    const std::size_t layer = by_layer(i);
    const std::int64_t input = i == 1 ? 0 : std::min(chain.output[from_zero(i - 1)], chain.saved[by_layer(i - 1)]);
    const std::int64_t held = chain.output[0] + input + chain.saved[layer];
    const std::int64_t forward = held + chain.forward_transient[layer];
    const std::int64_t backward = held + chain.gradient[from_zero(i)] + chain.gradient[from_zero(i - 1)] + chain.backward_transient[layer];
    if (std::max(forward, backward) > device_budget) return true;
  }
  return chain.output[0] + std::min(chain.output.back(), chain.saved.back()) + chain.gradient.back() > device_budget;
}

ChainSearchResult fastest_schedule(const Chain& chain, const ChainBudget& budget, const ChainSearchOptions& options) {
  check_chain(chain);
  ChainSearchResult result;
  if (exceeds_alone(chain, budget.device)) {
    result.proven = true;
    return result;
  }
  const ChainTables tables(chain, budget, options.copies);
  std::optional<std::int64_t> found_time;
  if (options.baselines) {
    result.schedule = best_baseline(chain, budget, options.copies);
    if (result.schedule) found_time = replay(chain, budget, *result.schedule).time;
  }
  Search search(tables, options);
  const std::optional<NodeIndex> last = search.run(found_time, result);
  if (last) result.schedule = settled(chain, budget, search.schedule_to(*last));
  if (!result.schedule) return result;
  const ChainReplay replayed = replay(chain, budget, *result.schedule);
  STEPSIM_CHECK(!replayed.violation);
  result.time = replayed.time;
  result.peak = replayed.peak;
  result.lower_bound = std::min(result.lower_bound, result.time);
  if (result.proven) STEPSIM_CHECK(result.lower_bound == result.time);
  return result;
}

}  // namespace stepsim
