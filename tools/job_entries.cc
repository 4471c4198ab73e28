#include "tools/job_entries.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "schema/read_message.h"
#include "tools/job.pb.h"
#include "tools/placement_names.h"

namespace stepsim {

// Fields that the text sets, as entries with their places.
static void add_places(const google::protobuf::Message& message, const std::string& text, const std::string& file,
                       const std::string& prefix, std::map<std::string, SourceLocation>& places) {
  constexpr std::size_t kMostPlaces = 1000;  // each reads the text from its beginning
  const auto fields = set_fields(message);
  std::optional<SourceLocation> first_row;  // where all rows are said to stand if there are too many to find
  for (const auto& [path, value] : fields) {
    const bool row = fields.size() > kMostPlaces && path.find("rows[") != std::string::npos;
    if (row && !first_row) first_row = locate_field(text, file, path);
    places[prefix + path] = row ? *first_row : locate_field(text, file, path);
  }
}

// "placement.layers[3].mlp_norm" of --set as a row of the table; false if the path is another one.
static bool add_layer_row(job::Job& job, const FlagValue& flag) {
  constexpr std::string_view kStart = "placement.layers[";
  if (flag.path.compare(0, kStart.size(), kStart) != 0) return false;
  const std::size_t close = flag.path.find("].");
  std::int64_t layer = -1;
  if (close != std::string::npos) {
    const char* const end = flag.path.data() + close;
    const auto read = std::from_chars(flag.path.data() + kStart.size(), end, layer);
    if (read.ec != std::errc() || read.ptr != end) layer = -1;
  }
  if (layer < 0) throw InputError({flag.flag}, "found \"" + flag.path + "\", wanted placement.layers[N].TENSOR=ACTION");
  job::Placement::Row& row = *job.mutable_placement()->add_rows();
  row.set_first_layer(layer);
  row.set_last_layer(layer);
  row.set_tensor(flag.path.substr(close + 2));
  row.set_action(flag.value);
  return true;
}

static std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Flags that replace what the job file says about a whole subject come before those that say details of it.
static int rank_of(const FlagValue& flag) {
  if (flag.flag == "--set") return 3;
  return flag.path == "placement.name" ? 0 : flag.path == "placement.recompute" ? 1 : 2;
}

// "hardware.peak.bf16" and "cluster.network_per_gpu" of --set are for the loaders of those files; false if the path is another one.
static bool add_override(JobEntries& entries, const FlagValue& flag) {
  const std::size_t dot = flag.path.find('.');
  if (flag.flag != "--set" || dot == std::string::npos) return false;
  const std::string section = flag.path.substr(0, dot), field = flag.path.substr(dot + 1);
  const std::string_view of_job[] = {"name", "cluster", "gpus", "stack", "profile", "expandable_segments", "allocator"};
  const bool is_of_job = std::find(std::begin(of_job), std::end(of_job), field) != std::end(of_job);
  if (field == "base" && section != "framework")
    throw InputError({flag.flag + " " + flag.path}, "found a base, wanted another --hardware, or a machine file with it");
  if (section == "hardware" && !is_of_job) {
    entries.machine.emplace_back(field, flag.value);
    return true;
  }
  if (section == "cluster") entries.cluster.emplace_back(field, flag.value);
  return section == "cluster";
}

static void apply_flag(job::Job& job, const FlagValue& flag) {
  if (flag.path == "placement.name") job.clear_placement();
  if (flag.path == "placement.recompute" && flag.flag != "--set") {
    job.mutable_placement()->clear_recompute_method();
    job.mutable_placement()->clear_recompute_num_layers();
    job.mutable_placement()->clear_recompute_modules();
    job.mutable_placement()->clear_recompute_segments();
  }
  if (flag.path == "placement.recompute_modules") {
    job.mutable_placement()->clear_recompute_modules();
    for (const std::string& module : split(flag.value, ',')) job.mutable_placement()->add_recompute_modules(module);
    return;
  }
  if (flag.path == "placement.offload_modules") {
    job.mutable_placement()->clear_offload_modules();
    for (const std::string& module : split(flag.value, ',')) job.mutable_placement()->add_offload_modules(module);
    return;
  }
  const bool set = flag.flag == "--set";
  try {
    set_field(job, flag.path, flag.value, flag.flag);
  } catch (const InputError& error) {
    if (set) throw;
    const std::string text = error.what();  // "--tp parallel.tp: found ..."; the path is the program's own
    throw InputError({flag.flag}, text.substr(text.find(": ") + 2));
  }
}

// The placement file stands below what the job says itself; its rows come first.
static void add_placement_file(job::Job& job, const std::string& path, std::map<std::string, SourceLocation>& places) {
  const std::string text = read_text_file(path);
  job::Placement base;
  read_message(text, path, base);
  if (base.has_name()) throw InputError(locate_field(text, path, "name"), "found a name, wanted the rows of a placement");
  std::map<std::string, SourceLocation> base_places;
  add_places(base, text, path, "placement.", base_places);
  const int rows = base.rows_size();
  job::Placement own = job.placement();
  if (own.recompute_modules_size() > 0) base.clear_recompute_modules();
  if (own.offload_modules_size() > 0) base.clear_offload_modules();
  base.MergeFrom(own);
  *job.mutable_placement() = base;
  // Rows of the job move behind those of the file.
  std::map<std::string, SourceLocation> moved;
  constexpr std::string_view kRows = "placement.rows[";
  for (const auto& [field, where] : places) {
    if (field.compare(0, kRows.size(), kRows) != 0) {
      moved[field] = where;
      continue;
    }
    const std::size_t close = field.find(']');
    const int index = std::stoi(field.substr(kRows.size(), close - kRows.size())) + rows;
    std::string row(kRows);
    row.append(std::to_string(index)).append(field.substr(close));
    moved[row] = where;
  }
  for (const auto& [field, where] : base_places) moved.insert({field, where});
  places = moved;
}

// A file that a job file names is meant from the job file's folder.
static std::string beside(const std::string& job_file, const std::string& name) {
  const std::filesystem::path path(name);
  const bool file = name.find('/') != std::string::npos || path.has_extension();
  std::error_code ignored;
  const std::filesystem::path candidate = std::filesystem::path(job_file).parent_path() / path;
  const bool there = file && path.is_relative() && std::filesystem::is_regular_file(candidate, ignored);
  return there ? candidate.string() : name;
}

static void apply_flags(job::Job& job, std::vector<FlagValue> flags, std::map<std::string, SourceLocation>& places, JobEntries& entries) {
  std::stable_sort(flags.begin(), flags.end(), [](const FlagValue& a, const FlagValue& b) { return rank_of(a) < rank_of(b); });
  for (const FlagValue& flag : flags) {
    if (add_override(entries, flag)) continue;
    std::map<std::string, std::string> before;
    for (const auto& [path, value] : set_fields(job)) before[path] = value;
    const bool row = flag.flag == "--set" && add_layer_row(job, flag);
    if (flag.path == "placement.recompute" && places["placement.name"].line > 0 && is_placement_name(job.placement().name())) {
      job.mutable_placement()->clear_name();  // of the job file: the flag stands above it
    }
    if (!row) apply_flag(job, flag);
    for (const auto& [path, value] : set_fields(job)) {
      const bool changed = before.count(path) == 0 || before[path] != value;
      if (changed || path == flag.path) places[path] = SourceLocation{row ? flag.flag + " " + flag.path : flag.flag};
    }
  }
}

SourceLocation place_of(const std::string& path, const JobEntry& entry) {
  return entry.where.file == "--set" ? SourceLocation{"--set " + path} : entry.where;
}

JobEntries job_entries(const JobInput& input) {
  JobEntries entries;
  job::Job job;
  std::map<std::string, SourceLocation> places;
  if (!input.file.empty()) {
    const std::string text = read_text_file(input.file);
    read_message(text, input.file, job);
    add_places(job, text, input.file, "", places);
    entries.files.push_back(input.file);
    if (job.model().has_name()) job.mutable_model()->set_name(beside(input.file, job.model().name()));
    if (job.hardware().has_name()) job.mutable_hardware()->set_name(beside(input.file, job.hardware().name()));
    if (job.hardware().has_cluster()) job.mutable_hardware()->set_cluster(beside(input.file, job.hardware().cluster()));
    if (job.hardware().has_stack()) job.mutable_hardware()->set_stack(beside(input.file, job.hardware().stack()));
    if (job.hardware().has_profile()) job.mutable_hardware()->set_profile(beside(input.file, job.hardware().profile()));
    if (job.training().has_packed()) job.mutable_training()->set_packed(beside(input.file, job.training().packed()));
    if (job.placement().has_name()) job.mutable_placement()->set_name(beside(input.file, job.placement().name()));
  }
  apply_flags(job, input.flags, places, entries);
  const std::string placement = job.placement().name();
  if (!placement.empty() && !is_placement_name(placement)) {
    std::error_code ignored;
    if (!std::filesystem::exists(placement, ignored)) {
      throw InputError(places["placement.name"], unknown_placement(placement));
    }
    add_placement_file(job, placement, places);
    entries.files.push_back(placement);
  }
  for (const auto& [path, value] : set_fields(job)) entries.values[path] = {value, places[path]};
  return entries;
}

}  // namespace stepsim
