// Exchanges of context-parallel ranks: the ops of a ring and of an all-to-all, what each moves, what stays until backward, what runs beside
// attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/core_attention.h"
#include "models/placement_plan.h"
#include "sim/input_error.h"
#include "tests/unit/models/mixture_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;

// 8,192 tokens, hidden 4,096, 32 heads of 128, 8 for keys and values, over 4 ranks: 2,048 tokens a rank, 16 MiB a query or output, 8 MiB
// key and value together.
TemplateCase shared_llama(ContextExchange exchange) {
  TemplateCase llama = llama3_8b();
  llama.parallel.context = 4;
  llama.parallel.context_exchange = exchange;
  return llama;
}

std::vector<Attention> attention_works(const std::vector<TemplateOp>& ops) {
  std::vector<Attention> works;
  for (const TemplateOp& op : ops) {
    if (const auto* const work = std::get_if<Attention>(&op.work)) works.push_back(*work);
  }
  return works;
}

std::size_t index_of(const std::vector<TemplateOp>& ops, const std::string& name, std::size_t turn = 0) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == name && turn-- == 0) return i;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

std::int64_t traffic_of(const std::vector<TemplateOp>& ops, const std::string& name) {
  std::int64_t bytes = 0;
  for (const TemplateOp& op : ops) {
    if (op.name == name) bytes += memory_traffic(op.work).value;
  }
  return bytes;
}

TEST(ContextExchange, NothingSaidIsAllGather) {
  TemplateCase silent = llama3_8b();
  silent.parallel.context = 4;
  const LayerTemplate layer = silent.layer(), gathered = shared_llama(ContextExchange::kAllGather).layer();
  EXPECT_EQ(op_names(layer.forward), op_names(gathered.forward));
  EXPECT_EQ(op_names(layer.backward), op_names(gathered.backward));
  EXPECT_THAT(op_names(layer.forward), testing::Contains("key all-gather"));
}

// Step 0 is causal over 2,048 x 2,048 tokens, each of the three others 2,048 x 1,024 without a mask: 4 x 2,048^2 / 2 pairs, which are a
// quarter of 8,192^2 / 2.
TEST(ContextRing, StepsHaveEqualWork) {
  const LayerTemplate layer = shared_llama(ContextExchange::kRing).layer();
  for (const std::vector<TemplateOp>* ops : {&layer.forward, &layer.backward}) {
    std::vector<Attention> works = attention_works(*ops);
    ASSERT_EQ(works.size(), 4U);
    if (works.front().backward) std::reverse(works.begin(), works.end());  // the diagonal comes last
    EXPECT_TRUE(works[0].causal);
    EXPECT_EQ(works[0].keys, 2048);
    for (std::size_t step = 0; step < works.size(); ++step) {
      EXPECT_EQ(works[step].queries, 2048);
      EXPECT_EQ(works[step].causal, step == 0);
      EXPECT_EQ(works[step].keys, step == 0 ? 2048 : 1024);
      EXPECT_DOUBLE_EQ(arithmetic(works[step]).value, arithmetic(works[0]).value);
    }
  }
  EXPECT_DOUBLE_EQ(flops_of(layer.forward), flops_of(llama3_8b().layer().forward) / 4);
}

// 2 x 2,048 x 8 x 128 values of 2 bytes a step; backward sends gradients a step behind, in one transfer with keys and values.
TEST(ContextRing, SendsKeysAndValuesAlone) {
  TemplateCase llama = shared_llama(ContextExchange::kRing);
  const LayerTemplate layer = llama.layer();
  const std::string transfer = "key and value exchange: send 8388608 B, 4 ranks, stride 1";
  EXPECT_THAT(collectives(layer.forward, Group::kContext), ElementsAre(transfer, transfer, transfer));
  EXPECT_THAT(collectives(layer.backward, Group::kContext),
              ElementsAre(transfer, "key and value exchange with gradients: send 16777216 B, 4 ranks, stride 1",
                          "key and value exchange with gradients: send 16777216 B, 4 ranks, stride 1",
                          "key and value gradient exchange: send 8388608 B, 4 ranks, stride 1"));
  for (const std::vector<TemplateOp>* ops : {&layer.forward, &layer.backward}) {
    for (const TemplateOp& op : *ops) EXPECT_EQ(op.stream == OpStream::kContext, op.group == Group::kContext) << op.name;
  }
  llama.parallel.tensor = 2;
  EXPECT_EQ(collectives(llama.layer().forward, Group::kContext).front(), "key and value exchange: send 4194304 B, 4 ranks, stride 2");
}

