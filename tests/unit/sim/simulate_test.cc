// The event loop on cases that a person can check. Times in picoseconds; u a multiple of a power of two where the end is to be exact.
#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <limits>

#include "simulated.h"

namespace stepsim {
namespace {

struct Fixture {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true);
  StreamId other = small.stream(device);
};

TEST(Simulate, AnEmptyGraphEndsAtZero) {
  const Simulated step = simulated({}, small_machine(0, 0));
  EXPECT_EQ(step.end(), 0);
  EXPECT_TRUE(step.result.timeline.empty());
  EXPECT_FALSE(step.result.deadlock);
}

TEST(Simulate, AStreamRunsItsOpsInOrder) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 10, {.fixed = 2}), b = f.small.op(f.compute, 5), c = f.small.op(f.other, 4);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(a), 12);
  EXPECT_EQ(step.start(b), 12);
  EXPECT_EQ(step.end(b), 17);
  EXPECT_EQ(step.start(c), 0);
  EXPECT_EQ(step.end(), 17);
  EXPECT_EQ(step.result.events, 3u);  // one for each op
}

TEST(Simulate, TheTimelineIsByStartAndOp) {
  Fixture f;
  std::vector<StreamId> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(f.small.stream(f.device));
  for (int i = 5; i >= 0; --i)
    f.small.builder.add_op({.work = f.small.builder.work(Marker{}), .stream = streams[static_cast<std::size_t>(i)], .priority = i}, {});
  const OpId last = f.small.op(streams[3], 7), first = f.small.op(streams[5], 3);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  for (std::size_t i = 0; i < step.result.timeline.size(); ++i) EXPECT_EQ(step.result.timeline[i].op.index, static_cast<std::int32_t>(i));
  EXPECT_EQ(step.end(last), 7);
  EXPECT_EQ(step.end(first), 3);
}

TEST(Simulate, StartToStartEdgesWaitForTheStart) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 10), b = f.small.op(f.compute, 10);
  const OpId c = f.small.op(f.other, 3, {.after = {{.from = b, .kind = EdgeKind::kStartToStart}}});
  const OpId d = f.small.op(f.other, 3, {.after = {{.from = a, .kind = EdgeKind::kStartToStart}}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(c), 10);  // when b starts
  EXPECT_EQ(step.start(d), 13);  // behind c in the stream
}

TEST(Simulate, OpsWithoutDurationEndInTheInstantOfTheirStart) {
  // a (5) -> zero -> marker -> zero -> b, across streams: b starts at 5, and ends come before the starts of the same instant.
  Fixture f;
  const OpId a = f.small.op(f.compute, 5);
  const OpId zero = f.small.op(f.other, 0, {.after = {{a}}});
  const OpId marker = f.small.marker({}, {.after = {{zero}}});
  const OpId again = f.small.op(f.compute, 0, {.after = {{marker}}});
  const OpId b = f.small.op(f.other, 4, {.after = {{again}}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  for (const OpId op : {zero, marker, again}) {
    EXPECT_EQ(step.start(op), 5);
    EXPECT_EQ(step.end(op), 5);
  }
  EXPECT_EQ(step.start(b), 5);
  EXPECT_EQ(step.end(), 9);
}

TEST(Simulate, MarkersKeepTheirPlaceInAStream) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 5), slow = f.small.op(f.other, 20);
  const OpId marker = f.small.marker(f.compute, {.after = {{slow}}});
  const OpId b = f.small.op(f.compute, 5);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(a), 5);
  EXPECT_EQ(step.start(marker), 20);
  EXPECT_EQ(step.start(b), 20);
}

TEST(Simulate, CopiesOnOneEngineEndAtMultiples) {
  // n copies of W = 10 on n streams and one engine: 10, 20, 30, 40 in order of op id, never all at 40.
  Fixture f;
  const QueueId engine = f.small.builder.add_queue({.device = f.device});
  std::vector<OpId> copies;
  for (int i = 0; i < 4; ++i) copies.push_back(f.small.op(f.small.stream(f.device), 10, {.queues = {engine}}));
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step.end(copies[static_cast<std::size_t>(i)]), 10 * (i + 1));
}

