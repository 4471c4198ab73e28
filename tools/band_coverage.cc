#include "tools/band_coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/error_statistics.h"
#include "tools/text_lines.h"

namespace stepsim {

std::map<std::string, BandCoverage> band_coverage(std::span<const BandedRow> rows) {
  std::map<std::string, BandCoverage> coverage;
  std::map<std::string, std::vector<double>> widths;
  const auto add = [&](const std::string& name, const BandedRow& row) {
    BandCoverage& each = coverage[name];
    ++each.rows;
    if (row.measured < row.lower) ++each.below;
    if (row.measured > row.upper) ++each.above;
    widths[name].push_back((row.upper - row.lower) / (2 * row.simulated));
  };
  const bool several = std::any_of(rows.begin(), rows.end(), [&](const BandedRow& row) { return row.of != rows.front().of; });
  for (const BandedRow& row : rows) {
    add(row.of, row);
    if (several) add("all", row);
  }
  for (auto& [name, all] : widths) {
    std::sort(all.begin(), all.end());
    coverage[name].half_width = nearest_rank(all, 0.5);
  }
  return coverage;
}

std::string band_coverage_text(const std::map<std::string, BandCoverage>& coverage) {
  std::vector<std::vector<std::string>> table = {{"class", "rows", "inside", "below", "above", "half width"}};
  for (const auto& [name, each] : coverage) {
    table.push_back({name, std::to_string(each.rows), fmt::format("{:.0f} %", 100 * each.inside()), std::to_string(each.below),
                     std::to_string(each.above), fmt::format("{:.1f} %", 100 * each.half_width)});
  }
  return table_text(table);
}

}  // namespace stepsim
