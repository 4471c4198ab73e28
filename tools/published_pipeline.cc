// Published pipeline schedules, exact: each row is simulated as a graph of whole passes, and everything that the row gives is compared.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "models/chunk_placement.h"
#include "models/pipeline_graph.h"
#include "sim/simulate.h"
#include "tools/published_format.h"
#include "tools/row_cells.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMostPasses = 1 << 21;  // of a row
constexpr std::int32_t kMostDimension = 1 << 20;

struct PublishedSchedule {
  std::string_view name;
  PipelineKind kind = PipelineKind::kGPipe;
  std::string_view forward, backward, weight;  // columns of durations
  // A column that may be there: the duration of a forward and a backward pass that run as one. Where there is such a column, B is the whole
  // backward pass (deepseek-ai/DualPipe README).
  std::string_view pair{};
};
constexpr std::array<PublishedSchedule, 6> kSchedules = {{{"gpipe", PipelineKind::kGPipe, "F", "B", ""},
                                                          {"1f1b", PipelineKind::k1F1B, "F", "B", ""},
                                                          {"interleaved_1f1b", PipelineKind::kInterleaved, "F_chunk", "B_chunk", ""},
                                                          {"zb_h1_handcrafted", PipelineKind::kZbH1, "F", "B", "W"},
                                                          {"zb_v", PipelineKind::kZbV, "F_chunk", "B_chunk", "W_chunk"},
                                                          {"dual_pipe", PipelineKind::kDualPipe, "F", "B", "W", "F&B"}}};

// Columns that every schedule may have. closed_form_paper is the formula of 2401.10241.
constexpr std::string_view kDimensions[] = {"p", "m", "v"};
constexpr std::string_view kPipelineDescription[] = {"id", "schedule", "p", "m", "v", "P2P", "equals"};
constexpr std::string_view kDurations[] = {"F", "B", "W", "F_chunk", "B_chunk", "W_chunk", "F&B", "P2P"};
constexpr std::string_view kMakespans[] = {"makespan", "closed_form", "closed_form_paper"};

struct PublishedCounts {  // passes in flight on every stage
  std::string_view column;
  bool until_weight = false;
  bool closed_form = false;
};
constexpr PublishedCounts kCounts[] = {
    {"inflight"}, {"inflight_chunks"}, {"inflight_closed", false, true}, {"inflight_until_B"}, {"inflight_until_W", true}};
// With weight passes these two do not say until which pass.
constexpr std::string_view kAmbiguousCounts[] = {"inflight", "inflight_closed"};

std::int32_t dimension(const RowCells& row, std::string_view name) {
  if (name == "v" && !row.has(name)) return 1;
  return static_cast<std::int32_t>(row.whole(name, 1, kMostDimension));
}

std::optional<Duration> duration(const RowCells& row, std::string_view name) {
  return row.has(name) ? row.duration(name) : std::optional(Duration{});
}

// What a row says is run. Nothing that it says of the outcome is read here.
struct PipelineCase {
  PipelineKind kind = PipelineKind::kGPipe;
  std::int32_t stages = 1, chunks = 1, micro_batches = 1;
  PassDurations durations{};
  Duration transfer{};
};

struct PipelineOutcome {
  Duration makespan{};
  std::vector<std::int64_t> until_backward{}, until_weight{};  // passes in flight by stage
};

PipelineOutcome outcome_of(const PipelineCase& of) {
  const std::vector<StagePasses> passes =
      pipeline_passes(of.kind, of.stages, of.chunks, of.micro_batches, 0, of.durations.pair.has_value());
  const std::vector<PassDurations> durations(passes.size(), of.durations);
  const PipelineGraph pipeline = pipeline_graph(passes, of.chunks, PointToPoint::kOverlapped, durations, of.transfer, of.kind);
  const StepResult result =
      simulate(pipeline.graph, plain_machine(of.stages), GivenCostModel(pipeline.costs), {.device = LedgerRule::kDeviceOrder});
  PipelineOutcome outcome{.makespan = result.end, .until_backward = passes_in_flight(pipeline, result, pipeline.until_backward)};
  if (pipeline.until_weight.valid()) outcome.until_weight = passes_in_flight(pipeline, result, pipeline.until_weight);
  return outcome;
}

