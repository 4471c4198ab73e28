#include "tools/text_lines.h"

#include <gtest/gtest.h>

namespace stepsim {

TEST(TextLines, WrapsBetweenWordsUnderTheLabel) {
  TextLines lines;
  std::string words = "12345";
  for (int i = 1; i < 30; ++i) words += " 12345";  // 30 words, 6 columns each
  lines.add("label: ", words);
  ASSERT_EQ(lines.lines().size(), 2u);
  EXPECT_EQ(lines.lines()[0].size(), 7u + 17 * 6 - 1);  // (110 - 7 + 1) / 6 = 17 whole words fit
  EXPECT_EQ(lines.lines()[1].substr(0, 12), "       12345");
  for (const std::string& line : lines.lines()) EXPECT_LE(line.size(), kColumns);
}

TEST(TextLines, CutsWhatNeedsMoreLinesThanAllowed) {
  TextLines lines;
  lines.add("", std::string(300, 'x').append(" y"), 1);  // one word longer than a line stays whole
  lines.add("a ", std::string(60, 'x') + " " + std::string(60, 'y') + " " + std::string(60, 'z'), 2);
  ASSERT_EQ(lines.lines().size(), 3u);
  EXPECT_EQ(lines.lines()[2], "  " + std::string(60, 'y') + " ...");
}

TEST(TextLines, AnEmptyTextIsOneLine) {
  TextLines lines;
  lines.add("a: ", "");
  EXPECT_EQ(lines.text(), "a: \n");
}

TEST(TableText, AlignsNumbersToTheRightAndTextToTheLeft) {
  EXPECT_EQ(table_text({{"op", "n", "flag"}, {"gemm", "5", "--tp"}, {"a", "-10", "x"}}),
            "op      n  flag\n"
            "gemm    5  --tp\n"
            "a     -10  x\n");
}

}  // namespace stepsim
