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

// The first field of this name, anywhere below a type, of which `wanted` holds: the parser's message does not say which message it is in.
template <class Wanted>
static const pb::FieldDescriptor* field_below(const pb::Descriptor& type, const std::string& name, const Wanted& wanted,
                                              std::set<const pb::Descriptor*>& seen) {
  if (!seen.insert(&type).second) return nullptr;
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    if (field.name() == name && wanted(field)) return &field;
    const pb::FieldDescriptor* inner = field.message_type() == nullptr ? nullptr : field_below(*field.message_type(), name, wanted, seen);
    if (inner != nullptr) return inner;
  }
  return nullptr;
}

struct Problem {
  std::string text;
  std::string before;  // the word that it is about, if the parser has already read past it
};

static bool starts_with(const std::string& text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }

// Protobuf's English in the form "found X, wanted Y".
// `field`: whose value is at fault, "" if it is no value.
static Problem problem_of(const std::string& message, const pb::Descriptor& root, const std::string& field_name) {
  std::set<const pb::Descriptor*> looked_at;
  const auto any = [](const pb::FieldDescriptor&) { return true; };
  const pb::FieldDescriptor* const field = field_name.empty() ? nullptr : field_below(root, field_name, any, looked_at);
  if (constexpr std::string_view kRange = "Integer out of range ("; starts_with(message, kRange)) {
    const std::string value = message.substr(kRange.size(), message.rfind(')') - kRange.size());
    const bool flag = field != nullptr && field->cpp_type() == pb::FieldDescriptor::CPPTYPE_BOOL;
    return {"found " + value + ", wanted " + (flag ? "true or false" : "a smaller whole number"), ""};
  }
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
    const auto lacks = [&](const pb::FieldDescriptor& each) {
      return each.enum_type() != nullptr && each.enum_type()->FindValueByName(value) == nullptr;
    };
    const pb::FieldDescriptor* const of = field_below(root, quoted_part(message, 1), lacks, seen);
    return {of == nullptr ? "found \"" + value + "\", wanted a value of " + quoted_part(message, 1)
                          : unknown_enumerator(*of->enum_type(), value),
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
    if (wanted == "identifier" || wanted == "integer or identifier") wanted = field == nullptr ? "a field name" : wanted_value(*field);
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
    const std::size_t offset = offset_of(text);
    const Problem problem = problem_of(message_.value_or("no message"), type, field_before(text.substr(0, offset)));
    if (!problem.before.empty()) {
      const std::size_t word = text.substr(0, offset).rfind(problem.before);
      if (word != std::string_view::npos) throw InputError(place_at(text, file, word), problem.text);
    }
    throw InputError(place_at(text, file, offset), problem.text);
  }

 private:
  // "pp" of "parallel { pp: "; "" if no name and colon are last.
  static std::string field_before(std::string_view text) {
    const auto drop_blanks = [&text] { text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1); };
    drop_blanks();
    if (text.empty() || text.back() != ':') return "";
    text.remove_suffix(1);
    drop_blanks();
    constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    return std::string(text.substr(text.find_last_not_of(kName) + 1));
  }
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

// The first enum with a number that the schema has not: proto3 keeps those.
struct UnknownNumber {
  std::string path;
  const pb::FieldDescriptor* field;
  int number;
};
static std::optional<UnknownNumber> unknown_number(const pb::Message& message) {
  const pb::Reflection& reflection = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    const bool is_enum = field->cpp_type() == pb::FieldDescriptor::CPPTYPE_ENUM;
    if (!is_enum && field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string path = field->is_repeated() ? field->name() + "[" + std::to_string(i) + "]" : field->name();
      if (is_enum) {
        const int number =
            field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i) : reflection.GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(number) == nullptr) return UnknownNumber{path, field, number};
        continue;
      }
      const pb::Message& inner =
          field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i) : reflection.GetMessage(message, field);
      if (std::optional<UnknownNumber> found = unknown_number(inner))
        return UnknownNumber{path + "." + found->path, found->field, found->number};
    }
  }
  return std::nullopt;
}

void read_message(std::string_view text, const std::string& file, pb::Message& message) {
  message.Clear();
  check_encoding(text, file);
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos && file.ends_with(".json"))
    throw InputError({file, 1, 1}, "found an empty file, wanted a JSON object");
  if (first != std::string_view::npos && text[first] == '{') return read_json(text, file, message);
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InputError({file}, "found more than 2 GiB, wanted less");
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  FirstError error;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kDeepestNesting);
  if (!parser.Parse(&stream, &message)) error.raise(text, file, *message.GetDescriptor());
  if (const std::optional<UnknownNumber> found = unknown_number(message)) {
    throw InputError(locate_field(text, file, found->path),
                     "found " + found->field->name() + " " + std::to_string(found->number) + ", wanted " + wanted_value(*found->field));
  }
}

}  // namespace stepsim
