#include "hardware/backends/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "hardware/backends/make_plan.h"
#include "tests/backends/executed_step.h"

namespace stepsim {

using testing::HasSubstr;

namespace {

ExecutionPlan plan_of(const BackendModel& model, std::string_view placement, const BackendRecipe& recipe = {}) {
  const TestStep step = executable_step(model, backend_placement(placement), recipe);
  return execution_plan(step.graph(), step.ranks.front(), compared_storages(step.graph()));
}

std::string error_of(const std::string& text) {
  try {
    parse_plan(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(PlanText, IsReadBackWhole) {
  for (const BackendModel& model : {tiny_gpt(), tiny_llama()}) {
    for (const char* placement : {"none", "full", "offload, prefetch"}) {
      for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
        const ExecutionPlan plan = plan_of(model, placement, {.precision = precision});
        const std::string text = plan_text(plan);
        const ExecutionPlan read = parse_plan(text);
        EXPECT_EQ(plan_text(read), text);
        EXPECT_EQ(read.ops.size(), plan.ops.size());
        EXPECT_EQ(read.streams, plan.streams);
        EXPECT_EQ(read.adamw.epsilon, plan.adamw.epsilon);
        for (std::size_t part = 0; part < plan.residents.size(); ++part) {
          EXPECT_EQ(resident_values(read.residents[part]), resident_values(plan.residents[part]));
        }
      }
    }
  }
}

TEST(PlanText, EveryStorageThatEndsIsClaimedAndReleasedOnce) {
  const TestStep step = executable_step(tiny_gpt(3), backend_placement("offload, prefetch"));
  const ExecutionPlan plan = execution_plan(step.graph(), step.ranks.front());
  std::vector<int> claimed(plan.storages.size(), 0), released(plan.storages.size(), 0);
  for (const PlannedOp& op : plan.ops) {
    for (const StorageId storage : op.claims) ++claimed[at(storage.index)];
    for (const StorageId storage : op.releases) ++released[at(storage.index)];
  }
  for (std::size_t i = 0; i < plan.storages.size(); ++i) {
    EXPECT_EQ(claimed[i], plan.storages[i].resident ? 0 : 1);
    EXPECT_EQ(released[i], step.graph().storages()[i].live_at_end ? 0 : 1);
  }
}

TEST(PlanText, WhatIsNoPlanIsRefusedWithThePlace) {
  const std::string text = plan_text(plan_of(tiny_gpt(1), "none"));
  EXPECT_THAT(error_of(""), HasSubstr("found the end"));
  EXPECT_THAT(error_of("stepsim-plan-2 1"), HasSubstr("word 1: found stepsim-plan-2, wanted stepsim-plan-1"));
  EXPECT_THAT(error_of("stepsim-plan-1 x"), HasSubstr("word 2: found x, wanted a whole number"));
  for (std::size_t length = 0; length + 3 < text.size(); length += 1 + text.size() / 200) {  // cut short anywhere
    EXPECT_NE(error_of(text.substr(0, length)), "") << length;
  }
  EXPECT_THAT(error_of(text + " 1"), HasSubstr("found 1, wanted the end"));
  EXPECT_THAT(error_of("stepsim-plan-1 0 "), HasSubstr("wanted a step of the optimizer"));
  ExecutionPlan twice = plan_of(tiny_gpt(1), "none");
  twice.ops[4] = twice.ops[3];
  EXPECT_THAT(error_of(plan_text(twice)), HasSubstr("wanted an op that was not there yet"));
  ExecutionPlan ahead = plan_of(tiny_gpt(1), "none");
  ahead.ops[4].after_end = {7};
  EXPECT_THAT(error_of(plan_text(ahead)), HasSubstr("found 7, wanted an op that stands before"));
  ExecutionPlan again = plan_of(tiny_gpt(1), "none");
  again.ops[4].claims = again.ops[3].claims;
  EXPECT_THAT(error_of(plan_text(again)), HasSubstr("wanted a storage that is not claimed yet"));
  std::string other = text;  // a storage that is not there
  other.replace(other.rfind('\n', other.size() - 2), std::string::npos, "\n1 100000\n");
  EXPECT_THAT(error_of(other), HasSubstr("found 100000"));
}

}  // namespace stepsim
