#include "hardware/fit/flash_attention_fit.h"

#include <map>
#include <numeric>
#include <set>

#include "hardware/fit/curve_fit.h"
#include "hardware/fit/measured_table.h"
#include "hardware/kernel_cost.h"
#include "sim/check.h"

namespace stepsim {

namespace {

enum class Pass { kForward, kBackward, kBoth };

struct Kernel {
  const char* gpu;  // as the tables name it
  const char* implementation;
  std::int8_t kernel;  // Attention::kernel
  std::vector<std::int32_t> head_dims;
  std::vector<std::string> machines;
};

// FlashAttention-4 stands for every training kernel of Blackwell; its machines A and B are known by peak only.
std::vector<Kernel> kernels() {
  const std::vector<std::string> hopper = {"h100-sxm-80gb", "h200-sxm-141gb"};
  return {{"A100-SXM4-80GB", "FA2", 0, {64, 128}, {"a100-sxm-80gb"}},
          {"H100-SXM", "FA2", 0, {64, 128, 256}, hopper},
          {"H100-SXM", "FA3", 1, {64, 128, 256}, hopper},
          {"H100-SXM", "cuDNN", 2, {64, 128, 256}, hopper},
          {"PR2605-machine-B(peak 2250)", "FA4", 2, {64, 128}, {"b200", "gb200-nvl72"}},
          {"PR2605-machine-A(peak 2500)", "FA4", 2, {64, 128}, {"b300", "gb300-nvl72"}}};
}

struct Row {
  Attention work;
  Pass pass = Pass::kForward;
  double measured_s = 0;
  bool held_out = true;  // until a fit takes it
};

Pass pass_of(const std::string& name) { return name == "fwd" ? Pass::kForward : name == "bwd" ? Pass::kBackward : Pass::kBoth; }

const char* name_of(Pass pass) { return pass == Pass::kForward ? "fwd" : pass == Pass::kBackward ? "bwd" : "fwd+bwd"; }

Row measured_row(const Attention& shape, Pass pass, double tflops) {
  const double forwards = pass == Pass::kForward ? 1 : pass == Pass::kBackward ? 2.5 : 3.5;  // FLOPs over forward, kernels.md 2.2
  return {.work = shape, .pass = pass, .measured_s = forwards * arithmetic(shape).value / (tflops * 1e12), .held_out = true};
}

// Hidden size 2048 and 16 Ki tokens in all tables (kernels.md 2.2); the text of FlashAttention-4 states its own batch.
Attention shape_of(const Kernel& kernel, std::int64_t head_dim, std::int64_t length, std::int64_t batch, bool causal) {
  return {.batch = batch,
          .heads = 2048 / head_dim,
          .kv_heads = 2048 / head_dim,
          .queries = length,
          .keys = length,
          .head_dim = head_dim,
          .causal = causal,
          .kernel = kernel.kernel};
}

std::vector<Row> rows_of(const Kernel& kernel, const MeasuredTable& tables, const MeasuredTable& papers) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < tables.rows.size(); ++i) {
    if (tables.at(i, "gpu") != kernel.gpu || tables.at(i, "impl") != kernel.implementation) continue;
    const Attention shape = shape_of(kernel, tables.integer(i, "head_dim"), tables.integer(i, "seq"), tables.integer(i, "batch"),
                                     tables.integer(i, "causal") == 1);
    rows.push_back(measured_row(shape, pass_of(tables.at(i, "pass")), tables.number(i, "tflops")));
  }
  if (std::string(kernel.gpu) != "A100-SXM4-80GB") return rows;
  for (std::size_t i = 0; i < papers.rows.size(); ++i) {
    const Pass pass = pass_of(papers.at(i, "passes"));
    if (papers.at(i, "gpu") != "A100 80GB SXM4" || papers.at(i, "impl") != "FlashAttention-2" || pass == Pass::kBoth) continue;
    const std::int64_t length = papers.integer(i, "seqlen");
    const Attention shape = shape_of(kernel, papers.integer(i, "head_dim"), length, 16384 / length, papers.integer(i, "causal") == 1);
    rows.push_back(measured_row(shape, pass, papers.number(i, "tflops")));
  }
  return rows;
}

struct RateSet {
  std::vector<AttentionRate> rates;
  std::vector<std::string> sources;
};

// A machine with one kernel, whose rates the fit changes.
class KernelModel {
 public:
  explicit KernelModel(const Kernel& kernel) : gpu_(load_gpu(kernel.gpu)) {
    for (const AttentionFit& fit : load_gpu(kernel.gpu).fit.attention) {
      if (fit.kernel == kernel.kernel) gpu_.fit.attention = {fit};
    }
    STEPSIM_CHECK(gpu_.fit.attention.size() == 1);
    gpu_.fit.attention.front().rates.clear();
  }
  AttentionFit& fit() { return gpu_.fit.attention.front(); }
  double simulated_s(const Row& row) const {
    Attention work = row.work;
    double time_s = 0;
    for (const bool backward : {false, true}) {
      if (row.pass == (backward ? Pass::kForward : Pass::kBackward)) continue;
      work.backward = backward;
      const DeviceCost cost = attention_cost(gpu_, work);
      time_s += seconds(cost.fixed + cost.alone);
    }
    return time_s;
  }

 private:
  GpuSpec gpu_;
};

