#include "tools/published_kernels.h"

#include <fmt/format.h>

#include <charconv>

#include "sim/input_error.h"

namespace stepsim {

static NamedMachine named_machine(const std::string& name) {
  NamedMachine machine;
  try {
    machine.gpu = load_gpu(name);
  } catch (const InputError&) {
    machine.problem = "machine " + name + " is not in the catalog";
    return machine;
  }
  machine.cluster = usual_cluster(machine.gpu);
  machine.costs = std::make_unique<RooflineCostModel>(machine.gpu, machine.cluster, make_machine(machine.gpu, machine.cluster, 1));
  return machine;
}

const NamedMachine& NamedMachines::find(const std::string& name) {
  auto found = machines_.find(name);
  if (found == machines_.end()) found = machines_.emplace(name, named_machine(name)).first;
  return found->second;
}

std::optional<DType> wide_dtype(const std::string& name) {
  if (name == "half") return DType::kFp16;
  for (const DType dtype : {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

double kernel_us(const NamedMachine& machine, const OpWork& work) {
  const Cost cost = machine.costs->cost(work, DeviceId{0});
  return seconds(cost.fixed + cost.alone) * 1e6;
}

template <class T>
static T cell(const CsvTable& table, const CsvRow& row, std::size_t column, T least, T most) {
  const std::string& text = row.cells[column];
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
  if (!read) {
    throw InputError({table.file, row.line, 1},
                     fmt::format("found {} \"{}\", wanted a number from {} to {}", table.head[column], text, least, most));
  }
  return value;
}

std::int64_t whole_cell(const CsvTable& table, const CsvRow& row, std::size_t column, std::int64_t least, std::int64_t most) {
  return cell<std::int64_t>(table, row, column, least, most);
}

double number_cell(const CsvTable& table, const CsvRow& row, std::size_t column, double least, double most) {
  return cell<double>(table, row, column, least, most);
}

}  // namespace stepsim
