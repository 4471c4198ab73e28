// The ops of a layer, the embedding and the head: which kernels run in which order, what they move and multiply, parameters a device.
#include "models/layer_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "models/slot_table.h"
#include "sim/input_error.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TemplateCase palm_540b() {  // arXiv 2204.02311 Table 1: parallel block, one key-value head, SwiGLU, no biases
  TemplateCase palm = llama_case(118, 18432, 48, 73728);
  palm.model.name = "palm";
  palm.model.kv_heads = 1;
  palm.model.head_dim = 256;
  palm.model.vocab = 256000;
  palm.model.normalization = Normalization::kLayerNorm;
  palm.model.parallel_block = true;
  palm.model.tied_head = true;
  palm.training.sequence = 2048;
  return palm;
}

// Every model under every choice that changes its ops.
std::vector<TemplateCase> all_cases() {
  std::vector<TemplateCase> cases;
  for (const TemplateCase& base : {megatron_22b(), llama3_8b(), palm_540b()}) {
    for (int bits = 0; bits < 1 << 9; ++bits) {
      const auto bit = [bits](int place) { return (bits >> place & 1) != 0; };
      TemplateCase each = base;
      each.training.attention = bit(0) ? AttentionKind::kUnfused : AttentionKind::kFlash;
      each.training.dropout = bit(1) ? 0.1 : 0.0;
      each.parallel = {.tensor = bit(2) ? 8 : 1, .sequence_parallel = bit(3)};
      each.framework.fused_bias_activation = each.framework.fused_gate_up = !bit(4);
      each.framework.fused_bias_dropout_add = each.framework.fused_softmax = each.framework.fused_rotary = !bit(4);
      each.framework.saves_norm_statistics = each.framework.saves_dropout_masks = bit(5);
      each.framework.sequence_parallel_gather_again = each.framework.backward_all_reduce_overlaps_weight_gradient = bit(6);
      each.framework.loss_in_place = each.framework.logits_fp32 = bit(7);
      each.model.qk_norm = bit(8);
      each.training.loss = bit(0) ? LossKind::kPlain : (bit(1) ? LossKind::kFused : LossKind::kChunked);
      each.training.loss_chunks = 3;
      cases.push_back(each);
    }
  }
  return cases;
}

std::vector<LayerTemplate> templates_of(const TemplateCase& each) { return {each.embedding(), each.layer(), each.head()}; }

TEST(LayerTemplate, EndsAndSizesOfEveryCase) {
  for (const TemplateCase& each : all_cases()) {
    for (const LayerTemplate& part : templates_of(each)) {
      std::int64_t parameters = 0;
      for (const Slot& slot : part.slots) {
        std::int64_t elements = 1;
        for (const std::int64_t extent : slot.shape) elements *= extent;
        ASSERT_EQ(slot.size, size_of(elements, slot.dtype)) << slot.name;
        if (slot.kind == SlotKind::kWeight) parameters += elements;
      }
      const bool tied = part.name == "head" && each.model.tied_head;
      const std::int64_t shared = tied ? slot_at(part, slot_named(part, "word embedding weight")).size.value / 2 : 0;
      ASSERT_EQ(part.parameters, parameters - shared);
    }
    const LayerTemplate layer = each.layer();
    ASSERT_EQ(slot_at(layer, layer.input).shape, slot_at(layer, layer.output).shape);
    ASSERT_EQ(slot_at(layer, layer.output_gradient).shape, slot_at(layer, layer.output).shape);
    ASSERT_EQ(slot_at(layer, layer.input_gradient).shape, slot_at(layer, layer.input).shape);
    ASSERT_EQ(slot_at(each.embedding(), each.embedding().output).shape, slot_at(layer, layer.input).shape);
    ASSERT_EQ(slot_at(each.head(), each.head().input_gradient).shape, slot_at(layer, layer.output).shape);
  }
}

