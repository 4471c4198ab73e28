#include "tests/unit/studies/chain_oracle.h"

#include <array>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace stepsim {

namespace {

constexpr int kMostLayers = 6;

enum Op : std::int8_t { kNothing, kForward, kForwardSaved, kLoss, kBackward };

// Plain bytes, so that its bytes are its key.
struct World {
  std::int8_t gradient = 0;                                                // L + 1: before the loss
  std::array<std::array<std::int8_t, kMostLayers + 1>, 2> here{}, host{};  // [saved][layer]
  std::int8_t op = kNothing, op_layer = 0, op_left = 0;
  std::array<std::int8_t, 2> op_reads{};                   // of its input layer: there since its start, [saved]
  std::int8_t out_layer = 0, out_saved = 0, out_left = 0;  // layer 0: no copy
  std::int8_t in_layer = 0, in_saved = 0, in_left = 0;
};

class Oracle {
 public:
  Oracle(const Chain& chain, const ChainBudget& budget) : chain_(chain), budget_(budget), layers_(chain.layers()) {}

  OracleAnswer solve(std::size_t most_states) {
    World start;
    start.gradient = static_cast<std::int8_t>(layers_ + 1);
    reach(start);
    for (std::int64_t time = 0; !now_.empty(); ++time) {
      std::vector<World> at_this_time;
      while (!now_.empty()) {
        const World world = now_.front();
        now_.pop_front();
        if (seen_.size() > most_states) return {};
        if (world.gradient == 0) return {true, time};
        at_this_time.push_back(world);
        decide(world);
        if (any_op_without_time(world)) tick(world, 0);
      }
      for (const World& world : at_this_time) {
        if (runs(world) && !any_op_without_time(world)) tick(world, 1);
      }
      now_.swap(next_);
    }
    return {true, std::nullopt};
  }

 private:
  template <class Table>
  static auto& at(Table& table, int layer, int saved) {
    return table[static_cast<std::size_t>(saved)][static_cast<std::size_t>(layer)];
  }

  static bool runs(const World& world) { return world.op != kNothing || world.out_layer != 0 || world.in_layer != 0; }
  static bool any_op_without_time(const World& world) {
    return (world.op != kNothing && world.op_left == 0) || (world.out_layer != 0 && world.out_left == 0) ||
           (world.in_layer != 0 && world.in_left == 0);
  }

  std::int64_t size(int layer, int saved) const {
    return saved != 0 ? chain_.saved[static_cast<std::size_t>(layer - 1)] : chain_.output[static_cast<std::size_t>(layer)];
  }
  int input_of(const World& world) const { return world.op == kLoss ? layers_ : world.op_layer - 1; }

  std::int64_t memory(const World& world) const {
    std::int64_t sum = chain_.output[0];
    for (int layer = 1; layer <= layers_; ++layer) {
      for (int saved = 0; saved < 2; ++saved) sum += at(world.here, layer, saved) ? size(layer, saved) : 0;
    }
    if (world.gradient <= layers_) sum += chain_.gradient[static_cast<std::size_t>(world.gradient)];
    const auto i = static_cast<std::size_t>(world.op_layer);
    if (world.op == kForward) sum += chain_.output[i] + chain_.forward_transient[i - 1];
    if (world.op == kForwardSaved) sum += chain_.saved[i - 1] + chain_.forward_transient[i - 1];
    if (world.op == kLoss) sum += chain_.gradient.back();
    if (world.op == kBackward) sum += chain_.gradient[i - 1] + chain_.backward_transient[i - 1];
    if (world.in_layer != 0) sum += size(world.in_layer, world.in_saved);
    return sum;
  }

  std::int64_t host_memory(const World& world) const {
    std::int64_t sum = world.out_layer != 0 ? size(world.out_layer, world.out_saved) : 0;
    for (int layer = 1; layer <= layers_; ++layer) {
      for (int saved = 0; saved < 2; ++saved) sum += at(world.host, layer, saved) ? size(layer, saved) : 0;
    }
    return sum;
  }

  void reach(const World& world) {
    if (memory(world) > budget_.device || host_memory(world) > budget_.host) return;
    std::string key(reinterpret_cast<const char*>(&world), sizeof(World));
    if (seen_.insert(std::move(key)).second) now_.push_back(world);
  }

  void decide(const World& world) {
    if (world.op == kNothing) start_ops(world);
    for (int layer = 1; layer <= layers_; ++layer) {
      for (int saved = 0; saved < 2; ++saved) {
        drop(world, layer, saved);
        if (chain_.has_copies()) copy(world, layer, saved);
      }
    }
  }

