#include "tools/megatron_arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace stepsim {

static std::string plain_flag(std::string flag) {
  if (flag.compare(0, 4, "env.") != 0) std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

static std::string plain_value(const std::string& value) {
  std::string plain;
  for (const char letter : value) {
    if (letter != '"' && letter != '\'' && letter != '\\') plain += letter;
  }
  return plain;
}

MegatronArguments::MegatronArguments(const std::map<std::string, std::string>& values, SourceLocation where) : where_(std::move(where)) {
  for (const auto& [flag, value] : values) {
    std::string plain = plain_value(value);
    if (!plain.empty()) values_.insert_or_assign(plain_flag(flag), std::move(plain));
  }
}

bool MegatronArguments::on(std::string_view flag) const {
  const auto found = values_.find(std::string(flag));
  return found != values_.end() && found->second != "false" && found->second != "False" && found->second != "0";
}

std::string MegatronArguments::text(std::string_view flag, std::string_view otherwise) const {
  const auto found = values_.find(std::string(flag));
  return found == values_.end() ? std::string(otherwise) : found->second;
}

template <class T>
static bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::int64_t MegatronArguments::whole(std::string_view flag, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
  if (!given(flag)) return otherwise;
  std::int64_t value = 0;
  if (!read_number(text(flag), value) || value < least || value > most) {
    refuse(flag, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

double MegatronArguments::real(std::string_view flag, double otherwise) const {
  if (!given(flag)) return otherwise;
  double value = 0;
  if (!read_number(text(flag), value) || !std::isfinite(value)) refuse(flag, "a number");
  return value;
}

std::vector<std::string> MegatronArguments::words(std::string_view flag) const {
  std::vector<std::string> words;
  std::string word;
  for (const char letter : text(flag) + " ") {
    const bool separates = letter == ' ' || letter == ',' || letter == '[' || letter == ']';
    if (!separates) word += letter;
    if (separates && !word.empty()) words.push_back(std::move(word));
    if (separates) word.clear();
  }
  return words;
}

void MegatronArguments::refuse(std::string_view flag, std::string_view wanted) const {
  throw InputError(where_, "found --" + std::string(flag) + " \"" + text(flag) + "\", wanted " + std::string(wanted));
}

}  // namespace stepsim