TEST(LayerTemplate, EverySlotIsWrittenOnceAndBeforeItIsUsed) {
  for (const TemplateCase& each : all_cases()) {
    for (const LayerTemplate& part : templates_of(each)) {
      std::set<SlotIndex> there;
      for (std::size_t slot = 0; slot < part.slots.size(); ++slot) {
        const SlotKind kind = part.slots[slot].kind;
        const bool given =
            kind == SlotKind::kInput || kind == SlotKind::kWeight || kind == SlotKind::kWeightGradient || kind == SlotKind::kBatch;
        if (given && part.slots[slot].view_of == kNoSlot) there.insert(static_cast<SlotIndex>(slot));
      }
      for (const auto* ops : {&part.forward, &part.backward}) {
        for (const TemplateOp& op : *ops) {
          for (const auto* used : {&op.reads, &op.updates, &op.holds}) {
            for (const SlotIndex slot : *used) {
              const SlotIndex view_of = slot_at(part, slot).view_of;
              ASSERT_TRUE(there.count(view_of == kNoSlot ? slot : view_of)) << op.name << " uses " << slot_at(part, slot).name;
            }
          }
          for (const SlotIndex slot : op.writes)
            ASSERT_TRUE(there.insert(slot).second) << op.name << " writes " << slot_at(part, slot).name;
        }
      }
    }
  }
}

TEST(LayerTemplate, EveryWeightGetsItsGradientOnce) {
  for (const TemplateCase& each : all_cases()) {
    for (const LayerTemplate& part : templates_of(each)) {
      const bool chunked = part.name == "head" && each.training.loss == LossKind::kChunked;
      for (std::size_t slot = 0; slot < part.slots.size(); ++slot) {
        if (part.slots[slot].kind != SlotKind::kWeightGradient) continue;
        int updates = 0;
        for (const auto* ops : {&part.forward, &part.backward}) {
          for (const TemplateOp& op : *ops)
            updates += static_cast<int>(std::count(op.updates.begin(), op.updates.end(), static_cast<SlotIndex>(slot)));
        }
        const bool matrix = part.slots[slot].shape.size() == 2;
        ASSERT_EQ(updates, chunked && matrix ? 3 : 1) << part.name << " " << part.slots[slot].name;
      }
    }
  }
}

TEST(LayerTemplate, SavedSlotsAgreeWithTheSlotTable) {
  for (const TemplateCase& each : all_cases()) {
    for (const LayerTemplate& part : templates_of(each)) {
      const SlotTable table(part);
      std::vector<SlotIndex> saved;
      for (std::size_t slot = 0; slot < table.saved.size(); ++slot) {
        if (table.saved[slot]) saved.push_back(static_cast<SlotIndex>(slot));
      }
      ASSERT_EQ(saved_slots(part), saved) << part.name;
    }
  }
}

TEST(LayerTemplate, TransientsAreWorkspaceAndSavedSlotsActivations) {
  const LayerTemplate layer = gpt3_175b().layer();
  EXPECT_EQ(slot_at(layer, slot_named(layer, "attention scores")).role, Role::kWorkspace);
  EXPECT_EQ(slot_at(layer, slot_named(layer, "attention softmax")).role, Role::kActivations);
  EXPECT_EQ(slot_at(layer, slot_named(layer, "key of qkv")).role, Role::kActivations);
  EXPECT_EQ(slot_at(layer, layer.output).role, Role::kActivations);
  EXPECT_EQ(slot_at(layer, layer.input_gradient).role, Role::kActivationGradients);
}

TEST(LayerOps, GptKernelsInOrder) {
  const LayerTemplate layer = megatron_22b().layer();
  EXPECT_THAT(op_names(layer.forward),
              ElementsAre("norm 1", "qkv", "qkv bias", "attention scores", "attention softmax", "attention dropout",
                          "attention over values", "attention output transpose", "attention projection", "attention residual", "norm 2",
                          "fc1", "activation", "fc2", "mlp residual"));
  EXPECT_THAT(op_names(layer.backward),
              ElementsAre("mlp residual backward", "fc2 input gradient", "fc2 weight gradient", "activation backward", "fc1 input gradient",
                          "fc1 weight gradient", "norm 2 backward", "norm 2 weight gradient", "residual gradient sum",
                          "attention residual backward", "attention projection input gradient", "attention projection weight gradient",
                          "attention probabilities gradient", "value gradient", "attention dropout backward", "attention softmax backward",
                          "query gradient", "key gradient", "qkv gradient concatenation", "qkv bias gradient", "qkv input gradient",
                          "qkv weight gradient", "norm 1 backward", "norm 1 weight gradient", "residual gradient sum"));
}

