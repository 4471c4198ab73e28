#include "tools/measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "hardware/machine_spec.h"
#include "schema/nearest_name.h"
#include "sim/input_error.h"
#include "tools/measured_layouts.h"

namespace stepsim {

namespace {

// A column of the head that states the same quantity in another unit, or in none.
std::string misnamed(const CsvTable& table, const std::string& wanted) {
  static const std::vector<std::string> kTimes = {"latency", "latency_ns", "latency_ms", "latency_s", "time", "time_ns",
                                                  "time_us", "time_ms",    "time_s",     "us",        "ms"};
  if (wanted == "latency_us") {
    for (const std::string& name : kTimes) {
      if (table.column(name)) return name;
    }
  }
  if (wanted == "message_bytes" && table.column("message_size")) return "message_size";
  const std::string nearest = nearest_name(wanted, table.head);
  const bool same_letters = !nearest.empty() && nearest != wanted;
  return same_letters ? nearest : "";
}

[[noreturn]] void refuse_head(const MeasuredColumns& columns) {
  const CsvTable& table = columns.table();
  const MeasuredLayout* nearest = nullptr;
  std::vector<std::string> lacking;
  for (const MeasuredLayout& layout : measured_layouts()) {
    std::vector<std::string> missing;
    for (const std::string& column : layout.columns) {
      if (!table.column(column)) missing.push_back(column);
    }
    const bool nearer =
        nearest == nullptr || layout.columns.size() - missing.size() > nearest->columns.size() - lacking.size() ||
        (layout.columns.size() - missing.size() == nearest->columns.size() - lacking.size() && missing.size() <= lacking.size());
    if (!nearer) continue;
    nearest = &layout;
    lacking = missing;
  }
  if (lacking.size() * 2 > nearest->columns.size()) {
    columns.fail_in_head("", fmt::format("found columns {}, wanted those of a layout such as op,dtype,m,n,k,latency_us (tools/README.md)",
                                         fmt::join(table.head, ",")));
  }
  const std::string other = misnamed(table, lacking.front());
  std::string wanted = fmt::format("wanted {} of the layout \"{}\": {}", lacking.front(), nearest->name, fmt::join(nearest->columns, ","));
  if (lacking.front() == "latency_us") wanted = "wanted latency_us, microseconds (" + std::string(nearest->name) + ")";
  if (other == "message_size") wanted = "wanted message_bytes: message_size counts elements";
  columns.fail_in_head(other, other.empty() ? fmt::format("found no column {}, {}", lacking.front(), wanted)
                                            : fmt::format("found column \"{}\", {}", other, wanted));
}

const MeasuredLayout& layout_of(const MeasuredColumns& columns) {
  for (const MeasuredLayout& layout : measured_layouts()) {
    const auto has = [&](const std::string& column) { return columns.has(column); };
    if (std::all_of(layout.columns.begin(), layout.columns.end(), has)) return layout;
  }
  refuse_head(columns);
}

std::string catalog_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) return "";
  try {
    return load_gpu(name).name;
  } catch (const InputError&) {
    return "";
  }
}

std::string folded(std::string name) {
  for (char& c : name) c = c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// The GPU whose rows are read, as the file writes it. "": it names none.
std::string chosen_gpu(const MeasuredColumns& columns, const std::string& wanted) {
  if (!columns.has("gpu")) return "";
  std::vector<std::string> names;
  for (std::size_t row = 0; row < columns.rows(); ++row) {
    const std::string& name = columns.text(row, "gpu");
    if (name.empty()) columns.fail(row, "gpu", "found an empty gpu, wanted a name");
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  if (wanted.empty() && names.size() > 1)
    throw InputError({"--gpu"}, fmt::format("found none, wanted one of {}, which {} has", list, columns.table().file));
  if (wanted.empty()) return names.front();
  for (const std::string& name : names) {
    if (folded(name) == folded(wanted)) return name;
  }
  for (const std::string& name : names) {
    if (same_gpu(name, wanted)) return name;
  }
  throw InputError({"--gpu"}, fmt::format("found \"{}\", wanted one of {}, which {} has{}", wanted, list, columns.table().file,
                                          suggestion(wanted, names)));
}

void add_source(const std::string& source, std::vector<std::string>& sources) {
  constexpr std::size_t kMost = 3;
  if (source.empty() || sources.size() >= kMost) return;
  if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(source);
}

}  // namespace

bool same_gpu(const std::string& a, const std::string& b) {
  if (folded(a) == folded(b)) return true;
  const std::string machine = catalog_name(a);
  return !machine.empty() && machine == catalog_name(b);
}

Measurements read_measurements(const std::string& file, const std::string& text, const MeasurementOptions& options) {
  if (is_nccl_tests(text)) return read_nccl_tests(file, text, options);
  const CsvTable table = parse_csv(text, file);
  const MeasuredColumns columns(table, text);
  const MeasuredLayout& layout = layout_of(columns);
  if (table.rows.empty()) throw InputError({file, 1, 1}, "found a head alone, wanted rows of measurements");
  Measurements measurements;
  measurements.file = file;
  measurements.gpu = chosen_gpu(columns, options.gpu);
  MeasurementRows rows(columns, options, measurements);
  for (std::size_t row = 0; row < columns.rows(); ++row) {
    if (!measurements.gpu.empty() && columns.text(row, "gpu") != measurements.gpu) continue;
    layout.read(row, rows);
    if (columns.has("source")) add_source(columns.text(row, "source"), measurements.sources);
  }
  return measurements;
}

}  // namespace stepsim
