// What-if studies of offload against recompute and keeping, on several links: the claims that offload is worth it, each with a number.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "models/offload_graph.h"
#include "sim/simulate.h"
#include "tests/validation/published_job.h"
#include "tools/job.h"
#include "tools/job_flags.h"
#include "tools/step_run.h"

namespace stepsim {
namespace {

using Settings = std::vector<std::string>;  // "path=value"

StepRun run_of(const Settings& settings) {
  JobInput input;
  for (const std::string& setting : settings) input.flags.push_back(parse_set(setting));
  return run_step(resolve_job(input));
}

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Llama-3 8B on 8 GPUs of GB200, optimizer state sharded, in compute always the same; only the link differs.
Settings job(std::int64_t micro_batch) {
  return {"model.name=llama3-8b",   "hardware.name=gb200", "hardware.gpus=8",
          "training.sequence=8192", "parallel.zero=1",     "training.micro_batch=" + std::to_string(micro_batch)};
}

struct Link {
  const char* name;
  Settings settings;
};

// PCIe 5: 52.8 GB/s out and 51 in, offload/bandwidth.csv. Shared: both GPUs of a Grace copy. Rubin as announced: 1.8 TB/s nominal over
// both directions and two GPUs.
std::vector<Link> links() {
  return {{"PCIe 5", {"hardware.device_to_host=52.8 GB/s", "hardware.host_to_device=51 GB/s"}},
          {"C2C, both GPUs of a Grace", {}},
          {"C2C, one GPU", {"cluster.gpus_per_host_memory=1"}},
          {"Rubin, announced",
           {"hardware.device_to_host=450 GB/s", "hardware.host_to_device=450 GB/s", "cluster.host_memory_bandwidth=1800 GB/s",
            "cluster.host_memory_read=1800 GB/s", "cluster.host_memory_write=1800 GB/s"}}};
}

const Settings kKeep{}, kRecompute{"placement.recompute=full"};

Settings offload(const char* fraction) {
  return {"placement.offload_modules=core_attn,mlp_norm,mlp_fc1,act,mlp_fc2", "placement.max_in_flight=2", "placement.keep_last_layers=1",
          std::string("placement.offload_groups_fraction=") + fraction};
}

struct Outcome {
  double seconds = 0, peak_gib = 0;
  bool fits = false;
};

Outcome outcome(const Settings& settings) {
  const StepRun run = run_of(settings);
  return {run.step_time_s(), gib(run.run.worst().peak.bytes), !run.run.result.out_of_memory};
}

// The fastest part of the tensors to move that fits.
struct Best {
  Outcome of;
  const char* fraction = "";
};
std::optional<Best> best_offload(const Settings& settings) {
  std::optional<Best> best;
  for (const char* const fraction : {"0.25", "0.5", "0.75", "1"}) {
    const Outcome tried = outcome(with(settings, offload(fraction)));
    if (tried.fits && (!best || tried.seconds < best->of.seconds)) best = Best{tried, fraction};
  }
  return best;
}

std::string shown(const Outcome& found) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f ms, %.1f GiB", 1e3 * found.seconds, found.peak_gib);
  return found.fits ? text : std::string("does not fit, ") + std::to_string(static_cast<int>(found.peak_gib)) + " GiB";
}

// Keeping does not fit from some micro-batch on; there offload or recompute wins, by the link.
TEST(OffloadStudy, OffloadAgainstRecomputeByLink) {
  std::printf("## table: offload-study\n| micro-batch | link | keep | recompute full | best offload that fits (part moved) |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  bool wins_on_c2c = false, loses_on_pcie = false, made_feasible = false;
  for (const std::int64_t micro_batch : {3, 4, 5}) {
    const Outcome keep = outcome(with(job(micro_batch), kKeep)), again = outcome(with(job(micro_batch), kRecompute));
    for (const Link& link : links()) {
      const std::optional<Best> best = best_offload(with(job(micro_batch), link.settings));
      std::printf("| %d | %s | %s | %s | %s |\n", static_cast<int>(micro_batch), link.name, shown(keep).c_str(), shown(again).c_str(),
                  best ? (shown(best->of) + " (" + best->fraction + ")").c_str() : "none fits");
      if (!best || keep.fits) continue;
      made_feasible = true;
      const bool wins = best->of.seconds < again.seconds, pcie = std::string(link.name) == "PCIe 5";
      wins_on_c2c = wins_on_c2c || (wins && !pcie);
      loses_on_pcie = loses_on_pcie || (!wins && pcie);
    }
  }
  std::printf("\n");
  EXPECT_TRUE(made_feasible);
  EXPECT_TRUE(wins_on_c2c);
  EXPECT_TRUE(loses_on_pcie);
}

// A faster link never hurts, all else equal, in the order of the links above.
TEST(OffloadStudy, FasterLinksAreNotSlower) {
  double before = 1e9;
  for (const Link& link : links()) {
    const Outcome found = outcome(with(with(job(4), link.settings), offload("1")));
    EXPECT_LE(found.seconds, before) << link.name;
    before = found.seconds;
  }
}

// Copies need buffers: where the host runs far ahead of the device, a tensor that was copied out is not free yet when another one comes
// back, and the peak is above that of keeping everything (modelscope/ms-swift#7201 saw 304 MB become 336 MB).
TEST(OffloadStudy, OffloadCanRaiseThePeak) {
  const Settings small{"model.name=gpt2-124m",   "hardware.name=a100-sxm-80gb",       "training.sequence=256",
                       "training.micro_batch=8", "framework.name=torchtitan@2024-12", "training.attention=flash",
                       "training.loss=chunked=8"};
  const Outcome keep = outcome(small);
  const Outcome moved = outcome(with(small, {"placement.offload_modules=*", "placement.release=event", "placement.prefetch_layers=12"}));
  std::printf("## table: offload-raises-peak\n| GPT-2 124M, 8 x 256 tokens | peak |\n| --- | --- |\n");
  std::printf("| keep | %.3f GiB |\n| offload, freed by events, prefetched 12 layers ahead | %.3f GiB |\n\n", keep.peak_gib,
              moved.peak_gib);
  EXPECT_GT(moved.peak_gib, keep.peak_gib);
}

Duration total_of(const OffloadStack& stack) {
  EXPECT_FALSE(offload_finding(stack));
  const OffloadGraph made = offload_graph(stack);
  const StepResult result = simulate(made.graph, plain_machine(1), GivenCostModel(made.costs),
                                     {.device = LedgerRule::kDeviceOrder, .host = LedgerRule::kDeviceOrder});
  return offload_figures(stack, made, result).total;
}

// With backward twice as long as forward and a symmetric link, copies out hide in forward and copies in in backward: a layer takes
// 3 f + 2 d one after the other and 3 f where both hide, so at most 5/3, at d = f (offload.md section 1.3). Where the overlapped step still
// waits for copies, the ratio goes on to 7/4 at d = 2 f: copies out go on while backward's copies in come, each in its own direction.
TEST(OffloadStudy, OverlapAloneIsBounded) {
  std::printf("## table: overlap-ceiling\n| copy / forward of a layer | one after the other / overlapped | overlapped step waits |\n");
  std::printf("| --- | --- | --- |\n");
  constexpr std::int64_t kLayers = 400;
  double hidden = 0, best = 0;
  for (const int percent : {25, 50, 75, 100, 125, 150, 200, 300, 500}) {
    OffloadStack stack{.layers = kLayers, .forward = Duration(100'000), .backward = Duration(200'000), .head = Duration(0)};
    stack.copy_out = stack.copy_in = Duration(1000 * percent);
    stack.max_resident = 1;
    stack.lookahead = 0;
    const Duration serial = total_of(stack);
    stack.max_resident = std::nullopt;
    stack.lookahead = 1;
    const Duration overlapped = total_of(stack), compute = kLayers * (stack.forward + stack.backward);
    const double ratio = seconds(serial) / seconds(overlapped), waits = seconds(overlapped - compute) / seconds(compute);
    std::printf("| %.2f | %.3f | %.1f %% |\n", percent / 100.0, ratio, 100 * waits);
    best = std::max(best, ratio);
    if (waits < 0.01) hidden = std::max(hidden, ratio);  // but for the ends of the stack
  }
  std::printf("\n");
  EXPECT_LT(hidden, 5.0 / 3);
  EXPECT_GT(hidden, 1.65);
  EXPECT_LT(best, 7.0 / 4);
}

}  // namespace
}  // namespace stepsim
