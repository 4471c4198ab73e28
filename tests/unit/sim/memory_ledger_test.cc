#include "sim/memory_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;

OpRun run(OpId op, std::int64_t issued, std::int64_t start, std::int64_t end) {
  return {.op = op, .issued = TimePoint(issued), .start = TimePoint(start), .end = TimePoint(end), .slowed = {}};
}

StepResult result_of(std::vector<OpRun> timeline) {
  StepResult result;
  std::sort(timeline.begin(), timeline.end(),
            [](const OpRun& a, const OpRun& b) { return std::pair(a.start, a.op) < std::pair(b.start, b.op); });
  for (const OpRun& each : timeline) result.end = std::max(result.end, each.end);
  result.timeline = std::move(timeline);
  return result;
}

struct Change {
  std::int64_t at, bytes;
  std::int32_t by;
  friend bool operator==(const Change&, const Change&) = default;
};
std::vector<Change> changes(const StepResult& result) {
  std::vector<Change> all;
  for (const MemoryEvent& event : result.memory) all.push_back({event.at.count(), event.bytes.value, event.by.index});
  return all;
}

// A (compute) writes s; C (copy) and B (compute) read s, C writes t, B writes u; D (compute) reads u, writes v.
// Issued at 1, 2, 3, 4; A runs 10-20, C 20-45, B 20-30, D 30-40.
struct FourOps {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true), copies = small.stream(device);
  IssuerId host = small.builder.add_issuer({.device = device});
  StorageId s, t, u, v;
  OpId a, c, b, d;

  explicit FourOps(bool deferred = false, bool last_waits_for_copy = false) {
    s = small.builder.add_storage({.size = Bytes(100), .device = device, .deferred_free = deferred});
    t = small.storage(device, 50);
    u = small.storage(device, 40);
    v = small.storage(device, 120);
    a = small.op(compute, 10, {.writes = {s}, .issuer = host});
    c = small.op(copies, 25, {.after = {{a}}, .reads = {s}, .writes = {t}, .issuer = host}, Given::Class::kCopyToHost);
    b = small.op(compute, 10, {.after = {{a}}, .reads = {s}, .writes = {u}, .issuer = host});
    std::vector<Edge> before = {{b}};
    if (last_waits_for_copy) before.push_back({c});
    d = small.op(compute, 10, {.after = before, .reads = {u}, .writes = {v}, .issuer = host});
  }
  StepResult recorded(LedgerRule rule, const Machine& machine = plain_machine(1)) {
    StepResult result = result_of({run(a, 1, 10, 20), run(c, 2, 20, 45), run(b, 3, 20, 30), run(d, 4, 30, 40)});
    graph = std::move(small.builder).build();
    record_memory(graph, machine, rule, LedgerRule::kDeviceOrder, result);
    return result;
  }
  OpGraph graph;
};

TEST(MemoryLedger, IssueOrder) {
  FourOps four;
  const StepResult result = four.recorded(LedgerRule::kIssueOrder);
  // 1: A claims s. 2: C claims t, is its last holder too and releases it. 3: B claims u, is the last to hold s. 4: D claims v, then
  // releases u, v.
  EXPECT_EQ(changes(result),
            (std::vector<Change>{{1, 100, 0}, {2, 50, 1}, {2, -50, 1}, {3, 40, 2}, {3, -100, 2}, {4, 120, 3}, {4, -40, 3}, {4, -120, 3}}));
  const MemoryPeak peak = memory_peak(four.graph, result, four.device, MemorySpace::kDevice);
  EXPECT_EQ(peak.bytes, Bytes(160));  // u + v at 4; 150 at 2
  EXPECT_EQ(peak.at, TimePoint(4));
  EXPECT_THAT(holders_at_peak(four.graph, result, four.device, MemorySpace::kDevice), ElementsAre(four.v, four.u));
}

