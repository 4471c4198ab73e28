// What the published formats of single kernels share: the machine that a row names, numbers of its cells, the cost model's time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hardware/roofline_cost_model.h"
#include "sim/op_work.h"
#include "tools/csv_table.h"

namespace stepsim {

struct NamedMachine {
  std::string problem;  // why there is none; "": there is
  GpuSpec gpu;
  ClusterSpec cluster;
  std::unique_ptr<RooflineCostModel> costs;
};

// The machines that the rows of one table name, each loaded once.
class NamedMachines {
 public:
  const NamedMachine& find(const std::string& name);

 private:
  std::map<std::string, NamedMachine> machines_;
};

// 16 and 32 bits: of the kernels that rows without a recipe can mean. None: another name.
std::optional<DType> wide_dtype(const std::string& name);

double kernel_us(const NamedMachine& machine, const OpWork& work);

// InputError("file:line:1") for a cell that is no number from `least` to `most`.
std::int64_t whole_cell(const CsvTable& table, const CsvRow& row, std::size_t column, std::int64_t least, std::int64_t most);
double number_cell(const CsvTable& table, const CsvRow& row, std::size_t column, double least, double most);

// Dimensions above this are no measurement, and their products must stay far inside what a double counts exactly enough.
inline constexpr std::int64_t kMostDimension = 1 << 18;
inline constexpr double kLeastMicroseconds = 1e-6, kMostMicroseconds = 1e12;

}  // namespace stepsim