std::vector<Row*> rows_with(std::vector<Row>& rows, const AttentionRate& rate, Pass pass) {
  std::vector<Row*> chosen;
  for (Row& row : rows) {
    if (row.work.head_dim == rate.head_dim && row.work.causal == rate.causal && row.pass == pass) chosen.push_back(&row);
  }
  return chosen;
}

// Every second length, from the shortest.
std::vector<Row*> fitted_half(const std::vector<Row*>& rows) {
  std::set<std::int64_t> lengths;
  for (const Row* row : rows) lengths.insert(row->work.keys);
  std::vector<Row*> chosen;
  for (Row* row : rows) {
    row->held_out = std::distance(lengths.begin(), lengths.find(row->work.keys)) % 2 == 1;
    if (!row->held_out) chosen.push_back(row);
  }
  return chosen;
}

// Sets e and S0 of one pass of `rate`, which the model holds, from the rows.
void fit_rate(KernelModel& model, AttentionRate& rate, bool backward, const std::vector<Row*>& rows) {
  double& efficiency = backward ? rate.backward : rate.forward;
  double& half_length = backward ? rate.backward_half_length : rate.forward_half_length;
  const auto use = [&](const std::vector<double>& x) {
    efficiency = bounded(x[0], 1);
    half_length = not_negative(x[1]);
    model.fit().rates = {rate};
  };
  const auto residuals = [&](const std::vector<double>& x) {
    use(x);
    std::vector<double> logs;
    for (const Row* row : rows) logs.push_back(std::log(model.simulated_s(*row) / row->measured_s));
    return logs;
  };
  // From lengths on both sides of the ones that are found: where memory bounds the shortest rows, S0 has no slope.
  std::vector<double> best;
  double least = 0;
  for (const double start : {100, 300, 1000, 2000}) {
    const std::vector<double> x = fitted_parameters(residuals, {bounded_parameter(0.6, 1), not_negative_parameter(start)}, Loss::kSquares);
    const std::vector<double> logs = residuals(x);
    const double loss = std::inner_product(logs.begin(), logs.end(), logs.begin(), 0.0);
    if (!best.empty() && loss >= least) continue;
    best = x;
    least = loss;
  }
  use(best);
}

// Where no backward pass was measured.
std::string derive_backward(const Kernel& kernel, AttentionRate& rate, const std::vector<AttentionRate>& measured) {
  if (std::string(kernel.implementation) == "FA4") {
    // flash-attention PR 2280: 1359.8 of 1534.8 TFLOP/s, causal 1208.6 of 1418.1.
    const double ratio = rate.causal ? 0.853 : 0.886;
    rate.backward = ratio * rate.forward;
    rate.backward_half_length = rate.forward_half_length;
    return rate.causal ? "; backward 0.853 of forward: PR 2280" : "; backward 0.886 of forward: PR 2280";
  }
  const std::int32_t nearest = std::min(rate.head_dim, 128);
  for (const AttentionRate& other : measured) {
    if (other.causal || other.head_dim != nearest) continue;
    rate.backward = rate.forward * other.backward / other.forward;
    rate.backward_half_length = rate.forward_half_length + other.backward_half_length - other.forward_half_length;
    return "; backward derived from head_dim " + std::to_string(nearest) + ", not causal";
  }
  check_failed("a measured backward pass", __FILE__, __LINE__);
}

FittedAttention fit_kernel(const Kernel& kernel, KernelModel& model, std::vector<Row>& rows) {
  FittedAttention fitted{.machines = kernel.machines, .fit = model.fit(), .sources = {}};
  const std::string file =
      std::string(kernel.gpu) == "A100-SXM4-80GB" ? "papers/flashattention_tflops.csv" : "kernels/flash_attention_tables.csv";
  for (const bool causal : {false, true}) {
    for (const std::int32_t head_dim : kernel.head_dims) {
      AttentionRate rate{.head_dim = head_dim, .causal = causal};
      std::string source = "hardware/fit, " + file;
      fit_rate(model, rate, false, fitted_half(rows_with(rows, rate, Pass::kForward)));
      std::vector<Row*> backward = rows_with(rows, rate, Pass::kBackward);
      if (backward.empty()) backward = rows_with(rows, rate, Pass::kBoth);
      if (backward.empty()) {
        source += derive_backward(kernel, rate, fitted.fit.rates);
      } else {
        fit_rate(model, rate, true, fitted_half(backward));
      }
      fitted.fit.rates.push_back(rate);
      fitted.sources.push_back(source);
    }
  }
  model.fit().rates = fitted.fit.rates;
  return fitted;
}

}  // namespace

std::optional<AttentionFits> fit_flash_attention(const std::string& data) {
  const auto tables = read_measured_table(data + "/kernels/flash_attention_tables.csv");
  const auto papers = read_measured_table(data + "/papers/flashattention_tflops.csv");
  if (!tables || !papers) return std::nullopt;
  AttentionFits fits;
  std::map<std::string, FitErrors> errors;
  for (const Kernel& kernel : kernels()) {
    std::vector<Row> rows = rows_of(kernel, *tables, *papers);
    KernelModel model(kernel);
    fits.kernels.push_back(fit_kernel(kernel, model, rows));
    for (const Row& row : rows) {
      const std::string name = std::string(kernel.gpu) + " " + kernel.implementation + " " + name_of(row.pass);
      errors[name].group = name;
      (row.held_out ? errors[name].held_out : errors[name].fitted).push_back(model.simulated_s(row) / row.measured_s - 1);
    }
  }
  for (const auto& [name, group] : errors) fits.errors.push_back(group);
  return fits;
}

}  // namespace stepsim
