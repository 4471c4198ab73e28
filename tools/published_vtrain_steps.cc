// vTrain's 59 steps of Megatron-DeepSpeed on A100 (arXiv 2312.12391); facts: spec/accuracy.md A.2.
#include <fmt/format.h>

#include <array>

#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

struct Column {
  std::string_view column, flag, path;
};
constexpr std::array<Column, 8> kColumns = {{{"# GPUs", "--gpus", "hardware.gpus"},
                                             {"global batch", "--global-batch", "training.global_batch"},
                                             {"micro batch", "--micro-batch", "training.micro_batch"},
                                             {"# layers", "--layers", "model.layers"},
                                             {"sequence length", "--sequence", "training.sequence"},
                                             {"tensor parallelism", "--tp", "parallel.tp"},
                                             {"data parallelism", "--dp", "parallel.dp"},
                                             {"pipeline parallelism", "--pp", "parallel.pp"}}};

}  // namespace

PublishedStep vtrain_step(const RowCells& cells) {
  PublishedStep step;
  step.source = "Megatron-DeepSpeed as vTrain measured it (arXiv 2312.12391)";
  step.set("--framework", "framework.name", "megatron-deepspeed@2021");
  step.set("--model", "model.name", "gpt3-175b");  // the kind of layer; its sizes are the row's
  step.set("--hardware", "hardware.name", "a100-sxm-80gb");
  set_cluster(step, "vtrain-a100");
  for (const Column& column : kColumns) {
    step.set(std::string(column.flag), std::string(column.path), std::to_string(cells.whole(column.column, 1, 1 << 30)));
  }
  step.set("--precision", "training.precision", "fp16");
  step.set("--grad-dtype", "training.grad_dtype", "fp32");  // accuracy.md A.3, step 7
  step.set("--attention", "training.attention", "unfused");
  step.set("--recompute", "placement.recompute", "full");
  const std::int64_t hidden = cells.whole("hidden size", 1, 1 << 20), heads = cells.whole("attention heads", 1, hidden);
  if (hidden % heads != 0) cells.refuse("attention heads", "a divisor of the hidden size");
  step.dimensions = {{"hidden", hidden},
                     {"heads", heads},
                     {"kv_heads", heads},
                     {"head_dim", hidden / heads},
                     {"ffn_hidden", 4 * hidden},
                     {"vocab", 51200},  // accuracy.md A.2: assumed there
                     {"max_positions", cells.whole("sequence length", 1, 1 << 24)}};
  if (cells.has("Parameters (billion)")) positive_number(cells, "Parameters (billion)", "billions above zero");  // the sizes say it too
  step.measured_s = positive_number(cells, "iteration time (ms)", "milliseconds above zero") / 1e3;
  step.labels = {{"hidden", fmt::format("hidden {}", cells.text("hidden size"))},
                 {"tp", fmt::format("tp {}", cells.text("tensor parallelism"))},
                 {"pp", fmt::format("pp {}", cells.text("pipeline parallelism"))},
                 {"dp", fmt::format("dp {}", cells.text("data parallelism"))},
                 {"micro-batch", fmt::format("micro-batch {}", cells.text("micro batch"))}};
  step.guesses = {"the card is the 80 GB one, the vocabulary 51200, every layer recomputed (accuracy.md A.2)"};
  return step;
}

PublishedComparison compare_vtrain(const CsvTable& table, const PublishedOptions& options) {
  PublishedComparison comparison;
  comparison.quantity = "step_time_s";
  const StepRows rows = simulated_rows(table, all_rows(table), vtrain_step, options, comparison);
  for (std::size_t i = 0; i < rows.steps.size(); ++i) add_row(comparison, rows.steps[i], step_time(rows.steps[i], rows.simulated[i]));
  return comparison;
}

}  // namespace stepsim
