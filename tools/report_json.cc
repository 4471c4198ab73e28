#include "tools/report_json.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "sim/check.h"
#include "tools/evidence.h"
#include "tools/offload_report.h"
#include "tools/profile_use.h"
#include "tools/step_time_band.h"

namespace stepsim {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostPathSteps = 50;
constexpr std::size_t kMostHolders = 100;

// Picoseconds over 10^12, correctly rounded: 90 us is 9e-05, not 8.999999999999999e-05.
static double in_seconds(Duration time) { return static_cast<double>(time.count()) / 1e12; }

static Json optional_bytes(const std::optional<Bytes>& bytes) { return bytes ? Json(bytes->value) : Json(nullptr); }
static Json optional_number(const std::optional<double>& number) { return number ? Json(*number) : Json(nullptr); }

static Json job_json(const Job& job) {
  Json sections = Json::object();
  for (const JobValue& value : job.values) {
    const std::size_t dot = value.path.find('.');
    Json& field = sections[value.path.substr(0, dot)][value.path.substr(dot + 1)];
    switch (value.form) {
      case JobValue::Form::kText:
        field["value"] = value.value;
        break;
      case JobValue::Form::kNumber:
        field["value"] = Json::parse(value.value);
        break;
      case JobValue::Form::kSwitch:
        field["value"] = value.value == "true";
        break;
    }
    field["source"] = value.source;
  }
  return sections;
}

static Json flops_json(const Job& job, const StepRun& run) {
  const ConventionFlops& chosen = run.flops_of(job.convention);
  Json flops;
  flops["convention"] = convention_name(job.convention);
  flops["model_flops"] = chosen.flops.model.value;
  flops["hardware_flops"] = chosen.flops.hardware.value;
  const double rate = chosen.mfu ? *chosen.mfu * run.peak_rate.value : 0;
  flops["model_tflops_per_s_per_gpu"] = chosen.mfu ? Json(rate * 1e-12) : Json(nullptr);
  flops["peak_tflops_per_s"] = run.peak_rate.value * 1e-12;
  flops["peak_dtype"] = dtype_name(product_dtype(job.training.precision));
  flops["mfu"] = optional_number(chosen.mfu);
  flops["hfu"] = optional_number(chosen.hfu);
  for (const ConventionFlops& row : run.flops) {
    flops["by_convention"][convention_name(row.convention)] = {{"model_flops", row.flops.model.value},
                                                               {"hardware_flops", row.flops.hardware.value},
                                                               {"mfu", optional_number(row.mfu)},
                                                               {"hfu", optional_number(row.hfu)}};
  }
  return flops;
}

static Json at_peak_json(const MemoryPeak& peak, const std::vector<std::string>& role_names) {
  Json roles = Json::object();
  for (std::size_t i = 0; i < role_names.size(); ++i) roles[role_names[i]] = i < peak.by_bucket.size() ? peak.by_bucket[i].value : 0;
  return roles;
}

static Json device_json(const DeviceMemory& memory, const std::vector<std::string>& role_names) {
  Json device;
  device["device"] = device_name(memory.device);
  device["peak_allocated_bytes"] = memory.peak.bytes.value;
  device["capacity_bytes"] = optional_bytes(memory.capacity);
  device["margin_bytes"] = memory.margin() ? Json(*memory.margin()) : Json(nullptr);
  device["host_peak_bytes"] = memory.host_peak.value;
  device["host_capacity_bytes"] = optional_bytes(memory.host_capacity);
  device["at_peak"] = at_peak_json(memory.peak, role_names);
  return device;
}

// Fields that a user's graph has too; `run` adds its own.
static Json memory_json(const GraphRun& run, std::size_t reported, const std::vector<std::string>& role_names) {
  const DeviceMemory& device = run.memory[reported];
  Json memory;
  // Of a step that deadlocks nobody knows whether the rest would have fitted.
  const bool unknown = run.result.deadlock && !run.result.out_of_memory;
  memory["fits"] = unknown ? Json(nullptr) : Json(!run.result.out_of_memory.has_value());
  memory["device"] = device_name(device.device);
  memory["stage"] = device.device.index;
  // As `fits` of all devices, whichever is reported: the least that one of them has left.
  const DeviceMemory* const tightest = run.tightest();
  memory["margin_bytes"] = tightest == nullptr ? Json(nullptr) : Json(*tightest->margin());
  memory["margin_of"] = tightest == nullptr ? Json(nullptr) : Json(device_name(tightest->device));
  memory["peak_allocated_bytes"] = device.peak.bytes.value;
  memory["peak_reserved_bytes"] = nullptr;
  memory["peak_at_s"] = in_seconds(device.peak.at);
  memory["capacity_bytes"] = optional_bytes(device.capacity);
  memory["host_peak_bytes"] = device.host_peak.value;
  memory["host_capacity_bytes"] = optional_bytes(device.host_capacity);
  memory["first_iteration_peak_bytes"] = nullptr;
  memory["saved_activations_peak_bytes"] = nullptr;
  memory["at_peak"] = at_peak_json(device.peak, role_names);
  memory["per_device"] = Json::array();
  for (const DeviceMemory& each : run.memory) memory["per_device"].push_back(device_json(each, role_names));
  return memory;
}

// The reported stage, and in each row of per_device what is known of its stage.
static Json stage_memory_json(const Job& job, const StepRun& run, const std::vector<std::string>& role_names) {
  Json memory = memory_json(run.run, run.reported_stage, role_names);
  memory["fits"] = run.fits();
  memory.update(Json::parse(allocation_json(job, run, run.reported_stage)));
  memory["first_iteration_peak_bytes"] = run.reported_peaks().first_iteration.value;
  memory["saved_activations_peak_bytes"] = run.reported_peaks().saved_activations.value;
  for (std::size_t i = 0; i < run.stage_peaks.size(); ++i) {
    const auto stage = static_cast<std::int32_t>(i);
    const StageLayout& stages = run.step.stages;
    Json& row = memory["per_device"][i];
    row.update(Json::parse(device_allocation_json(run, i)));
    row["stage"] = stage;
    row["rank"] = first_rank(job.parallel, stage);
    row["layers"] = layers_held(stages, stage);
    row["embedding"] = stages.has_embedding(stage);
    row["head"] = stages.has_head(stage);
    row["parameters"] = run.step.parameters_of_stage[i];
    row["first_iteration_peak_bytes"] = run.stage_peaks[i].first_iteration.value;
    row["saved_activations_peak_bytes"] = run.stage_peaks[i].saved_activations.value;
  }
  return memory;
}

struct BusyTime {
  Duration compute{}, recompute{}, optimizer{};
};

static BusyTime busy_time(const TimePartition& time, const std::vector<std::string>& phase_names) {
  BusyTime busy;
  for (std::size_t i = 0; i < time.busy.size(); ++i) {
    const std::string name = i < phase_names.size() ? phase_names[i] : "";
    (name == "recompute" ? busy.recompute : name == "optimizer" ? busy.optimizer : busy.compute) += time.busy[i];
  }
  return busy;
}

static Duration sum(const std::vector<Duration>& parts) {
  Duration all{};
  for (const Duration part : parts) all += part;
  return all;
}

static Json time_json(const TimePartition& time, const std::vector<std::string>& phase_names) {
  const BusyTime busy = busy_time(time, phase_names);
  Json parts;
  parts["compute_s"] = in_seconds(busy.compute);
  parts["recompute_s"] = in_seconds(busy.recompute);
  parts["optimizer_s"] = in_seconds(busy.optimizer);
  parts["contention_s"] = in_seconds(time.contention);
  parts["exposed_copy_s"] = in_seconds(sum(time.exposed_copy));
  parts["exposed_collective_s"] = in_seconds(sum(time.exposed_collective));
  parts["pipeline_bubble_s"] = in_seconds(time.bubble);
  parts["host_s"] = in_seconds(time.host);
  parts["idle_s"] = in_seconds(time.idle);
  const Duration all = busy.compute + busy.recompute + busy.optimizer + time.contention + sum(time.exposed_copy) +
                       sum(time.exposed_collective) + time.bubble + time.host + time.idle;
  STEPSIM_CHECK(all == time.total());
  return parts;
}

static Json exposed_collective_json(const TimePartition& time) {
  Json groups = Json::object();
  for (std::size_t i = 1; i < kGroupNames.size(); ++i) {
    groups[std::string(kGroupNames[i])] = i < time.exposed_collective.size() ? in_seconds(time.exposed_collective[i]) : 0.0;
  }
  return groups;
}

static Json resources_json(const OpGraph& graph, const CostModel& costs, const GraphRun& run) {
  Json rows = Json::array();
  const double end_s = in_seconds(run.result.end);
  for (const ResourceUse& use : resource_use(graph, run.machine, costs, run.result)) {
    Json row;
    row["name"] = resource_name(use, graph, run.machine);
    row["busy_s"] = in_seconds(use.busy);
    row["busy_fraction"] = end_s > 0 ? in_seconds(use.busy) / end_s : 0.0;
    const bool moves = use.resource.valid() && run.machine.resources[static_cast<std::size_t>(use.resource.index)].bandwidth.value > 0;
    row["bytes"] =
        moves ? Json(use.load_s * run.machine.resources[static_cast<std::size_t>(use.resource.index)].bandwidth.value) : Json(nullptr);
    rows.push_back(std::move(row));
  }
  return rows;
}

// The longest steps of the path, in the order of time, and how many it has in all.
static void add_critical_path(Json& json, const OpGraph& graph, const StepResult& result) {
  Json steps = Json::array();
  const std::vector<PathStep> path = critical_path(graph, result);
  for (const PathStep& step : longest_steps(path, kMostPathSteps)) {
    steps.push_back({{"op", graph.op_name(step.op)},
                     {"device", device_name(step.device)},
                     {"start_s", in_seconds(step.start)},
                     {"duration_s", in_seconds(step.duration)}});
  }
  json["critical_path"] = std::move(steps);
  json["critical_path_steps"] = path.size();
}

// In seconds; what each source adds is a fraction of the step time.
static Json band_json(const Job& job, const StepRun& run) {
  const std::optional<BandedStep> banded = banded_step(job, run.run, run.step.graph);
  if (!banded) return nullptr;
  const StepTimeBand band = step_time_band(*banded);
  Json json{{"lower", band.lower_s}, {"upper", band.upper_s}, {"sources", Json::array()}};
  for (const BandSource& source : band.sources)
    json["sources"].push_back({{"name", source.name},
                               {"lower", source.range.lower},
                               {"upper", source.range.upper},
                               {"independent", source.independent},
                               {"reason", source.reason}});
  return json;
}

static Json profile_json(const Job& job, const StepRun& run) {
  const std::optional<ProfileUse> use = profile_use(job, run);
  if (!use) return nullptr;
  Json json{{"file", use->file}, {"kernels", use->kernels}};
  constexpr std::array<const char*, 3> kOrigins = {"measured", "interpolated", "modelled"};
  for (std::size_t i = 0; i < kOrigins.size(); ++i) {
    const OriginUse& origin = use->origins[i];
    json[kOrigins[i]] = {{"works", origin.works}, {"ops", origin.ops}, {"time_s", in_seconds(origin.time)}};
  }
  return json;
}

static Json evidence_json(const Job& job) {
  Json rows = Json::array();
  for (const EvidenceRow& row : evidence_rows(job)) {
    rows.push_back({{"of", row.of},
                    {"source", row.source},
                    {"conditions", row.conditions},
                    {"rows", row.rows},
                    {"error", optional_number(row.error)},
                    {"bias", optional_number(row.bias)},
                    {"fitted_error", optional_number(row.fitted_error)}});
  }
  return rows;
}

static Json out_of_memory_json(const OpGraph& graph, const StepResult& result, const std::vector<std::string>& role_names) {
  if (!result.out_of_memory) return nullptr;
  const OutOfMemory& out = *result.out_of_memory;
  Json json;
  json["device"] = device_name(out.device);
  json["space"] = out.space == MemorySpace::kHost ? "host" : "device";
  json["op"] = out.op ? Json(graph.op_name(*out.op)) : Json(nullptr);
  json["requested_bytes"] = out.requested.value;
  json["free_bytes"] = out.available.value;
  json["at_s"] = in_seconds(out.at);
  json["held_by"] = Json::array();
  Bytes rest;
  for (std::size_t i = 0; i < out.holders.size(); ++i) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(out.holders[i].index)];
    const auto bucket = static_cast<std::size_t>(graph.bucket(storage.role));
    if (i >= kMostHolders) {
      rest += storage.size;
      continue;
    }
    json["held_by"].push_back({{"name", graph.storage_name(out.holders[i])},
                               {"role", bucket < role_names.size() ? role_names[bucket] : ""},
                               {"bytes", storage.size.value}});
  }
  json["held_by_others_bytes"] = rest.value;  // smaller ones, beyond the list
  return json;
}

