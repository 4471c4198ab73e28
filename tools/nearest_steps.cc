#include "tools/nearest_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "schema/embedded_files.h"
#include "sim/check.h"
#include "tools/csv_table.h"
#include "tools/row_cells.h"

namespace stepsim {

std::span<const EmbeddedFile> measured_step_files();

namespace {

constexpr std::array<std::string_view, 14> kColumns = {"id",         "source",     "model",     "kind",     "active_parameters", "gpu",
                                                       "gpus",       "precision",  "framework", "sequence", "tokens_per_gpu",    "layout",
                                                       "measured_s", "simulated_s"};
constexpr std::string_view kExperts = "experts", kDense = "dense";

std::string_view precision_name(Precision precision) {
  constexpr std::array<std::string_view, 6> kNames = {"bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"};
  return kNames[static_cast<std::size_t>(precision)];
}

std::string layout_text(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"tp", parallel.tensor},  {"pp", parallel.pipeline}, {"virtual", parallel.virtual_stages},
      {"cp", parallel.context}, {"ep", parallel.expert},   {"dp", parallel.data},
      {"zero", parallel.zero}};
  for (const auto& [name, size] : sizes) {
    const bool usual = size == (std::string_view(name) == "zero" ? 0 : 1);
    if (!usual) add(fmt::format("{} {}", name, size));
  }
  add(fmt::format("micro-batch {}", job.training.micro_batch));
  const std::string placement = placement_label(job.placement);
  if (placement != "none") add("recompute " + placement);
  return text;
}

std::string quoted(const std::string& text) { return text.find(',') == std::string::npos ? text : '"' + text + '"'; }

MeasuredStepRow row_of(const RowCells& cells) {
  MeasuredStepRow row;
  row.id = cells.text("id");
  row.source = cells.text("source");
  row.model = cells.text("model");
  row.experts = cells.text("kind") == kExperts;
  row.active_parameters = cells.whole("active_parameters", 1);
  row.gpu = cells.text("gpu");
  row.gpus = cells.whole("gpus", 1);
  row.precision = cells.text("precision");
  row.framework = cells.text("framework");
  row.sequence = cells.whole("sequence", 1);
  row.tokens_per_gpu = cells.whole("tokens_per_gpu", 1);
  row.layout = cells.text("layout");
  row.measured_s = cells.number("measured_s");
  row.simulated_s = cells.number("simulated_s");
  STEPSIM_CHECK(row.measured_s > 0);
  STEPSIM_CHECK(row.simulated_s > 0);
  return row;
}

std::string_view family(std::string_view framework) { return framework.substr(0, framework.find('@')); }

double octaves(std::int64_t a, std::int64_t b) { return std::fabs(std::log2(static_cast<double>(a) / static_cast<double>(b))); }

NearStep compared(const MeasuredStepRow& job, const MeasuredStepRow& row) {
  NearStep near{.row = &row};
  bool within = job.gpu == row.gpu && job.precision == row.precision && job.experts == row.experts;
  const std::pair<std::int64_t, std::int64_t> numbers[] = {{job.active_parameters, row.active_parameters},
                                                           {job.gpus, row.gpus},
                                                           {job.sequence, row.sequence},
                                                           {job.tokens_per_gpu, row.tokens_per_gpu}};
  for (const auto& [a, b] : numbers) {
    near.distance += octaves(a, b);
    within = within && a <= 2 * b && b <= 2 * a;
  }
  near.distance += (job.gpu == row.gpu ? 0 : 2) + (job.precision == row.precision ? 0 : 1) +
                   (family(job.framework) == family(row.framework) ? 0 : 1) + (job.experts == row.experts ? 0 : 3);
  near.within = within;
  return near;
}

bool same_configuration(const MeasuredStepRow& a, const MeasuredStepRow& b) {
  return a.model == b.model && a.gpu == b.gpu && a.gpus == b.gpus && a.precision == b.precision && a.sequence == b.sequence &&
         a.tokens_per_gpu == b.tokens_per_gpu && a.layout == b.layout && family(a.framework) == family(b.framework);
}

}  // namespace

MeasuredStepRow measured_row_of(const Job& job) {
  MeasuredStepRow row;
  row.model = job.model.name;
  row.experts = job.model.has_experts();
  row.active_parameters = std::max(std::int64_t{1}, parameter_count(job.model, job.training.sequence).active);
  row.gpu = job.gpu.name;
  row.gpus = job.gpus;
  row.precision = precision_name(job.training.precision);
  row.framework = framework_label(job.framework);
  row.sequence = job.training.sequence;
  const double tokens = static_cast<double>(job.training.global_batch) * static_cast<double>(job.training.sequence);
  row.tokens_per_gpu = std::max(std::int64_t{1}, static_cast<std::int64_t>(tokens / static_cast<double>(job.gpus)));
  row.layout = layout_text(job);
  return row;
}

std::string measured_rows_text(const std::vector<MeasuredStepRow>& rows) {
  std::string text = fmt::format("{}\n", fmt::join(kColumns, ","));
  for (const MeasuredStepRow& row : rows) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{:.6g},{:.6g}\n", row.id, quoted(row.source), row.model,
                        row.experts ? kExperts : kDense, row.active_parameters, row.gpu, row.gpus, row.precision, row.framework,
                        row.sequence, row.tokens_per_gpu, quoted(row.layout), row.measured_s, row.simulated_s);
  }
  return text;
}

const std::vector<MeasuredStepRow>& measured_step_rows() {
  static const std::vector<MeasuredStepRow> kRows = [] {
    std::vector<MeasuredStepRow> rows;
    for (const EmbeddedFile& file : measured_step_files()) {
      const CsvTable table = parse_csv(file.text, std::string(file.path));
      for (std::size_t row = 0; row < table.rows.size(); ++row) rows.push_back(row_of(RowCells(table, row)));
    }
    return rows;
  }();
  return kRows;
}

std::vector<NearStep> nearest_steps(const Job& job, std::size_t most) {
  const MeasuredStepRow own = measured_row_of(job);
  std::vector<NearStep> all;
  for (const MeasuredStepRow& row : measured_step_rows()) all.push_back(compared(own, row));
  std::stable_sort(all.begin(), all.end(), [](const NearStep& a, const NearStep& b) { return a.distance < b.distance; });
  std::vector<NearStep> nearest;
  for (const NearStep& each : all) {
    if (nearest.size() == most) break;
    const bool repeated =
        std::any_of(nearest.begin(), nearest.end(), [&](const NearStep& known) { return same_configuration(*known.row, *each.row); });
    if (!repeated) nearest.push_back(each);
  }
  return nearest;
}

}  // namespace stepsim