TEST(Simulate, AQueueServesWhoCouldStartFirst) {
  // The holder has the engine until 30. b is ready at 10, a (the lower id) at 20: b goes first.
  Fixture f;
  const QueueId engine = f.small.builder.add_queue({.device = f.device});
  const OpId holder = f.small.op(f.small.stream(f.device), 30, {.queues = {engine}});
  const OpId until20 = f.small.op(f.compute, 20), until10 = f.small.op(f.other, 10);
  const OpId a = f.small.op(f.compute, 5, {.queues = {engine}}), b = f.small.op(f.other, 5, {.queues = {engine}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(holder), 30);
  EXPECT_EQ(step.end(until20), 20);
  EXPECT_EQ(step.end(until10), 10);
  EXPECT_EQ(step.start(b), 30);
  EXPECT_EQ(step.start(a), 35);
}

TEST(Simulate, PriorityGoesBeforeTimeInAQueue) {
  Fixture f;
  const QueueId engine = f.small.builder.add_queue({.device = f.device});
  f.small.op(f.small.stream(f.device), 30, {.queues = {engine}});
  const OpId early = f.small.op(f.compute, 5, {.queues = {engine}});
  f.small.op(f.other, 10);
  f.small.rows.push_back({.fixed = Duration(0), .alone = Duration(5), .issue = Duration(0), .loads = {}});
  const QueueId queues[] = {engine};
  const OpId urgent =
      f.small.builder.add_op({.work = f.small.builder.work(Given{.index = 3}), .stream = f.other, .priority = -1}, {.queues = queues});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(urgent), 30);
  EXPECT_EQ(step.start(early), 35);
}

TEST(Simulate, WhoWaitsForOneQueueReservesNoOther) {
  // `both` needs q (busy until 20) and r (free): r serves `later` meanwhile, which arrives at 5, and `both` starts when it has the two.
  Fixture f;
  const QueueId q = f.small.builder.add_queue({.device = f.device}), r = f.small.builder.add_queue({.device = f.device});
  f.small.op(f.small.stream(f.device), 20, {.queues = {q}});
  const OpId both = f.small.op(f.compute, 10, {.queues = {q, r}});
  const OpId behind = f.small.op(f.compute, 1);
  f.small.op(f.other, 5);
  const OpId later = f.small.op(f.other, 20, {.queues = {r}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(later), 5);
  EXPECT_EQ(step.start(both), 25);
  EXPECT_EQ(step.start(behind), 35);  // a waiting op blocks its stream
}

TEST(Simulate, AQueueWithTwoSlotsServesTwo) {
  Fixture f;
  const QueueId engines = f.small.builder.add_queue({.device = f.device, .kind = {}, .slots = 2});
  std::vector<OpId> copies;
  for (int i = 0; i < 5; ++i) copies.push_back(f.small.op(f.small.stream(f.device), 10, {.queues = {engines}}));
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  const std::int64_t ends[] = {10, 10, 20, 20, 30};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(step.end(copies[i]), ends[i]);
}

TEST(Simulate, AStreamOfAnyReadyOpTakesWhatIsReady) {
  Fixture f;
  const StreamId any = f.small.builder.add_stream({.device = f.device, .kind = {}, .compute = false, .any_ready_op = true});
  const OpId slow = f.small.op(f.compute, 12);
  const OpId late = f.small.op(any, 5, {.after = {{slow}}}), now = f.small.op(any, 10), next = f.small.op(any, 10);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.start(now), 0);
  EXPECT_EQ(step.start(next), 10);  // met at 0, before `late` at 12
  EXPECT_EQ(step.start(late), 20);
}

// ---- Sharing

TEST(Simulate, EqualSharersEndTogether) {
  // k = 4 full loads of W = 100: each runs at a quarter, all end at 400.
  Fixture f;
  std::vector<OpId> ops;
  for (int i = 0; i < 4; ++i) ops.push_back(f.small.op(f.small.stream(f.device), 100, {.loads = {load_of(0, 1)}}));
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  for (const OpId op : ops) {
    EXPECT_EQ(step.end(op), 400);
    EXPECT_EQ(step.run(op).slowed.count(), 300);
  }
}

TEST(Simulate, AStaggeredPair) {
  // a (W = 100) alone until 40, then both at a half: a has 60 left, ends at 40 + 120 = 160; b (W = 100) has done 60 by then and ends 40
  // later.
  Fixture f;
  const OpId a = f.small.op(f.compute, 100, {.loads = {load_of(0, 1)}});
  f.small.op(f.other, 40);
  const OpId b = f.small.op(f.other, 100, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(a), 160);
  EXPECT_EQ(step.end(b), 200);
}

TEST(Simulate, TwoFullGridsTakeTheSum) {
  // W1 = 300, W2 = 100: both at a half until 200, then the first alone: 300 + 100 = 400.
  Fixture f;
  const OpId a = f.small.op(f.compute, 300, {.loads = {load_of(0, 1)}}), b = f.small.op(f.other, 100, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(b), 200);
  EXPECT_EQ(step.end(a), 400);
}

