#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "hardware/machine_spec.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A user's file in the test's folder.
class UserFile {
 public:
  UserFile(const std::string& name, const std::string& text) : path_(testing::TempDir() + name) { std::ofstream(path_) << text; }
  ~UserFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(LoadMachine, EveryMachineHasAUsualCluster) {
  const std::vector<std::string> names = gpu_names();
  EXPECT_GE(names.size(), 30u);
  for (const std::string& name : names) {
    const GpuSpec gpu = load_gpu(name);
    EXPECT_EQ(gpu.name, name);
    EXPECT_FALSE(gpu.host_link.empty()) << name;
    const ClusterSpec cluster = usual_cluster(gpu);
    EXPECT_GE(cluster.gpus_per_node, 1) << name;
    // No link is faster than the memory that it ends in.
    EXPECT_LT(gpu.host_to_device, gpu.hbm) << name;
    EXPECT_LT(gpu.nvlink_per_direction, gpu.hbm) << name;
  }
}

// spec/cli.md, "Names in the catalog (at least)".
TEST(LoadMachine, CatalogOfTheSpecification) {
  for (const char* name : {"v100-sxm-32gb", "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-80gb", "h100-sxm-80gb", "h100-pcie-80gb",
                           "h100-sxm-96gb-hbm2e", "h800-sxm-80gb", "h200-sxm-141gb", "gh200-96gb", "b200", "b300", "gb200-nvl72",
                           "gb300-nvl72", "rubin-nvl144", "mi300x", "rtx-4090"}) {
    EXPECT_EQ(load_gpu(name).name, name);
  }
  for (const char* name : {"selene-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "gb300-nvl72", "gh200-node"}) {
    EXPECT_EQ(load_cluster(name).name, name);
  }
}

TEST(LoadMachine, AliasesAreUnambiguous) {
  std::map<std::string, std::string> owners;
  for (const std::string& name : gpu_names()) {
    std::vector<std::string> spellings = load_gpu(name).aliases;
    spellings.push_back(name);
    for (const std::string& spelling : std::set<std::string>(spellings.begin(), spellings.end())) {
      const auto [at, fresh] = owners.emplace(spelling, name);
      EXPECT_TRUE(fresh) << spelling << " is " << at->second << " and " << name;
      EXPECT_EQ(load_gpu(spelling).name, name) << spelling;
    }
  }
}

TEST(LoadMachine, CaseSpacesAndUnderscoresDoNotMatter) {
  EXPECT_EQ(load_gpu("H100_SXM").name, "h100-sxm-80gb");
  EXPECT_EQ(load_gpu("H100 80GB HBM3").name, "h100-sxm-80gb");
  EXPECT_EQ(load_gpu("dgx_a100").name, "a100-sxm-80gb");
}

TEST(LoadMachine, EverySpellingOfTheMeasuredData) {
  const std::string data = STEPSIM_SHARED_DIR "/data/";
  const std::vector<std::pair<std::string, std::string>> columns = {{"kernels/flash_attention_tables.csv", "gpu"},
                                                                    {"kernels/nccl_aic.csv", "gpu"},
                                                                    {"kernels/neusight_gemm_fp32.csv", "gpu"},
                                                                    {"kernels/neusight_vec_fp32.csv", "gpu"},
                                                                    {"kernels/simumax_efficiency.csv", "gpu"},
                                                                    {"kernels/infersim_gemm.csv", "gpu"},
                                                                    {"kernels/te_gemm_profiling.csv", "gpu"},
                                                                    {"kernels/vidur_mlp.csv", "gpu"},
                                                                    {"kernels/gemm_golden.csv", "gpu"},
                                                                    {"published/results.csv", "gpu"},
                                                                    {"published/pairs.csv", "gpu"},
                                                                    {"published/mpt_llmfoundry.csv", "GPU"},
                                                                    {"papers/flashattention_tflops.csv", "gpu"}};
  if (!std::filesystem::exists(data + columns[0].first)) GTEST_SKIP() << "no measured data";
  std::set<std::string> spellings;
  for (const auto& [path, column] : columns) {
    std::ifstream file(data + path);
    ASSERT_TRUE(file) << path;
    std::string line;
    std::ptrdiff_t index = -1;
    while (std::getline(file, line)) {
      std::vector<std::string> fields(1);
      bool quoted = false;
      for (const char c : line) {
        if (c == '"') quoted = !quoted;
        if (c == ',' && !quoted) fields.emplace_back();
        if (c != '"' && c != '\r' && (c != ',' || quoted)) fields.back() += c;
      }
      if (index < 0) {
        index = std::find(fields.begin(), fields.end(), column) - fields.begin();
        ASSERT_LT(index, static_cast<std::ptrdiff_t>(fields.size())) << path;
      } else if (static_cast<std::size_t>(index) < fields.size()) {
        spellings.insert(fields[static_cast<std::size_t>(index)]);
      }
    }
  }
  EXPECT_GE(spellings.size(), 50u);
  for (const std::string& spelling : spellings) {
    if (spelling.empty() || spelling.rfind("unknown", 0) == 0) continue;  // the source does not say which GPU it was
    EXPECT_NO_THROW(load_gpu(spelling)) << spelling;
  }
}

TEST(LoadMachine, EveryNumberCitesItsSource) {
  std::size_t numbers = 0;
  for (const char* folder : {"machines", "clusters"}) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(STEPSIM_SOURCE_DIR "/hardware/data/") + folder)) {
      std::ifstream file(entry.path());
      bool record = false;  // fit { }: names its data and conditions itself
      for (std::string line; std::getline(file, line);) {
        if (line == "fit {" || line == "}") record = line != "}";
        if (record) continue;
        const std::size_t comment = line.find('#');
        const std::string code = line.substr(0, comment);
        const std::size_t field = code.find(": ");
        const bool text = code.rfind("alias", 0) == 0 || code.rfind("assumption", 0) == 0 || code.rfind("base", 0) == 0 ||
                          code.rfind("  kernel: ", 0) == 0;
        if (text || field == std::string::npos ||
            !std::any_of(code.begin() + static_cast<std::ptrdiff_t>(field), code.end(),
                         [](unsigned char c) { return std::isdigit(c) != 0; })) {
          continue;
        }
        ++numbers;
        EXPECT_NE(comment, std::string::npos) << entry.path() << ": " << line;
        EXPECT_GT(line.size() - comment, 6u) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(numbers, 500u);
}

TEST(LoadMachine, UnknownNameHasTheNearest) {
  EXPECT_THAT(error_of([] { load_gpu("h100-sxm-80g"); }),
              AllOf(StartsWith("--hardware: found \"h100-sxm-80g\", wanted "), HasSubstr("did you mean \"h100-sxm-80gb\"?")));
  EXPECT_THAT(error_of([] { load_cluster("dgx-h10"); }), AllOf(StartsWith("--cluster: found \"dgx-h10\""), HasSubstr("dgx-h100")));
  EXPECT_THAT(error_of([] { load_gpu("/no/such/machine.textproto"); }), HasSubstr("/no/such/machine.textproto"));
}

TEST(LoadMachine, UserFileStandsOnABase) {
  const UserFile file("mine.textproto", "base: \"h100-sxm-80gb\"\nhbm: \"3.0 TB/s\"\nassumption: \"Mine.\"\n");
  const GpuSpec gpu = load_gpu(file.path()), base = load_gpu("h100-sxm-80gb");
  EXPECT_EQ(gpu.name, "mine");
  EXPECT_TRUE(gpu.aliases.empty());  // the base's names stay the base's
  EXPECT_EQ(gpu.hbm.value, 3e12);
  EXPECT_EQ(gpu.peak_tflops, base.peak_tflops);
  EXPECT_EQ(gpu.fit.attention.size(), base.fit.attention.size());
  EXPECT_EQ(gpu.assumptions.back(), "Mine.");
}

TEST(LoadMachine, UserFileInJson) {
  const UserFile file("mine.json", "{\"base\": \"h100-sxm-80gb\",\n \"hbm\": \"3.0 TB/s\"}\n");
  EXPECT_EQ(load_gpu(file.path()).hbm.value, 3e12);
  const UserFile wrong("wrong.json", "{\"base\": \"h100-sxm-80gb\",\n \"hbm\": \"3.0 TB\"}\n");
  EXPECT_THAT(error_of([&] { load_gpu(wrong.path()); }), AllOf(HasSubstr("wrong.json:2:"), HasSubstr("GB/s")));
}

TEST(LoadMachine, UserClusterFile) {
  const UserFile file("mine.textproto", "base: \"dgx-h100\"\nnetwork_per_gpu: \"12.5 GB/s\"\n");
  EXPECT_EQ(load_cluster(file.path()).network_per_gpu.value, 12.5e9);
  EXPECT_EQ(load_cluster(file.path()).gpus_per_node, 8);
  const UserFile wrong("wrong.textproto", "base: \"dgx-h100\"\ngpus_per_node: 0\n");
  EXPECT_THAT(error_of([&] { load_cluster(wrong.path()); }), HasSubstr("wrong.textproto:2:1: found gpus_per_node 0, wanted"));
}

TEST(LoadMachine, PeakIsReplacedWhole) {
  EXPECT_EQ(load_gpu("v100").peak_tflops.count("bf16"), 0u);  // its base, the A100, has it
  EXPECT_EQ(load_gpu("v100").peak_tflops.at("fp16"), 125);
}

TEST(LoadMachine, MistakesInUserFilesHaveAPlace) {
  const auto error = [](const std::string& text) {
    const UserFile file("wrong.textproto", text);
    const std::string what = error_of([&] { load_gpu(file.path()); });
    const std::size_t at = what.find("wrong.textproto");
    return at == std::string::npos ? what : what.substr(at);
  };
  EXPECT_THAT(error("base: \"h100\"\nhbm: \"900\"\n"),
              AllOf(StartsWith("wrong.textproto:2:1: found hbm \"900\", wanted a rate"), HasSubstr("GB/s")));
  EXPECT_THAT(error("base: \"h100\"\nhbm: 900\n"), AllOf(StartsWith("wrong.textproto:2:6: found 900, wanted"), HasSubstr("GB/s")));
  EXPECT_THAT(error("base: \"h100\"\nhbm: \"900 GiB\"\n"), AllOf(StartsWith("wrong.textproto:2:"), HasSubstr("GB/s")));
  EXPECT_THAT(error("base: \"h100\"\nhbm: \"0 GB/s\"\n"), StartsWith("wrong.textproto:2:1: found hbm \"0 GB/s\", wanted more than zero"));
  EXPECT_THAT(error("base: \"h100\"\nsms: -3\n"), StartsWith("wrong.textproto:2:1: found sms -3, wanted"));
  EXPECT_THAT(error("base: \"h100\"\ngemm { compute: 1.5 }\n"),
              AllOf(StartsWith("wrong.textproto:2:"), HasSubstr(": found gemm.compute 1.5, wanted")));
  EXPECT_THAT(error("base: \"h10\"\n"), AllOf(StartsWith("wrong.textproto:1:"), HasSubstr("found \"h10\"")));
  EXPECT_THAT(error("base: \"h100\"\nhmb: \"900 GB/s\"\n"), AllOf(StartsWith("wrong.textproto:2:1: found"), HasSubstr("hbm")));
  EXPECT_THAT(error("peak { bf16: \"1 TFLOP/s\" }\n"), HasSubstr(": found no "));
  EXPECT_THAT(error(""), HasSubstr("found no peak, wanted at least one dtype"));
}

TEST(LoadMachine, OverridesNameTheFlag) {
  const std::vector<std::pair<std::string, std::string>> good = {{"peak.bf16", "1200 TFLOP/s"}, {"nvlink_per_direction", "none"}};
  const GpuSpec gpu = load_gpu("h100", good);
  EXPECT_EQ(gpu.peak_tflops.at("bf16"), 1200);
  EXPECT_EQ(gpu.nvlink_per_direction.value, 0);
  const std::vector<std::pair<std::string, std::string>> bad = {{"peak.bf16", "1200"}};
  EXPECT_THAT(error_of([&] { load_gpu("h100", bad); }), AllOf(StartsWith("--set peak.bf16: found"), HasSubstr("TFLOP/s")));
}

TEST(LoadMachine, PeakOfADType) {
  EXPECT_EQ(peak(load_gpu("h100"), DType::kBf16).value, 989e12);
  EXPECT_EQ(peak(load_gpu("h100"), DType::kMxFp8).value, 1979e12);
  EXPECT_EQ(peak(load_gpu("b200"), DType::kNvFp4).value, 9000e12);
  EXPECT_THAT(error_of([] { peak(load_gpu("a100"), DType::kFp8); }),
              AllOf(StartsWith("--precision: found fp8, wanted one of "), HasSubstr("bf16")));
}

// offload.md 3: 900 GB/s is the sum over directions and over both GPUs of a Grace.
TEST(LoadMachine, GraceLinkIsAbout200EachWay) {
  for (const char* name : {"gb200", "gb300"}) {
    const GpuSpec gpu = load_gpu(name);
    EXPECT_NEAR(gpu.host_to_device.value, 200e9, 20e9);
    EXPECT_NEAR(gpu.device_to_host.value, 200e9, 20e9);
    EXPECT_EQ(usual_cluster(gpu).gpus_per_host_memory, 2);
  }
}

}  // namespace
}  // namespace stepsim
