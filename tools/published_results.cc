// published/results.csv: what its columns say of a job whatever the source, and the comparison of its rows.
#include "tools/published_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "hardware/machine_spec.h"
#include "models/model_spec.h"
#include "sim/input_error.h"
#include "tools/published_step_rows.h"

namespace stepsim {

namespace {

std::optional<ModelSpec> known_model(const std::string& name) {
  try {
    return load_model(name);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Without a model of the catalog the row has to give every size; what kind of layers they are is guessed.
void fill_model(FilledRow& row) {
  const std::string name(row.cells().text("model"));
  if (known_model(name)) return;
  for (const char* const column : {"layers", "hidden", "heads", "ffn", "vocab"}) {
    if (!row.cells().has(column)) throw UntranslatedRow{fmt::format("dimensions of {} are unknown", name)};
  }
  if (row.cells().has("n_experts")) throw UntranslatedRow{fmt::format("the experts of {} are unknown", name)};
  row.replace("model", "llama3-8b", fmt::format("layers of {} are of Llama's kind", name));
}

// "H100 (assumed)" is H100.
void fill_gpu(FilledRow& row) {
  std::string name(row.cells().text("gpu"));
  constexpr std::string_view kAssumed = " (assumed)";
  if (!name.ends_with(kAssumed)) return;
  name.resize(name.size() - kAssumed.size());
  row.replace("gpu", name, "the GPU is the one that the table assumes");
}

// A step of one pass, where nothing is said of accumulation.
void fill_batch(FilledRow& row) {
  const RowCells cells = row.cells();
  if (cells.has("global_batch") || !cells.has("micro_batch") || !cells.has("dp")) return;
  const std::int64_t accumulated = cells.has("grad_accum") ? cells.whole("grad_accum", 1, kMostOfCell) : 1;
  const std::int64_t batch = cells.whole("micro_batch", 1, kMostOfCell) * cells.whole("dp", 1, kMostOfCell) * accumulated;
  row.fill("global_batch", std::to_string(batch), cells.has("grad_accum") ? "" : "gradients are not accumulated");
}

// Layers that keep a state and attend nothing: no attention of this program's (issue 7: refused by name).
bool is_hybrid(std::string_view model) {
  static constexpr std::array<std::string_view, 7> kHybrids = {"nemotron_3", "nemotron-3", "nemotron-v3", "nemotron3",
                                                               "nemotron-h", "qwen3.",     "qwen3-next"};
  return std::any_of(kHybrids.begin(), kHybrids.end(), [&](std::string_view name) { return model.find(name) != std::string_view::npos; });
}

bool ran_out(const RowCells& cells) { return cells.text("status").starts_with("oom"); }

// Differences, what stands between passes and what a driver shows are no peaks of the allocator.
bool is_peak(std::string_view kind) { return !says(kind, "DELTA") && !says(kind, "resident") && !says(kind, "nvidia-smi"); }

void add_measurements(PublishedStep& step, const RowCells& cells) {
  step.out_of_memory = ran_out(cells);
  step.ran = !step.out_of_memory;
  constexpr double kLongest_s = 9e6;  // the engine's clock ends at 106 days
  if (cells.has("step_time_s") && step.ran) step.measured_s = positive_number(cells, "step_time_s", "seconds above zero");
  if (step.measured_s > kLongest_s) cells.refuse("step_time_s", "seconds, at most 104 days");
  const auto milliseconds = [&](const char* column) -> std::optional<double> {
    if (!cells.has(column)) return std::nullopt;
    return positive_number(cells, column, "milliseconds above zero") / 1e3;
  };
  step.forward_s = milliseconds("fwd_ms");
  step.backward_s = milliseconds("bwd_ms");
  step.peak_bytes.reset();
  if (!cells.has("peak_mem_gib") || !is_peak(cells.text("mem_kind")) || !step.ran) return;
  step.peak_bytes = positive_number(cells, "peak_mem_gib", "GiB above zero") * (1 << 30);
  // accuracy.md B.3: torchtitan's "memory" is what the allocator reserves, whatever the log calls it.
  const bool titan = result_source(cells) == ResultSource::kTorchtitan && !says(cells.text("mem_kind"), "active-step");
  step.peak_is_reserved = step.peak_is_reserved || titan;
}

std::string value_of(const PublishedStep& step, std::string_view path, const std::string& otherwise) {
  for (auto flag = step.input.flags.rbegin(); flag != step.input.flags.rend(); ++flag) {
    if (flag->path == path) return flag->value;
  }
  return otherwise;
}

void add_labels(PublishedStep& step, const RowCells& cells) {
  for (const char* const own : {"container", "flags known", "weak"}) {  // values of these say nothing without their names
    const auto label = step.labels.find(own);
    if (label != step.labels.end()) label->second = fmt::format("{}: {}", own, label->second);
  }
  const std::string gpu = load_gpu(value_of(step, "hardware.name", "")).name;
  const std::string precision = value_of(step, "training.precision", "bf16");
  const std::optional<ModelSpec> model = known_model(value_of(step, "model.name", ""));
  const bool experts = model && model->has_experts();
  step.labels.try_emplace("class", fmt::format("{}, {}, {}", experts ? "MoE" : "dense", gpu, precision));
  step.labels.insert_or_assign("source", std::string(cells.text("source_repo")));
  step.labels.try_emplace("gpu", gpu);
  step.labels.try_emplace("precision", precision);
  step.labels.try_emplace("kind", experts ? "MoE" : "dense");
}

void check_quality(const std::string& quality) {
  std::string_view rest = quality;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    if (one != "A" && one != "B" && one != "C" && one != "D") {
      throw InputError({"--quality"}, fmt::format("found \"{}\", wanted some of A,B,C,D", quality));
    }
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
}

void add_memory(PublishedComparison& comparison, const PublishedStep& step, const SimulatedStep& simulated) {
  const auto other = [&](const char* name, double measured, double figure, bool verdict) {
    comparison.other[name].push_back(
        {.id = step.id, .row = step.row, .measured = measured, .simulated = figure, .guesses = step.guesses, .verdict = verdict});
  };
  if (step.peak_bytes) {
    const double peak = step.peak_is_reserved && simulated.reserved_bytes > 0 ? simulated.reserved_bytes : simulated.peak_bytes;
    other("peak_bytes", *step.peak_bytes, peak, false);
  }
  if (step.part == MeasuredPart::kStep) other("fits", step.ran ? 1 : 0, simulated.fits ? 1 : 0, true);
}

}  // namespace

bool says(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool has_quality(const RowCells& cells, std::string_view wanted) {
  const std::string_view quality = cells.text("quality");
  while (true) {
    const std::size_t comma = wanted.find(',');
    if (wanted.substr(0, comma) == quality) return true;
    if (comma == std::string_view::npos) return false;
    wanted.remove_prefix(comma + 1);
  }
}

void FilledRow::fill(const std::string& column, const std::string& value, const std::string& guess) {
  if (!cells().has(column)) replace(column, value, guess);
}

void FilledRow::replace(const std::string& column, const std::string& value, const std::string& guess) {
  std::optional<std::size_t> place = table_.column(column);
  CsvRow& row = table_.rows.front();
  if (!place) {
    place = table_.head.size();
    table_.head.push_back(column);
    row.cells.emplace_back();
    row.origins.push_back({row.line, row.column, CellForm::kAny});
  }
  row.cells[*place] = value;
  row.origins[*place].form = CellForm::kAny;
  if (!guess.empty()) guesses_.push_back(guess);
}

ResultSource result_source(const RowCells& cells) {
  static constexpr std::array<std::string_view, 5> kMegatron = {"Megatron-Bridge", "NVIDIA/NeMo", "SimuMax", "Megatron-LM",
                                                                "arXiv 2205.05198"};
  const std::string_view source = cells.text("source_repo");
  if (says(source, "torchtitan")) return ResultSource::kTorchtitan;
  const bool megatron = std::any_of(kMegatron.begin(), kMegatron.end(), [&](std::string_view name) { return says(source, name); });
  return megatron ? ResultSource::kMegatron : ResultSource::kOther;
}

void add_result_precision(PublishedStep& step, const RowCells& cells) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"bf16", "bf16"},   {"fp16", "fp16"},   {"fp32", "fp32"},          {"fp32 (TF32 off)", "fp32"},
      {"mxfp8", "mxfp8"}, {"nvfp4", "nvfp4"}, {"fp8-tensorwise", "fp8"}, {"fp8", "fp8"}};
  const std::string_view precision = cells.text("precision");
  if (precision.empty()) {
    step.guesses.push_back("the precision is bf16");
    return step.set("--precision", "training.precision", "bf16");
  }
  for (const auto& [name, value] : kNames) {
    if (precision == name) return step.set("--precision", "training.precision", std::string(value));
  }
  throw UntranslatedRow{fmt::format("kernels of precision {}: no preset", precision)};
}

PublishedStep results_step(const RowCells& cells) {
  if (is_hybrid(cells.text("model"))) throw UntranslatedRow{"a hybrid of attention and state-space or linear-attention layers"};
  FilledRow row(cells);
  fill_model(row);
  fill_gpu(row);
  fill_batch(row);
  const RowCells filled = row.cells();
  const ResultSource source = result_source(cells);
  PublishedStep step = source == ResultSource::kMegatron     ? megatron_results_step(filled)
                       : source == ResultSource::kTorchtitan ? torchtitan_results_step(filled)
                                                             : other_results_step(filled);
  step.guesses.insert(step.guesses.begin(), row.guesses().begin(), row.guesses().end());
  step.source = fmt::format("{}, {}", cells.text("framework"), cells.text("source_date"));
  add_measurements(step, cells);
  add_labels(step, cells);
  return step;
}

PublishedComparison compare_results(const CsvTable& table, const PublishedOptions& options) {
  check_quality(options.quality);
  PublishedComparison comparison;
  comparison.quantity = "step_time_s";
  std::vector<std::size_t> wanted;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const RowCells cells(table, row);
    if (!has_quality(cells, options.quality)) {
      ++comparison.filtered;
    } else if (!cells.has("step_time_s") && !cells.has("peak_mem_gib") && !ran_out(cells)) {
      ++comparison.skipped["nothing that can be compared is measured"];
    } else {
      wanted.push_back(row);
    }
  }
  const StepRows rows = simulated_rows(table, wanted, results_step, options, comparison);
  for (std::size_t i = 0; i < rows.steps.size(); ++i) {
    const PublishedStep& step = rows.steps[i];
    add_memory(comparison, step, rows.simulated[i]);
    if (step.measured_s > 0) {
      add_row(comparison, step, step_time(step, rows.simulated[i]));
    } else {
      ++comparison.skipped["no step time is measured (peak and verdict are compared)"];
    }
  }
  return comparison;
}

}  // namespace stepsim