TEST(MemoryLedger, DeviceOrder) {
  FourOps four;
  const StepResult result = four.recorded(LedgerRule::kDeviceOrder);
  // 20: A has ended before C and B start. 30: B ends, s is still read by C until 45.
  EXPECT_EQ(changes(result),
            (std::vector<Change>{
                {10, 100, 0}, {20, 50, 1}, {20, 40, 2}, {30, 120, 3}, {40, -40, 3}, {40, -120, 3}, {45, -100, 1}, {45, -50, 1}}));
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).bytes, Bytes(310));
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).at, TimePoint(30));
}

TEST(MemoryLedger, DeviceOrderReleasesBeforeItClaims) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId first = small.storage(device, 10), second = small.storage(device, 20);
  const OpId b = small.op(stream, 5, {.writes = {second}});  // the lower id starts when the other one ends
  const OpId a = small.op(stream, 5, {.writes = {first}});
  const OpGraph graph = std::move(small.builder).build();
  StepResult result = result_of({run(a, 0, 0, 5), run(b, 0, 5, 10)});
  record_memory(graph, plain_machine(1), LedgerRule::kDeviceOrder, LedgerRule::kDeviceOrder, result);
  EXPECT_EQ(changes(result), (std::vector<Change>{{0, 10, 1}, {5, -10, 1}, {5, 20, 0}, {10, -20, 0}}));
}

TEST(MemoryLedger, ScheduleOrderHoldsUntilTheCopyIsDone) {
  FourOps four(false, true);
  const StepResult result = four.recorded(LedgerRule::kScheduleOrder);
  // The places are the starts on the compute stream: A 10, C behind it, B 20, D 30. C is done where D waits for it, before D claims.
  EXPECT_EQ(changes(result),
            (std::vector<Change>{
                {10, 100, 0}, {10, 50, 1}, {20, 40, 2}, {30, -100, 1}, {30, -50, 1}, {30, 120, 3}, {30, -40, 3}, {30, -120, 3}}));
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).bytes, Bytes(190));
}

TEST(MemoryLedger, ScheduleOrderWithoutAWaiterHoldsToTheEnd) {
  FourOps four;
  const StepResult result = four.recorded(LedgerRule::kScheduleOrder);
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).bytes, Bytes(310));  // s, t, u and v
  EXPECT_EQ(result.memory.back().at, TimePoint(45));
}

TEST(MemoryLedger, DeferredFreeWaitsForAPollAfterTheForeignUse) {
  FourOps four(true);
  const StepResult result = four.recorded(LedgerRule::kIssueOrder);
  // B lets s go at 3, but C uses it on the copy stream until 45: no claim comes later, the end of the step gives it back, by nobody.
  EXPECT_EQ(
      changes(result),
      (std::vector<Change>{{1, 100, 0}, {2, 50, 1}, {2, -50, 1}, {3, 40, 2}, {4, 120, 3}, {4, -40, 3}, {4, -120, 3}, {45, -100, -1}}));
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).bytes, Bytes(260));
  EXPECT_FALSE(result.forced_frees);
}

TEST(MemoryLedger, DeferredFreesAreForcedWhereTheClaimWouldFail) {
  FourOps four(true);
  Machine machine = plain_machine(1);
  machine.device_capacity[0] = Bytes(200);  // D asks for 120 while s and u hold 140
  const StepResult result = four.recorded(LedgerRule::kIssueOrder, machine);
  EXPECT_TRUE(result.forced_frees);
  EXPECT_FALSE(result.out_of_memory.has_value());
  EXPECT_EQ(changes(result),
            (std::vector<Change>{{1, 100, 0}, {2, 50, 1}, {2, -50, 1}, {3, 40, 2}, {4, -100, -1}, {4, 120, 3}, {4, -40, 3}, {4, -120, 3}}));
}

