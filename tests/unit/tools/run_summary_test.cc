#include "tools/run_summary.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tests/unit/tools/test_jobs.h"
#include "tools/evidence.h"
#include "tools/step_time_band.h"
#include "tools/text_lines.h"

namespace stepsim {

static std::vector<std::string> lines_of(const JobInput& input) {
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  std::istringstream text(run_summary(job, run, placement_alternatives(job, run)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

static std::string milliseconds(double seconds_of) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", seconds_of * 1e3);
  return text;
}

TEST(RunSummary, FitsOnAScreenWithTheVerdictFirst) {
  const std::vector<JobInput> jobs = {
      main_job(),
      main_job("32", {flag("--recompute", "selective"), flag("--set", "hardware.memory=1 GB")}),
      main_job("32", {flag("--set", "hardware.memory=18.2 GB"), flag("--stop-at-out-of-memory", "true")}),
      pipeline_job({flag("--recompute", "selective"), flag("--set", "hardware.memory=1 GB")}),
      pipeline_job({flag("--virtual-stages", "2"), flag("--dp", "4"), flag("--zero", "1"), flag("--global-batch", "64")}),
      main_job("16", {flag("--pp", "16"), flag("--global-batch", "16"), flag("--set", "hardware.memory=2 GB")}),
      main_job("2", {flag("--dp", "4"), flag("--zero", "3"), flag("--set", "parallel.shard=2")}),
      main_job("2", {flag("--iteration", "first"), flag("--recompute-segments", "1,1"), flag("--global-batch", "64")})};
  for (const JobInput& input : jobs) {
    const std::vector<std::string> lines = lines_of(input);
    EXPECT_LE(lines.size(), 26u);
    EXPECT_GE(lines.size(), 12u);
    for (const std::string& line : lines) EXPECT_LE(line.size(), kColumns) << line;
    const bool verdict = lines[0].compare(0, 5, "FITS:") == 0 || lines[0].compare(0, 14, "OUT OF MEMORY:") == 0;
    EXPECT_TRUE(verdict) << lines[0];
  }
}

static std::string line_with(const std::vector<std::string>& lines, const std::string& begin) {
  for (const std::string& line : lines) {
    if (line.find(begin) != std::string::npos) return line;
  }
  return "no line with " + begin;
}

// The same with the lines that continue it.
static std::string text_from(const std::vector<std::string>& lines, const std::string& begin) {
  const auto line =
      std::find_if(lines.begin(), lines.end(), [&](const std::string& each) { return each.compare(0, begin.size(), begin) == 0; });
  std::string text = line == lines.end() ? "" : *line;
  for (auto next = line; next != lines.end() && ++next != lines.end() && next->front() == ' ';) {
    text += next->substr(next->find_first_not_of(' ') - 1);
  }
  return text;
}

TEST(RunSummary, TheFirstLineHasTheBand) {
  const JobInput input = main_job();
  const Job job = resolve_job(input);
  const StepRun run = run_step(job);
  const StepTimeBand band = step_time_band(banded_step(job, run.run, run.step.graph).value());
  const std::string wanted =
      milliseconds(seconds(run.run.result.end)) + " ms (" + milliseconds(band.lower_s) + " to " + milliseconds(band.upper_s) + ")";
  const std::string first = lines_of(input)[0];
  EXPECT_NE(first.find("step time " + wanted), std::string::npos) << first << " lacks " << wanted;
}

TEST(RunSummary, TheEvidenceIsThatOfTheStack) {
  Job job = resolve_job(main_job());
  job.stack.reset();
  job.gpu.fits.clear();
  EXPECT_THAT(evidence_text(job),
              testing::HasSubstr("; none of this software stack, hence the wide band; no measured kernels of h100-sxm-80gb"));
  const std::size_t near = evidence_rows(job).size();  // measured steps
  StackSpec stack;
  stack.name = "mine";
  stack.evidence = {
      {.source = "steps.csv", .conditions = "700 W", .rows = 12, .error_before = 0.2, .error_after = 0.03, .left_out = 0.044}};
  job.stack = stack;
  FitRecord fit;
  fit.op_class = "gemm";
  fit.data = "gemm.csv";
  fit.held_out_rows = 40;
  fit.held_out_error = 0.046;
  fit.held_out_bias = -0.01;
  job.gpu.fits = {fit};
  EXPECT_THAT(
      evidence_text(job),
      testing::HasSubstr("; stack mine: 12 measured rows, each 4.4 % off where the others fit (steps.csv); kernels held out: gemm 4.6 %"));
  const std::vector<EvidenceRow> rows = evidence_rows(job);
  ASSERT_EQ(rows.size(), near + 2);
  EXPECT_EQ(rows[near].of, "stack mine");
  EXPECT_EQ(rows[near].error, 0.044);
  EXPECT_EQ(rows[near].fitted_error, 0.03);
  EXPECT_EQ(rows[near + 1].rows, 40);
  EXPECT_EQ(rows[near + 1].bias, -0.01);
  EXPECT_EQ(rows[1].fitted_error, std::nullopt);
}

TEST(RunSummary, NamesTheLayout) {
  const std::vector<std::string> lines =
      lines_of(pipeline_job({flag("--virtual-stages", "2"), flag("--dp", "4"), flag("--zero", "1"), flag("--global-batch", "64")}));
  EXPECT_EQ(lines[1].substr(0, 38), "job: llama3-8b, 8 layers, on 128 x h10");
  const std::string layout = text_from(lines, "layout: ");
  EXPECT_NE(layout.find("tp 8 (sequence-parallel), pp 4 (interleaved, 2 virtual stages, overlapped p2p)"), std::string::npos) << layout;
  EXPECT_NE(layout.find("dp 4 with zero 1"), std::string::npos) << layout;
  EXPECT_NE(layout.find(" 16 micro-batches, "), std::string::npos) << layout;  // 64 / 4
  EXPECT_NE(line_with(lines, "bubble over").find("ideal (p-1)/(v m) = 3/(2 x 16) = 9.38 %"), std::string::npos);
  const std::string peaks = line_with(lines, "peaks by stage: ");
  EXPECT_EQ(std::count(peaks.begin(), peaks.end(), ','), 3) << peaks;
  EXPECT_EQ(line_with(lines_of(main_job()), "layout: "), "no line with layout: ");
}

TEST(RunSummary, ManyStagesAreSummedUp) {
  const std::vector<std::string> lines = lines_of(main_job("16", {flag("--pp", "16"), flag("--global-batch", "16")}));
  const std::string peaks = line_with(lines, "peaks by stage: ");
  EXPECT_NE(peaks.find("stage 0 "), std::string::npos) << peaks;
  EXPECT_NE(peaks.find("smallest "), std::string::npos) << peaks;
  EXPECT_NE(line_with(lines, " of stage ").find("which ends last"), std::string::npos);
}

TEST(RunSummary, TellsTheStageThatWasAskedFor) {
  const std::vector<std::string> lines = lines_of(pipeline_job({flag("--rank", "2")}));
  // Whether it fits is decided by the stage that reserves most: the first, or the last with the logits, but none between.
  EXPECT_TRUE(lines[0].find("free on gpu0 (stage 0)") != std::string::npos || lines[0].find("free on gpu3 (stage 3)") != std::string::npos)
      << lines[0];
  EXPECT_NE(line_with(lines, "memory: ").find("peak of stage 2: "), std::string::npos);
}

TEST(RunSummary, TellsWhatDoesNotFit) {
  const std::vector<std::string> lines = lines_of(main_job("32", {flag("--set", "hardware.memory=10 GB")}));
  EXPECT_EQ(lines[0].substr(0, 40), "OUT OF MEMORY: what lives all step wants");
  EXPECT_NE(lines[1].find("optimizer_state"), std::string::npos);
}

}  // namespace stepsim
