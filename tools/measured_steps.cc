#include "tools/measured_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/nearest_name.h"
#include "tools/row_cells.h"

namespace stepsim {

namespace {

constexpr const char* kSeconds = "step_time_s";
constexpr const char* kMilliseconds = "step_time_ms";
constexpr const char* kNotes[] = {"id", "note"};
constexpr double kLongestStep = 1e6;  // seconds: simulated time ends after 106 days

// "micro_batch" and "micro-batch" are --micro-batch.
std::string flag_name(std::string column) {
  std::replace(column.begin(), column.end(), '_', '-');
  return "--" + column;
}

// The flag that a column gives, --set for a path; none: it is no column of a job.
std::optional<FlagValue> flag_of_column(const std::string& column) {
  if (column.find('.') != std::string::npos) return FlagValue{"--set", column, ""};
  const std::string name = flag_name(column);
  for (const JobFlag& flag : job_flags()) {
    if (flag.flag == name) return FlagValue{name, std::string(flag.path), ""};
  }
  return std::nullopt;
}

std::vector<std::string> column_names() {
  std::vector<std::string> names = {kSeconds, kMilliseconds, "id", "note"};
  for (const JobFlag& flag : job_flags()) {
    std::string name(flag.flag.substr(2));
    std::replace(name.begin(), name.end(), '-', '_');
    names.push_back(std::move(name));
  }
  return names;
}

// Where the cells of the head begin: its quotes are not kept, so the line is searched for the names in their order.
SourceLocation head_place(const CsvTable& table, const std::string& text, std::size_t column) {
  const std::string line = text.substr(0, text.find('\n'));
  std::size_t at = 0;
  for (std::size_t i = 0; i <= column; ++i) {
    const std::size_t found = line.find(table.head[i], i == 0 ? 0 : at + 1);
    if (found != std::string::npos) at = found;
  }
  return {table.file, 1, static_cast<int>(at) + 1};
}

void check_head(const CsvTable& table, const std::string& text) {
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    const std::string& name = table.head[i];
    if (name == kSeconds || name == kMilliseconds || among(kNotes, name)) continue;
    const SourceLocation where = head_place(table, text, i);
    if (name == "step_time") throw InputError(where, "found column step_time, wanted its unit: step_time_s or step_time_ms");
    const std::optional<FlagValue> flag = flag_of_column(name);
    if (!flag) {
      throw InputError(where, fmt::format("found column \"{}\", wanted a flag of the job, step_time_s, step_time_ms, id or note{}", name,
                                          suggestion(name, column_names())));
    }
    if (flag->path == "hardware.stack") throw InputError(where, "found column stack, wanted none: it is what these steps are to find");
  }
  const bool seconds = table.column(kSeconds).has_value(), milliseconds = table.column(kMilliseconds).has_value();
  if (seconds && milliseconds) throw InputError({table.file, 1, 1}, "found step_time_s and step_time_ms, wanted one of them");
  if (!seconds && !milliseconds) throw InputError({table.file, 1, 1}, "found no column of step times, wanted step_time_s or step_time_ms");
}

double measured_s(const CsvTable& table, std::size_t row) {
  const RowCells cells(table, row);
  const bool seconds = table.column(kSeconds).has_value();
  const char* const name = seconds ? kSeconds : kMilliseconds;
  const std::string wanted =
      fmt::format("{} above zero, at most {:g}", seconds ? "seconds" : "milliseconds", seconds ? kLongestStep : kLongestStep * 1000);
  const double value = cells.number(name, wanted) * (seconds ? 1 : 1e-3);
  if (!(value > 0 && value <= kLongestStep)) cells.refuse(name, wanted);
  return value;
}

SourceLocation cell_place(const CsvTable& table, std::size_t row, std::size_t column) {
  const CellOrigin& origin = table.rows[row].origins[column];
  return {table.file, origin.line, origin.column};
}

// "--tp: found 3, wanted ..." of a job as "steps.csv:2:7: found tp 3, wanted ...".
InputError at_cell(const CsvTable& table, std::size_t row, const InputError& error) {
  const std::string text = error.what();
  const std::size_t colon = text.find(": found ");
  const std::string source = text.substr(0, colon == std::string::npos ? 0 : colon);
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    const std::optional<FlagValue> flag = flag_of_column(table.head[i]);
    if (!flag || source != (flag->flag == "--set" ? "--set " + flag->path : flag->flag)) continue;
    const std::string problem = text.substr(colon + std::string_view(": found ").size());
    const bool none = problem.compare(0, 5, "none,") == 0;
    return InputError(cell_place(table, row, i), none ? fmt::format("found no {}{}", table.head[i], problem.substr(4))
                                                      : fmt::format("found {} {}", table.head[i], problem));
  }
  return InputError({table.file, table.rows[row].line, 1}, fmt::format("found a job that is refused, wanted one that runs: {}", text));
}