static Json simulation_json(const OpGraph& graph, const StepResult& result, double wall_s) {
  return {{"ops", graph.ops().size()},
          {"events", result.events},
          {"wall_s", wall_s},
          {"fingerprint", fmt::format("{:016x}", fingerprint(result))}};
}

static Json alternatives_json(const PlacementAlternatives& alternatives) {
  Json rows = Json::array();
  for (const PlacementAlternative& alternative : alternatives.tried) {
    rows.push_back({{"placement", placement_label(alternative.policy)},
                    {"flags", alternative.flags},
                    {"step_time_s", in_seconds(alternative.figures.step)},
                    {"peak_allocated_bytes", alternative.figures.peak.value},
                    {"fits", alternative.figures.fits}});
  }
  return rows;
}

// What the lines "cheapest GiB" and "cheapest time" of the summary say.
static Json cheapest_json(const PlacementAlternatives& alternatives) {
  const StepFigures& own = alternatives.own;
  Json cheapest{{"memory", nullptr}, {"time", nullptr}};
  if (const auto best = cheapest_memory(own, alternatives.tried)) {
    const PlacementAlternative& other = alternatives.tried[*best];
    cheapest["memory"] = {{"flags", other.flags},
                          {"freed_bytes", own.peak.value - other.figures.peak.value},
                          {"added_time_s", in_seconds(other.figures.step - own.step)}};
  }
  if (const auto best = cheapest_time(own, alternatives.tried)) {
    const PlacementAlternative& other = alternatives.tried[*best];
    cheapest["time"] = {{"flags", other.flags},
                        {"saved_time_s", in_seconds(own.step - other.figures.step)},
                        {"added_bytes", other.figures.peak.value - own.peak.value}};
  }
  return cheapest;
}

