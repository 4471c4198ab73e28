// llm-foundry's tables of MPT under FSDP1; facts: spec/accuracy.md B.1.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/model_spec.h"
#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

using Json = nlohmann::ordered_json;

struct Column {
  std::string_view column, flag, path;
};
constexpr std::array<Column, 4> kColumns = {{{"# GPUs", "--gpus", "hardware.gpus"},
                                             {"GlobalBatchSize", "--global-batch", "training.global_batch"},
                                             {"MicroBatchSize", "--micro-batch", "training.micro_batch"},
                                             {"SeqLen (T)", "--sequence", "training.sequence"}}};

bool is_true(const RowCells& cells, std::string_view column) {
  const std::string_view text = cells.text(column);
  if (text != "True" && text != "False") cells.refuse(column, "True or False");
  return text == "True";
}

// B.1: tables made before 2023-05 ran torch 1.13 with everything in bf16 (PURE); the others reduce in fp32 (DEFAULT).
std::string framework(const RowCells& cells) {
  if (cells.text("Precision") == "amp_fp8") return "llm-foundry-te@2023-10";  // Transformer Engine's linear layers
  if (cells.text("MP Mode") == "DEFAULT") return "llm-foundry@2023-10";
  if (cells.text("MP Mode") == "PURE") return "llm-foundry@2023-05";
  throw UntranslatedRow{fmt::format("MP mode {}: no preset", cells.text("MP Mode"))};
}

void add_precision(PublishedStep& step, const RowCells& cells) {
  const std::string_view precision = cells.text("Precision");
  if (precision == "amp_bf16" || precision == "bf16") return step.set("--precision", "training.precision", "bf16");
  if (precision != "amp_fp8") throw UntranslatedRow{fmt::format("precision {}: no preset", precision)};
  step.set("--precision", "training.precision", "fp8");
  // composer precision.py @8c8dd48f's release: amp_fp8 is Transformer Engine's DelayedScaling.
  step.set("--fp8-recipe", "training.fp8_recipe", "delayed");
}

void add_fsdp_sharding(PublishedStep& step, const RowCells& cells) {
  const std::string_view strategy = cells.text("Sharding Strategy");
  if (strategy != "FULL_SHARD" && strategy != "SHARD_GRAD_OP") {
    throw UntranslatedRow{fmt::format("sharding strategy {}: no preset", strategy)};
  }
  step.set("--zero", "parallel.zero", "3");
  // torch FSDP: SHARD_GRAD_OP keeps weights gathered from forward to backward.
  if (strategy == "SHARD_GRAD_OP") step.set("--set", "parallel.reshard_after_forward", "false");
}

// "h100_80gb": the SXM cards, by B.1 and the tables' titles.
void add_hardware(PublishedStep& step, const RowCells& cells) {
  const std::string_view name = cells.text("GPU");
  const auto set = [&](const char* machine, const char* cluster) {
    step.set("--hardware", "hardware.name", machine);
    set_cluster(step, cluster);
  };
  if (name == "a100_40gb") return set("a100-sxm-40gb", "llm-foundry-a100");
  if (name == "a100_80gb") return set("a100-sxm-80gb", "llm-foundry-a100");
  if (name != "h100_80gb") throw UntranslatedRow{fmt::format("GPU {} is unknown", name)};
  set("h100-sxm-80gb", "llm-foundry-h100");
  step.guesses.push_back("the H100 nodes have 400 GB/s of network and 700 W cards: the tables do not say");
}

std::string model_name(const RowCells& cells) { return "mpt-" + std::string(cells.text("Model")); }

bool is_known_model(const std::string& name) {
  const std::vector<std::string> known = model_names();
  return std::find(known.begin(), known.end(), name) != known.end();
}

// mpt_model_configs.json: { "7b": { "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion": 4, "vocab": 50368 } }
Json read_sizes(const std::string& file) {
  if (file.empty()) return Json::object();
  const Json sizes = Json::parse(read_text_file(file), nullptr, false);
  if (!sizes.is_object()) throw InputError({file}, "found no JSON object, wanted one of models by their names");
  return sizes;
}