TEST(LayerOps, LlamaKernelsInOrder) {
  const LayerTemplate layer = llama3_8b().layer();
  EXPECT_THAT(op_names(layer.forward), ElementsAre("norm 1", "qkv", "rotary", "attention", "attention projection", "attention residual",
                                                   "norm 2", "gate and up", "activation", "down", "mlp residual"));
  EXPECT_THAT(
      op_names(layer.backward),
      ElementsAre("down input gradient", "down weight gradient", "activation backward", "gate and up input gradient",
                  "gate and up weight gradient", "norm 2 backward", "norm 2 weight gradient", "residual gradient sum",
                  "attention projection input gradient", "attention projection weight gradient", "attention backward", "rotary backward",
                  "qkv input gradient", "qkv weight gradient", "norm 1 backward", "norm 1 weight gradient", "residual gradient sum"));
}

TEST(LayerOps, PalmHasOneNormAndOneSum) {
  TemplateCase palm = palm_540b();
  palm.parallel.tensor = 4;
  const LayerTemplate layer = palm.layer();
  EXPECT_THAT(op_names(layer.forward), ElementsAre("norm", "qkv", "rotary", "attention", "attention projection", "gate and up",
                                                   "activation", "down", "branch sum", "branch sum all-reduce", "residual"));
  EXPECT_THAT(op_names(layer.backward),
              ElementsAre("down input gradient", "down weight gradient", "activation backward", "gate and up input gradient",
                          "gate and up weight gradient", "attention projection input gradient", "attention projection weight gradient",
                          "attention backward", "rotary backward", "qkv input gradient", "input gradient sum", "qkv gradient all-reduce",
                          "qkv weight gradient", "norm backward", "norm weight gradient", "residual gradient sum"));
}

// Bytes of an element that the op reads and writes, the few bytes of weights apart (below half a percent).
void expect_traffic(const std::vector<TemplateOp>& ops, const std::string& name, std::int64_t elements, double read, double written) {
  const TemplateOp* op = op_named(ops, name);
  ASSERT_NE(op, nullptr) << name;
  const auto* work = std::get_if<MemoryBound>(&op->work);
  ASSERT_NE(work, nullptr) << name;
  EXPECT_NEAR(static_cast<double>(work->read.value) / static_cast<double>(elements), read, 0.005 * read) << name;
  EXPECT_NEAR(static_cast<double>(work->written.value) / static_cast<double>(elements), written, 0.005 * written) << name;
}

TEST(LayerOps, TrafficOfMemoryBoundKernels) {
  const LayerTemplate layer = megatron_22b().layer();
  const std::int64_t tokens = 4 * 2048, hidden = tokens * 6144, ffn = 4 * hidden, scores = 64LL * 2048 * tokens;
  expect_traffic(layer.forward, "norm 1", hidden, 2, 2);
  expect_traffic(layer.forward, "qkv bias", hidden, 6, 6);
  expect_traffic(layer.forward, "attention softmax", scores, 2, 2);
  expect_traffic(layer.forward, "attention dropout", scores, 2, 3);
  expect_traffic(layer.forward, "attention residual", hidden, 4, 3);  // branch, residual; output, mask
  expect_traffic(layer.forward, "activation", ffn, 2, 2);
  expect_traffic(layer.backward, "mlp residual backward", hidden, 5, 2);  // dy, mask, and dx again for the bias sum; dx
  expect_traffic(layer.backward, "activation backward", ffn, 6, 2);       // dy, x, and dx again for the bias sum; dx
  expect_traffic(layer.backward, "norm 2 backward", hidden, 4, 2);
  expect_traffic(layer.backward, "residual gradient sum", hidden, 4, 2);
  expect_traffic(layer.backward, "attention dropout backward", scores, 3, 2);
  expect_traffic(layer.backward, "attention softmax backward", scores, 4, 2);
  expect_traffic(layer.backward, "qkv gradient concatenation", hidden, 6, 6);
}

