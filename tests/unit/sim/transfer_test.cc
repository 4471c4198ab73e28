// A transfer between two devices that each have a host thread: launched by the receiver's thread only, while a marker of the sender's
// thread holds what is sent until it is over. Times in picoseconds.
#include <gtest/gtest.h>

#include "simulated.h"

namespace stepsim {
namespace {

struct Change {
  std::int64_t at, bytes;
  std::int32_t by;
  friend bool operator==(const Change&, const Change&) = default;
};

std::vector<Change> changes_on(const Simulated& step, DeviceId device) {
  std::vector<Change> all;
  for (const MemoryEvent& event : step.result.memory) {
    if (step.graph.storages()[static_cast<std::size_t>(event.storage.index)].device != device) continue;
    all.push_back({event.at.count(), event.bytes.value, event.by.index});
  }
  return all;
}

// The left device makes `sent` in 40 and then works on for 25; the right one receives it and works on it. The left thread takes 5 a launch,
// the right one `right_issue`.
struct SendAndReceive {
  SmallGraph small;
  DeviceId left = small.builder.add_device(), right = small.builder.add_device();
  StreamId left_compute = small.stream(left, true), right_compute = small.stream(right, true);
  StreamId send = small.stream(left), receive = small.stream(right);
  IssuerId left_host = small.builder.add_issuer({.device = left}), right_host = small.builder.add_issuer({.device = right});
  StorageId sent, scratch, received;
  OpId produce, transfer, more, release, consume;

  // `waits`: the left thread's own wait for the transfer to be over, as a framework does before it drops what it sent.
  explicit SendAndReceive(std::int64_t right_issue, bool waits = false, bool reads_sent = false) {
    sent = small.storage(left, 100);
    scratch = small.storage(left, 30);
    received = small.storage(right, 100);
    produce = small.op(left_compute, 40, {.writes = {sent}, .issuer = left_host, .issue = 5});
    small.rows.push_back({.fixed = Duration(0), .alone = Duration(10), .issue = Duration(right_issue), .loads = {}});
    const Given work{.index = 1, .op_class = Given::Class::kPointToPoint};
    const OpPart sender[] = {{.stream = send, .queues = {}}};
    SmallOp links{.after = {{produce}}, .writes = {received}, .issuer = right_host};
    if (reads_sent) links.reads = {sent};
    transfer = small.add(receive, work, links, sender);
    more = small.op(left_compute, 25, {.writes = {scratch}, .issuer = left_host, .issue = 5});
    SmallOp over{.after = {{transfer}}, .holds = {sent}, .issuer = left_host};
    if (waits) over.issue_after = {transfer};
    release = small.marker(StreamId{}, over);
    consume = small.op(right_compute, 20, {.after = {{transfer}}, .reads = {received}, .issuer = right_host, .issue = right_issue});
  }
  Simulated run(LedgerRule rule = LedgerRule::kIssueOrder) { return simulated(std::move(small), small_machine(2, 0), {.device = rule}); }
};

TEST(Transfer, NeedsOnlyTheReceiversLaunch) {
  // Launched at 7 on the right; the left part is in place when `produce` (launched at 5) ends at 45; 45-55; `consume` 55-75.
  SendAndReceive s(7);
  const Simulated step = s.run();
  EXPECT_FALSE(step.result.deadlock);
  EXPECT_EQ(step.issued(s.transfer), 7);
  EXPECT_EQ(step.start(s.transfer), 45);
  EXPECT_EQ(step.end(s.transfer), 55);
  EXPECT_EQ(step.start(s.release), 55);  // the edge, although the thread comes to it at 10
  EXPECT_EQ(step.issued(s.release), 10);
  EXPECT_EQ(step.start(s.consume), 55);
  EXPECT_EQ(step.start(s.more), 45);  // another stream than the transfer's
  ASSERT_EQ(step.result.parts.size(), 2u);
  EXPECT_EQ(step.result.parts[0].occupied.count(), 7);   // the receiver, from its launch
  EXPECT_EQ(step.result.parts[1].occupied.count(), 45);  // the sender
}

TEST(Transfer, WaitsForALateReceiversLaunch) {
  // Launched at 60: 60-70, and the sender's part is in place no earlier than that.
  SendAndReceive s(60);
  const Simulated step = s.run();
  EXPECT_EQ(step.start(s.transfer), 60);
  EXPECT_EQ(step.result.parts[1].occupied.count(), 60);
}

TEST(Transfer, EachDevicesMemoryFollowsItsOwnThread) {
  for (const std::int64_t right_issue : {0, 7, 60}) {
    SendAndReceive s(right_issue);
    const Simulated step = s.run();
    // Left: `produce` claims at 5, `more` claims and releases scratch at 10; the marker is launched at no cost, so at 10 too, after it.
    EXPECT_EQ(
        changes_on(step, s.left),
        (std::vector<Change>{{5, 100, s.produce.index}, {10, 30, s.more.index}, {10, -30, s.more.index}, {10, -100, s.release.index}}));
    // Right: the transfer claims at its launch, `consume`, launched one later, is the last to hold it.
    EXPECT_EQ(changes_on(step, s.right),
              (std::vector<Change>{{right_issue, 100, s.transfer.index}, {2 * right_issue, -100, s.consume.index}}));
  }
}

TEST(Transfer, AThreadThatWaitsForItReleasesWhenItIsOver) {
  // issue_after: the left thread comes past the marker when the transfer has ended, at 55.
  SendAndReceive s(7, true);
  const Simulated step = s.run();
  EXPECT_EQ(step.issued(s.release), 55);
  EXPECT_EQ(changes_on(step, s.left).back(), (Change{55, -100, s.release.index}));
}

TEST(Transfer, InDeviceOrderItIsHeldToTheEndOfTheTransfer) {
  SendAndReceive s(7);
  const Simulated step = s.run(LedgerRule::kDeviceOrder);
  EXPECT_EQ(changes_on(step, s.left),
            (std::vector<Change>{{5, 100, s.produce.index}, {45, 30, s.more.index}, {55, -100, s.release.index}, {70, -30, s.more.index}}));
  EXPECT_EQ(changes_on(step, s.right), (std::vector<Change>{{45, 100, s.transfer.index}, {75, -100, s.consume.index}}));
}

TEST(Transfer, ThatReadsWhatIsSentHoldsItToItsOwnLaunch) {
  // A read is a use at the time of the op's launch, by whichever thread: at 60 on the right, after the marker.
  SendAndReceive s(60, false, true);
  const Simulated step = s.run();
  EXPECT_EQ(changes_on(step, s.left).back(), (Change{60, -100, s.transfer.index}));
}

}  // namespace
}  // namespace stepsim
