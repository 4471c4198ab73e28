// The memory rules against slow restatements of themselves on random graphs, and what every log, partition and order must obey. A failure
// names its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "random_graph.h"
#include "sim/critical_path.h"
#include "sim/issue_dependencies.h"
#include "sim/list_schedule.h"
#include "sim/metrics.h"
#include "sim/simulate.h"
#include "sim/waits.h"

namespace stepsim {
namespace {

constexpr std::uint64_t kSeeds = 400;
constexpr LedgerRule kRules[] = {LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, LedgerRule::kScheduleOrder};

struct Shape {
  bool deferred = false;  // storages freed through events
  bool issuers = true;
};

struct Case {
  OpGraph graph;
  std::vector<GivenCostModel::Row> rows;
};

// One or two devices with a compute and two side streams and a host thread each; every op writes up to two new storages of its device and
// reads, writes in place or holds recent ones. Edges go from an op to the ops that use what it wrote.
class Source {
 public:
  Source(std::uint64_t seed, const Shape& shape) : random_(seed), shape_(shape) {}

  Case made() {
    const std::int32_t devices = 1 + below(2);
    for (std::int32_t i = 0; i < devices; ++i) {
      Device device{.id = builder_.add_device()};
      for (std::int32_t stream = 0; stream < 3; ++stream) {
        device.streams.push_back(builder_.add_stream({.device = device.id, .compute = stream == 0}));
      }
      if (shape_.issuers) device.issuer = builder_.add_issuer({.device = device.id, .run_ahead = 1 + below(20)});
      devices_.push_back(device);
    }
    for (std::int32_t i = 10 + below(60); i > 0; --i) add_op(devices_[at(below(devices))]);
    return {.graph = std::move(builder_).build(), .rows = std::move(rows_)};
  }

 private:
  struct Device {
    DeviceId id{};
    std::vector<StreamId> streams{};
    IssuerId issuer{};
    std::vector<std::pair<StorageId, OpId>> recent{};  // with the op that wrote it last; none: a resident
  };

  std::int32_t below(std::int32_t end) { return static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(end)); }
  bool chance(std::int32_t percent) { return below(100) < percent; }
  Tensor whole(StorageId id) { return {.storage = id, .offset = Bytes(0), .size = builder_.storage(id).size}; }

  StorageId add_storage(const Device& device) {
    return builder_.add_storage({.size = Bytes(below(20)),
                                 .role = builder_.label("role", below(3)),
                                 .device = device.id,
                                 .space = chance(20) ? MemorySpace::kHost : MemorySpace::kDevice,
                                 .live_at_start = chance(10),
                                 .live_at_end = chance(10),
                                 .deferred_free = shape_.deferred && chance(50)});
  }

  void add_op(Device& device) {
    const bool marker = chance(10);
    const OpId id{static_cast<std::int32_t>(builder_.op_count())};
    std::vector<Edge> edges;
    std::vector<Tensor> reads, writes;
    std::vector<StorageId> holds;
    for (auto& [storage, writer] : device.recent) {
      if (!chance(40)) continue;
      if (writer.valid()) edges.push_back({.from = writer});
      const std::int32_t how = below(marker ? 1 : 4);
      if (how == 0) {
        holds.push_back(storage);
      } else {
        reads.push_back(whole(storage));
      }
      if (how == 3) {
        writes.push_back(whole(storage));
        writer = id;
      }
    }
    for (std::int32_t i = marker ? 0 : below(3); i > 0; --i) {
      device.recent.emplace_back(add_storage(device), id);
      writes.push_back(whole(device.recent.back().first));
    }
    while (device.recent.size() > 5) device.recent.erase(device.recent.begin());
    const std::int32_t stream = below(3);
    const Given::Class classes[] = {Given::Class::kCompute, Given::Class::kCollective, Given::Class::kCopyToHost,
                                    Given::Class::kCopyToDevice};
    rows_.push_back({.fixed = Duration(below(3)), .alone = Duration(1 + below(30)), .issue = Duration(below(6))});
    const Given given{.index = static_cast<std::int32_t>(rows_.size()) - 1, .op_class = classes[stream == 0 ? 0 : below(4)]};
    builder_.add_op({.work = builder_.work(marker ? OpWork(Marker{}) : OpWork(given)),
                     .stream = device.streams[at(stream)],
                     .phase = builder_.label("phase", below(3)),
                     .kind = builder_.label("kind", below(3)),
                     .issuer = device.issuer},
                    {.predecessors = edges, .reads = reads, .writes = writes, .holds = holds});
  }