TEST(LayerOps, EagerKernelsMoveMore) {
  TemplateCase gpt = megatron_22b();
  gpt.framework.fused_softmax = gpt.framework.fused_bias_dropout_add = gpt.framework.fused_bias_activation = false;
  const LayerTemplate layer = gpt.layer();
  const std::int64_t hidden = 4LL * 2048 * 6144, scores = 64LL * 2048 * 4 * 2048;
  expect_traffic(layer.forward, "attention softmax", scores, 6, 6);   // scale, mask, softmax
  expect_traffic(layer.forward, "attention residual", hidden, 8, 7);  // bias 2+2, dropout 2+3, add 4+2
  EXPECT_NE(op_named(layer.forward, "fc1 bias"), nullptr);
  TemplateCase llama = llama3_8b();
  llama.framework.fused_rotary = false;
  const std::int64_t rotated = 8192LL * 40 * 128;  // q and k; v stays where it is
  expect_traffic(llama.layer().forward, "rotary", 1, static_cast<double>(rotated * 11), static_cast<double>(rotated * 9));
}

// --- Arithmetic.

TEST(LayerFlops, GptStepIsEquation7OfThePaper) {
  for (const TemplateCase& gpt : {megatron_22b(), gpt3_175b(), mt_nlg_530b(), megatron_1t()}) {
    const double L = static_cast<double>(gpt.model.layers), h = static_cast<double>(gpt.model.hidden);
    const double s = 2048, B = static_cast<double>(gpt.training.micro_batch), v = 51200;
    const LayerTemplate layer = gpt.layer(), head = gpt.head();
    // 72BLsh^2(1 + s/6h + v/12hL) = L layers of 3 * (24Bsh^2 + 4Bs^2h) and a head of 3 * 2Bshv: integers below 2^53 times powers of two.
    EXPECT_EQ(flops_of(layer.forward), 24 * B * s * h * h + 4 * B * s * s * h);
    EXPECT_EQ(flops_of(layer.backward), 2 * flops_of(layer.forward));
    EXPECT_EQ(flops_of(head.forward), 2 * B * s * h * v);
    EXPECT_EQ(flops_of(head.backward), 4 * B * s * h * v);
    const double step = L * (flops_of(layer.forward) + flops_of(layer.backward)) + flops_of(head.forward) + flops_of(head.backward);
    EXPECT_DOUBLE_EQ(step, 72 * B * L * s * h * h * (1 + s / (6 * h) + v / (12 * h * L)));
    EXPECT_EQ(flops_of(gpt.embedding().forward) + flops_of(gpt.embedding().backward), 0);
  }
}

TEST(LayerFlops, FlashAttentionIsCausal) {
  const LayerTemplate layer = llama3_8b().layer();
  // A token: 2h(nq + 2nkv)d + 2 nq d h + 6hf of products and 4 s nq d / 2 of attention; backward 2 and 2.5 times that.
  const double tokens = 8192, products = 2.0 * 4096 * 6144 + 2.0 * 4096 * 4096 + 6.0 * 4096 * 14336, attention = 2.0 * 8192 * 4096;
  EXPECT_EQ(flops_of(layer.forward), tokens * (products + attention));
  EXPECT_EQ(flops_of(layer.backward), tokens * (2 * products + 2.5 * attention));
  // spec/published_facts.md section 4: full recomputation of the layer costs 503 MFLOP a token.
  EXPECT_EQ(products + attention, 503'316'480);
}

TEST(LayerFlops, RanksShareTheProducts) {
  for (TemplateCase each : {megatron_22b(), llama3_8b()}) {
    const double forward = flops_of(each.layer().forward), backward = flops_of(each.layer().backward);
    each.parallel.tensor = 8;
    EXPECT_EQ(8 * flops_of(each.layer().forward), forward);
    EXPECT_EQ(8 * flops_of(each.layer().backward), backward);
    each.parallel.sequence_parallel = true;
    EXPECT_EQ(8 * flops_of(each.layer().forward), forward);
  }
}

TEST(LayerFlops, ChunkedLossDoesTheSameProducts) {
  TemplateCase llama = llama3_8b();
  const double plain = flops_of(llama.head().forward) + flops_of(llama.head().backward);
  llama.training.loss = LossKind::kChunked;
  llama.training.loss_chunks = 7;  // 8192 = 7 * 1170 + 2
  EXPECT_EQ(flops_of(llama.head().forward) + flops_of(llama.head().backward), plain);
}