// The transfers of the first two steps wait for the join alone, so they run beside the first attention; the third one's is launched behind
// that attention. Backward: each behind the sum of the step before, beside its own step's attention.
TEST(ContextRing, TransfersRunBesideAttention) {
  const LayerTemplate layer = shared_llama(ContextExchange::kRing).layer();
  const auto join = static_cast<std::int32_t>(index_of(layer.forward, "key and value join"));
  const auto first = static_cast<std::int32_t>(index_of(layer.forward, "attention"));
  EXPECT_THAT(layer.forward[index_of(layer.forward, "key and value exchange", 0)].after, ElementsAre(join));
  EXPECT_THAT(layer.forward[index_of(layer.forward, "key and value exchange", 1)].after, ElementsAre(join));
  EXPECT_THAT(layer.forward[index_of(layer.forward, "key and value exchange", 2)].after, ElementsAre(first));
  EXPECT_LT(index_of(layer.forward, "key and value exchange", 1), index_of(layer.forward, "attention"));
  const std::size_t second = index_of(layer.backward, "key and value exchange with gradients");
  EXPECT_LT(index_of(layer.backward, "key and value gradient sum", 0), second);
  EXPECT_LT(second, index_of(layer.backward, "attention backward, step 1"));
  const TemplateOp& attention = layer.backward[index_of(layer.backward, "attention backward, step 1")];
  const SlotIndex received = layer.backward[second].writes[1];  // gradients: what this step's attention does not read
  EXPECT_THAT(attention.reads, testing::Not(testing::Contains(received)));
  EXPECT_THAT(attention.reads, testing::Contains(layer.backward[index_of(layer.backward, "key and value exchange")].writes[0]));
}

// As much as without a ring: query, the last step's keys and values, output, log-sum-exps.
TEST(ContextRing, KeepsWhatAGatherKeeps) {
  const LayerTemplate ring = shared_llama(ContextExchange::kRing).layer();
  EXPECT_EQ(saved_bytes(ring).value, saved_bytes(llama3_8b().layer()).value / 4);
  EXPECT_TRUE(is_saved(ring, "key and value, step 3"));
  EXPECT_FALSE(is_saved(ring, "key"));
  for (const char* const partial : {"key and value, step 0", "attention output, step 0", "attention log-sum-exp, step 0"}) {
    EXPECT_GT(bytes_of(ring, partial), 0) << partial;
    EXPECT_FALSE(is_saved(ring, partial)) << partial;
  }
}

// Log-sum-exps of 32 heads x 2,048 queries x 4 B = 256 KiB: a copy (2 x), three corrections (3 x each). Outputs of 16 MiB with two
// statistics: the first scaled (2 outputs), three added (3 outputs each).
TEST(ContextRing, CorrectsPartialOutputs) {
  const LayerTemplate layer = shared_llama(ContextExchange::kRing).layer();
  constexpr std::int64_t kStatistics = 32 * 2048 * 4, kOutput = 2048 * 4096 * 2;
  EXPECT_EQ(traffic_of(layer.forward, "log-sum-exp copy"), 2 * kStatistics);
  EXPECT_EQ(traffic_of(layer.forward, "log-sum-exp correction"), 3 * 3 * kStatistics);
  EXPECT_EQ(traffic_of(layer.forward, "attention output correction"), (2 + 3 * 3) * kOutput + 4 * 2 * kStatistics);
  // Of gradients: queries 16 MiB; keys and values 4 MiB for half of the keys (sum 8 MiB) but on the diagonal.
  EXPECT_EQ(traffic_of(layer.backward, "query gradient sum"), (2 + 3 * 3) * kOutput);
  EXPECT_EQ(traffic_of(layer.backward, "key and value gradient sum"),
            (4 + 8) * (1 << 20) + 2 * (4 + 16) * (1 << 20) + (8 + 16) * (1 << 20));
}

