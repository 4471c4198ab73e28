#include "tools/outputs.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
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
  write_outputs({text_output("--json", a, "one"), text_output("--trace", "", "none"), text_output("--memory-csv", b, "two")}, "");
  EXPECT_EQ(read_text_file(a), "one");
  EXPECT_EQ(read_text_file(b), "two");
}

TEST(Outputs, WritesNothingWhenOneFails) {
  const std::string kept = written("kept.out", "old");
  const Output failing{"--trace", testing::TempDir() + "failing.out",
                       [](const TextSink&) { throw InputError({"x"}, "found y, wanted z"); }};
  EXPECT_EQ(error_of([&] { write_outputs({text_output("--json", kept, "new"), failing}, ""); }), "x: found y, wanted z");
  EXPECT_EQ(read_text_file(kept), "old");
  EXPECT_FALSE(std::filesystem::exists(failing.path));
  const Output nowhere = text_output("--trace", "/no/such/folder/a.json", "");
  EXPECT_NE(error_of([&] { write_outputs({text_output("--json", kept, "new"), nowhere}, ""); }), "");
  EXPECT_EQ(read_text_file(kept), "old");
  const Output full = text_output("--trace", "/dev/full", "text");  // fails when it is flushed
  EXPECT_NE(error_of([&] { write_outputs({text_output("--json", kept, "new"), full}, ""); }), "");
  EXPECT_EQ(read_text_file(kept), "old");
}

// Writes beyond `bytes` of a file fail with EFBIG, as those on a full disk do with ENOSPC.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int);
};

// The text is less than a block: it reaches the disk only when the file is finished, after everything was written.
TEST(Outputs, ADiskThatIsFullForTheSecondFileLeavesTheFirst) {
  const std::string first = written("first.out", "old"), second = written("second.out", "older");
  const auto write = [&] {
    write_outputs({text_output("--json", first, "new"), text_output("--trace", second, std::string(2000, 'x'))}, "");
  };
  {
    const FileSizeLimit limit(1000);
    EXPECT_EQ(error_of(write), second + ": found File too large, wanted a file to write");
  }
  EXPECT_EQ(read_text_file(first), "old");
  EXPECT_EQ(read_text_file(second), "older");
  write();
  EXPECT_EQ(read_text_file(first), "new");
}

// A program's stdout for the length of a test: what it writes goes to `path`.
class StdoutTo {
 public:
  explicit StdoutTo(const char* path) : before_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    const int file = ::open(path, O_WRONLY);
    EXPECT_EQ(::dup2(file, STDOUT_FILENO), STDOUT_FILENO);
    ::close(file);
  }
  ~StdoutTo() {
    std::fflush(stdout);
    std::clearerr(stdout);
    ::dup2(before_, STDOUT_FILENO);
    ::close(before_);
  }
  StdoutTo(const StdoutTo&) = delete;
  StdoutTo& operator=(const StdoutTo&) = delete;

 private:
  int before_;
};

TEST(Outputs, AStdoutWithoutRoomLeavesEveryFile) {
  const std::string kept = written("kept.out", "old"), fresh = testing::TempDir() + "fresh.out";
  std::filesystem::remove(fresh);
  const std::vector<Output> outputs = {text_output("--json", kept, "new"), text_output("--trace", fresh, "new")};
  std::string summary_error, output_error;
  {
    const StdoutTo full("/dev/full");
    summary_error = error_of([&] { write_outputs(outputs, "a summary\n"); });
    output_error = error_of([&] { write_outputs({text_output("--json", "-", "x"), text_output("--trace", fresh, "new")}, ""); });
  }
  EXPECT_EQ(summary_error, "stdout: found no room to write, wanted a writable output");
  EXPECT_EQ(output_error, "-: found No space left on device, wanted a file to write");
  EXPECT_EQ(read_text_file(kept), "old");
  EXPECT_FALSE(std::filesystem::exists(fresh));
  write_outputs(outputs, "");
  EXPECT_EQ(read_text_file(kept), "new");
  EXPECT_EQ(read_text_file(fresh), "new");
}

// `stepsim explain --json f | head -1`
TEST(Outputs, AReaderThatHasSeenEnoughIsNoFailure) {
  const std::string file = written("kept.out", "old");
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const std::string writer = "/proc/self/fd/" + std::to_string(ends[1]);
  {
    const StdoutTo pipe(writer.c_str());
    ::close(ends[1]);
    EXPECT_EQ(error_of([&] { write_outputs({text_output("--json", file, "new")}, "a summary\n"); }), "");
  }
  EXPECT_EQ(read_text_file(file), "new");
}

}  // namespace stepsim
