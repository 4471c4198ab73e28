#include "tools/json_rows.h"

#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

TEST(JsonRows, AreATableOfTheKeysInTheirOrder) {
  const CsvTable table = parse_json_rows("[\n {\"b\": 1.50, \"a\": \"x,y\"},\n {\"a\": null, \"c\": [2, 1.5], \"b\": true}\n]\n", "f");
  EXPECT_EQ(table.head, (std::vector<std::string>{"b", "a", "c"}));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].cells, (std::vector<std::string>{"1.5", "x,y", ""}));
  EXPECT_EQ(table.rows[1].cells, (std::vector<std::string>{"true", "", "[2,1.5]"}));
  EXPECT_EQ(table.rows[1].line, 3);
  EXPECT_EQ(table.row_id(1), "2");  // its number, not its line
  EXPECT_EQ(parse_csv("b\n1\n", "f").row_id(0), "2");
  EXPECT_EQ(parse_json_rows("[{\"id\": \"seven\"}]", "f").row_id(0), "seven");
}

// Keys with escapes, nested quotes and lists before it: the place is that of the value.
TEST(JsonRows, CellsKnowTheirPlaceAndForm) {
  const CsvTable table = parse_json_rows("[{\"a\\\"b\": [1,\n 2], \"c\" :  -1.5e3,\"d\":\"x\"},\n  {\"d\": true, \"c\": null}]", "f");
  const auto origin = [&](std::size_t row, std::size_t cell) {
    const CellOrigin& each = table.rows[row].origins[cell];
    return std::tuple(each.line, each.column, each.form);
  };
  EXPECT_EQ(origin(0, 0), std::tuple(1, 11, CellForm::kList));
  EXPECT_EQ(origin(0, 1), std::tuple(2, 13, CellForm::kNumber));
  EXPECT_EQ(origin(0, 2), std::tuple(2, 24, CellForm::kText));
  EXPECT_EQ(origin(1, 0), std::tuple(3, 3, CellForm::kAbsent));  // of its row
  EXPECT_EQ(origin(1, 1), std::tuple(3, 20, CellForm::kAbsent));
  EXPECT_EQ(origin(1, 2), std::tuple(3, 9, CellForm::kSwitch));
  const CsvTable csv = parse_csv("a,b\n\"x\ny\",7\n", "f");
  EXPECT_EQ(csv.rows[0].origins[1].line, 3);
  EXPECT_EQ(csv.rows[0].origins[1].column, 4);
  EXPECT_EQ(csv.rows[0].origins[1].form, CellForm::kAny);
}

TEST(JsonRows, AreKnownByTheirFirstCharacter) {
  EXPECT_TRUE(is_json(" \n[{}]"));
  EXPECT_TRUE(is_json("{}"));
  EXPECT_FALSE(is_json("a,b\n"));
  EXPECT_FALSE(is_json(""));
}

TEST(JsonRows, RefusesWhatIsNoListOfFlatObjectsWithItsPlace) {
  const auto problem = [](const std::string& text) { return error_of([&] { parse_json_rows(text, "f"); }); };
  EXPECT_EQ(problem("{\"a\": 1}"), "f:1:1: found an object, wanted a list of rows");
  EXPECT_EQ(problem("[1]"), "f:1:2: found a value that is no object in the list, wanted rows");
  EXPECT_EQ(problem("[[]]"), "f:1:2: found a value that is no object in the list, wanted rows");
  EXPECT_TRUE(problem("[{\"a\":\n{\"b\": 1}}]").starts_with("f:2:1: found an object or a list in a list, wanted "));
  EXPECT_TRUE(problem("[{\"a\": [[1]]}]").starts_with("f:1:9: found an object or a list in a list, wanted "));
  EXPECT_TRUE(problem("[{\"a\": " + std::string(1'000'000, '[')).starts_with("f:1:9: found an object or a list in a list, wanted "));
  EXPECT_TRUE(problem("[{\"a\": 1,\n\"a\": 2}]").starts_with("f:2:"));
  EXPECT_TRUE(problem("[{\"a\": 1,\n\"a\": 2}]").ends_with("found key \"a\" twice, wanted it once"));
  EXPECT_TRUE(problem("[{\"a\":\n 1").starts_with("f:2:"));
  EXPECT_TRUE(problem("[{\"a\": 1e999}]").ends_with("found a number beyond double, wanted a smaller one"));
  EXPECT_TRUE(problem("[]").ends_with("found an empty list, wanted rows"));
  std::string wide = "[{\"k\": 1";
  for (int i = 0; i < 300; ++i) wide += ", \"k" + std::to_string(i) + "\": 1";
  EXPECT_TRUE(problem(wide + "}]").ends_with("found more than 256 keys, wanted fewer"));
}

}  // namespace stepsim