// The last correction holds what lists of the function hold: four buffers, outputs and statistics.
TEST(ContextRing, PartsLiveUntilTheLastCorrection) {
  const LayerTemplate layer = shared_llama(ContextExchange::kRing).layer();
  const TemplateOp& last = layer.forward[index_of(layer.forward, "attention output correction", 3)];
  for (int step = 0; step < 4; ++step) {
    for (const char* const name : {"key and value, step ", "attention output, step ", "attention log-sum-exp, step "}) {
      EXPECT_THAT(last.holds, testing::Contains(slot_named(layer, name + std::to_string(step))));
    }
  }
}

TEST(ContextRing, CoreAttentionIsRunAgainWithItsRing) {
  const TemplateCase llama = shared_llama(ContextExchange::kRing);
  const LayerTemplate layer = llama.layer();
  PlacementPolicy policy;
  policy.granularity = RecomputeGranularity::kSelective;
  policy.modules = {"core_attn"};
  const PlacementPlan plan = make_plan(layer, 3, policy, llama.framework);
  EXPECT_EQ(plan_error(plan, layer, 3), "");
  std::vector<std::string> again;
  for (const PlanStep& step : plan.backward) {
    if (step.verb != PlanVerb::kForward || step.layer != 2) continue;
    for (std::int32_t op = step.first; op <= step.last; ++op) again.push_back(layer.forward[static_cast<std::size_t>(op)].name);
  }
  EXPECT_EQ(std::count(again.begin(), again.end(), "attention of received keys"), 3);
  EXPECT_THAT(again, testing::IsSupersetOf({"key and value join", "key and value exchange", "attention output correction"}));
  // The last buffer stays, as many bytes as this rank's own keys and values.
  EXPECT_EQ(bytes_without(layer, {"core_attn"}), saved_bytes(layer).value - 32 * 2048 * 4);
}

// Flash attention under context parallelism copies its operands where a micro-batch has several sequences.
TEST(ContextRing, CopiesOperandsOfSeveralSequences) {
  TemplateCase llama = shared_llama(ContextExchange::kRing);
  EXPECT_EQ(op_named(llama.layer().forward, "attention operands copy"), nullptr);
  llama.training.micro_batch = llama.training.global_batch = 2;
  const LayerTemplate layer = llama.layer();
  ASSERT_NE(op_named(layer.forward, "attention operands copy"), nullptr);
  EXPECT_EQ(saved_bytes(layer).value, saved_bytes(shared_llama(ContextExchange::kRing).layer()).value * 2);
  llama.training.attention = AttentionKind::kFused;
  EXPECT_EQ(op_named(llama.layer().forward, "attention operands copy"), nullptr);
}

// What has no ring gathers: unfused kernels, windows, sinks.
TEST(ContextRing, IsForOneKernelWithoutWindows) {
  TemplateCase llama = shared_llama(ContextExchange::kRing);
  EXPECT_NE(op_named(layer_of_kind(llama, {.window = 1024}).forward, "key all-gather"), nullptr);
  llama.training.attention = AttentionKind::kUnfused;
  EXPECT_NE(op_named(llama.layer().forward, "key all-gather"), nullptr);
  EXPECT_EQ(op_named(llama.layer().forward, "key and value join"), nullptr);
}

// Bidirectional: all queries over all keys of each rank.
TEST(ContextRing, WithoutAMaskEachStepIsWhole) {
  TemplateCase llama = shared_llama(ContextExchange::kRing);
  llama.model.causal = false;
  for (const Attention& work : attention_works(llama.layer().forward)) {
    EXPECT_EQ(work.keys, 2048);
    EXPECT_FALSE(work.causal);
  }
}

