// Every tensor that a layer, the head or the embedding keeps until backward, by name and in bytes per token: all rows of
// ../shared/data/papers/activation_per_tensor.csv, exactly. Each row is a set of saved slots; each saved slot is of one row.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/template_builder.h"
#include "schema/read_message.h"
#include "tools/csv_table.h"

namespace stepsim {
namespace {

constexpr std::int64_t kSequence = 4096;

struct Case {
  std::string model, mode, part;
  friend auto operator<=>(const Case&, const Case&) = default;
};

struct Row {
  int line = 0;
  std::string op, tensor;
  double bytes = 0;
};

std::string cell(const CsvTable& table, std::size_t row, const char* column) { return table.rows[row].cells[*table.column(column)]; }

std::map<Case, std::vector<Row>> cases(const CsvTable& table) {
  std::map<Case, std::vector<Row>> found;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    found[{cell(table, row, "model"), cell(table, row, "mode"), cell(table, row, "layer")}].push_back(
        {table.rows[row].line, cell(table, row, "op"), cell(table, row, "tensor"), std::stod(cell(table, row, "bytes_per_token"))});
  }
  return found;
}

struct Setting {
  ModelSpec model;
  TrainingRecipe training;
  ParallelLayout parallel;
  FrameworkPreset framework;
  LayerKind kind;

