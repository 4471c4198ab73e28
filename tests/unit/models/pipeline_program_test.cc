#include "models/pipeline_program.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <tuple>

namespace stepsim {
namespace {

constexpr PointToPoint kModes[] = {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped};

PipelineItem pass(std::int32_t stage, std::int32_t index) { return {.stage = stage, .pass = index}; }

std::vector<PipelineItem> program(PipelineKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                                  PointToPoint mode) {
  return pipeline_program(pipeline_passes(kind, stages, chunks, micro_batches), chunks, mode);
}

// Stage 0 runs F0 F1 B0 B1, stage 1 F0 B0 F1 B1; a line of the list is a sweep.
TEST(PipelineProgram, OverlappedReceivesArePostedAfterThePreviousPassOfTheirKind) {
  const std::vector<PipelineItem> expected = {
      pass(0, 0),
      {.is_transfer = true, .stage = 1, .pass = 0, .from_stage = 0, .from_pass = 0},
      pass(0, 1),
      pass(1, 0),
      {.is_transfer = true, .stage = 1, .pass = 2, .from_stage = 0, .from_pass = 1, .posted_after = 0},
      pass(1, 1),
      {.is_transfer = true, .stage = 0, .pass = 2, .from_stage = 1, .from_pass = 1},
      pass(0, 2),
      pass(1, 2),
      pass(1, 3),
      {.is_transfer = true, .stage = 0, .pass = 3, .from_stage = 1, .from_pass = 3, .posted_after = 2},
      pass(0, 3)};
  EXPECT_EQ(program(PipelineKind::k1F1B, 2, 1, 2, PointToPoint::kOverlapped), expected);
}

TEST(PipelineProgram, AnExchangeIsLeftWhenAllItsTransfersAreOver) {
  // The exchange behind F1 of stage 0 (pass 1) sends F1 and receives what B0 needs: it is that behind B0 of stage 1 (pass 1).
  const std::vector<PipelineItem> expected = {
      pass(0, 0),
      {.is_transfer = true, .stage = 1, .pass = 0, .from_stage = 0, .from_pass = 0, .sender_waits = 1, .receiver_waits = 0},
      pass(0, 1),
      pass(1, 0),
      pass(1, 1),
      {.is_transfer = true,
       .stage = 0,
       .pass = 2,
       .from_stage = 1,
       .from_pass = 1,
       .posted_after = 1,
       .sender_waits = 2,
       .receiver_waits = 2},
      {.is_transfer = true,
       .stage = 1,
       .pass = 2,
       .from_stage = 0,
       .from_pass = 1,
       .posted_after = 1,
       .sender_waits = 2,
       .receiver_waits = 2},
      pass(0, 2),
      pass(1, 2),
      pass(1, 3),
      {.is_transfer = true, .stage = 0, .pass = 3, .from_stage = 1, .from_pass = 3, .posted_after = 2, .receiver_waits = 3},
      pass(0, 3)};
  EXPECT_EQ(program(PipelineKind::k1F1B, 2, 1, 2, PointToPoint::kBatched), expected);
  EXPECT_EQ(program(PipelineKind::k1F1B, 2, 1, 2, PointToPoint::kBlocking), expected);
}

TEST(PipelineProgram, APairIsFedByTheExchangeBeforeIt) {
  // Interleaved, p 2, v 2, m 2. Stage 1: F0.0| F0.1| F1.0 B1.0| F1.1 B1.1| B0.0| B0.1|. The gradient of B1.1 needs none (last part); that
  // of B0.0 (pass 6), made by B1.0 of stage 0 (pass 4), is received in the exchange behind pass 5; what F1.1 (pass 4) needs in that behind
  // pass 3, and the pass behind it waits.
  std::vector<std::int32_t> fed;
  for (const PipelineItem& item : program(PipelineKind::kInterleaved, 2, 2, 2, PointToPoint::kBatched)) {
    if (!item.is_transfer || item.stage != 1) continue;
    fed.push_back(item.pass);
    const std::tuple waits(item.from_pass, item.posted_after, item.receiver_waits, item.sender_waits);
    if (item.pass == 4) {
      EXPECT_EQ(waits, std::tuple(3, 3, 4, 4));
    }
    if (item.pass == 6) {
      EXPECT_EQ(waits, std::tuple(4, 5, 6, 5));
    }
  }
  EXPECT_EQ(fed, (std::vector<std::int32_t>{0, 1, 2, 4, 6, 7}));
}

// What pipeline_program.h promises, of every item.
class ListedProgram {
 public:
  explicit ListedProgram(const std::vector<StagePasses>& passes) : passes_(passes) {}
  void list(const PipelineItem& item) {
    if (item.is_transfer) {
      list_transfer(item);
    } else {
      list_pass(item);
    }
  }
  void expect_complete(std::int64_t transfers) const {
    for (std::size_t stage = 0; stage < passes_.size(); ++stage) {
      const auto next = next_.find(static_cast<std::int32_t>(stage));
      ASSERT_NE(next, next_.end());
      EXPECT_EQ(static_cast<std::size_t>(next->second), passes_[stage].passes.size());
    }
    EXPECT_EQ(static_cast<std::int64_t>(fed_.size()), transfers);
  }

