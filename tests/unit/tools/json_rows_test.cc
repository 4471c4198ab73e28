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

TEST(JsonRows, AreKnownByTheirFirstCharacter) {
  EXPECT_TRUE(is_json(" \n[{}]"));
  EXPECT_TRUE(is_json("{}"));
  EXPECT_FALSE(is_json("a,b\n"));
  EXPECT_FALSE(is_json(""));
}

TEST(JsonRows, RefusesWhatIsNoListOfFlatObjectsWithItsPlace) {
  const auto problem = [](const std::string& text) { return error_of([&] { parse_json_rows(text, "f"); }); };
  EXPECT_EQ(problem("{\"a\": 1}"), "f:1:2: found an object, wanted a list of rows");
  EXPECT_EQ(problem("[1]"), "f:1:4: found a value that is no object in the list, wanted rows");
  EXPECT_EQ(problem("[[]]"), "f:1:3: found a value that is no object in the list, wanted rows");
  EXPECT_TRUE(problem("[{\"a\":\n{\"b\": 1}}]").starts_with("f:2:2: found an object or a list in a list, wanted "));
  EXPECT_TRUE(problem("[{\"a\": [[1]]}]").starts_with("f:1:10: found an object or a list in a list, wanted "));
  EXPECT_TRUE(problem("[{\"a\": " + std::string(1'000'000, '[')).starts_with("f:1:10: found an object or a list in a list, wanted "));
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
