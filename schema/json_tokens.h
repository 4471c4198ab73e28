// Where a JSON parser stands in its text: it reads characters that are counted, and from the count follows where each token began. Knows no
// parser: the JSON library stays in the .cc files.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

namespace stepsim {

// An input iterator over the characters, which counts those that were taken.
class JsonCharacters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  JsonCharacters(const char* at, std::size_t* taken) : at_(at), taken_(taken) {}
  reference operator*() const { return *at_; }
  JsonCharacters& operator++() {
    ++at_;
    ++*taken_;
    return *this;
  }
  JsonCharacters operator++(int) {
    const JsonCharacters before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const JsonCharacters& a, const JsonCharacters& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  std::size_t* taken_;
};

// The characters of one text and the places of its tokens. Not to be moved while a parser reads.
class JsonTokens {
 public:
  explicit JsonTokens(std::string_view text) : text_(text) {}
  JsonTokens(const JsonTokens&) = delete;
  JsonTokens& operator=(const JsonTokens&) = delete;

  JsonCharacters begin() { return {text_.data(), &taken_}; }
  JsonCharacters end() { return {text_.data() + text_.size(), &taken_}; }
  std::size_t taken() const { return taken_; }

  // First byte of the token that the parser's event is about. Call it once an event: for every key, value, and begin and end of an object
  // or a list, in their order. `number` where the token is one: the parser has looked one byte beyond it.
  std::size_t next(bool number) {
    std::size_t first = last_end_;
    while (first < text_.size() && std::string_view(" \t\r\n,:").find(text_[first]) != std::string_view::npos) ++first;
    last_end_ = taken_;
    if (number) {
      last_end_ = first;
      while (last_end_ < text_.size() && std::string_view("+-.0123456789eE").find(text_[last_end_]) != std::string_view::npos) ++last_end_;
    }
    return first;
  }

 private:
  std::string_view text_;
  std::size_t taken_ = 0, last_end_ = 0;
};

}  // namespace stepsim