 private:
  bool ran(std::int32_t stage, std::int32_t pass) const {
    const auto next = next_.find(stage);
    return pass < (next == next_.end() ? 0 : next->second);
  }
  void list_pass(const PipelineItem& item) {
    std::int32_t& next = next_[item.stage];
    ASSERT_EQ(item.pass, next);
    ++next;
  }
  void list_transfer(const PipelineItem& item) {
    EXPECT_TRUE(ran(item.from_stage, item.from_pass));
    EXPECT_TRUE(item.posted_after < 0 || ran(item.stage, item.posted_after));
    EXPECT_FALSE(ran(item.stage, item.pass));
    EXPECT_FALSE(item.sender_waits >= 0 && ran(item.from_stage, item.sender_waits));
    EXPECT_FALSE(item.receiver_waits >= 0 && ran(item.stage, item.receiver_waits));
    EXPECT_LT(item.posted_after, item.pass);
    EXPECT_TRUE((fed_.insert({{item.stage, item.pass}, true}).second));
    const Pass& to = passes_[static_cast<std::size_t>(item.stage)].passes[static_cast<std::size_t>(item.pass)];
    const Pass& from = passes_[static_cast<std::size_t>(item.from_stage)].passes[static_cast<std::size_t>(item.from_pass)];
    EXPECT_EQ(to.kind, from.kind);
    EXPECT_EQ(to.micro_batch, from.micro_batch);
    const std::int32_t stages = static_cast<std::int32_t>(passes_.size());
    const std::int32_t step = to.chunk * stages + item.stage - from.chunk * stages - item.from_stage;
    EXPECT_EQ(step, to.kind == PassKind::kForward ? 1 : -1);
    // In the order of sending and of receiving at once: streams of transfers are first in, first out.
    const auto [last, first_time] = last_.insert({{item.from_stage, item.stage, to.kind}, {item.from_pass, item.pass}});
    if (!first_time) {
      EXPECT_LT(last->second.first, item.from_pass);
      EXPECT_LT(last->second.second, item.pass);
      last->second = {item.from_pass, item.pass};
    }
  }
  const std::vector<StagePasses>& passes_;
  std::map<std::int32_t, std::int32_t> next_;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> fed_;
  std::map<std::tuple<std::int32_t, std::int32_t, PassKind>, std::pair<std::int32_t, std::int32_t>> last_;
};

TEST(PipelineProgram, EveryKindUnderEveryModeIsOneOrder) {
  for (const PipelineKind kind : {PipelineKind::kGPipe, PipelineKind::k1F1B, PipelineKind::kInterleaved, PipelineKind::kZbH1}) {
    for (std::int32_t stages = 1; stages <= 9; ++stages) {
      for (std::int32_t turn = 1; turn <= 6; ++turn) {
        const bool interleaved = kind == PipelineKind::kInterleaved;
        const std::int32_t chunks = interleaved ? 1 + turn % 4 : 1, micro_batches = interleaved ? stages * (1 + turn / 3) : 3 * turn - 2;
        const std::vector<StagePasses> passes = pipeline_passes(kind, stages, chunks, micro_batches);
        for (const PointToPoint mode : kModes) {
          SCOPED_TRACE(std::string(pipeline_name(kind)) + " " + std::string(point_to_point_name(mode)) + " p " + std::to_string(stages) +
                       " v " + std::to_string(chunks) + " m " + std::to_string(micro_batches));
          ListedProgram listed(passes);
          for (const PipelineItem& item : pipeline_program(passes, chunks, mode)) listed.list(item);
          // Between neighbouring parts, forward and backward; parts of a single stage pass nothing on.
          listed.expect_complete(stages == 1 ? 0 : std::int64_t{2} * micro_batches * (chunks * stages - 1));
        }
      }
    }
  }
}

// Overlapped receives alone: an exchange that both sides leave together blocks where a chunk runs ahead of the next stage.
TEST(PipelineProgram, GroupsOfMoreMicroBatchesThanStagesAreOneOrderWithOverlap) {
  for (std::int32_t stages = 2; stages <= 5; ++stages) {
    for (std::int32_t group = stages; group <= stages + 3; ++group) {
      SCOPED_TRACE("p " + std::to_string(stages) + " group " + std::to_string(group));
      const std::vector<StagePasses> passes = pipeline_passes(PipelineKind::kInterleaved, stages, 3, 2 * group, group);
      ListedProgram listed(passes);
      for (const PipelineItem& item : pipeline_program(passes, 3, PointToPoint::kOverlapped)) listed.list(item);
      listed.expect_complete(std::int64_t{2} * 2 * group * (3 * stages - 1));
    }
  }
}

TEST(PipelineProgram, StagesThatWaitForOneAnotherAreABug) {
  // Stage 0 wants the gradient of micro-batch 0 before it sends it.
  const StagePasses first{{{PassKind::kBackward, 0, 0}, {PassKind::kForward, 0, 0}}, {true, true}};
  const StagePasses last{{{PassKind::kForward, 0, 0}, {PassKind::kBackward, 0, 0}}, {true, true}};
  for (const PointToPoint mode : kModes) EXPECT_THROW(pipeline_program({first, last}, 1, mode), std::logic_error);
  const StagePasses twice{{{PassKind::kForward, 0, 0}, {PassKind::kForward, 0, 0}}, {true, true}};
  EXPECT_THROW(pipeline_program({twice}, 1, PointToPoint::kOverlapped), std::logic_error);
  const StagePasses nothing{{}, {}};
  EXPECT_THROW(pipeline_program({nothing, last}, 1, PointToPoint::kOverlapped), std::logic_error);
}

}  // namespace
}  // namespace stepsim
