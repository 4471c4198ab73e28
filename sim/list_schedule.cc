#include "sim/list_schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "sim/check.h"
#include "sim/issue_dependencies.h"
#include "sim/saturating_sum.h"

namespace stepsim {

namespace {

struct DeviceClaim {
  DeviceId device{};
  std::int64_t size = 0;
};

// Live device memory in schedule order, as ops are issued one after another.
class LiveMemory {
 public:
  explicit LiveMemory(const OpGraph& graph)
      : graph_(graph),
        live_(at(graph.device_count()), 0),
        holders_(graph.storages().size(), 0),
        claimed_(graph.storages().size(), false),
        outstanding_(graph.ops().size(), false) {
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      const Storage& storage = graph.storages()[i];
      claimed_[i] = storage.live_at_start || storage.space != MemorySpace::kDevice;
      if (storage.live_at_start && storage.space == MemorySpace::kDevice) add(storage.device, storage.size.value);
    }
    for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
      for_each_storage(OpId{op}, [this](StorageId storage) { ++holders_[at(storage.index)]; });
    }
  }

  // What the op would add now.
  std::vector<DeviceClaim> claims(OpId op) const {
    std::vector<DeviceClaim> sums;
    if (std::holds_alternative<Marker>(graph_.work(op))) return sums;
    for (const Tensor& tensor : graph_.writes(op)) {
      if (claimed_[at(tensor.storage.index)]) continue;
      const Storage& storage = graph_.storages()[at(tensor.storage.index)];
      const auto same = [&storage](const DeviceClaim& sum) { return sum.device == storage.device; };
      const auto sum = std::find_if(sums.begin(), sums.end(), same);
      if (sum == sums.end()) {
        sums.push_back({storage.device, storage.size.value});
      } else {
        sum->size = saturating_sum(sum->size, storage.size.value);
      }
    }
    return sums;
  }

  // Lets go what the asynchronous ops hold for which this one is the first to wait, and returns them. Then claims.
  std::vector<OpId> begin(OpId op) {
    std::vector<OpId> waited_for;
    for (const Edge& edge : graph_.predecessors(op)) {
      if (edge.kind != EdgeKind::kEndToStart || !outstanding_[at(edge.from.index)]) continue;
      outstanding_[at(edge.from.index)] = false;
      waited_for.push_back(edge.from);
      release(edge.from);
    }
    for (const DeviceClaim& claim : claims(op)) add(claim.device, claim.size);
    if (!std::holds_alternative<Marker>(graph_.work(op))) {
      for (const Tensor& tensor : graph_.writes(op)) claimed_[at(tensor.storage.index)] = true;
    }
    return waited_for;
  }

  void finish(OpId op) {
    if (is_asynchronous(graph_, op)) {
      outstanding_[at(op.index)] = true;
    } else {
      release(op);
    }
  }

  std::int64_t live(DeviceId device) const {
    return static_cast<std::int64_t>(std::min<__int128>(live_[at(device.index)], std::numeric_limits<std::int64_t>::max()));
  }

 private:
  void add(DeviceId device, std::int64_t size) { live_[at(device.index)] += size; }

  void release(OpId op) {
    for_each_storage(op, [this](StorageId id) {
      if (--holders_[at(id.index)] > 0) return;
      const Storage& storage = graph_.storages()[at(id.index)];
      if (storage.space != MemorySpace::kDevice || storage.live_at_end || !claimed_[at(id.index)]) return;
      live_[at(storage.device.index)] -= storage.size.value;
    });
  }

  template <class Use>
  void for_each_storage(OpId op, const Use& use) const {
    for (const Tensor& tensor : graph_.reads(op)) use(tensor.storage);
    for (const Tensor& tensor : graph_.writes(op)) use(tensor.storage);
    for (const StorageId storage : graph_.holds(op)) use(storage);
  }

  const OpGraph& graph_;
  std::vector<__int128> live_;  // by device; a sum of sizes may be above an int64
  std::vector<std::int32_t> holders_;
  std::vector<bool> claimed_;
  std::vector<bool> outstanding_;  // asynchronous, issued, not waited for
};

