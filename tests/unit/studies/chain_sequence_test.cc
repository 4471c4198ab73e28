// The rules of a replay, each by a chain that a person can follow.
#include "tools/studies/chain_sequence.h"

#include <stdexcept>

#include "tests/unit/studies/chain_checks.h"
#include "tools/studies/chain_writer.h"

namespace stepsim {
namespace {

// Two layers: f 2 3, b 4 5, x 1 1 1, abar 6 6, g 0 1 1, copies of an output take 1, of a saved set 3.
Chain two_layers() {
  return {.forward_time = {2, 3},
          .backward_time = {4, 5},
          .output = {1, 1, 1},
          .saved = {6, 6},
          .gradient = {0, 1, 1},
          .forward_transient = {0, 0},
          .backward_transient = {0, 0},
          .loss_time = 0,
          .output_copy = {{1, 1}, {1, 1}},
          .saved_copy = {{3, 3}, {3, 3}}};
}

ChainSchedule schedule_of(std::initializer_list<const char*> actions) {
  ChainSchedule schedule;
  for (const char* action : actions) EXPECT_TRUE(append_actions(action, 0, schedule)) << action;
  return schedule;
}

std::vector<std::string> text_of(const ChainSchedule& schedule) {
  std::vector<std::string> text;
  for (const ChainAction& action : schedule) text.push_back(print_action(action));
  return text;
}

using Text = std::vector<std::string>;

std::string violation(const Chain& chain, const ChainBudget& budget, std::initializer_list<const char*> actions) {
  return replay(chain, budget, schedule_of(actions)).violation.value_or("none");
}

TEST(ChainReplay, KeepsAll) {
  const Chain chain = two_layers();
  const ChainSchedule schedule = schedule_of({"FALL 1", "FALL 2", "LOSS", "B 2", "B 1"});
  const ChainReplay replayed = replay(chain, {.device = 15}, schedule);
  EXPECT_FALSE(replayed.violation);
  EXPECT_EQ(replayed.time, 2 + 3 + 0 + 5 + 4);
  EXPECT_EQ(replayed.peak, 1 + 6 + 6 + 1 + 1);  // network input, both saved sets, both gradients, during B 2
  EXPECT_EQ(replayed.host_peak, 0);
  expect_runs(chain, {.device = 15}, schedule, 14);
}

TEST(ChainReplay, RunsALayerAgain) {
  const Chain chain = two_layers();
  const ChainSchedule schedule = schedule_of({"F 1", "FALL 2", "LOSS", "B 2", "DEL a1", "FALL 1", "B 1"});
  const ChainReplay replayed = replay(chain, {.device = 10}, schedule);
  EXPECT_FALSE(replayed.violation);
  EXPECT_EQ(replayed.time, 14 + 2);
  EXPECT_EQ(replayed.peak, 1 + 1 + 6 + 1 + 1);  // during B 2
  EXPECT_EQ(replay(chain, {.device = 9}, schedule).violation, "action 3 (B 2) at 5: it does not fit in device memory");
}

// abar^1 goes while layer 2 runs and comes back when B 2 has ended: 3 units later than needed.
TEST(ChainReplay, CopiesRunBesideComputeAndAreWaitedFor) {
  const Chain chain = two_layers();
  const ChainSchedule schedule =
      schedule_of({"FALL 1", "D2H abar1", "F 2", "DEL abar1", "LOSS", "DEL a2", "F 1", "FALL 2", "B 2", "DEL a1", "H2D abar1", "B 1"});
  const ChainBudget budget{.device = 10};
  const ChainReplay replayed = replay(chain, budget, schedule);
  ASSERT_FALSE(replayed.violation) << *replayed.violation;
  EXPECT_EQ(replayed.runs[1].start, 2);
  EXPECT_EQ(replayed.runs[1].end, 5);
  EXPECT_EQ(replayed.runs[3].start, 5);
  EXPECT_EQ(replayed.runs[8].end, 5 + 2 + 3 + 5);
  EXPECT_EQ(replayed.time, 15 + 3 + 4);
  EXPECT_EQ(replayed.host_peak, 6);
  expect_runs(chain, budget, schedule, 22);
  EXPECT_EQ(replay(chain, {.device = 10, .host = 5}, schedule).violation, "action 1 (D2H abar1) at 2: the host copy does not fit");
}

TEST(ChainReplay, OneEngineTakesOneCopyAtATime) {
  Chain chain = two_layers();
  const ChainSchedule schedule = schedule_of({"F 1", "D2H a1", "FALL 1", "DEL a1", "D2H abar1", "H2D a1"});
  const ChainReplay both = replay(chain, {.device = 20}, schedule);
  EXPECT_EQ(both.runs[4].start, 4);  // when FALL 1 has ended
  EXPECT_EQ(both.runs[5].start, 4);
  chain.one_engine = true;
  EXPECT_EQ(replay(chain, {.device = 20}, schedule).runs[5].start, 7);
}

TEST(ChainReplay, NamesTheRuleThatIsBroken) {
  const Chain chain = two_layers();
  const ChainBudget budget{.device = 20};
  EXPECT_EQ(violation(chain, budget, {"F 2"}), "action 0 (F 2) at 0: its input is not in device memory");
  EXPECT_EQ(violation(chain, budget, {"F 1", "LOSS"}), "action 1 (LOSS) at 2: its input is not in device memory");
  EXPECT_EQ(violation(chain, budget, {"F 1", "F 1"}), "action 1 (F 1) at 2: what it makes is in device memory");
  EXPECT_EQ(violation(chain, budget, {"F 1", "F 2", "LOSS", "LOSS"}), "action 3 (LOSS) at 5: the loss has run before");
  EXPECT_EQ(violation(chain, budget, {"FALL 1", "FALL 2", "B 2"}), "action 2 (B 2) at 5: the gradient of its output is not there");
  EXPECT_EQ(violation(chain, budget, {"F 1", "F 2", "LOSS", "B 2"}), "action 3 (B 2) at 5: the saved set is not in device memory");
  EXPECT_EQ(violation(chain, budget, {"F 3"}), "action 0 (F 3) at 0: there is no such layer");
  EXPECT_EQ(violation(chain, budget, {"DEL a1"}), "action 0 (DEL a1) at 0: it is not in device memory");
  EXPECT_EQ(violation(chain, budget, {"D2H a1"}), "action 0 (D2H a1) at 0: it is not in device memory");
  EXPECT_EQ(violation(chain, budget, {"H2D a1"}), "action 0 (H2D a1) at 0: it is not in host memory");
  EXPECT_EQ(violation(chain, budget, {"F 1", "D2H a1", "D2H a1"}), "action 2 (D2H a1) at 3: it is in host memory already");
  EXPECT_EQ(violation(chain, budget, {"F 1", "D2H a1", "H2D a1"}), "action 2 (H2D a1) at 3: it is in device memory");
  EXPECT_EQ(violation(chain, budget, {"F 1"}), "the backward op of layer 1 has not run");
  EXPECT_EQ(violation(chain, {.device = 1}, {"F 1"}), "action 0 (F 1) at 0: it does not fit in device memory");
}

// Of two inputs to read one may go while the op runs, not both.
TEST(ChainReplay, OneInputOfTwoMayGo) {
  const Chain chain = two_layers();
  const ChainReplay replayed = replay(chain, {.device = 20}, schedule_of({"F 1", "FALL 1", "FALL 2", "DEL a1", "DEL abar1"}));
  EXPECT_EQ(replayed.runs[3].start, 4);  // as soon as FALL 2 has started
  EXPECT_EQ(replayed.runs[4].start, 7);  // when it has ended
  EXPECT_TRUE(replayed.runs[2].reads_saved);
}

TEST(ChainReplay, NotBefore) {
  const Chain chain = two_layers();
  ChainSchedule schedule = schedule_of({"FALL 1", "FALL 2", "LOSS", "B 2", "B 1"});
  schedule[1].not_before = 10;
  const ChainReplay replayed = replay(chain, {.device = 15}, schedule);
  EXPECT_EQ(replayed.runs[1].start, 10);
  EXPECT_EQ(replayed.time, 10 + 3 + 5 + 4);
  expect_runs(chain, {.device = 15}, schedule, 22);  // the graph waits too
}

TEST(ChainActions, ReadAndPrinted) {
  for (const char* text : {"F 2", "FALL 12", "LOSS", "B 1", "DEL a3", "DEL abar3", "D2H a1", "H2D abar10"}) {
    ChainSchedule schedule;
    ASSERT_TRUE(append_actions(text, 7, schedule)) << text;
    ASSERT_EQ(schedule.size(), 1u);
    EXPECT_EQ(print_action(schedule[0]), text);
    EXPECT_EQ(schedule[0].not_before, 7);
  }
  ChainSchedule schedule;
  EXPECT_TRUE(append_actions("F0 3", 0, schedule));
  EXPECT_TRUE(append_actions("FCK 1", 0, schedule));
  EXPECT_TRUE(append_actions("F0 1", 0, schedule));
  EXPECT_EQ(text_of(schedule), (Text{"F 3", "DEL a2", "F 1", "F 1"}));
  for (const char* text : {"", "F", "F x", "F 1x", "G 1", "LOSS 1", "DEL 1", "DEL b1", "D2H a"}) {
    EXPECT_FALSE(append_actions(text, 0, schedule)) << text;
  }
}

TEST(ChainSchedules, AreSettledWithDropsFirst) {
  const Chain chain = two_layers();
  const ChainBudget budget{.device = 20};
  const ChainSchedule listed = schedule_of({"F 1", "FALL 2", "LOSS", "B 2", "FALL 1", "DEL a1", "B 1"});
  EXPECT_EQ(text_of(settled(chain, budget, listed)), (Text{"F 1", "FALL 2", "LOSS", "B 2", "DEL a1", "FALL 1", "B 1"}));
}

TEST(ChainSchedules, SegmentsRunAgainAndDropWhatIsRead) {
  const Chain chain = two_layers();
  EXPECT_EQ(text_of(with_drops(chain, segment_ops({{1, 2, false}}))),
            (Text{"F 1", "F 2", "DEL a1", "LOSS", "DEL a2", "FALL 1", "FALL 2", "B 2", "B 1"}));
  EXPECT_EQ(text_of(with_drops(chain, segment_ops({{1, 1, false}, {2, 2, true}}))),
            (Text{"F 1", "FALL 2", "LOSS", "B 2", "DEL a1", "FALL 1", "B 1"}));
}

TEST(Chain, IsChecked) {
  Chain chain = two_layers();
  chain.backward_time.pop_back();
  EXPECT_THROW(check_chain(chain), std::logic_error);
  chain = two_layers();
  chain.saved[0] = -1;
  EXPECT_THROW(check_chain(chain), std::logic_error);
  chain = two_layers();
  chain.saved_copy.clear();
  EXPECT_THROW(check_chain(chain), std::logic_error);
}

}  // namespace
}  // namespace stepsim
