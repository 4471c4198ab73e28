#include "tools/job_allocator.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static JobInput with(const std::string& setting) { return main_job("2", {flag("--set", setting)}); }

TEST(JobAllocator, ReadsWhatTheEnvironmentVariableSays) {
  EXPECT_EQ(resolve_job(main_job()).allocator, AllocatorSettings{});
  EXPECT_TRUE(resolve_job(with("hardware.expandable_segments=true")).allocator.expandable_segments);
  const Job job = resolve_job(with("hardware.allocator=max_split_size_mb:512,garbage_collection_threshold:0.8,expandable_segments:True"));
  EXPECT_TRUE(job.allocator.expandable_segments);
  EXPECT_EQ(job.allocator.max_split_size, Bytes(std::int64_t{512} << 20));
  EXPECT_DOUBLE_EQ(job.allocator.collection_threshold, 0.8);
  // Its launcher sets it (run_train.sh), and the job may say otherwise.
  const auto titan = [](const char* setting) { return main_job("2", {flag("--framework", "torchtitan@2024-12"), flag("--set", setting)}); };
  EXPECT_TRUE(resolve_job(titan("hardware.gpus=8")).allocator.expandable_segments);
  EXPECT_FALSE(resolve_job(titan("hardware.expandable_segments=false")).allocator.expandable_segments);
  const Job file = resolve_job({written("allocator.textproto", "hardware { expandable_segments: true }"), main_job().flags});
  EXPECT_TRUE(file.allocator.expandable_segments);
}

TEST(JobAllocator, RefusesWhatItDoesNotKnow) {
  const auto problem = [](const std::string& value) { return error_of([&] { resolve_job(with("hardware.allocator=" + value)); }); };
  EXPECT_EQ(problem("max_split_size"), "--set hardware.allocator: found \"max_split_size\", wanted OPTION:VALUE");
  EXPECT_EQ(problem("max_split_size_mb:8"), "--set hardware.allocator: found max_split_size_mb:8, wanted whole mebibytes above 20");
  EXPECT_EQ(problem("expandable_segments:true"), "--set hardware.allocator: found expandable_segments:true, wanted True or False");
  EXPECT_NE(problem("max_split_size_md:64").find("did you mean \"max_split_size_mb\"?"), std::string::npos)
      << problem("max_split_size_md:64");
}

}  // namespace stepsim