static Json figures_json(const StepFigures& figures) {
  return {{"step_time_s", in_seconds(figures.step)},
          {"peak_allocated_bytes", figures.peak.value},
          {"fits", figures.fits},
          {"short_by_bytes", figures.short_by.value},
          {"host_peak_bytes", figures.host_peak.value},
          {"host_short_by_bytes", figures.host_short_by.value}};
}

static Json verdict_json(const std::optional<OffloadVerdict>& verdict) {
  if (!verdict) return nullptr;
  const bool compared = verdict->not_compared.empty();
  constexpr std::array<const char*, 3> kNames = {"keep", "offload", "recompute"};
  Json json{{"text", verdict_text(*verdict)}};
  json["best"] = compared ? Json(kNames[static_cast<std::size_t>(verdict->best)]) : Json(nullptr);
  json["offload"] = figures_json(verdict->own);
  json["keep"] = compared ? figures_json(verdict->kept) : Json(nullptr);
  json["recompute"] = verdict->recomputed ? figures_json(*verdict->recomputed) : Json(nullptr);
  json["not_rerun"] = verdict->not_rerun;
  json["not_compared"] = compared ? Json(nullptr) : Json(verdict->not_compared);
  return json;
}

static Json slack_json(const OffloadReport& offload) {
  if (offload.slack.empty()) return nullptr;
  return {{"least", in_seconds(offload.slack.front().slack)},
          {"least_of", offload.slack.front().tensor},
          {"median", in_seconds(offload.median().slack)},
          {"late", offload.late()},
          {"copies_back", offload.slack.size()}};
}

