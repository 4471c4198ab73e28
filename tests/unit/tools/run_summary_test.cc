#include "tools/run_summary.h"

#include <sstream>

#include "tests/unit/tools/test_jobs.h"
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

TEST(RunSummary, FitsOnAScreenWithTheVerdictFirst) {
  const std::vector<JobInput> jobs = {
      main_job(), main_job("32", {flag("--recompute", "selective"), flag("--set", "hardware.memory=1 GB")}),
      main_job("32", {flag("--set", "hardware.memory=18.2 GB"), flag("--stop-at-out-of-memory", "true")}),
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

TEST(RunSummary, TellsWhatDoesNotFit) {
  const std::vector<std::string> lines = lines_of(main_job("32", {flag("--set", "hardware.memory=10 GB")}));
  EXPECT_EQ(lines[0].substr(0, 40), "OUT OF MEMORY: what lives all step wants");
  EXPECT_NE(lines[1].find("optimizer_state"), std::string::npos);
}

}  // namespace stepsim
