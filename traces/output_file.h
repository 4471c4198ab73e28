// Output that is replaced whole or not at all: written beside the target under another name, renamed at the end. Plain or gzip by name (".gz").
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace stepsim {

class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // "-": stdout. InputError if it cannot be created.
  ~OutputFile();                                 // without commit(): nothing was written
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::string_view text);             // InputError when the disk is full
  void commit();                                 // flush, close, rename

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stepsim
