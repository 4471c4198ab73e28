#include "hardware/catalog_source.h"

#include <cctype>

#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::string normalized_name(std::string name) {
  for (char& c : name) {
    c = c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

bool is_catalog_file(const std::string& name) {
  const auto ends_in = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends_in(".textproto") || ends_in(".txt") || ends_in(".json") || name.find('/') != std::string::npos;
}

static std::string stem(const std::string& path) {
  const std::size_t begin = path.find_last_of('/') + 1;  // npos + 1 is 0
  return path.substr(begin, path.find_last_of('.') - begin);
}

void read_source(const CatalogSource& source, google::protobuf::Message& message) {
  try {
    read_message(source.text, source.path, message);
  } catch (const InputError& error) {
    const std::string what = error.what(), end = ", wanted text in quotes";
    const std::size_t at = what.rfind(end);
    if (at == std::string::npos || at + end.size() != what.size()) throw;
    const std::size_t problem = what.rfind(": found ");
    if (problem == std::string::npos) throw;
    throw InputError({what.substr(0, problem)},
                     what.substr(problem + 2) + " with a unit: \"900 GB/s\", \"80 GiB\", \"5 us\" or \"989 TFLOP/s\"");
  }
}

std::vector<std::string> catalog_names(std::span<const EmbeddedFile> files) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) names.emplace_back(file.name);
  return names;
}

static CatalogSource source_of(const EmbeddedFile& file) {
  return {std::string(file.name), std::string(file.path), std::string(file.text)};
}

CatalogSource open_source(std::span<const EmbeddedFile> files, const std::string& name_or_file, const char* flag, AliasesOf aliases) {
  if (is_catalog_file(name_or_file)) return {stem(name_or_file), name_or_file, read_text_file(name_or_file)};
  const std::string wanted = normalized_name(name_or_file);
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) {
    if (file.name == wanted) return source_of(file);
    names.emplace_back(file.name);
  }
  for (const EmbeddedFile& file : files) {
    CatalogSource source = source_of(file);
    for (const std::string& alias : aliases(source)) {
      if (normalized_name(alias) == wanted) return source;
      names.push_back(alias);
    }
  }
  throw InputError({flag},
                   "found \"" + name_or_file + "\", wanted a catalog name (stepsim list) or a .textproto file" + suggestion(wanted, names));
}

}  // namespace stepsim
