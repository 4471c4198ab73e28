// What a layer, the embedding and the head keep between forward and backward, against the closed forms of arXiv 2205.05198 and the
// published accounting of modern layers, to the byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

struct PaperModel {
  const char* name;  // as in activation_per_tensor.csv
  TemplateCase (*make)();
};
constexpr PaperModel kPaperModels[] = {
    {"Megatron 22B", megatron_22b}, {"GPT-3 175B", gpt3_175b}, {"MT-NLG 530B", mt_nlg_530b}, {"Megatron 1T", megatron_1t}};
constexpr PaperModel kLlamaModels[] = {{"Llama-3 8B", llama3_8b}, {"Llama-3 70B", llama3_70b}, {"Llama-3 405B", llama3_405b}};

// s, b, h, a of Table 1 in arXiv 2205.05198.
struct Symbols {
  std::int64_t s, b, h, a;
  explicit Symbols(const TemplateCase& gpt)
      : s(gpt.training.sequence), b(gpt.training.micro_batch), h(gpt.model.hidden), a(gpt.model.heads) {}
};

TEST(SavedBytes, Gpt3LayerWithoutParallelism) {
  // sbh(34 + 5as/h) = 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) = 25,165,824 * (34 + 80) = 2,868,903,936.
  EXPECT_EQ(saved_bytes(gpt3_175b().layer()).value, 2'868'903'936);
  // Selective recomputation of core attention: 34 sbh = 855,638,016 (70 % less).
  EXPECT_EQ(bytes_without(gpt3_175b().layer(), {"core_attn"}), 855'638'016);
}

TEST(SavedBytes, Table2OfThePaperForItsFourModels) {
  for (const PaperModel& paper : kPaperModels) {
    SCOPED_TRACE(paper.name);
    TemplateCase gpt = paper.make();
    const auto [s, b, h, a] = Symbols(gpt);
    EXPECT_EQ(saved_bytes(gpt.layer()).value, 34 * s * b * h + 5 * a * s * s * b);  // sbh(34 + 5as/h)
    EXPECT_EQ(bytes_without(gpt.layer(), {"core_attn"}), 34 * s * b * h);
    for (const std::int32_t t : {2, 4, 8, 16}) {
      SCOPED_TRACE(t);
      gpt.parallel = {.tensor = t, .sequence_parallel = false};
      EXPECT_EQ(saved_bytes(gpt.layer()).value, 10 * s * b * h + 24 * s * b * h / t + 5 * a * s * s * b / t);
      EXPECT_EQ(bytes_without(gpt.layer(), {"core_attn"}), 10 * s * b * h + 24 * s * b * h / t);
      gpt.parallel.sequence_parallel = true;
      EXPECT_EQ(saved_bytes(gpt.layer()).value, 34 * s * b * h / t + 5 * a * s * s * b / t);
      EXPECT_EQ(bytes_without(gpt.layer(), {"core_attn"}), 34 * s * b * h / t);
    }
  }
}

TEST(SavedBytes, SequenceParallelismWithoutTensorParallelismChangesNothing) {
  TemplateCase gpt = megatron_22b();
  const Bytes before = saved_bytes(gpt.layer());
  gpt.parallel.sequence_parallel = true;
  EXPECT_EQ(saved_bytes(gpt.layer()), before);
}

TEST(SavedBytes, LayerInputIsCountedOnceAsTheLayersOwn) {
  const TemplateCase gpt = gpt3_175b();
  const LayerTemplate layer = gpt.layer();
  const std::vector<SlotIndex> saved = saved_slots(layer);
  EXPECT_THAT(saved, testing::Contains(layer.input));
  EXPECT_THAT(saved, testing::Not(testing::Contains(layer.output)));    // the next layer's input
  EXPECT_EQ(slot_at(layer, layer.input).size.value, 2 * 2048 * 12288);  // full recomputation: 2sbh
}

TEST(SavedBytes, QueryKeyAndValueAreViewsOfOneBuffer) {
  const LayerTemplate layer = gpt3_175b().layer();
  const SlotIndex root = slot_named(layer, "qkv output");
  EXPECT_THAT(saved_slots(layer), testing::Contains(root));
  EXPECT_EQ(slot_at(layer, root).size.value, 3 * 2 * 2048 * 12288);
  std::int64_t parts = 0;
  for (const char* name : {"query of qkv", "key of qkv", "value of qkv"}) {
    const SlotIndex view = slot_named(layer, name);
    ASSERT_NE(view, kNoSlot);
    EXPECT_EQ(slot_at(layer, view).view_of, root);
    EXPECT_THAT(saved_slots(layer), testing::Not(testing::Contains(view)));
    parts += slot_at(layer, view).size.value;
  }
  EXPECT_EQ(parts, slot_at(layer, root).size.value);
}

TEST(SavedBytes, NoDropoutKeepsNoMaskAndNoCopyOfTheSoftmax) {
  TemplateCase gpt = gpt3_175b();
  gpt.training.dropout = 0;
  const auto [s, b, h, a] = Symbols(gpt);
  // Two hidden masks of sbh and, of 5as^2b, the mask (1) and the dropped copy (2) are gone: 32sbh + 2as^2b.
  EXPECT_EQ(saved_bytes(gpt.layer()).value, 32 * s * b * h + 2 * a * s * s * b);
  for (const TemplateOp& op : gpt.layer().forward) EXPECT_FALSE(op.random) << op.name;
}

TEST(SavedBytes, MasksMadeAgainFromTheSeed) {
  TemplateCase gpt = gpt3_175b();
  gpt.framework.saves_dropout_masks = false;
  const auto [s, b, h, a] = Symbols(gpt);
  EXPECT_EQ(saved_bytes(gpt.layer()).value, 32 * s * b * h + 4 * a * s * s * b);
}

TEST(SavedBytes, GatheredInputIsKeptWhereItIsNotGatheredAgain) {
  TemplateCase gpt = gpt3_175b();
  gpt.parallel = {.tensor = 8, .sequence_parallel = true};
  gpt.framework.sequence_parallel_gather_again = false;
  const auto [s, b, h, a] = Symbols(gpt);
  // Both norm outputs whole (4sbh) instead of in parts (4sbh/t).
  EXPECT_EQ(saved_bytes(gpt.layer()).value, 30 * s * b * h / 8 + 4 * s * b * h + 5 * a * s * s * b / 8);
}

TEST(SavedBytes, LayerNormStatisticsAreTwoFloatsAToken) {
  TemplateCase gpt = gpt3_175b();
  const Bytes before = saved_bytes(gpt.layer());
  gpt.framework.saves_norm_statistics = true;
  EXPECT_EQ((saved_bytes(gpt.layer()) - before).value, 2 * 2 * 4 * 2048);
}

TEST(SavedBytes, Llama3Layers) {
  // Bytes a token and layer, spec/published_facts.md section 4: 8h + 8 + 4d(nq + nkv) + 4nq + 6f; 8B: 32768 + 8 + 20480 + 128 + 86016.
  EXPECT_EQ(saved_bytes(llama3_8b().layer()).value, 139'400 * 8192LL);
  EXPECT_EQ(saved_bytes(llama3_70b().layer()).value, 274'696 * 8192LL);
  EXPECT_EQ(saved_bytes(llama3_405b().layer()).value, 520'712 * 8192LL);
}

TEST(SavedBytes, PoliciesOnLlama3) {
  const LayerTemplate layer = llama3_8b().layer();
  const std::int64_t tokens = 8192;
  EXPECT_EQ(bytes_without(layer, {"core_attn"}), 139'272 * tokens);  // the log-sum-exp, 4nq = 128; o is the projection's
  EXPECT_EQ(bytes_without(layer, {"layernorm"}), 123'016 * tokens);  // y1 and y2, 4h = 16384
  EXPECT_EQ(bytes_without(layer, {"act"}), 110'728 * tokens);        // the activation's output, 2f = 28672
  EXPECT_EQ(bytes_without(layer, {"layernorm", "act"}), 94'344 * tokens);
  EXPECT_EQ(bytes_without(layer, {"mlp"}), 53'384 * tokens);         // gate, up and the activation's output, 6f = 86016
  EXPECT_EQ(slot_at(layer, layer.input).size.value, 8192 * tokens);  // full: 2h
}

TEST(SavedBytes, ModuleTableNamesTheSlots) {
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(
      module_table(llama3_8b().layer()),
      ElementsAre(Pair("layernorm", ElementsAre("norm 1 output", "norm 2 output")), Pair("core_attn", ElementsAre("attention log-sum-exp")),
                  Pair("mlp", ElementsAre("gate and up output", "activation output")), Pair("act", ElementsAre("activation output"))));
  EXPECT_THAT(module_table(gpt3_175b().layer())[1],
              Pair("core_attn", ElementsAre("attention softmax", "attention dropped softmax", "attention dropout mask")));
}

TEST(SavedBytes, KernelsThatKeepMore) {
  TemplateCase llama = llama3_8b();
  const std::int64_t tokens = 8192, published = 139'400 * tokens;
  // Norms of q and k: their input, the mixed qkv of 2(nq + 2nkv)d = 12288 bytes a token, and 4(nq + nkv) of statistics.
  llama.model.qk_norm = true;
  EXPECT_EQ(saved_bytes(llama.layer()).value, published + (12'288 + 160) * tokens);
  llama.model.qk_norm = false;
  // Eager SwiGLU keeps silu(gate) for the product: 2f more.
  llama.framework.fused_bias_activation = false;
  EXPECT_EQ(saved_bytes(llama.layer()).value, published + 28'672 * tokens);
  llama.framework.fused_gate_up = false;
  EXPECT_EQ(saved_bytes(llama.layer()).value, published + 28'672 * tokens);
  llama.framework.fused_bias_activation = true;
  EXPECT_EQ(saved_bytes(llama.layer()).value, published);
}

TEST(SavedBytes, FlashOutputIsCopiedOnlyForSeveralSequences) {
  TemplateCase llama = llama3_8b();
  llama.framework.shares_attention_output = false;
  EXPECT_EQ(saved_bytes(llama.layer()).value, 139'400 * 8192LL);
  llama.training.micro_batch = 2;
  const LayerTemplate layer = llama.layer();
  // The copy for the projection: 2 nq d = 8192 bytes a token more; core_attn then drops the kernel's own output too.
  EXPECT_EQ(saved_bytes(layer).value, (139'400 + 8192) * 2 * 8192LL);
  EXPECT_EQ(bytes_without(layer, {"core_attn"}), 139'272 * 2 * 8192LL);
}

TEST(SavedBytes, UnfusedAttentionRepeatsKeyAndValueHeads) {
  TemplateCase llama = llama3_8b();
  llama.training.attention = AttentionKind::kUnfused;
  const LayerTemplate layer = llama.layer();
  // A token: 8h + 8 + 6f, q and o (4 nq d), k and v of nq heads (4 nq d), softmax 2 nq s.
  EXPECT_EQ(saved_bytes(layer).value, (32'768 + 8 + 86'016 + 4 * 4096 + 4 * 4096 + 2 * 32 * 8192) * 8192LL);
  EXPECT_EQ(bytes_without(layer, {"core_attn"}), (32'768 + 8 + 86'016 + 4 * 4096) * 8192LL);
}

TEST(SavedBytes, KeyAndValueHeadsAreReplicatedAboveTheirNumberOfRanks) {
  TemplateCase llama = llama3_8b();
  llama.parallel.tensor = 16;  // 32 query heads: 2 a rank; 8 kv heads: 1 a rank, on two ranks each
  const LayerTemplate layer = llama.layer();
  EXPECT_THAT(slot_at(layer, slot_named(layer, "query")).shape, testing::ElementsAre(8192, 2, 128));
  EXPECT_THAT(slot_at(layer, slot_named(layer, "key")).shape, testing::ElementsAre(8192, 1, 128));
  // 8h + 8 stay whole; q and o 2 * 2 * 256, k and v 2 * 2 * 128, lse 4 * 2, MLP 6 * 14336 / 16.
  EXPECT_EQ(saved_bytes(layer).value, (32'768 + 8 + 1024 + 512 + 8 + 5376) * 8192LL);
}

TEST(SavedBytes, HeadAndLoss) {
  // Bytes a token, spec/published_facts.md section 4 and activation_policy_totals.csv: 4h + 4 of the norm and the head's input, 4V of
  // exponentials, 1 + 8 of targets: 16388 + 513024 + 9.
  TemplateCase llama = llama3_8b();
  EXPECT_EQ(saved_bytes(llama.head()).value, 529'421 * 8192LL);
  // Fused: gradient in the logits' dtype 2V and three floats: 16388 + 256512 + 12.
  llama.training.loss = LossKind::kFused;
  EXPECT_EQ(saved_bytes(llama.head()).value, 272'912 * 8192LL);
  // In chunks: the norm's input, its statistics and the gradient of its output: 4h + 4.
  llama.training.loss = LossKind::kChunked;
  llama.training.loss_chunks = 8;
  EXPECT_EQ(saved_bytes(llama.head()).value, 16'388 * 8192LL);
  // GPT-3 with v = 51200: 253,965 a token in the table, of which 4 are statistics, which this preset does not count.
  EXPECT_EQ(saved_bytes(gpt3_175b().head()).value, (253'965 - 4) * 2048LL);
}

TEST(SavedBytes, ExtraTermsOfThePaperUnderSequenceParallelism) {
  // arXiv 2205.05198 section 4.3: embedding dropout sbh/t, last norm 2sbh/t, head input 2sbh/t, fp32 logits 4sbv/t.
  TemplateCase gpt = megatron_22b();
  gpt.parallel = {.tensor = 8, .sequence_parallel = true};
  const auto [s, b, h, a] = Symbols(gpt);
  EXPECT_EQ(saved_bytes(gpt.head()).value, 4 * s * b * h / 8 + 4 * s * b * 51200 / 8 + 9 * s * b);
  EXPECT_EQ(saved_bytes(gpt.embedding()).value, s * b * h / 8 + 8 * s * b);  // and the token ids
}

TEST(SavedBytes, EmbeddingKeepsTokenIds) { EXPECT_EQ(saved_bytes(llama3_8b().embedding()).value, 8 * 8192); }

// Bytes of the logits in use after each op, over the forward and backward of the head: claimed by the first write, released with the last
// use.
std::int64_t peak_of_logits(const LayerTemplate& head) {
  std::vector<TemplateOp> ops = head.forward;
  ops.insert(ops.end(), head.backward.begin(), head.backward.end());
  std::vector<std::size_t> first(head.slots.size(), ops.size()), last(head.slots.size(), 0);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const auto* used : {&ops[i].reads, &ops[i].writes, &ops[i].updates, &ops[i].holds}) {
      for (const SlotIndex slot : *used) {
        first[static_cast<std::size_t>(slot)] = std::min(first[static_cast<std::size_t>(slot)], i);
        last[static_cast<std::size_t>(slot)] = i;
      }
    }
  }
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    std::int64_t live = 0;
    for (std::size_t slot = 0; slot < head.slots.size(); ++slot) {
      if (head.slots[slot].role == Role::kLogits && first[slot] <= i && i <= last[slot]) live += head.slots[slot].size.value;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

LayerTemplate only_backward(LayerTemplate head) {
  head.forward.clear();
  return head;
}

TEST(LossPeak, InPlaceOutOfPlaceFusedAndInChunks) {
  TemplateCase llama = llama3_8b();
  const std::int64_t logits = 8192LL * 128256 * 2;  // Lg
  // spec/megatron_memory.md section 3.4: bf16 logits and the fp32 copy 3 Lg, in backward 2 Lg of softmax and the bf16 gradient: again 3 Lg.
  EXPECT_EQ(peak_of_logits(llama.head()), 3 * logits);
  EXPECT_EQ(peak_of_logits(only_backward(llama.head())), 3 * logits);
  llama.framework.loss_in_place = false;
  EXPECT_EQ(peak_of_logits(llama.head()), 5 * logits);
  EXPECT_EQ(peak_of_logits(only_backward(llama.head())), 5 * logits);
  llama.training.loss = LossKind::kFused;
  EXPECT_EQ(peak_of_logits(llama.head()), 2 * logits);
  llama.training.loss = LossKind::kChunked;
  llama.training.loss_chunks = 8;
  EXPECT_EQ(peak_of_logits(llama.head()), logits / 8);
}

TEST(LossPeak, NoCopyWhereTheLogitsHaveTheWorkingDtype) {
  TemplateCase llama = llama3_8b();
  llama.framework.logits_fp32 = false;
  EXPECT_EQ(peak_of_logits(llama.head()), 8192LL * 128256 * 2);
  llama.framework.logits_fp32 = true;
  llama.training.precision = Precision::kFp32;  // .float() of fp32 logits is the same tensor
  EXPECT_EQ(peak_of_logits(llama.head()), 8192LL * 128256 * 4);
}

TEST(LossPeak, VocabularyParallel) {
  TemplateCase llama = llama3_8b();
  llama.parallel.tensor = 8;
  // 128256 is padded to a multiple of 128 * 8 = 1024: 129024, 16128 a rank.
  EXPECT_EQ(peak_of_logits(llama.head()), 3 * 8192LL * 16128 * 2);
}

// --- The tables of ../shared/data/papers, where they are.

using Row = std::map<std::string, std::string>;

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<Row> read_table(const std::string& name) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/papers/" + name);
  std::vector<Row> rows;
  std::string line;
  if (!std::getline(file, line)) return rows;
  const std::vector<std::string> header = fields_of(line);
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = fields_of(line);
    EXPECT_EQ(fields.size(), header.size()) << line;
    for (std::size_t i = 0; i < std::min(fields.size(), header.size()); ++i) {
      if (i == 0) rows.emplace_back();
      rows.back()[header[i]] = fields[i];
    }
  }
  return rows;
}

// "op: tensor" of the table -> slot of the template. Q, K and V of the GPT rows are parts of one buffer.
const std::map<std::string, std::string>& slot_of_tensor() {
  static const std::map<std::string, std::string> names = {{"LayerNorm1: input", "input"},
                                                           {"QKV linear: input (LN1 out)", "norm 1 output"},
                                                           {"QK^T: Q", "qkv output"},
                                                           {"QK^T: K", "qkv output"},
                                                           {"Attn over V: V", "qkv output"},
                                                           {"Softmax: output", "attention softmax"},
                                                           {"Softmax dropout: mask", "attention dropout mask"},
                                                           {"Attn over V: dropout output", "attention dropped softmax"},
                                                           {"O-proj: input (attention out)", "attention output"},
                                                           {"Attn dropout: mask", "attention residual dropout mask"},
                                                           {"LayerNorm2: input", "attention residual"},
                                                           {"FC1: input (LN2 out)", "norm 2 output"},
                                                           {"GeLU: input (FC1 out)", "fc1 output"},
                                                           {"FC2: input (GeLU out)", "activation output"},
                                                           {"MLP dropout: mask", "mlp residual dropout mask"},
                                                           {"RMSNorm1: input x", "input"},
                                                           {"RMSNorm1: rstd", "norm 1 statistics"},
                                                           {"QKV linear: input y1 (RMSNorm1 out)", "norm 1 output"},
                                                           {"FlashAttention: q (after RoPE)", "query"},
                                                           {"FlashAttention: k (after RoPE)", "key"},
                                                           {"FlashAttention: v", "value"},
                                                           {"FlashAttention: out o", "attention output"},
                                                           {"FlashAttention: LSE", "attention log-sum-exp"},
                                                           {"RMSNorm2: input x2 = x+attn", "attention residual"},
                                                           {"RMSNorm2: rstd", "norm 2 statistics"},
                                                           {"MLP gate/up linear: input y2", "norm 2 output"},
                                                           {"MLP SwiGLU: inputs gate,up", "gate and up output"},
                                                           {"MLP down linear: input silu(gate)*up", "activation output"},
                                                           {"Final norm: input", "input"},
                                                           {"Final norm: rstd", "final norm statistics"},
                                                           {"LM head: input", "final norm output"},
                                                           {"CE: exp_logits (softmax)", "softmax"},
                                                           {"CE: target_mask", "target mask"},
                                                           {"CE: masked_target_1d", "masked target"},
                                                           {"Embedding: token ids", "token ids"}};
  return names;
}

// Bytes a token by slot name, of one model, mode and unit ("layer", "head", "embed") of the table.
std::map<std::string, double> published_tensors(const std::vector<Row>& table, const std::string& model, const std::string& mode,
                                                const std::string& unit) {
  std::map<std::string, double> bytes;
  for (const Row& row : table) {
    if (row.at("model") != model || row.at("mode") != mode || row.at("layer") != unit) continue;
    const double each = std::stod(row.at("bytes_per_token"));
    if (each == 0) continue;  // "not needed" rows
    const auto name = slot_of_tensor().find(row.at("op") + ": " + row.at("tensor"));
    if (name == slot_of_tensor().end()) {
      ADD_FAILURE() << "no slot for " << row.at("op") << ": " << row.at("tensor");
      continue;
    }
    bytes[name->second] += each;
  }
  return bytes;
}

void expect_tensors(const LayerTemplate& layer, const std::map<std::string, double>& published, std::int64_t tokens) {
  std::map<std::string, double> ours;
  for (const SlotIndex slot : saved_slots(layer)) {
    ours[slot_at(layer, slot).name] = static_cast<double>(slot_at(layer, slot).size.value) / static_cast<double>(tokens);
  }
  EXPECT_EQ(ours, published);
}

TEST(PublishedTables, EveryTensorOfEveryLayer) {
  const std::vector<Row> table = read_table("activation_per_tensor.csv");
  if (table.empty()) GTEST_SKIP() << "no activation_per_tensor.csv";
  for (const PaperModel& paper : kPaperModels) {
    SCOPED_TRACE(paper.name);
    const TemplateCase gpt = paper.make();
    expect_tensors(gpt.layer(), published_tensors(table, paper.name, "fp16+dropout (2205.05198)", "layer"),
                   gpt.training.sequence * gpt.training.micro_batch);
  }
  for (const PaperModel& each : kLlamaModels) {
    SCOPED_TRACE(each.name);
    const TemplateCase llama = each.make();
    expect_tensors(llama.layer(), published_tensors(table, each.name, "bf16", "layer"), 8192);
    expect_tensors(llama.head(), published_tensors(table, each.name, "bf16", "head"), 8192);
    expect_tensors(llama.embedding(), published_tensors(table, each.name, "bf16", "embed"), 8192);
  }
}

TEST(PublishedTables, EveryPolicyTotal) {
  const std::vector<Row> table = read_table("activation_policy_totals.csv");
  if (table.empty()) GTEST_SKIP() << "no activation_policy_totals.csv";
  const std::map<std::string, std::vector<std::string>> modules = {{"none", {}},
                                                                   {"core_attn", {"core_attn"}},
                                                                   {"selective core_attn", {"core_attn"}},
                                                                   {"layernorm", {"layernorm"}},
                                                                   {"act (SwiGLU out)", {"act"}},
                                                                   {"layernorm+act", {"layernorm", "act"}},
                                                                   {"mlp", {"mlp"}}};
  std::map<std::string, TemplateCase> cases;
  for (const PaperModel& paper : kPaperModels) cases.emplace(std::string(paper.name) + "/fp16+dropout (2205.05198)", paper.make());
  for (const PaperModel& each : kLlamaModels) cases.emplace(std::string(each.name) + "/bf16", each.make());
  int compared = 0;
  for (const Row& row : table) {
    const auto found = cases.find(row.at("model") + "/" + row.at("mode"));
    if (found == cases.end() || row.at("layer") != "layer") continue;
    SCOPED_TRACE(found->first + " " + row.at("policy"));
    const LayerTemplate layer = found->second.layer();
    const TrainingRecipe& training = found->second.training;
    EXPECT_EQ(row.at("seq"), std::to_string(training.sequence));
    EXPECT_EQ(row.at("micro_batch"), std::to_string(training.micro_batch));
    const auto policy = modules.find(row.at("policy"));
    const std::int64_t bytes = policy == modules.end() ? slot_at(layer, layer.input).size.value : bytes_without(layer, policy->second);
    if (policy == modules.end()) {
      EXPECT_EQ(row.at("policy"), "full");
    }
    const double tokens = static_cast<double>(training.sequence * training.micro_batch);
    EXPECT_EQ(static_cast<double>(bytes), std::stod(row.at("bytes_per_token")) * tokens);
    ++compared;
  }
  EXPECT_EQ(compared, 4 * 3 + 3 * 7);
}

}  // namespace
}  // namespace stepsim
