#include "hardware/stack_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>

#include "hardware/roofline_cost_model.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string written(const std::string& text, const std::string& name = "own.textproto") {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

constexpr const char* kOwn =
    "machine: \"h100-sxm-80gb\"\n"
    "precision: \"bf16\"\n"
    "gemm { expected: 1.25 lower: 1.2 upper: 1.4 }\n";

// What the loader says of kOwn with one more line, behind the path of the file.
std::string error_with(const std::string& line, const std::string& begin = kOwn) {
  const std::string path = written(begin + line + "\n");
  const std::string error = error_of([&] { load_stack(path); });
  return error.compare(0, path.size(), path) == 0 ? error.substr(path.size()) : "elsewhere: " + error;
}

TEST(StackSpec, EveryCatalogStackHasEvidenceAndCatalogMachines) {
  const std::vector<std::string> machines = gpu_names();
  EXPECT_GE(stack_names().size(), 12u);
  for (const std::string& name : stack_names()) {
    const StackSpec stack = load_stack(name);
    EXPECT_EQ(stack.name, name);
    EXPECT_FALSE(stack.software.empty()) << name;
    ASSERT_FALSE(stack.evidence.empty()) << name;
    for (const StackEvidence& evidence : stack.evidence) {
      EXPECT_GE(evidence.rows, 1) << name;
      EXPECT_GT(evidence.conditions.size(), 10u) << name;
    }
    for (const std::string& machine : stack.machines) {
      EXPECT_NE(std::find(machines.begin(), machines.end(), machine), machines.end()) << name << ": " << machine;
    }
    EXPECT_GE(stack.gemm.expected, 0.95) << name;  // accuracy.md A.3: 0.955 to 0.995 on A100
    EXPECT_LE(stack.gemm.expected, 1.8) << name;   // the slowest of accuracy.md C.3 is 1.63
  }
}

// Two defaults for one job would make the choice depend on the order of the files.
TEST(StackSpec, DefaultsAreUnambiguous) {
  std::set<std::string> jobs;
  for (const std::string& name : stack_names()) {
    const StackSpec stack = load_stack(name);
    for (const std::string& machine : stack.machines) {
      for (const std::string& precision : stack.precisions) {
        for (const std::string& framework : stack.frameworks) {
          EXPECT_TRUE(jobs.insert(machine + " " + precision + " " + framework).second) << name;
          EXPECT_EQ(known_stack(machine, precision, framework)->name, name);
        }
      }
    }
  }
  EXPECT_GE(jobs.size(), 20u);
}

TEST(StackSpec, EveryNumberCitesItsSource) {
  std::size_t numbers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(STEPSIM_SOURCE_DIR "/hardware/data/stacks")) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const std::size_t comment = line.find("  # "), colon = line.find(": ");
      if (line[0] == '#' || colon == std::string::npos || std::isdigit(static_cast<unsigned char>(line[colon + 2])) == 0) continue;
      ++numbers;
      EXPECT_NE(comment, std::string::npos) << entry.path() << ": " << line;
      const bool cited = line.find("accuracy.md", comment) != std::string::npos;  // or found by the recipe, whose evidence names it
      EXPECT_TRUE(cited || line.find("calibrate", comment) != std::string::npos) << entry.path() << ": " << line;
    }
  }
  EXPECT_GT(numbers, 60u);
}

