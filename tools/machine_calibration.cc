#include "tools/machine_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "hardware/catalog_source.h"
#include "hardware/fit/elementwise_fit.h"
#include "hardware/fit/inference_attention_fit.h"
#include "hardware/machine_text.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

bool in_catalog(const std::string& gpu) {
  if (gpu.empty() || gpu.find('/') != std::string::npos) return false;
  const std::vector<std::string> names = gpu_names();
  try {
    const GpuSpec found = load_gpu(gpu);
    return std::find(names.begin(), names.end(), found.name) != names.end();
  } catch (const InputError&) {
    return false;
  }
}

// All files together, in their order.
Measurements joined(const std::vector<Measurements>& files) {
  Measurements all;
  for (const Measurements& file : files) {
    if (all.gpu.empty()) all.gpu = file.gpu;
    all.file += (all.file.empty() ? "" : ", ") + file.file;
    all.gemms.insert(all.gemms.end(), file.gemms.begin(), file.gemms.end());
    all.attentions.insert(all.attentions.end(), file.attentions.begin(), file.attentions.end());
    all.training_attentions.insert(all.training_attentions.end(), file.training_attentions.begin(), file.training_attentions.end());
    all.memory.insert(all.memory.end(), file.memory.begin(), file.memory.end());
    all.collectives.insert(all.collectives.end(), file.collectives.begin(), file.collectives.end());
    all.skipped.insert(file.skipped.begin(), file.skipped.end());
    for (const std::string& source : file.sources) {
      if (std::find(all.sources.begin(), all.sources.end(), source) == all.sources.end()) all.sources.push_back(source);
    }
  }
  return all;
}

std::set<std::string> dtypes_of(const Measurements& rows) {
  std::set<std::string> names;
  for (const MeasuredGemm& row : rows.gemms) names.insert(dtype_name(row.work.dtype));
  for (const MeasuredAttention& row : rows.attentions) names.insert(dtype_name(row.work.dtype));
  for (const MeasuredAttention& row : rows.training_attentions) names.insert(dtype_name(row.work.dtype));
  return names;
}

// A value as one would write it: that of the H100.
std::string example_of(const std::string& path) {
  static const std::map<std::string, std::string> kExamples = {
      {"hbm", "\"3350 GB/s\""}, {"memory", "\"80 GiB\""}, {"sms", "132"}, {"nvlink_per_direction", "\"450 GB/s\""}};
  const auto found = kExamples.find(path);
  return fmt::format("--set {}={}", path, found != kExamples.end() ? found->second : "\"989 TFLOP/s\"");
}

// What a GPU that the catalog does not have must be told, for the rows that there are.
void require_facts(const MachineRequest& request, const Measurements& rows, const std::string& gpu) {
  std::set<std::string> given;
  for (const auto& [path, value] : request.facts) given.insert(path);
  std::vector<std::string> lacking;
  const auto require = [&](const std::string& path) {
    if (given.count(path) == 0) lacking.push_back(path);
  };
  const std::set<std::string> dtypes = dtypes_of(rows);
  for (const std::string& dtype : dtypes) require("peak." + dtype);
  require("hbm");
  require("memory");
  if (!dtypes.empty()) require("sms");
  if (!rows.collectives.empty()) require("nvlink_per_direction");
  if (lacking.empty()) return;
  throw InputError({"--set"}, fmt::format("found no {} of {}, which the catalog does not have, wanted such as {}", fmt::join(lacking, ", "),
                                          gpu, example_of(lacking.front())));
}

// A job that computes in bf16 asks for no other peak; one whose unit is not stated has none, so a base's do not stay.
void keep_stated_peaks(const MachineRequest& request, GpuSpec& gpu) {
  std::set<std::string> stated;
  const std::string prefix = "peak.";
  for (const auto& [path, value] : request.facts) {
    if (path.compare(0, prefix.size(), prefix) == 0) stated.insert(path.substr(prefix.size()));
  }
  if (stated.empty()) return;
  for (auto peak = gpu.peak_tflops.begin(); peak != gpu.peak_tflops.end();) {
    peak = stated.count(peak->first) == 0 ? gpu.peak_tflops.erase(peak) : std::next(peak);
  }
}