static Json stage_offload_json(const StageOffload& stage, const DeviceMemory& memory) {
  return {{"device", device_name(memory.device)},
          {"bytes_out", stage.out.value},
          {"bytes_in", stage.in.value},
          {"copies", stage.copies},
          {"host_peak_bytes", stage.host_peak.value},
          {"host_copied_bytes", stage.host_copied.value},
          {"host_capacity_bytes", optional_bytes(memory.host_capacity)},
          {"staging_at_peak_bytes", stage.staging_at_peak.value},
          {"staging_peak_bytes", stage.staging_peak.value}};
}

static Json offload_json(const Job& job, const StepRun& run, const std::optional<OffloadVerdict>& verdict) {
  const std::optional<OffloadReport> offload = offload_report(job, run);
  if (!offload) return nullptr;
  const std::size_t fullest = offload->fullest_host();
  const StageOffload& reported = offload->stages[run.reported_stage];
  const ExposedCopies exposed = exposed_copies(run.run.time, run.step.phases);
  Json json{{"bytes_out", offload->out.value}, {"bytes_in", offload->in.value}, {"copies", offload->copies}};
  json["exposed_s"] = {
      {"forward", in_seconds(exposed.forward)}, {"backward", in_seconds(exposed.backward)}, {"tail", in_seconds(exposed.tail)}};
  json["links"] = Json::array();
  for (const CopyUse& use : offload->links) {
    json["links"].push_back({{"name", use.name},
                             {"busy_s", in_seconds(use.busy)},
                             {"busy_fraction", use.of_step},
                             {"busy_fraction_of_forward", use.of_forward},
                             {"busy_fraction_of_backward", use.of_backward}});
  }
  json["host_peak_bytes"] = offload->stages[fullest].host_peak.value;
  json["host_copied_bytes"] = offload->stages[fullest].host_copied.value;
  json["host_capacity_bytes"] = optional_bytes(run.run.memory[fullest].host_capacity);
  json["staging_at_peak_bytes"] = reported.staging_at_peak.value;
  json["staging_peak_bytes"] = reported.staging_peak.value;
  json["slack_s"] = slack_json(*offload);
  const auto rate = [](const std::optional<BytesPerSecond>& each) { return each ? Json(each->value) : Json(nullptr); };
  json["hidden_at_bytes_per_s"] = {{"out", rate(offload->hidden_out)}, {"in", rate(offload->hidden_in)}};
  json["verdict"] = verdict_json(verdict);
  json["per_device"] = Json::array();
  for (std::size_t i = 0; i < offload->stages.size(); ++i) {
    json["per_device"].push_back(stage_offload_json(offload->stages[i], run.run.memory[i]));
  }
  return json;
}

