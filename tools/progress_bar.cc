#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace stepsim {

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (!drawn_.empty()) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::show(double part, const std::string& what) {
  if (!terminal_) return;
  constexpr std::size_t kWidth = 30, kMostText = 60;
  const double within = std::clamp(part, 0.0, 1.0);
  const auto full = static_cast<std::size_t>(within * kWidth);
  std::string picture = fmt::format("[{}{}] {:3.0f} % {}", std::string(full, '='), std::string(kWidth - full, ' '), 100 * within, what);
  picture.resize(std::min(picture.size(), kWidth + kMostText));
  if (picture == drawn_) return;
  drawn_ = picture;
  std::fputs(("\r\x1b[K" + picture).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace stepsim