  std::mt19937_64 random_;
  const Shape shape_;
  OpGraphBuilder builder_;
  std::vector<Device> devices_;
  std::vector<GivenCostModel::Row> rows_;
};

Case made(std::uint64_t seed, const Shape& shape) { return Source(seed, shape).made(); }

template <class Test>
void for_each_seed(const Test& test) {
  for (std::uint64_t seed = 1; seed <= kSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test(seed);
  }
}

std::vector<GivenCostModel::Row> other_durations(std::vector<GivenCostModel::Row> rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (GivenCostModel::Row& row : rows) {
    row.alone = Duration(static_cast<std::int64_t>(random() % 100));
    row.issue = Duration(static_cast<std::int64_t>(random() % 10));
  }
  return rows;
}

StepResult run(const OpGraph& graph, const std::vector<GivenCostModel::Row>& rows, LedgerRule rule) {
  return simulate(graph, plain_machine(graph.device_count()), GivenCostModel(rows), {.device = rule, .host = rule});
}

std::vector<StorageId> storages_of(const OpGraph& graph, OpId op) {
  std::vector<StorageId> all;
  for (const Tensor& tensor : graph.reads(op)) all.push_back(tensor.storage);
  for (const Tensor& tensor : graph.writes(op)) all.push_back(tensor.storage);
  all.insert(all.end(), graph.holds(op).begin(), graph.holds(op).end());
  return all;
}

TEST(MemoryProperties, IssueOrderPeaksDependOnNoDuration) {
  for_each_seed([](std::uint64_t seed) {
    const Case random = made(seed, {});
    const StepResult one = run(random.graph, random.rows, LedgerRule::kIssueOrder);
    const StepResult other = run(random.graph, other_durations(random.rows, seed), LedgerRule::kIssueOrder);
    for (std::int32_t device = 0; device < random.graph.device_count(); ++device) {
      const MemoryPeak first = memory_peak(random.graph, one, DeviceId{device}, MemorySpace::kDevice);
      const MemoryPeak second = memory_peak(random.graph, other, DeviceId{device}, MemorySpace::kDevice);
      EXPECT_EQ(first.bytes, second.bytes);
      EXPECT_EQ(first.by_bucket, second.by_bucket);
      EXPECT_EQ(holders_at_peak(random.graph, one, DeviceId{device}, MemorySpace::kDevice),
                holders_at_peak(random.graph, other, DeviceId{device}, MemorySpace::kDevice));
    }
  });
}

TEST(MemoryProperties, EveryLogIsWellFormedAndEndsAtTheResidents) {
  for (const bool deferred : {false, true}) {
    for (const bool issuers : {false, true}) {
      for_each_seed([&](std::uint64_t seed) {
        const Case random = made(seed, {.deferred = deferred, .issuers = issuers});
        std::vector<bool> used(random.graph.storages().size(), false);
        for (std::int32_t op = 0; at(op) < random.graph.ops().size(); ++op) {
          for (const StorageId storage : storages_of(random.graph, OpId{op})) used[at(storage.index)] = true;
        }
        for (const LedgerRule rule : kRules) {
          const StepResult result = run(random.graph, random.rows, rule);
          std::vector<std::int64_t> live(random.graph.storages().size(), 0);
          std::vector<int> claims(random.graph.storages().size(), 0);
          TimePoint now{};
          for (const MemoryEvent& event : result.memory) {
            EXPECT_LE(now, event.at);
            EXPECT_LE(event.at, result.end);
            now = event.at;
            std::int64_t& its = live[at(event.storage.index)];
            its += event.bytes.value;
            claims[at(event.storage.index)] += event.bytes.value > 0 ? 1 : 0;
            const std::int64_t size = random.graph.storages()[at(event.storage.index)].size.value;
            EXPECT_EQ(its, event.bytes.value > 0 ? size : 0);
          }
          for (std::size_t i = 0; i < live.size(); ++i) {
            const Storage& storage = random.graph.storages()[i];
            EXPECT_EQ(claims[i], storage.size.value > 0 ? 1 : 0);
            EXPECT_EQ(live[i], storage.live_at_end || !used[i] ? storage.size.value : 0);
          }
        }
      });
    }
  }
}

// Peak of intervals [claim, release) where releases come before claims at one instant.
std::int64_t peak_of(const std::vector<std::pair<TimePoint, std::int64_t>>& changes) {
  std::map<TimePoint, std::pair<std::int64_t, std::int64_t>> by_time;  // released, claimed
  for (const auto& [time, size] : changes) (size < 0 ? by_time[time].first : by_time[time].second) += size;
  std::int64_t live = 0, peak = 0;
  for (const auto& [time, sums] : by_time) {
    live += sums.first + sums.second;
    peak = std::max(peak, live);
  }
  return peak;
}

TEST(MemoryProperties, DeviceOrderIsLifetimesInDeviceTime) {
  for_each_seed([](std::uint64_t seed) {
    const Case random = made(seed, {});
    const StepResult result = run(random.graph, random.rows, LedgerRule::kDeviceOrder);
    for (std::int32_t device = 0; device < random.graph.device_count(); ++device) {
      std::vector<std::pair<TimePoint, std::int64_t>> changes;
      for (std::int32_t storage = 0; at(storage) < random.graph.storages().size(); ++storage) {
        const Storage& its = random.graph.storages()[at(storage)];
        if (its.device.index != device || its.space != MemorySpace::kDevice) continue;
        TimePoint begin = TimePoint::max(), end{};
        for (const OpRun& each : result.timeline) {
          const std::vector<StorageId> used = storages_of(random.graph, each.op);
          if (std::find(used.begin(), used.end(), StorageId{storage}) == used.end()) continue;
          begin = std::min(begin, each.start);  // its writer comes before all others
          end = std::max(end, each.end);
        }
        changes.emplace_back(its.live_at_start ? TimePoint(0) : begin, its.size.value);
        if (!its.live_at_end) changes.emplace_back(end, -its.size.value);
      }
      EXPECT_EQ(memory_peak(random.graph, result, DeviceId{device}, MemorySpace::kDevice).bytes.value, peak_of(changes));
    }
  });
}

// PyTorch's rule, restated with a scan of everything at every op.
std::int64_t issue_order_peak(const OpGraph& graph, const StepResult& result, DeviceId device) {
  std::map<OpId, const OpRun*> runs;
  for (const OpRun& each : result.timeline) runs[each.op] = &each;
  struct Live {
    std::int64_t size;
    StreamId owner;
    std::optional<TimePoint> free_when;  // deferred: at the first claim from then on
  };
  std::map<StorageId, Live> live;
  std::vector<OpId> order;
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    const StreamId stream = graph.op(OpId{op}).stream;
    if (graph.streams()[at(stream.index)].device == device) order.push_back(OpId{op});
  }
  StreamId compute{};
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    if (graph.streams()[at(stream)].compute && graph.streams()[at(stream)].device == device) compute = StreamId{stream};
  }
  const auto ours = [&](StorageId id) {
    return graph.storages()[at(id.index)].device == device && graph.storages()[at(id.index)].space == MemorySpace::kDevice;
  };
  std::int64_t peak = 0;
  const auto note = [&] {
    std::int64_t sum = 0;
    for (const auto& each : live) sum += each.second.size;
    peak = std::max(peak, sum);
  };
  for (std::int32_t storage = 0; at(storage) < graph.storages().size(); ++storage) {
    const Storage& its = graph.storages()[at(storage)];
    if (ours(StorageId{storage}) && its.live_at_start) live[StorageId{storage}] = {its.size.value, compute, {}};
  }
  note();
  std::vector<bool> seen(graph.storages().size(), false);
  for (std::size_t k = 0; k < order.size(); ++k) {
    const TimePoint now = runs.at(order[k])->issued;
    for (const Tensor& tensor : graph.writes(order[k])) {
      const Storage& its = graph.storages()[at(tensor.storage.index)];
      if (!ours(tensor.storage) || its.live_at_start || seen[at(tensor.storage.index)]) continue;
      seen[at(tensor.storage.index)] = true;
      if (its.size.value == 0) continue;  // asks for nothing, polls nothing
      std::erase_if(live, [&](const auto& each) { return each.second.free_when && *each.second.free_when <= now; });
      live[tensor.storage] = {its.size.value, graph.op(order[k]).stream, {}};
      note();
    }
    for (const StorageId id : storages_of(graph, order[k])) {
      const Storage& its = graph.storages()[at(id.index)];
      if (!ours(id) || its.live_at_end || live.count(id) == 0) continue;
      TimePoint foreign = TimePoint::min();
      bool last = true;
      for (std::size_t other = 0; other < order.size(); ++other) {
        const std::vector<StorageId> used = storages_of(graph, order[other]);
        if (std::find(used.begin(), used.end(), id) == used.end()) continue;
        last = last && other <= k;
        if (graph.op(order[other]).stream != live.at(id).owner) foreign = std::max(foreign, runs.at(order[other])->end);
      }
      if (!last) continue;
      if (its.deferred_free && foreign != TimePoint::min()) {
        live.at(id).free_when = foreign;
      } else {
        live.erase(id);
      }
    }
  }
  return peak;
}