void refuse_missing_peaks(const GpuSpec& gpu, const Measurements& rows) {
  for (const std::string& dtype : dtypes_of(rows)) {
    if (gpu.peak_tflops.count(dtype) > 0) continue;
    const std::string path = "peak." + dtype;
    throw InputError({"--set"}, fmt::format("found no {} of {}, which rows are in, wanted such as {}", path, gpu.name, example_of(path)));
  }
}

struct Rate {
  int line = 0;
  double measured_s = 0;
  double over = 0;    // the limit
  std::string limit;  // "peak.bf16"
};

// FLOPs of the passes that were measured over those of forward: kernels.md 2.2.
double passes(AttentionPass pass) {
  constexpr double kForward = 1, kBackward = 2.5;
  return pass == AttentionPass::kForward ? kForward : pass == AttentionPass::kBackward ? kBackward : kForward + kBackward;
}

// Of products and attention over the peak; of kernels and collectives that no cache holds over memory bandwidth and link.
std::vector<Rate> rates_of(const GpuSpec& gpu, const Measurements& rows) {
  constexpr std::int64_t kBeyondCaches = 256 << 20;
  std::vector<Rate> rates;
  const auto arithmetic_rate = [&](int line, double flops, DType dtype, double measured_s) {
    rates.push_back({line, measured_s, flops / (peak(gpu, dtype).value * measured_s), "peak." + dtype_name(dtype)});
  };
  for (const MeasuredGemm& row : rows.gemms) arithmetic_rate(row.line, arithmetic(row.work).value, row.work.dtype, row.measured_s);
  for (const MeasuredAttention& row : rows.attentions)
    arithmetic_rate(row.line, arithmetic(row.work).value, row.work.dtype, row.measured_s);
  for (const MeasuredAttention& row : rows.training_attentions)
    arithmetic_rate(row.line, passes(row.pass) * arithmetic(row.work).value, row.work.dtype, row.measured_s);
  for (const MeasuredMemory& row : rows.memory) {
    const double bytes = static_cast<double>(memory_traffic(row.work).value);
    if (bytes >= kBeyondCaches) rates.push_back({row.line, row.measured_s, bytes / (gpu.hbm.value * row.measured_s), "hbm"});
  }
  for (const MeasuredCollective& row : rows.collectives) {
    const double bytes = static_cast<double>(row.work.message.value), link = gpu.nvlink_per_direction.value;
    if (bytes >= kBeyondCaches && link > 0)
      rates.push_back({row.line, row.measured_s, bytes / (2 * link * row.measured_s), "nvlink_per_direction"});
  }
  return rates;
}

// "peak.bf16 of h100-sxm-80gb", or what the user said it is.
std::string limit_text(const MachineRequest& request, const GpuSpec& gpu, const std::string& limit) {
  std::string text = limit + " of " + gpu.name;
  for (const auto& [path, value] : request.facts) {
    if (path == limit) text = fmt::format("{}=\"{}\" of --set", path, value);
  }
  return text;
}

[[noreturn]] void refuse_rate(const Rate& rate, const std::string& limit, const GpuSpec& gpu, const Measurements& rows) {
  if (rows.states_rates) {
    const double tflops = rate.over * gpu.peak_tflops.at(rate.limit.substr(std::string_view("peak.").size()));
    throw InputError({rows.file, rate.line, 1},
                     fmt::format("found {:.6g} TFLOP/s, {:.3g} times {}, wanted at most the dense peak", tflops, rate.over, limit));
  }
  throw InputError({rows.file, rate.line, 1},
                   fmt::format("found a latency of {:.4g} us, {:.3g} times faster than {} allows, wanted microseconds",
                               rate.measured_s * 1e6, rate.over, limit));
}

