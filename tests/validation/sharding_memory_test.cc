// Sharded data parallelism against measured peaks: what 8 and 128 GPUs differ by, and what the all-gather limiter saves.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/validation/published_job.h"

namespace stepsim {
namespace {

StepRequest sharded(const std::string& model, const std::string& framework, std::int64_t sequence, std::int64_t micro_batch, int ranks) {
  StepRequest request;
  request.model = load_model(model);
  request.framework = load_framework(framework);
  request.training.sequence = sequence;
  request.training.micro_batch = micro_batch;
  request.training.global_batch = micro_batch * ranks;
  request.parallel.data = ranks;
  request.parallel.zero = 3;
  return request;
}

// ../shared/spec/accuracy.md B.3: torchtitan's Llama-3 8B, micro-batch 2, sequence 8192: 82.40 and 67.0 GiB (eager), 77.0 and 62.0
// (compiled) on 8 and 128 H100. Only differences: what those rows save (selective checkpoints by op) comes with part 5. They are *reserved*
// bytes. At the peak, where the loss begins its backward, torchtitan has freed the gradient shards, so that allocated bytes differ by 12 a
// parameter; the allocator's pool still has what the gradients used. It is compared with the preset that keeps them, 16 bytes a parameter;
// reserved ones were found to be 17-20, hence 2 GiB.
TEST(ShardingMemory, EightAgainst128Gpus) {
  std::printf("## table: fsdp-delta\n| Llama-3 8B, ZeRO 3 | reserved, measured: GiB less on the larger | gradient shards kept | freed |\n");
  std::printf("|---|---|---|---|\n");
  const auto less = [](const char* framework, int few, int many) {
    const auto peak = [&](int ranks) {
      return gib(run_published(sharded("llama3-8b", framework, 8192, 2, ranks), "h100-sxm-96gb-hbm2e").run.worst().peak.bytes);
    };
    return peak(few) - peak(many);
  };
  const double kept = less("megatron-core@2025", 8, 128), freed = less("torchtitan@2024-12", 8, 128);
  const double parameters = 8030261248, gibibyte = 1 << 30, shards = 1.0 / 8 - 1.0 / 128;
  EXPECT_NEAR(kept, 16 * parameters * shards / gibibyte, 0.05);  // padding of the tables apart
  EXPECT_NEAR(freed, 12 * parameters * shards / gibibyte, 0.05);
  for (const auto& [name, measured] :
       {std::pair("8 and 128 GPUs, eager", 82.40 - 67.0), std::pair("8 and 128 GPUs, compiled", 77.0 - 62.0)}) {
    EXPECT_NEAR(kept, measured, 2) << name;
    std::printf("| %s | %.2f | %.2f | %.2f |\n", name, measured, kept, freed);
  }
  // 47.82 and 31.41 GiB on 8 and 64 GPUs: another code version and micro-batch, not bounded.
  std::printf("| 8 and 64 GPUs, 2026 (not bounded: 17.6 bytes a parameter) | 16.41 | %.2f | %.2f |\n\n", less("megatron-core@2025", 8, 64),
              less("torchtitan@2024-12", 8, 64));
}

// pytorch issue 98354: 38,555 MB without the limiter, 7,164 MB with it, near-equal time. In kind: the thread's model is not known, here
// Llama-2 7B with full checkpointing on 64 A100, where the host is far ahead of the device.
TEST(ShardingMemory, TheLimiterSavesMemoryNotTime) {
  std::printf("## table: limiter\n| gathers ahead | peak, MB | step, s |\n|---|---|---|\n");
  double peaks[2] = {}, times[2] = {};
  for (const std::int32_t limit : {2, 0}) {
    StepRequest request = sharded("llama2-7b", "pytorch-fsdp@2023", 4096, 2, 64);
    request.placement.granularity = RecomputeGranularity::kFull;
    request.parallel.gather_limit = limit;
    const PublishedRun published = run_published(request, "a100-sxm-80gb");
    const std::size_t i = limit == 0;
    peaks[i] = static_cast<double>(published.run.worst().peak.bytes.value) / (1 << 20);
    times[i] = seconds(published.run.result.end);
    std::printf("| %s | %.0f | %.3f |\n", limit == 0 ? "no limit (38555 measured)" : "2 (7164 measured)", peaks[i], times[i]);
  }
  std::printf("\n");
  EXPECT_GT(peaks[1], 3 * peaks[0]);          // several times the memory
  EXPECT_NEAR(times[1] / times[0], 1, 0.03);  // near-equal time
}

}  // namespace
}  // namespace stepsim
