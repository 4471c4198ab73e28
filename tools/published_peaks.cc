// Peaks of memory that published/results.csv gives for whole training runs, against the simulated step of the same configuration.
#include "tools/published_peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/input_error.h"
#include "tools/row_cells.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Why a row's peak cannot be predicted.
struct Unknown {
  std::string reason;
};

struct Wanted {
  JobInput input{"", {}};
  bool reserved = false;  // what is measured is reserved, not allocated
  std::optional<std::int64_t> dense_layers{};
};

void add(Wanted& wanted, const std::string& flag, std::string_view path, std::string value) {
  wanted.input.flags.push_back({flag, std::string(path), std::move(value)});
}

std::string year(const RowCells& cells) { return std::string(cells.text("source_date").substr(0, 4)); }

bool is_torchtitan(const RowCells& cells) { return contains(cells.text("framework"), "torchtitan"); }
bool is_simumax(const RowCells& cells) { return contains(cells.text("source_repo"), "SimuMax"); }

// The preset that stands for the row's software.
std::string framework(const RowCells& cells) {
  if (is_torchtitan(cells)) {
    const std::string_view compile = cells.text("compile");
    const bool compiled = !compile.empty() && compile != "no" && compile != "unknown";
    if (year(cells) == "2024") return compiled ? "torchtitan-compiled@2024-12" : "torchtitan@2024-12";
    if (contains(cells.text("dp_mode"), "SimpleFSDP") && !compiled) throw Unknown{"SimpleFSDP without a compiler: no preset"};
    return compiled ? "torchtitan-compiled@2026" : "torchtitan@2026";
  }
  if (is_simumax(cells)) return "megatron-core@2026";
  throw Unknown{fmt::format("framework {}: no preset for its version", cells.text("framework"))};
}

// torchtitan: "selective op", "eager SAC", "graph SAC", "graph SAC default policy", ... of spec/accuracy.md B.5.
void add_policy(Wanted& wanted, const RowCells& cells) {
  const std::string_view recompute = cells.text("recompute"), detail = cells.text("recompute_detail");
  if (recompute == "none") return;
  if (recompute == "full") return add(wanted, "--recompute", "placement.recompute", "full");
  if (recompute == "unknown" || recompute == "mixed") throw Unknown{"its recompute policy is not stated, or a solver's"};
  if (!is_torchtitan(cells) || recompute != "selective") throw Unknown{fmt::format("recompute policy {} {}", recompute, detail)};
  if (contains(detail, "selective op") || contains(detail, "eager SAC"))
    return add(wanted, "--placement", "placement.name", "torchtitan:op");
  if (contains(detail, "graph SAC default") || contains(detail, "default graph policy")) {
    return add(wanted, "--placement", "placement.name", "torchtitan:graph");
  }
  if (detail == "graph SAC") return add(wanted, "--placement", "placement.name", "torchtitan:graph-alternating");
  throw Unknown{fmt::format("recompute policy {}", detail)};
}

void add_precision(Wanted& wanted, const RowCells& cells) {
  static const std::pair<std::string_view, std::string_view> kNames[] = {{"bf16", "bf16"},   {"fp8-tensorwise", "fp8"}, {"fp16", "fp16"},
                                                                         {"mxfp8", "mxfp8"}, {"nvfp4", "nvfp4"},        {"fp32", "fp32"}};
  for (const auto& [name, flag] : kNames) {
    if (cells.text("precision") == name) return add(wanted, "--precision", "training.precision", std::string(flag));
  }
  throw Unknown{fmt::format("precision {}", cells.text("precision"))};
}

void add_sizes(Wanted& wanted, const RowCells& cells) {
  struct Column {
    std::string_view column, flag, path;
    bool needed = true;
  };
  static constexpr std::array<Column, 10> kColumns = {{{"n_gpus", "--gpus", "hardware.gpus"},
                                                       {"layers", "--layers", "model.layers"},
                                                       {"seq_len", "--sequence", "training.sequence"},
                                                       {"micro_batch", "--micro-batch", "training.micro_batch"},
                                                       {"global_batch", "--global-batch", "training.global_batch"},
                                                       {"tp", "--tp", "parallel.tp"},
                                                       {"pp", "--pp", "parallel.pp"},
                                                       {"cp", "--cp", "parallel.cp"},
                                                       {"ep", "--ep", "parallel.ep", false},
                                                       {"vpp", "--virtual-stages", "parallel.virtual_stages", false}}};
  for (const Column& column : kColumns) {
    const std::string_view text = cells.text(column.column);
    if (text.empty() && column.needed) throw Unknown{fmt::format("{} is not stated", column.column)};
    if (!text.empty()) add(wanted, std::string(column.flag), column.path, std::string(text));
  }
}