// A wrong unit: faster than any limit allows, latencies with room for one that is understated; or large products none of which comes near.
void refuse_impossible_rates(const MachineRequest& request, const GpuSpec& gpu, const Measurements& rows) {
  constexpr double kMost = 1.5, kMostStated = 1 + 1e-9, kLeast = 0.01;
  for (const Rate& rate : rates_of(gpu, rows)) {
    if (rate.over > (rows.states_rates ? kMostStated : kMost)) refuse_rate(rate, limit_text(request, gpu, rate.limit), gpu, rows);
  }
  const MeasuredGemm* fastest = nullptr;
  const auto share_of_peak = [&](const MeasuredGemm& row) {
    return arithmetic(row.work).value / (peak(gpu, row.work.dtype).value * row.measured_s);
  };
  for (const MeasuredGemm& row : rows.gemms) {
    if (row.training_size() && (fastest == nullptr || share_of_peak(row) > share_of_peak(*fastest))) fastest = &row;
  }
  if (fastest == nullptr || share_of_peak(*fastest) >= kLeast) return;
  const std::string limit = limit_text(request, gpu, "peak." + dtype_name(fastest->work.dtype));
  throw InputError({rows.file, fastest->line, 1},
                   fmt::format("found a latency of {:.4g} us, {:.2g} % of {} and the fastest large product, wanted microseconds",
                               fastest->measured_s * 1e6, 100 * share_of_peak(*fastest), limit));
}

// Ranks on several hosts reach one another by a network, unless a rack is one NVLink domain.
void refuse_several_hosts(const ClusterSpec& cluster, const Measurements& rows) {
  if (rows.hosts.size() < 2 || cluster.nvlink_domain > cluster.gpus_per_node) return;
  throw InputError({rows.file, rows.second_host_line, 1},
                   fmt::format("found ranks on {} and {}, wanted one host: calibrate fits collectives within an NVLink domain",
                               rows.hosts[0], rows.hosts[1]));
}

// Of "a/gemm.csv, b/attention.csv" "gemm.csv, attention.csv": for comments.
std::string names_of(const std::string& files) {
  std::string names;
  for (std::size_t at = 0; at < files.size();) {
    const std::size_t end = std::min(files.find(", ", at), files.size());
    const std::string file = files.substr(at, end - at);
    names += (names.empty() ? "" : ", ") + file.substr(file.find_last_of('/') + 1);
    at = end + 2;
  }
  return names;
}

class MachineFits {
 public:
  MachineFits(const Measurements& rows, GpuSpec gpu, const CalibrationSteps& progress, CalibratedMachine& result)
      : rows_(rows), source_("calibrate, " + names_of(rows.file)), gpu_(std::move(gpu)), progress_(progress), result_(result) {
    all_ = (rows.gemms.empty() ? 0 : 1) + (rows.attentions.empty() ? 0 : 1) + (rows.training_attentions.empty() ? 0 : 1) +
           (rows.memory.empty() ? 0 : 1) + (rows.collectives.empty() ? 0 : 1);
  }
  void run();

 private:
  void step(const std::string& what) { progress_(done_++ / all_, what); }
  void keep(std::optional<KernelCalibration> fit, const std::string& what, std::size_t rows, std::size_t least,
            const std::string& which = "that are not");
  void gemms();
  void attentions();
  void collectives();

  const Measurements& rows_;
  std::string source_;
  GpuSpec gpu_;
  const CalibrationSteps& progress_;
  CalibratedMachine& result_;
  double all_ = 0, done_ = 0;
};

void MachineFits::keep(std::optional<KernelCalibration> fit, const std::string& what, std::size_t rows, std::size_t least,
                       const std::string& which) {
  if (!fit) {
    throw InputError({rows_.file},
                     fmt::format("found {} rows of {}, of which half are held back, wanted at least {} {}", rows, what, least, which));
  }
  result_.classes.push_back(std::move(*fit));
}

