// Steps that another machine runs: plans written, what it took read back.
#include "tools/plan_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "hardware/backends/plan_text.h"
#include "sim/input_error.h"
#include "tests/backends/executed_step.h"

namespace stepsim {

using testing::HasSubstr;

namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::path(testing::TempDir()) / ("plans-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::vector<std::filesystem::path> plans() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".plan") found.push_back(entry.path());
    }
    return found;
  }

 private:
  std::filesystem::path path_;
};

std::string file_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// What a machine could have printed: every op 2 us behind the one before, all contents alike.
std::string results_of(const Folder& folder) {
  std::string text = R"({"device": "a GPU", "plans": [)";
  bool first = true;
  for (const std::filesystem::path& file : folder.plans()) {
    const ExecutionPlan plan = parse_plan(file_text(file));
    text += (first ? "" : ",") + std::string(R"({"plan": "./)") + file.filename().string() + R"(", "step_s": [0.5, )" +
            std::to_string(2e-6 * static_cast<double>(plan.ops.size())) +
            R"(], "device_peak_bytes": 1000, "host_peak_bytes": 0, "gradient_norm": 1.5, "ops": [)";
    first = false;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const double start = 2e-6 * static_cast<double>(i);
      text +=
          (i == 0 ? "[" : ",[") + std::to_string(plan.ops[i].op) + "," + std::to_string(start) + "," + std::to_string(start + 2e-6) + "]";
    }
    text += R"(], "observed": [)";
    for (std::size_t i = 0; i < plan.observed.size(); ++i) {
      text += (i == 0 ? "[" : ",[") + std::to_string(plan.observed[i].index) + R"(, "00ff", 0, 0])";
    }
    text += "]}";
  }
  return text + "]}";
}

std::vector<BackendCase> cases_of(PlanFolder& folder) {
  std::vector<BackendPlacement> placements = backend_placements();
  placements.resize(2);
  const std::vector<BackendModel> models = {tiny_gpt()};
  return validate_backend(folder, models, placements, {}, [](double, const std::string&) {});
}

}  // namespace

TEST(PlanFolder, WritesPlansThenReadsWhatTheyTook) {
  const Folder files;
  PlanFolder writing(files.path());
  cases_of(writing);
  EXPECT_EQ(writing.missing(), 3u);  // none (the short step is the same one), full, and all offloaded for its copies
  EXPECT_EQ(files.plans().size(), 3u);
  std::ofstream(files.path() + "/results.json") << results_of(files);
  PlanFolder reading(files.path());
  EXPECT_EQ(reading.machine_name(), "a GPU");
  const std::vector<BackendCase> cases = cases_of(reading);
  EXPECT_EQ(reading.missing(), 0u);
  ASSERT_EQ(cases.size(), 2u);
  for (const BackendCase& each : cases) {
    EXPECT_NEAR(seconds(each.measured.end), 2e-6 * static_cast<double>(each.graph.ops().size()), 1e-7);  // the better of two repeats
    EXPECT_TRUE(each.gradients_equal);
    EXPECT_EQ(each.measured_peak, Bytes(1000));
    EXPECT_FALSE(each.peaks_equal());    // 1000 bytes hold no step
    EXPECT_NEAR(each.error(), 0, 0.02);  // every op takes 2 us in either
  }
}

TEST(PlanFolder, RefusesWhatNoMachinePrinted) {
  const Folder files;
  std::filesystem::create_directories(files.path());
  std::ofstream(files.path() + "/results.json") << R"({"device": "x", "plans": [{"plan": "a.plan"}]})";
  try {
    PlanFolder folder(files.path());
    FAIL() << "wanted an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("results.json"));
    EXPECT_THAT(error.what(), HasSubstr("wanted what stepsim_cuda_validate prints"));
  }
}

}  // namespace stepsim
