// Rows of published tables, run: each distinct configuration once, on as many threads as there are cores.
#include "tools/published_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>

#include "models/vocabulary.h"
#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/step_run.h"
#include "tools/step_time_band.h"

namespace stepsim {

namespace {

// By the names of ModelSpec's fields.
std::int64_t* dimension(ModelSpec& model, std::string_view name) {
  const std::pair<std::string_view, std::int64_t*> fields[] = {
      {"hidden", &model.hidden},
      {"heads", &model.heads},
      {"kv_heads", &model.kv_heads},
      {"head_dim", &model.head_dim},
      {"ffn_hidden", &model.ffn_hidden},
      {"vocab", &model.vocab},
      {"max_positions", &model.max_positions},
      {"attention_window", &model.attention_window},
      {"multi_token_layers", &model.multi_token_layers},
      {"experts.experts", &model.experts.experts},
      {"experts.top_k", &model.experts.top_k},
      {"experts.ffn_hidden", &model.experts.ffn_hidden},
      {"experts.shared_ffn", &model.experts.shared_ffn},
  };
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return nullptr;
}

void set_dimensions(const PublishedStep& step, ModelSpec& model) {
  for (const auto& [name, value] : step.dimensions) {
    std::int64_t* const field = dimension(model, name);
    STEPSIM_CHECK(field != nullptr);  // translators name fields of this program
    *field = value;
  }
  if (step.dense_layers) {
    model.expert_layers.assign(static_cast<std::size_t>(model.layers), 1);
    std::fill_n(model.expert_layers.begin(), std::clamp(*step.dense_layers, std::int64_t{0}, model.layers), std::uint8_t{0});
  }
  if (step.window_every) {
    model.window_layers.assign(static_cast<std::size_t>(std::max(*step.window_every, std::int64_t{1})), 0);
    model.window_layers.front() = 1;
  }
  if (const std::optional<FieldProblem> problem = model_problem(model)) {
    throw InputError({"--model"}, fmt::format("found {} {}, wanted {}", problem->field, problem->found, problem->wanted));
  }
}

struct Span {
  bool any = false;
  TimePoint start{}, end{};
  double length_s() const { return any ? seconds(end - start) : 0; }
  void add(const OpRun& run) {
    start = any ? std::min(start, run.start) : run.start;
    end = any ? std::max(end, run.end) : run.end;
    any = true;
  }
};

// Ops that are no optimizer's, of the first layer or of all: from the start of the first to the end of the last of each direction.
void measure_passes(const StepRun& run, bool layer_alone, SimulatedStep& simulated) {
  const OpGraph& graph = run.step.graph;
  const auto label = [&](Phase phase) { return run.step.phase_labels[static_cast<std::size_t>(phase)]; };
  Span forward, backward, both;
  for (const OpRun& op_run : run.run.result.timeline) {
    const Op& op = graph.op(op_run.op);
    if (op.phase == label(Phase::kOptimizer) || (layer_alone && op.layer != 0)) continue;
    (op.phase == label(Phase::kForward) ? forward : backward).add(op_run);
    both.add(op_run);
  }
  simulated.forward_s = forward.length_s();
  simulated.backward_s = backward.length_s();
  simulated.step_s = layer_alone ? simulated.forward_s + simulated.backward_s : both.length_s();
}

void add_memory(const StepRun& run, SimulatedStep& simulated) {
  for (const DeviceMemory& memory : run.run.memory) {
    simulated.peak_bytes = std::max(simulated.peak_bytes, static_cast<double>(memory.peak.bytes.value));
  }
  simulated.fits = run.fits();
  if (!run.allocation.replayed()) return;
  for (const DeviceAllocation& device : run.allocation.devices) {
    simulated.reserved_bytes = std::max(simulated.reserved_bytes, static_cast<double>(reserved_peak(device).value));
  }
}

// What the band is of the whole step it is of the part.
void add_band(const Job& job, const StepRun& run, SimulatedStep& simulated) {
  simulated.lower_s = simulated.upper_s = simulated.step_s;
  const std::optional<BandedStep> banded = banded_step(job, run.run, run.step.graph);
  if (!banded) return;
  const StepTimeBand band = step_time_band(*banded);
  const double whole = run.step_time_s();
  simulated.lower_s = simulated.step_s * band.lower_s / whole;
  simulated.upper_s = simulated.step_s * band.upper_s / whole;
}

SimulatedStep simulated_step(const PublishedStep& step, bool reserved_asked) {
  SimulatedStep simulated;
  try {
    const Job job = published_step_job(step);
    const StepRun run = run_step(job, reserved_asked ? AllocatorReplayed::kAlways : AllocatorReplayed::kIfNearlyFull);
    simulated.step_s = run.step_time_s();
    if (step.part != MeasuredPart::kStep) measure_passes(run, step.part == MeasuredPart::kLayer, simulated);
    add_memory(run, simulated);
    add_band(job, run, simulated);
    simulated.row = measured_row_of(job);
    simulated.mfu = run.flops_of(job.convention).mfu;
    simulated.hfu = run.flops_of(job.convention).hfu;
  } catch (const InputError& error) {
    simulated = {};
    simulated.refused = error.what();
  }
  return simulated;
}

// Everything that a run depends on.
std::string configuration(const PublishedStep& step) {
  std::string key = fmt::format("{} {}", static_cast<int>(step.part), step.input.file);
  for (const FlagValue& flag : step.input.flags) key += fmt::format("\n{} {}={}", flag.flag, flag.path, flag.value);
  for (const auto& [name, value] : step.dimensions) key += fmt::format("\n{}={}", name, value);
  if (step.dense_layers) key += fmt::format("\ndense {}", *step.dense_layers);
  if (step.window_every) key += fmt::format("\nwindow {}", *step.window_every);
  return key;
}

struct Distinct {
  const PublishedStep* step = nullptr;  // the first of those that are equal
  bool reserved_asked = false;          // by any of them
  SimulatedStep simulated{};
};

// Each once, by several threads; which takes which changes no result.
void run_all(std::vector<Distinct>& runs, const PublishedProgress& progress) {
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < runs.size(); i = next++) {
      try {
        runs[i].simulated = simulated_step(*runs[i].step, runs[i].reserved_asked);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!failure) failure = std::current_exception();
        next = runs.size();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (progress) progress(++done, runs.size());
    }
  };
  const std::size_t threads = std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), runs.size());
  std::vector<std::thread> workers;
  for (std::size_t i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Job published_step_job(const PublishedStep& step) {
  Job job = resolve_job(step.input);
  set_dimensions(step, job.model);
  if (step.part != MeasuredPart::kStep) job.training.optimizer = OptimizerKind::kNone;
  check_layout(job.model, job.training, job.parallel);
  job.stop_at_out_of_memory = false;
  return job;
}

std::vector<SimulatedStep> simulate_published(std::span<const PublishedStep> steps, const PublishedProgress& progress) {
  std::map<std::string, std::size_t> known;
  std::vector<Distinct> runs;
  std::vector<std::size_t> run_of_step;
  for (const PublishedStep& step : steps) {
    const auto [place, added] = known.try_emplace(configuration(step), runs.size());
    if (added) runs.push_back({.step = &step});
    Distinct& run = runs[place->second];
    run.reserved_asked = run.reserved_asked || step.out_of_memory || (step.peak_bytes && step.peak_is_reserved);
    run_of_step.push_back(place->second);
  }
  run_all(runs, progress);
  std::vector<SimulatedStep> simulated;
  for (const std::size_t run : run_of_step) simulated.push_back(runs[run].simulated);
  return simulated;
}

}  // namespace stepsim