// accuracy.md C.3, "in step": the share of the dense peak that sustained products reach, whatever the benchmarks in the machine's file say.
// Rounded there to two digits: 2 %.
TEST(StackSpec, LargeProductsReachTheShareOfThePeakThatTrainingReaches) {
  struct Row {
    const char* stack;
    const char* precision;
    DType dtype;
    double share;
  };
  for (const Row& row : {Row{"h100-fp8-nemo", "fp8", DType::kFp8, 0.51}, Row{"b200-bf16-megatron", "bf16", DType::kBf16, 0.42},
                         Row{"b200-fp8-bridge", "fp8", DType::kFp8, 0.48}, Row{"b200-mxfp8-bridge", "mxfp8", DType::kMxFp8, 0.44},
                         Row{"gb200-fp8-bridge", "fp8", DType::kFp8, 0.50}, Row{"gb200-mxfp8-bridge", "mxfp8", DType::kMxFp8, 0.48},
                         Row{"gb200-nvfp4-bridge", "nvfp4", DType::kNvFp4, 0.52}, Row{"gb300-fp8-bridge", "fp8", DType::kFp8, 0.61},
                         Row{"gb300-mxfp8-bridge", "mxfp8", DType::kMxFp8, 0.55}}) {
    const StackSpec stack = load_stack(row.stack);
    const GpuSpec gpu = load_gpu(stack.machines.front());
    const bool eight_bit = row.dtype != DType::kBf16;
    const double bench = gpu.fit.gemm_tile->compute * (eight_bit ? gpu.fit.gemm_compute_fp8 / gpu.fit.gemm_compute : 1);
    // A stack that this program has fitted holds what this program lacks, not what that model did.
    const bool cited = stack.evidence.front().command.empty();
    EXPECT_NEAR(bench / stack.gemm.expected / row.share, 1, cited ? 0.02 : 0.25) << row.stack;
  }
}

TEST(StackSpec, AliasesCasesAndFiles) {
  EXPECT_EQ(load_stack("A100_FSDP").name, "a100-fsdp");
  const StackSpec own = load_stack(written(std::string(kOwn) + "framework: \"nemo\"\nsoftware: \"ours\"\nmemory { expected: 1.1 }\n"));
  EXPECT_EQ(own.name, "own");
  EXPECT_EQ(own.gemm.expected, 1.25);
  EXPECT_EQ(own.gemm.lower, 1.2);
  EXPECT_EQ(own.gemm.upper, 1.4);
  EXPECT_EQ(own.memory.lower, 1.1);  // as expected where the file is silent
  EXPECT_EQ(own.memory.upper, 1.1);
  EXPECT_EQ(own.attention.expected, 1);
  EXPECT_EQ(own.software, "ours");
  EXPECT_FALSE(own.gives_weight_gradient);
  const std::string json = written("{\"machine\": [\"b200\"], \"precision\": [\"fp8\"], \"gemm\": {\"expected\": 1.5}}", "own.json");
  EXPECT_EQ(load_stack(json).gemm.upper, 1.5);
}

TEST(StackSpec, ErrorsHaveTheirPlace) {
  EXPECT_EQ(error_of([] { load_stack("a100-fspd"); }),
            "--stack: found \"a100-fspd\", wanted a catalog name (stepsim list) or a .textproto file, did you mean \"a100-fsdp\"?");
  EXPECT_THAT(error_of([] { load_stack("absent.textproto"); }), HasSubstr("absent.textproto"));
  const std::string of = "wanted a number from 0.5 to 10";
  EXPECT_EQ(error_with("attention { expected: 0.4 }"), ":4:13: found attention.expected 0.4, " + of);
  EXPECT_EQ(error_with("memory { expected: 11 }"), ":4:10: found memory.expected 11, " + of);
  EXPECT_EQ(error_with("memory { expected: nan }"), ":4:10: found memory.expected nan, " + of);
  EXPECT_EQ(error_with("collective { lower: 1 }"), ":4:1: found no collective.expected, " + of);
  EXPECT_EQ(error_with("collective { expected: 1 lower: 1.5 }"), ":4:26: found collective.lower 1.5, wanted at most the expected 1");
  EXPECT_EQ(error_with("collective { expected: 1 upper: 0.9 }"), ":4:26: found collective.upper 0.9, wanted at least the expected 1");
  EXPECT_EQ(error_with("weight_gradient { expected: 0 }"), ":4:19: found weight_gradient.expected 0, " + of);
  EXPECT_EQ(error_with("machine: \"\""), ":4:1: found machine[1] an empty text, wanted a name");
  EXPECT_EQ(error_with("machine: \"h100-sxm-80gb\""), ":4:1: found machine[1] \"h100-sxm-80gb\" twice, wanted it once");
  EXPECT_EQ(error_with("precision: \"bf61\""),
            ":4:1: found precision[1] \"bf61\", wanted one of bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4, did you mean \"bf16\"?");
  EXPECT_EQ(error_with("straggler_per_doubling: 2"), ":4:1: found straggler_per_doubling 2, wanted a fraction of the step from 0 to 1");
  EXPECT_EQ(error_with("evidence { rows: 3 }"), ":4:1: found no evidence[0].source, wanted what was measured and by whom");
  EXPECT_EQ(error_with("evidence { source: \"x\" rows: 0 }"), ":4:24: found evidence[0].rows 0, wanted a whole number above zero");
  EXPECT_EQ(error_with("evidence { source: \"x\" error_after: -0.1 }"),
            ":4:24: found evidence[0].error_after -0.1, wanted a mean of absolute errors as a fraction, such as 0.05");
  EXPECT_EQ(error_with("gem { expected: 1 }"), ":4:1: found unknown field \"gem\", wanted a field of Stack, did you mean \"gemm\"?");
}

