// torchtitan's rows of published/results.csv; facts: spec/accuracy.md B.1, B.3 and B.5.
#include <fmt/format.h>

#include <string_view>

#include "tools/published_results.h"
#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

// "2024-12", "2026-06-02": texts of dates compare as dates do.
bool before(const RowCells& cells, std::string_view date) { return cells.text("source_date") < date; }

// B.1: tables of 2024-04 and 2024-08 ran eager whatever they leave unsaid; the other tables that do not say are of 2026, in formats that
// are slower than bf16 without a compiler.
bool is_compiled(const RowCells& cells, PublishedStep& step) {
  const std::string_view compile = cells.text("compile");
  if (compile != "unknown") return !compile.empty() && compile != "no";
  step.guesses.push_back(before(cells, "2026") ? "not compiled, as the toml files of that time say" : "compiled");
  return !before(cells, "2026");
}

// The last preset whose code the row can have run. Those of 2026 begin with the graph trainer's predecessors (accuracy.md B.4: one stack).
std::string framework(const RowCells& cells, PublishedStep& step) {
  const bool compiled = is_compiled(cells, step);
  if (says(cells.text("dp_mode"), "SimpleFSDP") && !compiled) {
    step.guesses.push_back("SimpleFSDP's eager graph runs the kernels of FSDP2");
  }
  if (!before(cells, "2025-09")) return compiled ? "torchtitan-compiled@2026" : "torchtitan@2026";
  if (compiled) return "torchtitan-compiled@2024-12";
  if (before(cells, "2024-08")) return "torchtitan@2024-04";
  return before(cells, "2024-12") ? "torchtitan@2024-08" : "torchtitan@2024-12";
}

// "selective op", "eager SAC", "graph SAC", "graph SAC default policy", ... of B.5.
void add_policy(PublishedStep& step, const RowCells& cells) {
  const std::string_view recompute = cells.text("recompute"), detail = cells.text("recompute_detail");
  const auto named = [&](const char* name) { step.set("--placement", "placement.name", name); };
  if (recompute == "none") return;
  if (recompute == "full") return step.set("--recompute", "placement.recompute", "full");
  if (recompute == "unknown" || recompute.empty()) {
    if (says(cells.text("model"), "qwen3-32b")) {  // its toml says full (train_configs/qwen3_32b.toml, from memory, unverified)
      step.guesses.push_back("every layer is checkpointed, as the model's configuration file says");
      return step.set("--recompute", "placement.recompute", "full");
    }
    step.guesses.push_back("selective op, the configuration files' default");
    return named("torchtitan:op");
  }
  if (recompute == "mixed")
    throw UntranslatedRow{"what is kept, run again and offloaded is a solver's choice that is not published", false};
  if (says(detail, "selective layer")) return add_recomputed_layers(step, cells, 2);  // int option 2: the default
  if (says(detail, "selective op") || says(detail, "eager SAC")) return named("torchtitan:op");
  if (says(detail, "graph SAC default") || says(detail, "default graph policy")) return named("torchtitan:graph");
  if (detail == "graph SAC") {  // B.5: which half of the products is kept flips from layer to layer; as much runs again
    step.guesses.push_back("the graph's selective policy keeps in every layer what it keeps in every second");
    return named("torchtitan:op");
  }
  throw UntranslatedRow{fmt::format("recompute policy {}", detail), false};
}

