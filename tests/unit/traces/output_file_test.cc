#include "traces/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "sim/input_error.h"

namespace stepsim {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("stepsim_output_" + std::to_string(::getpid()) + "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string contents(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static void put(const std::string& file, const std::string& text) { std::ofstream(file) << text; }
  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }

  // Files that are not in place yet: none is seen where the file system can write them without a name.
  std::size_t parts(std::size_t count) const {
    const int probe = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0600);
    if (probe >= 0) ::close(probe);
    return probe >= 0 ? 0 : count;
  }

  fs::path folder_;
};

TEST_F(OutputFileTest, ReplacesAtCommitOnly) {
  put(path("a"), "old");
  {
    OutputFile file(path("a"));
    file.write("new");
    EXPECT_EQ(contents(path("a")), "old");
    file.commit();
  }
  EXPECT_EQ(contents(path("a")), "new");
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, FinishWritesAllAndReplacesNothing) {
  put(path("a"), "old");
  {
    OutputFile file(path("a")), dropped(path("b.gz"));
    file.write("new");
    file.finish();
    dropped.finish();
    EXPECT_EQ(contents(path("a")), "old");
    EXPECT_EQ(files(), 1 + parts(2));
    file.commit();
  }
  EXPECT_EQ(contents(path("a")), "new");
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, PreparedFilesReplaceNothingAndAreTakenAway) {
  put(path("a"), "old");
  {
    OutputFile file(path("a")), dropped(path("b"));
    file.write("new");
    file.prepare();
    dropped.prepare();
    EXPECT_EQ(contents(path("a")), "old");
    EXPECT_FALSE(fs::exists(path("b")));
    EXPECT_EQ(files(), 3u);  // each has a name of its own beside its target
    file.commit();
  }
  EXPECT_EQ(contents(path("a")), "new");
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, WithoutCommitNothingRemains) {
  put(path("a"), "old");
  {
    OutputFile file(path("a")), fresh(path("b"));
    file.write(std::string(1 << 20, 'x'));
    fresh.write("y");
    EXPECT_EQ(files(), 1 + parts(2));
  }
  EXPECT_EQ(contents(path("a")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, ANewFileHasThePermissionsOfTheUmask) {
  const mode_t before = ::umask(027);
  {
    OutputFile file(path("a"));
    file.write("new");
    file.finish();
    EXPECT_FALSE(fs::exists(path("a")));
    file.commit();
  }
  ::umask(before);
  EXPECT_EQ(static_cast<int>(fs::status(path("a")).permissions()), 0640);  // 0666 without 027
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, GzipByName) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i) + ",";
  {
    OutputFile file(path("a.json.gz"));
    for (std::size_t at = 0; at < text.size(); at += 1000) file.write(std::string_view(text).substr(at, 1000));
    file.commit();
  }
  EXPECT_LT(fs::file_size(path("a.json.gz")), text.size() / 2);
  gzFile in = gzopen(path("a.json.gz").c_str(), "rb");
  ASSERT_NE(in, nullptr);
  std::string back(text.size() + 1, '\0');
  back.resize(static_cast<std::size_t>(gzread(in, back.data(), static_cast<unsigned>(back.size()))));
  gzclose(in);
  EXPECT_EQ(back, text);
}

TEST_F(OutputFileTest, EmptyGzipIsAWholeFile) {
  {
    OutputFile file(path("a.gz"));
    file.commit();
  }
  gzFile in = gzopen(path("a.gz").c_str(), "rb");
  ASSERT_NE(in, nullptr);
  char byte = 0;
  EXPECT_EQ(gzread(in, &byte, 1), 0);
  EXPECT_EQ(gzclose(in), Z_OK);
  EXPECT_EQ(contents(path("a.gz")).substr(0, 2), "\x1f\x8b");
}

TEST_F(OutputFileTest, KeepsPermissionsAndLinks) {
  put(path("target"), "old");
  ASSERT_EQ(::chmod(path("target").c_str(), 0640), 0);
  fs::create_symlink("target", path("link"));
  {
    OutputFile file(path("link"));
    file.write("new");
    file.commit();
  }
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(contents(path("target")), "new");
  EXPECT_EQ(static_cast<int>(fs::status(path("target")).permissions()), 0640);
  fs::create_symlink("not yet there", path("dangling"));
  {
    OutputFile file(path("dangling"));
    file.write("fresh");
    file.commit();
  }
  EXPECT_EQ(contents(path("not yet there")), "fresh");
}

TEST_F(OutputFileTest, RefusesWhatIsNoFile) {
  const auto refused = [](const std::string& name) {
    try {
      OutputFile file(name);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(folder_.string()), ::testing::EndsWith(": found a folder, wanted a file to write"));
  EXPECT_THAT(refused(path("no/such/folder")), ::testing::EndsWith("No such file or directory, wanted a file to write"));
  EXPECT_THAT(refused(path("a") + "/"), ::testing::EndsWith("wanted a file to write"));
  EXPECT_THAT(refused(""), ::testing::HasSubstr("an empty file name"));
  EXPECT_THAT(refused("/proc/stepsim.json"), ::testing::EndsWith("wanted a file to write"));  // even root cannot create it
  fs::create_symlink("circle", path("circle"));
  EXPECT_THAT(refused(path("circle")), ::testing::HasSubstr("too many symbolic links"));
  EXPECT_EQ(files(), 1u);
}

TEST_F(OutputFileTest, UnwritableFileOrFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  put(path("a"), "old");
  ASSERT_EQ(::chmod(path("a").c_str(), 0444), 0);
  EXPECT_THROW(OutputFile file(path("a")), InputError);
  ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
  EXPECT_THROW(OutputFile file(path("b")), InputError);
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
}

TEST_F(OutputFileTest, FullDisk) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  OutputFile small("/dev/full");
  small.write("x");
  EXPECT_THROW(small.finish(), InputError);
  OutputFile committed("/dev/full");
  committed.write("x");
  EXPECT_THROW(committed.commit(), InputError);
  OutputFile large("/dev/full");
  EXPECT_THROW(large.write(std::string(1 << 20, 'x')), InputError);
  EXPECT_TRUE(fs::exists("/dev/full"));
}

TEST_F(OutputFileTest, DevicesAreWrittenDirectly) {
  OutputFile file("/dev/null");
  file.write("x");
  file.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(OutputFileTest, StandardOutput) {
  ::testing::internal::CaptureStdout();
  {
    OutputFile file("-");
    file.write("to stdout\n");
    file.commit();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "to stdout\n");
}

}  // namespace
}  // namespace stepsim
