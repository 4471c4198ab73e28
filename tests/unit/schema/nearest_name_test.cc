#include "schema/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace stepsim {

static const std::vector<std::string> kNames = {"llama3-8b", "llama3-70b", "gpt3-175b", "parallel"};

TEST(NearestName, CountsInsertionsDeletionsReplacementsAndSwapsAsOne) {
  EXPECT_EQ(nearest_name("paralel", kNames), "parallel");     // one insertion away
  EXPECT_EQ(nearest_name("parralel", kNames), "parallel");    // one of each
  EXPECT_EQ(nearest_name("praallel", kNames), "parallel");    // a swap
  EXPECT_EQ(nearest_name("LLAMA3-8B", kNames), "llama3-8b");  // case does not count
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("mixtral", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kNames), "");
}

TEST(NearestName, PrefersTheShortestThatBeginsWithIt) {
  const std::vector<std::string> flags = {"--set", "--sequence-parallel", "--sequence"};
  EXPECT_EQ(nearest_name("--seq", flags), "--sequence");
  EXPECT_EQ(nearest_name("--SEQUENCE-", flags), "--sequence-parallel");
  EXPECT_EQ(nearest_name("--sat", flags), "--set");
}

TEST(NearestName, TakesTheFirstOfEquallyNear) {
  const std::vector<std::string> twins = {"ab1", "ab2"};
  EXPECT_EQ(nearest_name("ab3", twins), "ab1");
  EXPECT_EQ(suggestion("ab3", twins), ", did you mean \"ab1\"?");
  EXPECT_EQ(suggestion("zzzzzz", twins), "");
}

}  // namespace stepsim
