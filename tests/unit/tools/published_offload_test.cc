#include "tests/unit/tools/published_rows.h"

namespace stepsim {

namespace {

constexpr PublishedRows kOffload{compare_offload};

// The case of transformer_engine(2) in offload_graph_test.cc, where its figures are derived.
std::string case_row(const std::string& changed = "", const std::string& figures = ", \"T_total\": 52") {
  std::string row =
      "{\"L\": 5, \"f\": 4, \"b\": 4, \"d2h\": 6, \"h2d\": 6, \"keep_last\": 2, \"max_resident\": 2, \"lookahead\": 1, \"head\": "
      "0, \"engines\": 2";
  const std::size_t key = row.find(changed.substr(0, changed.find(':') + 1));
  if (!changed.empty()) row.replace(key, row.find(',', key) - key, changed);
  return row + figures + "}";
}

}  // namespace

TEST(PublishedOffload, EveryPublishedCaseIsExact) {
  const std::optional<CsvTable> table = shared_table("offload/closed_form_cases.json");
  if (!table) GTEST_SKIP() << "the shared data is absent";
  EXPECT_EQ(detected_format(*table), "offload");
  const PublishedComparison comparison = compare_published("offload", *table);
  EXPECT_EQ(comparison.rows.size(), table->rows.size());
  EXPECT_GE(comparison.rows.size(), 20u);
  for (const Comparison& row : comparison.rows) EXPECT_EQ(row.difference, "") << row.id;
}

TEST(PublishedOffload, ComparesEverythingThatARowGives) {
  const PublishedComparison comparison = kOffload.compared(
      case_row("", ", \"T_forward_end\": 26, \"T_total\": 52, \"peak_resident_sets\": 2, \"peak_host_sets\": 3, \"exposed\": 12") + "," +
      case_row("", ", \"T_total\": 53"));
  ASSERT_EQ(comparison.rows.size(), 2u);
  EXPECT_TRUE(comparison.exact);
  EXPECT_EQ(comparison.rows[0].difference, "");
  EXPECT_EQ(comparison.rows[0].error(), 0);
  EXPECT_EQ(comparison.rows[1].id, "2");
  EXPECT_EQ(comparison.rows[1].measured, 53);
  EXPECT_EQ(comparison.rows[1].simulated, 52);
  EXPECT_EQ(comparison.rows[1].difference, "T_total found 52, wanted 53");
  EXPECT_EQ(kOffload.difference(case_row("", ", \"T_forward_end\": 25, \"peak_resident_sets\": 3, \"peak_host_sets\": 2, \"exposed\": 11")),
            "T_forward_end found 26, wanted 25; peak_resident_sets found 2, wanted 3; peak_host_sets found 3, wanted 2; exposed found 12, "
            "wanted 11");
  EXPECT_EQ(kOffload.difference(case_row("\"engines\": 1")), "");
  // Without a gate forward is L f.
  EXPECT_EQ(kOffload.difference(case_row("\"max_resident\": null", ", \"T_forward_end\": 20")), "");
}

TEST(PublishedOffload, TimesMayHaveDecimalsDownToAPicosecond) {
  const std::string figures = ", \"T_forward_end\": ";
  // 2 f + (L - M) d = 2 * 0.1 + 3 * 6
  EXPECT_EQ(kOffload.difference(case_row("\"f\": 0.1", figures + "18.2")), "");
  EXPECT_EQ(kOffload.difference(case_row("\"f\": 0.000000001", figures + "18.000000002")), "");
  EXPECT_EQ(kOffload.difference(case_row("\"f\": 1000000000", figures + "5000000000")), "");  // L f; 10^18 ps
  EXPECT_EQ(kOffload.skipped(case_row("\"f\": 0.0000000001")), "f is above 9000000000 or no whole number of picoseconds, where 1 is 1 ms");
  EXPECT_EQ(kOffload.skipped(case_row("\"f\": 1e300")), "f is above 9000000000 or no whole number of picoseconds, where 1 is 1 ms");
  EXPECT_EQ(kOffload.skipped(case_row("\"f\": 2000000000")), "longer than the 106 days of simulated time");
}

TEST(PublishedOffload, AGateThatNeverOpensIsNamed) {
  EXPECT_EQ(kOffload.difference(case_row("\"max_resident\": 1")),
            "T_total found none, wanted 52: max_resident 1 is full with layer 4, kept until backward: forward of layer 5 never starts");
  EXPECT_EQ(kOffload.difference(case_row("\"max_resident\": 0", ", \"T_total\": null")), "");
}

TEST(PublishedOffload, WhatCannotBeRunIsSkippedWithItsReason) {
  EXPECT_EQ(kOffload.skipped(case_row("", ", \"streams\": 4, \"T_total\": 52")), "offload with column streams is not built yet");
  EXPECT_EQ(kOffload.skipped(case_row("\"L\": 1000000000000", ", \"T_total\": 1")), "more than 1000000 layers");
  EXPECT_EQ(kOffload.skipped(case_row("\"L\": 1e300", ", \"T_total\": 1")), "more than 1000000 layers");
  EXPECT_EQ(kOffload.difference(case_row("", ", \"note\": \"by hand\", \"T_total\": 52")), "");
  EXPECT_EQ(kOffload.difference(case_row("\"keep_last\": 1000000000000", ", \"T_total\": 1")).substr(0, 30),
            "T_total found none, wanted 1: ");
}

TEST(PublishedOffload, BadValuesAreErrorsWithTheirPlace) {
  EXPECT_EQ(kOffload.problem(case_row("\"L\": 0")), "f:1:8: found L 0, wanted a whole number from 1");
  EXPECT_EQ(kOffload.problem(std::string("\n") + case_row("\"f\": -1")), "f:2:15: found f -1, wanted a duration of 0 or more");
  EXPECT_NE(kOffload.problem(case_row("\"L\": 2.5")), "");
  EXPECT_NE(kOffload.problem(case_row("\"max_resident\": -1")), "");
  EXPECT_NE(kOffload.problem(case_row("\"lookahead\": 0.5")), "");
  EXPECT_NE(kOffload.problem(case_row("\"lookahead\": \"1\"")), "");
  EXPECT_NE(kOffload.problem(case_row("\"f\": \"4\"")), "");
  EXPECT_NE(kOffload.problem(case_row("\"b\": true")), "");
  EXPECT_NE(kOffload.problem(case_row("\"h2d\": null")), "");
  EXPECT_NE(kOffload.problem(case_row("\"engines\": 3")), "");
  EXPECT_NE(kOffload.problem(case_row("\"engines\": 0")), "");
  EXPECT_NE(kOffload.problem(case_row("", ", \"T_total\": \"long\"")), "");
  EXPECT_EQ(kOffload.problem(std::string(" ") + case_row("", "")),
            "f:1:3: found no T_total, wanted one of T_total, T_forward_end, peak_resident_sets, peak_host_sets, exposed");
}

TEST(PublishedOffload, IsKnownByItsColumnsInCsvToo) {
  const CsvTable table = parse_published(
      "id,L,f,b,d2h,h2d,keep_last,max_resident,lookahead,head,engines,T_total,exposed\nte,5,4,4,6,6,2,2,1,0,2,52,12\nfree,5,4,4,6,6,5,,,7,"
      "1,47,0\n",
      "f");
  EXPECT_EQ(detected_format(table), "offload");
  const PublishedComparison comparison = compare_offload(table);
  ASSERT_EQ(comparison.rows.size(), 2u);
  EXPECT_EQ(comparison.rows[0].id, "te");
  for (const Comparison& row : comparison.rows) EXPECT_EQ(row.difference, "");
}

}  // namespace stepsim
