// The CSV layouts of measurements by the columns that they must have, and how each row is read. Knows no fit.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/measured_columns.h"
#include "tools/measurements.h"

namespace stepsim {

// Takes rows of one GPU, sees to it that no shape comes twice, and counts what no fit takes.
class MeasurementRows {
 public:
  MeasurementRows(const MeasuredColumns& columns, const MeasurementOptions& options, Measurements& rows);

  const MeasuredColumns& columns() const { return columns_; }
  const MeasurementOptions& options() const { return options_; }
  bool has_wide_types() const { return wide_types_; }  // some row of any op is in more than 8 bits
  void skip(const std::string& reason) { ++rows_.skipped[reason]; }
  void state_rates() { rows_.states_rates = true; }
  void add(std::size_t row, MeasuredGemm gemm);
  void add(std::size_t row, MeasuredAttention attention, bool training);
  void add(std::size_t row, MeasuredMemory memory);
  void add(std::size_t row, MeasuredCollective collective);

 private:
  void note(std::size_t row, const std::string& shape, bool kept, double measured_s);

  struct Seen {
    int line = 0;
    double measured_s = 0;
  };
  const MeasuredColumns& columns_;
  const MeasurementOptions& options_;
  Measurements& rows_;
  bool wide_types_ = false;
  std::map<std::string, Seen> seen_;
};

struct MeasuredLayout {
  const char* name;
  std::vector<std::string> columns;  // that tell it; the reader looks for others
  void (*read)(std::size_t row, MeasurementRows& rows);
};

// The more particular ones first: the first whose columns a head has is its layout.
std::span<const MeasuredLayout> measured_layouts();

}  // namespace stepsim