TEST(MemoryProperties, IssueOrderFollowsTheAllocator) {
  for (const bool deferred : {false, true}) {
    for_each_seed([&](std::uint64_t seed) {
      const Case random = made(seed, {.deferred = deferred});
      const StepResult result = run(random.graph, random.rows, LedgerRule::kIssueOrder);
      ASSERT_FALSE(result.deadlock.has_value());
      for (std::int32_t device = 0; device < random.graph.device_count(); ++device) {
        EXPECT_EQ(memory_peak(random.graph, result, DeviceId{device}, MemorySpace::kDevice).bytes.value,
                  issue_order_peak(random.graph, result, DeviceId{device}));
      }
    });
  }
}

TEST(MemoryProperties, CapacityMovesNoEvent) {
  for_each_seed([](std::uint64_t seed) {
    const Case random = made(seed, {});
    const StepResult free = run(random.graph, random.rows, LedgerRule::kIssueOrder);
    const Bytes peak = memory_peak(random.graph, free, DeviceId{0}, MemorySpace::kDevice).bytes;
    if (peak.value == 0) return;
    for (const std::int64_t less : {0, 1}) {
      Machine machine = plain_machine(random.graph.device_count());
      machine.device_capacity[0] = peak - Bytes(less);
      const StepResult tight = simulate(random.graph, machine, GivenCostModel(random.rows), {.host = LedgerRule::kIssueOrder});
      EXPECT_EQ(tight.out_of_memory.has_value(), less == 1);
      EXPECT_EQ(tight.end, free.end);
      EXPECT_EQ(memory_peak(random.graph, tight, DeviceId{0}, MemorySpace::kDevice).bytes, peak);
    }
  });
}

