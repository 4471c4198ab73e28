// Output that is replaced whole or not at all: written without a name (beside the target under another one where the file system has no
// unnamed files), put in its place at the end. Plain or gzip by name (".gz").
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace stepsim {

// "-" is stdout; devices, pipes and "/dev/stdout" are written directly, since they cannot be replaced. A symbolic link stays, what it
// points at is replaced. The file keeps its permissions, a new one gets those of the umask. Not for several threads.
class OutputFile {
 public:
  // InputError if it cannot be created: no such folder, a folder itself, not writable.
  explicit OutputFile(const std::string& path);
  ~OutputFile();  // without commit(): the target is as it was
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::string_view text);  // InputError when the disk is full
  void finish();                      // flush, close; InputError when the disk is full; only prepare() and commit() may follow
  void prepare();                     // finish() unless it was called; a name beside the target: the last that a full disk can stop
  void commit();                      // prepare() unless it was called, then puts the file in its place

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stepsim
