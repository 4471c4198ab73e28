// JSON form: nlohmann's SAX events with the place of each token, built into the message by reflection.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "schema/field_path.h"
#include "schema/json_tokens.h"
#include "schema/message_field.h"

namespace stepsim {

namespace pb = google::protobuf;

// "syntax error while parsing value - unexpected end of input; expected ..." -> "found end of input, wanted ...".
static std::string syntax_problem(const std::string& message) {
  const std::size_t unexpected = message.find("unexpected ");
  const std::size_t expected = message.find("; expected ");
  if (unexpected != std::string::npos && expected != std::string::npos) {
    return "found " + message.substr(unexpected + 11, expected - unexpected - 11) + ", wanted " + message.substr(expected + 11);
  }
  if (unexpected != std::string::npos) return "found " + message.substr(unexpected + 11) + ", wanted JSON";
  std::size_t dash = message.find(" - ");
  dash = dash == std::string::npos ? message.rfind("] ") : dash + 1;
  const std::string reason = dash == std::string::npos ? message : message.substr(dash + 2);
  return "found malformed JSON (" + reason.substr(0, reason.find("; last read")) + "), wanted JSON";
}

// What both readers of events do alike.
class JsonEvents {
 public:
  JsonEvents(std::string_view text, const std::string& file) : text_(text), file_(file), tokens_(text) {}
  JsonTokens& tokens() { return tokens_; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    const std::size_t read = tokens_.taken();
    throw InputError(place_at(text_, file_, read == 0 ? 0 : read - 1), syntax_problem(error.what()));
  }

 protected:
  void enter() {
    if (++depth_ > kDeepestNesting) fail("found JSON nested deeper than 64, wanted less");
  }
  void leave() { --depth_; }
  [[noreturn]] void fail(const std::string& problem) const { throw InputError(place_at(text_, file_, token_), problem); }

  std::string_view text_;
  std::string file_;
  JsonTokens tokens_;
  std::size_t token_ = 0;  // first byte of the token at hand
  int depth_ = 0;
};

class MessageFromJson : public JsonEvents {
 public:
  MessageFromJson(std::string_view text, const std::string& file, pb::Message& message) : JsonEvents(text, file), root_(message) {}

