#include "tools/memory_difference.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static Bytes gibibytes(std::int64_t count) { return Bytes(count << 30); }

// 13 GiB less saved, but at the loss 10 more are alive than were at the old peak: 3 less.
TEST(MemoryDifference, NamesWhereThePeakMovedTo) {
  const PeakAccount base{.stage = 0,
                         .stages = 4,
                         .op = "forward L9 mlp fc1 mb3",
                         .place = "forward L9 mlp fc1",
                         .peak = gibibytes(50),
                         .saved = gibibytes(20),
                         .alive = {{"fc1 output", gibibytes(20)}, {"weights", gibibytes(30)}}};
  const PeakAccount other{.stage = 3,
                          .stages = 4,
                          .op = "forward cross entropy mb0",
                          .place = "forward cross entropy",
                          .peak = gibibytes(47),
                          .saved = gibibytes(7),
                          .alive = {{"fc1 output", gibibytes(7)}, {"weights", gibibytes(30)}, {"logits", gibibytes(10)}}};
  EXPECT_EQ(
      memory_difference_text(base, other, 2),
      "2 frees 13.00 GiB of saved activations, but the peak falls by 3.00 GiB: it moved from forward L9 mlp fc1 mb3 of stage 0 to forward "
      "cross entropy mb0 of stage 3, where 10.00 GiB more are alive (logits 10.00)");
  EXPECT_EQ(memory_difference_text(base, base, 2), "");
}

TEST(MemoryDifference, ReadsAFinishedStep) {
  const StepRun run = run_step(resolve_job(main_job()));
  const PeakAccount account = peak_account(run);
  Bytes sum;
  for (const auto& [name, bytes] : account.alive) sum += bytes;
  EXPECT_EQ(sum, run.run.memory[0].peak.bytes);
  EXPECT_EQ(account.peak, sum);
  EXPECT_GE(account.reserved, account.peak);
  EXPECT_FALSE(account.op.empty());
  const StepRun again = run_step(resolve_job(main_job("2", {flag("--recompute", "full")})));
  const std::string text = memory_difference_text(account, peak_account(again), 2);
  EXPECT_EQ(text.compare(0, 8, "2 frees "), 0) << text;
}

}  // namespace stepsim