TEST(StackSpec, EvidenceOfStepsThatWereHeldOut) {
  const std::string begin =
      "evidence { source: \"x\" rows: 4 models: \"dense\" framework: \"nemo@24.07\" held_out_rows: 5 held_out_jobs: 4 ";
  const StackSpec own = load_stack(written(
      kOwn + begin + "held_out_lower: -0.1 held_out_upper: 0.2 kernel_width: 0.05 most_gpus: 64 date: \"today\" }\n", "held.textproto"));
  const StackEvidence& evidence = own.evidence.at(0);
  EXPECT_EQ(evidence.models, "dense");
  EXPECT_EQ(evidence.frameworks, std::vector<std::string>{"nemo@24.07"});
  ASSERT_TRUE(evidence.held_out);
  EXPECT_EQ(evidence.held_out->rows, 5);
  EXPECT_EQ(evidence.held_out->jobs, 4);
  EXPECT_EQ(evidence.held_out->lower, -0.1);
  EXPECT_EQ(evidence.held_out->upper, 0.2);
  EXPECT_EQ(evidence.held_out->most_gpus, 64);
  EXPECT_EQ(evidence.date, "today");
  EXPECT_THAT(error_with(begin + "held_out_lower: 0.3 held_out_upper: 0.2 }"),
              HasSubstr("found evidence[0].held_out_lower 0.3, wanted more than -1, at most held_out_upper 0.2"));
  EXPECT_THAT(error_with("evidence { source: \"x\" models: \"all\" }"),
              HasSubstr("found evidence[0].models \"all\", wanted dense or experts"));
  EXPECT_THAT(error_with("evidence { source: \"x\" held_out_rows: 2 held_out_jobs: 3 }"), HasSubstr("wanted 1 to the 2 rows"));
}

TEST(StackSpec, MissingParts) {
  EXPECT_EQ(error_with("precision: \"bf16\"", ""), ": found no machine, wanted the machine that it was measured on");
  EXPECT_EQ(error_with("machine: \"b200\"", ""), ": found no precision, wanted at least one of bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4");
  EXPECT_EQ(error_with("machine: \"b200\" precision: \"bf16\"", ""),
            ": found no gemm, wanted the slowdown of matrix products: gemm { expected: 1.2 }");
}

TEST(StackSpec, KnownOnlyWithEvidenceOfTheFrameworkAndItsVersion) {
  EXPECT_EQ(known_stack("h100-sxm-80gb", "bf16", "llm-foundry@2023-10")->name, "h100-llm-foundry");
  EXPECT_EQ(known_stack("h100-sxm-96gb-hbm2e", "bf16", "torchtitan@2024-12")->name, "h100-96gb-torchtitan-2024-12");
  EXPECT_FALSE(known_stack("h100-sxm-80gb", "bf16", "llm-foundry@2026"));
  EXPECT_FALSE(known_stack("h100-sxm-80gb", "bf16", "torchtitan@2024-12"));  // of the 500 W part only
  EXPECT_FALSE(known_stack("h100-sxm-80gb", "fp16", "llm-foundry@2023-10"));
  EXPECT_EQ(known_stack("a100-sxm-80gb", "fp16", "megatron-lm@2022-05")->name, "a100-megatron");  // no slowdown: accuracy.md A.5
  EXPECT_EQ(known_stack("b200", "fp8", "megatron-bridge@31.01")->name, "b200-fp8-bridge");        // every version
  EXPECT_FALSE(known_stack("b200", "fp8", "megatron-bridges"));
}

