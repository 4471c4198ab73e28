#include "schema/read_message.h"

#include <gtest/gtest.h>

#include "tests/unit/error_of.h"
#include "tests/unit/schema/example.pb.h"

namespace stepsim {

using test::Example;

// The one line of the error that reading ends with, "" if it ends well.
static std::string error_of(std::string_view text) {
  Example message;
  return stepsim::error_of([&] { read_message(text, "f", message); });
}

static Example read(std::string_view text) {
  Example message;
  read_message(text, "f", message);
  return message;
}

constexpr std::string_view kText =
    "# a comment\ntitle: \"x\" layers: 3 fraction: 0.5 parallel: true color: green\n"
    "part { name: \"p\" count: -2 }\nparts { count: 1 } parts { count: 2 }\nsizes: [4, 5]\npeak { key: \"bf16\" value: 989.4 }\n"
    "small: 7 signed_value: -8 large: 9 single: 1.5 words: \"a\" words: \"b\" inner { layers: 1 }";
constexpr std::string_view kJson =
    "{\"title\": \"x\", \"layers\": 3, \"fraction\": 0.5, \"parallel\": true, \"color\": \"green\",\n"
    "\"part\": {\"name\": \"p\", \"count\": \"-2\"}, \"parts\": [{\"count\": 1}, {\"count\": 2}], \"sizes\": [4, 5],\n"
    "\"peak\": {\"bf16\": 989.4}, \"small\": 7, \"signedValue\": -8, \"large\": 9, \"single\": 1.5, \"words\": [\"a\", \"b\"],\n"
    "\"inner\": {\"layers\": 1, \"title\": null}}";

TEST(ReadMessage, TextAndJsonGiveTheSameMessage) {
  const Example text = read(kText), json = read(kJson);
  EXPECT_EQ(text.DebugString(), json.DebugString());
  EXPECT_EQ(text.layers(), 3);
  EXPECT_EQ(text.part().count(), -2);
  ASSERT_EQ(text.parts_size(), 2);
  EXPECT_EQ(text.parts(1).count(), 2);
  EXPECT_EQ(text.peak().at("bf16"), 989.4);
  EXPECT_EQ(json.peak().at("bf16"), 989.4);
  EXPECT_EQ(json.words(1), "b");
  EXPECT_FALSE(json.inner().has_title());
}

TEST(ReadMessage, ClearsWhatWasThere) {
  Example message;
  message.set_layers(5);
  read_message("title: \"y\"", "f", message);
  EXPECT_FALSE(message.has_layers());
  read_message("", "f", message);
  EXPECT_FALSE(message.has_title());
}

TEST(ReadMessage, AJsonFileHasText) {
  Example message;
  for (const char* const text : {"", " \n\t"}) {
    EXPECT_EQ(stepsim::error_of([&] { read_message(text, "f.json", message); }), "f.json:1:1: found an empty file, wanted a JSON object");
    EXPECT_EQ(stepsim::error_of([&] { read_message(text, "f.textproto", message); }), "");
  }
}

// The parser's own words for these are "Integer out of range" and "Expected identifier".
TEST(ReadMessage, SaysWhatAValueOfTheFieldIs) {
  EXPECT_EQ(error_of("parallel: 2"), "f:1:11: found 2, wanted true or false");
  EXPECT_EQ(error_of("parallel : \"yes\""), "f:1:12: found \"yes\", wanted true or false");
  EXPECT_EQ(error_of("layers: 99999999999999999999"), "f:1:9: found 99999999999999999999, wanted a smaller whole number");
  EXPECT_EQ(error_of("inner { parallel: 7 }"), "f:1:19: found 7, wanted true or false");
  EXPECT_EQ(error_of("color: 2.5"), "f:1:8: found 2.5, wanted one of red, green");
  EXPECT_EQ(error_of("2"), "f:1:1: found 2, wanted a field name");
}

TEST(ReadMessage, NamesTheNearestFieldOfAnUnknownOne) {
  EXPECT_EQ(error_of("title: \"x\"\n  paralel: true"),
            "f:2:3: found unknown field \"paralel\", wanted a field of Example, did you mean \"parallel\"?");
  EXPECT_EQ(error_of("{\"title\": \"x\",\n  \"paralel\": true}"),
            "f:2:3: found unknown field \"paralel\", wanted a field of Example, did you mean \"parallel\"?");
  EXPECT_EQ(error_of("part { nmae: \"x\" }"), "f:1:8: found unknown field \"nmae\", wanted a field of Part, did you mean \"name\"?");
  EXPECT_EQ(error_of("part { completely_else: 1 }"),
            "f:1:8: found unknown field \"completely_else\", wanted a field of Part (name, count)");
  EXPECT_EQ(error_of("{\"part\": {\"nmae\": 1}}"), "f:1:11: found unknown field \"nmae\", wanted a field of Part, did you mean \"name\"?");
}

TEST(ReadMessage, NamesThePlaceOfAWrongValue) {
  EXPECT_EQ(error_of("layers: \"x\""), "f:1:9: found \"x\", wanted a whole number");
  EXPECT_EQ(error_of("{\"layers\": true}"), "f:1:12: found true, wanted a whole number");
  EXPECT_EQ(error_of("{\"layers\": 3.5}"), "f:1:12: found 3.5, wanted a whole number");
  EXPECT_EQ(error_of("{\"sizes\": [1, 22, \"x\"]}"), "f:1:19: found \"x\", wanted a whole number");
  EXPECT_EQ(error_of("{\"sizes\": 3}"), "f:1:11: found one value, wanted a list in [ ] for \"sizes\"");
  EXPECT_EQ(error_of("{\"small\": -1}"), "f:1:11: found \"-1\", wanted a whole number, not negative");
  EXPECT_EQ(error_of("{\"title\": 3}"), "f:1:11: found 3, wanted text in quotes");
  EXPECT_EQ(error_of("{\"part\": 3}"), "f:1:10: found 3, wanted { fields of Part }");
  EXPECT_EQ(error_of("{\"layers\": {}}"), "f:1:12: found {, wanted a whole number");
  EXPECT_EQ(error_of("{\"layers\": []}"), "f:1:12: found [, wanted a whole number");
  EXPECT_EQ(error_of("color: grene"), "f:1:8: found \"grene\", wanted one of red, green, did you mean \"green\"?");
  EXPECT_EQ(error_of("{\"color\": \"grene\"}"), "f:1:11: found \"grene\", wanted one of red, green, did you mean \"green\"?");
  EXPECT_EQ(error_of("parallel: maybe"), "f:1:11: found \"maybe\", wanted true or false");
}

// proto3 keeps numbers that an enum has not.
TEST(ReadMessage, RefusesNumbersThatAnEnumHasNot) {
  EXPECT_EQ(error_of("color: 99"), "f:1:1: found color 99, wanted one of red, green");
  EXPECT_EQ(error_of("title: \"x\"\ninner {\n  inner { color: -1 }\n}"), "f:3:11: found color -1, wanted one of red, green");
  EXPECT_EQ(error_of("color: 1"), "");
}

TEST(ReadMessage, RefusesAFieldTwice) {
  EXPECT_EQ(error_of("layers: 1\nlayers: 2"), "f:2:1: found field \"layers\" twice, wanted it once");
  EXPECT_EQ(error_of("{\"layers\": 1,\n\"layers\": 2}"), "f:2:1: found field \"layers\" twice, wanted it once");
}

TEST(ReadMessage, RefusesBrokenTextWithItsPlace) {
  EXPECT_EQ(error_of("part {\n  count: 1\n"), "f:3:1: found the end of the text, wanted a field name");
  EXPECT_EQ(error_of("{\"layers\": 1"), "f:1:12: found end of input, wanted '}'");
  EXPECT_EQ(error_of("{\"layers\": 1} x").substr(0, 7), "f:1:15:");
  EXPECT_NE(error_of("{\"layers\": 1e999}"), "");
  EXPECT_NE(error_of("title: \"never ends"), "");
  EXPECT_NE(error_of("layers: 99999999999999999999"), "");
  EXPECT_NE(error_of("{"), "");
  EXPECT_NE(error_of("}"), "");
}

TEST(ReadMessage, ColumnsCountATabAsOne) {
  EXPECT_EQ(error_of("\t\tlayers: x").substr(0, 7), "f:1:11:");  // 2 tabs + "layers: " = 10 bytes before it
}

TEST(ReadMessage, RefusesDeepNestingInsteadOfExhaustingTheStack) {
  std::string text, json = "{";
  for (int i = 0; i < 100000; ++i) {
    text += "inner {";
    json += "\"inner\": {";
  }
  EXPECT_NE(error_of(text), "");
  EXPECT_NE(error_of(json).find("nested deeper than 64"), std::string::npos);
}

TEST(ReadMessage, RefusesOtherEncodings) {
  EXPECT_EQ(error_of("\xFF\xFEt\0i\0"), "f: found UTF-16 text, wanted UTF-8");
  EXPECT_EQ(error_of(std::string_view("title: \"a\0b\"", 12)), "f:1:10: found a NUL byte, wanted UTF-8 text");
  EXPECT_EQ(error_of("title: \"\xE9t\xE9\""), "f:1:9: found bytes that are not UTF-8, wanted UTF-8 text");  // Latin-1
  EXPECT_EQ(error_of("title: \"\xC3\xA9\""), "");                                                           // the same letter in UTF-8
  EXPECT_EQ(read("\xEF\xBB\xBFlayers: 2").layers(), 2);                                                     // a byte order mark is no text
  EXPECT_EQ(read("\xEF\xBB\xBF{\"layers\": 2}").layers(), 2);
}

TEST(ReadMessage, MapKeysMayBeWrittenOnce) {
  EXPECT_EQ(error_of("{\"peak\": {\"bf16\": 1, \"bf16\": 2}}"), "f:1:22: found field \"bf16\" twice, wanted it once");
}

}  // namespace stepsim
