// Two tensor-parallel ranks on the CPU backend: they train the model that one rank trains, and draw their random numbers by the rule
// of Megatron-LM: the same outside the parallel region, different ones inside.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/backends/executed_step.h"

namespace stepsim {

namespace {

std::vector<float> observed_floats(const Execution& run) {
  std::vector<float> all;
  for (const Observation& each : run.observed) {
    const std::vector<float> values = floats(each);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<Execution> rank_runs(CpuBackend& backend, const TestStep& step, const std::vector<StorageId>& storages) {
  return backend.execute(step.graph(), step.ranks, {.poison = true, .observed = storages});
}

std::vector<StorageId> named(const TestStep& step, std::string_view name) { return storages_named(step.graph(), name); }

}  // namespace

TEST(CpuRanks, TwoRanksTrainTheModelOfOne) {
  CpuBackend backend;
  for (BackendModel model : {tiny_gpt(), tiny_llama()}) {
    SCOPED_TRACE(model.name);
    const ProgramOptions options{.seed = 3};
    const TestStep one = executable_step(model, backend_placement("none"), {.dropout = 0}, options);
    const TestStep two = executable_step(model, backend_placement("none"), {.dropout = 0, .tensor = 2}, options);
    const std::vector<Execution> of_one = rank_runs(backend, one, named(one, "loss"));
    const std::vector<Execution> of_two = rank_runs(backend, two, named(two, "loss"));
    ASSERT_EQ(of_two.size(), 2u);
    const std::vector<float> losses = observed_floats(of_one[0]), first = observed_floats(of_two[0]);
    EXPECT_EQ(first, observed_floats(of_two[1]));  // all ranks have the whole loss, with the same bits
    ASSERT_EQ(first.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(first[i], losses[i], 1e-4F * std::abs(losses[i]));
    // The norm over both ranks' parts of the gradients, what both hold counted once, is the norm of the whole.
    EXPECT_EQ(of_two[0].gradient_norm, of_two[1].gradient_norm);
    EXPECT_NEAR(of_two[0].gradient_norm, of_one[0].gradient_norm, 1e-4F * of_one[0].gradient_norm);
  }
}

TEST(CpuRanks, TheResidualStreamIsTheSameOnAllRanksWithDropout) {
  CpuBackend backend;
  const TestStep two = executable_step(tiny_gpt(), backend_placement("none"), {.dropout = 0.3, .tensor = 2});
  for (const char* same : {"embedding dropout mask", "attention residual dropout mask", "mlp residual dropout mask", "input"}) {
    const std::vector<Execution> runs = rank_runs(backend, two, named(two, same));
    ASSERT_FALSE(runs[0].observed.empty()) << same;
    for (std::size_t i = 0; i < runs[0].observed.size(); ++i) EXPECT_EQ(runs[0].observed[i].contents, runs[1].observed[i].contents) << same;
  }
  const std::vector<Execution> runs = rank_runs(backend, two, named(two, "attention dropout mask"));
  ASSERT_FALSE(runs[0].observed.empty());
  for (std::size_t i = 0; i < runs[0].observed.size(); ++i) EXPECT_NE(runs[0].observed[i].contents, runs[1].observed[i].contents);
}

TEST(CpuRanks, FullRecomputeRunsItsCollectivesAgainAndChangesNothing) {
  CpuBackend backend;
  const TestStep kept = executable_step(tiny_gpt(), backend_placement("none"), {.dropout = 0.3, .tensor = 2});
  const TestStep full = executable_step(tiny_gpt(), backend_placement("full"), {.dropout = 0.3, .tensor = 2});
  const std::vector<Execution> of_kept = rank_runs(backend, kept, compared_storages(kept.graph()));
  const std::vector<Execution> of_full = rank_runs(backend, full, compared_storages(full.graph()));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(of_kept[rank].observed.size(), of_full[rank].observed.size());
    for (std::size_t i = 0; i < of_kept[rank].observed.size(); ++i) {
      EXPECT_EQ(of_kept[rank].observed[i].contents, of_full[rank].observed[i].contents);
    }
  }
  const auto collectives = [](const OpGraph& graph) {
    std::size_t count = 0;
    for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) count += op_class(graph.work(OpId{op})) == OpClass::kCollective ? 1 : 0;
    return count;
  };
  EXPECT_GT(collectives(full.graph()), collectives(kept.graph()));
}

}  // namespace stepsim