// Stages are cut before anything is known of the ends' cost: the first and the last have a layer less where layers are left over
// (torchtitan/parallelisms/pipelining_utils.py generate_split_points). Micro-batches: as many as stages (job_config.py
// pipeline_parallel_microbatches).
void fill_pipeline(FilledRow& row, PublishedStep& step) {
  const RowCells cells = row.cells();
  const std::int64_t stages = cells.has("pp") ? cells.whole("pp", 1, 1 << 20) : 1;
  if (stages == 1) return;
  const std::int64_t chunks = stages * (says(cells.text("notes"), "Interleaved") ? 2 : 1);
  if (chunks > stages) row.replace("vpp", "2", "two chunks a stage, the schedule's usual number");
  const bool batch = cells.has("global_batch") && cells.has("dp");
  const std::int64_t local = batch ? cells.whole("global_batch", 1, 1 << 24) / cells.whole("dp", 1, 1 << 24) : 0;
  if (local >= chunks && local % chunks == 0) {
    row.fill("micro_batch", std::to_string(local / chunks), "as many micro-batches as stages, the default");
  }
  const std::int64_t layers = cells.has("layers") ? cells.whole("layers", 1, 1 << 20) : 0;
  const std::int64_t each = layers / chunks, left = layers % chunks;
  if (left > 0 && left == chunks - 2) {
    const std::string ends = fmt::format("t*{}", each), inner = fmt::format("(t*{}|)*{}", each + 1, chunks - 2);
    step.set("--pp-layout", "parallel.pp_layout", fmt::format("E{}|{}{}L", ends, inner, ends));
  }
  // parallelize_llama.py apply_fsdp: no resharding under PP; pipelining/stage.py backward_maybe_with_nosync: one reduction.
  step.set("--set", "parallel.reshard_after_forward", "false");
  step.set("--set", "parallel.reduce_every_micro_batch", "false");
}

void add_loss(PublishedStep& step, const RowCells& cells) {
  const std::string_view notes = cells.text("notes");
  const bool plain = says(notes, "non-chunked"), chunked = says(notes, "chunked CE") && !plain;
  if (plain) step.set("--loss", "training.loss", "plain");
  const bool unsaid = !plain && !chunked && !before(cells, "2026-06");
  if (unsaid) step.guesses.push_back("ChunkedCELoss of 8 chunks, the trainer's since the middle of 2026");
  if (chunked || unsaid) step.set("--loss", "training.loss", "chunked=8");  // B.1: ChunkedCELoss, 8 chunks
}

void add_notes(PublishedStep& step, const RowCells& cells) {
  const std::string_view notes = cells.text("notes");
  for (const char* const value : {"true", "false"}) {
    const std::string said = value[0] == 't' ? "AdamW fused=True" : "AdamW fused=False";
    if (says(notes, said)) step.set("--set", "framework.fused_optimizer", value);
  }
  const bool tensor = cells.has("tp") && cells.whole("tp", 1) > 1;
  if (tensor && (says(notes, "AsyncTP") || says(notes, "async TP"))) step.set("--tp-overlap", "parallel.tensor_overlap", "ring");
  // job_config.py context_parallel_rotate_method: allgather is the default.
  if (cells.has("cp") && cells.whole("cp", 1) > 1) step.set("--cp-exchange", "parallel.context_exchange", "allgather");
}

void add_cluster(PublishedStep& step, const RowCells& cells) {
  if (says(cells.text("gpu"), "A100")) return set_cluster(step, "torchtitan-a100");
  if (says(cells.text("gpu"), "H100")) set_cluster(step, "torchtitan-h100");
}

}  // namespace

PublishedStep torchtitan_results_step(const RowCells& row_cells) {
  const std::string_view mode = row_cells.text("dp_mode");
  if (says(mode, "fake comm") || says(mode, "virtual")) throw UntranslatedRow{"collectives are faked: one GPU stands for many", false};
  PublishedStep step;
  FilledRow row(row_cells);
  fill_pipeline(row, step);
  const RowCells cells = row.cells();
  step.set("--framework", "framework.name", framework(cells, step));
  add_result_sizes(step, cells);
  add_cluster(step, cells);
  add_result_precision(step, cells);
  add_policy(step, cells);
  add_loss(step, cells);
  add_notes(step, cells);
  if (says(mode, "FSDP")) step.set("--zero", "parallel.zero", "3");
  if (says(mode, "assumed")) step.guesses.push_back("the number of GPUs is the table's author's assumption");
  // Tensor parallelism there always shards norms and residuals by tokens (parallelize_llama.py).
  if (cells.has("tp") && cells.whole("tp", 1) > 1) step.set("--sequence-parallel", "parallel.sequence_parallel", "true");
  step.guesses.insert(step.guesses.end(), row.guesses().begin(), row.guesses().end());
  return step;
}

}  // namespace stepsim