void add_sizes(PublishedStep& step, const Json& sizes, const std::string& model, const std::string& file) {
  const auto entry = sizes.find(model);
  if (entry == sizes.end()) return;
  const auto whole = [&](const char* name) -> std::int64_t {
    const auto value = entry->is_object() ? entry->find(name) : entry->end();
    const bool right = entry->is_object() && value != entry->end() && value->is_number_integer() && value->get<std::int64_t>() > 0 &&
                       value->get<std::int64_t>() <= (1 << 24);
    if (!right) throw InputError({file}, fmt::format("found no {} of {}, wanted a whole number from 1", name, model));
    return value->get<std::int64_t>();
  };
  const std::int64_t hidden = whole("d_model"), heads = whole("n_heads");
  step.set("--layers", "model.layers", std::to_string(whole("n_layers")));
  step.dimensions = {{"hidden", hidden},
                     {"heads", heads},
                     {"kv_heads", heads},
                     {"head_dim", hidden / std::max(heads, std::int64_t{1})},
                     {"ffn_hidden", hidden * whole("expansion")},
                     {"vocab", whole("vocab")}};
}

PublishedStep translated(const RowCells& cells, const Json& sizes, const std::string& file) {
  PublishedStep step;
  step.source = "mosaicml/llm-foundry, tables of MPT training";
  const std::string model = model_name(cells);
  const bool sized = sizes.contains(std::string(cells.text("Model")));
  if (!is_known_model(model) && !sized) throw UntranslatedRow{fmt::format("dimensions of model {} are unknown", cells.text("Model"))};
  step.set("--framework", "framework.name", framework(cells));
  step.set("--model", "model.name", is_known_model(model) ? model : "mpt-7b");
  add_hardware(step, cells);
  for (const Column& column : kColumns) {
    step.set(std::string(column.flag), std::string(column.path), std::to_string(cells.whole(column.column, 1, 1 << 30)));
  }
  if (cells.has("GradAccum")) cells.whole("GradAccum", 1, 1 << 30);  // the batches say it too
  add_precision(step, cells);
  add_fsdp_sharding(step, cells);
  const bool checkpointing = is_true(cells, "Activation Checkpointing");
  if (checkpointing) step.set("--recompute", "placement.recompute", "full");
  if (is_true(cells, "Activation CPUOffload")) throw UntranslatedRow{"activations are offloaded by a policy that is not stated", false};
  step.set("--flops-convention", "training.flops_convention", "llm-foundry");
  if (sized) add_sizes(step, sizes, std::string(cells.text("Model")), file);
  const double batch = static_cast<double>(cells.whole("GlobalBatchSize", 1, 1 << 30)) * static_cast<double>(cells.whole("SeqLen (T)", 1));
  step.measured_s = batch / positive_number(cells, "Throughput (T/s)", "tokens per second above zero");
  step.labels = {{"GPU", std::string(cells.text("GPU"))},
                 {"size", fmt::format("size {}", cells.text("Model"))},
                 {"sequence", fmt::format("sequence {}", cells.text("SeqLen (T)"))},
                 {"checkpointing", checkpointing ? "checkpointing" : "no checkpointing"},
                 {"GPUs", fmt::format("GPUs {}", cells.text("# GPUs"))}};
  return step;
}

}  // namespace

PublishedStep mpt_step(const RowCells& cells) { return translated(cells, Json::object(), ""); }

PublishedComparison compare_mpt(const CsvTable& table, const PublishedOptions& options) {
  PublishedComparison comparison;
  comparison.quantity = "tokens per second";
  const std::string file = file_beside(table.file, "mpt_model_configs.json");
  const Json sizes = read_sizes(file);
  const auto translate = [&](const RowCells& cells) { return translated(cells, sizes, file); };
  const StepRows rows = simulated_rows(table, all_rows(table), translate, options, comparison);
  for (std::size_t i = 0; i < rows.steps.size(); ++i) {
    const PublishedStep& step = rows.steps[i];
    const SimulatedStep& simulated = rows.simulated[i];
    const RowCells cells(table, step.row);
    const double measured = cells.number("Throughput (T/s)");
    const double tokens = measured * step.measured_s;
    Comparison row = step_time(step, simulated);
    row.measured = measured;
    row.simulated = tokens / simulated.step_s;
    row.lower = tokens / simulated.upper_s;
    row.upper = tokens / simulated.lower_s;
    add_row(comparison, step, std::move(row));
    const auto add_share = [&](const char* name, const char* column, const std::optional<double>& share) {
      if (!cells.has(column) || !share) return;
      const double percent = positive_number(cells, column, "percent above zero");
      comparison.other[name].push_back({.id = step.id, .row = step.row, .measured = percent / 100, .simulated = *share});
    };
    add_share("mfu", "MFU", simulated.mfu);
    add_share("hfu", "HFU", simulated.hfu);
  }
  return comparison;
}

}  // namespace stepsim
