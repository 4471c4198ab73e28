// Rows of a published table of steps as jobs: those that conditions choose, with the translator of the table's format. Knows no result.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tools/csv_table.h"
#include "tools/published_step.h"

namespace stepsim {

// "precision=fp8|fp8-cs": a cell is one of these; "id!=B0531": it is none of them.
struct RowCondition {
  std::string column;
  std::vector<std::string> values;
  bool among = true;
};

// Conditions with commas between them. InputError (`flag`) for one that is none.
std::vector<RowCondition> row_conditions(const std::string& text, const std::string& flag);

struct ChosenRows {
  std::vector<PublishedStep> steps{};            // that ran and were timed
  std::map<std::string, std::size_t> skipped{};  // reason -> rows that the conditions choose
};

// InputError for a format that has no steps (results, mpt, vtrain), and for a column that the table lacks.
ChosenRows published_rows(const CsvTable& table, const std::string& format, const std::vector<RowCondition>& conditions);

// What is run, without the framework's version and the stack: the same for repeats of a configuration, by other releases too.
std::string configuration_text(const PublishedStep& step);

}  // namespace stepsim
