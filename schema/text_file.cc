#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "schema/message_field.h"
#include "schema/read_message.h"

namespace stepsim {

SourceLocation place_at(std::string_view text, const std::string& file, std::size_t offset) {
  SourceLocation where{file, 1, 1};
  for (std::size_t i = 0; i < offset && i < text.size(); ++i) {
    ++where.column;
    if (text[i] == '\n') {
      ++where.line;
      where.column = 1;
    }
  }
  return where;
}

// Length of the well-formed UTF-8 sequence at the front, 0 if it is malformed (RFC 3629: no surrogates, nothing above U+10FFFF).
static std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length < 2) return length;
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool outside = (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
  return overlong || outside ? 0 : length;
}

void check_encoding(std::string_view text, const std::string& file) {
  const std::string_view mark = text.substr(0, 2);
  if (mark == "\xFF\xFE" || mark == "\xFE\xFF") throw InputError({file}, "found UTF-16 text, wanted UTF-8");
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text.substr(i));
    if (length == 0) throw InputError(place_at(text, file, i), "found bytes that are not UTF-8, wanted UTF-8 text");
    if (text[i] == '\0') throw InputError(place_at(text, file, i), "found a NUL byte, wanted UTF-8 text");
    i += length;
  }
}

std::string read_text_file(const std::string& path, std::size_t largest) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw InputError({path}, "found a directory, wanted a file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file && errno == ENOENT) throw InputError({path}, "found no such file, wanted one that exists");
  if (!file)
    throw InputError({path}, std::string("found a file that cannot be read (") + std::strerror(errno) + "), wanted a readable one");
  std::string text;
  char block[1 << 16];
  for (std::size_t count = 1; count > 0;) {
    count = std::fread(block, 1, sizeof block, file.get());
    text.append(block, count);
    if (text.size() > largest) {
      const std::string limit = std::to_string(largest >> 20) + " MiB";
      throw InputError({path}, "found more than " + limit + ", wanted a text file of at most " + limit);
    }
  }
  if (std::ferror(file.get()) != 0)
    throw InputError({path}, std::string("found a read error (") + std::strerror(errno) + "), wanted a readable file");
  check_encoding(text, path);
  return text;
}

}  // namespace stepsim
