// Published steps that stand nearest to a job, of the table that the program carries (data/measured_steps), and how far this program was
// off on them. Written by `stepsim validate --published FILE --evidence`; knows no simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

// One measured step, in a few words and numbers.
struct MeasuredStepRow {
  std::string id{}, source{};  // "B0524", "Megatron-Bridge 26.06, performance summary"
  std::string model{};
  bool experts = false;
  std::int64_t active_parameters = 0;  // that one token passes
  std::string gpu{};                   // catalog name
  std::int64_t gpus = 0;
  std::string precision{}, framework{};  // "fp8"; "megatron-bridge@26.06"
  std::int64_t sequence = 0;
  std::int64_t tokens_per_gpu = 0;  // of a step
  std::string layout{};             // "tp 4, pp 8, virtual 6, recompute full"
  double measured_s = 0, simulated_s = 0;
  double error() const { return simulated_s / measured_s - 1; }
};

// Of a job that was measured: all but id, source and times.
MeasuredStepRow measured_row_of(const Job& job);

// Head and rows as a CSV file of the table.
std::string measured_rows_text(const std::vector<MeasuredStepRow>& rows);

// All rows that the program carries, in the order of its files.
const std::vector<MeasuredStepRow>& measured_step_rows();

struct NearStep {
  const MeasuredStepRow* row = nullptr;
  double distance = 0;  // sum of |log2| of parameters, GPUs, sequence and tokens a GPU; 2 for another GPU, 1 for each of another precision
                        // and framework, 3 where one has experts and the other none
  bool within = false;  // the same GPU, precision and kind, and each of those numbers within a factor of 2
};

// The nearest ones, nearest first; of repeats of one configuration the first. At most `most`.
std::vector<NearStep> nearest_steps(const Job& job, std::size_t most);

}  // namespace stepsim
