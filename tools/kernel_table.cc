#include "tools/kernel_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/dtype_name.h"

namespace stepsim {

namespace {

using ProductShape = std::tuple<DType, std::int64_t, std::int64_t, std::int64_t>;  // m, n, k

std::map<ProductShape, std::vector<Duration>> product_times(std::span<const BackendCase> cases) {
  std::map<ProductShape, std::vector<Duration>> times;
  for (const BackendCase& each : cases) {
    for (const OpRun& run : each.measured.timeline) {
      const auto* gemm = std::get_if<Gemm>(&each.graph.work(run.op));
      if (gemm == nullptr || gemm->batch > 1 || gemm->accumulate_fp32 || gemm->accumulate) continue;
      times[{gemm->dtype, gemm->m, gemm->n, gemm->k}].push_back(run.end - run.start);
    }
  }
  return times;
}

std::string without_commas(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  return text;
}

}  // namespace

std::string product_table(std::span<const BackendCase> cases, const std::string& machine) {
  std::string text = "op,dtype,m,n,k,gpu,latency_us,source\n";
  for (auto& [shape, times] : product_times(cases)) {
    std::vector<Duration> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    const auto [dtype, m, n, k] = shape;
    text += fmt::format("gemm,{},{},{},{},{},{:.3f},stepsim validate --backend\n", dtype_name(dtype), m, n, k, without_commas(machine),
                        1e6 * seconds(sorted[(sorted.size() - 1) / 2]));
  }
  return text;
}

}  // namespace stepsim
