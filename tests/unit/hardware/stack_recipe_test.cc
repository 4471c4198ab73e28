#include "hardware/stack_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hardware/stack_spec.h"
#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::HasSubstr;

std::string written(const std::string& text) {
  const std::string path = testing::TempDir() + "stack_recipe.textproto";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

constexpr const char* kRecipe =
    "date: \"2026-11-30\"\n"
    "stack {\n"
    "  name: \"b200-fp8\" machine: \"b200\" precision: \"fp8\" framework: \"megatron-bridge\" framework: \"nemo@24.07\"\n"
    "  rows { file: \"published/results.csv\" format: \"results\" where: \"quality=A|B\" where: \"id!=B1\" }\n"
    "}\n";

TEST(StackRecipe, HasRowsAndWhoIsMeant) {
  const StackRecipe recipe = load_stack_recipe(written(kRecipe));
  EXPECT_EQ(recipe.date, "2026-11-30");
  ASSERT_EQ(recipe.stacks.size(), 1u);
  const StackFit& fit = recipe.stacks[0];
  EXPECT_EQ(fit.rows.at(0).where, (std::vector<std::string>{"quality=A|B", "id!=B1"}));
  EXPECT_FALSE(fit.fits_dense_only);
  EXPECT_TRUE(fit.holds_for("b200", "fp8", "megatron-bridge@26.04"));  // any version
  EXPECT_TRUE(fit.holds_for("b200", "fp8", "nemo@24.07"));
  EXPECT_FALSE(fit.holds_for("b200", "fp8", "nemo@25.01"));
  EXPECT_FALSE(fit.holds_for("b200", "mxfp8", "megatron-bridge@26.04"));
  EXPECT_FALSE(fit.holds_for("b300", "fp8", "megatron-bridge@26.04"));
}

TEST(StackRecipe, MistakesHaveTheirPlace) {
  const auto error = [](const std::string& text) { return error_of([&] { load_stack_recipe(written(text)); }); };
  EXPECT_THAT(error("stack { machine: \"b200\" precision: \"fp8\" }"), HasSubstr(":1:1: found name \"\", wanted that of a file"));
  EXPECT_THAT(error("stack { name: \"x\" machine: \"b20\" precision: \"fp8\" }"), HasSubstr("did you mean \"b200\"?"));
  EXPECT_THAT(error("stack { name: \"x\" machine: \"b200\" precision: \"fp8\" }"), HasSubstr("found no rows"));
  EXPECT_THAT(error("stack { name: \"x\" machine: \"b200\" }"), HasSubstr("found no precision"));
  EXPECT_THAT(error(kRecipe + std::string(kRecipe).substr(std::string(kRecipe).find("stack"))),
              HasSubstr("found stack \"b200-fp8\" twice"));
}

// The catalog's recipe loads; machines' recipes have no stacks.
TEST(StackRecipe, OfTheCatalog) {
  const StackRecipe recipe = load_stack_recipe(STEPSIM_SOURCE_DIR "/hardware/data/stack_calibration.textproto");
  EXPECT_GE(recipe.stacks.size(), 15u);
  EXPECT_TRUE(load_stack_recipe(STEPSIM_SOURCE_DIR "/hardware/data/calibration.textproto").stacks.empty());
  // No two stacks would be meant for one job.
  for (const StackFit& fit : recipe.stacks) {
    for (const StackFit& other : recipe.stacks) {
      if (&fit == &other) continue;
      for (const std::string& machine : other.machines) {
        for (const std::string& precision : other.precisions) {
          for (const std::string& framework : other.frameworks) EXPECT_FALSE(fit.holds_for(machine, precision, framework)) << fit.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepsim
