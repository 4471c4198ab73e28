#include "schema/message_field.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <charconv>
#include <optional>
#include <vector>

#include "schema/nearest_name.h"
#include "sim/check.h"

namespace stepsim {

namespace pb = google::protobuf;

const pb::FieldDescriptor* find_field(const pb::Descriptor& type, std::string_view name) {
  const std::string text(name);
  if (const pb::FieldDescriptor* field = type.FindFieldByName(text)) return field;
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->json_name() == text) return type.field(i);
  }
  return nullptr;
}

static std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// A name as it may stand in an error: one line, not longer than a screen.
static std::string quoted(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string text = "\"";
  for (const char c : name.substr(0, kLongest)) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text + (name.size() > kLongest ? "...\"" : "\"");
}

std::string unknown_field(const pb::Descriptor& type, std::string_view name) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  const std::string text = "found unknown field " + quoted(name) + ", wanted a field of " + type.name();
  const std::string near = suggestion(name, names);
  constexpr std::size_t kFew = 12;
  return near.empty() && names.size() <= kFew ? text + " (" + joined(names) + ")" : text + near;
}

static std::vector<std::string> value_names(const pb::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

std::string unknown_enumerator(const pb::EnumDescriptor& type, std::string_view name) {
  const std::vector<std::string> names = value_names(type);
  return "found " + quoted(name) + ", wanted one of " + joined(names) + suggestion(name, names);
}

std::string wanted_value(const pb::FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_INT32:
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return "a whole number";
    case pb::FieldDescriptor::CPPTYPE_UINT32:
    case pb::FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number, not negative";
    case pb::FieldDescriptor::CPPTYPE_FLOAT:
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case pb::FieldDescriptor::CPPTYPE_ENUM:
      return "one of " + joined(value_names(*field.enum_type()));
    case pb::FieldDescriptor::CPPTYPE_STRING:
      return "text in quotes";
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      return "{ fields of " + field.message_type()->name() + " }";
  }
  return "a value";
}

template <class T>
static std::optional<T> number(std::string_view text) {
  T value{};
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Sets or appends one number; false if the text is none.
template <class T>
static bool set_number(pb::Message& message, const pb::FieldDescriptor& field, std::string_view value,
                       void (pb::Reflection::*set)(pb::Message*, const pb::FieldDescriptor*, T) const,
                       void (pb::Reflection::*add)(pb::Message*, const pb::FieldDescriptor*, T) const) {
  const std::optional<T> read = number<T>(value);
  if (read) (message.GetReflection()->*(field.is_repeated() ? add : set))(&message, &field, *read);
  return read.has_value();
}

std::string set_scalar(pb::Message& message, const pb::FieldDescriptor& field, std::string_view value) {
  const pb::Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  const auto refused = [&] { return "found " + quoted(value) + ", wanted " + wanted_value(field); };
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_INT32:
      return set_number<std::int32_t>(message, field, value, &pb::Reflection::SetInt32, &pb::Reflection::AddInt32) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return set_number<std::int64_t>(message, field, value, &pb::Reflection::SetInt64, &pb::Reflection::AddInt64) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_UINT32:
      return set_number<std::uint32_t>(message, field, value, &pb::Reflection::SetUInt32, &pb::Reflection::AddUInt32) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_UINT64:
      return set_number<std::uint64_t>(message, field, value, &pb::Reflection::SetUInt64, &pb::Reflection::AddUInt64) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_FLOAT:
      return set_number<float>(message, field, value, &pb::Reflection::SetFloat, &pb::Reflection::AddFloat) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return set_number<double>(message, field, value, &pb::Reflection::SetDouble, &pb::Reflection::AddDouble) ? "" : refused();
    case pb::FieldDescriptor::CPPTYPE_BOOL: {
      if (value != "true" && value != "false") return refused();
      repeated ? reflection.AddBool(&message, &field, value == "true") : reflection.SetBool(&message, &field, value == "true");
      return "";
    }
    case pb::FieldDescriptor::CPPTYPE_ENUM: {
      const pb::EnumValueDescriptor* read = field.enum_type()->FindValueByName(std::string(value));
      if (read == nullptr) return unknown_enumerator(*field.enum_type(), value);
      repeated ? reflection.AddEnum(&message, &field, read) : reflection.SetEnum(&message, &field, read);
      return "";
    }
    case pb::FieldDescriptor::CPPTYPE_STRING: {
      repeated ? reflection.AddString(&message, &field, std::string(value)) : reflection.SetString(&message, &field, std::string(value));
      return "";
    }
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      return refused();
  }
  return refused();
}

}  // namespace stepsim