MeasuredStep measured_step(const CsvTable& table, std::size_t row) {
  MeasuredStep step;
  const std::optional<std::size_t> id = table.column("id");
  const bool named = id && !table.rows[row].cells[*id].empty();
  step.id = named ? table.rows[row].cells[*id] : fmt::format("line {}", table.rows[row].line);
  step.where = {table.file, table.rows[row].line, 1};
  step.measured_s = measured_s(table, row);
  JobInput input{"", {}};
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    const std::string& cell = table.rows[row].cells[i];
    std::optional<FlagValue> flag = flag_of_column(table.head[i]);
    if (!flag || cell.empty()) continue;
    flag->value = cell;
    step.configuration += fmt::format("{}={};", flag->path, cell);
    input.flags.push_back(*flag);
  }
  input.flags.push_back({"--stack", "hardware.stack", "none"});
  try {
    step.job = resolve_job(input);
  } catch (const InputError& error) {
    throw at_cell(table, row, error);
  }
  step.job.stop_at_out_of_memory = false;  // its time is that of a whole step
  return step;
}

// A stack is of one machine and one precision.
void check_one_stack(const CsvTable& table, std::size_t row, const MeasuredStep& step, const MeasuredStep& first) {
  const auto refuse = [&](const char* column, const std::string& found, const std::string& wanted) {
    const std::optional<std::size_t> at = table.column(column);
    throw InputError(at ? cell_place(table, row, *at) : step.where,
                     fmt::format("found {} {}, wanted {} as in line {}: a stack is of one {}", column, found, wanted, first.where.line,
                                 column == std::string_view("hardware") ? "machine" : "precision"));
  };
  if (step.job.gpu.name != first.job.gpu.name) refuse("hardware", step.job.gpu.name, first.job.gpu.name);
  const std::string found = dtype_name(product_dtype(step.job.training.precision));
  const std::string wanted = dtype_name(product_dtype(first.job.training.precision));
  if (found != wanted) refuse("precision", found, wanted);
}

}  // namespace

bool is_step_table(const std::vector<std::string>& head) {
  return std::any_of(head.begin(), head.end(),
                     [](const std::string& name) { return name == kSeconds || name == kMilliseconds || name == "step_time"; });
}

std::vector<MeasuredStep> read_measured_steps(const std::string& file, const std::string& text) {
  const CsvTable table = parse_csv(text, file);
  check_head(table, text);
  if (table.rows.empty()) throw InputError({file, 1, 1}, "found a head without rows, wanted 3 to 10 measured steps");
  std::vector<MeasuredStep> steps;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    MeasuredStep step = measured_step(table, row);
    if (!steps.empty()) check_one_stack(table, row, step, steps.front());
    for (const MeasuredStep& other : steps) {
      if (other.configuration == step.configuration && other.measured_s == step.measured_s) {
        throw InputError(step.where,
                         fmt::format("found the job and the time of line {} again, wanted each measured step once", other.where.line));
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

InputError at_row(const MeasuredStep& step, const InputError& error) {
  return InputError(step.where, fmt::format("found a job that is refused, wanted one that runs: {}", error.what()));
}

}  // namespace stepsim
