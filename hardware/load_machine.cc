// The catalog and the user's machine and cluster files: text -> message -> checked GpuSpec or ClusterSpec.
#include <algorithm>
#include <cctype>

#include "hardware/field_reader.h"
#include "hardware/machine.pb.h"
#include "hardware/machine_spec.h"
#include "schema/embedded_files.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> machine_files();
std::span<const EmbeddedFile> cluster_files();

namespace {

struct Source {
  std::string name, path, text;
};

// "H100_SXM" and "h100 sxm" are "h100-sxm".
std::string normalized(std::string name) {
  for (char& c : name) {
    c = c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

bool is_file(const std::string& name) {
  const auto ends_in = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends_in(".textproto") || ends_in(".txt") || ends_in(".json") || name.find('/') != std::string::npos;
}

std::string stem(const std::string& path) {
  const std::size_t begin = path.find_last_of('/') + 1;  // npos + 1 is 0
  return path.substr(begin, path.find_last_of('.') - begin);
}

// An unquoted number where a quantity belongs: names the kind of text that is wanted.
template <class Message>
void read_file(const Source& source, Message& message) {
  try {
    read_message(source.text, source.path, message);
  } catch (const InputError& error) {
    const std::string what = error.what(), end = ", wanted text in quotes";
    const std::size_t at = what.rfind(end);
    if (at == std::string::npos || at + end.size() != what.size()) throw;
    const std::size_t problem = what.rfind(": found ");
    if (problem == std::string::npos) throw;
    throw InputError({what.substr(0, problem)},
                     what.substr(problem + 2) + " with a unit: \"900 GB/s\", \"80 GiB\", \"5 us\" or \"989 TFLOP/s\"");
  }
}

template <class Message>
std::string find_name(std::span<const EmbeddedFile> files, const std::string& wanted, const char* flag) {
  const std::string name = normalized(wanted);
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) {
    if (file.name == name) return name;
    names.emplace_back(file.name);
  }
  for (const EmbeddedFile& file : files) {
    Message message;
    read_file({std::string(file.name), std::string(file.path), std::string(file.text)}, message);
    for (const std::string& alias : message.alias()) {
      if (normalized(alias) == name) return std::string(file.name);
      names.push_back(alias);
    }
  }
  throw InputError({flag}, "found \"" + wanted + "\", wanted a catalog name (stepsim list) or a .textproto file" + suggestion(name, names));
}

template <class Message>
Source open(std::span<const EmbeddedFile> files, const std::string& name_or_file, const char* flag) {
  if (is_file(name_or_file)) {
    return {stem(name_or_file), name_or_file, read_text_file(name_or_file)};
  }
  const std::string name = find_name<Message>(files, name_or_file, flag);
  for (const EmbeddedFile& file : files) {
    if (file.name == name) return {name, std::string(file.path), std::string(file.text)};
  }
  check_failed("catalog file", __FILE__, __LINE__);
}

bool has_roofline(const files::GemmFit& gemm) { return gemm.has_fixed() || gemm.has_compute() || gemm.has_memory(); }

// Parts that a file gives whole: a list of its own replaces the base's.
void replace_parts(files::Machine& base, const files::Machine& message) {
  base.clear_alias();
  if (message.has_peak()) base.clear_peak();
  if (message.attention_size() > 0) base.clear_attention();
  if (has_roofline(message.gemm()) || message.has_gemm_tile()) base.clear_gemm_tile();
}
void forget_host_memory_limits(files::Cluster& cluster) {
  cluster.clear_host_memory_read();
  cluster.clear_host_memory_write();
}
void replace_parts(files::Cluster& base, const files::Cluster& message) {
  base.clear_alias();
  if (message.has_host_memory_bandwidth()) forget_host_memory_limits(base);
}

// The message of a file with what its bases say in the places where it is silent. Bases are catalog names.
template <class Message>
Message with_bases(std::span<const EmbeddedFile> files, const Source& source, const char* flag, int depth) {
  Message message;
  read_file(source, message);
  if (!message.has_base()) return message;
  const SourceLocation place = locate_field(source.text, source.path, "base");
  if (depth > 8) throw InputError(place, "found a base of a base of a base, wanted at most 8 levels");
  if (is_file(message.base())) throw InputError(place, "found \"" + message.base() + "\", wanted a catalog name");
  Source base_source;
  try {
    base_source = open<Message>(files, message.base(), flag);
  } catch (const InputError& error) {
    const std::string what = error.what();
    throw InputError(place, what.substr(what.find("found ")));
  }
  Message base = with_bases<Message>(files, base_source, flag, depth + 1);
  replace_parts(base, message);
  base.MergeFrom(message);
  return base;
}

template <class Message>
struct Loaded {
  Source source;
  Message message;
  std::vector<std::string> overridden;
};

template <class Message>
Loaded<Message> load(std::span<const EmbeddedFile> files, const std::string& name_or_file, FieldValues overrides, const char* flag) {
  Loaded<Message> loaded;
  loaded.source = open<Message>(files, name_or_file, flag);
  loaded.message = with_bases<Message>(files, loaded.source, flag, 0);
  for (const auto& [path, value] : overrides) {
    set_field(loaded.message, path, value, "--set");
    loaded.overridden.push_back(path);
  }
  return loaded;
}

template <class Value>
std::optional<Value> given(bool has, const Value& value) {
  return has ? std::optional<Value>(value) : std::nullopt;
}

void read_peak(const files::Peak& peak, const FieldReader& reader, GpuSpec& gpu) {
  const auto add = [&](const char* name, const std::optional<std::string>& value) {
    if (value) gpu.peak_tflops[name] = reader.flops(std::string("peak.") + name, value).value * 1e-12;
  };
  add("bf16", given(peak.has_bf16(), peak.bf16()));
  add("fp16", given(peak.has_fp16(), peak.fp16()));
  add("fp8", given(peak.has_fp8(), peak.fp8()));
  add("fp4", given(peak.has_fp4(), peak.fp4()));
  add("tf32", given(peak.has_tf32(), peak.tf32()));
  add("fp32", given(peak.has_fp32(), peak.fp32()));
  if (gpu.peak_tflops.empty()) reader.fail("peak", "found none, wanted at least one dtype such as bf16: \"989 TFLOP/s\"");
}

AttentionFit attention_fit(const files::AttentionFit& fit, const std::string& path, const FieldReader& reader) {
  AttentionFit result;
  if (!fit.has_kernel() || fit.kernel() == files::UNKNOWN)
    reader.fail(path + ".kernel", "found none, wanted FLASH2, FLASH3, CUDNN or TENSORRT");
  result.kernel = static_cast<std::int8_t>(fit.kernel() - files::FLASH2);
  result.fixed = reader.duration(path + ".fixed", given(fit.has_fixed(), fit.fixed()));
  result.memory = reader.number(path + ".memory", given(fit.has_memory(), fit.memory()), 0, 1);
  for (int i = 0; i < fit.rate_size(); ++i) {
    const files::AttentionRate& rate = fit.rate(i);
    const std::string at = path + ".rate[" + std::to_string(i) + "].";
    const auto fraction = [&](const char* field, std::optional<double> value) { return reader.number(at + field, value, 0, 1); };
    const auto length = [&](const char* field, std::optional<double> value) { return reader.number(at + field, value, -1e-9, 1e6); };
    result.rates.push_back(
        {.head_dim = reader.count(at + "head_dim", given(rate.has_head_dim(), rate.head_dim())),
         .causal = rate.causal(),
         .forward = fraction("forward", given(rate.has_forward(), rate.forward())),
         .forward_half_length = length("forward_half_length", given(rate.has_forward_half_length(), rate.forward_half_length())),
         .backward = fraction("backward", given(rate.has_backward(), rate.backward())),
         .backward_half_length = length("backward_half_length", given(rate.has_backward_half_length(), rate.backward_half_length()))});
  }
  std::stable_sort(result.rates.begin(), result.rates.end(), [](const AttentionRate& a, const AttentionRate& b) {
    return a.causal != b.causal ? a.causal < b.causal : a.head_dim < b.head_dim;
  });
  if (result.rates.empty()) reader.fail(path + ".rate", "found none, wanted at least one");
  return result;
}

CollectiveFit collective_fit(const files::CollectiveFit& fit, const std::string& path, const FieldReader& reader) {
  return {.fixed = reader.duration(path + ".fixed", given(fit.has_fixed(), fit.fixed())),
          .per_rank = reader.duration(path + ".per_rank", given(fit.has_per_rank(), fit.per_rank())),
          .bus = reader.number(path + ".bus", given(fit.has_bus(), fit.bus()), 0, 1),
          .small_group = reader.number(path + ".small_group", given(fit.has_small_group(), fit.small_group()), -1e-9, 1.9),
          .pipeline = reader.duration(path + ".pipeline", given(fit.has_pipeline(), fit.pipeline()))};
}

void read_collectives(const files::CollectiveFits& fits, const FieldReader& reader, KernelFit& fit) {
  fit.all_reduce = collective_fit(fits.all_reduce(), "collectives.all_reduce", reader);
  fit.gather = collective_fit(fits.gather(), "collectives.gather", reader);
  fit.all_to_all = collective_fit(fits.all_to_all(), "collectives.all_to_all", reader);
  fit.collective_sms = reader.number("collectives.sm_load", given(fits.has_sm_load(), fits.sm_load()), 0, 1);
  fit.send_channels = reader.count("collectives.send_channels", given(fits.has_send_channels(), fits.send_channels()));
  fit.network_hop = reader.duration("collectives.network_hop", given(fits.has_network_hop(), fits.network_hop()));
}

GemmTileFit gemm_tile_fit(const files::GemmTile& tile, const FieldReader& reader) {
  constexpr double kMostSlowdown = 4;
  return {.fixed = reader.duration("gemm_tile.fixed", given(tile.has_fixed(), tile.fixed())),
          .compute = reader.number("gemm_tile.compute", given(tile.has_compute(), tile.compute()), 0, 1),
          .memory = reader.number("gemm_tile.memory", given(tile.has_memory(), tile.memory()), 0, 1),
          .feed = reader.rate("gemm_tile.feed", given(tile.has_feed(), tile.feed())),
          .waves = reader.number("gemm_tile.waves", given(tile.has_waves(), tile.waves()), -1e-9, 1),
          .weight_gradient =
              tile.has_weight_gradient() ? reader.number("gemm_tile.weight_gradient", tile.weight_gradient(), 0, kMostSlowdown) : 1};
}

KernelFit kernel_fit(const files::Machine& machine, const FieldReader& reader) {
  KernelFit fit;
  const files::GemmFit& gemm = machine.gemm();
  fit.gemm_fixed = reader.duration("gemm.fixed", given(gemm.has_fixed(), gemm.fixed()));
  fit.gemm_compute = reader.number("gemm.compute", given(gemm.has_compute(), gemm.compute()), 0, 1);
  fit.gemm_memory = reader.number("gemm.memory", given(gemm.has_memory(), gemm.memory()), 0, 1);
  fit.gemm_compute_fp8 = gemm.has_compute_fp8() ? reader.number("gemm.compute_fp8", gemm.compute_fp8(), 0, 1) : fit.gemm_compute;
  fit.gemm_compute_fp32 = gemm.has_compute_fp32() ? reader.number("gemm.compute_fp32", gemm.compute_fp32(), 0, 1) : fit.gemm_compute;
  for (int i = 0; i < machine.attention_size(); ++i) {
    fit.attention.push_back(attention_fit(machine.attention(i), "attention[" + std::to_string(i) + "]", reader));
  }
  if (fit.attention.empty()) reader.fail("attention", "found none, wanted at least one kernel");
  const files::MemoryFit& memory = machine.memory_kernels();
  fit.memory_fixed = reader.duration("memory_kernels.fixed", given(memory.has_fixed(), memory.fixed()));
  fit.memory_fused = reader.number("memory_kernels.fused", given(memory.has_fused(), memory.fused()), 0, 1);
  fit.memory_norm = reader.number("memory_kernels.norm", given(memory.has_norm(), memory.norm()), 0, 1);
  fit.memory_softmax = reader.number("memory_kernels.softmax", given(memory.has_softmax(), memory.softmax()), 0, 1);
  fit.memory_unfused = reader.number("memory_kernels.unfused", given(memory.has_unfused(), memory.unfused()), 0, 1);
  fit.memory_gather = reader.number("memory_kernels.gather", given(memory.has_gather(), memory.gather()), 0, 1);
  if (machine.has_gemm_tile()) fit.gemm_tile = gemm_tile_fit(machine.gemm_tile(), reader);
  read_collectives(machine.collectives(), reader, fit);
  fit.kernel_issue = reader.duration("kernel_issue", given(machine.has_kernel_issue(), machine.kernel_issue()));
  fit.copy_issue = reader.duration("copy_issue", given(machine.has_copy_issue(), machine.copy_issue()));
  fit.copy_fixed = reader.duration("copy_fixed", given(machine.has_copy_fixed(), machine.copy_fixed()));
  fit.pinned_allocation = reader.duration("pinned_allocation", given(machine.has_pinned_allocation(), machine.pinned_allocation()));
  fit.pageable = reader.number("pageable", given(machine.has_pageable(), machine.pageable()), 0, 1);
  return fit;
}

void read_links(const files::Machine& machine, const FieldReader& reader, GpuSpec& gpu) {
  gpu.host_to_device = reader.rate("host_to_device", given(machine.has_host_to_device(), machine.host_to_device()));
  gpu.device_to_host = reader.rate("device_to_host", given(machine.has_device_to_host(), machine.device_to_host()));
  if (machine.has_both_host_to_device() || machine.has_both_device_to_host()) {
    gpu.both_host_to_device = reader.rate("both_host_to_device", given(machine.has_both_host_to_device(), machine.both_host_to_device()));
    gpu.both_device_to_host = reader.rate("both_device_to_host", given(machine.has_both_device_to_host(), machine.both_device_to_host()));
  }
  if (machine.has_large_copy()) {
    const files::LargeCopy& large = machine.large_copy();
    const auto rate = [&](const char* field, bool has, const std::string& text) {
      return reader.rate(std::string("large_copy.") + field, given(has, text));
    };
    gpu.large_copy = {.beyond = reader.bytes("large_copy.beyond", given(large.has_beyond(), large.beyond())),
                      .host_to_device = rate("host_to_device", large.has_host_to_device(), large.host_to_device()),
                      .device_to_host = rate("device_to_host", large.has_device_to_host(), large.device_to_host())};
  }
  if (machine.nvlink_per_direction() != "none") {
    gpu.nvlink_per_direction =
        reader.rate("nvlink_per_direction", given(machine.has_nvlink_per_direction(), machine.nvlink_per_direction()));
  }
}

// Loads carry the GPUs that share something in 16 bits.
std::int32_t sharing_gpus(const std::string& path, std::optional<std::int32_t> value, const FieldReader& reader) {
  constexpr std::int32_t kMost = 1024;
  const std::int32_t gpus = reader.count(path, value);
  if (gpus > kMost) reader.fail(path, "found " + std::to_string(gpus) + ", wanted the GPUs of a socket, at most 1024");
  return gpus;
}

RootPort root_port(const files::RootPort& port, const FieldReader& reader) {
  const auto rate = [&](const char* field, bool has, const std::string& text) {
    return reader.rate(std::string("root_port.") + field, given(has, text));
  };
  RootPort result{.gpus = sharing_gpus("root_port.gpus", given(port.has_gpus(), port.gpus()), reader),
                  .host_to_device = rate("host_to_device", port.has_host_to_device(), port.host_to_device()),
                  .device_to_host = rate("device_to_host", port.has_device_to_host(), port.device_to_host()),
                  .both_host_to_device = {},
                  .both_device_to_host = {}};
  if (port.has_both_host_to_device() || port.has_both_device_to_host()) {
    result.both_host_to_device = rate("both_host_to_device", port.has_both_host_to_device(), port.both_host_to_device());
    result.both_device_to_host = rate("both_device_to_host", port.has_both_device_to_host(), port.both_device_to_host());
  }
  return result;
}

void read_host_side(const files::Cluster& message, const FieldReader& reader, ClusterSpec& cluster) {
  cluster.host_memory = reader.bytes("host_memory", given(message.has_host_memory(), message.host_memory()));
  cluster.gpus_per_host_memory =
      sharing_gpus("gpus_per_host_memory", given(message.has_gpus_per_host_memory(), message.gpus_per_host_memory()), reader);
  cluster.host_memory_bandwidth =
      reader.rate("host_memory_bandwidth", given(message.has_host_memory_bandwidth(), message.host_memory_bandwidth()));
  if (message.has_host_memory_read()) cluster.host_memory_read = reader.rate("host_memory_read", message.host_memory_read());
  if (message.has_host_memory_write()) cluster.host_memory_write = reader.rate("host_memory_write", message.host_memory_write());
  if (message.has_root_port()) cluster.root_port = root_port(message.root_port(), reader);
}

}  // namespace

GpuSpec load_gpu(const std::string& name_or_file, FieldValues overrides) {
  const auto loaded = load<files::Machine>(machine_files(), name_or_file, overrides, "--hardware");
  files::Machine machine = loaded.message;
  // A user who states the efficiency of matrix products means it for all shapes, as roofline3 does.
  const auto& paths = loaded.overridden;
  const bool states_roofline = std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
    return path == "gemm.fixed" || path == "gemm.compute" || path == "gemm.memory";
  });
  const bool states_tile =
      std::any_of(paths.begin(), paths.end(), [](const std::string& path) { return path.rfind("gemm_tile.", 0) == 0; });
  if (states_roofline && !states_tile) machine.clear_gemm_tile();
  const FieldReader reader(loaded.source.text, loaded.source.path, loaded.overridden);
  GpuSpec gpu;
  gpu.name = loaded.source.name;
  gpu.aliases.assign(machine.alias().begin(), machine.alias().end());
  read_peak(machine.peak(), reader, gpu);
  gpu.sparse_factor = reader.number("sparse_factor", given(machine.has_sparse_factor(), machine.sparse_factor()), 0, 8);
  gpu.hbm = reader.rate("hbm", given(machine.has_hbm(), machine.hbm()));
  gpu.memory = reader.bytes("memory", given(machine.has_memory(), machine.memory()));
  gpu.sms = reader.count("sms", given(machine.has_sms(), machine.sms()));
  gpu.compute_capability = reader.count("compute_capability", given(machine.has_compute_capability(), machine.compute_capability()));
  read_links(machine, reader, gpu);
  gpu.host_link = machine.host_link();
  gpu.library_workspace = reader.bytes("library_workspace", given(machine.has_library_workspace(), machine.library_workspace()));
  gpu.fit = kernel_fit(machine, reader);
  gpu.usual_cluster = machine.usual_cluster();
  gpu.assumptions.assign(machine.assumption().begin(), machine.assumption().end());
  return gpu;
}