// Reads everything that has a meaning, of a row that may be skipped too: a mistake is not hidden by a schedule that is not built yet.
void check_row(const RowCells& row, const PublishedSchedule& schedule) {
  for (const std::string_view name : kDimensions) dimension(row, name);
  for (const std::string_view name : kDurations) {
    if (!row.is_list(name)) duration(row, name);
  }
  for (const std::string_view name : {schedule.forward, schedule.backward, schedule.weight}) {
    if (!name.empty() && !row.has(name)) row.refuse(name, fmt::format("a duration of {}", schedule.name));
  }
  for (const std::string_view name : kMakespans) {
    if (row.has(name)) row.number(name);
  }
  if (std::none_of(std::begin(kMakespans), std::end(kMakespans), [&](std::string_view each) { return row.has(each); })) {
    row.refuse("makespan", fmt::format("one of {}", fmt::join(kMakespans, ", ")));
  }
  for (const PublishedCounts& each : kCounts) {
    if (row.has(each.column)) row.numbers(each.column);
  }
  row.flag("equals", true);
}

// "" if the row can be run. A column of numbers that the schedule does not have changes what is run; texts are notes.
std::string reason_to_skip(const CsvTable& table, const RowCells& row, const PublishedSchedule& schedule) {
  for (const std::string& column : table.head) {
    if (!row.has(column)) continue;
    const bool known = among(kPipelineDescription, column) || among(kMakespans, column) || column == schedule.forward ||
                       column == schedule.backward || column == schedule.weight || column == schedule.pair ||
                       std::any_of(std::begin(kCounts), std::end(kCounts), [&](const PublishedCounts& each) {
                         const bool of_weight_passes = each.until_weight || each.column == "inflight_until_B";
                         const bool fits = schedule.weight.empty() ? !of_weight_passes : !among(kAmbiguousCounts, each.column);
                         return each.column == column && fits;
                       });
    if (!known && !row.is_note(column) && row.text(column) != "false")
      return fmt::format("{} with column {} is not built yet", schedule.name, column);
  }
  for (const std::string_view name : kDurations) {
    if (row.is_list(name)) return fmt::format("{} with a list of {} is not built yet", schedule.name, name);
    if (!duration(row, name)) return no_duration(name);
  }
  return "";
}

std::string reason_to_skip(const PipelineCase& of) {
  const bool interleaved = of.kind == PipelineKind::kInterleaved, folded = goes_both_ways(of.kind);
  if (!interleaved && !folded && of.chunks > 1) return fmt::format("{} has one chunk a stage", pipeline_name(of.kind));
  if (folded && of.chunks != 2) return fmt::format("{} has two chunks a stage", pipeline_name(of.kind));
  if (interleaved && of.micro_batches % of.stages != 0) return "interleaved micro-batches are no multiple of the stages";
  if (of.kind == PipelineKind::kDualPipe) {
    if (of.stages % 2 != 0) return "dualpipe with an odd number of stages";
    if (of.micro_batches % 2 != 0 || of.micro_batches < 2 * of.stages)
      return "dualpipe with micro-batches that are odd or below two a stage";
    if (of.durations.backward < Duration{}) return "dualpipe with weight gradients that take longer than the backward pass";
  }
  const std::int64_t kinds = of.kind == PipelineKind::kZbH1 || folded ? 3 : 2;
  const std::int64_t of_stage = kinds * of.chunks * of.micro_batches;  // at most 3 * 2^40
  if (of_stage > kMostPasses || of_stage * of.stages > kMostPasses) return fmt::format("more than {} passes", kMostPasses);
  return "";
}