static Json pipeline_json(const Job& job, const TimePartition& time) {
  const std::optional<BubbleShare> share = bubble_share(job, time);
  if (!share) return nullptr;
  return {{"stages", job.parallel.pipeline},
          {"virtual_stages", job.parallel.virtual_stages},
          {"schedule", std::string(pipeline_name(job.parallel.schedule))},
          {"micro_batches", micro_batches_of(job)},
          {"bubble_ratio", share->measured},
          {"ideal_bubble_ratio", share->ideal},
          {"ideal", share->formula}};
}

static Json head_json() { return {{"schema_version", kSchemaVersion}, {"version", STEPSIM_VERSION}}; }

// Invalid UTF-8 cannot come from our files (they are checked), but may from a command line.
static std::string text_of(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

template <class Names>
static std::vector<std::string> strings(const Names& names) {
  return std::vector<std::string>(names.begin(), names.end());
}

std::string run_json(const Job& job, const StepRun& run, const PlacementAlternatives& alternatives, const MemoryAnswers& answers) {
  const OpGraph& graph = run.step.graph;
  const GraphRun& of_graph = run.run;
  const std::vector<std::string> roles = strings(kRoleNames), phases = strings(kPhaseNames);
  const double tokens = static_cast<double>(job.training.global_batch) * static_cast<double>(job.training.sequence);
  const double step_s = in_seconds(of_graph.result.end);
  const bool timed = !of_graph.stopped && step_s > 0;
  Json json = head_json();
  json["job"] = job_json(job);
  json["step_time_s"] = step_s;
  json["step_time_band"] = band_json(job, run);
  json["tokens_per_s"] = timed ? Json(tokens / step_s) : Json(nullptr);
  json["tokens_per_s_per_gpu"] = timed ? Json(tokens / step_s / static_cast<double>(job.gpus)) : Json(nullptr);
  json["flops"] = flops_json(job, run);
  json["memory"] = stage_memory_json(job, run, roles);
  json["time"] = time_json(of_graph.time, phases);
  json["time_of"] = nullptr;  // nothing ran
  const DeviceId critical = of_graph.time.device;
  if (critical.valid()) json["time_of"] = {{"device", device_name(critical)}, {"stage", critical.index}};
  json["pipeline"] = pipeline_json(job, of_graph.time);
  json["exposed_collective"] = exposed_collective_json(of_graph.time);
  const ExposedCopies copies = exposed_copies(of_graph.time, run.step.phases);
  json["exposed_copy"] = {
      {"forward", in_seconds(copies.forward)}, {"backward", in_seconds(copies.backward)}, {"tail", in_seconds(copies.tail)}};
  json["resources"] = resources_json(graph, *run.costs, of_graph);
  add_critical_path(json, graph, of_graph.result);
  json["out_of_memory"] = out_of_memory_json(graph, of_graph.result, roles);
  if (const std::optional<OutOfMemory> refused = refused_claim(run)) {
    StepResult stopped;
    stopped.out_of_memory = refused;
    json["out_of_memory"] = out_of_memory_json(graph, stopped, roles);
  }
  json["offload"] = offload_json(job, run, alternatives.offload);
  json["alternatives"] = alternatives_json(alternatives);
  json["cheapest"] = cheapest_json(alternatives);
  json.update(Json::parse(answers_json(answers)));
  json["evidence"] = evidence_json(job);
  json["profile"] = profile_json(job, run);
  json["warnings"] = all_warnings(job, run);
  for (const std::string& sentence : offload_warnings(job, run, alternatives.offload)) json["warnings"].push_back(sentence);
  json["assumed"] = all_assumed(job, run);
  json["not_modelled"] = not_modelled(run);
  json["simulation"] = simulation_json(graph, of_graph.result, run.wall_s);
  return text_of(json);
}

static Json deadlock_json(const OpGraph& graph, const StepResult& result) {
  if (!result.deadlock) return nullptr;
  Json json;
  json["first_waiting"] = graph.op_name(result.deadlock->first_waiting);
  json["waits_for"] = wait_text(graph, *result.deadlock);
  json["holders"] = Json::array();
  for (const OpId op : result.deadlock->holders) json["holders"].push_back(graph.op_name(op));
  json["cycle"] = Json::array();
  for (const OpId op : result.deadlock->cycle) json["cycle"].push_back(graph.op_name(op));
  return json;
}

std::string graph_run_json(const OpGraph& graph, const CostModel& costs, const GraphRun& run, const GraphNames& names, double wall_s) {
  Json json = head_json();
  json["step_time_s"] = in_seconds(run.result.end);
  json["step_time_band"] = nullptr;  // of given times nothing is known
  json["memory"] = memory_json(run, run.worst_device, names.roles);
  json["time"] = time_json(run.time, names.phases);
  for (std::size_t i = 0; i < run.time.busy.size(); ++i) {
    const std::string name = i < names.phases.size() ? names.phases[i] : fmt::format("phase {}", i);
    json["busy"][name.empty() ? "unnamed" : name] = in_seconds(run.time.busy[i]);
  }
  json["resources"] = resources_json(graph, costs, run);
  add_critical_path(json, graph, run.result);
  json["out_of_memory"] = out_of_memory_json(graph, run.result, names.roles);
  json["deadlock"] = deadlock_json(graph, run.result);
  json["simulation"] = simulation_json(graph, run.result, wall_s);
  return text_of(json);
}

}  // namespace stepsim