// Live memory of one device at each claim of the thrifty order; a segment tree with addition to ranges and maxima of ranges.
class Profile {
 public:
  void append(std::int64_t live) { largest_.push_back(live); }
  void close() {
    const std::vector<std::int64_t> slots = std::move(largest_);
    while (width_ < slots.size()) width_ *= 2;
    largest_.assign(2 * width_, 0);
    added_.assign(2 * width_, 0);
    std::copy(slots.begin(), slots.end(), largest_.begin() + static_cast<std::ptrdiff_t>(width_));
    for (std::size_t node = width_ - 1; node > 0; --node) largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
    taken_.assign(slots.size() + 1, false);
  }
  std::size_t slots() const { return largest_.size(); }  // before close()

  // What is live at most from the first slot not taken until before `slot`.
  std::int64_t largest_until(std::size_t slot) const { return largest_in({1, 0, width_}, front_, slot); }

  // The claim of `slot` is made now.
  void take(std::size_t slot, std::int64_t size) {
    if (front_ < slot) add_in({1, 0, width_}, front_, slot, size);
    taken_[slot] = true;
    while (taken_[front_]) ++front_;
  }

 private:
  struct Node {
    std::size_t index, low, high;
    std::size_t middle() const { return (low + high) / 2; }
    Node left() const { return {2 * index, low, middle()}; }
    Node right() const { return {2 * index + 1, middle(), high}; }
  };
  std::int64_t largest_in(const Node& node, std::size_t first, std::size_t last) const {
    if (last <= node.low || node.high <= first || last <= first) return 0;
    if (first <= node.low && node.high <= last) return largest_[node.index];
    return saturating_sum(added_[node.index], std::max(largest_in(node.left(), first, last), largest_in(node.right(), first, last)));
  }
  void add_in(const Node& node, std::size_t first, std::size_t last, std::int64_t size) {
    if (last <= node.low || node.high <= first) return;
    std::int64_t& largest = largest_[node.index];
    if (first <= node.low && node.high <= last) {
      largest = saturating_sum(largest, size);
      added_[node.index] = saturating_sum(added_[node.index], size);
      return;
    }
    add_in(node.left(), first, last, size);
    add_in(node.right(), first, last, size);
    largest = saturating_sum(added_[node.index], std::max(largest_[2 * node.index], largest_[2 * node.index + 1]));
  }

  std::size_t width_ = 1, front_ = 0;
  std::vector<std::int64_t> largest_, added_;
  std::vector<bool> taken_;
};