// Of the catalog's files of the generation and precision: the least and the largest slowdown.
TEST(StackSpec, RangeWhereNoStackIsKnown) {
  const auto bounds = [](const std::vector<const char*>& names) {
    SlowdownRange all{1, 10, 0};
    for (const char* const name : names) {
      const double slowdown = load_stack(name).gemm.expected;
      all.lower = std::min(all.lower, slowdown);
      all.upper = std::max(all.upper, slowdown);
    }
    return all;
  };
  const auto range = [](const char* machine, const char* precision) { return unknown_stack_range(load_gpu(machine), precision); };
  const auto expect_same = [](const SlowdownRange& found, const SlowdownRange& wanted) {
    EXPECT_EQ(found.lower, wanted.lower);
    EXPECT_EQ(found.upper, wanted.upper);
    EXPECT_EQ(found.expected, 1);
  };
  const SlowdownRange ampere = bounds({"a100-fsdp", "a100-megatron", "a100-torchtitan"});
  expect_same(range("a100-sxm-80gb", "bf16"), ampere);
  expect_same(range("a100-pcie-40gb", "fp16"), ampere);  // fp16 products run as bf16 ones
  const SlowdownRange hopper = bounds({"h100-96gb-torchtitan-2024-12", "h100-96gb-torchtitan-2026", "h100-fms-fsdp", "h100-llm-foundry"});
  expect_same(range("h200-sxm-141gb", "bf16"), hopper);
  const SlowdownRange blackwell = bounds({"b200-bf16-megatron", "b300-bf16-te"});
  expect_same(range("gb300-nvl72", "bf16"), blackwell);
  // No relative: all stacks of 16 bits.
  expect_same(range("v100-sxm-32gb", "fp16"),
              {1, std::min({ampere.lower, hopper.lower, blackwell.lower}), std::max({ampere.upper, hopper.upper, blackwell.upper})});
}

// The middle one of an odd number, between the middle ones of an even one.
TEST(StackSpec, TypicalIsTheMiddleOfTheRelatives) {
  const StackSpec ampere = *typical_stack(load_gpu("a100-sxm-80gb"), "fp16");
  EXPECT_EQ(ampere.name, "typical");
  EXPECT_EQ(ampere.gemm.expected, load_stack("a100-fsdp").gemm.expected);  // a100-megatron has none, a100-torchtitan more
  EXPECT_EQ(ampere.gemm.lower, 1);
  EXPECT_EQ(ampere.gemm.upper, load_stack("a100-torchtitan").gemm.expected);
  EXPECT_TRUE(ampere.evidence.empty());
  const StackSpec blackwell = *typical_stack(load_gpu("gb300-nvl72"), "bf16");
  EXPECT_EQ(blackwell.gemm.expected, (load_stack("b200-bf16-megatron").gemm.expected + load_stack("b300-bf16-te").gemm.expected) / 2);
  EXPECT_FALSE(typical_stack(load_gpu("v100-sxm-32gb"), "fp16"));
  EXPECT_FALSE(typical_stack(load_gpu("a100-sxm-80gb"), "fp32"));
  GpuSpec gpu = load_gpu("gb300-nvl72");
  apply_stack(blackwell, "bf16", gpu);
  EXPECT_EQ(gpu.fit.sustained.gemm.at("bf16"), blackwell.gemm.expected);
}

TEST(StackSpec, HoldsForItsMachineAndPrecision) {
  const StackSpec stack = load_stack("h100-llm-foundry");
  GpuSpec gpu = load_gpu("b200");
  EXPECT_EQ(error_of([&] { apply_stack(stack, "bf16", gpu); }),
            "--stack: found h100-llm-foundry of h100-sxm-80gb, wanted a stack of b200, or none");
  gpu = load_gpu("h100");
  EXPECT_EQ(error_of([&] { apply_stack(stack, "fp16", gpu); }),
            "--stack: found h100-llm-foundry of bf16, wanted a stack for fp16, or none");
  StackSpec by_alias = stack;
  by_alias.machines = {"H100 SXM"};
  apply_stack(by_alias, "bf16", gpu);
  EXPECT_EQ(gpu.fit.sustained.gemm.at("bf16"), stack.gemm.expected);
  EXPECT_EQ(gpu.fit.sustained.gemm.size(), 1u);  // products of other formats are those of the machine
}