// --- Collectives.

struct Call {
  std::string name;
  CollectiveKind kind;
  std::int64_t message;
  OpStream stream;
  bool operator==(const Call&) const = default;
};

std::vector<Call> collectives_of(const std::vector<TemplateOp>& ops) {
  std::vector<Call> calls;
  for (const TemplateOp& op : ops) {
    const auto* work = std::get_if<Collective>(&op.work);
    if (work == nullptr) continue;
    EXPECT_EQ(op.group, Group::kTensor);
    calls.push_back({op.name, work->kind, work->message.value, op.stream});
  }
  return calls;
}

TEST(LayerCollectives, NoneWithOneRank) {
  for (const TemplateCase& each : {megatron_22b(), llama3_8b(), palm_540b()}) {
    for (const LayerTemplate& part : templates_of(each)) {
      EXPECT_TRUE(collectives_of(part.forward).empty());
      EXPECT_TRUE(collectives_of(part.backward).empty());
    }
  }
}

TEST(LayerCollectives, TensorParallelism) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel.tensor = 8;
  const std::int64_t whole = 2LL * 4 * 2048 * 6144;
  constexpr CollectiveKind kReduce = CollectiveKind::kAllReduce;
  EXPECT_THAT(collectives_of(gpt.layer().forward),
              ElementsAre(Call{"attention projection output all-reduce", kReduce, whole, OpStream::kCompute},
                          Call{"mlp output all-reduce", kReduce, whole, OpStream::kCompute}));
  EXPECT_THAT(collectives_of(gpt.layer().backward), ElementsAre(Call{"fc1 gradient all-reduce", kReduce, whole, OpStream::kTensor},
                                                                Call{"qkv gradient all-reduce", kReduce, whole, OpStream::kTensor}));
  gpt.framework.backward_all_reduce_overlaps_weight_gradient = false;
  EXPECT_THAT(collectives_of(gpt.layer().backward), ElementsAre(Call{"fc1 gradient all-reduce", kReduce, whole, OpStream::kCompute},
                                                                Call{"qkv gradient all-reduce", kReduce, whole, OpStream::kCompute}));
}

TEST(LayerCollectives, SequenceParallelism) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel = {.tensor = 8, .sequence_parallel = true};
  const std::int64_t whole = 2LL * 4 * 2048 * 6144;
  constexpr CollectiveKind kGather = CollectiveKind::kAllGather, kScatter = CollectiveKind::kReduceScatter;
  constexpr OpStream kCompute = OpStream::kCompute, kTensor = OpStream::kTensor;
  EXPECT_THAT(collectives_of(gpt.layer().forward),
              ElementsAre(Call{"norm 1 output all-gather", kGather, whole, kCompute},
                          Call{"attention projection output reduce-scatter", kScatter, whole, kCompute},
                          Call{"norm 2 output all-gather", kGather, whole, kCompute},
                          Call{"mlp output reduce-scatter", kScatter, whole, kCompute}));
  // The output's gradient is gathered first; the input again beside its gradient, which is scattered beside that of the weight.
  EXPECT_THAT(
      collectives_of(gpt.layer().backward),
      ElementsAre(Call{"mlp output gradient all-gather", kGather, whole, kCompute},
                  Call{"norm 2 output all-gather", kGather, whole, kTensor}, Call{"fc1 gradient reduce-scatter", kScatter, whole, kTensor},
                  Call{"attention projection output gradient all-gather", kGather, whole, kCompute},
                  Call{"norm 1 output all-gather", kGather, whole, kTensor},
                  Call{"qkv gradient reduce-scatter", kScatter, whole, kTensor}));
}

