// Fields by path: what --set and the resolved job need.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <charconv>

#include "schema/field_path.h"
#include "schema/message_field.h"
#include "schema/read_message.h"

namespace stepsim {

namespace pb = google::protobuf;

[[noreturn]] static void fail(const std::string& source, std::string_view path, const std::string& problem) {
  throw InputError({source + " " + std::string(path)}, problem);
}

// The entry of a map with this key, added if there is none.
static pb::Message* map_entry(pb::Message& message, const pb::FieldDescriptor& field, const std::string& key) {
  const pb::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    pb::Message* entry = reflection.MutableRepeatedMessage(&message, &field, i);
    const std::vector<std::pair<std::string, std::string>> fields = set_fields(*entry);
    if (!fields.empty() && fields.front().first == "key" && fields.front().second == key) return entry;
  }
  pb::Message* entry = reflection.AddMessage(&message, &field);
  return set_scalar(*entry, *field.message_type()->map_key(), key).empty() ? entry : nullptr;
}

// Puts one scalar in the place of element `index` of a repeated field.
static std::string set_element(pb::Message& message, const pb::FieldDescriptor& field, int index, std::string_view value) {
  const pb::Reflection& reflection = *message.GetReflection();
  const std::string problem = set_scalar(message, field, value);  // appends
  const int last = reflection.FieldSize(message, &field) - 1;
  if (!problem.empty() || index == last) return problem;
  reflection.SwapElements(&message, &field, index, last);
  reflection.RemoveLast(&message, &field);
  return "";
}

void set_field(pb::Message& message, std::string_view path, std::string_view value, const std::string& source) {
  const auto steps = parse_path(path);
  if (!steps) fail(source, path, "found \"" + std::string(path) + "\", wanted a path such as parallel.tp or placement.rows[0].action");
  pb::Message* at = &message;
  for (std::size_t i = 0; i < steps->size(); ++i) {
    const FieldStep& step = (*steps)[i];
    const bool last = i + 1 == steps->size();
    const pb::FieldDescriptor* field = find_field(*at->GetDescriptor(), step.name);
    if (field == nullptr) fail(source, path, unknown_field(*at->GetDescriptor(), step.name));
    const pb::Reflection& reflection = *at->GetReflection();
    if (field->is_map()) {
      if (last) fail(source, path, "found no key, wanted " + std::string(path) + ".KEY");
      at = map_entry(*at, *field, (*steps)[++i].name);
      if (at == nullptr) fail(source, path, "found a key that does not fit, wanted " + wanted_value(*field->message_type()->map_key()));
      field = field->message_type()->map_value();
      if (i + 1 < steps->size()) fail(source, path, "found fields below a map value, wanted the key last");
      const std::string problem = set_scalar(*at, *field, value);
      if (!problem.empty()) fail(source, path, problem);
      return;
    }
    if (step.indexed && !field->is_repeated()) fail(source, path, "found an index, wanted " + step.name + " without one");
    const int size = field->is_repeated() ? reflection.FieldSize(*at, field) : 0;
    if (step.index > size) fail(source, path, "found index " + std::to_string(step.index) + ", wanted at most " + std::to_string(size));
    const bool is_message = field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    if (!last && !is_message) fail(source, path, "found fields below " + step.name + ", wanted it last: it is " + wanted_value(*field));
    if (!is_message) {
      const std::string problem =
          field->is_repeated() ? set_element(*at, *field, step.indexed ? step.index : size, value) : set_scalar(*at, *field, value);
      if (!problem.empty()) fail(source, path, problem);
      return;
    }
    if (!field->is_repeated()) {
      at = reflection.MutableMessage(at, field);
    } else {
      at = step.index < size ? reflection.MutableRepeatedMessage(at, field, step.index) : reflection.AddMessage(at, field);
    }
    if (last) return read_message(value, source + " " + std::string(path), *at);
  }
}

static std::string printed(double value) {
  char text[40];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

static std::string printed_scalar(const pb::Message& message, const pb::FieldDescriptor& field, int index) {
  const pb::Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(repeated ? reflection.GetRepeatedInt32(message, &field, index) : reflection.GetInt32(message, &field));
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(repeated ? reflection.GetRepeatedInt64(message, &field, index) : reflection.GetInt64(message, &field));
    case pb::FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(repeated ? reflection.GetRepeatedUInt32(message, &field, index) : reflection.GetUInt32(message, &field));
    case pb::FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(repeated ? reflection.GetRepeatedUInt64(message, &field, index) : reflection.GetUInt64(message, &field));
    case pb::FieldDescriptor::CPPTYPE_FLOAT:
      return printed(
          static_cast<double>(repeated ? reflection.GetRepeatedFloat(message, &field, index) : reflection.GetFloat(message, &field)));
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return printed(repeated ? reflection.GetRepeatedDouble(message, &field, index) : reflection.GetDouble(message, &field));
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return (repeated ? reflection.GetRepeatedBool(message, &field, index) : reflection.GetBool(message, &field)) ? "true" : "false";
    case pb::FieldDescriptor::CPPTYPE_ENUM:
      return (repeated ? reflection.GetRepeatedEnum(message, &field, index) : reflection.GetEnum(message, &field))->name();
    case pb::FieldDescriptor::CPPTYPE_STRING:
      return repeated ? reflection.GetRepeatedString(message, &field, index) : reflection.GetString(message, &field);
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "";
}

static void add_fields(const pb::Message& message, const std::string& prefix, std::vector<std::pair<std::string, std::string>>& lines) {
  const pb::Reflection& reflection = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);  // by field number
  for (const pb::FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string path = prefix + field->name();
      if (field->is_repeated()) path.append("[").append(std::to_string(i)).append("]");
      if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) {
        lines.emplace_back(path, printed_scalar(message, *field, i));
        continue;
      }
      const pb::Message& inner =
          field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i) : reflection.GetMessage(message, field);
      add_fields(inner, path + ".", lines);
    }
  }
}

std::vector<std::pair<std::string, std::string>> set_fields(const pb::Message& message) {
  std::vector<std::pair<std::string, std::string>> lines;
  add_fields(message, "", lines);
  return lines;
}

}  // namespace stepsim
