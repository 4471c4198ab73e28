// Texts of the catalog and of the user's files beside it: names, files, and the message of a text. Shared by the loaders of this folder.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "schema/embedded_files.h"

namespace google::protobuf {
class Message;
}

namespace stepsim {

struct CatalogSource {
  std::string name, path, text;
};

// "H100_SXM" and "h100 sxm" are "h100-sxm".
std::string normalized_name(std::string name);

// By its ending or a folder in it, not by whether it exists.
bool is_catalog_file(const std::string& name);

// read_message; an unquoted number where a quantity belongs is told which kind of text is wanted.
void read_source(const CatalogSource& source, google::protobuf::Message& message);

std::vector<std::string> catalog_names(std::span<const EmbeddedFile> files);

// The aliases that a text gives itself.
using AliasesOf = std::vector<std::string> (*)(const CatalogSource&);

// A file of the user or an entry of the catalog, by name or alias. InputError(flag) with the nearest name.
CatalogSource open_source(std::span<const EmbeddedFile> files, const std::string& name_or_file, const char* flag, AliasesOf aliases);

}  // namespace stepsim
