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

// Storages of no micro-batch: weights, moments and gradient shards, whether or not they are live at the peak.
Bytes resident_bytes(const OpGraph& graph) {
  Bytes sum;
  for (const Storage& storage : graph.storages()) {
    if (storage.device == DeviceId{0} && storage.micro_batch < 0) sum += storage.size;
  }
  return sum;
}

// ../shared/spec/accuracy.md B.3: torchtitan's Llama-3 8B, micro-batch 2, sequence 8192: 82.40 and 67.0 GiB (eager), 77.0 and 62.0
// (compiled) on 8 and 128 H100. Only differences: what those rows save (selective checkpoints by op) comes with part 5. They are *reserved*
// bytes. At the peak, where the loss begins its backward, torchtitan has freed the gradient shards: the peaks of allocated bytes differ by
// 12 bytes a parameter, 4.5 to 4.9 GiB too little, which no allocator is here to explain. Bounded are the shards, 16 bytes a parameter, as
// B.3 predicts; reserved ones were found to be 17-20 bytes, hence 2 GiB.
TEST(ShardingMemory, EightAgainst128Gpus) {
  std::printf(
      "## table: fsdp-delta\n| Llama-3 8B, FSDP: GiB less on the larger | measured, reserved | stepsim, all shards | stepsim, peak |\n");
  std::printf("|---|---|---|---|\n");
  const auto run = [](int ranks) {
    return run_published(sharded("llama3-8b", "torchtitan@2024-12", 8192, 2, ranks), "h100-sxm-96gb-hbm2e");
  };
  struct Sizes {
    double shards, peak;
  };
  const auto less = [&](int few, int many) {
    const PublishedRun more = run(few), fewer = run(many);
    return Sizes{gib(resident_bytes(more.step.graph) - resident_bytes(fewer.step.graph)),
                 gib(more.run.worst().peak.bytes - fewer.run.worst().peak.bytes)};
  };
  const Sizes found = less(8, 128), later = less(8, 64);
  const double parameters = 8030261248, gibibyte = 1 << 30, share = 1.0 / 8 - 1.0 / 128;
  EXPECT_NEAR(found.shards, 16 * parameters * share / gibibyte, 0.05);  // shares of units are rounded up
  EXPECT_NEAR(found.peak, 12 * parameters * share / gibibyte, 0.05);
  for (const auto& [name, measured] :
       {std::pair("8 and 128 GPUs, eager", 82.40 - 67.0), std::pair("8 and 128 GPUs, compiled", 77.0 - 62.0)}) {
    EXPECT_NEAR(found.shards, measured, 2) << name;
    std::printf("| %s | %.2f | %.2f (%+.2f) | %.2f (%+.2f) |\n", name, measured, found.shards, found.shards - measured, found.peak,
                found.peak - measured);
  }
  // 47.82 and 31.41 GiB on 8 and 64 GPUs: another code version and micro-batch, not bounded.
  std::printf("| 8 and 64 GPUs, 2025, another version: not bounded | 16.41 | %.2f (%+.2f) | %.2f (%+.2f) |\n\n", later.shards,
              later.shards - 16.41, later.peak, later.peak - 16.41);
}

// pytorch issue 98354: 38,555 MB without the limiter, 7,164 MB with it, near-equal time. In kind only: the thread's model is not known.
// Here Llama-2 7B with full checkpointing on 64 A100, where the host is far ahead of the device. What counts is the ratio: 5.4 there. On 8
// GPUs it stays below 2.6 for the models of the catalog, since the own shards (10 GB) are as large as what the limiter saves.
TEST(ShardingMemory, TheLimiterSavesMemoryNotTime) {
  std::printf("## table: limiter\n| gathers ahead | peak, MB | step, s | the thread, another model: MB |\n|---|---|---|---|\n");
  double peaks[2] = {}, times[2] = {};
  for (const std::int32_t limit : {2, 0}) {
    StepRequest request = sharded("llama2-7b", "pytorch-fsdp@2023", 4096, 2, 64);
    request.placement.granularity = RecomputeGranularity::kFull;
    request.parallel.gather_limit = limit;
    const PublishedRun published = run_published(request, "a100-sxm-80gb");
    const std::size_t i = limit == 0;
    peaks[i] = static_cast<double>(published.run.worst().peak.bytes.value) / 1e6;
    times[i] = seconds(published.run.result.end);
    std::printf("| %s | %.0f | %.3f | %s |\n", limit == 0 ? "no limit" : "2", peaks[i], times[i], limit == 0 ? "38555" : "7164");
  }
  std::printf("| ratio | %.2f | %.3f | 5.38 |\n\n", peaks[1] / peaks[0], times[1] / times[0]);
  EXPECT_GT(peaks[1], 3 * peaks[0]);          // "several times": 3 leaves room, the ratio depends on the model
  EXPECT_NEAR(times[1] / times[0], 1, 0.03);  // "near-equal" has no number in the issue: 3 %
}

}  // namespace
}  // namespace stepsim
