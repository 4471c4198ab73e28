#include "traces/text_block.h"

#include <gtest/gtest.h>

#include <limits>

namespace stepsim {
namespace {

TEST(TextBlock, NumbersAndPieces) {
  std::string text;
  const TextSink sink = [&](std::string_view piece) { text += piece; };
  TextBlock block(sink);
  block << "a" << std::int64_t{-5} << "|" << std::numeric_limits<std::int64_t>::min();
  block.decimal(1234567, 3) << "|";
  block.decimal(5, 12);
  EXPECT_EQ(text, "");  // nothing before flush
  block.flush();
  EXPECT_EQ(text, "a-5|-92233720368547758081234.567|0.000000000005");
}

TEST(TextBlock, LongPiecesPassThrough) {
  std::string text, wanted;
  const TextSink sink = [&](std::string_view piece) { text += piece; };
  TextBlock block(sink);
  for (const std::size_t size : {std::size_t{1}, std::size_t{1} << 18, std::size_t{3}, (std::size_t{1} << 18) - 1, std::size_t{5} << 18}) {
    wanted += std::string(size, 'x') + "7";
    block << std::string(size, 'x') << std::int64_t{7};
  }
  block.flush();
  EXPECT_EQ(text, wanted);
}

TEST(TextBlock, JsonStrings) {
  EXPECT_EQ(json_escaped("plain"), "plain");
  EXPECT_EQ(json_escaped("\"\\/\n\x7f"), "\\\"\\\\/\\u000a\\u007f");
  EXPECT_EQ(json_escaped("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(json_escaped("\xC3"), "\\ufffd");                                     // cut off
  EXPECT_EQ(json_escaped("\xC0\xAF"), "\\ufffd\\ufffd");                          // overlong
  EXPECT_EQ(json_escaped("\xED\xA0\x80"), "\\ufffd\\ufffd\\ufffd");               // a surrogate
  EXPECT_EQ(json_escaped("\xF4\x90\x80\x80x"), "\\ufffd\\ufffd\\ufffd\\ufffdx");  // above U+10FFFF
  EXPECT_EQ(json_escaped(std::string_view("a\0b", 3)), "a\\u0000b");
}

}  // namespace
}  // namespace stepsim