TEST(Simulate, AGemmBesideACollectiveLosesItsShare) {
  // kappa = 1/8. Wg = 1000, Wn = 400: the GEMM ends at Wg + kappa Wn = 1050; the collective is not slowed.
  Fixture f;
  const OpId gemm = f.small.op(f.compute, 1000, {.loads = {load_of(0, 1)}}),
             nccl = f.small.op(f.other, 400, {.loads = {load_of(0, 0.125)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(gemm), 1050);
  EXPECT_EQ(step.end(nccl), 400);
}

TEST(Simulate, AGemmUnderALongerCollectiveRunsAtTheRest) {
  // Wg = 700, Wn = 10000: Wg / (1 - 1/8) = 800.
  Fixture f;
  const OpId gemm = f.small.op(f.compute, 700, {.loads = {load_of(0, 1)}}),
             nccl = f.small.op(f.other, 10000, {.loads = {load_of(0, 0.125)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(gemm), 800);
  EXPECT_EQ(step.end(nccl), 10000);
}

TEST(Simulate, AnElementwiseKernelBesideACopyLosesTheCopysBandwidth) {
  // Both use memory: We = 1000 at u = 1, the copy Wc = 320 at u = 1/16 (and its link, where it is alone): We + u Wc = 1020.
  Fixture f;
  const OpId kernel = f.small.op(f.compute, 1000, {.loads = {load_of(0, 1)}});
  const OpId copy = f.small.op(f.other, 320, {.loads = {load_of(0, 0.0625), load_of(1, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 2));
  EXPECT_EQ(step.end(kernel), 1020);
  EXPECT_EQ(step.end(copy), 320);
}

TEST(Simulate, DuplexWithWeights) {
  // PCIe 4: 25 out or in alone, 24 out and 11.5 in together (engine.md): weights 48 : 23, capacity 35.5, so u = 25 / 35.5 each.
  // 24 GB out and 24 GB in: out ends after 1 s at 24 GB/s, in has 12.5 left, which takes 0.5 s at 25: 1.5 s. Alone each takes 0.96 s.
  Fixture f;
  const std::int64_t second = 1'000'000'000'000, alone = second / 100 * 96;
  Load out = load_of(0, 25 / 35.5), in = out;
  out.weight = 48;
  in.weight = 23;
  const OpId to_host = f.small.op(f.compute, alone, {.loads = {out}}), to_device = f.small.op(f.other, alone, {.loads = {in}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  // u is rounded down to 2^-30, a relative error below 2e-9: 1 s holds to 2 ns.
  EXPECT_NEAR(static_cast<double>(step.end(to_host)), static_cast<double>(second), 2000.0);
  EXPECT_NEAR(static_cast<double>(step.end(to_device)), 1.5 * static_cast<double>(second), 4000.0);
}

TEST(Simulate, TwoPeersEqualTwoDevices) {
  // A copy through a host memory that a second, equal device uses too, beside a kernel of the first device on its own memory.
  const auto copies = [](bool both) {
    SmallGraph small;
    std::vector<OpId> ops;
    for (int i = 0; i < (both ? 2 : 1); ++i) {
      const DeviceId device = small.builder.add_device();
      Load shared = load_of(0, 0.7);
      shared.peers = both ? 1 : 2;
      const Load own = load_of(1 + i, 0.33), full = load_of(1 + i, 1);
      ops.push_back(small.op(small.stream(device), 123'457, {.fixed = 11, .loads = {shared, own}}));
      ops.push_back(small.op(small.stream(device), 98'765, {.loads = {full}}));
      ops.push_back(small.op(small.stream(device), 55'555, {.fixed = 3, .loads = {shared}}));
    }
    const Simulated step = simulated(std::move(small), small_machine(both ? 2 : 1, 3));
    std::vector<std::int64_t> ends;
    for (std::size_t i = 0; i < 3; ++i) ends.push_back(step.end(ops[i]));
    if (both) {
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(step.end(ops[i + 3]), ends[i]);
    }
    EXPECT_GT(step.run(ops[0]).slowed.count(), 0);
    return ends;
  };
  EXPECT_EQ(copies(false), copies(true));
}

TEST(Simulate, TheFixedPartLoadsNothingAndIsNeverSlowed) {
  // a loads from 50 on; until then b (W = 80) runs alone and has 30 left; both at a half: b ends at 110, a (W = 100) has 70 left then, 180.
  Fixture f;
  const OpId a = f.small.op(f.compute, 100, {.fixed = 50, .loads = {load_of(0, 1)}}),
             b = f.small.op(f.other, 80, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(b), 110);
  EXPECT_EQ(step.end(a), 180);
  EXPECT_EQ(step.run(a).slowed.count(), 30);
}

TEST(Simulate, WhoIsGoneBeforeTheLoadsBeginSlowsNobody) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 100, {.fixed = 80, .loads = {load_of(0, 1)}}),
             b = f.small.op(f.other, 80, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_EQ(step.end(b), 80);
  EXPECT_EQ(step.end(a), 180);
}

TEST(Simulate, AnUnrelatedOpMovesNoEnd) {
  // Thirds leave remainders at every change of rate; ops on another resource and ops without loads in between change no end.
  const auto ends = [](bool strangers) {
    Fixture f;
    std::vector<OpId> ops;
    for (int i = 0; i < 3; ++i) {
      const StreamId stream = f.small.stream(f.device);
      ops.push_back(f.small.op(stream, 1001 + 77 * i, {.loads = {load_of(0, 0.9)}}));
      ops.push_back(f.small.op(stream, 503 + 13 * i, {.loads = {load_of(0, 0.37)}}));
    }
    if (strangers) {
      for (int i = 0; i < 40; ++i) {
        f.small.op(f.other, 17 + i, {.loads = {load_of(1, 0.8)}});
        f.small.op(f.compute, 31 + i, {.loads = {load_of(1, 0.7)}});
        f.small.marker({}, {});
      }
    }
    const Simulated step = simulated(std::move(f.small), small_machine(1, 2));
    std::vector<std::int64_t> found;
    for (const OpId op : ops) found.push_back(step.end(op));
    return found;
  };
  EXPECT_EQ(ends(false), ends(true));
}

// ---- Gated pools

struct GateFixture : Fixture {
  std::int32_t pool = small.builder.add_pool({.space = MemorySpace::kHost, .host = 0, .device = {}, .capacity = Bytes(100), .gated = true});
  StorageId host_storage(std::int64_t size, bool live_at_start = false) {
    return small.builder.add_storage(
        {.size = Bytes(size), .device = device, .space = MemorySpace::kHost, .pool = pool, .live_at_start = live_at_start});
  }
};

TEST(Simulate, AClaimWaitsUntilItFits) {
  // 60 of 100 are taken by a copy out that is read back until 30; the next 60 wait for that, the 40 behind them do not overtake.
  GateFixture f;
  const StorageId first = f.host_storage(60), second = f.host_storage(60), small = f.host_storage(40);
  const OpId out1 = f.small.op(f.compute, 10, {.writes = {first}});
  const OpId in1 = f.small.op(f.compute, 20, {.reads = {first}});
  f.small.op(f.other, 5);
  const OpId out2 = f.small.op(f.other, 10, {.writes = {second}});
  const StreamId third = f.small.stream(f.device);
  f.small.op(third, 6);
  const OpId out3 = f.small.op(third, 10, {.writes = {small}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(out1), 10);
  EXPECT_EQ(step.end(in1), 30);
  EXPECT_EQ(step.start(out2), 30);
  EXPECT_EQ(step.start(out3), 30);  // 60 + 40 fit
}

TEST(Simulate, ResidentsCountInAGatedPool) {
  GateFixture f;
  const StorageId resident = f.host_storage(50, true), out = f.host_storage(60);
  const OpId reader = f.small.op(f.compute, 25, {.reads = {resident}});
  const OpId writer = f.small.op(f.other, 5, {.writes = {out}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  EXPECT_EQ(step.end(reader), 25);
  EXPECT_EQ(step.start(writer), 25);  // the resident died with its last reader
}

TEST(Simulate, AClaimThatNeverFitsIsADeadlock) {
  GateFixture f;
  const StorageId held = f.host_storage(60), wanted = f.host_storage(60);
  f.small.op(f.compute, 10, {.writes = {held}});
  const OpId stuck = f.small.op(f.other, 10, {.writes = {wanted}});
  const OpId reader = f.small.op(f.compute, 5, {.after = {{stuck}}, .reads = {held}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.result.timeline.size(), 1u);
  EXPECT_EQ(step.end(), 10);
  EXPECT_EQ(step.result.deadlock->first_waiting, stuck);
  EXPECT_EQ(step.result.deadlock->holders, std::vector<OpId>{reader});
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{stuck, reader}));  // bytes one way, an edge the other
}

// ---- Ends that are no ends

TEST(Simulate, ACycleOfEdgesIsADeadlock) {
  Fixture f;
  const OpId a = f.small.op(f.compute, 10, {.after = {{OpId{1}}}}), b = f.small.op(f.other, 10, {.after = {{OpId{0}}}});
  const OpId free = f.small.op(f.small.stream(f.device), 3);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.end(free), 3);
  EXPECT_EQ(step.result.deadlock->first_waiting, a);
  EXPECT_EQ(step.result.deadlock->holders, std::vector<OpId>{b});
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{a, b}));
}

TEST(Simulate, AnEdgeAgainstTheStreamIsADeadlock) {
  Fixture f;
  const OpId first = f.small.op(f.compute, 10, {.after = {{OpId{1}}}}), second = f.small.op(f.compute, 10);
  const Simulated step = simulated(std::move(f.small), small_machine(1, 0));
  ASSERT_TRUE(step.result.deadlock);
  EXPECT_EQ(step.result.deadlock->first_waiting, first);
  EXPECT_EQ(step.result.deadlock->cycle, (std::vector<OpId>{first, second}));
}

TEST(Simulate, TimeStopsAtItsEnd) {
  // Three ops of 2^62 ps: the third would end at 3 * 2^62, above int64.
  Fixture f;
  const std::int64_t long_time = std::int64_t{1} << 62;
  f.small.op(f.compute, long_time, {.loads = {load_of(0, 1)}});
  f.small.op(f.compute, long_time, {.loads = {load_of(0, 1)}});
  const OpId last = f.small.op(f.compute, long_time, {.fixed = long_time, .loads = {load_of(0, 1)}});
  f.small.op(f.other, long_time, {.loads = {load_of(0, 1)}});
  const Simulated step = simulated(std::move(f.small), small_machine(1, 1));
  EXPECT_FALSE(step.result.deadlock);
  EXPECT_EQ(step.end(last), std::numeric_limits<std::int64_t>::max());
  for (const OpRun& run : step.result.timeline) EXPECT_GE(run.slowed.count(), 0);
}

TEST(Simulate, LoadsOnResourcesThatTheMachineLacksAreABug) {
  Fixture f;
  f.small.op(f.compute, 1, {.loads = {load_of(3, 1)}});
  EXPECT_THROW(simulated(std::move(f.small), small_machine(1, 1)), std::logic_error);
}

// ---- Memory

TEST(Simulate, StopsAtTheFirstClaimAboveCapacity) {
  // Device order, capacity 100: 60 live from 0 on, the 60 of the second op at 10 are too much. The third op starts at 20.
  Machine machine = small_machine(1, 0);
  machine.device_capacity[0] = Bytes(100);
  const auto run = [&](bool stop) {
    Fixture f;
    const StorageId a = f.small.storage(f.device, 60), b = f.small.storage(f.device, 60);
    f.small.op(f.compute, 10, {.writes = {a}});
    f.small.op(f.compute, 10, {.writes = {b}});
    f.small.op(f.compute, 10, {.reads = {a, b}});
    return simulated(std::move(f.small), machine, {.device = LedgerRule::kDeviceOrder, .stop_at_out_of_memory = stop});
  };
  const Simulated whole = run(false), stopped = run(true);
  ASSERT_TRUE(whole.result.out_of_memory);
  EXPECT_EQ(whole.result.out_of_memory->op, OpId{1});
  EXPECT_EQ(whole.end(OpId{2}), 30);
  ASSERT_TRUE(stopped.result.out_of_memory);
  ASSERT_EQ(stopped.result.timeline.size(), 2u);  // the op whose claim failed is the last
  EXPECT_EQ(stopped.end(OpId{0}), 10);
  EXPECT_EQ(stopped.end(), 20);
  for (const MemoryEvent& event : stopped.result.memory) EXPECT_LE(event.at.count(), 10);
}

TEST(Simulate, TheFingerprintSeesTimeAndOrder) {
  const auto of = [](std::int64_t duration) {
    Fixture f;
    f.small.op(f.compute, duration);
    f.small.op(f.other, 7);
    return fingerprint(simulated(std::move(f.small), small_machine(1, 0)).result);
  };
  EXPECT_EQ(of(10), of(10));
  EXPECT_NE(of(10), of(11));
  // Written down so that other machines and build types are held to it.
  EXPECT_EQ(of(10), 10346977480046451110u);
}

}  // namespace
}  // namespace stepsim