// Of a row that check_row() and reason_to_skip() let pass.
PipelineCase pipeline_case(const RowCells& row, const PublishedSchedule& schedule) {
  PipelineCase made{
      .kind = schedule.kind, .stages = dimension(row, "p"), .chunks = dimension(row, "v"), .micro_batches = dimension(row, "m")};
  if (goes_both_ways(schedule.kind) && !row.has("v")) made.chunks = 2;
  made.durations = {*duration(row, schedule.forward), *duration(row, schedule.backward), *duration(row, schedule.weight)};
  if (!schedule.pair.empty()) made.durations.backward -= made.durations.weight;
  if (!schedule.pair.empty() && row.has(schedule.pair)) made.durations.pair = *duration(row, schedule.pair);
  made.transfer = *duration(row, "P2P");
  return made;
}

// The step is no longer than all of its passes and transfers one behind another.
bool too_long(const PipelineCase& of) {
  const auto count = [](Duration each) { return static_cast<double>(each.count()); };
  const double each = count(of.durations.forward) + count(of.durations.backward) + count(of.durations.weight) +
                      count(of.durations.pair.value_or(Duration{})) + 2 * count(of.transfer);
  return each * of.stages * of.chunks * of.micro_batches > kLongestRow;
}

// Everything in which the row and the outcome differ, "" if nothing. A row whose own makespan and closed form are not equal says so under
// `equals`; then its closed forms say nothing of what is simulated.
std::string difference(const RowCells& row, const PipelineOutcome& outcome) {
  std::vector<std::string> differences;
  const bool closed_forms = row.flag("equals", true);
  for (const std::string_view name : kMakespans) {
    if (!row.has(name) || (!closed_forms && name != "makespan")) continue;
    const double published = row.number(name);
    if (published != row_units(outcome.makespan))
      differences.push_back(fmt::format("{} {} not {}", name, row_units(outcome.makespan), published));
  }
  for (const PublishedCounts& each : kCounts) {
    if (!row.has(each.column) || (!closed_forms && each.closed_form)) continue;
    const std::vector<std::int64_t>& simulated = each.until_weight ? outcome.until_weight : outcome.until_backward;
    const std::vector<double> published = row.numbers(each.column);
    const bool equal = std::equal(published.begin(), published.end(), simulated.begin(), simulated.end(),
                                  [](double a, std::int64_t b) { return a == static_cast<double>(b); });
    if (!equal) differences.push_back(fmt::format("{} [{}] not {}", each.column, fmt::join(simulated, ","), row.text(each.column)));
  }
  return fmt::format("{}", fmt::join(differences, "; "));
}

}  // namespace

PublishedComparison compare_pipeline(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "makespan and passes in flight";
  comparison.exact = true;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const RowCells row(table, i);
    const bool named = row.form("schedule") == CellForm::kText || row.form("schedule") == CellForm::kAny;
    if (!named || row.text("schedule").empty()) row.refuse("schedule", "the name of one");
    const auto schedule = std::find_if(kSchedules.begin(), kSchedules.end(), [&](const PublishedSchedule& each) {
      return each.name == row.text("schedule") || pipeline_name(each.kind) == row.text("schedule");
    });
    if (schedule != kSchedules.end()) check_row(row, *schedule);
    std::string reason = schedule == kSchedules.end() ? fmt::format("schedule {} is not built yet", row.text("schedule"))
                                                      : reason_to_skip(table, row, *schedule);
    PipelineCase of;
    if (reason.empty()) {
      of = pipeline_case(row, *schedule);
      reason = reason_to_skip(of);
    }
    if (reason.empty() && too_long(of)) reason = "longer than the 106 days of simulated time";
    if (!reason.empty()) {
      ++comparison.skipped[reason];
      continue;
    }
    const PipelineOutcome outcome = outcome_of(of);
    const auto given = std::find_if(std::begin(kMakespans), std::end(kMakespans), [&](std::string_view name) { return row.has(name); });
    comparison.rows.push_back({table.row_id(i), i, row.number(*given), row_units(outcome.makespan), difference(row, outcome)});
  }
  return comparison;
}

}  // namespace stepsim
