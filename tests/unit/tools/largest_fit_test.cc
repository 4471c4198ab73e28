#include "tools/largest_fit.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static LargestFit search(std::int64_t granule, std::int64_t start, const std::function<bool(std::int64_t)>& fits) {
  return largest_fit(Growable::kSequence, granule, start, [&](std::int64_t size) {
    EXPECT_EQ(size % granule, 0);
    return SizeTrial{.size = size, .fits = fits(size)};
  });
}

TEST(LargestFit, FindsTheLastThatFitsFromAnyStart) {
  for (const std::int64_t largest : {1, 2, 3, 7, 8, 100, 4097}) {
    for (const std::int64_t start : {1, 5, 64, 10'000}) {
      const LargestFit fit = search(128, start * 128, [&](std::int64_t size) { return size <= largest * 128 + 127; });
      EXPECT_EQ(fit.size, largest * 128);
      ASSERT_NE(fit.trial(fit.size), nullptr);
      EXPECT_TRUE(fit.trial(fit.size)->fits);
      ASSERT_NE(fit.trial(fit.size + 128), nullptr);
      EXPECT_FALSE(fit.trial(fit.size + 128)->fits);
      EXPECT_FALSE(fit.gaps);
      EXPECT_LE(fit.trials.size(), 40u);
    }
  }
  EXPECT_EQ(search(128, 1000, [](std::int64_t) { return false; }).size, 0);
}

// 11 does not fit, 12 and 13 do: what is next to the result is looked at, on either side.
TEST(LargestFit, GoesOnBehindAGap) {
  const LargestFit fit = search(1, 4, [](std::int64_t size) { return size <= 13 && size != 11; });
  EXPECT_EQ(fit.size, 13);
  EXPECT_TRUE(fit.gaps);
}

TEST(LargestFit, OfAJobFitsAndTheNextDoesNot) {
  const JobInput input = main_job("2", {flag("--set", "hardware.memory=20 GiB")});
  const Job job = resolve_job(input);
  const auto fits = [&](const char* name, std::int64_t value) {
    JobInput with = input;
    with.flags.push_back(flag(name, std::to_string(value)));
    const StepRun run = run_step(resolve_job(with));
    return !run.run.result.out_of_memory && run.allocation.fit <= CardFit::kTight;
  };
  const LargestFit batch = largest_fit(Growable::kMicroBatch, input, job);
  ASSERT_GE(batch.size, 1);
  EXPECT_TRUE(fits("--micro-batch", batch.size));
  EXPECT_FALSE(fits("--micro-batch", batch.size + 1));
  const LargestFit sequence = largest_fit(Growable::kSequence, input, job);
  EXPECT_EQ(sequence.granule, 128);  // 8 ranks divide it
  EXPECT_EQ(sequence.size % 128, 0);
  EXPECT_TRUE(fits("--sequence", sequence.size));
  EXPECT_FALSE(fits("--sequence", sequence.size + 128));
  EXPECT_NE(largest_fit_text(batch).find("micro-batch " + std::to_string(batch.size) + " is the largest that fits"), std::string::npos);
  EXPECT_EQ(error_of([] { growable("layers"); }), "--max: found \"layers\", wanted micro-batch or sequence");
}

}  // namespace stepsim