void MachineFits::gemms() {
  if (rows_.gemms.empty()) return;
  step("matrix products");
  std::vector<MeasuredGemm> plain;
  for (const MeasuredGemm& row : rows_.gemms) {
    if (!row.weight_gradient()) plain.push_back(row);
  }
  const bool both = !plain.empty() && plain.size() < rows_.gemms.size();
  const double begin = done_ - 1;
  keep(calibrate_gemms(gpu_, plain.empty() ? rows_.gemms : plain, source_,
                       [&](double part) { progress_((begin + part) / all_, "matrix products"); }),
       "matrix products", rows_.gemms.size(), kLeastGemmRows);
  if (!both) return;
  if (auto fit = calibrate_weight_gradients(gpu_, rows_.gemms, source_)) {
    result_.classes.push_back(std::move(*fit));
  } else {
    result_.notes.emplace_back("weight gradients (NT): too few rows, or no tiles, for a factor of their own");
  }
}

void MachineFits::attentions() {
  std::set<std::int8_t> inference, training;
  for (const MeasuredAttention& row : rows_.attentions) inference.insert(row.work.kernel);
  for (const MeasuredAttention& row : rows_.training_attentions) training.insert(row.work.kernel);
  if (!inference.empty()) step("attention");
  for (const std::int8_t kernel : inference) {
    std::vector<MeasuredAttention> rows = rows_.attentions;
    std::erase_if(rows, [&](const MeasuredAttention& row) { return row.work.kernel != kernel; });
    keep(calibrate_inference_attention(gpu_, kernel, rows, source_, source_), "attention", rows.size(), kLeastAttentionRows);
  }
  if (!training.empty()) step("attention by length");
  for (const std::int8_t kernel : training) {
    std::vector<MeasuredAttention> rows = rows_.training_attentions;
    std::erase_if(rows, [&](const MeasuredAttention& row) { return row.work.kernel != kernel; });
    auto fit = calibrate_training_attention(gpu_, kernel, rows, source_, {.fixed_source = "of " + result_.base});
    if (fit) {
      result_.classes.push_back(std::move(*fit));
    } else {
      result_.notes.push_back(attention_kernel_name(kernel) + ": no forward rows, nothing is fitted");
    }
  }
}

void MachineFits::collectives() {
  if (rows_.collectives.empty()) return;
  step("collectives");
  ClusterSpec cluster = usual_cluster(gpu_);
  std::int32_t most = cluster.nvlink_domain;
  for (const MeasuredCollective& row : rows_.collectives) most = std::max(most, row.work.ranks);
  if (most > cluster.nvlink_domain) {
    result_.notes.push_back(fmt::format("collectives of more than {} ranks cross NVLink domains of {}: not fitted, but among the errors",
                                        cluster.nvlink_domain, cluster.name));
  }
  MeasuredCollectives own{.gpu = gpu_, .cluster = cluster, .rows = rows_.collectives};
  hold_out_odd_sizes(own.rows);
  const FittedCollectives fit = fit_collectives({&own, 1}).front();
  keep(calibrate_collectives(gpu_, own, fit, source_), "collectives", rows_.collectives.size(), kLeastCollectiveShapes,
       fmt::format("sizes of one operation with an even power of two, within an NVLink domain of {}", cluster.nvlink_domain));
}

void MachineFits::run() {
  gemms();
  attentions();
  if (!rows_.memory.empty()) {
    step("memory-bound kernels");
    keep(calibrate_memory(gpu_, rows_.memory, source_, {}), "memory-bound kernels", rows_.memory.size(), kLeastMemoryRows);
  }
  collectives();
  progress_(1, "done");
}

// The base's other attention kernels: a file's list replaces the base's.
void add_other_attention(const GpuSpec& base, CalibratedMachine& result, std::vector<FittedBlock>& blocks) {
  const bool fitted = std::any_of(blocks.begin(), blocks.end(), [](const FittedBlock& block) { return block.name == "attention"; });
  if (!fitted) return;
  std::vector<FittedBlock> others;
  for (const AttentionFit& entry : base.fit.attention) {
    const FittedBlock block =
        attention_block(entry, "of " + result.base, "of " + result.base, std::vector<std::string>(entry.rates.size()));
    const bool own = std::any_of(blocks.begin(), blocks.end(), [&](const FittedBlock& other) { return other.first == block.first; });
    if (!own) others.push_back(block);
  }
  blocks.insert(blocks.begin(), others.begin(), others.end());
}

