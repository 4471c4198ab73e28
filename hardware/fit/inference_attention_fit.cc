#include "hardware/fit/inference_attention_fit.h"

#include <set>
#include <utility>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/measured_table.h"
#include "hardware/kernel_cost.h"

namespace stepsim {

namespace {

constexpr std::int8_t kTensorRt = 3;

struct Row {
  Attention work;
  double measured_s = 0;
  bool held_out = false;
};

int log2_of(std::int64_t value) {
  int log = 0;
  for (; value > 1; value /= 2) ++log;
  return log;
}

std::vector<Row> rows_of(const MeasuredTable& table) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::int64_t length = table.integer(i, "seq"), head_dim = table.integer(i, "head_dim"), batch = table.integer(i, "batch");
    if (table.at(i, "dtype") != "bf16" || length < 512 || head_dim > 256) continue;
    rows.push_back({.work = {.batch = batch,
                             .heads = table.integer(i, "heads"),
                             .kv_heads = table.integer(i, "kv_heads"),
                             .queries = length,
                             .keys = length,
                             .head_dim = head_dim,
                             .causal = table.integer(i, "causal") == 1,
                             .kernel = kTensorRt},
                    .measured_s = table.number(i, "latency_us") * 1e-6,
                    .held_out = (log2_of(batch) + log2_of(length)) % 2 == 1});
  }
  return rows;
}

std::vector<std::int32_t> head_dims(const std::vector<Row>& rows, bool causal) {
  std::set<std::int32_t> dims;
  for (const Row& row : rows) {
    if (row.work.causal == causal) dims.insert(static_cast<std::int32_t>(row.work.head_dim));
  }
  return {dims.begin(), dims.end()};
}

double simulated_s(const GpuSpec& gpu, const Attention& work) {
  const DeviceCost cost = attention_cost(gpu, work);
  return seconds(cost.fixed + cost.alone);
}

double half_length(const AttentionFit& fit, bool causal) {
  for (const AttentionRate& rate : fit.rates) {
    if (rate.causal == causal) return rate.forward_half_length;
  }
  return 0;
}

AttentionRate inference_rate(std::int32_t head_dim, bool causal, double efficiency, double half) {
  constexpr double kBackward = 0.87;  // backward over forward: kernels.md 2.2
  return {.head_dim = head_dim,
          .causal = causal,
          .forward = efficiency,
          .forward_half_length = half,
          .backward = kBackward * efficiency,
          .backward_half_length = half};
}

// S0 of the mask and e of each of its head dimensions; for causal rows the fixed part and the memory fraction first.
AttentionFit constants(AttentionFit fit, const std::vector<std::int32_t>& dims, bool causal, const std::vector<double>& x) {
  std::size_t next = 0;
  if (causal) {
    fit.fixed = op_duration(not_negative(x[next++]) * 1e-6);
    fit.memory = bounded(x[next++], 1);
  }
  const double half = not_negative(x[next++]);
  for (const std::int32_t head_dim : dims) fit.rates.push_back(inference_rate(head_dim, causal, bounded(x[next++], 1), half));
  return fit;
}

// Adds the rates of one mask to `fit`.
AttentionFit fit_mask(GpuSpec& gpu, const AttentionFit& fit, const std::vector<Row>& rows, bool causal) {
  const std::vector<std::int32_t> dims = head_dims(rows, causal);
  if (dims.empty()) return fit;
  const auto residuals = [&](const std::vector<double>& x) {
    gpu.fit.attention = {constants(fit, dims, causal, x)};
    std::vector<double> logs;
    for (const Row& row : rows) {
      if (row.work.causal == causal && !row.held_out) logs.push_back(std::log(simulated_s(gpu, row.work) / row.measured_s));
    }
    return logs;
  };
  std::vector<double> start;  // ordinary values: 20 us, 0.25 of memory bandwidth, 300 or 1000 keys, half of the peak
  if (causal) start = {not_negative_parameter(20), bounded_parameter(0.25, 1)};
  start.push_back(not_negative_parameter(causal ? 1000 : 300));
  start.resize(start.size() + dims.size(), bounded_parameter(0.5, 1));
  return constants(fit, dims, causal, fitted_parameters(residuals, start, Loss::kAbsolute));
}

// Causal rows first: there are more, and they carry the cache write. Head dimensions without full rows take the rate of causal ones.
AttentionFit fit_gpu(GpuSpec& gpu, const std::vector<Row>& rows) {
  const AttentionFit causal = fit_mask(gpu, {.kernel = kTensorRt, .fixed = {}, .memory = 0, .rates = {}}, rows, true);
  AttentionFit fit = fit_mask(gpu, causal, rows, false);
  const std::vector<std::int32_t> measured = head_dims(rows, false);
  const double half = half_length(fit, measured.empty());
  for (const AttentionRate& rate : causal.rates) {
    if (std::find(measured.begin(), measured.end(), rate.head_dim) != measured.end()) continue;
    fit.rates.push_back(inference_rate(rate.head_dim, false, rate.forward, half));
  }
  std::sort(fit.rates.begin(), fit.rates.end(), [](const AttentionRate& a, const AttentionRate& b) {
    return std::pair(a.causal, a.head_dim) < std::pair(b.causal, b.head_dim);
  });
  gpu.fit.attention = {fit};
  return fit;
}

std::vector<std::string> sources(const AttentionFit& fit, const std::vector<Row>& rows, const std::string& file) {
  const std::vector<std::int32_t> full = head_dims(rows, false);
  std::vector<std::string> all;
  for (const AttentionRate& rate : fit.rates) {
    const bool measured = rate.causal || std::find(full.begin(), full.end(), rate.head_dim) != full.end();
    all.push_back("hardware/fit, " + file + (measured ? "" : "; rate of causal rows") + "; backward 0.87 of forward (kernels.md 2.2)");
  }
  return all;
}

}  // namespace

std::optional<AttentionFits> fit_inference_attention(const std::string& data) {
  const std::pair<const char*, const char*> gpus[] = {{"A100-SXM4-80GB", "a100-sxm-80gb"},
                                                      {"H100-SXM", "h100-sxm-80gb"},
                                                      {"H200-SXM", "h200-sxm-141gb"},
                                                      {"B200-SXM", "b200"},
                                                      {"GB200", "gb200-nvl72"},
                                                      {"B300-SXM", "b300"},
                                                      {"GB300", "gb300-nvl72"}};
  AttentionFits fits;
  for (const auto& [name, machine] : gpus) {
    const std::string file = std::string("kernels/attn_aic_") + name + ".csv";
    const auto table = read_measured_table(data + "/" + file);
    if (!table) return std::nullopt;
    const std::vector<Row> rows = rows_of(*table);
    GpuSpec gpu = load_gpu(name);
    const AttentionFit fit = fit_gpu(gpu, rows);
    fits.kernels.push_back({.machines = {machine}, .fit = fit, .sources = sources(fit, rows, file)});
    for (const bool causal : {false, true}) {
      FitErrors errors{.group = std::string(name) + (causal ? " causal" : " full"), .fitted = {}, .held_out = {}};
      for (const Row& row : rows) {
        if (row.work.causal != causal || row.work.keys < 2048) continue;
        (row.held_out ? errors.held_out : errors.fitted).push_back(simulated_s(gpu, row.work) / row.measured_s - 1);
      }
      if (!errors.fitted.empty()) fits.errors.push_back(errors);
    }
  }
  return fits;
}

}  // namespace stepsim
