// Text on its way to a sink, gathered into blocks: numbers and strings appended without allocation. Knows no format but JSON's string
// rules.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace stepsim {

// Takes the next piece of an output; writes, compresses or counts it. What it throws passes through the writer.
using TextSink = std::function<void(std::string_view)>;

class TextBlock {
 public:
  explicit TextBlock(const TextSink& sink) : sink_(sink), text_(std::make_unique<char[]>(kSize)) {}
  TextBlock(const TextBlock&) = delete;
  TextBlock& operator=(const TextBlock&) = delete;

  TextBlock& operator<<(std::string_view piece) {
    if (piece.size() > kSize - used_) return append_long(piece);
    if (!piece.empty()) std::memcpy(text_.get() + used_, piece.data(), piece.size());  // an empty view may point nowhere
    used_ += piece.size();
    return *this;
  }
  TextBlock& operator<<(std::int64_t number) {
    if (kSize - used_ < kNumberWidth) flush();
    const auto end = std::to_chars(text_.get() + used_, text_.get() + kSize, number);
    used_ = static_cast<std::size_t>(end.ptr - text_.get());
    return *this;
  }
  // number / 10^digits in decimal, with exactly `digits` (1 to 12) places: 1234567, 3 -> "1234.567". number >= 0.
  TextBlock& decimal(std::int64_t number, int digits);
  // What is gathered goes to the sink. Call it once at the end; the destructor does not.
  void flush();

 private:
  static constexpr std::size_t kSize = std::size_t{1} << 18;  // what OutputFile writes without gathering
  static constexpr std::size_t kNumberWidth = 40;
  TextBlock& append_long(std::string_view piece);

  const TextSink& sink_;
  std::unique_ptr<char[]> text_;
  std::size_t used_ = 0;
};

// The text between the quotes of a JSON string: quotes, backslashes and control characters escaped; bytes that are not UTF-8 become U+FFFD.
std::string json_escaped(std::string_view text);

}  // namespace stepsim