  bool null() { return literal("null"); }
  bool boolean(bool value) { return literal(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return number(std::to_string(value), true); }
  bool number_unsigned(std::uint64_t value) { return number(std::to_string(value), true); }
  bool number_float(double, const std::string& text) { return number(text, false); }
  bool string(std::string& value);
  bool binary(std::vector<std::uint8_t>&) { return false; }
  bool start_object(std::size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();

 private:
  struct Frame {                                 // an object or array that is open
    pb::Message* message = nullptr;              // the message that values go to
    const pb::FieldDescriptor* field = nullptr;  // the one that a value would be for
    bool array = false, map = false;
    std::set<std::string> keys = {};  // seen, in objects
  };

  bool literal(const std::string& text);
  bool number(const std::string& text, bool whole);
  void store(const std::string& value);
  void check_singular() const;

  pb::Message& root_;
  std::vector<Frame> frames_;
};

void MessageFromJson::check_singular() const {
  const Frame& top = frames_.back();
  if (top.field->is_repeated() && !top.array) fail("found one value, wanted a list in [ ] for \"" + top.field->name() + "\"");
}

void MessageFromJson::store(const std::string& value) {
  check_singular();
  const std::string problem = set_scalar(*frames_.back().message, *frames_.back().field, value);
  if (!problem.empty()) fail(problem);
}

bool MessageFromJson::literal(const std::string& text) {
  token_ = tokens_.next(false);
  const pb::FieldDescriptor& field = *frames_.back().field;
  if (text == "null") {  // as in Protobuf's JSON: not set
    if (frames_.back().array) fail("found null, wanted " + wanted_value(field));
    return true;
  }
  if (field.cpp_type() != pb::FieldDescriptor::CPPTYPE_BOOL) fail("found " + text + ", wanted " + wanted_value(field));
  store(text);
  return true;
}

bool MessageFromJson::number(const std::string& text, bool whole) {
  token_ = tokens_.next(true);
  const pb::FieldDescriptor& field = *frames_.back().field;
  const auto type = field.cpp_type();
  const bool real = type == pb::FieldDescriptor::CPPTYPE_DOUBLE || type == pb::FieldDescriptor::CPPTYPE_FLOAT;
  const bool integer = type == pb::FieldDescriptor::CPPTYPE_INT32 || type == pb::FieldDescriptor::CPPTYPE_INT64 ||
                       type == pb::FieldDescriptor::CPPTYPE_UINT32 || type == pb::FieldDescriptor::CPPTYPE_UINT64;
  if (!real && !(integer && whole)) fail("found " + text + ", wanted " + wanted_value(field));
  store(text);
  return true;
}

bool MessageFromJson::string(std::string& value) {
  token_ = tokens_.next(false);
  const auto type = frames_.back().field->cpp_type();
  // 64-bit integers are strings in Protobuf's JSON.
  const bool textual = type == pb::FieldDescriptor::CPPTYPE_STRING || type == pb::FieldDescriptor::CPPTYPE_ENUM ||
                       type == pb::FieldDescriptor::CPPTYPE_INT64 || type == pb::FieldDescriptor::CPPTYPE_UINT64;
  if (!textual) fail("found \"" + value.substr(0, 80) + "\", wanted " + wanted_value(*frames_.back().field));
  store(value);
  return true;
}

bool MessageFromJson::start_object(std::size_t) {
  token_ = tokens_.next(false);
  enter();
  if (frames_.empty()) {
    frames_.push_back({.message = &root_});
    return true;
  }
  const Frame& top = frames_.back();
  const pb::FieldDescriptor& field = *top.field;
  if (field.is_map() && !top.array) {
    frames_.push_back({.message = top.message, .field = &field, .map = true});
    return true;
  }
  if (field.cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) fail("found {, wanted " + wanted_value(field));
  check_singular();
  const pb::Reflection& reflection = *top.message->GetReflection();
  pb::Message* inner = field.is_repeated() ? reflection.AddMessage(top.message, &field) : reflection.MutableMessage(top.message, &field);
  frames_.push_back({.message = inner});
  return true;
}

bool MessageFromJson::key(std::string& name) {
  token_ = tokens_.next(false);
  Frame& top = frames_.back();
  if (!top.keys.insert(name).second) fail("found field \"" + name.substr(0, 80) + "\" twice, wanted it once");
  if (!top.map) {
    top.field = find_field(*top.message->GetDescriptor(), name);
    if (top.field == nullptr) fail(unknown_field(*top.message->GetDescriptor(), name));
    return true;
  }
  // A map frame keeps its field in the frame below; its own message and field are those of the entry.
  const Frame& owner = frames_[frames_.size() - 2];
  top.message = owner.message->GetReflection()->AddMessage(owner.message, owner.field);
  const pb::Descriptor& entry = *owner.field->message_type();
  const std::string problem = set_scalar(*top.message, *entry.map_key(), name);
  if (!problem.empty()) fail(problem);
  top.field = entry.map_value();
  return true;
}

bool MessageFromJson::end_object() {
  token_ = tokens_.next(false);
  leave();
  frames_.pop_back();
  return true;
}

bool MessageFromJson::start_array(std::size_t) {
  token_ = tokens_.next(false);
  enter();
  const Frame& top = frames_.back();
  if (!top.field->is_repeated() || top.field->is_map() || top.array) fail("found [, wanted " + wanted_value(*top.field));
  frames_.push_back({.message = top.message, .field = top.field, .array = true});
  return true;
}

bool MessageFromJson::end_array() {
  token_ = tokens_.next(false);
  leave();
  frames_.pop_back();
  return true;
}

// Only looks for a path.
class PlaceInJson : public JsonEvents {
 public:
  PlaceInJson(std::string_view text, const std::string& file, std::string_view path) : JsonEvents(text, file), search_(path) {}
  std::size_t found() const { return found_; }

  bool null() { return value(false); }
  bool boolean(bool) { return value(false); }
  bool number_integer(std::int64_t) { return value(true); }
  bool number_unsigned(std::uint64_t) { return value(true); }
  bool number_float(double, const std::string&) { return value(true); }
  bool string(std::string&) { return value(false); }
  bool binary(std::vector<std::uint8_t>&) { return false; }
  bool start_object(std::size_t) { return open(false); }
  bool start_array(std::size_t) { return open(true); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    key_ = tokens_.next(false);
    lists_.back().name = name;
    return true;
  }

 private:
  struct Open {
    std::string name;  // of the field whose value is next
    bool array = false;
    int index = 0;  // of the next element
  };
  // The elements of an array are fields of its own name, counted.
  void note(std::size_t token) {
    if (lists_.empty()) return;
    Open& top = lists_.back();
    if (search_.matches(names_, top.name, top.array ? top.index++ : 0)) found_ = top.array ? token : key_;
  }
  bool value(bool number) {
    note(tokens_.next(number));
    return true;
  }
  bool open(bool array) {
    token_ = tokens_.next(false);
    enter();
    const bool element = !lists_.empty() && lists_.back().array;
    const int index = element ? lists_.back().index : 0;
    note(token_);
    if (!lists_.empty() && !array) names_.push_back({lists_.back().name, index});
    const std::string name = lists_.empty() ? "" : lists_.back().name;
    lists_.push_back({array ? name : "", array, 0});
    return true;
  }
  bool close() {
    tokens_.next(false);
    leave();
    const bool array = lists_.back().array;
    lists_.pop_back();
    if (!array && !names_.empty()) names_.pop_back();
    return true;
  }

  PathSearch search_;
  std::vector<FieldStep> names_;
  std::vector<Open> lists_;
  std::size_t key_ = 0, found_ = std::string_view::npos;
};

template <class Events>
static void parse(Events& events) {
  nlohmann::json::sax_parse(events.tokens().begin(), events.tokens().end(), &events);
}

void read_json(std::string_view text, const std::string& file, pb::Message& message) {
  MessageFromJson events(text, file, message);
  parse(events);
}

SourceLocation locate_in_json(std::string_view text, const std::string& file, std::string_view path) {
  PlaceInJson events(text, file, path);
  parse(events);
  return events.found() == std::string_view::npos ? SourceLocation{file} : place_at(text, file, events.found());
}

}  // namespace stepsim
