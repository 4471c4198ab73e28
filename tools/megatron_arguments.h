// The arguments of one Megatron-LM run as text by flag, and how their values are read. Knows no flag's meaning.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/input_error.h"

namespace stepsim {

class MegatronArguments {
 public:
  // By flag without dashes ("num-layers"), environment variables as "env.NAME". Quotes around values, backslashes (of layout strings in
  // shell scripts) and underscores of flags are taken off; empty values count as not given. `where`: named in errors.
  MegatronArguments(const std::map<std::string, std::string>& values, SourceLocation where);

  bool given(std::string_view flag) const { return values_.count(std::string(flag)) > 0; }
  // A switch: given, and not "false".
  bool on(std::string_view flag) const;
  std::string text(std::string_view flag, std::string_view otherwise = "") const;
  std::int64_t whole(std::string_view flag, std::int64_t otherwise, std::int64_t least = 1,
                     std::int64_t most = std::int64_t{1} << 40) const;
  double real(std::string_view flag, double otherwise) const;
  // "[layernorm mlp]", "layernorm,mlp", "layernorm mlp".
  std::vector<std::string> words(std::string_view flag) const;
  [[noreturn]] void refuse(std::string_view flag, std::string_view wanted) const;

  const std::map<std::string, std::string>& values() const { return values_; }
  const SourceLocation& where() const { return where_; }

 private:
  std::map<std::string, std::string> values_;
  SourceLocation where_;
};

// Flags of which this program knows neither what they do to memory nor that they do nothing, sorted.
std::vector<std::string> unknown_flags(const MegatronArguments& arguments);

}  // namespace stepsim
