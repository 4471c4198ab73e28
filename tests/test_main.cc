// main() of every test program. ctest runs tests at once, each in a process of its own, so each process gets a folder of its own for the
// files that its tests write: testing::TempDir() is that folder, and it goes when the program ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);  // InitGoogleTest as well
  std::string folder = (std::filesystem::temp_directory_path() / "stepsim_test_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr || setenv("TEST_TMPDIR", (folder + "/").c_str(), 1) != 0) {
    std::cerr << folder << ": found no way to make this folder, wanted a place for the files of tests\n";
    return 2;
  }
  const int result = RUN_ALL_TESTS();
  std::error_code left;  // files that could not be removed are no reason to fail
  std::filesystem::remove_all(folder, left);
  return result;
}