  LayerTemplate part(const std::string& name) const {
    const TemplateContext context{model, training, parallel, framework};
    if (name == "head") return head_layer(context);
    if (name == "embed") return embedding_layer(context);
    return transformer_layer(context, kind);
  }
};

std::string catalog_name(const std::string& model) {
  const std::map<std::string, std::string> names = {
      {"GPT-3 175B", "gpt3-175b"},      {"GPT-3 175B (v=51200)", "gpt3-175b"}, {"MT-NLG 530B", "mt-nlg-530b"},
      {"Megatron 22B", "megatron-22b"}, {"Megatron 1T", "megatron-1t"},        {"Llama-3 8B", "llama3-8b"},
      {"Llama-3 70B", "llama3-70b"},    {"Llama-3 405B", "llama3-405b"},       {"DeepSeek-V3", "deepseek-v3"}};
  const auto found = names.find(model);
  return found != names.end() ? found->second : "mixtral-8x7b";
}

// 2205.05198: fp16, dropout, unfused attention, sequence 2048, no statistics.
void use_paper(Setting& setting) {
  setting.framework = load_framework("megatron-lm@2022-05");
  setting.training.precision = Precision::kFp16;
  setting.training.attention = AttentionKind::kUnfused;
  setting.training.dropout = setting.model.dropout;
  setting.training.sequence = 2048;
}

// DeepSeek-V3 (2412.19437 section 3.3.3): attention's output in E5M6, SwiGLU inputs of experts in FP8, fp32 scales of 128 values; experts
// on 64 ranks (section 3.2).
void use_deepseek_formats(Setting& setting) {
  setting.framework.stored = {
      {"attention output", 12, 128}, {"experts gate and up output", 8, 128}, {"shared experts gate and up output", 8, 128}};
  setting.parallel.expert = 64;
  setting.parallel.data = 64;
}

void use_mode(Setting& setting, const std::string& mode) {
  setting.training.fp8_reads_one_layout = true;
  if (mode == "fp8_tensorwise" || mode == "fp8_block128" || mode == "dsv3") setting.training.precision = Precision::kFp8;
  if (mode == "fp8_block128" || mode == "dsv3") setting.training.scaling = ScalingRecipe::kBlockwise;
  if (mode == "mxfp8") setting.training.precision = Precision::kMxFp8;
  if (mode == "dsv3") use_deepseek_formats(setting);
  if (mode == "te_parallel_ce") setting.training.loss = LossKind::kFused;
  if (mode == "flash_attn_ce") {
    setting.training.loss = LossKind::kFused;
    setting.framework.fused_loss_keeps_logits = true;
  }
}

Setting setting_of(const Case& row) {
  Setting setting;
  setting.model = load_model(catalog_name(row.model));
  setting.framework = load_framework("megatron-core@2025");
  setting.training.sequence = kSequence;
  if (row.mode == "fp16+dropout (2205.05198)") {
    use_paper(setting);
    return setting;
  }
  use_mode(setting, row.mode);
  // The table's DeepSeek-V3 has the fused loss of Transformer Engine unless the mode names another.
  if (row.model == "DeepSeek-V3" && row.mode.find("_ce") == std::string::npos) setting.training.loss = LossKind::kFused;
  if (row.model == "GPT-3 175B (v=51200)") {
    setting.model.normalization = Normalization::kRmsNorm;  // the table's head has a final norm with one statistic whatever the model
    setting.model.vocab = 51200;
  }
  setting.framework.unpermutes_with_probabilities = row.model == "Mixtral 8x7B (unpermute with probs)";
  if (row.model == "Mixtral 8x7B (capacity 1.25)") setting.training.capacity = 1.25;
  setting.kind.experts = row.part == "moe_layer";
  return setting;
}

// A row's slots: each name stands for the first of its list that is saved.
using Names = std::vector<std::string>;
struct Tensor {
  std::string op, tensor;    // how the row's cells begin
  std::vector<Names> slots;  // all of them together
};

const std::vector<Tensor>& tensors() {
  static const std::vector<Tensor> kTensors = {
      {"LayerNorm1", "input", {{"input"}}},
      {"RMSNorm1", "input", {{"input"}}},
      {"RMSNorm1", "rstd", {{"norm 1 statistics"}}},
      {"QKV linear", "input", {{"norm 1 output of qkv, quantised by columns", "norm 1 output"}}},
      {"RoPE", "cos/sin", {}},
      {"QK^T", "Q", {{"query of qkv"}}},
      {"QK^T", "K", {{"key of qkv"}}},
      {"Attn over V", "V", {{"value of qkv"}}},
      {"Softmax", "output", {{"attention softmax"}}},
      {"Softmax dropout", "mask", {{"attention dropout mask"}}},
      {"Attn over V", "dropout output", {{"attention dropped softmax"}}},
      {"O-proj", "input (attention out)", {{"attention output"}}},
      {"Attn dropout", "mask", {{"attention residual dropout mask"}}},
      {"LayerNorm2", "input", {{"attention residual"}}},
      {"FC1", "input (LN2 out)", {{"norm 2 output"}}},
      {"GeLU", "input (FC1 out)", {{"fc1 output"}}},
      {"FC2", "input (GeLU out)", {{"activation output"}}},
      {"MLP dropout", "mask", {{"mlp residual dropout mask"}}},
      {"FlashAttention", "q", {{"query"}}},
      {"FlashAttention", "k", {{"key"}}},
      {"FlashAttention", "v", {{"value"}}},
      {"FlashAttention", "out o", {{"attention output, stored", "attention output"}}},
      {"FlashAttention", "LSE", {{"attention log-sum-exp"}}},
      {"O-proj", "input copy (quantised o)", {{"attention output of attention projection, quantised by columns"}}},
      {"O-proj", "output", {}},
      {"RMSNorm2", "input", {{"attention residual"}}},
      {"RMSNorm2", "rstd", {{"norm 2 statistics"}}},
      {"MLP gate/up linear", "input y2", {{"norm 2 output of gate and up, quantised by columns", "norm 2 output"}}},
      {"MLP SwiGLU", "inputs", {{"gate and up output"}}},
      {"MLP down linear", "input", {{"activation output of down, quantised by columns", "activation output"}}},
      {"MLP down linear", "output", {}},
      {"Final norm", "input", {{"input"}}},
      {"Final norm", "rstd", {{"final norm statistics"}}},
      {"LM head", "input", {{"final norm output"}}},
      {"CE", "exp_logits", {{"softmax"}}},
      {"CE", "target_mask", {{"target mask"}}},
      {"CE", "masked_target_1d", {{"masked target"}}},
      {"CE", "grad_input", {{"logits gradient"}}},
      {"CE", "m,d,X_y", {{"softmax statistics"}}},
      {"CE", "logits", {{"logits"}}},
      {"CE", "lse", {{"logits log-sum-exp"}}},
      {"CE", "labels", {{"labels"}}},
      {"Embedding", "token ids", {{"token ids"}}},
      {"Q-down & KV-down", "input y1", {{"norm 1 output of query down, quantised by columns", "norm 1 output"}}},
      {"q RMSNorm", "input", {{"query latent"}}},
      {"q RMSNorm", "rstd", {{"query latent norm statistics"}}},
      {"Q-up", "input", {{"query latent norm output of query up, quantised by columns", "query latent norm output"}}},
      {"kv RMSNorm", "input", {{"key-value latent"}}},
      {"kv RMSNorm", "rstd", {{"key-value latent norm statistics"}}},
      {"RoPE k", "k_pe", {}},
      {"KV-up", "input", {{"key-value latent norm output of key-value up, quantised by columns", "key-value latent norm output"}}},
      {"Router", "input y2", {{"norm 2 output"}}},
      {"Router", "scores", {{"router scores"}}},
      {"Router", "routing_map", {{"routing map"}}},
      {"Router", "probs", {{"router probabilities"}}},
      {"Permute", "row_id_map", {{"row map"}}},
      {"Permute",
       "output",
       {{"experts input of experts gate and up, quantised by columns",
         "experts input padding rows of experts gate and up, quantised by columns", "experts input"}}},
      {"Grouped SwiGLU", "inputs", {{"experts gate and up output, stored", "experts gate and up output"}}},
      {"Grouped SwiGLU", "probs", {{"expert probabilities"}}},
      {"Grouped FC2", "input", {{"experts activation output of experts down, quantised by columns", "experts activation output"}}},
      {"Grouped FC2", "output", {{"experts down output", "experts output unpadding rows"}}},
      {"Shared SwiGLU", "inputs", {{"shared experts gate and up output, stored", "shared experts gate and up output"}}},
      {"Shared FC1", "input copy", {{"norm 2 output of shared experts gate and up, quantised by columns"}}},
      {"Shared FC2",
       "input",
       {{"shared experts activation output of shared experts down, quantised by columns", "shared experts activation output"}}}};
  return kTensors;
}

bool begins(const std::string& text, const std::string& prefix) { return text.compare(0, prefix.size(), prefix) == 0; }

// The longest match, as "v" begins "value" too.
const Tensor* tensor_of(const Row& row) {
  const Tensor* found = nullptr;
  for (const Tensor& tensor : tensors()) {
    if (row.op != tensor.op || !begins(row.tensor, tensor.tensor)) continue;
    if (found == nullptr || found->tensor.size() < tensor.tensor.size()) found = &tensor;
  }
  return found;
}

// What backward reads: storages made in forward, the input, the batch.
std::set<SlotIndex> kept_roots(const LayerTemplate& layer) {
  std::set<SlotIndex> roots;
  for (const SlotIndex slot : saved_slots(layer)) roots.insert(slot);
  for (const TemplateOp& op : layer.backward) {
    for (const SlotIndex slot : op.reads) {
      const SlotIndex root = root_of(layer.slots, slot);
      if (layer.slots[static_cast<std::size_t>(root)].kind == SlotKind::kBatch) roots.insert(root);
    }
  }
  return roots;
}

class Part {
 public:
  explicit Part(LayerTemplate layer) : layer_(std::move(layer)), roots_(kept_roots(layer_)) {
    for (std::size_t slot = 0; slot < layer_.slots.size(); ++slot) by_name_[layer_.slots[slot].name] = static_cast<SlotIndex>(slot);
  }

