// What a program must be to be executed, and what the writer of programs makes of a built step.
#include "hardware/backends/kernel_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "hardware/backends/storage_lifetimes.h"
#include "sim/input_error.h"
#include "tests/backends/executed_step.h"

namespace stepsim {

using testing::HasSubstr;

TEST(KernelProgram, OfEveryPlacementFitsItsGraph) {
  for (const BackendModel& model : {tiny_gpt(3), tiny_llama(3)}) {
    for (const std::int32_t ranks : {1, 2}) {
      for (const BackendPlacement& placement : backend_placements()) {
        const TestStep step = executable_step(model, placement.policy, {.dropout = 0.1, .tensor = ranks});
        for (const KernelProgram& program : step.ranks) {
          EXPECT_EQ(program_error(step.graph(), program).value_or(""), "") << model.name << ", " << placement.name << ", " << ranks;
        }
      }
    }
  }
}

TEST(KernelProgram, OfBf16HasCastsAndMasterWeights) {
  const TestStep step = executable_step(tiny_llama(), backend_placement("none"), {.precision = Precision::kBf16});
  EXPECT_EQ(program_error(step.graph(), step.ranks.front()).value_or(""), "");
  std::size_t casts = 0, masters = 0;
  for (const KernelCall& call : step.ranks.front().calls) {
    casts += std::holds_alternative<WidenCall>(call) || std::holds_alternative<NarrowCall>(call) ? 1 : 0;
    if (const auto* update = std::get_if<AdamWCall>(&call)) masters += update->master ? 1 : 0;
  }
  EXPECT_EQ(casts, 2u);
  EXPECT_EQ(masters, 4u);  // the embedding, two layers, the head
}

TEST(KernelProgram, ErrorsNameTheOp) {
  const TestStep step = executable_step(tiny_gpt(), backend_placement("none"));
  const auto error_with = [&](const auto& change) {
    KernelProgram program = step.ranks.front();
    change(program);
    return program_error(step.graph(), program).value_or("");
  };
  EXPECT_THAT(error_with([](KernelProgram& program) { program.calls.pop_back(); }), HasSubstr("numbers of ops differ"));
  EXPECT_THAT(error_with([](KernelProgram& program) { program.calls[3] = NoCall{}; }), HasSubstr("norm 1"));
  EXPECT_THAT(error_with([](KernelProgram& program) { std::get<NormCall>(program.calls[3]).output.size += Bytes(1 << 20); }),
              HasSubstr("reaches beyond"));
  EXPECT_THAT(error_with([](KernelProgram& program) { std::get<NormCall>(program.calls[3]).gain.storage = StorageId{0}; }),
              HasSubstr("neither reads nor writes"));
  EXPECT_THAT(error_with([](KernelProgram& program) { program.residents.front().values.pop_back(); }), HasSubstr("do not fit"));
  EXPECT_THAT(error_with([](KernelProgram& program) { program.batch.front().values.pop_back(); }), HasSubstr("do not fit"));
}

TEST(KernelProgram, OpsWithoutAKernelAreRefusedByName) {
  StepRequest request = backend_request(tiny_gpt(), {});
  request.model.activation = Activation::kSquaredRelu;
  const BuiltStep built = build_step(request);
  try {
    step_calls(request, built.graph, {});
    FAIL() << "wanted an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("activation"));
  }
}

// The first write of a gradient overwrites, later ones add: of a tied table the head's product is first, the embedding's rows are added.
TEST(KernelProgram, GradientsAreOverwrittenOnceAndThenAddedTo) {
  BackendModel model = tiny_gpt();
  StepRequest request = backend_request(model, {});
  request.training.global_batch = 2 * request.training.micro_batch;
  const BuiltStep built = build_step(request);
  const KernelProgram program = step_calls(request, built.graph, {});
  std::vector<bool> embedding, head;
  for (std::size_t op = 0; op < program.calls.size(); ++op) {
    const std::string_view kind = built.graph.label(built.graph.ops()[op].kind);
    if (kind == "embedding gradient") embedding.push_back(std::get<EmbeddingGradientCall>(program.calls[op]).accumulate);
    if (kind == "head weight gradient") head.push_back(std::get<ProductCall>(program.calls[op]).accumulate);
  }
  EXPECT_EQ(head, (std::vector<bool>{false, true}));
  EXPECT_EQ(embedding, (std::vector<bool>{true, true}));
}

// Ranks hold parts of one model: two halves of a column-parallel matrix are the rows of the whole, in order.
TEST(KernelProgram, RanksHoldPartsOfOneModel) {
  const TestStep one = executable_step(tiny_gpt(), {}), two = executable_step(tiny_gpt(), {}, {.tensor = 2});
  const auto values = [](const TestStep& step, std::size_t rank, std::string_view kind) {
    for (std::size_t op = 0; op < step.graph().ops().size(); ++op) {
      if (step.graph().label(step.graph().ops()[op].kind) != kind) continue;
      const Tensor& weight = std::get<ProductCall>(step.ranks[rank].calls[op]).b.tensor;
      for (const ResidentPart& part : step.ranks[rank].residents) {
        if (part.tensor.storage == weight.storage && part.tensor.offset == weight.offset) return part.values;
      }
    }
    return std::vector<float>();
  };
  std::vector<float> rows = values(two, 0, "fc1");
  const std::vector<float> second = values(two, 1, "fc1");
  rows.insert(rows.end(), second.begin(), second.end());
  EXPECT_EQ(rows, values(one, 0, "fc1"));
  EXPECT_FALSE(rows.empty());
  // fc2 is split by columns: 192 inputs, 96 for each rank.
  const std::vector<float> whole = values(one, 0, "fc2"), left = values(two, 0, "fc2"), right = values(two, 1, "fc2");
  ASSERT_EQ(left.size() + right.size(), whole.size());
  EXPECT_EQ(left[0], whole[0]);
  EXPECT_EQ(right[0], whole[96]);
  EXPECT_EQ(left[96], whole[192]);  // the second row
}

TEST(StorageLifetimes, EveryStorageIsClaimedOnceAndReleasedByItsLastHolder) {
  const TestStep step = executable_step(tiny_gpt(3), backend_placement("offload, prefetch"));
  const StorageLifetimes lifetimes(step.graph());
  std::set<StorageId> claimed;
  for (std::int32_t op = 0; at(op) < step.graph().ops().size(); ++op) {
    for (const StorageId storage : lifetimes.claimed_by(OpId{op})) {
      EXPECT_TRUE(claimed.insert(storage).second);
      EXPECT_FALSE(step.graph().storages()[at(storage.index)].live_at_start);
    }
  }
  EXPECT_EQ(claimed.size() + lifetimes.residents().size(), step.graph().storages().size());
  for (std::int32_t id = 0; at(id) < step.graph().storages().size(); ++id) {
    EXPECT_EQ(lifetimes.holders()[at(id)] == 0, step.graph().storages()[at(id)].live_at_end);
  }
}

}  // namespace stepsim