ClusterSpec load_cluster(const std::string& name_or_file, FieldValues overrides) {
  const auto loaded = load<files::Cluster>(cluster_files(), name_or_file, overrides, "--cluster");
  files::Cluster message = loaded.message;
  const auto overridden = [&](const char* path) {
    return std::find(loaded.overridden.begin(), loaded.overridden.end(), path) != loaded.overridden.end();
  };
  // A user who states one bandwidth does not mean the catalog's limits of each direction.
  if (overridden("host_memory_bandwidth") && !overridden("host_memory_read") && !overridden("host_memory_write")) {
    forget_host_memory_limits(message);
  }
  const FieldReader reader(loaded.source.text, loaded.source.path, loaded.overridden);
  ClusterSpec cluster;
  cluster.name = loaded.source.name;
  cluster.aliases.assign(message.alias().begin(), message.alias().end());
  cluster.gpus_per_node = reader.count("gpus_per_node", given(message.has_gpus_per_node(), message.gpus_per_node()));
  cluster.nvlink_domain = reader.count("nvlink_domain", given(message.has_nvlink_domain(), message.nvlink_domain()));
  cluster.network_per_gpu = reader.rate("network_per_gpu", given(message.has_network_per_gpu(), message.network_per_gpu()));
  cluster.network_efficiency =
      reader.number("network_efficiency", given(message.has_network_efficiency(), message.network_efficiency()), 0, 1);
  read_host_side(message, reader, cluster);
  cluster.assumptions.assign(message.assumption().begin(), message.assumption().end());
  return cluster;
}

ClusterSpec usual_cluster(const GpuSpec& gpu) {
  if (gpu.usual_cluster.empty()) throw InputError({"--cluster"}, "found none, wanted one: " + gpu.name + " names no usual cluster");
  return load_cluster(gpu.usual_cluster);
}

static std::vector<std::string> names(std::span<const EmbeddedFile> files) {
  std::vector<std::string> result;
  for (const EmbeddedFile& file : files) result.emplace_back(file.name);
  return result;
}

std::vector<std::string> gpu_names() { return names(machine_files()); }
std::vector<std::string> cluster_names() { return names(cluster_files()); }

}  // namespace stepsim