  // The first of the names that is kept, which is then claimed.
  std::optional<Bytes> claim(const Names& names) {
    for (const std::string& name : names) {
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) continue;
      const SlotIndex root = root_of(layer_.slots, found->second);
      if (!roots_.contains(root)) continue;
      const Bytes size = layer_.slots[static_cast<std::size_t>(found->second)].size;
      claimed_[root] += size;
      return size;
    }
    return std::nullopt;
  }

  // Kept storages of which rows claim more or less than all. A batch tensor is the data loader's.
  std::string unclaimed() const {
    std::string names;
    for (const SlotIndex root : roots_) {
      const Slot& slot = layer_.slots[static_cast<std::size_t>(root)];
      const auto claims = claimed_.find(root);
      if (claims == claimed_.end() && slot.kind == SlotKind::kBatch) continue;
      if (claims == claimed_.end() || claims->second != slot.size) names += slot.name + "; ";
    }
    return names;
  }

 private:
  LayerTemplate layer_;
  std::set<SlotIndex> roots_;
  std::map<std::string, SlotIndex> by_name_;
  std::map<SlotIndex, Bytes> claimed_;
};

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ActivationPerTensor, EveryRowIsExact) {
  const std::string path = STEPSIM_SHARED_DIR "/data/papers/activation_per_tensor.csv";
  if (!std::ifstream(path)) GTEST_SKIP() << path << " is absent";
  const CsvTable table = parse_csv(file_text(path), path);
  std::size_t rows = 0;
  std::printf(
      "## table: activation-per-tensor\n| model | mode | part | tensors | bytes per token | stepsim |\n|---|---|---|---|---|---|\n");
  for (const auto& [row_case, expected] : cases(table)) {
    const Setting setting = setting_of(row_case);
    Part part(setting.part(row_case.part));
    const std::string label = row_case.model + ", " + row_case.mode + ", " + row_case.part;
    double published = 0, simulated = 0;
    for (const Row& row : expected) {
      ++rows;
      const Tensor* const tensor = tensor_of(row);
      ASSERT_NE(tensor, nullptr) << path << ":" << row.line << ": " << row.op << ", " << row.tensor;
      Bytes kept;
      for (const Names& names : tensor->slots) {
        const std::optional<Bytes> size = part.claim(names);
        EXPECT_TRUE(size.has_value() || row.bytes == 0) << label << ": nothing is kept of " << names.front();
        kept += size.value_or(Bytes(0));
      }
      EXPECT_EQ(static_cast<double>(kept.value), row.bytes * static_cast<double>(setting.training.sequence))
          << path << ":" << row.line << ": " << label << ": " << row.op << ", " << row.tensor << ": "
          << static_cast<double>(kept.value) / static_cast<double>(setting.training.sequence);
      published += row.bytes;
      simulated += static_cast<double>(kept.value) / static_cast<double>(setting.training.sequence);
    }
    EXPECT_EQ(part.unclaimed(), "") << label;
    std::printf("| %s | %s | %s | %zu | %.0f | %.0f |\n", row_case.model.c_str(), row_case.mode.c_str(), row_case.part.c_str(),
                expected.size(), published, simulated);
  }
  EXPECT_EQ(rows, 769U);
  std::printf("\n");
}

}  // namespace
}  // namespace stepsim
