#include "tools/job.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>

#include "models/low_precision.h"
#include "models/offload_presets.h"
#include "models/resident_storages.h"
#include "models/step_builder.h"
#include "models/template_builder.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "tools/idle_settings.h"
#include "tools/job_allocator.h"
#include "tools/job_framework.h"
#include "tools/job_parallel.h"
#include "tools/job_placement.h"
#include "tools/job_stack.h"
#include "tools/job_training.h"
#include "tools/job_values.h"
#include "tools/profile_file.h"

namespace stepsim {

std::string framework_label(const FrameworkPreset& framework) { return framework.name + "@" + framework.version; }

DType product_dtype(Precision precision) {
  TrainingRecipe recipe;
  recipe.precision = precision;
  return product_dtype(recipe);
}

InputError at_source(const JobEntries& entries, const InputError& error) {
  const std::string text = error.what();
  const std::size_t colon = text.find(": ");
  const std::string flag = text.substr(0, colon == std::string::npos ? 0 : colon);
  for (const auto& [path, entry] : entries.values) {
    const bool same = flag_of_path(path) == flag || "--set " + path == flag;  // the latter where there is no flag
    const bool elsewhere = entry.where.line > 0 || entry.where.file == "--set";
    if (same && elsewhere) return InputError(place_of(path, entry), text.substr(colon + 2));
  }
  return error;
}

// The problem of a policy that has one row only, "" if there is none.
static std::string row_problem(const Job& job, const LayerStack& stack, const PlacementRow& row) {
  PlacementPolicy alone;
  alone.rows = {row};
  try {
    check_policy(alone, stack, job.training.attention);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

InputError at_source(const Job& job, const InputError& error) {
  const std::string text = error.what(), flag = "--placement: ";
  if (text.compare(0, flag.size(), flag) != 0 || job.placement.rows.empty()) return at_source(job.entries, error);
  const StepTemplates templates = step_templates({job.model, job.training, job.parallel, job.framework});
  const LayerStack stack = layer_stack(templates, job.model.layers);
  std::size_t wrong = 0;
  while (wrong < job.placement.rows.size() && row_problem(job, stack, job.placement.rows[wrong]) != text) ++wrong;
  if (wrong == job.placement.rows.size()) wrong = 0;  // of the rows as a whole: the first stands for them
  const std::string row = fmt::format("placement.rows[{}].", wrong);
  const bool range = text.find("found layers ") != std::string::npos;
  for (const char* const field : {range ? "last_layer" : "tensor", range ? "first_layer" : "tensor"}) {
    const auto entry = job.entries.values.find(row + field);
    if (entry != job.entries.values.end()) return InputError(place_of(entry->first, entry->second), text.substr(flag.size()));
  }
  return at_source(job.entries, error);
}

static void resolve_model(JobValues& values, Job& job) {
  job.model = load_model(values.required("model.name", "a catalog name (`stepsim list models`), a .textproto or a config.json"));
  const ModelSpec whole = job.model;
  job.model.layers = values.whole("model.layers", whole.layers, "of the model", 1, kUnbounded);
  if (whole.encoder_layers > 0 && job.model.layers < 2) {
    values.fail("model.layers", fmt::format("found {}, wanted 2 or more of {}, an encoder and a decoder", job.model.layers, whole.name));
  }
  if (whole.encoder_layers > 0 && job.model.layers != whole.layers && job.model.layers <= kMostSequences) {
    job.model.encoder_layers = whole.encoder_layers * job.model.layers / whole.layers;  // encoder and decoder are cut alike
  }
  if (values.given("model.multi_token_layers")) {
    job.model.multi_token_layers = values.whole("model.multi_token_layers", 0, "", 0, kUnbounded);
  }
  const std::optional<FieldProblem> problem = model_problem(job.model);
  if (problem) {
    const bool layers = problem->field == "layers";  // the flag or its line in the file says so already
    const bool multi_token = problem->field == "multi_token_layers" && values.given("model.multi_token_layers");
    values.fail(multi_token                    ? "model.multi_token_layers"
                : values.given("model.layers") ? "model.layers"
                                               : "model.name",
                fmt::format("found {}{}, wanted {}", layers ? "" : problem->field + " ", problem->found, problem->wanted));
  }
}

// The loaders know the fields of their file: "--set peak.bf16: ..." was typed as hardware.peak.bf16.
template <class Load>
static auto with_section(const std::string& section, const Load& load) {
  try {
    return load();
  } catch (const InputError& error) {
    const std::string text = error.what(), start = "--set ";
    const std::size_t colon = text.find(": ");
    if (text.compare(0, start.size(), start) != 0 || colon == std::string::npos) throw;
    throw InputError({start + section + "." + text.substr(start.size(), colon - start.size())}, text.substr(colon + 2));
  }
}

ClusterSpec usual_cluster_of(const std::string& machine, const GpuSpec& gpu) {
  try {
    return usual_cluster(gpu);
  } catch (const InputError& error) {
    const std::string text = error.what(), flag = "--cluster: ";
    std::error_code ignored;
    const bool named = !gpu.usual_cluster.empty() && std::filesystem::is_regular_file(machine, ignored);
    if (!named || text.compare(0, flag.size(), flag) != 0) throw;
    throw InputError(locate_field(read_text_file(machine), machine, "usual_cluster"), text.substr(flag.size()));
  }
}

static void resolve_hardware(JobValues& values, const JobEntries& entries, Job& job) {
  const std::string machine = values.required("hardware.name", "a catalog name (`stepsim list hardware`) or a .textproto");
  job.gpu = with_section("hardware", [&] { return load_gpu(machine, entries.machine); });
  for (const auto& [path, value] : entries.machine) values.note("hardware." + path, value, "--set", JobValue::Form::kText);
  const ClusterSpec usual = usual_cluster_of(machine, job.gpu);
  const std::string name = values.text("hardware.cluster", usual.name, "the usual node and network of " + job.gpu.name);
  const bool given = values.given("hardware.cluster");
  job.cluster = with_section("cluster", [&] { return load_cluster(name, entries.cluster); });
  for (const auto& [path, value] : entries.cluster) values.note("cluster." + path, value, "--set", JobValue::Form::kText);
  if (!given) job.assumed.push_back("cluster " + usual.name + " (the machine's usual node and network)");
  for (const std::string& sentence : job.gpu.assumptions) job.assumed.push_back(sentence);
  for (const std::string& sentence : job.cluster.assumptions) job.assumed.push_back(sentence);
}

// GPUs of the job that copy through one host memory or root port: the others are idle.
static void count_neighbours(Job& job) {
  const auto used = [&](std::int32_t& sharing) { sharing = static_cast<std::int32_t>(std::min<std::int64_t>(sharing, job.gpus)); };
  if (job.cluster.gpus_per_host_memory > job.gpus || job.cluster.root_port.gpus > job.gpus) {
    job.assumed.push_back(fmt::format("GPUs of the node that the job does not use are idle: {} copies to host memory", job.gpus));
  }
  used(job.cluster.gpus_per_host_memory);
  used(job.cluster.root_port.gpus);
}

static void resolve_profile(JobValues& values, Job& job) {
  const std::optional<std::string> file = values.optional_text("hardware.profile");
  if (file && *file != "none") job.profile = std::make_shared<const KernelProfile>(load_kernel_profile(*file, job.gpu));
}

static void resolve_convention(JobValues& values, Job& job) {
  std::vector<std::string_view> names;
  std::vector<std::string> texts;
  for (const FlopsConvention convention : all_conventions()) texts.push_back(convention_name(convention));
  for (const std::string& name : texts) names.push_back(name);
  const std::string usual = convention_name(default_convention(job.model));
  std::size_t otherwise = 0;
  while (names[otherwise] != usual) ++otherwise;
  job.convention = all_conventions()[values.choice("training.flops_convention", names, {}, otherwise, "usual for this kind of model")];
}

static const OffloadPreset* named_preset(const JobEntries& entries) {
  const auto name = entries.values.find("placement.name");
  return name == entries.values.end() ? nullptr : offload_preset(name->second.value);
}

static Job resolved(const JobEntries& entries) {
  Job job;
  job.entries = entries;
  JobValues values(entries);
  resolve_model(values, job);
  const DescribedFramework framework = resolve_framework(values, entries, job);
  resolve_hardware(values, entries, job);
  take_flash_of_machine(job);
  resolve_training(values, job);
  resolve_stack(values, job);
  resolve_profile(values, job);
  resolve_allocator(values, job);
  resolve_convention(values, job);
  resolve_parallel(values, job);
  count_neighbours(job);
  note_gradient_dtype(values, job);
  job.placement = resolve_placement(values, entries);
  note_framework(values, framework, job);
  if (const OffloadPreset* const preset = named_preset(entries)) job.framework.kept_for_reruns = preset->keeps;
  job.training.fp8_reads_one_layout = job.gpu.compute_capability < 100;  // Blackwell reads either (accuracy.md C.3)
  check_layout(job.model, job.training, job.parallel);
  peak(job.gpu, product_dtype(job.training.precision));  // refuses a dtype that the machine has not
  const bool older = job.gpu.compute_capability > 0 && job.gpu.compute_capability < 100;
  if (older && job.training.precision == Precision::kMxFp8) {
    // Transformer Engine quantization.py check_mxfp8_support: compute capability 10.0 and higher.
    values.fail("training.precision",
                fmt::format("found mxfp8, wanted fp8 or wider on {}: products of MXFP8 need Blackwell", job.gpu.name));
  }
  job.values = values.values();
  job.warnings = idle_settings(job);
  job.files = entries.files;
  if (!packed_file(job).empty()) job.files.push_back(packed_file(job));
  for (const char* const path : {"model.name", "hardware.name", "hardware.cluster", "hardware.stack", "hardware.profile"}) {
    const auto entry = entries.values.find(path);
    if (entry != entries.values.end()) job.files.push_back(entry->second.value);
  }
  return job;
}

Job resolve_job(const JobInput& input) {
  const JobEntries entries = job_entries(input);
  try {
    return resolved(entries);
  } catch (const InputError& error) {
    throw at_source(entries, error);
  }
}

}  // namespace stepsim
