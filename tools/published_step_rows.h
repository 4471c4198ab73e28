// Rows of a table as published steps and back as comparisons: what the formats that measure steps have in common. Knows no format.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/published_format.h"
#include "tools/published_step.h"

namespace stepsim {

struct StepRows {
  std::vector<PublishedStep> steps{};
  std::vector<SimulatedStep> simulated{};  // of each
};

// InputError for more rows than can be simulated in minutes.
void check_step_rows(const CsvTable& table);

// InputError for an id twice, of a table whose rows another one names.
void check_row_ids(const CsvTable& table);

// The rows (indexes into the table) that are jobs, simulated. What is none is counted among the comparison's skipped ones.
StepRows simulated_rows(const CsvTable& table, const std::vector<std::size_t>& rows,
                        const std::function<PublishedStep(const RowCells&)>& translate, const PublishedOptions& options,
                        PublishedComparison& comparison);

// Every row of the table.
std::vector<std::size_t> all_rows(const CsvTable& table);

// The step's time beside what was measured, with its band and the guesses.
Comparison step_time(const PublishedStep& step, const SimulatedStep& simulated);

// Appends it as a primary row, with the labels of the step. All of a comparison's steps have the same labels.
void add_row(PublishedComparison& comparison, const PublishedStep& step, Comparison row);

// The flag for a cluster that stands for the source's, if the catalog has it.
void set_cluster(PublishedStep& step, const std::string& name);

// Above zero: InputError otherwise.
double positive_number(const RowCells& cells, std::string_view column, std::string_view wanted);

// A file beside the table's, "" if there is none.
std::string file_beside(const std::string& table_file, const std::string& name);

}  // namespace stepsim
