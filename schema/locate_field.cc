// Where a field stands in a text, without knowing its schema: Protobuf's tokenizer and the little grammar of the text form.
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <map>
#include <vector>

#include "schema/field_path.h"
#include "schema/message_field.h"
#include "schema/read_message.h"

namespace stepsim {

namespace pb = google::protobuf;

class NoErrors : public pb::io::ErrorCollector {  // the text has been parsed already; what cannot be read is not found
 public:
  void AddError(int, pb::io::ColumnNumber, const std::string&) override {}
};

class PlaceInText {
 public:
  PlaceInText(std::string_view text, std::string_view path)
      : stream_(text.data(), static_cast<int>(text.size())), tokenizer_(&stream_, &errors_), search_(path) {
    tokenizer_.set_comment_style(pb::io::Tokenizer::SH_COMMENT_STYLE);
    tokenizer_.Next();
    fields();
  }
  int line = 0, column = 0;  // 0: not found

 private:
  bool at(std::string_view token) { return tokenizer_.current().text == token; }
  bool ended() { return tokenizer_.current().type == pb::io::Tokenizer::TYPE_END; }
  bool take(std::string_view token) {
    if (!at(token)) return false;
    tokenizer_.Next();
    return true;
  }
  void fields();
  void value(const std::string& name, int index);
  void note(const std::string& name, int index, int at_line, int at_column) {
    if (search_.matches(above_, name, index)) line = at_line + 1, column = at_column + 1;
  }

  pb::io::ArrayInputStream stream_;
  NoErrors errors_;
  pb::io::Tokenizer tokenizer_;
  PathSearch search_;
  std::vector<FieldStep> above_;
};

void PlaceInText::fields() {
  std::map<std::string, int> count;
  while (!ended() && !at("}") && !at(">")) {
    const std::string name = tokenizer_.current().text;
    const int name_line = tokenizer_.current().line, name_column = tokenizer_.current().column;
    tokenizer_.Next();
    take(":");
    note(name, count[name], name_line, name_column);
    if (take("[")) {
      while (!ended() && !at("]")) {
        note(name, count[name], tokenizer_.current().line, tokenizer_.current().column);
        value(name, count[name]++);
        take(",");
      }
      take("]");
    } else {
      value(name, count[name]++);
    }
    if (!take(",")) take(";");
  }
}

void PlaceInText::value(const std::string& name, int index) {
  if (at("{") || at("<")) {
    if (above_.size() >= static_cast<std::size_t>(kDeepestNesting)) return;
    tokenizer_.Next();
    above_.push_back({name, index});
    fields();
    above_.pop_back();
    if (!take("}")) take(">");
    return;
  }
  take("-");
  const bool string = tokenizer_.current().type == pb::io::Tokenizer::TYPE_STRING;
  tokenizer_.Next();
  while (string && tokenizer_.current().type == pb::io::Tokenizer::TYPE_STRING) tokenizer_.Next();  // adjacent strings are one
}

SourceLocation locate_field(std::string_view text, const std::string& file, std::string_view path) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return locate_in_json(text, file, path);
  const PlaceInText place(text, path);
  return {file, place.line, place.column};
}

}  // namespace stepsim