// Tiles of another chip do not carry over (kernels.md 2.1).
void drop_foreign_tiles(const GpuSpec& base, const CalibratedMachine& result, std::vector<FittedBlock>& blocks) {
  const bool products = std::any_of(blocks.begin(), blocks.end(), [](const FittedBlock& block) {
    return block.name == "gemm_tile" || (block.name == "gemm" && block.lines.size() > 1);
  });
  if (products || !base.fit.gemm_tile) return;
  blocks.push_back(roofline_block(base.fit.gemm_fixed, base.fit.gemm_compute, base.fit.gemm_memory,
                                  "roofline of " + result.base + "; its tiles do not carry over to another chip (kernels.md 2.1)"));
}

std::string head_of(const MachineRequest& request, const CalibratedMachine& result, const Measurements& rows) {
  std::string text =
      fmt::format("# {}: stepsim calibrate {}\n", result.gpu.empty() ? "a GPU that the rows do not name" : result.gpu, rows.file);
  text += fmt::format("base: \"{}\"  # for all that stands neither here nor in the measurements\n", result.base);
  std::string facts = machine_fields_text(request.facts);
  for (std::size_t at = 0; at < facts.size();) {
    const std::size_t end = facts.find('\n', at);
    const std::string line = facts.substr(at, end - at);
    const bool value = line.find(':') != std::string::npos;
    text += line + (value ? "  # --set\n" : "\n");
    at = end + 1;
  }
  return text;
}

void refuse_fitted_facts(const MachineRequest& request, const std::vector<FittedBlock>& blocks) {
  for (const auto& [path, value] : request.facts) {
    const std::string field = path.substr(0, path.find_first_of(".["));
    if (field == "base" || field == "fit")
      throw InputError({"--set " + path}, "found a field of the file's own, wanted a fact of the machine");
    for (const FittedBlock& block : blocks) {
      if (block.name == field)
        throw InputError({"--set " + path}, "found a constant that the rows are fitted for, wanted a fact of the machine");
    }
  }
}

// The comments hold names of files, which may hold anything.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return text;
}

std::string machine_text(const MachineRequest& request, const GpuSpec& base, bool known, const Measurements& rows,
                         CalibratedMachine& result) {
  std::vector<FittedBlock> blocks;
  std::vector<FitRecord> records;
  const std::string conditions = request.conditions.empty() ? fmt::format("{}", fmt::join(rows.sources, "; ")) : request.conditions;
  for (const KernelCalibration& fit : result.classes) {
    blocks.insert(blocks.end(), fit.blocks.begin(), fit.blocks.end());
    if (fit.recorded) records.push_back(record_of(fit, rows.file, conditions.empty() ? "not stated" : conditions));
  }
  refuse_fitted_facts(request, blocks);
  add_other_attention(base, result, blocks);
  if (!known) drop_foreign_tiles(base, result, blocks);
  std::string text = head_of(request, result, rows);
  text += fmt::format("assumption: \"What {} did not measure is that of {}, as fractions of this machine's peaks.\"\n", "stepsim calibrate",
                      result.base);
  for (const KernelCalibration& fit : result.classes) {
    if (!fit.fewer.empty()) {
      text += fmt::format("assumption: \"{}, few rows: {}.\"\n", fit.op_class, fit.fewer);
    }
  }
  return with_blocks(text, blocks, records);
}

// A machine of the catalog: what is written must be readable where no other file is.
GpuSpec base_machine(const std::string& name) {
  if (is_catalog_file(name)) throw InputError({"--base"}, "found \"" + name + "\", wanted a catalog name (stepsim list hardware)");
  try {
    return load_gpu(name);
  } catch (const InputError& error) {
    const std::string what = error.what();  // "--hardware: found ..."
    throw InputError({"--base"}, what.substr(what.find("found ")));
  }
}

