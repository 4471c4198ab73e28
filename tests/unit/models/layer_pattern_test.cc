#include "models/layer_pattern.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace stepsim {
namespace {

using Pattern = std::vector<std::uint8_t>;

TEST(LayerPattern, ReadsMegatronsNotation) {
  EXPECT_EQ(layer_pattern("[0,1,1]"), (Pattern{0, 1, 1}));
  EXPECT_EQ(layer_pattern("([0]*3+[1]*2)"), (Pattern{0, 0, 0, 1, 1}));
  EXPECT_EQ(layer_pattern("[0, 1]*2 + [1]"), (Pattern{0, 1, 0, 1, 1}));
  EXPECT_EQ(layer_pattern("(([1]+[0])*2)*2"), (Pattern{1, 0, 1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(layer_pattern("1"), (Pattern{1}));
  EXPECT_EQ(layer_pattern("3"), (Pattern{1, 0, 0}));
  const auto deepseek = layer_pattern("([0]*3+[1]*58)");
  ASSERT_TRUE(deepseek.has_value());
  EXPECT_EQ(std::accumulate(deepseek->begin(), deepseek->end(), 0), 58);
}

TEST(LayerPattern, RefusesOtherTexts) {
  for (const char* const text : {"", "0", "-1", "[", "[]", "[2]", "[0", "[0]*", "[0]*-1", "[0]+", "([0]", "[0])", "0*[1]", "[0]*0", "x",
                                 "100001", "[1]*100001", "[1]*1000*1000", "[1]*99999999999999999999"}) {
    EXPECT_FALSE(layer_pattern(text).has_value()) << text;
  }
  EXPECT_FALSE(layer_pattern(std::string(10'000, '(')).has_value());
  EXPECT_EQ(layer_pattern("[1]*100000")->size(), 100'000u);
}

}  // namespace
}  // namespace stepsim