class Scheduler {
 public:
  Scheduler(const OpGraph& graph, const OpEstimate& estimate, const ListScheduleLimits& limits)
      : graph_(graph), estimate_(estimate), limits_(limits), dependencies_(graph, limits.movable), memory_(graph) {
    const LiveMemory untouched(graph);
    thrifty_ = dependencies_.order_with_lazy([&](OpId op) { return moves(op) && !untouched.claims(op).empty(); });
    const std::size_t ops = graph.ops().size();
    rank_.resize(ops);
    for (std::size_t i = 0; i < ops; ++i) rank_[at(thrifty_[i].index)] = static_cast<std::int32_t>(i);
    stream_free_.assign(graph.streams().size() + 1, 0);  // the last: markers outside every stream
    lanes_.resize(2 * stream_free_.size());
    devices_.resize(at(graph.device_count()));
    for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
      const Stream& each = graph.streams()[at(stream)];
      if (each.compute) devices_[at(each.device.index)].compute = StreamId{stream};
    }
    ready_time_.assign(ops, 0);
    unmet_.assign(ops, 0);
    issued_.assign(ops, false);
    if (limits.device_memory) profile_thrifty_order();
    for (std::int32_t op = 0; at(op) < ops; ++op) {
      unmet_[at(op)] = static_cast<std::int32_t>(dependencies_.before(OpId{op}).size());
      if (unmet_[at(op)] == 0) make_ready(OpId{op});
    }
  }

  std::vector<OpId> order() {
    std::vector<OpId> order;
    while (front_ < thrifty_.size()) {
      OpId next = next_asynchronous();
      if (!next.valid()) next = next_synchronous();
      if (!next.valid()) next = thrifty_[front_];  // always ready, and its claims are in the profile already
      issue(next);
      order.push_back(next);
      while (front_ < thrifty_.size() && issued_[at(thrifty_[front_].index)]) ++front_;
    }
    return order;
  }

 private:
  using Key = std::pair<std::int64_t, std::int32_t>;  // time, rank
  template <class Value>
  using LeastFirst = std::priority_queue<Value, std::vector<Value>, std::greater<>>;
  struct Lane {                          // ready ops of a stream, those that move or the others
    LeastFirst<Key> stalled;             // what they need is still running
    LeastFirst<std::int32_t> available;  // ranks
  };
  struct Device {
    StreamId compute{};
    std::int32_t outstanding = 0;        // ops that move, issued and not waited for
    LeastFirst<std::int64_t> unawaited;  // ends of those that no op waits for
    Profile profile;
  };
  struct Slot {
    OpId op{};
    DeviceId device{};
    std::size_t slot = 0;
  };

  void profile_thrifty_order() {
    LiveMemory memory(graph_);
    for (const OpId op : thrifty_) {
      const std::vector<DeviceClaim> claims = memory.claims(op);
      memory.begin(op);
      for (const DeviceClaim& claim : claims) {
        Profile& profile = devices_[at(claim.device.index)].profile;
        slots_.push_back({.op = op, .device = claim.device, .slot = profile.slots()});
        profile.append(memory.live(claim.device));
      }
      memory.finish(op);
    }
    for (Device& device : devices_) device.profile.close();
    std::sort(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) { return a.op != b.op ? a.op < b.op : a.device < b.device; });
  }

  std::size_t slot_of(OpId op, DeviceId device) const {
    const auto before = [](const Slot& slot, std::pair<OpId, DeviceId> key) { return std::pair(slot.op, slot.device) < key; };
    const auto found = std::lower_bound(slots_.begin(), slots_.end(), std::pair(op, device), before);
    STEPSIM_CHECK(found != slots_.end());
    STEPSIM_CHECK(found->op == op);
    return found->slot;
  }

  std::size_t stream_of(OpId op) const {
    const StreamId stream = graph_.op(op).stream;
    return stream.valid() ? at(stream.index) : graph_.streams().size();
  }

  bool moves(OpId op) const { return is_asynchronous(graph_, op) && (!limits_.movable || limits_.movable(op)); }
  bool fixed(OpId op) const { return is_asynchronous(graph_, op) && !moves(op); }

  Lane& lane_of(OpId op) { return lanes_[2 * stream_of(op) + (moves(op) ? 1 : 0)]; }

  // The time by which a lane's ops are stalled: asynchronous ops follow the compute stream of their device.
  std::int64_t clock(std::size_t lane) const {
    const std::size_t stream = lane / 2;
    if (lane % 2 == 0 || stream == graph_.streams().size()) return stream_free_[stream];
    const StreamId compute = devices_[at(graph_.streams()[stream].device.index)].compute;
    return compute.valid() ? stream_free_[at(compute.index)] : stream_free_[stream];
  }

  void make_ready(OpId op) { lane_of(op).stalled.emplace(ready_time_[at(op.index)], rank_[at(op.index)]); }

  // Drops what has been issued meanwhile and moves what is no longer stalled.
  void refresh(std::size_t index) {
    Lane& lane = lanes_[index];
    const auto gone = [this](std::int32_t rank) { return bool(issued_[at(thrifty_[at(rank)].index)]); };
    for (; !lane.stalled.empty() && (lane.stalled.top().first <= clock(index) || gone(lane.stalled.top().second)); lane.stalled.pop()) {
      lane.available.push(lane.stalled.top().second);
    }
    while (!lane.available.empty() && gone(lane.available.top())) lane.available.pop();
  }

  OpId next_asynchronous() {
    OpId next{};
    for (std::size_t lane = 1; lane < lanes_.size(); lane += 2) {
      refresh(lane);
      if (lanes_[lane].available.empty()) continue;
      const OpId op = thrifty_[at(lanes_[lane].available.top())];
      if (next.valid() && rank_[at(next.index)] < rank_[at(op.index)]) continue;
      if (in_flight_limit_allows(op) && memory_allows(op)) next = op;
    }
    return next;
  }

  OpId next_synchronous() {
    std::optional<Key> next;
    for (std::size_t lane = 0; lane < lanes_.size(); lane += 2) {
      refresh(lane);
      const Lane& each = lanes_[lane];
      if (!each.available.empty()) {
        const Key key(clock(lane), each.available.top());
        if (!next || key < *next) next = key;
      } else if (!each.stalled.empty()) {
        if (!next || each.stalled.top() < *next) next = each.stalled.top();
      }
    }
    if (!next) return {};
    const OpId op = thrifty_[at(next->second)];
    return memory_allows(op) ? op : OpId{};
  }

  bool in_flight_limit_allows(OpId op) {
    if (!limits_.asynchronous) return true;
    Device& device = devices_[at(graph_.streams()[stream_of(op)].device.index)];
    const std::int64_t now = clock(2 * stream_of(op) + 1);
    for (; !device.unawaited.empty() && device.unawaited.top() <= now; device.unawaited.pop()) --device.outstanding;
    return device.outstanding < *limits_.asynchronous;
  }

  bool memory_allows(OpId op) const {
    if (!limits_.device_memory || op == thrifty_[front_]) return true;
    for (const DeviceClaim& claim : memory_.claims(op)) {
      const std::int64_t room = limits_.device_memory->value - claim.size;
      const Profile& profile = devices_[at(claim.device.index)].profile;
      if (memory_.live(claim.device) > room || profile.largest_until(slot_of(op, claim.device)) > room) return false;
    }
    return true;
  }

  void issue(OpId op) {
    if (limits_.device_memory) {
      for (const DeviceClaim& claim : memory_.claims(op)) {
        devices_[at(claim.device.index)].profile.take(slot_of(op, claim.device), claim.size);
      }
    }
    for (const OpId waited_for : memory_.begin(op)) {
      if (moves(waited_for)) --devices_[at(graph_.streams()[stream_of(waited_for)].device.index)].outstanding;
    }
    memory_.finish(op);
    std::int64_t start = ready_time_[at(op.index)];
    for (const StreamId part : graph_.parts(op)) start = std::max(start, stream_free_[at(part.index)]);
    const bool takes_time = !std::holds_alternative<Marker>(graph_.work(op)) && !fixed(op);
    const std::int64_t duration = takes_time ? estimate_(op) : 0;
    STEPSIM_CHECK(duration >= 0);
    const std::int64_t finish = saturating_sum(start, duration);
    for (const StreamId part : graph_.parts(op)) stream_free_[at(part.index)] = finish;
    issued_[at(op.index)] = true;
    bool awaited = false;
    for (const Edge& edge : dependencies_.after(op)) {
      awaited = awaited || edge.kind == EdgeKind::kEndToStart;
      std::int64_t& ready = ready_time_[at(edge.from.index)];
      if (!fixed(op)) ready = std::max(ready, edge.kind == EdgeKind::kEndToStart ? finish : start);
      if (--unmet_[at(edge.from.index)] == 0) make_ready(edge.from);
    }
    if (!moves(op)) return;
    Device& device = devices_[at(graph_.streams()[stream_of(op)].device.index)];
    ++device.outstanding;
    if (!awaited) device.unawaited.push(finish);
  }

  const OpGraph& graph_;
  const OpEstimate& estimate_;
  const ListScheduleLimits& limits_;
  const IssueDependencies dependencies_;
  LiveMemory memory_;
  std::vector<OpId> thrifty_;
  std::size_t front_ = 0;           // the first of it that is not issued
  std::vector<std::int32_t> rank_;  // by op, in the thrifty order
  std::vector<std::int64_t> stream_free_;
  std::vector<Lane> lanes_;
  std::vector<Device> devices_;
  std::vector<std::int64_t> ready_time_;
  std::vector<std::int32_t> unmet_;
  std::vector<bool> issued_;
  std::vector<Slot> slots_;  // by (op, device)
};

}  // namespace

std::vector<OpId> list_schedule(const OpGraph& graph, const OpEstimate& estimate, const ListScheduleLimits& limits) {
  bool any_moves = !limits.movable;
  for (std::int32_t op = 0; !any_moves && at(op) < graph.ops().size(); ++op) {
    any_moves = is_asynchronous(graph, OpId{op}) && limits.movable(OpId{op});
  }
  if (any_moves) return Scheduler(graph, estimate, limits).order();
  const IssueDependencies dependencies(graph);
  return {dependencies.order().begin(), dependencies.order().end()};
}

}  // namespace stepsim