// 8 of 32 heads over all tokens. Query and output 16 MiB, key and value 4 MiB each.
TEST(ContextAllToAll, SharesHeads) {
  const LayerTemplate layer = shared_llama(ContextExchange::kAllToAll).layer();
  const std::vector<Attention> works = attention_works(layer.forward);
  ASSERT_EQ(works.size(), 1U);
  EXPECT_EQ(works[0].heads, 8);
  EXPECT_EQ(works[0].kv_heads, 2);
  EXPECT_EQ(works[0].queries, 8192);
  EXPECT_EQ(works[0].keys, 8192);
  EXPECT_DOUBLE_EQ(flops_of(layer.forward), flops_of(llama3_8b().layer().forward) / 4);
  const auto of = [](const std::string& name, int mebibytes) {
    return name + " all-to-all: all-to-all " + std::to_string(mebibytes << 20) + " B, 4 ranks, stride 1";
  };
  EXPECT_THAT(collectives(layer.forward, Group::kContext),
              ElementsAre(of("query, all tokens", 16), of("key, all tokens", 4), of("value, all tokens", 4), of("attention output", 16)));
  const std::vector<std::string> backward = collectives(layer.backward, Group::kContext);
  ASSERT_EQ(backward.size(), 5U);
  EXPECT_EQ(backward[0], of("attention output, all tokens again", 16));
  EXPECT_EQ(backward[2], of("query gradient, own tokens", 16));
  EXPECT_EQ(backward[3], of("key gradient, own tokens", 4));
}

// The key's copy does not wait for the query's exchange; attention waits for all three.
TEST(ContextAllToAll, ExchangesRunBesideCopies) {
  const LayerTemplate layer = shared_llama(ContextExchange::kAllToAll).layer();
  const std::size_t exchange = index_of(layer.forward, "query, all tokens all-to-all");
  const std::size_t copy = index_of(layer.forward, "split for ranks", 1);
  EXPECT_EQ(layer.forward[exchange].stream, OpStream::kContext);
  EXPECT_EQ(copy, exchange + 1);
  EXPECT_THAT(layer.forward[copy].reads, ElementsAre(slot_named(layer, "key")));
  EXPECT_EQ(traffic_of(layer.forward, "split for ranks"), 2 * (16 + 4 + 4 + 16) * (1LL << 20));
}

TEST(ContextAllToAll, KeepsExchangedOperands) {
  const LayerTemplate layer = shared_llama(ContextExchange::kAllToAll).layer();
  EXPECT_EQ(saved_bytes(layer).value, saved_bytes(llama3_8b().layer()).value / 4);
  EXPECT_TRUE(is_saved(layer, "query, all tokens"));
  EXPECT_TRUE(is_saved(layer, "attention output"));
  EXPECT_FALSE(is_saved(layer, "attention output, all tokens"));
  EXPECT_FALSE(is_saved(layer, "query"));
}

TEST(ContextAllToAll, UnfusedAttentionExchangesNoOutputInBackward) {
  TemplateCase llama = shared_llama(ContextExchange::kAllToAll);
  llama.training.attention = AttentionKind::kUnfused;
  const LayerTemplate layer = llama.layer();
  EXPECT_EQ(bytes_of(layer, "attention softmax"), 2LL * 8 * 8192 * 8192);
  EXPECT_EQ(collectives(layer.backward, Group::kContext).size(), 4U);
}

TEST(ContextAllToAll, RefusesHeadsThatCannotBeShared) {
  TemplateCase llama = shared_llama(ContextExchange::kAllToAll);
  llama.parallel.context = 16;
  try {
    llama.layer();
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "--cp-exchange: found alltoall with 32 heads and 8 key-value heads a tensor-parallel rank, wanted multiples of --cp 16");
  }
}

}  // namespace
}  // namespace stepsim