TEST(LayerCollectives, CommunicationWaitsForWhatWasLaunchedBefore) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel = {.tensor = 8, .sequence_parallel = true};
  const LayerTemplate layer = gpt.layer();
  for (std::size_t i = 0; i < layer.backward.size(); ++i) {
    if (layer.backward[i].stream != OpStream::kTensor) continue;
    ASSERT_EQ(layer.backward[i].after.size(), 1U);
    const auto before = static_cast<std::size_t>(layer.backward[i].after[0]);
    EXPECT_LT(before, i);
    EXPECT_EQ(layer.backward[before].stream, OpStream::kCompute);
    for (std::size_t between = before + 1; between < i; ++between) EXPECT_EQ(layer.backward[between].stream, OpStream::kTensor);
  }
  // The gather is issued before the input gradient, so both run at once; the weight gradient needs the gathered input.
  const std::vector<std::string> names = op_names(layer.backward);
  const auto gather = std::find(names.begin(), names.end(), "norm 2 output all-gather");
  ASSERT_LT(gather - names.begin(), static_cast<std::ptrdiff_t>(names.size()) - 3);
  EXPECT_EQ(*(gather + 1), "fc1 input gradient");
  EXPECT_EQ(*(gather + 2), "fc1 gradient reduce-scatter");
  EXPECT_EQ(*(gather + 3), "fc1 weight gradient");
  const SlotIndex gathered = slot_named(layer, "norm 2 output, gathered for fc1");
  EXPECT_THAT(op_named(layer.backward, "fc1 weight gradient")->reads, testing::Contains(gathered));
  EXPECT_EQ(slot_at(layer, gathered).role, Role::kCommunication);
}

TEST(HeadOps, VocabularyParallelLossReducesThreeNumbersAToken) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel.tensor = 8;
  const std::int64_t tokens = 4 * 2048;
  constexpr CollectiveKind kReduce = CollectiveKind::kAllReduce;
  EXPECT_THAT(collectives_of(gpt.head().forward),
              ElementsAre(Call{"logits maximum all-reduce", kReduce, 4 * tokens, OpStream::kCompute},
                          Call{"predicted logit all-reduce", kReduce, 4 * tokens, OpStream::kCompute},
                          Call{"softmax denominator all-reduce", kReduce, 4 * tokens, OpStream::kCompute}));
  EXPECT_THAT(collectives_of(gpt.head().backward),
              ElementsAre(Call{"head gradient all-reduce", kReduce, 2 * tokens * 6144, OpStream::kTensor}));
  gpt.training.loss = LossKind::kFused;
  EXPECT_THAT(collectives_of(gpt.head().forward),
              ElementsAre(Call{"softmax statistics all-gather", CollectiveKind::kAllGather, 8 * 12 * tokens, OpStream::kCompute}));
}

TEST(HeadOps, TiedHeadSharesTheEmbeddingsTable) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel.tensor = 8;
  const LayerTemplate head = gpt.head(), embedding = gpt.embedding();
  for (const char* name : {"word embedding weight", "word embedding weight gradient"}) {
    ASSERT_NE(slot_named(head, name), kNoSlot);
    EXPECT_EQ(slot_at(head, slot_named(head, name)).size, slot_at(embedding, slot_named(embedding, name)).size);
  }
  EXPECT_EQ(head.parameters, 2 * 6144);                             // the final norm
  EXPECT_EQ(embedding.parameters, 51200 / 8 * 6144 + 2048 * 6144);  // positions are replicated
}

TEST(HeadOps, MoreChunksThanTokensAreRefused) {
  TemplateCase llama = llama3_8b();
  llama.training.sequence = 16;
  llama.training.loss = LossKind::kChunked;
  llama.training.loss_chunks = 17;
  EXPECT_THAT([&] { llama.head(); }, testing::ThrowsMessage<InputError>(HasSubstr("--loss: found chunked=17, wanted chunked=1 to 16")));
  llama.training.loss_chunks = 16;
  EXPECT_EQ(slot_at(llama.head(), slot_named(llama.head(), "logits chunk 15")).shape, (std::vector<std::int64_t>{1, 128256}));
}

TEST(EmbeddingOps, GptAndLlama) {
  TemplateCase gpt = megatron_22b();
  EXPECT_THAT(op_names(gpt.embedding().forward), ElementsAre("embedding", "position embedding", "embedding dropout"));
  EXPECT_THAT(op_names(gpt.embedding().backward),
              ElementsAre("embedding dropout backward", "position embedding gradient", "embedding gradient"));
  TemplateCase llama = llama3_8b();
  EXPECT_THAT(op_names(llama.embedding().forward), ElementsAre("embedding"));
  llama.parallel = {.tensor = 8, .sequence_parallel = true};
  EXPECT_THAT(op_names(llama.embedding().forward), ElementsAre("embedding", "embedding reduce-scatter"));
  EXPECT_THAT(op_names(llama.embedding().backward), ElementsAre("embedding gradient all-gather", "embedding gradient"));
  gpt.parallel = {.tensor = 8, .sequence_parallel = true};  // positions are added to whole sequences before each rank takes its part
  EXPECT_THAT(op_names(gpt.embedding().forward),
              ElementsAre("embedding", "embedding all-reduce", "position embedding", "embedding scatter", "embedding dropout"));
}