TEST(MemoryLedger, OutOfMemoryNamesTheClaimAndTheHolders) {
  FourOps four;
  Machine machine = plain_machine(1);
  machine.device_capacity[0] = Bytes(145);
  const StepResult result = four.recorded(LedgerRule::kIssueOrder, machine);
  ASSERT_TRUE(result.out_of_memory.has_value());
  EXPECT_EQ(result.out_of_memory->op, four.c);  // 100 live, asks for 50
  EXPECT_EQ(result.out_of_memory->requested, Bytes(50));
  EXPECT_EQ(result.out_of_memory->available, Bytes(45));
  EXPECT_EQ(result.out_of_memory->at, TimePoint(2));
  EXPECT_EQ(result.out_of_memory->device, four.device);
  EXPECT_THAT(result.out_of_memory->holders, ElementsAre(four.s));
  // The step goes on as if there were room.
  EXPECT_EQ(memory_peak(four.graph, result, four.device, MemorySpace::kDevice).bytes, Bytes(160));
}

TEST(MemoryLedger, HoldersAreNamedLargestFirst) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId x = small.storage(device, 10), y = small.storage(device, 30), z = small.storage(device, 10), w = small.storage(device, 5);
  small.op(stream, 1, {.writes = {x, y, z}});
  small.op(stream, 1, {.writes = {w}});
  small.op(stream, 1, {.reads = {x, y, z, w}});
  Machine machine = plain_machine(1);
  machine.device_capacity[0] = Bytes(54);
  const GivenCostModel costs = small.costs();
  const StepResult result = simulate(std::move(small.builder).build(), machine, costs);
  ASSERT_TRUE(result.out_of_memory.has_value());
  EXPECT_THAT(result.out_of_memory->holders, ElementsAre(y, x, z));
  EXPECT_EQ(result.out_of_memory->available, Bytes(4));
}

TEST(MemoryLedger, ResidentsComeFirstAndMayAloneNotFit) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId weights = small.builder.add_storage({.size = Bytes(60), .device = device, .live_at_start = true, .live_at_end = true});
  const StorageId dies = small.builder.add_storage({.size = Bytes(50), .device = device, .live_at_start = true});
  const StorageId born = small.builder.add_storage({.size = Bytes(7), .device = device, .live_at_end = true});
  const OpId op = small.op(stream, 5, {.reads = {weights, dies}, .writes = {born}});
  const OpGraph graph = std::move(small.builder).build();
  StepResult result = result_of({run(op, 0, 3, 8)});
  Machine machine = plain_machine(1);
  machine.device_capacity[0] = Bytes(100);
  record_memory(graph, machine, LedgerRule::kDeviceOrder, LedgerRule::kDeviceOrder, result);
  EXPECT_EQ(changes(result), (std::vector<Change>{{0, 60, -1}, {0, 50, -1}, {3, 7, 0}, {8, -50, 0}}));
  ASSERT_TRUE(result.out_of_memory.has_value());
  EXPECT_FALSE(result.out_of_memory->op.has_value());
  EXPECT_EQ(result.out_of_memory->requested, Bytes(110));
  EXPECT_EQ(result.out_of_memory->available, Bytes(100));
  EXPECT_THAT(result.out_of_memory->holders, ElementsAre(weights, dies));
}

TEST(MemoryLedger, MarkersReleaseButNeverClaim) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId storage = small.storage(device, 10);
  small.op(stream, 5, {.writes = {storage}});
  small.op(stream, 5);
  const OpId marker = small.marker(stream, {.writes = {storage}, .holds = {storage}});
  small.op(stream, 5);
  const GivenCostModel costs = small.costs();
  const StepResult result = simulate(std::move(small.builder).build(), plain_machine(1), costs);
  EXPECT_EQ(changes(result), (std::vector<Change>{{0, 10, 0}, {10, -10, marker.index}}));
}

TEST(MemoryLedger, DroppingAViewFreesNothing) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId buffer = small.storage(device, 90);
  const WorkId work = small.builder.work(Given{.index = 0});
  small.rows.push_back({.alone = Duration(1)});
  const auto view = [&](std::int64_t offset) {
    return std::vector<Tensor>{{.storage = buffer, .offset = Bytes(offset), .size = Bytes(30)}};
  };
  small.op(stream, 1, {.writes = {buffer}});
  for (const std::int64_t offset : {0, 30, 60}) small.builder.add_op({.work = work, .stream = stream}, {.reads = view(offset)});
  const GivenCostModel costs = small.costs();
  const StepResult result = simulate(std::move(small.builder).build(), plain_machine(1), costs);
  EXPECT_EQ(changes(result), (std::vector<Change>{{0, 90, 0}, {4, -90, 3}}));  // all of it, with the last of the three views
}

