#include "traces/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;
// On a trace of tests/bench/trace_bench.cc level 1 is half as fast again as level 3, for 7 % more bytes.
constexpr int kLevel = 1;
constexpr int kGzipWindow = 15 + 16;  // zlib.h, deflateInit2: 32 KiB window, 16 more for a gzip header
constexpr int kMemoryLevel = 8;       // zlib.h: the default

[[noreturn]] void refuse_output(const std::string& path, const std::string& found) {
  throw InputError({.file = path}, "found " + found + ", wanted a file to write");
}

std::string error_text(int error) { return std::strerror(error); }

// The file that a chain of symbolic links ends at, which need not exist; 40 links as in Linux (path_resolution(7)).
std::filesystem::path followed(const std::string& path) {
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == 40) refuse_output(path, "too many symbolic links");
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) refuse_output(path, error.message());
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target;
}

}  // namespace

struct OutputFile::State {
  std::string path;       // as the user named it
  std::string target;     // what is replaced
  std::string temporary;  // a file with a name beside it; empty: none
  bool unnamed = false;   // written without a name: an interrupted run leaves nothing
  int descriptor = -1;
  bool owned = true;  // to be closed
  bool finished = false;
  bool compressed = false;
  z_stream deflate{};
  std::vector<unsigned char> block;  // compressed bytes, or text on its way

  void open();
  void open_beside(const struct stat* existing);
  bool open_unnamed();
  template <class Create>
  void create_part(const Create& create);
  void close();
  void put(const unsigned char* bytes, std::size_t size);
  void put_block();
  void compress(std::string_view text, int flush);
};

void OutputFile::State::open() {
  if (path == "-") {
    descriptor = STDOUT_FILENO;
    owned = false;
    return;
  }
  if (path.empty()) refuse_output(path, "an empty file name");
  target = followed(path).string();
  struct stat existing {};
  const bool exists = ::stat(target.c_str(), &existing) == 0;
  if (exists && S_ISDIR(existing.st_mode)) refuse_output(path, "a folder");
  if (exists && !S_ISREG(existing.st_mode)) {
    descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) refuse_output(path, error_text(errno));
    return;
  }
  if (exists && ::access(target.c_str(), W_OK) != 0) refuse_output(path, error_text(errno));
  if (target.back() == '/') refuse_output(path, "the name of a folder");
  open_beside(exists ? &existing : nullptr);
}

static std::filesystem::path folder_of(const std::string& target) {
  const std::filesystem::path folder = std::filesystem::path(target).parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

static std::string link_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

// False where the file system has no unnamed files, or without /proc, through which they are named (open(2), O_TMPFILE).
bool OutputFile::State::open_unnamed() {
  descriptor = ::open(folder_of(target).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor < 0) return false;
  if (::access(link_of(descriptor).c_str(), F_OK) == 0) return true;
  ::close(descriptor);
  descriptor = -1;
  return false;
}

// `create` makes a file of the name that it is given, false and errno if it cannot.
template <class Create>
void OutputFile::State::create_part(const Create& create) {
  for (int attempt = 0; attempt < 1000; ++attempt) {  // another run of the same process number may have left one
    const std::string part = ".stepsim-" + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".part";
    const std::string name = (folder_of(target) / part).string();
    if (create(name.c_str())) {
      temporary = name;
      return;
    }
    if (errno != EEXIST) refuse_output(path, error_text(errno));
  }
  refuse_output(path, "too many unfinished outputs in its folder");
}

// An unnamed file would be gone: a copy of its descriptor is closed, which shows the same errors.
void OutputFile::State::close() {
  const int closed = unnamed ? ::dup(descriptor) : descriptor;
  if (!unnamed) descriptor = -1;
  if (closed < 0 || ::close(closed) != 0) refuse_output(path, error_text(errno));
}

void OutputFile::State::open_beside(const struct stat* existing) {
  unnamed = open_unnamed();
  if (!unnamed) {
    create_part([this](const char* name) {
      descriptor = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      return descriptor >= 0;
    });
  }
  // Without the right to set them (a file of another user) the umask's permissions stand.
  if (existing != nullptr) (void)::fchmod(descriptor, existing->st_mode & 07777);
}

void OutputFile::State::put(const unsigned char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse_output(path, error_text(errno));
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

void OutputFile::State::put_block() {
  put(block.data(), block.size());
  block.clear();
}

void OutputFile::State::compress(std::string_view text, int flush) {
  // zlib takes 32-bit lengths and does not write through next_in.
  STEPSIM_CHECK(text.size() <= std::numeric_limits<uInt>::max());
  deflate.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  deflate.avail_in = static_cast<uInt>(text.size());
  std::array<unsigned char, kBlock / 4> out;
  do {
    deflate.next_out = out.data();
    deflate.avail_out = static_cast<uInt>(out.size());
    const int outcome = ::deflate(&deflate, flush);
    STEPSIM_CHECK(outcome == Z_OK || outcome == Z_STREAM_END || outcome == Z_BUF_ERROR);
    block.insert(block.end(), out.data(), out.data() + (out.size() - deflate.avail_out));
    if (block.size() >= kBlock) put_block();
  } while (deflate.avail_out == 0);
}

OutputFile::OutputFile(const std::string& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->block.reserve(2 * kBlock);
  state_->open();
  if (!path.ends_with(".gz")) return;
  const int outcome = deflateInit2(&state_->deflate, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY);
  STEPSIM_CHECK(outcome == Z_OK);
  state_->compressed = true;
}

OutputFile::~OutputFile() {
  if (state_->compressed) deflateEnd(&state_->deflate);
  if (state_->owned && state_->descriptor >= 0) ::close(state_->descriptor);
  if (!state_->temporary.empty()) ::unlink(state_->temporary.c_str());
}

void OutputFile::write(std::string_view text) {
  STEPSIM_CHECK(!state_->finished);
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kPiece);
    if (state_->compressed) {
      state_->compress(piece, Z_NO_FLUSH);
    } else if (const auto* bytes = reinterpret_cast<const unsigned char*>(piece.data()); piece.size() >= kBlock) {
      state_->put_block();
      state_->put(bytes, piece.size());
    } else {
      state_->block.insert(state_->block.end(), bytes, bytes + piece.size());
      if (state_->block.size() >= kBlock) state_->put_block();
    }
    text.remove_prefix(piece.size());
  }
}

void OutputFile::finish() {
  State& state = *state_;
  STEPSIM_CHECK(!state.finished);
  state.finished = true;
  if (state.compressed) state.compress({}, Z_FINISH);
  state.put_block();
  if (state.owned) state.close();
}

void OutputFile::prepare() {
  State& state = *state_;
  if (!state.finished) finish();
  if (!state.unnamed || !state.temporary.empty()) return;
  state.create_part(
      [&state](const char* name) { return ::linkat(AT_FDCWD, link_of(state.descriptor).c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0; });
}

void OutputFile::commit() {
  State& state = *state_;
  prepare();
  if (state.temporary.empty()) return;
  if (::rename(state.temporary.c_str(), state.target.c_str()) != 0) refuse_output(state.path, error_text(errno));
  state.temporary.clear();
}

}  // namespace stepsim
