#include "tools/csv_table.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

TEST(CsvTable, ReadsQuotesLineEndsAndEmptyCells) {
  const CsvTable table = parse_csv("a,b,c\r\n1,\"x,\"\"y\"\"\",\r\n\n\"two\nlines\",2,3", "f");
  EXPECT_EQ(table.head, (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].cells, (std::vector<std::string>{"1", "x,\"y\"", ""}));
  EXPECT_EQ(table.rows[0].line, 2);
  EXPECT_EQ(table.rows[1].cells, (std::vector<std::string>{"two\nlines", "2", "3"}));
  EXPECT_EQ(table.rows[1].line, 4);
  EXPECT_EQ(table.column("c"), std::optional<std::size_t>(2));
  EXPECT_FALSE(table.column("d").has_value());
}

TEST(CsvTable, LinesAreCountedThroughQuotedLineEnds) {
  const CsvTable table = parse_csv("a\n\"x\ny\"\n1\n", "f");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].line, 2);
  EXPECT_EQ(table.rows[1].line, 4);
}

TEST(CsvTable, RefusesWhatIsNoTable) {
  const auto problem = [](const std::string& text) { return error_of([&] { parse_csv(text, "f"); }); };
  EXPECT_EQ(problem(""), "f: found no line, wanted a CSV file with a head");
  EXPECT_EQ(problem("a,b\n1\n"), "f:2:1: found 1 cells, wanted 2 as in the head");
  EXPECT_EQ(problem("a,a\n"), "f:1:1: found column \"a\" twice, wanted it once");
  EXPECT_EQ(problem("a,b\n1,\"2\n3"), "f:2:3: found a quote that does not end, wanted a closing \"");
  EXPECT_EQ(problem("a,b\n\"1\"2,3\n"), "f:2:4: found text after a closing quote, wanted a comma");
}

}  // namespace stepsim
