// The measurements of Megatron-LM's functional tests as a table, each row with the arguments of its run. Knows no prediction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/csv_table.h"
#include "tools/megatron_run.h"

namespace stepsim {

struct GoldenRow {
  std::size_t row = 0;      // index into CsvTable::rows
  bool configured = false;  // its case is in the file of arguments; else they are what the columns say
  MegatronRun run;
  // Bytes; none: not measured.
  std::optional<double> first_peak{}, second_peak{}, last_peak{}, last_allocated{};

  std::string id() const { return run.test_case + "/" + run.golden; }
  // What a prediction of the peak is compared with. The first steps of fp16 runs are skipped for their loss scale, and the optimizer's
  // state comes later (spec/megatron_memory.md section 7, T3).
  std::optional<double> peak() const { return run.arguments.on("fp16") ? last_peak : second_peak; }
};

// Arguments: of the case in megatron_golden_configs.json in the table's folder; columns where that lacks the flag, or is not there.
// InputError with the place.
std::vector<GoldenRow> golden_rows(const CsvTable& table);

}  // namespace stepsim
