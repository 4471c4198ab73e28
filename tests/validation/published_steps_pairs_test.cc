// Pairs of measured steps that differ in what is kept, run again or offloaded.
#include "tests/validation/published_slices.h"

namespace stepsim {
namespace {

// Asked: the sign of the change in 95 %, the ratio within 5 points in 85 % of the pairs.
TEST(PublishedSteps, Pairs) {
  const std::optional<CsvTable> table = published_table("pairs.csv");
  if (!table) GTEST_SKIP() << "the table is absent";
  const PublishedComparison comparison = compare_published("pairs", *table);
  std::printf("## table: published-pairs\n| pair | what | measured | stepsim | difference |\n|---|---|---|---|---|\n");
  const std::size_t base = *table->column("base_id"), variant = *table->column("var_id"), model = *table->column("model"),
                    what = *table->column("variant");
  for (const Comparison& row : comparison.rows) {
    const std::vector<std::string>& cells = table->rows[row.row].cells;
    std::string policy = cells[what].substr(0, 40);
    std::replace(policy.begin(), policy.end(), '|', ',');
    std::printf("| %s to %s | %s: %s | %.3f | %.3f | %+.1f points |\n", cells[base].c_str(), cells[variant].c_str(), cells[model].c_str(),
                policy.c_str(), row.measured, row.simulated, 100 * (row.simulated - row.measured));
  }
  const Slice sign{"sign", comparison.other.at("sign")}, near{"within", comparison.other.at("within_5_points")};
  std::printf("| of all | sign right, ratio within 5 points | | %.0f %%, %.0f %% of %zu | |\n\n", 100 * (1 - sign.errors().mean),
              100 * (1 - near.errors().mean), comparison.rows.size());
  print_skipped(comparison);
  EXPECT_LE(sign.errors().mean, 0.05);
  EXPECT_LE(near.errors().mean, 0.15);  // 85 % are asked
}

}  // namespace
}  // namespace stepsim
