#include "tools/job_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "schema/nearest_name.h"
#include "sim/check.h"

namespace stepsim {

static std::string shown(const SourceLocation& where) {
  return where.line == 0 ? where.file : fmt::format("{}:{}:{}", where.file, where.line, where.column);
}

JobValue::Form form_of(const std::string& value) {
  if (value == "true" || value == "false") return JobValue::Form::kSwitch;
  const bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
  return number ? JobValue::Form::kNumber : JobValue::Form::kText;
}

void JobValues::note(const std::string& path, const std::string& value, const std::string& source, JobValue::Form form) {
  values_.push_back({path, value, source, form});
}

void JobValues::note_given(const std::string& path) {
  const JobEntry& entry = entries_.values.at(path);
  note(path, entry.value, shown(entry.where), form_of(entry.value));
}

void JobValues::fail(const std::string& path, const std::string& problem) const {
  const auto entry = entries_.values.find(path);
  throw InputError(entry == entries_.values.end() ? SourceLocation{flag_of_path(path)} : place_of(path, entry->second), problem);
}

std::optional<std::string> JobValues::optional_text(const std::string& path) {
  const auto entry = entries_.values.find(path);
  if (entry == entries_.values.end()) return std::nullopt;
  if (entry->second.value.empty()) fail(path, "found an empty text, wanted a value, or no " + path + " at all");
  note(path, entry->second.value, shown(entry->second.where), JobValue::Form::kText);
  return entry->second.value;
}

// The schema has checked that the text is a number of the type.
template <class T>
static T number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  STEPSIM_CHECK(error == std::errc());
  STEPSIM_CHECK(end == text.data() + text.size());
  return value;
}

std::optional<std::int64_t> JobValues::optional_whole(const std::string& path) {
  const auto entry = entries_.values.find(path);
  if (entry == entries_.values.end()) return std::nullopt;
  note(path, entry->second.value, shown(entry->second.where), JobValue::Form::kNumber);
  return number<std::int64_t>(entry->second.value);
}

std::string JobValues::text(const std::string& path, const std::string& otherwise, const std::string& reason) {
  const std::optional<std::string> value = optional_text(path);
  if (!value) note(path, otherwise, "default: " + reason, JobValue::Form::kText);
  return value.value_or(otherwise);
}

std::int64_t JobValues::whole(const std::string& path, std::int64_t otherwise, const std::string& reason, std::int64_t least,
                              std::int64_t most) {
  const std::optional<std::int64_t> value = optional_whole(path);
  if (!value) note(path, std::to_string(otherwise), "default: " + reason, JobValue::Form::kNumber);
  const bool bounded = most < kUnbounded;
  if (value && !bounded && *value > most) fail(path, fmt::format("found {}, wanted a smaller number", *value));
  if (value && (*value < least || *value > most)) {
    fail(path, bounded ? fmt::format("found {}, wanted a whole number from {} to {}", *value, least, most)
                       : fmt::format("found {}, wanted a whole number, at least {}", *value, least));
  }
  return value.value_or(otherwise);
}

double JobValues::real(const std::string& path, double otherwise, const std::string& reason) {
  const auto entry = entries_.values.find(path);
  if (entry == entries_.values.end()) {
    note(path, fmt::format("{}", otherwise), "default: " + reason, JobValue::Form::kNumber);
    return otherwise;
  }
  const double value = number<double>(entry->second.value);
  if (!std::isfinite(value)) fail(path, "found " + entry->second.value + ", wanted a finite number");
  note(path, entry->second.value, shown(entry->second.where), JobValue::Form::kNumber);
  return value;
}

std::optional<bool> JobValues::optional_flag(const std::string& path) {
  const auto entry = entries_.values.find(path);
  if (entry == entries_.values.end()) return std::nullopt;
  note(path, entry->second.value, shown(entry->second.where), JobValue::Form::kSwitch);
  return entry->second.value == "true";
}

bool JobValues::flag(const std::string& path) {
  const std::optional<bool> value = optional_flag(path);
  if (!value) note(path, "false", "default: off", JobValue::Form::kSwitch);
  return value.value_or(false);
}

std::size_t JobValues::choice(const std::string& path, std::span<const std::string_view> names, std::span<const std::string_view> later,
                              std::size_t otherwise, const std::string& reason) {
  const std::string value = text(path, std::string(names[otherwise]), reason);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == value) return i;
  }
  const std::string wanted = fmt::format("{}", fmt::join(names, ", "));
  for (const std::string_view name : later) {
    if (name == value) fail(path, fmt::format("found {}, which is not built yet, wanted one of {}", value, wanted));
  }
  const std::vector<std::string> candidates(names.begin(), names.end());
  fail(path, fmt::format("found \"{}\", wanted one of {}{}", value, wanted, suggestion(value, candidates)));
}

std::string JobValues::required(const std::string& path, const std::string& wanted) {
  const auto entry = entries_.values.find(path);
  if (entry != entries_.values.end() && entry->second.value.empty()) fail(path, "found an empty text, wanted " + wanted);
  const std::optional<std::string> value = optional_text(path);
  if (!value) fail(path, "found none, wanted " + wanted);
  return *value;
}

}  // namespace stepsim