  void start_ops(const World& world) {
    const auto start = [&](Op op, int layer, std::int64_t time) {
      World started = world;
      started.op = op;
      started.op_layer = static_cast<std::int8_t>(layer);
      started.op_left = static_cast<std::int8_t>(time);
      const int input = input_of(started);
      for (int saved = 0; saved < 2 && input > 0; ++saved) started.op_reads[static_cast<std::size_t>(saved)] = at(world.here, input, saved);
      if (input == 0 || started.op_reads[0] != 0 || started.op_reads[1] != 0) reach(started);
    };
    if (world.gradient == layers_ + 1) start(kLoss, layers_, chain_.loss_time);
    for (int layer = 1; layer <= layers_; ++layer) {
      const auto i = static_cast<std::size_t>(layer - 1);
      for (int saved = 0; saved < 2; ++saved) {
        const bool coming = world.in_layer == layer && world.in_saved == saved;
        if (!at(world.here, layer, saved) && !coming) start(saved != 0 ? kForwardSaved : kForward, layer, chain_.forward_time[i]);
      }
      if (world.gradient == layer && at(world.here, layer, 1)) start(kBackward, layer, chain_.backward_time[i]);
    }
  }

  void drop(const World& world, int layer, int saved) {
    if (!at(world.here, layer, saved) || (world.out_layer == layer && world.out_saved == saved)) return;
    if (world.op == kBackward && world.op_layer == layer && saved == 1) return;
    World dropped = world;
    at(dropped.here, layer, saved) = 0;
    if (world.op != kNothing && input_of(world) == layer && world.op_reads[static_cast<std::size_t>(saved)] != 0) {
      if (world.op_reads[static_cast<std::size_t>(1 - saved)] == 0) return;
      dropped.op_reads[static_cast<std::size_t>(saved)] = 0;
    }
    reach(dropped);
  }

  void copy(const World& world, int layer, int saved) {
    const bool out_idle = world.out_layer == 0, in_idle = world.in_layer == 0;
    const auto i = static_cast<std::size_t>(layer - 1);
    const ChainCopy& time = saved != 0 ? chain_.saved_copy[i] : chain_.output_copy[i];
    World copying = world;
    if (out_idle && (in_idle || !chain_.one_engine) && at(world.here, layer, saved) && !at(world.host, layer, saved)) {
      copying.out_layer = static_cast<std::int8_t>(layer);
      copying.out_saved = static_cast<std::int8_t>(saved);
      copying.out_left = static_cast<std::int8_t>(time.out);
      reach(copying);
    }
    const bool made = world.op_layer == layer && world.op == (saved != 0 ? kForwardSaved : kForward);
    if (in_idle && (out_idle || !chain_.one_engine) && at(world.host, layer, saved) && !at(world.here, layer, saved) && !made) {
      copying = world;
      copying.in_layer = static_cast<std::int8_t>(layer);
      copying.in_saved = static_cast<std::int8_t>(saved);
      copying.in_left = static_cast<std::int8_t>(time.in);
      reach(copying);
    }
  }

  // One unit of time, or none for what takes none.
  void tick(World world, std::int8_t time) {
    const auto ends = [&](bool running, std::int8_t& left) {
      if (running) left = static_cast<std::int8_t>(left - time);
      return running && left == 0;
    };
    if (ends(world.op != kNothing, world.op_left)) {
      if (world.op == kForward) at(world.here, world.op_layer, 0) = 1;
      if (world.op == kForwardSaved) at(world.here, world.op_layer, 1) = 1;
      if (world.op == kLoss) world.gradient = static_cast<std::int8_t>(layers_);
      if (world.op == kBackward) world.gradient = static_cast<std::int8_t>(world.op_layer - 1);
      world.op = kNothing;
      world.op_layer = 0;
      world.op_reads = {};
    }
    if (ends(world.out_layer != 0, world.out_left)) {
      at(world.host, world.out_layer, world.out_saved) = 1;
      world.out_layer = world.out_saved = 0;
    }
    if (ends(world.in_layer != 0, world.in_left)) {
      at(world.here, world.in_layer, world.in_saved) = 1;
      world.in_layer = world.in_saved = 0;
    }
    for (int layer = world.gradient + 1; layer <= layers_; ++layer) {
      for (int saved = 0; saved < 2; ++saved) {
        if (world.out_layer != layer || world.out_saved != saved) at(world.here, layer, saved) = 0;
      }
    }
    if (time > 0) now_.swap(next_);
    reach(world);
    if (time > 0) now_.swap(next_);
  }

  const Chain& chain_;
  const ChainBudget& budget_;
  const int layers_;
  std::deque<World> now_, next_;  // of this instant and of the next
  std::unordered_set<std::string> seen_;
};

}  // namespace

OracleAnswer oracle_time(const Chain& chain, const ChainBudget& budget, std::size_t most_states) {
  return Oracle(chain, budget).solve(most_states);
}

}  // namespace stepsim