void expect_partition(const OpGraph& graph, const StepResult& result) {
  const PhaseMeaning meaning{.copy_wait_of_bucket = {0, 1, 0}, .copy_out_first_is_tail = {false, true, true}, .tail = 2, .copy_waits = 3};
  std::vector<TimeSpent> spent;
  const TimePartition parts = time_partition(graph, result, meaning, [&](const TimeSpent& each) { spent.push_back(each); });
  EXPECT_EQ(parts.total(), result.end);
  // What the observer is told covers the step once.
  std::sort(spent.begin(), spent.end(), [](const TimeSpent& a, const TimeSpent& b) { return a.from < b.from; });
  TimePoint now{};
  for (const TimeSpent& each : spent) {
    EXPECT_EQ(each.from, now);
    EXPECT_LT(each.from, each.until);
    EXPECT_EQ(each.op.valid(), each.on != TimeSpent::On::kLaunch && each.on != TimeSpent::On::kNothing);
    now = each.until;
  }
  EXPECT_EQ(now, result.end);
  std::vector<Duration> all = {parts.contention, parts.bubble, parts.host, parts.idle};
  for (const auto* some : {&parts.busy, &parts.exposed_collective, &parts.exposed_copy}) all.insert(all.end(), some->begin(), some->end());
  for (const Duration part : all) EXPECT_GE(part, Duration(0));
}

TEST(TimePartitionProperties, AddsUpToTheStep) {
  for_each_seed([](std::uint64_t seed) {
    for (const bool issuers : {false, true}) {
      const Case random = made(seed, {.issuers = issuers});
      expect_partition(random.graph, run(random.graph, random.rows, LedgerRule::kIssueOrder));
    }
    const RandomCase engine = random_case(seed, {});  // sharing, queues, rendezvous, gates; some never end
    expect_partition(engine.graph, simulate(engine.graph, engine.machine, GivenCostModel(engine.rows)));
  });
}

// The engine has no other reason to let an op wait than those that Waits knows.
TEST(WaitsProperties, ExplainEveryStart) {
  for_each_seed([](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {});
    const StepResult result = simulate(random.graph, random.machine, GivenCostModel(random.rows));
    const Waits waits(random.graph, result);
    for (const OpRun& each : result.timeline) {
      const std::optional<Waits::Cause> cause = waits.last_cause(each.op, each.start);
      EXPECT_EQ(cause ? cause->met : TimePoint(0), each.start) << "op " << each.op.index;
    }
  });
}

