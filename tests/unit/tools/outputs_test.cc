#include "tools/outputs.h"

#include <filesystem>
#include <stdexcept>

#include "schema/read_message.h"
#include "tests/unit/tools/test_jobs.h"

namespace stepsim {

static Output text_output(const std::string& name, const std::string& path, const std::string& text) {
  return {name, path, [text](const TextSink& sink) { sink(text); }};
}

TEST(Outputs, RefusesTwoOutputsToOnePlace) {
  const auto problem = [](const std::string& a, const std::string& b) {
    return error_of([&] { check_outputs({text_output("--json", a, ""), text_output("--trace", b, "")}, {}); });
  };
  EXPECT_EQ(problem("-", "-"), "--trace: found -, which --json has, wanted a file");
  EXPECT_EQ(problem("a.json", "./a.json"), "--trace: found ./a.json, which --json writes, wanted another file");
  EXPECT_EQ(problem("x/../a.json", "a.json"), "--trace: found a.json, which --json writes, wanted another file");
  EXPECT_EQ(problem("-", "a.json"), "");
  EXPECT_EQ(problem("", ""), "");
  EXPECT_EQ(problem("/dev/null", "/dev/null"), "");
}

TEST(Outputs, RefusesToReplaceAnInput) {
  const std::string input = written("input.textproto", "x");
  const std::string link = testing::TempDir() + "link.textproto";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(input, link);
  for (const std::string& path : {input, link}) {
    const std::string problem = error_of([&] { check_outputs({text_output("--json", path, "")}, {"", input}); });
    EXPECT_EQ(problem, "--json: found " + path + ", which is an input, wanted another file");
  }
}

TEST(Outputs, WritesAll) {
  const std::string a = testing::TempDir() + "a.out", b = testing::TempDir() + "b.out";
  write_outputs({text_output("--json", a, "one"), text_output("--trace", "", "none"), text_output("--memory-csv", b, "two")});
  EXPECT_EQ(read_text_file(a), "one");
  EXPECT_EQ(read_text_file(b), "two");
}

TEST(Outputs, WritesNothingWhenOneFails) {
  const std::string kept = written("kept.out", "old");
  const Output failing{"--trace", testing::TempDir() + "failing.out",
                       [](const TextSink&) { throw InputError({"x"}, "found y, wanted z"); }};
  EXPECT_EQ(error_of([&] { write_outputs({text_output("--json", kept, "new"), failing}); }), "x: found y, wanted z");
  EXPECT_EQ(read_text_file(kept), "old");
  EXPECT_FALSE(std::filesystem::exists(failing.path));
  const Output nowhere = text_output("--trace", "/no/such/folder/a.json", "");
  EXPECT_NE(error_of([&] { write_outputs({text_output("--json", kept, "new"), nowhere}); }), "");
  EXPECT_EQ(read_text_file(kept), "old");
  const Output full = text_output("--trace", "/dev/full", "text");  // fails when it is flushed
  EXPECT_NE(error_of([&] { write_outputs({text_output("--json", kept, "new"), full}); }), "");
  EXPECT_EQ(read_text_file(kept), "old");
}

}  // namespace stepsim