// --- Parameters.

TEST(Parameters, OneDeviceHasTheModels) {
  for (const TemplateCase& each : {megatron_22b(), gpt3_175b(), llama3_8b(), llama3_405b(), palm_540b()}) {
    const ParameterCount count = parameter_count(each.model, each.training.sequence);
    EXPECT_EQ(each.layer().parameters, count.layers / each.model.layers) << each.model.name;
    EXPECT_EQ(each.embedding().parameters, count.embedding + count.positions) << each.model.name;
    EXPECT_EQ(each.head().parameters, count.final_norm + count.head) << each.model.name;
  }
  // arXiv 2104.04473 equation 2: 12Lh^2(1 + 13/12h + (v + s)/12Lh), plus the final norm's 2h.
  const TemplateCase gpt = gpt3_175b();
  const std::int64_t h = 12288, L = 96;
  EXPECT_EQ(L * gpt.layer().parameters + gpt.embedding().parameters + gpt.head().parameters,
            12 * L * h * h + 13 * L * h + (51200 + 2048) * h + 2 * h);
}

TEST(Parameters, RanksShareMatricesAndColumnBiases) {
  TemplateCase gpt = megatron_22b();
  gpt.parallel.tensor = 8;
  const std::int64_t h = 6144, t = 8;
  // 12h^2 of matrices, biases of qkv (3h) and fc1 (4h) are divided; two norms (4h) and the biases after the sums (2h) are replicated.
  EXPECT_EQ(gpt.layer().parameters, 12 * h * h / t + 7 * h / t + 6 * h);
  TemplateCase llama = llama3_8b();
  llama.parallel.tensor = 16;  // key-value heads: one a rank
  EXPECT_EQ(llama.layer().parameters, 4096 * (2 + 2) * 128 + 4096 * 2 * 128 + 3 * 4096 * 14336 / 16 + 2 * 4096);
}

TEST(Parameters, GradientsFollowTheirDtype) {
  TemplateCase llama = llama3_8b();
  const auto gradient = [&] { return slot_at(llama.layer(), slot_named(llama.layer(), "qkv weight gradient")).dtype; };
  const auto accumulates = [&] { return std::get<Gemm>(op_named(llama.layer().backward, "qkv weight gradient")->work).accumulate_fp32; };
  EXPECT_EQ(gradient(), DType::kFp32);
  EXPECT_TRUE(accumulates());
  llama.framework.gradient_bits = 16;
  EXPECT_EQ(gradient(), DType::kBf16);
  EXPECT_FALSE(accumulates());
  // A 16-bit buffer is read too where it is kept; a gradient of its own is not.
  const auto reads_own = [&] { return std::get<Gemm>(op_named(llama.layer().backward, "qkv weight gradient")->work).accumulate; };
  EXPECT_TRUE(reads_own());
  llama.framework.gradients_always_allocated = false;
  EXPECT_FALSE(reads_own());
  llama.training.gradient_dtype = DType::kFp32;
  EXPECT_EQ(gradient(), DType::kFp32);
}

TEST(LayerTemplate, TensorsThatNoDeviceHoldsAreRefused) {
  TemplateCase gpt = gpt3_175b();
  gpt.training.sequence = 1LL << 24;
  EXPECT_THAT([&] { gpt.layer(); }, testing::ThrowsMessage<InputError>(HasSubstr("gpt: found dimensions that make \"attention")));
  gpt.training.sequence = 1LL << 60;
  gpt.training.micro_batch = 1LL << 60;
  EXPECT_THAT([&] { gpt.layer(); }, testing::ThrowsMessage<InputError>(HasSubstr("\"tokens\"")));
}

}  // namespace
}  // namespace stepsim