TEST(CriticalPathProperties, IsAChainThatEndsWithTheStep) {
  for_each_seed([](std::uint64_t seed) {
    const RandomCase random = random_case(seed, {.shuffled = false});
    const StepResult result = simulate(random.graph, random.machine, GivenCostModel(random.rows));
    const std::vector<PathStep> path = critical_path(random.graph, result);
    if (result.timeline.empty()) return;
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(path.back().start + path.back().duration, result.end);
    for (std::size_t i = 1; i < path.size(); ++i) EXPECT_LE(path[i - 1].start, path[i].start);
    if (result.deadlock) return;
    std::vector<Duration> durations(random.graph.ops().size());
    for (const OpRun& each : result.timeline) durations[at(each.op.index)] = each.end - each.start;
    EXPECT_LE(longest_path(random.graph, durations), result.end);
  });
}

// Asynchronous ops that may not move and other ops of their device but markers are in the graph's order.
void expect_fixed_in_place(const OpGraph& graph, const std::vector<OpId>& order, const std::function<bool(OpId)>& movable) {
  const IssueDependencies given(graph);
  std::vector<std::int32_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[at(order[i].index)] = static_cast<std::int32_t>(i);
  const auto device = [&](OpId op) { return graph.streams()[at(graph.op(op).stream.index)].device; };
  std::vector<OpId> kept;
  for (const OpId op : given.order()) {
    const bool marker = std::holds_alternative<Marker>(graph.work(op));
    if (!marker && (!is_asynchronous(graph, op) || !movable(op))) kept.push_back(op);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    for (std::size_t j = i + 1; j < kept.size(); ++j) {
      if (!is_asynchronous(graph, kept[i]) && !is_asynchronous(graph, kept[j])) continue;
      if (device(kept[i]) != device(kept[j])) continue;
      EXPECT_LT(place[at(kept[i].index)], place[at(kept[j].index)]);
    }
  }
}

TEST(ListScheduleProperties, OrdersRunAndKeepTheMemoryLimit) {
  for_each_seed([](std::uint64_t seed) {
    const Case random = made(seed, {.issuers = false});
    std::mt19937_64 random_limit(seed);
    const auto peaks = [&](std::span<const OpId> order) {
      const OpGraph graph = with_issue_order(random.graph, order);
      EXPECT_TRUE(find_cycle(graph).empty());
      const StepResult result = run(graph, random.rows, LedgerRule::kScheduleOrder);
      EXPECT_FALSE(result.deadlock.has_value());
      std::vector<Bytes> of_device;
      for (std::int32_t device = 0; device < graph.device_count(); ++device) {
        of_device.push_back(memory_peak(graph, result, DeviceId{device}, MemorySpace::kDevice).bytes);
      }
      return of_device;
    };
    const Bytes limit(static_cast<std::int64_t>(random_limit() % 200));
    const auto estimate = [&](OpId op) { return static_cast<std::int64_t>(1 + op.index % 7); };
    // All asynchronous ops move, every other, none.
    for (const std::int32_t one_of : {1, 2, 1 << 30}) {
      const auto movable = [&](OpId op) { return op.index % one_of == one_of - 1; };
      const IssueDependencies dependencies(random.graph, movable);
      // The order that list_schedule says it starts from.
      const std::vector<Bytes> thrifty = peaks(dependencies.order_with_lazy([&](OpId op) {
        if (!is_asynchronous(random.graph, op) || !movable(op)) return false;
        for (const Tensor& tensor : random.graph.writes(op)) {
          const Storage& storage = random.graph.storages()[at(tensor.storage.index)];
          if (!storage.live_at_start && storage.space == MemorySpace::kDevice) return true;
        }
        return false;
      }));
      const std::vector<OpId> order =
          list_schedule(random.graph, estimate, {.device_memory = limit, .asynchronous = 2, .movable = movable});
      const std::vector<Bytes> scheduled = peaks(order);
      for (std::size_t i = 0; i < scheduled.size(); ++i) EXPECT_LE(scheduled[i], std::max(limit, thrifty[i]));
      expect_fixed_in_place(random.graph, order, movable);
    }
  });
}

}  // namespace
}  // namespace stepsim
