#include "models/huggingface_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "schema/json_tokens.h"
#include "schema/message_field.h"
#include "sim/input_error.h"

namespace stepsim {

static constexpr int kDeepest = 64;  // nested objects and lists

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string line;
  for (const char c : text.substr(0, kLongest)) line += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kLongest ? line + "..." : line;
}

struct ConfigFile::Root {
  nlohmann::json value;

  const nlohmann::json* at(const std::string& key) const {
    const std::size_t dot = key.find('.');
    const auto outer = value.find(key.substr(0, dot));
    if (outer == value.end()) return nullptr;
    if (dot == std::string::npos) return &*outer;
    if (!outer->is_object()) return nullptr;
    const auto inner = outer->find(key.substr(dot + 1));
    return inner == outer->end() ? nullptr : &*inner;
  }
  const nlohmann::json& required(const ConfigFile& file, const std::string& key, const std::string& wanted) const {
    if (!file.given(key)) file.fail(key, "no " + key, wanted);
    return *at(key);
  }
};

ConfigFile::ConfigFile(const std::string& text, const std::string& file) : text_(text), file_(file), root_(std::make_unique<Root>()) {
  read();
}

ConfigFile::~ConfigFile() = default;

bool ConfigFile::named(const std::string& key) const {
  asked_.insert(key.substr(0, key.find('.')));
  return root_->at(key) != nullptr;
}

bool ConfigFile::given(const std::string& key) const { return named(key) && !root_->at(key)->is_null(); }

bool ConfigFile::is_object(const std::string& key) const { return named(key) && root_->at(key)->is_object(); }

static bool is_whole(const nlohmann::json& value) {
  const bool above = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  return value.is_number_integer() && !above;
}

std::int64_t ConfigFile::whole(const std::string& key) const {
  const nlohmann::json& value = root_->required(*this, key, "a whole number");
  if (!is_whole(value)) refuse(key, "a whole number");
  return value.get<std::int64_t>();
}

bool ConfigFile::flag(const std::string& key, bool otherwise) const {
  if (!given(key)) return otherwise;
  if (!root_->at(key)->is_boolean()) refuse(key, "true or false");
  return root_->at(key)->get<bool>();
}

double ConfigFile::number(const std::string& key, double otherwise) const {
  if (!given(key)) return otherwise;
  if (!root_->at(key)->is_number()) refuse(key, "a number");
  return root_->at(key)->get<double>();
}

std::string ConfigFile::word(const std::string& key) const {
  const nlohmann::json& value = root_->required(*this, key, "a text");
  if (!value.is_string()) refuse(key, "a text");
  return value.get<std::string>();
}

std::vector<std::string> ConfigFile::words(const std::string& key) const {
  std::vector<std::string> list;
  if (!given(key)) return list;
  if (!root_->at(key)->is_array()) refuse(key, "a list of texts");
  for (const nlohmann::json& value : *root_->at(key)) {
    if (!value.is_string()) refuse(key, "a list of texts");
    list.push_back(value.get<std::string>());
  }
  return list;
}

std::vector<std::int64_t> ConfigFile::whole_numbers(const std::string& key) const {
  std::vector<std::int64_t> list;
  if (!given(key)) return list;
  if (!root_->at(key)->is_array()) refuse(key, "a list of whole numbers");
  for (const nlohmann::json& value : *root_->at(key)) {
    if (!is_whole(value)) refuse(key, "a list of whole numbers");
    list.push_back(value.get<std::int64_t>());
  }
  return list;
}

std::vector<std::string> ConfigFile::unread(std::span<const std::string_view> harmless) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : root_->value.items()) {
    if (value.is_null() || asked_.count(key) > 0) continue;
    if (std::find(harmless.begin(), harmless.end(), key) == harmless.end()) keys.push_back(key);
  }
  const auto place = [&](const std::string& key) { return offsets_.at(key); };
  std::sort(keys.begin(), keys.end(), [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  return keys;
}

void ConfigFile::fail(const std::string& key, const std::string& found, const std::string& wanted) const {
  const auto place = offsets_.find(key);
  const std::size_t first = text_.find('{');
  throw InputError(place_at(text_, file_, place == offsets_.end() ? first : place->second), "found " + found + ", wanted " + wanted);
}

void ConfigFile::refuse(const std::string& key, const std::string& wanted) const {
  const nlohmann::json* const value = root_->at(key);
  fail(key, value == nullptr ? "no " + printable(key) : printable(key) + " " + printable(value->dump(-1, ' ', true)), wanted);
}

void ConfigFile::syntax_error(std::size_t bytes_read, const std::string& message) const {
  const std::size_t offset = bytes_read == 0 ? 0 : bytes_read - 1;
  const bool ended = offset >= text_.size();
  const std::string found = ended ? "the end of the file" : "\"" + printable(std::string_view(text_).substr(offset, 1)) + "\"";
  const std::size_t expected = message.rfind("expected ");
  const std::size_t reason = message.find(" - ");
  std::string wanted = "valid JSON in UTF-8";
  if (expected != std::string::npos && message.compare(expected - 2, 2, "un") != 0) {
    wanted = printable(message.substr(expected + 9));
  } else if (reason != std::string::npos && !ended) {
    wanted += " (" + printable(message.substr(reason + 3, message.find(';', reason) - reason - 3)) + ")";
  }
  throw InputError(place_at(text_, file_, offset), "found " + found + ", wanted " + wanted);
}

void ConfigFile::read() {
  const std::size_t first = text_.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw InputError({file_, 1, 1}, "found an empty file, wanted a Hugging Face config.json");
  JsonTokens tokens(text_);
  std::string outer;
  std::vector<std::set<std::string>> open;  // keys so far of the objects around the place
  using Event = nlohmann::json::parse_event_t;
  const auto on_event = [&](int depth, Event event, nlohmann::json& parsed) {
    const std::size_t place = tokens.next(event == Event::value && parsed.is_number());
    if (depth > kDeepest) {
      throw InputError(place_at(text_, file_, place), "found more than " + std::to_string(kDeepest) + " nested lists, wanted fewer");
    }
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event != Event::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (!open.back().insert(key).second) {
      throw InputError(place_at(text_, file_, place), "found " + printable(key) + " a second time, wanted each key once");
    }
    if (depth == 1) outer = key;
    if (depth <= 2) offsets_[depth == 1 ? key : outer + "." + key] = place;
    return true;
  };
  try {
    root_->value = nlohmann::json::parse(tokens.begin(), tokens.end(), on_event);
  } catch (const nlohmann::json::parse_error& error) {
    syntax_error(error.byte, error.what());
  } catch (const nlohmann::json::exception& error) {  // a number beyond double
    throw InputError(place_at(text_, file_, tokens.taken()),
                     "found a value that cannot be read, wanted valid JSON (" + printable(error.what()) + ")");
  }
  if (!root_->value.is_object())
    throw InputError(place_at(text_, file_, first), std::string("found ") + root_->value.type_name() + ", wanted an object");
}

}  // namespace stepsim
