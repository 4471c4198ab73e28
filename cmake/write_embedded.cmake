# Script of stepsim_embed: writes one .cc with the text of FILES (comma separated) as raw string literals.
string(REPLACE "," ";" files "${FILES}")
set(rows "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(LENGTH "${text}" length)
  if(length GREATER 60000)
    message(FATAL_ERROR "${file} is too long for one string literal")
  endif()
  get_filename_component(name "${file}" NAME_WLE)
  file(RELATIVE_PATH path "${ROOT}" "${file}")
  string(APPEND rows "    {\"${name}\", \"${path}\", R\"~~~~(${text})~~~~\"},\n")
endforeach()
file(WRITE "${OUT}" "// Written by cmake/write_embedded.cmake.
#include <span>

#include \"schema/embedded_files.h\"

namespace stepsim {

static constexpr EmbeddedFile kFiles[] = {
${rows}};

std::span<const EmbeddedFile> ${SYMBOL}() { return kFiles; }

}  // namespace stepsim
")