// The loss of a head: half-precision scores L are cast to fp32 (2 L), whose gradient (2 L) is cast back (L). In place the gradient is
// written over the fp32 scores: L + 2 L = 3 L at most; out of place L + 2 L + 2 L = 5 L (L half-precision scores that are kept).
TEST(MemoryLedger, InPlaceLossNeedsThreeFifthsOfOutOfPlace) {
  constexpr std::int64_t kScores = 1000;
  for (const bool in_place : {true, false}) {
    SmallGraph small;
    const DeviceId device = small.builder.add_device();
    const StreamId stream = small.stream(device, true);
    const StorageId scores = small.storage(device, kScores), wide = small.storage(device, 2 * kScores);
    const StorageId gradient = in_place ? wide : small.storage(device, 2 * kScores);
    small.op(stream, 1, {.writes = {scores}});
    small.op(stream, 1, {.reads = {scores}, .writes = {wide}});
    small.op(stream, 1, {.reads = {wide}, .writes = {gradient}});
    small.op(stream, 1, {.reads = {gradient, scores}});
    const GivenCostModel costs = small.costs();
    const OpGraph graph = std::move(small.builder).build();
    for (const LedgerRule rule : {LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, LedgerRule::kScheduleOrder}) {
      const StepResult result = simulate(graph, plain_machine(1), costs, {.device = rule});
      EXPECT_EQ(memory_peak(graph, result, device, MemorySpace::kDevice).bytes, Bytes((in_place ? 3 : 5) * kScores));
    }
  }
}

TEST(MemoryLedger, HostStoragesFollowTheirOwnRule) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId copies = small.stream(device);
  const IssuerId host = small.builder.add_issuer({.device = device});
  const StorageId here = small.storage(device, 10);
  const StorageId there = small.builder.add_storage({.size = Bytes(10), .device = device, .space = MemorySpace::kHost});
  const OpId out = small.op(copies, 5, {.reads = {here}, .writes = {here, there}, .issuer = host}, Given::Class::kCopyToHost);
  const OpGraph graph = std::move(small.builder).build();
  StepResult result = result_of({run(out, 2, 7, 12)});
  record_memory(graph, plain_machine(1), LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, result);
  EXPECT_EQ(changes(result), (std::vector<Change>{{2, 10, 0}, {2, -10, 0}, {7, 10, 0}, {12, -10, 0}}));
  EXPECT_EQ(memory_peak(graph, result, device, MemorySpace::kHost).bytes, Bytes(10));
  EXPECT_EQ(memory_peak(graph, result, device, MemorySpace::kHost).at, TimePoint(7));
}

TEST(MemoryLedger, DevicesOfOneHostShareItsCapacity) {
  SmallGraph small;
  const DeviceId left = small.builder.add_device(), right = small.builder.add_device();
  for (const DeviceId device : {left, right}) {
    const StorageId there = small.builder.add_storage({.size = Bytes(60), .device = device, .space = MemorySpace::kHost});
    small.op(small.stream(device), 5 + device.index, {.writes = {there}}, Given::Class::kCopyToHost);
  }
  Machine machine = plain_machine(2);
  machine.host_of_device = {0, 0};
  machine.host_capacity = {Bytes(100)};
  const GivenCostModel costs = small.costs();
  const StepResult result = simulate(std::move(small.builder).build(), machine, costs);
  ASSERT_TRUE(result.out_of_memory.has_value());
  EXPECT_EQ(result.out_of_memory->space, MemorySpace::kHost);
  EXPECT_EQ(result.out_of_memory->device, right);
  EXPECT_EQ(result.out_of_memory->available, Bytes(40));
}

