#include <gtest/gtest.h>

#include "schema/read_message.h"
#include "tests/unit/error_of.h"
#include "tests/unit/schema/example.pb.h"

namespace stepsim {

using test::Example;

static std::string error_of(const std::string& path, const std::string& value) {
  Example message;
  return stepsim::error_of([&] { set_field(message, path, value, "--set"); });
}

TEST(SetField, SetsScalarsOfEveryKindByPath) {
  Example message;
  const std::pair<const char*, const char*> fields[] = {{"title", "x y"},
                                                        {"layers", "-3"},
                                                        {"fraction", "0.25"},
                                                        {"parallel", "true"},
                                                        {"color", "green"},
                                                        {"part.count", "4"},
                                                        {"small", "5"},
                                                        {"signed_value", "-6"},
                                                        {"large", "7"},
                                                        {"single", "0.5"},
                                                        {"inner.inner.layers", "8"},
                                                        {"peak.bf16", "989.4"}};
  for (const auto& [path, value] : fields) set_field(message, path, value, "--set");
  EXPECT_EQ(message.title(), "x y");
  EXPECT_EQ(message.layers(), -3);
  EXPECT_EQ(message.fraction(), 0.25);
  EXPECT_TRUE(message.parallel());
  EXPECT_EQ(message.color(), test::green);
  EXPECT_EQ(message.part().count(), 4);
  EXPECT_EQ(message.signed_value(), -6);
  EXPECT_EQ(message.inner().inner().layers(), 8);
  EXPECT_EQ(message.peak().at("bf16"), 989.4);
  set_field(message, "peak.bf16", "1", "--set");
  EXPECT_EQ(message.peak().at("bf16"), 1);
  EXPECT_EQ(message.peak_size(), 1);
}

TEST(SetField, IndexesRepeatedFieldsAndAppendsAtTheirSize) {
  Example message;
  set_field(message, "parts[0].count", "1", "--set");
  set_field(message, "parts[1].count", "2", "--set");
  set_field(message, "parts[0].count", "3", "--set");
  ASSERT_EQ(message.parts_size(), 2);
  EXPECT_EQ(message.parts(0).count(), 3);
  EXPECT_EQ(message.parts(1).count(), 2);
  for (const char* path : {"sizes[0]", "sizes[1]", "sizes[2]"}) set_field(message, path, "7", "--set");
  set_field(message, "sizes[1]", "9", "--set");
  ASSERT_EQ(message.sizes_size(), 3);
  EXPECT_EQ(message.sizes(0), 7);
  EXPECT_EQ(message.sizes(1), 9);
  EXPECT_EQ(message.sizes(2), 7);
}

TEST(SetField, ReadsAWholeMessageFromItsTextForm) {
  Example message;
  set_field(message, "part", "name: \"p\" count: 2", "--set");
  EXPECT_EQ(message.part().count(), 2);
}

TEST(SetField, NamesWhatIsWrong) {
  EXPECT_EQ(error_of("part.coutn", "1"),
            "--set part.coutn: found unknown field \"coutn\", wanted a field of Part, did you mean \"count\"?");
  EXPECT_EQ(error_of("layers", "many"), "--set layers: found \"many\", wanted a whole number");
  EXPECT_EQ(error_of("layers", "99999999999999999999"), "--set layers: found \"99999999999999999999\", wanted a whole number");
  EXPECT_EQ(error_of("layers.x", "1"), "--set layers.x: found fields below layers, wanted it last: it is a whole number");
  EXPECT_EQ(error_of("parts[2].count", "1"), "--set parts[2].count: found index 2, wanted at most 0");
  EXPECT_EQ(error_of("layers[0]", "1"), "--set layers[0]: found an index, wanted layers without one");
  EXPECT_EQ(error_of("color", "blue"), "--set color: found \"blue\", wanted one of red, green");
  EXPECT_EQ(error_of("a..b", "1"), "--set a..b: found \"a..b\", wanted a path such as parallel.tp or placement.rows[0].action");
  EXPECT_EQ(error_of("peak", "1"), "--set peak: found no key, wanted peak.KEY");
}

TEST(SetFields, ListsWhatIsSetInFieldOrder) {
  Example message;
  for (const auto& [path, value] :
       {std::pair("sizes[0]", "4"), std::pair("parts[0].count", "2"), std::pair("fraction", "0.1"), std::pair("part.name", "p")}) {
    set_field(message, path, value, "--set");
  }
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"fraction", "0.1"}, {"part.name", "p"}, {"parts[0].count", "2"}, {"sizes[0]", "4"}};
  EXPECT_EQ(set_fields(message), wanted);
  Example copy;
  for (const auto& [path, value] : wanted) set_field(copy, path, value, "copy");
  EXPECT_EQ(copy.DebugString(), message.DebugString());
}

}  // namespace stepsim
