#include <gtest/gtest.h>

#include "schema/read_message.h"

namespace stepsim {

static std::string place(std::string_view text, std::string_view path) {
  const SourceLocation where = locate_field(text, "f", path);
  EXPECT_EQ(where.file, "f");
  return where.line == 0 ? "none" : std::to_string(where.line) + ":" + std::to_string(where.column);
}

constexpr std::string_view kText =
    "# parallel: not here\n"
    "model { name: \"a\" }\n"
    "parallel {\n"
    "  tp: 8  # tensor\n"
    "}\n"
    "rows { action: \"keep\" }\n"
    "rows { layers: -1 action: \"re\" \"compute\" }\n"
    "sizes: [4,\n 5]\n"
    "last: 1\n";

TEST(LocateField, FindsFieldsOfTheTextForm) {
  EXPECT_EQ(place(kText, "model.name"), "2:9");
  EXPECT_EQ(place(kText, "parallel"), "3:1");
  EXPECT_EQ(place(kText, "parallel.tp"), "4:3");
  EXPECT_EQ(place(kText, "rows[0].action"), "6:8");
  EXPECT_EQ(place(kText, "rows.action"), "6:8");  // without an index: the first
  EXPECT_EQ(place(kText, "rows[1].action"), "7:19");
  EXPECT_EQ(place(kText, "sizes[1]"), "9:2");
  EXPECT_EQ(place(kText, "last"), "10:1");
}

TEST(LocateField, FallsBackToTheMessageAroundAMissingField) {
  EXPECT_EQ(place(kText, "parallel.pp"), "3:1");
  EXPECT_EQ(place(kText, "nothing.at_all"), "none");
  EXPECT_EQ(place(kText, ""), "none");
  EXPECT_EQ(place(kText, "rows[x]"), "none");
}

constexpr std::string_view kJson =
    "{\"model\": {\"name\": \"a\"},\n"
    " \"rows\": [{\"action\": 1}, {\"n\": 2.5,\n  \"action\": 1}],\n"
    " \"sizes\": [4, 55, 6], \"last\": null}";

TEST(LocateField, FindsFieldsOfJson) {
  EXPECT_EQ(place(kJson, "model.name"), "1:12");
  EXPECT_EQ(place(kJson, "rows[0].action"), "2:12");
  EXPECT_EQ(place(kJson, "rows[1].action"), "3:3");
  EXPECT_EQ(place(kJson, "rows[1]"), "2:26");
  EXPECT_EQ(place(kJson, "sizes[2]"), "4:19");
  EXPECT_EQ(place(kJson, "last"), "4:23");
  EXPECT_EQ(place(kJson, "model.size"), "1:2");
}

}  // namespace stepsim
