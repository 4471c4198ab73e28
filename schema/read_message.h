// Text in and out of protobuf messages, with the place of every mistake. Knows no message of its own.
// Text form (.textproto, .txt) for people, JSON (.json) for programs; unknown fields are errors in both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/input_error.h"

namespace google::protobuf {
class Message;
}

namespace stepsim {

// What people write by hand is far smaller; tables and graphs that programs write may take kLargestTable.
inline constexpr std::size_t kLargestText = std::size_t{64} << 20, kLargestTable = std::size_t{1} << 30;

// Whole file as bytes. Missing, unreadable, a directory, above `largest` bytes, or not UTF-8 (NUL bytes, UTF-16 marks): InputError.
std::string read_text_file(const std::string& path, std::size_t largest = kLargestText);

// Parses `text` into `message` (cleared first). JSON if the first character that is not white space is '{', otherwise text form.
// `file` is only named in errors. Unknown or repeated fields, wrong types, syntax: InputError "file:line:column: found X, wanted Y", with
// the nearest field name for a misspelt one. Text after the message, JSON nested deeper than 64, and a .json file
// without any text are errors.
void read_message(std::string_view text, const std::string& file, google::protobuf::Message& message);

// Where field `path` ("parallel.tp", "rows[2].action") of the text stands, as well as it can be found; line 0 if it cannot.
SourceLocation locate_field(std::string_view text, const std::string& file, std::string_view path);

// Sets one field by path ("hardware.peak.bf16=1200 TFLOP/s" is path and value); repeated fields by [index], index = size appends.
// `source` stands before the message of the InputError ("--set").
void set_field(google::protobuf::Message& message, std::string_view path, std::string_view value, const std::string& source);

// Every field that is set, as path=value lines, in field order: for the resolved job.
std::vector<std::pair<std::string, std::string>> set_fields(const google::protobuf::Message& message);

}  // namespace stepsim
