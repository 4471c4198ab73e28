#include "schema/read_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <limits>
#include <optional>
#include <set>

#include "schema/message_field.h"

namespace stepsim {

namespace pb = google::protobuf;

// The text between the n-th pair of quotes of a message.
static std::string quoted_part(const std::string& message, int n) {
  std::size_t begin = 0;
  for (int i = 0; i < 2 * n + 1; ++i) {
    begin = message.find('"', begin);
    if (begin == std::string::npos) return "";
    ++begin;
  }
  return message.substr(begin, message.find('"', begin) - begin);
}

// The enum of a field of this name that lacks the value, anywhere below a type: the parser's message does not say which message it is in.
static const pb::EnumDescriptor* enum_without(const pb::Descriptor& type, const std::string& field_name, const std::string& value,
                                              std::set<const pb::Descriptor*>& seen) {
  if (!seen.insert(&type).second) return nullptr;
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    const pb::EnumDescriptor* found = field.enum_type();
    if (found != nullptr && field.name() == field_name && found->FindValueByName(value) == nullptr) return found;
    if (field.message_type() != nullptr) found = enum_without(*field.message_type(), field_name, value, seen);
    if (found != nullptr && field.message_type() != nullptr) return found;
  }
  return nullptr;
}

struct Problem {
  std::string text;
  std::string before;  // the word that it is about, if the parser has already read past it
};

static bool starts_with(const std::string& text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }

// Protobuf's English in the form "found X, wanted Y".
static Problem problem_of(const std::string& message, const pb::Descriptor& root) {
  if (starts_with(message, "Message type ") && message.find("has no field named") != std::string::npos) {
    const pb::Descriptor* type = root.file()->pool()->FindMessageTypeByName(quoted_part(message, 0));
    const std::string name = quoted_part(message, 1);
    return {unknown_field(type == nullptr ? root : *type, name), name};
  }
  if (starts_with(message, "Non-repeated field ")) {
    const std::string name = quoted_part(message, 0);
    return {"found field \"" + name + "\" twice, wanted it once", name};
  }
  if (starts_with(message, "Unknown enumeration value of ")) {
    const std::string value = quoted_part(message, 0);
    std::set<const pb::Descriptor*> seen;
    const pb::EnumDescriptor* type = enum_without(root, quoted_part(message, 1), value, seen);
    return {type == nullptr ? "found \"" + value + "\", wanted a value of " + quoted_part(message, 1) : unknown_enumerator(*type, value),
            value};
  }
  if (starts_with(message, "Invalid value for boolean field ")) {
    const std::string value = quoted_part(message, 1);
    return {"found \"" + value + "\", wanted true or false", value};
  }
  for (const std::string_view middle : {", got: ", ", found "}) {
    const std::size_t at = message.find(middle);
    if (!starts_with(message, "Expected ") || at == std::string::npos) continue;
    std::string found = message.substr(at + middle.size());
    if (!found.empty() && found.back() == '.') found.pop_back();
    if (found.size() > 80) found = found.substr(0, 80) + "...";
    std::string wanted = message.substr(9, at - 9);
    if (wanted == "integer" || wanted == "double") wanted = wanted == "integer" ? "a whole number" : "a number";
    if (wanted == "string") wanted = "text in quotes";
    if (wanted == "identifier") wanted = "a field name";
    return {"found " + (found.empty() || found == "\"\"" ? "the end of the text" : found) + ", wanted " + wanted, ""};
  }
  return {"found text that cannot be read (" + message.substr(0, 160) + "), wanted a message of type " + root.name(), ""};
}

// Keeps the first error, with its place.
class FirstError : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!message_) message_ = message, line_ = line, column_ = column;
  }
  [[noreturn]] void raise(std::string_view text, const std::string& file, const pb::Descriptor& type) const {
    const Problem problem = problem_of(message_.value_or("no message"), type);
    const std::size_t offset = offset_of(text);
    if (!problem.before.empty()) {
      const std::size_t word = text.substr(0, offset).rfind(problem.before);
      if (word != std::string_view::npos) throw InputError(place_at(text, file, word), problem.text);
    }
    throw InputError(place_at(text, file, offset), problem.text);
  }

 private:
  // The tokenizer counts a tab as up to eight columns (its kTabWidth).
  std::size_t offset_of(std::string_view text) const {
    std::size_t offset = 0;
    for (int line = 0; line < line_ && offset < text.size(); ++offset) line += text[offset] == '\n';
    for (int column = 0; column < column_ && offset < text.size() && text[offset] != '\n'; ++offset) {
      column += text[offset] == '\t' ? 8 - column % 8 : 1;
    }
    return offset;
  }

  std::optional<std::string> message_;
  int line_ = 0, column_ = 0;
};

void read_message(std::string_view text, const std::string& file, pb::Message& message) {
  message.Clear();
  check_encoding(text, file);
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return read_json(text, file, message);
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InputError({file}, "found more than 2 GiB, wanted less");
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  FirstError error;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kDeepestNesting);
  if (!parser.Parse(&stream, &message)) error.raise(text, file, *message.GetDescriptor());
}

}  // namespace stepsim
