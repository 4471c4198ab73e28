// What translators of published/results.csv share beside published_step.h: its notes and its precisions. Knows no source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/published_step.h"

namespace stepsim {

bool says(std::string_view text, std::string_view part);

// Whether a grade is one of "A,B".
bool has_quality(const RowCells& cells, std::string_view wanted);

// A row with what it does not say filled in, each time with the sentence that says so.
class FilledRow {
 public:
  explicit FilledRow(const RowCells& cells) : table_(cells.alone()) {}

  RowCells cells() const { return RowCells(table_, 0); }
  const std::vector<std::string>& guesses() const { return guesses_; }

  // Only where the cell is empty or absent; `guess` "": the value is no guess.
  void fill(const std::string& column, const std::string& value, const std::string& guess = "");
  void replace(const std::string& column, const std::string& value, const std::string& guess = "");

 private:
  CsvTable table_;
  std::vector<std::string> guesses_{};
};

// "bf16", "fp8-tensorwise", "mxfp8", "fp32 (TF32 off)"; no precision: bf16, as a guess.
void add_result_precision(PublishedStep& step, const RowCells& cells);

// Every n-th layer, the n-th first, keeps only its input.
void add_recomputed_layers(PublishedStep& step, const RowCells& cells, std::int64_t every);

// By published/results.csv's source_repo.
enum class ResultSource : std::uint8_t { kMegatron, kTorchtitan, kOther };
ResultSource result_source(const RowCells& cells);

}  // namespace stepsim
