#include "tools/outputs.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "sim/input_error.h"
#include "traces/output_file.h"

namespace stepsim {

static std::filesystem::path absolute(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored).lexically_normal();
}

static bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || absolute(a) == absolute(b) || std::filesystem::equivalent(a, b, ignored);
}

static bool is_device(const std::string& path) {  // /dev/null may be given twice
  std::error_code ignored;
  return std::filesystem::is_character_file(path, ignored);
}

static std::string first_stdout(const std::vector<Output>& outputs) {
  for (const Output& output : outputs) {
    if (output.path == "-") return output.flag;
  }
  return "";
}

void check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    if (output.path.empty()) continue;
    for (std::size_t j = 0; j < i; ++j) {
      const Output& other = outputs[j];
      if (other.path.empty()) continue;
      if (output.path == "-" && other.path == "-") throw InputError({output.flag}, "found -, which " + other.flag + " has, wanted a file");
      const bool clash = output.path != "-" && other.path != "-" && !is_device(output.path) && same_file(output.path, other.path);
      if (clash) throw InputError({output.flag}, "found " + output.path + ", which " + other.flag + " writes, wanted another file");
    }
    for (const std::string& input : inputs) {
      std::error_code ignored;
      const bool clash = output.path != "-" && std::filesystem::is_regular_file(input, ignored) && same_file(output.path, input);
      if (clash) throw InputError({output.flag}, "found " + output.path + ", which is an input, wanted another file");
    }
  }
}

// Anything but a regular file: what is written to it cannot be taken back, and a failure shows only when it is flushed.
static bool written_directly(const std::string& path) {
  std::error_code ignored;
  return path == "-" || (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored));
}

static void print_summary(const std::vector<Output>& outputs, const std::string& text) {
  std::FILE* const stream = first_stdout(outputs).empty() ? stdout : stderr;
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
  const bool read_enough = !written && errno == EPIPE;  // `| head -1`: no failure
  std::signal(SIGPIPE, before);
  if (!written && !read_enough && stream == stdout) throw InputError({"stdout"}, "found no room to write, wanted a writable output");
}

void write_outputs(const std::vector<Output>& outputs, const std::string& summary) {
  std::vector<std::unique_ptr<OutputFile>> direct, replaced;
  for (const bool directly : {false, true}) {
    for (const Output& output : outputs) {
      if (output.path.empty() || written_directly(output.path) != directly) continue;
      std::vector<std::unique_ptr<OutputFile>>& files = directly ? direct : replaced;
      files.push_back(std::make_unique<OutputFile>(output.path));
      OutputFile& file = *files.back();
      output.write([&file](std::string_view text) { file.write(text); });
    }
  }
  for (const auto* files : {&replaced, &direct}) {  // the last bytes too: a full disk must show before any file is replaced
    for (const std::unique_ptr<OutputFile>& file : *files) file->finish();
  }
  print_summary(outputs, summary);
  for (const std::unique_ptr<OutputFile>& file : replaced) file->prepare();
  for (const std::unique_ptr<OutputFile>& file : replaced) file->commit();
}

}  // namespace stepsim
