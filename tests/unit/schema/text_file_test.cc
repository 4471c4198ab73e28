#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "schema/read_message.h"
#include "tests/unit/error_of.h"

namespace stepsim {

static std::string written(const std::string& name, std::string_view text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

static std::string error_of(const std::string& path) {
  return stepsim::error_of([&] { read_text_file(path); });
}

TEST(TextFile, ComesAsItIs) {
  EXPECT_EQ(read_text_file(written("plain.txt", "a\r\nb\xC3\xA9")), "a\r\nb\xC3\xA9");
  EXPECT_EQ(read_text_file(written("empty.txt", "")), "");
}

TEST(TextFile, NamesWhatIsWrong) {
  EXPECT_EQ(error_of("/no/such/file"), "/no/such/file: found no such file, wanted one that exists");
  EXPECT_EQ(error_of(testing::TempDir()), testing::TempDir() + ": found a directory, wanted a file");
  const std::string utf16 = written("utf16.txt", std::string_view("\xFF\xFE"
                                                                  "a\0",
                                                                  4));
  EXPECT_EQ(error_of(utf16), utf16 + ": found UTF-16 text, wanted UTF-8");
  const std::string binary = written("binary.txt", std::string_view("a\nb\0", 4));
  EXPECT_EQ(error_of(binary), binary + ":2:2: found a NUL byte, wanted UTF-8 text");
}

TEST(TextFile, IsNotLargerThanAllowed) {
  const std::string file = written("large.txt", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(read_text_file(file).size(), (1u << 20) + 1);
  const std::string error = stepsim::error_of([&] { read_text_file(file, 1 << 20); });
  EXPECT_EQ(error, file + ": found more than 1 MiB, wanted a text file of at most 1 MiB");
}

TEST(TextFile, AnErrorIsALineThatPeopleCanRead) {
  const auto line = [](const std::string& file, const std::string& problem) {
    return std::string(InputError({file, 7, 3}, problem).what());
  };
  EXPECT_EQ(line("a", "found b, wanted c"), "a:7:3: found b, wanted c");
  const std::string many(1000, 'x');
  EXPECT_EQ(line("a", "found " + many + ", wanted c"), "a:7:3: found " + std::string(194, 'x') + " ... (1006 characters), wanted c");
  const std::string all = line(many, many + ", wanted " + many);
  EXPECT_LE(all.size(), 500u);
  EXPECT_NE(all.find(" ... (1004 characters): xx"), std::string::npos);  // with :7:3
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "\xC3\xA9";
  EXPECT_EQ(line("a", "x" + accents + ", wanted c").substr(0, 210), "a:7:3: x" + accents.substr(0, 198) + " ...");  // not within a letter
}

TEST(TextFile, KnowsMalformedUtf8) {
  // Overlong "/", a surrogate, above U+10FFFF, a lone continuation, a cut sequence: RFC 3629 section 10 and 3.
  for (const char* text : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xE2\x82"}) {
    EXPECT_NE(error_of(written("malformed.txt", text)).find("not UTF-8"), std::string::npos) << text;
  }
  for (const char* text : {"\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD"})
    EXPECT_EQ(error_of(written("formed.txt", text)), "") << text;
}

}  // namespace stepsim
