#include "tools/megatron_goldens.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "schema/read_message.h"

namespace stepsim {

namespace {

using ParsedJson = nlohmann::json;
using Values = std::map<std::string, std::string>;

// What is no argument.
constexpr std::array<std::string_view, 9> kMeasured = {
    "case",         "golden",          "steps",          "mem_max_first",     "mem_max_second",
    "mem_max_last", "mem_alloc_first", "mem_alloc_last", "iter_time_median_s"};

bool is_measured(const std::string& column) {
  for (const std::string_view name : kMeasured) {
    if (column == name) return true;
  }
  return false;
}

std::map<std::string, Values> read_configs(const std::string& table_file) {
  const std::filesystem::path path = std::filesystem::path(table_file).parent_path() / "megatron_golden_configs.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  const std::string text = read_text_file(path.string(), kLargestTable);
  const ParsedJson all = ParsedJson::parse(text, nullptr, false);
  const auto refuse = [&](const std::string& found) {
    throw InputError({path.string()}, "found " + found + ", wanted an object of arguments for each case");
  };
  if (!all.is_object()) refuse(all.is_discarded() ? "no JSON" : "another value");
  std::map<std::string, Values> configs;
  for (const auto& [name, arguments] : all.items()) {
    if (!arguments.is_object()) refuse("no arguments of case " + name);
    Values& values = configs[name];
    for (const auto& [flag, value] : arguments.items()) {
      if (value.is_structured()) refuse("a list or an object for --" + flag + " of case " + name);
      if (value.is_null()) continue;
      values[flag] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return configs;
}

std::optional<double> measured(const CsvTable& table, const CsvRow& row, std::string_view name) {
  const std::optional<std::size_t> column = table.column(name);
  if (!column || row.cells[*column].empty()) return std::nullopt;
  const std::string& text = row.cells[*column];
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || !(value < 1e18)) {
    const CellOrigin& origin = row.origins[*column];
    throw InputError({table.file, origin.line, origin.column}, "found " + std::string(name) + " \"" + text + "\", wanted bytes above 0");
  }
  return value;
}

}  // namespace

std::vector<GoldenRow> golden_rows(const CsvTable& table) {
  const std::map<std::string, Values> configs = read_configs(table.file);
  const std::size_t test_case = *table.column("case"), golden = *table.column("golden");
  std::vector<GoldenRow> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow& row = table.rows[i];
    const std::string& name = row.cells[test_case];
    const auto config = configs.find(name);
    Values values;
    if (config != configs.end()) values = config->second;
    for (std::size_t column = 0; column < table.head.size(); ++column) {
      if (!is_measured(table.head[column])) values.try_emplace(table.head[column], row.cells[column]);
    }
    rows.push_back({.row = i,
                    .configured = config != configs.end(),
                    .run = {name, row.cells[golden], MegatronArguments(values, {table.file, row.line, 1})},
                    .first_peak = measured(table, row, "mem_max_first"),
                    .second_peak = measured(table, row, "mem_max_second"),
                    .last_peak = measured(table, row, "mem_max_last"),
                    .last_allocated = measured(table, row, "mem_alloc_last")});
  }
  return rows;
}

}  // namespace stepsim
