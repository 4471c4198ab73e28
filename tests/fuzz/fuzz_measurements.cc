// Any bytes as a file of measurements: rows that are positive and finite, or InputError. Anything else (a crash, another
// exception) is a finding.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/measurements.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const stepsim::Measurements rows = stepsim::read_measurements("all_reduce.csv", text, {.repeats = stepsim::RepeatRule::kKeep});
    const auto check = [](double measured_s) {
      STEPSIM_CHECK(std::isfinite(measured_s));
      STEPSIM_CHECK(measured_s > 0);
    };
    for (const stepsim::MeasuredGemm& row : rows.gemms) check(row.measured_s);
    for (const stepsim::MeasuredAttention& row : rows.attentions) check(row.measured_s);
    for (const stepsim::MeasuredAttention& row : rows.training_attentions) check(row.measured_s);
    for (const stepsim::MeasuredMemory& row : rows.memory) check(row.measured_s);
    for (const stepsim::MeasuredCollective& row : rows.collectives) check(row.measured_s);
  } catch (const stepsim::InputError&) {  // cells may hold line ends; the program prints them as '?'
  }
  return 0;
}
