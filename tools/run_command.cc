#include <fmt/format.h>

#include <cstdio>

#include "tools/commands.h"
#include "tools/outputs.h"
#include "tools/report_json.h"
#include "tools/run_summary.h"
#include "traces/chrome_trace_writer.h"
#include "traces/memory_writer.h"

namespace stepsim {

static bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void check_trace_name(const std::string& path) {
  if (path.empty() || path == "-" || path == "/dev/null" || ends_with(path, ".json") || ends_with(path, ".json.gz")) return;
  const bool later = ends_with(path, ".pftrace");
  throw InputError({"--trace"},
                   "found " + path + (later ? ", which is not built yet" : "") + ", wanted a name that ends in .json or .json.gz");
}

// Processes of a pipeline's trace; a single device needs no name.
static std::vector<std::string> stage_names(const Job& job) {
  std::vector<std::string> names;
  for (std::int32_t stage = 0; job.parallel.pipeline > 1 && stage < job.parallel.pipeline; ++stage) {
    names.push_back(fmt::format("stage {} (GPU rank {})", stage, first_rank(job.parallel, stage)));
  }
  return names;
}

// The curve, with what the allocator holds where it was replayed.
static void write_run_memory(const Job& job, const StepRun& run, const TextSink& sink) {
  AllocatorCurve curve(run.step.graph.device_count());
  if (run.allocation.replayed()) {
    observe_allocator(job, run.step.graph, run.run.result, run.born, [&](const AllocatorSample& sample) { curve.add(sample); });
  }
  write_memory_csv(run.step.graph, run.run.result, kRoleNames, sink, run.allocation.replayed() ? &curve : nullptr);
}

int run_command(const RunArguments& arguments) {
  check_trace_name(arguments.trace);
  const bool asks_for_largest = !arguments.max.empty();
  const Growable grows = asks_for_largest ? growable(arguments.max) : Growable::kMicroBatch;
  const Job job = resolve_job(arguments.job);
  if (asks_for_largest && grows == Growable::kSequence && !job.training.packed.empty()) {
    throw InputError({"--max"}, "found sequence with --packed, wanted micro-batch: the documents say how long the sequence is");
  }
  const CheckLimits limits = check_limits(arguments.check, checked_job(job));
  std::vector<std::string> inputs = job.files;
  inputs.push_back(arguments.check.baseline);

  StepRun run;
  PlacementAlternatives alternatives;
  MemoryAnswers answers;
  const std::vector<Output> outputs = {
      {"--json", arguments.json, [&](const TextSink& sink) { sink(run_json(job, run, alternatives, answers)); }},
      {"--trace", arguments.trace,
       [&](const TextSink& sink) {
         const std::string title = fmt::format("stepsim {} {} on {}", STEPSIM_VERSION, job.model.name, job.gpu.name);
         const ChromeTraceOptions options{.role_names = kRoleNames, .title = title, .device_names = stage_names(job)};
         write_chrome_trace(run.step.graph, run.run.result, options, sink);
       }},
      {"--memory-csv", arguments.memory_csv, [&](const TextSink& sink) { write_run_memory(job, run, sink); }},
  };
  check_outputs(outputs, inputs);
  run = run_step(job);
  if (arguments.check.baseline.empty()) {
    alternatives = placement_alternatives(job, run);
    answers.changes = memory_changes(arguments.job, job, run);
  } else {
    alternatives.not_searched = "with --check";
  }
  if (asks_for_largest) answers.largest = largest_fit(grows, arguments.job, job);
  write_outputs(outputs, run_summary(job, run, alternatives, answers));
  const std::string failure = check_failure(limits, run);
  if (failure.empty()) return kExitDone;
  std::fputs((failure + "\n").c_str(), stderr);
  return kExitBeyondTolerance;
}

}  // namespace stepsim
