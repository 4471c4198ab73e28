// All rows of schedules/pipeline_closed_forms.json, makespans and passes in flight, exact; the table that README.md may show.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "tests/unit/tools/published_rows.h"

namespace stepsim {
namespace {

TEST(PipelineClosedForms, EveryRowIsReproducedExactly) {
  const std::optional<CsvTable> shared = shared_table("schedules/pipeline_closed_forms.json");
  if (!shared) GTEST_SKIP() << "the shared data is absent";
  const CsvTable& table = *shared;
  ASSERT_EQ(detected_format(table), "pipeline");
  const PublishedComparison comparison = compare_published("pipeline", table);
  EXPECT_TRUE(comparison.skipped.empty());
  ASSERT_EQ(comparison.rows.size(), table.rows.size());
  std::map<std::string, int> rows, mismatches;
  for (const Comparison& row : comparison.rows) {
    EXPECT_EQ(row.difference, "") << "row " << row.id;
    const std::string& schedule = table.rows[row.row].cells[*table.column("schedule")];
    ++rows[schedule];
    mismatches[schedule] += row.difference.empty() ? 0 : 1;
  }
  // The file as it was when this was written: 21 + 22 + 33 + 26 = 102 rows.
  const std::map<std::string, int> expected = {{"1f1b", 22}, {"gpipe", 21}, {"interleaved_1f1b", 33}, {"zb_h1_handcrafted", 26}};
  EXPECT_EQ(rows, expected);
  std::printf("## table: pipeline-closed-forms\n| schedule | rows | mismatches |\n|---|---|---|\n");
  for (const auto& [schedule, count] : rows) std::printf("| %s | %d | %d |\n", schedule.c_str(), count, mismatches[schedule]);
  std::printf("\n");
}

// Every number that the file gives is looked at: a row in which any one of them is changed is a mismatch.
TEST(PipelineClosedForms, AnyChangedNumberIsSeen) {
  const std::optional<CsvTable> shared = shared_table("schedules/pipeline_closed_forms.json");
  if (!shared) GTEST_SKIP() << "the shared data is absent";
  const CsvTable& table = *shared;
  std::map<std::string, std::size_t> first;  // row of each schedule
  for (std::size_t i = 0; i < table.rows.size(); ++i) first.insert({table.rows[i].cells[*table.column("schedule")], i});
  int changed = 0;
  for (const auto& [schedule, index] : first) {
    for (std::size_t column = 0; column < table.head.size(); ++column) {
      const std::string& name = table.head[column];
      CsvTable one = table;
      one.rows = {table.rows[index]};
      std::string& cell = one.rows[0].cells[column];
      if (cell.empty() || name == "schedule" || name == "equals" || name == "p" || name == "m" || name == "v") continue;
      const std::size_t digit = cell.find_first_of("0123456789");
      cell[digit] = cell[digit] == '9' ? '8' : static_cast<char>(cell[digit] + 1);
      const PublishedComparison comparison = compare_published("pipeline", one);
      ASSERT_EQ(comparison.rows.size(), 1u);
      EXPECT_NE(comparison.rows[0].difference, "") << schedule << " " << name;
      ++changed;
    }
  }
  // F B makespan closed_form inflight inflight_closed twice, the same of chunks, F B W makespan closed_form_paper until_W until_B.
  EXPECT_EQ(changed, 6 + 6 + 6 + 7);
}

}  // namespace
}  // namespace stepsim
