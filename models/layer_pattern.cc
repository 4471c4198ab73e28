#include "models/layer_pattern.h"

#include <charconv>

namespace stepsim {

namespace {

using Pattern = std::vector<std::uint8_t>;

constexpr std::size_t kMostEntries = 100'000;  // as many as a model's layers
constexpr int kDeepest = 64;                   // parentheses within one another

// A sum of terms. Every function leaves the place behind what it has read, and none at a mistake.
class PatternText {
 public:
  explicit PatternText(std::string_view text) : text_(text) {}

  std::optional<Pattern> whole() {
    std::optional<Pattern> pattern = sum(0);
    skip_space();
    return place_ == text_.size() ? pattern : std::nullopt;
  }

 private:
  void skip_space() {
    while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\t')) ++place_;
  }
  bool take(char wanted) {
    skip_space();
    const bool there = place_ < text_.size() && text_[place_] == wanted;
    if (there) ++place_;
    return there;
  }
  std::optional<std::size_t> count() {
    skip_space();
    std::size_t value = 0;
    const char* const begin = text_.data() + place_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value > kMostEntries) return std::nullopt;
    place_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::optional<Pattern> sum(int depth) {
    std::optional<Pattern> all = product(depth);
    while (all && take('+')) {
      const std::optional<Pattern> next = product(depth);
      if (!next || all->size() + next->size() > kMostEntries) return std::nullopt;
      all->insert(all->end(), next->begin(), next->end());
    }
    return all;
  }

  std::optional<Pattern> product(int depth) {
    std::optional<Pattern> once = factor(depth);
    while (once && take('*')) {
      const std::optional<std::size_t> times = count();
      if (!times || once->size() * *times > kMostEntries) return std::nullopt;
      Pattern repeated;
      for (std::size_t i = 0; i < *times; ++i) repeated.insert(repeated.end(), once->begin(), once->end());
      once = repeated;
    }
    return once;
  }

  std::optional<Pattern> factor(int depth) {
    if (take('(')) {
      std::optional<Pattern> inner = depth < kDeepest ? sum(depth + 1) : std::nullopt;
      return inner && take(')') ? inner : std::nullopt;
    }
    if (!take('[')) return std::nullopt;
    Pattern list;
    do {
      const std::optional<std::size_t> entry = count();
      if (!entry || *entry > 1 || list.size() == kMostEntries) return std::nullopt;
      list.push_back(static_cast<std::uint8_t>(*entry));
    } while (take(','));
    return take(']') ? std::optional<Pattern>(list) : std::nullopt;
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> layer_pattern(std::string_view text) {
  std::size_t every = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), every);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (every < 1 || every > kMostEntries) return std::nullopt;
    Pattern pattern(every, 0);
    pattern.front() = 1;
    return pattern;
  }
  std::optional<Pattern> pattern = PatternText(text).whole();
  return pattern && !pattern->empty() ? pattern : std::nullopt;
}

}  // namespace stepsim