TEST(StackSpec, WeightGradientReplacesTheMachines) {
  StackSpec stack = load_stack("b200-bf16-megatron");
  GpuSpec gpu = load_gpu("b200");
  const double own = gpu.fit.gemm_tile->weight_gradient;
  apply_stack(stack, "bf16", gpu);
  EXPECT_EQ(gpu.fit.gemm_tile->weight_gradient, own);
  stack.gives_weight_gradient = true;
  stack.weight_gradient = {1.13, 1.13, 1.13};
  apply_stack(stack, "bf16", gpu);
  EXPECT_EQ(gpu.fit.gemm_tile->weight_gradient, 1.13);
  gpu.fit.gemm_tile.reset();
  EXPECT_EQ(error_of([&] { apply_stack(stack, "bf16", gpu); }),
            "--stack: found b200-bf16-megatron with weight_gradient, wanted one without it: b200 has no gemm_tile");
}

// Products take 1.25 times as long behind their launch, to the picosecond that rounding leaves; everything else as before.
TEST(StackSpec, SlowsMatrixProductsAndNothingElse) {
  const GpuSpec bare = load_gpu("h100");
  GpuSpec slow = bare;
  apply_stack(load_stack(written(kOwn)), "bf16", slow);
  const ClusterSpec cluster = usual_cluster(bare);
  const Machine machine = make_machine(bare, cluster, 1);
  const RooflineCostModel before(bare, cluster, machine), after(slow, cluster, machine);
  const auto alone = [&](const RooflineCostModel& model, const OpWork& work) { return model.cost(work, DeviceId{0}).alone; };
  for (const Gemm& gemm : {Gemm{.m = 8192, .n = 4096, .k = 4096}, Gemm{.m = 16, .n = 4096, .k = 4096},
                           Gemm{.m = 4096, .n = 4096, .k = 8192, .transpose_b = true}}) {
    EXPECT_NEAR(static_cast<double>(alone(after, gemm).count()), 1.25 * static_cast<double>(alone(before, gemm).count()), 1);
    EXPECT_EQ(after.cost(gemm, DeviceId{0}).fixed, before.cost(gemm, DeviceId{0}).fixed);
  }
  const Gemm fp32{.m = 8192, .n = 4096, .k = 4096, .dtype = DType::kFp32}, fp8{.m = 8192, .n = 4096, .k = 4096, .dtype = DType::kFp8};
  const Attention attention{.batch = 1, .heads = 32, .kv_heads = 8, .queries = 4096, .keys = 4096, .head_dim = 128};
  const Collective reduce{.message = Bytes(1 << 28), .ranks = 8};
  for (const OpWork& work : {OpWork(fp32), OpWork(fp8), OpWork(attention), OpWork(MemoryBound{.read = Bytes(1 << 28)}), OpWork(reduce)}) {
    EXPECT_EQ(alone(after, work), alone(before, work));
  }
}

// A stack may slow each class by itself.
TEST(StackSpec, SlowsEachClassByItsOwn) {
  const GpuSpec bare = load_gpu("h100");
  GpuSpec slow = bare;
  apply_stack(load_stack(written("machine: \"h100\" precision: \"bf16\" gemm { expected: 1 } attention { expected: 2 }\n"
                                 "memory { expected: 3 } collective { expected: 4 }\n")),
              "bf16", slow);
  const ClusterSpec cluster = usual_cluster(bare);
  const Machine machine = make_machine(bare, cluster, 1);
  const RooflineCostModel before(bare, cluster, machine), after(slow, cluster, machine);
  const auto ratio = [&](const OpWork& work) {
    return seconds(after.cost(work, DeviceId{0}).alone) / seconds(before.cost(work, DeviceId{0}).alone);
  };
  EXPECT_EQ(ratio(Gemm{.m = 8192, .n = 4096, .k = 4096}), 1);
  EXPECT_NEAR(ratio(Attention{.batch = 1, .heads = 32, .kv_heads = 8, .queries = 4096, .keys = 4096, .head_dim = 128}), 2, 1e-6);
  EXPECT_NEAR(ratio(MemoryBound{.read = Bytes(1 << 28)}), 3, 1e-6);
  EXPECT_NEAR(ratio(Collective{.message = Bytes(1 << 28), .ranks = 8}), 4, 1e-6);
}

}  // namespace
}  // namespace stepsim
