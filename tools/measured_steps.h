// A table of measured steps as jobs: a row a step, a column a flag of the job. Knows no simulation.
#pragma once

#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

struct MeasuredStep {
  std::string id;  // its cell in the column id, or "line 3"
  SourceLocation where{};
  std::string configuration;  // what the row says of the job: the same for repeats
  Job job{};                  // on the bare machine
  double measured_s = 0;
};

// Whether the head of a CSV file has a column of step times: step_time_s, step_time_ms, or step_time, which is refused for want of a unit.
bool is_step_table(const std::vector<std::string>& head);

// `text` is a CSV file. A column is a job flag without its dashes (micro_batch, or micro-batch), a field by its path
// (parallel.overlap_grad_reduce, as --set), `id`, `note`, or the measured `step_time_s` or `step_time_ms`. Empty cells are the job's
// defaults. InputError "file:line:column" for columns and cells that are wrong, jobs that are refused, rows of several machines or
// precisions, the same row twice, a table without rows.
std::vector<MeasuredStep> read_measured_steps(const std::string& file, const std::string& text);

// An error of the step's job, as one of its row.
InputError at_row(const MeasuredStep& step, const InputError& error);

}  // namespace stepsim