// The written file would name it, and only whoever reads that file would learn that it does not exist.
void check_usual_cluster(const MachineRequest& request, const GpuSpec& gpu) {
  const auto named = [](const auto& fact) { return fact.first == "usual_cluster"; };
  if (std::none_of(request.facts.begin(), request.facts.end(), named)) return;
  try {
    load_cluster(gpu.usual_cluster);
  } catch (const InputError& error) {
    const std::string what = error.what();
    const std::size_t found = what.find("found ");
    throw InputError({"--set usual_cluster"}, what.substr(found == std::string::npos ? 0 : found));
  }
}

constexpr const char* kWritten = "calibrated.textproto";

// An error of what was fitted ("job: found an op of ...", "calibrated.textproto:79:3: found ...") as one of the fact that it names, or of
// the user's rows and all facts: the user has neither file. Others stay.
InputError at_rows(const MachineRequest& request, const InputError& error) {
  const std::string what = error.what(), found = ": found ";
  const std::size_t at = what.find(found), wanted = what.find(", wanted ");
  const bool fitted = what.compare(0, 4, "job:") == 0 || what.compare(0, std::string_view(kWritten).size(), kWritten) == 0;
  if (!fitted || at == std::string::npos || wanted == std::string::npos || wanted < at) return error;
  const std::size_t begin = at + found.size(), name = what.compare(begin, 3, "no ") == 0 ? begin + 3 : begin;
  for (const auto& [path, value] : request.facts) {
    const std::string field = path.substr(0, path.find_first_of(".["));
    const bool names_it = what.compare(name, field.size(), field) == 0 && std::strchr(".[ ,", what[name + field.size()]) != nullptr;
    if (names_it) return InputError({"--set " + path}, what.substr(at + 2));
  }
  return InputError(
      {request.files.front().file},
      fmt::format("found rows whose fit is no machine: {}, wanted measurements of one machine in the units that the head says{}",
                  what.substr(begin, wanted - begin), request.facts.empty() ? "" : ", and that machine's facts (--set)"));
}

}  // namespace

CalibratedMachine calibrate_machine(const MachineRequest& request, const CalibrationSteps& progress) {
  STEPSIM_CHECK(!request.files.empty());
  Measurements rows = joined(request.files);
  rows.file = one_line(rows.file);
  CalibratedMachine result;
  result.gpu = one_line(request.gpu.empty() ? rows.gpu : request.gpu);
  const bool known = in_catalog(result.gpu);
  if (request.base.empty() && !known) {
    throw InputError({"--base"}, fmt::format("found none, and {} is not in the catalog, wanted the catalog machine that it is most alike",
                                             result.gpu.empty() ? "the GPU, which no row names," : "\"" + result.gpu + "\""));
  }
  const std::string base_name = request.base.empty() ? result.gpu : request.base;
  const GpuSpec base = base_machine(base_name);
  result.base = base.name;
  if (!known && !result.gpu.empty()) require_facts(request, rows, result.gpu);
  GpuSpec gpu = load_gpu(base_name, request.facts);
  keep_stated_peaks(request, gpu);
  check_usual_cluster(request, gpu);
  if (rows.rows() == 0) {
    const std::string why = rows.skipped.empty() ? "" : " (" + rows.skipped.begin()->first + ")";
    throw InputError({rows.file}, "found no row that a fit takes" + why + ", wanted some of bf16, fp16 or fp32");
  }
  refuse_missing_peaks(gpu, rows);
  for (const Measurements& file : request.files) {
    if (!file.hosts.empty()) refuse_several_hosts(usual_cluster(gpu), file);
    refuse_impossible_rates(request, gpu, file);
    result.notes.insert(result.notes.end(), file.notes.begin(), file.notes.end());
  }
  try {
    MachineFits(rows, gpu, progress, result).run();
    result.text = machine_text(request, base, known || result.gpu.empty(), rows, result);
    gpu_from_text("calibrated", kWritten, result.text);  // what is written can be read
  } catch (const InputError& error) {
    throw at_rows(request, error);
  }
  return result;
}

}  // namespace stepsim
