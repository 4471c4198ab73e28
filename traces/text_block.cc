#include "traces/text_block.h"

#include <array>

#include "sim/check.h"

namespace stepsim {

namespace {

// Length of the UTF-8 sequence that `text` (not empty) begins with, 0 if it is none. Unicode 15, table 3-7: no overlong forms, no
// surrogates.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80u) return 1;
  if (first < 0xC2u || first > 0xF4u) return 0;
  if (!follows(1)) return 0;
  if (first < 0xE0u) return 2;
  if (!follows(2)) return 0;
  const unsigned second = byte(1);
  if (first < 0xF0u) return (first == 0xE0u && second < 0xA0u) || (first == 0xEDu && second > 0x9Fu) ? 0 : 3;
  if (!follows(3)) return 0;
  return (first == 0xF0u && second < 0x90u) || (first == 0xF4u && second > 0x8Fu) ? 0 : 4;
}

}  // namespace

TextBlock& TextBlock::decimal(std::int64_t number, int digits) {
  STEPSIM_CHECK(number >= 0);
  STEPSIM_CHECK(digits >= 1 && digits <= 12);
  std::int64_t scale = 1;
  for (int i = 0; i < digits; ++i) scale *= 10;
  *this << number / scale;
  std::array<char, 13> places{'.'};
  std::int64_t rest = number % scale;
  for (int i = digits; i > 0; --i, rest /= 10) places[static_cast<std::size_t>(i)] = static_cast<char>('0' + rest % 10);
  return *this << std::string_view(places.data(), static_cast<std::size_t>(digits) + 1);
}

void TextBlock::flush() {
  if (used_ == 0) return;
  sink_(std::string_view(text_.get(), used_));
  used_ = 0;
}

TextBlock& TextBlock::append_long(std::string_view piece) {
  flush();
  if (piece.size() > kSize) {
    sink_(piece);
    return *this;
  }
  std::memcpy(text_.get(), piece.data(), piece.size());
  used_ = piece.size();
  return *this;
}

std::string json_escaped(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      escaped += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      escaped += '\\';
      escaped += text.front();
    } else if (first < 0x20 || first == 0x7F) {
      escaped += "\\u00";
      escaped += kHex[first >> 4];
      escaped += kHex[first & 15u];
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

}  // namespace stepsim
