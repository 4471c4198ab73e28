#include "hardware/kernel_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/input_error.h"

namespace stepsim {
namespace {

using std::chrono::microseconds;

std::string error_of(const std::string& text) {
  try {
    parse_kernel_profile(text, "p.textproto", load_gpu("h100"));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(KernelProfile, ReadsEveryKind) {
  const KernelProfile profile = parse_kernel_profile(R"(
machine: "H100 SXM"  # an alias
source: "my own run"
gemm { m: 4096 n: 1024 k: 512 layout: NT accumulation: fp32_buffer latency: "12.5 us" }
gemm { m: 4096 n: 1024 k: 512 batch: 8 dtype: fp8 latency: "1 ms" }
attention { batch: 2 heads: 32 kv_heads: 8 queries: 4096 head_dim: 128 causal: false backward: true kernel: flash3 latency: "900 us" }
memory { read: "96 MiB" written: "32 MiB" kernel: softmax latency: "70 us" }
collective { kind: all_gather message: "64 MiB" ranks: 8 latency: "300 us" }
)",
                                                     "p.textproto", load_gpu("h100"));
  ASSERT_EQ(profile.kernels.size(), 5u);
  EXPECT_EQ(profile.kernels[0].work, OpWork(Gemm{.m = 4096, .n = 1024, .k = 512, .transpose_b = true, .accumulate_fp32 = true}));
  EXPECT_EQ(profile.kernels[0].time, std::chrono::nanoseconds(12500));
  EXPECT_EQ(profile.kernels[1].work, OpWork(Gemm{.m = 4096, .n = 1024, .k = 512, .batch = 8, .dtype = DType::kFp8, .transpose_a = true}));
  EXPECT_EQ(profile.kernels[2].work, OpWork(Attention{.batch = 2,
                                                      .heads = 32,
                                                      .kv_heads = 8,
                                                      .queries = 4096,
                                                      .keys = 4096,
                                                      .head_dim = 128,
                                                      .causal = false,
                                                      .backward = true,
                                                      .kernel = 1}));
  EXPECT_EQ(profile.kernels[3].work,
            OpWork(MemoryBound{.read = Bytes(96 << 20), .written = Bytes(32 << 20), .kernel = MemoryKernel::kSoftmax}));
  EXPECT_EQ(profile.kernels[4].work, OpWork(Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(64 << 20), .ranks = 8}));
}

TEST(KernelProfile, ErrorsHaveTheirPlace) {
  const std::string good = "gemm { m: 64 n: 64 k: 64 latency: \"5 us\" }\n";
  EXPECT_EQ(error_of(good), "");
  EXPECT_THAT(error_of("gemm {\n  m: 64 n: 64 k: 64\n  latency: \"-5 us\" }\n"),
              testing::StartsWith("p.textproto:3:3: found gemm[0].latency"));
  EXPECT_THAT(error_of(good + "gemm { m: 65 n: 64 k: 64 latency: \"0 us\" }\n"),
              testing::StartsWith("p.textproto:2:26: found gemm[1].latency \"0 us\", wanted more than zero"));
  EXPECT_THAT(error_of("gemm { m: 64 n: 64 k: 64 latency: \"5\" }"),
              testing::HasSubstr("wanted a time (a number and one of ps, ns, us, ms, s)"));
  EXPECT_THAT(error_of("gemm { m: 64 n: 64 latency: \"5 us\" }"), testing::HasSubstr("found no gemm[0].k, wanted"));
  EXPECT_THAT(error_of("gemm { m: 64 n: 0 k: 64 latency: \"5 us\" }"),
              testing::StartsWith("p.textproto:1:14: found gemm[0].n 0, wanted 1 to 2^24"));
  EXPECT_THAT(error_of("gemm { m: 64 n: 64 k: 64 dtype: bf17 latency: \"5 us\" }"), testing::HasSubstr("did you mean \"bf16\"?"));
  EXPECT_THAT(error_of(good + "\n" + good),
              testing::AllOf(testing::StartsWith("p.textproto:3:1: "), testing::HasSubstr("kernel of line 1 again")));
  EXPECT_THAT(error_of("convolution { m: 64 }"), testing::HasSubstr("unknown field \"convolution\""));
  EXPECT_THAT(error_of(good + "machine: \"a100\"\n"),
              testing::StartsWith("p.textproto:2:1: found kernels of a100-sxm-80gb, wanted those of h100-sxm-80gb"));
  EXPECT_THAT(error_of(good + "machine: \"h1000\"\n"),
              testing::AllOf(testing::StartsWith("p.textproto:2:1: "), testing::HasSubstr("did you mean")));
  EXPECT_THAT(error_of("machine: \"h100\"\n"), testing::StartsWith("p.textproto:1:1: found no kernel"));
  EXPECT_THAT(error_of("collective { message: \"1 MiB\" ranks: 1 latency: \"5 us\" }"), testing::HasSubstr("ranks 1, wanted at least 2"));
  EXPECT_THAT(error_of("memory { latency: \"5 us\" }"), testing::HasSubstr("found no memory[0].read"));
}

}  // namespace
}  // namespace stepsim
