#include "tools/profile_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/input_error.h"
#include "tests/unit/tools/test_jobs.h"
#include "tools/explain_report.h"
#include "tools/profile_use.h"
#include "tools/report_json.h"

namespace stepsim {

class ProfileFile : public testing::Test {
 protected:
  ProfileFile() {
    folder_ = std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  ~ProfileFile() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  std::string error_of(const std::string& file) const {
    try {
      load_kernel_profile(file, load_gpu("h100"));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(ProfileFile, TablesOfCalibrate) {
  const GpuSpec gpu = load_gpu("h100");
  const KernelProfile gemms = load_kernel_profile(
      write("gemm.csv", "op,dtype,m,n,k,gpu,latency_us,source\ngemm,bf16,64,128,256,H100-SXM,12.5,me\ngemm,bf16,65,128,256,A100,13,me\n"),
      gpu);
  ASSERT_EQ(gemms.kernels.size(), 1u);  // rows of the A100 are none of ours
  EXPECT_EQ(gemms.kernels[0].work, OpWork(Gemm{.m = 64, .n = 128, .k = 256, .transpose_a = true}));
  EXPECT_EQ(gemms.kernels[0].time, std::chrono::nanoseconds(12500));

  // A collective that was measured three times takes the median.
  const KernelProfile collectives =
      load_kernel_profile(write("nccl.csv",
                                "op,dtype,num_gpus,message_bytes,gpu,latency_us\n"
                                "all_gather,half,8,1048576,h100_sxm,30\nall_gather,half,8,1048576,h100_sxm,20\n"
                                "all_gather,half,8,1048576,h100_sxm,90\n"),
                          gpu);
  ASSERT_EQ(collectives.kernels.size(), 1u);
  EXPECT_EQ(collectives.kernels[0].time, std::chrono::microseconds(30));

  const KernelProfile attention = load_kernel_profile(
      write("attention.csv",
            "op,dtype,causal,batch,seq,heads,kv_heads,head_dim,impl,latency_us\nattn_bwd,bf16,1,2,4096,32,8,128,FA3,900\n"
            "attn_fwd_bwd,bf16,1,2,4096,32,8,128,FA3,1200\n"),
      gpu);
  ASSERT_EQ(attention.kernels.size(), 1u);  // both passes in one time say neither's
  const auto& backward = std::get<Attention>(attention.kernels[0].work);
  EXPECT_TRUE(backward.backward);
  EXPECT_EQ(backward.kernel, 1);
}

// As people name what all_reduce_perf prints.
TEST_F(ProfileFile, OutputOfNcclTestsByItsContent) {
  const std::string text =
      "#  Rank  0 Group  0 Pid  1 on  node device  0 [0x07] NVIDIA H100 80GB HBM3\n"
      "#  Rank  1 Group  0 Pid  1 on  node device  1 [0x0a] NVIDIA H100 80GB HBM3\n"
      "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
      "1048576  262144  float  sum  -1  30.00  34.95  34.95  0\n";
  const KernelProfile profile = load_kernel_profile(write("all_reduce_perf.txt", text), load_gpu("h100"));
  ASSERT_EQ(profile.kernels.size(), 1u);
  EXPECT_EQ(profile.kernels[0].time, std::chrono::microseconds(30));
}

TEST_F(ProfileFile, ErrorsHaveTheirPlace) {
  const std::string head = "op,dtype,m,n,k,latency_us\n", row = "gemm,bf16,64,64,64,5\n";
  const std::string negative = write("negative.csv", head + row + "gemm,bf16,65,64,64,-5\n");
  EXPECT_THAT(error_of(negative), testing::StartsWith(negative + ":3:20: found latency_us \"-5\""));
  const std::string twice = write("twice.csv", head + row + "gemm,bf16,64,64,64,6\n");
  EXPECT_THAT(error_of(twice), testing::AllOf(testing::StartsWith(twice + ":3:1: "), testing::EndsWith("wanted each shape once")));
  const std::string unknown = write("unknown.csv", head + "convolution,bf16,64,64,64,5\n");
  EXPECT_THAT(error_of(unknown), testing::StartsWith(unknown + ":2:1: found op \"convolution\""));
  const std::string other = write("other.csv", "op,dtype,m,n,k,gpu,latency_us\ngemm,bf16,64,64,64,A100-SXM4-80GB,5\n");
  EXPECT_EQ(error_of(other), "--profile: found \"h100-sxm-80gb\", wanted one of A100-SXM4-80GB, which " + other + " has");
  const std::string eight = write("eight.csv", head + "gemm,fp8,64,64,64,5\n");
  EXPECT_THAT(error_of(eight), testing::StartsWith("--profile: found no row of a kernel that is costed"));
  const std::string text = write("text.textproto", "gemm { m: 1 }");
  EXPECT_THAT(error_of(text), testing::StartsWith(text + ":1:1: found no gemm[0].n"));
}

// The norms of the job measured to take a millisecond each; the profile lies beside the job file.
TEST_F(ProfileFile, JobsTakeMeasuredTimes) {
  const std::vector<FlagValue> flags = {flag("--model", "llama3-8b"), flag("--hardware", "h100-sxm-80gb"), flag("--sequence", "2048"),
                                        flag("--layers", "2")};
  const Job modelled = resolve_job({"", flags});
  const StepRun before = run_step(modelled);
  EXPECT_FALSE(profile_use(modelled, before));
  // 2048 tokens of 4096 bf16: read and written, and the statistics and weights beside them as the model counts them.
  MemoryBound norm;
  for (const OpWork& work : before.step.graph.works()) {
    const auto* kernel = std::get_if<MemoryBound>(&work);
    if (kernel != nullptr && kernel->kernel == MemoryKernel::kNorm && kernel->written.value == 2048 * 4096 * 2 + 2048 * 4) norm = *kernel;
  }
  ASSERT_GT(norm.read.value, 2048 * 4096 * 2);
  write("mine.textproto", "memory { read: \"" + std::to_string(norm.read.value) + " B\" written: \"" + std::to_string(norm.written.value) +
                              " B\" kernel: norm latency: \"1 ms\" }");
  const std::string job_file = write("job.textproto", "hardware { profile: \"mine.textproto\" }");
  const Job job = resolve_job({job_file, flags});
  ASSERT_NE(job.profile, nullptr);
  EXPECT_NE(std::find(job.files.begin(), job.files.end(), job.profile->file), job.files.end());
  const StepRun run = run_step(job);
  const std::optional<ProfileUse> use = profile_use(job, run);
  ASSERT_TRUE(use);
  const OriginUse& measured = use->origins[static_cast<std::size_t>(CostOrigin::kMeasured)];
  EXPECT_EQ(measured.works, 1u);
  EXPECT_GE(measured.ops, 4u);  // two norms of each layer
  EXPECT_GE(measured.time, std::chrono::milliseconds(measured.ops));
  EXPECT_GT(run.run.result.end - before.run.result.end, std::chrono::microseconds(900 * measured.ops));
  EXPECT_THAT(all_assumed(job, run).front(),
              testing::AllOf(testing::HasSubstr("mine.textproto: of the ops' time "), testing::HasSubstr(" % measured")));
  const nlohmann::json json = nlohmann::json::parse(run_json(job, run, {}));
  EXPECT_EQ(json["profile"]["measured"]["ops"], measured.ops);
  EXPECT_EQ(json["job"]["hardware"]["profile"]["value"], job.profile->file);
  bool found = false;
  for (const OpAccount& op : explanation(job, run).ops) {
    if (op.kernel.detail != "measured, norm") continue;
    found = true;
    EXPECT_NEAR(op.kernel.efficiency, static_cast<double>(op.memory.value) / (1e-3 * 3.35e12), 1e-6);
  }
  EXPECT_TRUE(found);
}

}  // namespace stepsim