TEST(MemoryLedger, AnOpWithoutIssuerClaimsInDeviceTime) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId first = small.storage(device, 10), second = small.storage(device, 20);
  small.op(stream, 5, {.writes = {first}});
  small.op(stream, 5, {.reads = {first}, .writes = {second}});
  const GivenCostModel costs = small.costs();
  const StepResult result = simulate(std::move(small.builder).build(), plain_machine(1), costs, {.device = LedgerRule::kIssueOrder});
  EXPECT_EQ(changes(result), (std::vector<Change>{{0, 10, 0}, {5, 20, 1}, {10, -10, 1}, {10, -20, 1}}));
}

TEST(MemoryLedger, APoolThatNeverShrinksCountsWithItsHighWaterMark) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const std::int32_t pool = small.builder.add_pool({.space = MemorySpace::kDevice, .device = device, .never_shrinks = true});
  const LabelId inside = small.builder.label("inside", 1), outside = small.builder.label("outside", 2);
  const auto pooled = [&](std::int64_t size) {
    return small.builder.add_storage({.size = Bytes(size), .role = inside, .device = device, .pool = pool});
  };
  const StorageId large = pooled(100), reuses = pooled(60);
  const StorageId plain = small.builder.add_storage({.size = Bytes(30), .role = outside, .device = device});
  small.op(stream, 1, {.writes = {large}});
  small.op(stream, 1, {.writes = {reuses, plain}});  // after `large` is released: 60 of its 100 are used again
  Machine machine = plain_machine(1);
  machine.device_capacity[0] = Bytes(120);  // 100 stay with the pool, 30 more do not fit
  const GivenCostModel costs = small.costs();
  const OpGraph graph = std::move(small.builder).build();
  const StepResult result = simulate(graph, machine, costs);
  const MemoryPeak peak = memory_peak(graph, result, device, MemorySpace::kDevice);
  EXPECT_EQ(peak.bytes, Bytes(130));
  EXPECT_THAT(peak.by_bucket, ElementsAre(Bytes(0), Bytes(100), Bytes(30)));
  ASSERT_TRUE(result.out_of_memory.has_value());
  EXPECT_EQ(result.out_of_memory->requested, Bytes(30));
  EXPECT_EQ(result.out_of_memory->available, Bytes(20));
}

TEST(MemoryLedger, SumsAboveAnInt64Saturate) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const StorageId first = small.storage(device, INT64_MAX), second = small.storage(device, INT64_MAX);
  small.op(stream, 1, {.writes = {first}});
  small.op(stream, 1, {.reads = {first}, .writes = {second}});
  const GivenCostModel costs = small.costs();
  const OpGraph graph = std::move(small.builder).build();
  for (const bool limited : {false, true}) {
    Machine machine = plain_machine(1);
    if (limited) machine.device_capacity[0] = Bytes(INT64_MAX);
    const StepResult result = simulate(graph, machine, costs);
    EXPECT_EQ(memory_peak(graph, result, device, MemorySpace::kDevice).bytes, Bytes(INT64_MAX));
    EXPECT_EQ(result.out_of_memory.has_value(), limited);
  }
}

TEST(MemoryLedger, PeakOfRoles) {
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId stream = small.stream(device, true);
  const LabelId red = small.builder.label("red"), blue = small.builder.label("blue"), green = small.builder.label("green");
  const auto storage = [&](std::int64_t size, LabelId role) {
    return small.builder.add_storage({.size = Bytes(size), .role = role, .device = device});
  };
  const StorageId r = storage(10, red), b = storage(20, blue), g = storage(40, green);
  small.op(stream, 1, {.writes = {r}});
  small.op(stream, 1, {.writes = {b}});
  small.op(stream, 1, {.reads = {b}, .writes = {g}});
  const GivenCostModel costs = small.costs();
  const OpGraph graph = std::move(small.builder).build();
  const StepResult result = simulate(graph, plain_machine(1), costs, {.device = LedgerRule::kDeviceOrder});
  // r lives in [0,1), b in [1,3), g in [2,3).
  EXPECT_EQ(peak_of_roles(graph, result, device, std::vector<LabelId>{red, blue}), Bytes(20));
  EXPECT_EQ(peak_of_roles(graph, result, device, std::vector<LabelId>{blue, green}), Bytes(60));
  EXPECT_EQ(peak_of_roles(graph, result, device, {}), Bytes(0));
}

