// The recipe of the catalog: what it says, and its mistakes with their places.
#include "hardware/calibration_recipe.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "hardware/machine_spec.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

std::string error(const std::string& text) {
  const std::string file = ::testing::TempDir() + "recipe.textproto";
  std::ofstream(file) << text;
  const std::string what = error_of([&] { load_calibration_recipe(file); });
  std::remove(file.c_str());
  return what.substr(what.find("recipe.textproto") == std::string::npos ? 0 : what.find("recipe.textproto"));
}

// Every machine whose file has constants of the recipe, and only those.
TEST(CalibrationRecipe, OfTheCatalog) {
  const std::vector<CalibrationMachine> machines = load_calibration_recipe(STEPSIM_SOURCE_DIR "/hardware/data/calibration.textproto");
  std::set<std::string> names;
  for (const CalibrationMachine& machine : machines) {
    names.insert(machine.name);
    EXPECT_FALSE(machine.fits.empty()) << machine.name;
    for (const CalibrationFit& fit : machine.fits) EXPECT_FALSE(fit.conditions.empty()) << machine.name;
  }
  for (const std::string& name : gpu_names()) EXPECT_EQ(names.count(name) > 0, !load_gpu(name).fits.empty()) << name;
  EXPECT_EQ(names.size(), 13u);
}

TEST(CalibrationRecipe, Mistakes) {
  EXPECT_EQ(error("machine { name: \"h100-sxm-80g\" }"),
            "recipe.textproto:1:1: found \"h100-sxm-80g\", wanted a catalog machine, did you mean \"h100-sxm-80gb\"?");
  EXPECT_EQ(error("machine {\n  name: \"l4\"\n  fit { op_class: \"gem\" }\n}"),
            "recipe.textproto:3:3: found op_class \"gem\", wanted gemm, weight_gradient, attention, attention_table, memory or collective");
  EXPECT_EQ(error("machine {\n  name: \"l4\"\n  fit { op_class: \"gemm\" }\n}"),
            "recipe.textproto:3:3: found no rows, wanted rows { file: \"kernels/...\" gpu: \"...\" }");
  EXPECT_EQ(error("machine {\n  name: \"l4\"\n  fit { op_class: \"attention\" rows { file: \"a\" } }\n}"),
            "recipe.textproto:3:3: found no kernel, wanted one such as FLASH2");
  EXPECT_EQ(error("machine {\n  name: \"l4\"\n  fit { op_class: \"memory\" part: \"gather\" rows { file: \"a\" } }\n}"),
            "recipe.textproto:3:3: found part \"gather\", wanted fused, norm or softmax");
  EXPECT_NE(error("").find("found no machine, wanted at least one"), std::string::npos);
}

}  // namespace
}  // namespace stepsim
