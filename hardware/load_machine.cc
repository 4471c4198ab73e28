// The catalog and the user's machine and cluster files: text -> message -> checked GpuSpec or ClusterSpec.
#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "hardware/catalog_source.h"
#include "hardware/field_reader.h"
#include "hardware/machine.pb.h"
#include "hardware/machine_spec.h"
#include "hardware/machine_text.h"
#include "schema/embedded_files.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> machine_files();
std::span<const EmbeddedFile> cluster_files();

namespace {

template <class Message>
std::vector<std::string> aliases_of(const CatalogSource& source) {
  Message message;
  read_source(source, message);
  return {message.alias().begin(), message.alias().end()};
}

bool has_roofline(const files::GemmFit& gemm) { return gemm.has_fixed() || gemm.has_compute() || gemm.has_memory(); }

// Parts that a file gives whole: a list of its own replaces the base's.
void replace_parts(files::Machine& base, const files::Machine& message) {
  base.clear_alias();
  base.clear_fit();
  if (message.has_peak()) base.clear_peak();
  if (message.attention_size() > 0) base.clear_attention();
  if (message.expert_exchange_size() > 0) base.clear_expert_exchange();
  if (has_roofline(message.gemm()) || message.has_gemm_tile()) base.clear_gemm_tile();
  const auto whole = [](const files::CollectiveFit& fit) { return fit.has_fixed() && fit.has_bus(); };
  const files::CollectiveFits& collectives = message.collectives();
  if (whole(collectives.all_reduce())) base.mutable_collectives()->clear_all_reduce();
  if (whole(collectives.gather())) base.mutable_collectives()->clear_gather();
  if (whole(collectives.all_to_all())) base.mutable_collectives()->clear_all_to_all();
}
void forget_host_memory_limits(files::Cluster& cluster) {
  cluster.clear_host_memory_read();
  cluster.clear_host_memory_write();
}
void replace_parts(files::Cluster& base, const files::Cluster& message) {
  base.clear_alias();
  if (message.has_network_per_gpu()) base.clear_network_per_node();
  if (message.has_network_per_node()) base.clear_network_per_gpu();
  if (message.has_host_memory_bandwidth()) forget_host_memory_limits(base);
}

// The message of a file with what its bases say in the places where it is silent. Bases are catalog names.
template <class Message>
Message with_bases(std::span<const EmbeddedFile> files, const CatalogSource& source, const char* flag, int depth) {
  Message message;
  read_source(source, message);
  if (!message.has_base()) return message;
  const SourceLocation place = locate_field(source.text, source.path, "base");
  if (depth > 8) throw InputError(place, "found a base of a base of a base, wanted at most 8 levels");
  if (is_catalog_file(message.base())) throw InputError(place, "found \"" + message.base() + "\", wanted a catalog name");
  CatalogSource base_source;
  try {
    base_source = open_source(files, message.base(), flag, aliases_of<Message>);
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
  CatalogSource source;
  Message message;
  std::vector<std::string> overridden;
};

template <class Message>
Loaded<Message> load(std::span<const EmbeddedFile> files, const std::string& name_or_file, FieldValues overrides, const char* flag) {
  Loaded<Message> loaded;
  loaded.source = open_source(files, name_or_file, flag, aliases_of<Message>);
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
    reader.fail(path + ".kernel", "found none, wanted FLASH1_TRITON, FLASH2, FLASH3, FLASH4, CUDNN or TENSORRT");
  result.kernel = static_cast<std::int8_t>(fit.kernel() - files::FLASH2);
  result.fixed = reader.duration(path + ".fixed", given(fit.has_fixed(), fit.fixed()));
  result.memory = reader.number(path + ".memory", given(fit.has_memory(), fit.memory()), 0, 1);
  result.low = fit.low();
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
  CollectiveFit result{.fixed = reader.duration(path + ".fixed", given(fit.has_fixed(), fit.fixed())),
                       .per_rank = reader.duration(path + ".per_rank", given(fit.has_per_rank(), fit.per_rank())),
                       .bus = reader.number(path + ".bus", given(fit.has_bus(), fit.bus()), 0, 1),
                       .small_group = reader.number(path + ".small_group", given(fit.has_small_group(), fit.small_group()), -1e-9, 1),
                       .pipeline = reader.duration(path + ".pipeline", given(fit.has_pipeline(), fit.pipeline()))};
  if (!fit.has_quick_bus()) return result;
  result.quick_fixed = reader.duration(path + ".quick_fixed", given(fit.has_quick_fixed(), fit.quick_fixed()));
  result.quick_per_rank = reader.duration(path + ".quick_per_rank", given(fit.has_quick_per_rank(), fit.quick_per_rank()));
  result.quick_bus = reader.number(path + ".quick_bus", fit.quick_bus(), 0, 1);
  return result;
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

ExpertExchange expert_exchange(const files::ExpertExchange& exchange, const std::string& path, const FieldReader& reader) {
  ExpertExchange result;
  if (exchange.library() != "deep-ep" && exchange.library() != "hybrid-ep") {
    reader.fail(path + ".library", "found \"" + exchange.library() + "\", wanted deep-ep or hybrid-ep");
  }
  result.library = exchange.library() == "deep-ep" ? CollectiveLibrary::kDeepEp : CollectiveLibrary::kHybridEp;
  result.fixed = reader.duration(path + ".fixed", given(exchange.has_fixed(), exchange.fixed()));
  result.sms = reader.count(path + ".sms", given(exchange.has_sms(), exchange.sms()));
  for (int i = 0; i < exchange.rate_size(); ++i) {
    const files::ExpertRate& rate = exchange.rate(i);
    const std::string at = path + ".rate[" + std::to_string(i) + "].";
    result.rates.push_back({.ranks = reader.count(at + "ranks", given(rate.has_ranks(), rate.ranks())),
                            .dispatch = reader.rate(at + "dispatch", given(rate.has_dispatch(), rate.dispatch())),
                            .combine = reader.rate(at + "combine", given(rate.has_combine(), rate.combine()))});
  }
  if (result.rates.empty()) reader.fail(path + ".rate", "found none, wanted at least one");
  std::stable_sort(result.rates.begin(), result.rates.end(), [](const ExpertRate& a, const ExpertRate& b) { return a.ranks < b.ranks; });
  return result;
}

// Of the file itself, not of its bases: what they were fitted on says nothing of another machine.
std::vector<FitRecord> fit_records(const files::Machine& own, const FieldReader& reader) {
  std::vector<FitRecord> records;
  for (int i = 0; i < own.fit_size(); ++i) {
    const files::FitRecord& record = own.fit(i);
    const std::string at = "fit[" + std::to_string(i) + "].";
    constexpr double kMostError = 10;
    const auto fraction = [&](const char* field, bool has, double value) {
      return has ? reader.number(at + field, value, -kMostError, kMostError) : 0;
    };
    static const std::string classes[] = {"gemm", "attention", "memory", "collective"};
    if (std::find(std::begin(classes), std::end(classes), record.op_class()) == std::end(classes)) {
      reader.fail(at + "op_class", "found \"" + record.op_class() + "\", wanted gemm, attention, memory or collective");
    }
    static const std::string parts[] = {"", "weight-gradient", "inference", "fp32", "elementwise"};
    if (std::find(std::begin(parts), std::end(parts), record.part()) == std::end(parts)) {
      reader.fail(at + "part", "found \"" + record.part() + "\", wanted weight-gradient, inference, fp32, elementwise or none");
    }
    records.push_back({.op_class = record.op_class(),
                       .data = record.data(),
                       .conditions = record.conditions(),
                       .part = record.part(),
                       .fitted_rows = record.fitted_rows(),
                       .held_out_rows = record.held_out_rows(),
                       .fitted_error = fraction("fitted_error", record.has_fitted_error(), record.fitted_error()),
                       .held_out_error = fraction("held_out_error", record.has_held_out_error(), record.held_out_error()),
                       .held_out_bias = fraction("held_out_bias", record.has_held_out_bias(), record.held_out_bias())});
  }
  return records;
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
  constexpr double kQuantize = 0.70;  // kernels of Transformer Engine on B200 and B300: accuracy.md C.3
  fit.memory_quantize = memory.has_quantize() ? reader.number("memory_kernels.quantize", memory.quantize(), 0, 1) : kQuantize;
  fit.memory_top_k = memory.has_top_k() ? reader.number("memory_kernels.top_k", memory.top_k(), 0, 1) : fit.memory_softmax;
  if (machine.has_gemm_tile()) fit.gemm_tile = gemm_tile_fit(machine.gemm_tile(), reader);
  read_collectives(machine.collectives(), reader, fit);
  for (int i = 0; i < machine.expert_exchange_size(); ++i) {
    fit.expert_exchanges.push_back(expert_exchange(machine.expert_exchange(i), "expert_exchange[" + std::to_string(i) + "]", reader));
  }
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

// A node's NICs are shared by what its GPUs do at once. Every GPU of a node runs the same program, so each has its part of them whatever
// the groups: with `t` rings of a stride of t through a node, each ring has 1 / t of the NICs over its gpus / t members.
BytesPerSecond network_per_gpu(const files::Cluster& message, std::int32_t gpus_per_node, const FieldReader& reader) {
  if (!message.has_network_per_node()) {
    return reader.rate("network_per_gpu", given(message.has_network_per_gpu(), message.network_per_gpu()));
  }
  if (message.has_network_per_gpu()) {
    reader.fail("network_per_node", "found \"" + message.network_per_node() + "\" beside network_per_gpu, wanted one of them");
  }
  const BytesPerSecond node = reader.rate("network_per_node", message.network_per_node());
  return BytesPerSecond(node.value / gpus_per_node);
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

static GpuSpec gpu_spec(const Loaded<files::Machine>& loaded) {
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
  gpu.blas_workspace = reader.bytes("blas_workspace", given(machine.has_blas_workspace(), machine.blas_workspace()));
  gpu.engine_workspace = reader.bytes("engine_workspace", given(machine.has_engine_workspace(), machine.engine_workspace()));
  gpu.fit = kernel_fit(machine, reader);
  gpu.fits = fit_records(machine, reader);
  gpu.usual_cluster = machine.usual_cluster();
  gpu.assumptions.assign(machine.assumption().begin(), machine.assumption().end());
  return gpu;
}

GpuSpec load_gpu(const std::string& name_or_file, FieldValues overrides) {
  return gpu_spec(load<files::Machine>(machine_files(), name_or_file, overrides, "--hardware"));
}

GpuSpec gpu_from_text(const std::string& name, const std::string& file, const std::string& text) {
  const CatalogSource source{name, file, text};
  return gpu_spec({source, with_bases<files::Machine>(machine_files(), source, "--hardware", 0), {}});
}

std::string machine_fields_text(FieldValues facts) {
  files::Machine machine;
  for (const auto& [path, value] : facts) set_field(machine, path, value, "--set");
  std::string text;
  STEPSIM_CHECK(google::protobuf::TextFormat::PrintToString(machine, &text));
  return text;
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
  if (overridden("network_per_gpu") && !overridden("network_per_node")) message.clear_network_per_node();
  if (overridden("network_per_node") && !overridden("network_per_gpu")) message.clear_network_per_gpu();
  const FieldReader reader(loaded.source.text, loaded.source.path, loaded.overridden);
  ClusterSpec cluster;
  cluster.name = loaded.source.name;
  cluster.aliases.assign(message.alias().begin(), message.alias().end());
  cluster.gpus_per_node = reader.count("gpus_per_node", given(message.has_gpus_per_node(), message.gpus_per_node()));
  cluster.nvlink_domain = reader.count("nvlink_domain", given(message.has_nvlink_domain(), message.nvlink_domain()));
  cluster.network_per_gpu = network_per_gpu(message, cluster.gpus_per_node, reader);
  if (message.has_segment()) {
    cluster.segment = reader.count("segment", message.segment());
    if (cluster.segment > cluster.nvlink_domain) {
      reader.fail("segment", fmt::format("found {}, wanted at most the {} GPUs of the domain", cluster.segment, cluster.nvlink_domain));
    }
  }
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

std::vector<std::string> gpu_names() { return catalog_names(machine_files()); }
std::vector<std::string> cluster_names() { return catalog_names(cluster_files()); }

}  // namespace stepsim