// Two devices whose states are residents or born where the last op first writes them, in device memory or that of the host.
struct States {
  SmallGraph small;
  DeviceId devices[2] = {small.builder.add_device(), small.builder.add_device()};
  std::vector<StorageId> states;
  // Frees that wait for events; no such frees; or a thread that also uses memory of the other one's device.
  enum class Uses { kDeferred, kApart, kShared };

  explicit States(bool born, Uses uses) {
    for (const DeviceId device : devices) {
      const StreamId stream = small.stream(device, true), copies = small.stream(device);
      const IssuerId host = small.builder.add_issuer({.device = device});
      const auto state = [&](std::int64_t size, MemorySpace space) {
        return small.builder.add_storage(
            {.size = Bytes(size), .device = device, .space = space, .live_at_start = !born, .live_at_end = true});
      };
      states.push_back(state(100 + device.index, MemorySpace::kDevice));
      states.push_back(state(7, MemorySpace::kHost));
      const StorageId saved = small.builder.add_storage({.size = Bytes(60), .device = device, .deferred_free = uses == Uses::kDeferred});
      const StorageId gradient = small.storage(device, 30);
      const OpId first = small.op(stream, 10, {.writes = {saved}, .issuer = host, .issue = 1});
      small.op(copies, 50, {.after = {{first}}, .reads = {saved}, .issuer = host, .issue = 1}, Given::Class::kCopyToHost);
      small.op(stream, 10, {.reads = {saved}, .writes = {gradient}, .issuer = host, .issue = 40});
      std::vector<StorageId> reads = {gradient};
      if (uses == Uses::kShared) reads.push_back(states.front());
      small.op(stream, 10, {.reads = reads, .writes = {states.end()[-2], states.back()}, .issuer = host, .issue = 40});
    }
  }
};

TEST(MemoryLedger, PeaksWithOtherResidentsAreThoseOfAGraphBuiltSo) {
  // Resident, a device has 100 + 60 + 30 = 190 at most (and 1 more on the second one); born, 60 + 30 and then, when the copy (11-61) is
  // over at the launch at 82, 30 + 100: 130. With room for 125 the last claim fails and nothing is left to be forced.
  using enum States::Uses;
  for (const States::Uses uses : {kDeferred, kApart, kShared}) {
    for (const std::int64_t capacity : {1000, 125}) {
      Machine machine = plain_machine(2);
      machine.device_capacity = {Bytes(capacity), Bytes(capacity)};
      States resident(false, uses), born(true, uses);
      const std::vector<StorageId> states = resident.states;
      const GivenCostModel costs = resident.small.costs();
      const OpGraph graph = std::move(resident.small.builder).build(), other = std::move(born.small.builder).build();
      const StepResult result = simulate(graph, machine, costs), built_so = simulate(other, machine, costs);
      const std::vector<Bytes> peaks =
          device_peaks(graph, machine, result, LedgerRule::kIssueOrder, {.storages = states, .live_at_start = false, .live_at_end = true});
      const MemoryPeaks wanted = memory_peaks(other, built_so);
      EXPECT_THAT(peaks, ElementsAre(Bytes(130), Bytes(131)));
      EXPECT_THAT(peaks, ElementsAre(wanted.device[0].bytes, wanted.device[1].bytes));
      StepResult again = result;  // with the log on the way
      EXPECT_EQ(record_memory(graph, machine, LedgerRule::kIssueOrder, LedgerRule::kDeviceOrder, again, {.storages = states}), peaks);
      EXPECT_EQ(again.memory.size(), result.memory.size());
      EXPECT_EQ(again.out_of_memory.has_value(), result.out_of_memory.has_value());
      // The other way round, and without a change.
      EXPECT_THAT(device_peaks(other, machine, built_so, LedgerRule::kIssueOrder, {.storages = states, .live_at_start = true}),
                  ElementsAre(Bytes(190), Bytes(191)));
      EXPECT_THAT(device_peaks(graph, machine, result, LedgerRule::kIssueOrder, {}), ElementsAre(Bytes(190), Bytes(191)));
    }
  }
}

