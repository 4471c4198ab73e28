// A bar on a terminal's standard error; nothing where that is a file or a pipe.
#pragma once

#include <cstddef>
#include <string>

namespace stepsim {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `part` from 0 to 1 of all; drawn when the picture changes.
  void show(double part, const std::string& what);

 private:
  bool terminal_;
  std::string drawn_;
};

}  // namespace stepsim
