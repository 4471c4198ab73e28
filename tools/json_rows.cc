#include "tools/json_rows.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "sim/input_error.h"

namespace stepsim {

namespace {

using Json = nlohmann::ordered_json;
using Event = Json::parse_event_t;

// Every row has a cell of every column.
constexpr std::size_t kMostColumns = 256;

struct Place {
  int line = 1, column = 1;
};

// Characters for the parser, which says where it stands: nlohmann tells a byte of an error, nothing of a value.
class PlacedCharacters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  PlacedCharacters(const char* at, Place* place) : at_(at), place_(place) {}
  reference operator*() const { return *at_; }
  PlacedCharacters& operator++() {
    if (*at_ == '\n') {
      *place_ = {place_->line + 1, 1};
    } else {
      ++place_->column;
    }
    ++at_;
    return *this;
  }
  friend bool operator!=(const PlacedCharacters& a, const PlacedCharacters& b) { return a.at_ != b.at_; }

 private:
  const char* at_;
  Place* place_;
};

class JsonRows {
 public:
  JsonRows(std::string_view text, const std::string& file) : text_(text) {
    table_.file = file;
    table_.numbered = true;
  }
  CsvTable table() &&;

 private:
  [[noreturn]] void refuse(const std::string& problem) const { throw InputError({table_.file, place_.line, place_.column}, problem); }
  bool on_event(int depth, Event, const Json& parsed);
  Json parsed();
  void add_row(const Json& object, int line);
  std::size_t column(const std::string& key);

  std::string_view text_;
  CsvTable table_;
  Place place_;
  std::vector<int> lines_;         // where each row begins
  std::vector<std::string> keys_;  // of the row that is being read
  std::unordered_map<std::string, std::size_t> columns_;
};

// Depth 0 is the list, 1 a row, 2 a value, 3 a value of a list.
bool JsonRows::on_event(int depth, Event event, const Json& parsed) {
  const bool object = event == Event::object_start, list = event == Event::array_start;
  if (depth == 0 && object) refuse("found an object, wanted a list of rows");
  if (depth == 1 && (list || event == Event::value)) refuse("found a value that is no object in the list, wanted rows");
  if ((depth == 2 && object) || (depth > 2 && (object || list))) {
    refuse("found an object or a list in a list, wanted numbers, texts or lists of numbers in a row");
  }
  if (depth == 1 && object) {
    lines_.push_back(place_.line);
    keys_.clear();
  }
  if (event == Event::key) {
    const std::string& key = parsed.get_ref<const std::string&>();
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) refuse("found key \"" + key + "\" twice, wanted it once");
    keys_.push_back(key);
  }
  return true;
}

Json JsonRows::parsed() {
  const auto check = [this](int depth, Event event, const Json& parsed) { return on_event(depth, event, parsed); };
  try {
    const char* const end = text_.data() + text_.size();
    return Json::parse(PlacedCharacters(text_.data(), &place_), PlacedCharacters(end, &place_), check);
  } catch (const Json::parse_error&) {
    refuse("found text that is no JSON, wanted a list of rows");
  } catch (const Json::exception&) {
    refuse("found a number beyond double, wanted a smaller one");
  }
}

std::size_t JsonRows::column(const std::string& key) {
  const auto [found, added] = columns_.emplace(key, table_.head.size());
  if (added) table_.head.push_back(key);
  if (table_.head.size() > kMostColumns) refuse("found more than " + std::to_string(kMostColumns) + " keys, wanted fewer");
  return found->second;
}

void JsonRows::add_row(const Json& object, int line) {
  CsvRow row{.line = line, .cells = {}};
  for (const auto& [key, value] : object.items()) {
    const std::size_t index = column(key);
    if (row.cells.size() <= index) row.cells.resize(index + 1);
    if (value.is_string()) row.cells[index] = value.get<std::string>();
    if (!value.is_string() && !value.is_null()) row.cells[index] = value.dump();
  }
  table_.rows.push_back(std::move(row));
}

CsvTable JsonRows::table() && {
  const Json list = parsed();
  if (!list.is_array()) refuse("found a value, wanted a list of rows");
  for (std::size_t i = 0; i < list.size(); ++i) add_row(list[i], lines_[i]);
  if (table_.rows.empty()) refuse("found an empty list, wanted rows");
  for (CsvRow& row : table_.rows) row.cells.resize(table_.head.size());
  return std::move(table_);
}

}  // namespace

bool is_json(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (text[first] == '[' || text[first] == '{');
}

CsvTable parse_json_rows(std::string_view text, const std::string& file) { return JsonRows(text, file).table(); }

}  // namespace stepsim
