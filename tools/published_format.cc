#include "tools/published_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "schema/nearest_name.h"
#include "sim/input_error.h"
#include "tools/error_statistics.h"
#include "tools/json_rows.h"
#include "tools/row_cells.h"

namespace stepsim {

struct Format {
  std::string_view name;
  std::vector<std::string_view> columns;  // by which its tables are known
  PublishedComparison (*compare)(const CsvTable&, const PublishedOptions&);
  bool measures_steps = false;  // whole ones, each with its job
};

// Of a format that has no options.
template <PublishedComparison (*compare)(const CsvTable&)>
static PublishedComparison plain(const CsvTable& table, const PublishedOptions&) {
  return compare(table);
}

static const std::vector<Format>& formats() {
  static const std::vector<Format> kFormats = {
      {"results", {"id", "category", "framework", "model", "gpu", "n_gpus"}, compare_results, true},
      {"pairs", {"base_id", "var_id", "time_ratio"}, compare_pairs},
      {"mpt", {"Model", "SeqLen (T)", "# GPUs"}, compare_mpt, true},
      {"vtrain", {"Parameters (billion)", "iteration time (ms)"}, compare_vtrain, true},
      {"megatron-golden", {"case", "golden", "mem_max_second"}, plain<compare_memory>},
      {"gemm", {"op", "dtype", "m", "n", "k", "gpu", "latency_us"}, plain<compare_gemm>},
      {"attention", {"causal", "head_dim", "batch", "seq", "heads", "gpu", "latency_us"}, plain<compare_attention>},
      {"collective", {"op", "num_gpus", "message_bytes", "gpu", "latency_us"}, plain<compare_collective>},
      {"elementwise", {"op", "rows", "cols", "gpu", "latency_us"}, plain<compare_elementwise>},
      {"pipeline", {"schedule", "p", "m"}, plain<compare_pipeline>},
      {"offload", {"L", "f", "b", "d2h", "h2d", "keep_last", "max_resident", "lookahead", "head", "engines"}, plain<compare_offload>}};
  return kFormats;
}

std::optional<BandStatistics> band_statistics(const std::vector<Comparison>& rows) {
  std::vector<double> widths;
  std::size_t inside = 0;
  for (const Comparison& row : rows) {
    if (!row.banded() || row.simulated == 0) continue;
    widths.push_back((*row.upper - *row.lower) / 2 / row.simulated);
    inside += row.inside() ? 1 : 0;
  }
  if (widths.empty()) return std::nullopt;
  std::sort(widths.begin(), widths.end());
  return BandStatistics{static_cast<double>(inside) / static_cast<double>(widths.size()), nearest_rank(widths, 0.5)};
}

CsvTable parse_published(std::string_view text, const std::string& file) {
  return is_json(text) ? parse_json_rows(text, file) : parse_csv(text, file);
}

std::string detected_format(const CsvTable& table) {
  for (const Format& format : formats()) {
    bool all = true;
    for (const std::string_view column : format.columns) all = all && table.column(column).has_value();
    if (all) return std::string(format.name);
  }
  throw InputError({table.file, 1, 1},
                   fmt::format("found columns {}, wanted those of a known format (give --format)", fmt::join(table.head, ",")));
}

static const Format& format_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Format& format : formats()) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  throw InputError({"--format"},
                   fmt::format("found \"{}\", wanted one of auto, {}{}", name, fmt::join(names, ", "), suggestion(name, names)));
}

void check_evidence(const std::string& name) {
  if (format_named(name).measures_steps) return;
  std::vector<std::string_view> known;
  for (const Format& format : formats()) {
    if (format.measures_steps) known.push_back(format.name);
  }
  throw InputError({"--evidence"}, fmt::format("found it with format {}, wanted {}", name, fmt::join(known, " or ")));
}

PublishedComparison compare_published(const std::string& name, const CsvTable& table, const PublishedOptions& options) {
  const Format& format = format_named(name);
  for (const std::string_view column : format.columns) {
    if (!table.column(column))
      throw InputError({table.file, 1, 1}, fmt::format("found no column {}, wanted the columns of format {}", column, name));
  }
  return format.compare(table, options);
}

}  // namespace stepsim
