// Data files compiled into the program by cmake/embed_files.cmake, so that the binary runs from any folder.
#pragma once

#include <span>
#include <string_view>

namespace stepsim {

struct EmbeddedFile {
  std::string_view name;  // file name without folder and extension: "llama3-8b"
  std::string_view path;  // as in the source tree, for error messages
  std::string_view text;
};

}  // namespace stepsim
