// A JSON file that is a list of flat objects, read as a table. Knows no key's meaning.
#pragma once

#include "tools/csv_table.h"

namespace stepsim {

// Whether the first character that is not white space begins JSON, not a CSV head.
bool is_json(std::string_view text);

// One row an object, one column a key, in the order in which they first occur. A text is its cell; numbers, true and false are written as
// JSON does, lists of those as "[2,1]"; null and a key that the object lacks are empty cells. InputError: no list of objects, a key twice
// in an object, values that hold objects or lists of lists, a number beyond double,
// more than 256 keys.
CsvTable parse_json_rows(std::string_view text, const std::string& file);

}  // namespace stepsim