TEST(MemoryLedger, PeaksOfAllDevicesAreThoseOfEach) {
  States states(true, States::Uses::kDeferred);
  const GivenCostModel costs = states.small.costs();
  const OpGraph graph = std::move(states.small.builder).build();
  const StepResult result = simulate(graph, plain_machine(2), costs);
  const MemoryPeaks peaks = memory_peaks(graph, result);
  ASSERT_EQ(peaks.device.size(), 2u);
  for (const DeviceId device : states.devices) {
    const auto i = static_cast<std::size_t>(device.index);
    const MemoryPeak one = memory_peak(graph, result, device, MemorySpace::kDevice);
    EXPECT_EQ(one.bytes, Bytes(130 + device.index));
    EXPECT_EQ(peaks.device[i].bytes, one.bytes);
    EXPECT_EQ(peaks.device[i].at, TimePoint(82));  // the launch of the last op
    EXPECT_EQ(peaks.device[i].by_bucket, one.by_bucket);
    EXPECT_EQ(peaks.host[i].bytes, Bytes(7));
  }
  EXPECT_THAT(holders_at_peak(graph, result, states.devices[1], MemorySpace::kDevice), ElementsAre(states.states[2], StorageId{7}));
}

// engine.md, section 7: L = 32 layers of 10, a copy of 5 after each, host 1 per layer; sets are freed through events of the copy stream.
// Two launches a layer, the copy's at no cost. Layer k is issued at k without a limit: at 32 only the copies that ended by then are
// polled, those of layers 1 and 2 (at 1 + 10 + 5 = 16 and 26), so 30 sets are live. If at most R layers are issued of which the computing
// has not ended, layer k+R is issued at the end of layer k, whose copy still runs: R + 1 sets.
StepResult copies_out(std::int32_t run_ahead, std::int32_t layers_ahead, OpGraph& graph) {
  constexpr std::int32_t kLayers = 32;
  SmallGraph small;
  const DeviceId device = small.builder.add_device();
  const StreamId compute = small.stream(device, true), copies = small.stream(device);
  const IssuerId host = small.builder.add_issuer({.device = device, .run_ahead = run_ahead});
  std::vector<OpId> layers;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const StorageId set = small.builder.add_storage({.size = Bytes(1), .device = device, .deferred_free = true});
    SmallOp work{.writes = {set}, .issuer = host, .issue = 1};
    if (layers_ahead > 0 && layer >= layers_ahead) work.issue_after = {layers[static_cast<std::size_t>(layer - layers_ahead)]};
    layers.push_back(small.op(compute, 10, work));
    small.op(copies, 5, {.after = {{layers.back()}}, .reads = {set}, .issuer = host}, Given::Class::kCopyToHost);
  }
  const GivenCostModel costs = small.costs();
  graph = std::move(small.builder).build();
  return simulate(graph, plain_machine(1), costs);
}

TEST(MemoryLedger, RunAheadDecidesHowManySetsAreLive) {
  struct Case {
    std::int32_t run_ahead, layers_ahead, sets;
  };
  constexpr std::int32_t kUnlimited = 1'000'000;
  // R layers in flight are 2 R launches of which one, the layer that runs, has started.
  for (const Case& each : {Case{kUnlimited, 0, 30}, Case{3, 0, 3}, Case{1, 0, 2}, Case{kUnlimited, 2, 3}, Case{kUnlimited, 1, 2}}) {
    OpGraph graph;
    const StepResult result = copies_out(each.run_ahead, each.layers_ahead, graph);
    EXPECT_EQ(memory_peak(graph, result, DeviceId{0}, MemorySpace::kDevice).bytes, Bytes(each.sets))
        << each.run_ahead << " launches, " << each.layers_ahead << " layers";
    Bytes live{};
    for (const MemoryEvent& event : result.memory) live += event.bytes;
    EXPECT_EQ(live, Bytes(0));
  }
}

}  // namespace
}  // namespace stepsim
