// What the readers of the text form, of JSON and of path=value share: fields by name, values from text, and how a mistake is worded.
// Knows no message of its own and no file.
#pragma once

#include <string>
#include <string_view>

#include "sim/input_error.h"

namespace google::protobuf {
class Descriptor;
class EnumDescriptor;
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace stepsim {

// Deepest nesting that is read: far above any message of ours, far below the stack.
inline constexpr int kDeepestNesting = 64;

// By the name in the schema or its lowerCamelCase JSON form; null: none.
const google::protobuf::FieldDescriptor* find_field(const google::protobuf::Descriptor& type, std::string_view name);

// "found unknown field "paralel", wanted a field of Job, did you mean "parallel"?"
std::string unknown_field(const google::protobuf::Descriptor& type, std::string_view name);

// "found "ful", wanted one of none, full, did you mean "full"?"
std::string unknown_enumerator(const google::protobuf::EnumDescriptor& type, std::string_view name);

// What a value of the field is called in an error: "a whole number", "text in quotes", "true or false".
std::string wanted_value(const google::protobuf::FieldDescriptor& field);

// Sets a singular scalar or appends to a repeated one. Returns "" or "found X, wanted Y" (then nothing is set).
std::string set_scalar(google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field, std::string_view value);

// Line and column of a byte of the text, both from 1; columns count bytes.
SourceLocation place_at(std::string_view text, const std::string& file, std::size_t offset);

// NUL bytes, UTF-16 marks and malformed UTF-8: InputError with the place.
void check_encoding(std::string_view text, const std::string& file);

// The two forms of read_message and of locate_field. The JSON text starts with '{' after white space.
void read_json(std::string_view text, const std::string& file, google::protobuf::Message& message);
SourceLocation locate_in_json(std::string_view text, const std::string& file, std::string_view path);

}  // namespace stepsim
