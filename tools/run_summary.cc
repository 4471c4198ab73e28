#include "tools/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/check.h"
#include "tools/evidence.h"
#include "tools/offload_report.h"
#include "tools/profile_use.h"
#include "tools/step_time_band.h"
#include "tools/text_lines.h"

namespace stepsim {

constexpr std::size_t kMostLines = 26;

// One unit for all times of a summary.
struct TimeUnit {
  double per_second = 1;
  const char* name = "s";
};

static TimeUnit unit_of(Duration step) {
  constexpr Duration kMillisecond{1'000'000'000}, kTenSeconds{10'000'000'000'000};
  if (step < kMillisecond) return {1e6, "us"};
  return step < kTenSeconds ? TimeUnit{1e3, "ms"} : TimeUnit{1, "s"};
}

static std::string number(Duration time, const TimeUnit& unit) { return fmt::format("{:.2f}", seconds(time) * unit.per_second); }

// "step time 205.90 ms (190.12 to 240.30)".
static std::string step_text(const Job& job, const StepRun& run, const TimeUnit& unit) {
  const std::string step = fmt::format("{} {}", number(run.run.result.end, unit), unit.name);
  if (run.run.stopped) return "stopped after " + step;
  const std::optional<BandedStep> banded = banded_step(job, run.run, run.step.graph);
  if (!banded) return "step time " + step;
  const StepTimeBand band = step_time_band(*banded);
  return fmt::format("step time {} ({:.2f} to {:.2f})", step, band.lower_s * unit.per_second, band.upper_s * unit.per_second);
}

static void add_verdict(const Job& job, const StepRun& run, const TimeUnit& unit, TextLines& lines) {
  const GraphRun& of_graph = run.run;
  const std::string step = step_text(job, run, unit);
  if (of_graph.result.out_of_memory) {
    const std::vector<std::string> roles(kRoleNames.begin(), kRoleNames.end());
    const OutOfMemoryText text = out_of_memory_text(run.step.graph, of_graph.result, roles);
    lines.add("", fmt::format("{} (stage {})", text.verdict, of_graph.result.out_of_memory->device.index), 2);
    lines.add("  held by: ", text.holders, 2);
    lines.add("  ", step);
    return;
  }
  if (const std::string card = card_verdict(run); !card.empty()) {
    const bool fits = run.fits();
    lines.add("", fits ? card + "; " + step : card, 2);
    if (const std::string remedy = card_remedy(job, run); !remedy.empty()) lines.add("  ", remedy, 2);
    if (!fits) lines.add("  ", step);
    return;
  }
  const DeviceMemory* const tightest = of_graph.tightest();  // of all stages, whichever is reported
  STEPSIM_CHECK(tightest != nullptr);                        // a machine has a capacity
  lines.add("", fmt::format("FITS: {:.2f} of {:.2f} GiB free on {} (stage {}); {}", gib(*tightest->margin()),
                            gib(tightest->capacity->value), device_name(tightest->device), tightest->device.index, step));
}

static std::string optimizer_name(OptimizerKind optimizer) {
  constexpr const char* kNames[] = {"adamw", "sgd", "adam8bit", "lion", "muon", "none"};  // by OptimizerKind
  return kNames[static_cast<std::size_t>(optimizer)];
}

static std::string attention_name(AttentionKind attention) {
  return attention == AttentionKind::kUnfused ? "unfused" : attention == AttentionKind::kFlash ? "flash" : "fused";
}

// "dp 8 with zero 1, gradients reduced in fp32 beside backward".
static std::string data_parallel_text(const ParallelLayout& parallel) {
  if (parallel.replicas() == 1) return parallel.zero == 0 ? "dp 1" : fmt::format("dp 1 with zero {}", parallel.zero);
  std::string text = fmt::format("dp {} with zero {}", parallel.data, parallel.zero);
  if (parallel.sharding_ranks() != parallel.replicas()) text += fmt::format(" in groups of {}", parallel.sharding_ranks());
  if (parallel.reduce_dtype) text += ", gradients reduced in " + dtype_name(*parallel.reduce_dtype);
  const bool overlapped = parallel.overlap_gradient_reduce.value_or(false) || parallel.zero >= 2;
  return text + (overlapped ? " beside backward" : " after backward");
}

static bool has_layout_line(const ParallelLayout& parallel) {
  return parallel.pipeline > 1 || parallel.replicas() > 1 || parallel.expert > 1;
}

static std::string_view dispatcher_name(Dispatcher dispatcher) {
  constexpr std::array<std::string_view, 4> kNames = {"allgather", "alltoall", "deepep", "hybridep"};  // as --dispatcher
  return kNames[static_cast<std::size_t>(dispatcher)];
}

static void add_layout(const Job& job, TextLines& lines) {
  const ParallelLayout& parallel = job.parallel;
  if (!has_layout_line(parallel)) return;
  std::string text =
      fmt::format("tp {}{}, pp {}", parallel.tensor, parallel.sequence_parallel ? " (sequence-parallel)" : "", parallel.pipeline);
  if (parallel.pipeline > 1) {
    text += fmt::format(" ({}", pipeline_name(parallel.schedule));
    if (parallel.virtual_stages > 1) text += fmt::format(", {} virtual stages", parallel.virtual_stages);
    if (parallel.point_to_point) text += fmt::format(", {} p2p", point_to_point_name(*parallel.point_to_point));
    text += ")";
  }
  if (parallel.context > 1) text += fmt::format(", cp {}", parallel.context);
  if (parallel.expert > 1)
    text += fmt::format(", ep {} ({})", parallel.expert, dispatcher_name(parallel.dispatcher.value_or(Dispatcher::kAllToAll)));
  if (job.model.has_experts() && parallel.expert_tensor_ranks() != parallel.tensor) {
    text += fmt::format(", experts' tp {}", parallel.expert_tensor_ranks());
  }
  const std::int64_t micro_batches = micro_batches_of(job);
  lines.add("layout: ",
            fmt::format("{}, {} micro-batch{}, {}", text, micro_batches, micro_batches == 1 ? "" : "es", data_parallel_text(parallel)), 2);
}

// ", lora r=16" and so on; "" where all is trained.
static std::string trainable_text(const TrainableMask& mask) {
  if (mask.kind == TrainableMask::Kind::kLora) return fmt::format(", {}lora r={}", mask.base_bits == 4 ? "q" : "", mask.rank);
  if (mask.kind == TrainableMask::Kind::kFrozen) return fmt::format(", {} frozen", fmt::join(mask.targets, " and "));
  return "";
}

static void add_job(const Job& job, TextLines& lines) {
  const std::string tensor = has_layout_line(job.parallel) ? ""
                                                           : fmt::format("; tp {}{}", job.parallel.tensor,
                                                                         job.parallel.sequence_parallel ? ", sequence-parallel" : "");
  lines.add("job: ",
            fmt::format("{}, {} layer{}, on {} x {}, {}; {}{}", job.model.name, job.model.layers, job.model.layers == 1 ? "" : "s",
                        job.gpus, job.gpu.name, job.cluster.name, framework_label(job.framework), tensor),
            2);
  const std::string dropout = job.training.dropout > 0 ? fmt::format(", dropout {}", job.training.dropout) : "";
  const bool first = job.training.iteration == IterationKind::kFirst;
  lines.add("     ",
            fmt::format("sequence {}, micro-batch {}, batch {}; {}, {}{}, {} attention{}; recompute {}{}", job.training.sequence,
                        job.training.micro_batch, job.training.global_batch, dtype_name(product_dtype(job.training.precision)),
                        optimizer_name(job.training.optimizer), trainable_text(job.training.trainable),
                        attention_name(job.training.attention), dropout, placement_label(job.placement), first ? "; first iteration" : ""),
            2);
}

static void add_speed(const Job& job, const StepRun& run, TextLines& lines) {
  const ConventionFlops& flops = run.flops_of(job.convention);
  if (!flops.mfu) {
    lines.add("speed: ", "none: the step was stopped where it no longer fitted");
    return;
  }
  const double tokens = static_cast<double>(job.training.global_batch) * static_cast<double>(job.training.sequence) / run.step_time_s();
  lines.add("speed: ",
            fmt::format("{:.0f} tokens/s, {:.0f} tokens/s per GPU; {:.1f} TFLOP/s per GPU of model FLOPs ({})", tokens,
                        tokens / static_cast<double>(job.gpus), *flops.mfu * run.peak_rate.value * 1e-12, convention_name(job.convention)));
  lines.add("       ", fmt::format("MFU {:.2f} %, HFU {:.2f} % of the dense {} peak of {:.1f} TFLOP/s", *flops.mfu * 100, *flops.hfu * 100,
                                   dtype_name(product_dtype(job.training.precision)), run.peak_rate.value * 1e-12));
}

static void add_time(const Job& job, const StepRun& run, const TimeUnit& unit, TextLines& lines) {
  const TimePartition& time = run.run.time;
  const auto busy = [&](Phase phase) {
    const auto i = static_cast<std::size_t>(phase);
    return i < time.busy.size() ? time.busy[i] : Duration{};
  };
  const auto exposed = [&](Group group) {
    const auto i = static_cast<std::size_t>(group);
    return number(i < time.exposed_collective.size() ? time.exposed_collective[i] : Duration{}, unit);
  };
  const ExposedCopies copies = exposed_copies(time, run.step.phases);
  lines.add("time: ",
            fmt::format("forward {} + backward {} + recompute {} + optimizer {} + contention {}", number(busy(Phase::kForward), unit),
                        number(busy(Phase::kBackward), unit), number(busy(Phase::kRecompute), unit), number(busy(Phase::kOptimizer), unit),
                        number(time.contention, unit)));
  lines.add("      ",
            fmt::format("+ exposed TP {}, DP {}, PP {}, CP {}, EP {}; copies: forward {}, backward {}, tail {}", exposed(Group::kTensor),
                        exposed(Group::kData), exposed(Group::kPipeline), exposed(Group::kContext), exposed(Group::kExpert),
                        number(copies.forward, unit), number(copies.backward, unit), number(copies.tail, unit)));
  const bool one = run.run.memory.size() == 1 || !time.device.valid();
  const std::string whose = one ? "" : fmt::format(" of stage {}, which ends last", time.device.index);
  lines.add("      ", fmt::format("+ bubble {} + host {} + idle {} = {} {}{}", number(time.bubble, unit), number(time.host, unit),
                                  number(time.idle, unit), number(time.total(), unit), unit.name, whose));
  const std::optional<BubbleShare> share = bubble_share(job, time);
  if (!share) return;
  lines.add("      ", fmt::format("bubble over the rest of the step: {:.2f} %; ideal {} = {:.2f} %", 100 * share->measured, share->formula,
                                  100 * share->ideal));
}

// All stages where they go on a line; else the first, the last and those between which the others lie.
static void add_stage_peaks(const StepRun& run, TextLines& lines) {
  constexpr std::size_t kMostListed = 12;
  const std::vector<DeviceMemory>& memory = run.run.memory;
  if (memory.size() == 1) return;
  std::string text;
  for (const DeviceMemory& stage : memory) text += fmt::format("{}{:.2f}", text.empty() ? "" : ", ", gib(stage.peak.bytes.value));
  if (memory.size() > kMostListed) {
    const auto least = std::min_element(memory.begin(), memory.end(),
                                        [](const DeviceMemory& a, const DeviceMemory& b) { return a.peak.bytes < b.peak.bytes; });
    const DeviceMemory& most = run.run.worst();
    text = fmt::format("stage 0 {:.2f}, largest {:.2f} (stage {}), smallest {:.2f} (stage {}), last {:.2f}",
                       gib(memory.front().peak.bytes.value), gib(most.peak.bytes.value), most.device.index, gib(least->peak.bytes.value),
                       least->device.index, gib(memory.back().peak.bytes.value));
  }
  lines.add("        ", "peaks by stage: " + text + " GiB", 1);
}

static void add_memory(const Job& job, const StepRun& run, TextLines& lines) {
  const bool first = job.training.iteration == IterationKind::kFirst;
  const DeviceMemory& reported = run.reported();
  const StagePeaks& peaks = run.reported_peaks();
  const std::string peak =
      first ? fmt::format("{:.2f} GiB in iteration 1", gib(peaks.first_iteration.value))
            : fmt::format("{:.2f} GiB steady, {:.2f} GiB in iteration 1", gib(reported.peak.bytes.value), gib(peaks.first_iteration.value));
  lines.add("memory: ", fmt::format("peak of stage {}: {}; saved activations at most {:.2f} GiB", reported.device.index, peak,
                                    gib(peaks.saved_activations.value)));
  std::string roles;
  for (std::size_t i = 0; i < kRoleNames.size() && i < reported.peak.by_bucket.size(); ++i) {
    if (reported.peak.by_bucket[i].value == 0) continue;
    roles += fmt::format("{}{} {:.2f}", roles.empty() ? "" : ", ", kRoleNames[i], gib(reported.peak.by_bucket[i].value));
  }
  lines.add("        ", "at the peak: " + roles + " GiB", 2);
  if (!job.placement.offloads()) lines.add("        ", alive_text(run, kColumns - 8), 1);  // else the copies need the room
  add_stage_peaks(run, lines);
  if (run.allocation.replayed()) {
    lines.add("        ", reserved_text(run), 2);
    if (const std::string subtraction = subtraction_text(run); !subtraction.empty()) lines.add("        ", subtraction, 2);
    return;
  }
  if (!reported.capacity) return;
  const std::int64_t margin = reported.capacity->value - reported.peak.bytes.value;
  lines.add("        ", fmt::format("card {:.2f} - allocated {:.2f} - fragmentation and context (not modelled) = {:.2f} GiB {}",
                                    gib(reported.capacity->value), gib(reported.peak.bytes.value), gib(margin < 0 ? -margin : margin),
                                    margin < 0 ? "short" : "free"));
}

// Which share of its time the copies of a direction fill, on the stage that ends last.
static std::string link_text(const OffloadReport& offload, DeviceId device, const char* direction) {
  const CopyUse* const use = offload.link(device, direction);
  if (use == nullptr) return std::string(direction) + " unused";
  const bool out = std::string_view(direction) == "out";
  return fmt::format("{} {:.1f} % ({} {:.0f} %)", direction, 100 * use->of_step, out ? "forward" : "backward",
                     100 * (out ? use->of_forward : use->of_backward));
}

static std::string host_text(const StepRun& run, const OffloadReport& offload) {
  const StageOffload& fullest = offload.stages[offload.fullest_host()];
  std::string text = fmt::format("host {:.2f}", gib(fullest.host_peak.value));
  if (const std::optional<Bytes>& capacity = run.run.memory[offload.fullest_host()].host_capacity) {
    text += fmt::format(" of {:.2f}", gib(capacity->value));
  }
  const std::int64_t added = fullest.host_peak.value - fullest.host_copied.value;
  return text + (added > 0 ? fmt::format(" GiB ({:.2f} rounding, pools)", gib(added)) : " GiB");
}

// What the link would have to do, at least, for copies that are exposed because it is too slow.
static std::string hiding_text(const StepRun& run, const OffloadReport& offload) {
  const ExposedCopies exposed = exposed_copies(run.run.time, run.step.phases);
  const DeviceId device = run.run.time.device;
  const StageOffload& stage = offload.stages[static_cast<std::size_t>(device.index)];
  std::string text;
  const auto add = [&](bool waits, const std::optional<BytesPerSecond>& rate, Bytes bytes, const char* direction) {
    const CopyUse* const use = offload.link(device, direction);
    if (!waits || !rate || use == nullptr || rate->value * seconds(use->busy) <= static_cast<double>(bytes.value)) return;
    text += fmt::format("{} {:.0f} GB/s {}", text.empty() ? "; cannot hide below" : ",", rate->value * 1e-9, direction);
  };
  add(exposed.forward + exposed.tail > Duration{}, offload.hidden_out, stage.out, "out");
  add(exposed.backward > Duration{}, offload.hidden_in, stage.in, "in");
  return text;
}

static void add_offload(const Job& job, const StepRun& run, const std::optional<OffloadVerdict>& verdict, const TimeUnit& unit,
                        TextLines& lines) {
  const std::optional<OffloadReport> offload = offload_report(job, run);
  if (!offload || offload->copies == 0) return;
  constexpr std::size_t kBehind = 3;  // the cheapest GiB and time, the evidence
  const auto room = [&] { return kMostLines - std::min(kMostLines, lines.lines().size() + kBehind); };
  const DeviceId device = run.run.time.device;
  lines.add("offload: ",
            fmt::format("{:.2f} GiB out, {:.2f} in, {} copies; link {}, {}", gib(offload->out.value), gib(offload->in.value),
                        offload->copies, link_text(*offload, device, "out"), link_text(*offload, device, "in")),
            1);
  if (room() > 1) {
    const StageOffload& reported = offload->stages[run.reported_stage];
    std::string slack;
    if (!offload->slack.empty()) {
      slack = fmt::format("; back early: median {} {}, least {}", number(offload->median().slack, unit), unit.name,
                          number(offload->slack.front().slack, unit));
    }
    lines.add("         ",
              fmt::format("{}, staging at the peak {:.2f} GiB{}", host_text(run, *offload), gib(reported.staging_at_peak.value), slack),
              room() > 3 ? 2 : 1);
  }
  if (verdict && room() > 0) {
    lines.add("         ", "verdict: " + verdict_text(*verdict) + hiding_text(run, *offload), std::min<std::size_t>(room(), 2));
  }
}

// The flags if they leave the line whole, those that imply the rest of them, or the name that the job's line has for such a placement.
static void add_alternative(const Job& job, const char* label, const PlacementAlternative& alternative, const std::string& gain,
                            TextLines& lines) {
  const std::string without = job.placement.offloads() ? " without offload" : job.placement.rows.empty() ? "" : " without rows";
  const std::string rest = without + gain;
  std::vector<std::string> names = {alternative.flags};
  if (const std::size_t modules = alternative.flags.find("--recompute-modules"); modules != std::string::npos) {
    names.push_back(alternative.flags.substr(modules));
  }
  names.push_back(placement_label(alternative.policy));
  std::size_t i = 0;
  while (i + 1 < names.size() && std::string(label).size() + names[i].size() + rest.size() > kColumns) ++i;
  lines.add(label, names[i] + rest, 1);
}

static std::string ratio(double value) { return value < 0.1 ? fmt::format("{:.2g}", value) : fmt::format("{:.2f}", value); }

// What matters beside the gain: that the card is too small all the same, or is no longer.
static std::string fit_text(const StepFigures& own, const StepFigures& other) {
  if (other.fits) return own.fits ? "" : ", fits";
  return other.short_by.value > 0 ? fmt::format(", {:.2f} GiB short", gib(other.short_by.value)) : ", does not fit";
}

static std::string memory_gain(const StepFigures& own, const StepFigures& other, const TimeUnit& unit) {
  const double freed = gib(own.peak.value - other.peak.value);
  const Duration added = other.step - own.step;
  const std::string gain = fmt::format(" frees {:.2f} GiB ", freed);
  if (added < Duration{}) return gain + fmt::format("and is {} {} faster", number(-added, unit), unit.name);
  if (added == Duration{}) return gain + "for no time";
  return gain +
         fmt::format("for +{0} {1} ({2} {1} per GiB)", number(added, unit), unit.name, ratio(seconds(added) * unit.per_second / freed));
}

static std::string time_gain(const StepFigures& own, const StepFigures& other, const TimeUnit& unit) {
  const Duration saved = own.step - other.step;
  const double added = gib(other.peak.value - own.peak.value);
  const std::string gain = fmt::format(" saves {} {} ", number(saved, unit), unit.name);
  if (added < 0) return gain + fmt::format("and frees {:.2f} GiB", -added);
  if (added == 0) return gain + "for no memory";
  return gain + fmt::format("for +{:.2f} GiB ({} GiB per {})", added, ratio(added / (seconds(saved) * unit.per_second)), unit.name);
}

static void add_alternatives(const Job& job, const PlacementAlternatives& alternatives, const TimeUnit& unit, TextLines& lines) {
  if (!alternatives.not_searched.empty()) {
    lines.add("cheapest GiB and time: ", "not searched: " + alternatives.not_searched, 1);
    return;
  }
  const StepFigures& own = alternatives.own;
  if (const auto best = cheapest_memory(own, alternatives.tried)) {
    const PlacementAlternative& other = alternatives.tried[*best];
    add_alternative(job, "cheapest GiB: ", other, memory_gain(own, other.figures, unit) + fit_text(own, other.figures), lines);
  } else {
    lines.add("cheapest GiB: ", "none of the placements tried frees memory", 1);
  }
  if (const auto best = cheapest_time(own, alternatives.tried)) {
    const PlacementAlternative& other = alternatives.tried[*best];
    add_alternative(job, "cheapest time: ", other, time_gain(own, other.figures, unit) + fit_text(own, other.figures), lines);
  } else {
    lines.add("cheapest time: ", "none of the usual placements shortens the step", 1);
  }
}

// The cheapest change that is none of the placement, and the largest size, where they were looked for.
static void add_answers(const MemoryAnswers& answers, const TimeUnit& unit, TextLines& lines) {
  const MemoryChanges& changes = answers.changes;
  constexpr std::size_t kBehind = 4;  // evidence, warning, assumed, not modelled
  const auto best = cheapest_change(changes);
  if (best && lines.lines().size() + kBehind < kMostLines) {
    const MemoryChange& change = changes.tried[*best];
    lines.add("cheapest change: ", change.flags + memory_gain(changes.own, change.figures, unit) + fit_text(changes.own, change.figures),
              1);
  }
  if (answers.largest) lines.add("largest: ", largest_fit_text(*answers.largest), 2);
}

static std::string joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (std::string sentence : sentences) {
    if (!sentence.empty() && sentence.back() == '.') sentence.pop_back();
    text += (text.empty() ? "" : "; ") + sentence;
  }
  return text.empty() ? "nothing" : text;
}

// One line each, as long as there is room for the two lines behind them; the JSON has all.
static void add_warnings(const std::vector<std::string>& warnings, TextLines& lines) {
  for (std::size_t i = 0; i < warnings.size(); ++i) {
    const std::size_t left = warnings.size() - i;
    const bool last = lines.lines().size() + 3 >= kMostLines;
    const std::string more = last && left > 1 ? fmt::format("(1 of {} more, all in --json) ", left) : "";
    lines.add("warning: ", more + warnings[i], last ? 1 : 2);
    if (last) return;
  }
}

std::string run_summary(const Job& job, const StepRun& run, const PlacementAlternatives& alternatives, const MemoryAnswers& answers) {
  const TimeUnit unit = unit_of(run.run.result.end);
  TextLines lines;
  add_verdict(job, run, unit, lines);
  add_job(job, lines);
  add_layout(job, lines);
  add_speed(job, run, lines);
  add_time(job, run, unit, lines);
  add_memory(job, run, lines);
  add_offload(job, run, alternatives.offload, unit, lines);
  add_alternatives(job, alternatives, unit, lines);
  add_answers(answers, unit, lines);
  constexpr std::size_t kBehindEvidence = 6;  // warnings, assumed, not modelled: two lines each
  if (lines.lines().size() < kMostLines) {
    lines.add("evidence: ", evidence_text(job), lines.lines().size() + 2 + kBehindEvidence <= kMostLines ? 2 : 1);
  }
  std::vector<std::string> warnings = all_warnings(job, run);
  if (const std::string doubt = doubt_of_time(run.allocation, run.run.result); !doubt.empty()) {
    warnings.insert(warnings.begin(), "the step time is not to be trusted: " + doubt);
  }
  for (const std::string& sentence : offload_warnings(job, run, alternatives.offload)) warnings.push_back(sentence);
  add_warnings(warnings, lines);
  const std::vector<std::pair<const char*, std::vector<std::string>>> rest = {{"assumed: ", all_assumed(job, run)},
                                                                              {"not modelled: ", not_modelled(run)}};
  const std::size_t most = lines.lines().size() + rest.size() * 2 <= kMostLines ? 2 : 1;
  for (const auto& [label, sentences] : rest) {
    if (lines.lines().size() < kMostLines) lines.add(label, joined(sentences), most);
  }
  return lines.text();
}

}  // namespace stepsim