Wanted wanted_job(const RowCells& cells) {
  Wanted wanted;
  if (cells.text("task") != "pretrain") throw Unknown{fmt::format("task {}", cells.text("task"))};
  for (const char* const column : {"act_offload", "opt_offload"}) {
    if (cells.text(column) != "no") throw Unknown{"what is offloaded is not stated as a policy that is built in"};
  }
  add(wanted, "--framework", "framework.name", framework(cells));
  add(wanted, "--model", "model.name", std::string(cells.text("model")));
  add(wanted, "--hardware", "hardware.name", std::string(cells.text("gpu")));
  add_sizes(wanted, cells);
  add_precision(wanted, cells);
  add_policy(wanted, cells);
  const std::string_view mode = cells.text("dp_mode");
  const bool fsdp = contains(mode, "FSDP");
  if (contains(mode, "virtual")) throw Unknown{"communication is faked"};
  if (contains(mode, "assumed")) throw Unknown{"its number of GPUs is assumed"};
  add(wanted, "--zero", "parallel.zero", fsdp ? "3" : contains(mode, "distributed optimizer") ? "1" : "0");
  // torchtitan's tensor parallelism always shards norms and residuals by tokens (parallelize_llama.py).
  const bool titan = is_torchtitan(cells);
  if (cells.text("sp") == "yes" || (titan && cells.text("tp") != "1"))
    add(wanted, "--sequence-parallel", "parallel.sequence_parallel", "true");
  wanted.reserved = titan;  // accuracy.md B.3: its "memory" is max_reserved
  const std::string_view said = cells.text("unknowns");
  constexpr std::string_view kDense = "dense_layers=";
  if (const std::size_t at = said.find(kDense); at != std::string_view::npos && cells.has("n_experts")) {
    wanted.dense_layers = said[at + kDense.size()] - '0';
  }
  // "cef": Transformer Engine's, by the repository's guide (docs/b200/b200_real_repro_guide.md section 4).
  if (contains(said, "cross-entropy fusion on")) add(wanted, "--loss", "training.loss", "fused");
  return wanted;
}

// The columns' dimensions above the catalog's.
void set_dimensions(ModelSpec& model, const RowCells& cells, const Wanted& wanted) {
  const std::pair<std::string_view, std::int64_t*> fields[] = {{"hidden", &model.hidden},     {"heads", &model.heads},
                                                               {"kv_heads", &model.kv_heads}, {"head_dim", &model.head_dim},
                                                               {"ffn", &model.ffn_hidden},    {"vocab", &model.vocab}};
  for (const auto& [column, field] : fields) {
    const bool latent = model.is_latent() && (column == "head_dim" || column == "kv_heads");
    if (cells.has(column) && !latent) *field = cells.whole(column, 1);
  }
  if (wanted.dense_layers) {
    model.expert_layers.assign(static_cast<std::size_t>(model.layers), 1);
    std::fill_n(model.expert_layers.begin(), std::min(*wanted.dense_layers, model.layers), std::uint8_t{0});
    model.multi_token_layers = 0;
  }
  if (const std::optional<FieldProblem> problem = model_problem(model)) {
    throw Unknown{fmt::format("{} is {}, wanted {}", problem->field, problem->found, problem->wanted)};
  }
}

Bytes largest_peak(const StepRun& run, bool reserved) {
  Bytes peak;
  for (const DeviceMemory& memory : run.run.memory) peak = std::max(peak, memory.peak.bytes);
  if (!reserved) return peak;
  if (!run.allocation.replayed()) throw Unknown{"what is reserved: " + run.allocation.not_replayed};
  peak = Bytes(0);
  for (const DeviceAllocation& device : run.allocation.devices) peak = std::max(peak, reserved_peak(device));
  return peak;
}

// Runs that differ in their micro-batches alone may have the same peak: they are simulated all the same, as nothing says so.
Bytes predicted_peak(const RowCells& cells) {
  const Wanted wanted = wanted_job(cells);
  Job job;
  try {
    job = resolve_job(wanted.input);
  } catch (const InputError& error) {
    throw Unknown{fmt::format("a job that is refused: {}", error.what())};
  }
  set_dimensions(job.model, cells, wanted);
  job.stop_at_out_of_memory = false;
  try {
    return largest_peak(run_step(job), wanted.reserved);
  } catch (const InputError& error) {
    throw Unknown{fmt::format("a job that is refused: {}", error.what())};
  }
}

}  // namespace

PublishedComparison compare_peaks(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "peak bytes (allocated, or reserved where the source logs that)";
  comparison.notes.push_back("step times of these rows are not compared yet");
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const RowCells cells(table, row);
    const std::string_view quality = cells.text("quality");
    if (quality != "A" && quality != "B") {
      ++comparison.filtered;
      continue;
    }
    if (!cells.has("peak_mem_gib")) {
      ++comparison.skipped["no peak memory is measured"];
      continue;
    }
    const double measured = cells.number("peak_mem_gib") * (1 << 30);
    if (!(measured > 0) || !std::isfinite(measured)) cells.refuse("peak_mem_gib", "GiB above zero");
    try {
      const Bytes peak = predicted_peak(cells);
      comparison.rows.push_back({.id = table.row_id(row), .row = row, .measured = measured, .simulated = static_cast<double>(peak.value)});
      comparison.labels["source"].emplace_back(is_simumax(cells) ? "SimuMax" : "torchtitan");
    } catch (const Unknown& unknown) {
      ++comparison.skipped[unknown.reason];
    }
  }
  return comparison;
}

}  // namespace stepsim
