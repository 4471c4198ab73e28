#include "tools/json_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "schema/json_tokens.h"
#include "schema/message_field.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

using Json = nlohmann::ordered_json;
using Event = Json::parse_event_t;

// Every row has a cell of every column.
constexpr std::size_t kMostColumns = 256;

// Lines and columns of bytes of a text, asked for in the order of the text.
class PlaceCursor {
 public:
  explicit PlaceCursor(std::string_view text) : text_(text) {}
  CellOrigin at(std::size_t offset) {
    for (; at_ < offset; ++at_) {
      const bool line_end = text_[at_] == '\n';
      place_ = line_end ? CellOrigin{place_.line + 1, 1} : CellOrigin{place_.line, place_.column + 1};
    }
    return place_;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  CellOrigin place_{1, 1};
};

CellForm form_of(Event event, const Json& parsed) {
  if (event == Event::array_start) return CellForm::kList;
  if (parsed.is_string()) return CellForm::kText;
  if (parsed.is_boolean()) return CellForm::kSwitch;
  return parsed.is_null() ? CellForm::kAbsent : CellForm::kNumber;
}

// Where an object of the list begins, and each of its values, by its keys in their order.
struct RowPlaces {
  CellOrigin row;
  std::vector<CellOrigin> values;
};

class JsonRows {
 public:
  JsonRows(std::string_view text, const std::string& file) : text_(text), tokens_(text), cursor_(text) {
    table_.file = file;
    table_.numbered = true;
  }
  CsvTable table() &&;

 private:
  [[noreturn]] void refuse_at(std::size_t offset, const std::string& problem) const {
    throw InputError(place_at(text_, table_.file, offset), problem);
  }
  bool on_event(int depth, Event, const Json& parsed);
  Json parsed();
  void add_row(const Json& object, const RowPlaces& places);
  std::size_t column(const std::string& key, const CellOrigin& place);

  std::string_view text_;
  CsvTable table_;
  JsonTokens tokens_;
  PlaceCursor cursor_;
  std::vector<RowPlaces> places_;
  std::vector<std::string> keys_;  // of the row that is being read
  std::unordered_map<std::string, std::size_t> columns_;
};

// Depth 0 is the list, 1 a row, 2 a value, 3 a value of a list.
bool JsonRows::on_event(int depth, Event event, const Json& parsed) {
  const std::size_t first = tokens_.next(event == Event::value && parsed.is_number());
  const bool object = event == Event::object_start, list = event == Event::array_start;
  if (depth == 0 && object) refuse_at(first, "found an object, wanted a list of rows");
  if (depth == 1 && (list || event == Event::value)) refuse_at(first, "found a value that is no object in the list, wanted rows");
  if ((depth == 2 && object) || (depth > 2 && (object || list))) {
    refuse_at(first, "found an object or a list in a list, wanted numbers, texts or lists of numbers in a row");
  }
  if (depth == 1 && object) {
    places_.push_back({cursor_.at(first), {}});
    keys_.clear();
  }
  if (event == Event::key) {
    const std::string& key = parsed.get_ref<const std::string&>();
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) refuse_at(first, "found key \"" + key + "\" twice, wanted it once");
    keys_.push_back(key);
  }
  if (depth == 2 && (list || event == Event::value)) {
    places_.back().values.push_back(cursor_.at(first));
    places_.back().values.back().form = form_of(event, parsed);
  }
  return true;
}

Json JsonRows::parsed() {
  const auto check = [this](int depth, Event event, const Json& parsed) { return on_event(depth, event, parsed); };
  const auto last = [this] { return tokens_.taken() == 0 ? 0 : tokens_.taken() - 1; };
  try {
    return Json::parse(tokens_.begin(), tokens_.end(), check);
  } catch (const Json::parse_error&) {
    refuse_at(last(), "found text that is no JSON, wanted a list of rows");
  } catch (const Json::exception&) {
    refuse_at(last(), "found a number beyond double, wanted a smaller one");
  }
}

std::size_t JsonRows::column(const std::string& key, const CellOrigin& place) {
  const auto [found, added] = columns_.emplace(key, table_.head.size());
  if (added) table_.head.push_back(key);
  if (table_.head.size() > kMostColumns) {
    throw InputError({table_.file, place.line, place.column}, "found more than " + std::to_string(kMostColumns) + " keys, wanted fewer");
  }
  return found->second;
}

void JsonRows::add_row(const Json& object, const RowPlaces& places) {
  CsvRow row{.line = places.row.line, .column = places.row.column, .cells = {}, .origins = {}};
  std::size_t number = 0;
  for (const auto& [key, value] : object.items()) {
    const CellOrigin& place = places.values[number++];
    const std::size_t index = column(key, place);
    if (row.cells.size() <= index) {
      row.cells.resize(index + 1);
      row.origins.resize(index + 1, {places.row.line, places.row.column, CellForm::kAbsent});
    }
    if (value.is_string()) row.cells[index] = value.get<std::string>();
    if (!value.is_string() && !value.is_null()) row.cells[index] = value.dump();
    row.origins[index] = place;
  }
  table_.rows.push_back(std::move(row));
}

CsvTable JsonRows::table() && {
  const Json list = parsed();
  if (!list.is_array()) refuse_at(0, "found a value, wanted a list of rows");
  if (list.empty()) refuse_at(0, "found an empty list, wanted rows");
  for (std::size_t i = 0; i < list.size(); ++i) add_row(list[i], places_[i]);
  for (std::size_t i = 0; i < table_.rows.size(); ++i) {
    const CellOrigin& row = places_[i].row;
    table_.rows[i].cells.resize(table_.head.size());
    table_.rows[i].origins.resize(table_.head.size(), {row.line, row.column, CellForm::kAbsent});
  }
  return std::move(table_);
}

}  // namespace

bool is_json(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (text[first] == '[' || text[first] == '{');
}

CsvTable parse_json_rows(std::string_view text, const std::string& file) { return JsonRows(text, file).table(); }

}  // namespace stepsim
