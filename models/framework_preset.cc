#include "models/framework_preset.h"

#include <algorithm>
#include <map>
#include <span>

#include "models/framework.pb.h"
#include "models/framework_catalog.h"
#include "models/framework_fields.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> framework_files();  // written by stepsim_embed()

namespace {

std::string label_of(const files::Framework& message) { return message.name() + "@" + message.version(); }

struct Merged {
  files::Framework message;
  std::map<std::string, std::string> said_by;  // by field
};

void require_name(const files::Framework& message, const std::string& file) {
  for (const auto& [field, value] : {std::pair("name", message.name()), std::pair("version", message.version())}) {
    if (value.empty()) throw InputError({file, 1, 1}, std::string("found no ") + field + ", wanted a framework with it");
  }
}

// The file with what its bases say where it is silent. `above`: who is based on it.
Merged merged(std::span<const EmbeddedFile> catalog, const std::string& text, const std::string& file, std::vector<std::string> above) {
  Merged own;
  read_message(text, file, own.message);
  require_name(own.message, file);
  check_framework_fields(own.message, [&](const std::string& field) { return locate_field(text, file, field); });
  for (const auto& [field, value] : set_fields(own.message)) own.said_by[field] = label_of(own.message);
  if (!own.message.has_base()) {
    const std::string missing = missing_framework_field(own.message);
    if (!missing.empty()) throw InputError({file, 1, 1}, "found no " + missing + ", wanted a framework with it, or a base");
    return own;
  }
  above.push_back(label_of(own.message));
  const std::string name = own.message.base();
  const SourceLocation place = locate_field(text, file, "base");
  if (std::find(above.begin(), above.end(), name) != above.end()) {
    throw InputError(place, "found base \"" + name + "\", which is based on " + label_of(own.message) + " itself, wanted another one");
  }
  const auto found = std::find_if(catalog.begin(), catalog.end(), [&](const EmbeddedFile& each) { return each.name == name; });
  if (found == catalog.end()) {
    std::vector<std::string> names;
    for (const EmbeddedFile& each : catalog) names.emplace_back(each.name);
    throw InputError(place, "found base \"" + name + "\", wanted NAME@VERSION of the catalog" + suggestion(name, names));
  }
  Merged base = merged(catalog, std::string(found->text), std::string(found->path), above);
  if (own.message.stored_size() > 0) base.message.clear_stored();
  base.message.clear_source();
  base.message.MergeFrom(own.message);
  for (const auto& [field, label] : own.said_by) base.said_by[field] = label;
  return base;
}

void apply_overrides(Merged& whole, FrameworkOverrides overrides) {
  files::Framework said;
  for (const auto& [field, value] : overrides) {
    set_field(said, field, value, "--set");
    whole.said_by[field] = "";
  }
  check_framework_fields(said, [](const std::string& field) { return SourceLocation{"--set framework." + field}; });
  if (said.stored_size() > 0) whole.message.clear_stored();
  whole.message.MergeFrom(said);
}

}  // namespace

DescribedFramework describe_framework_text(std::span<const EmbeddedFile> catalog, const std::string& text, const std::string& file,
                                           FrameworkOverrides overrides) {
  Merged whole = merged(catalog, text, file, {});
  apply_overrides(whole, overrides);
  DescribedFramework described{.preset = preset_of_fields(whole.message), .fields = {}};
  if (described.preset.source.empty()) described.preset.source = file;
  for (const auto& [field, value] : set_fields(whole.message)) {
    if (field == "name" || field == "version" || field == "source" || field == "base") continue;
    described.fields.push_back({field, value, whole.said_by[field]});
  }
  return described;
}

FrameworkPreset parse_framework(const std::string& text, const std::string& file) {
  return describe_framework_text(framework_files(), text, file).preset;
}

std::vector<std::string> framework_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : framework_files()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

DescribedFramework describe_framework(const std::string& name_at_version, FrameworkOverrides overrides) {
  const bool any_version = name_at_version.find('@') == std::string::npos;
  const EmbeddedFile* newest = nullptr;  // versions are years, then months: the text order is the order of time
  for (const EmbeddedFile& file : framework_files()) {
    const std::string_view name = any_version ? file.name.substr(0, file.name.find('@')) : file.name;
    if (name == name_at_version && (newest == nullptr || newest->name < file.name)) newest = &file;
  }
  if (newest != nullptr) {
    return describe_framework_text(framework_files(), std::string(newest->text), std::string(newest->path), overrides);
  }
  std::vector<std::string> names = framework_names();
  std::string versions;  // of the framework, if there is one
  const std::string start = name_at_version.substr(0, name_at_version.find('@')) + "@";
  for (const std::string& name : names) {
    if (name.compare(0, start.size(), start) == 0) versions += (versions.empty() ? "" : ", ") + name;
  }
  for (std::size_t i = names.size(); i-- > 0;) names.push_back(names[i].substr(0, names[i].find('@')));
  throw InputError({"--framework"}, "found \"" + name_at_version + "\", wanted " +
                                        (versions.empty() ? "one of `stepsim list frameworks`" : "one of " + versions) +
                                        suggestion(name_at_version, names));
}

FrameworkPreset load_framework(const std::string& name_at_version) { return describe_framework(name_at_version).preset; }

}  // namespace stepsim
