#include "models/graph_limit.h"

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "sim/input_error.h"
#include "sim/op_graph.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

// An op's row in every table, its links and the storages that it makes.
std::int64_t bytes_of(const TemplateOp& op) {
  constexpr std::int64_t kTablesPerOp = 7 * sizeof(std::uint32_t) + 3 * sizeof(std::int32_t);  // row ends; issue and stream order
  const auto tensors = static_cast<std::int64_t>(op.reads.size() + op.writes.size() + 2 * op.updates.size());
  return static_cast<std::int64_t>(sizeof(Op)) + kTablesPerOp + tensors * static_cast<std::int64_t>(sizeof(Tensor)) +
         static_cast<std::int64_t>(op.writes.size() * sizeof(Storage));
}

// Sums of bytes_of over the first 0, 1, .. ops.
std::vector<std::int64_t> running_bytes(const std::vector<TemplateOp>& ops) {
  std::vector<std::int64_t> sums{0};
  for (const TemplateOp& op : ops) sums.push_back(sums.back() + bytes_of(op));
  return sums;
}

GraphSize times(const GraphSize& one, std::int64_t count) {
  return {saturating_product(one.ops, count), saturating_product(one.bytes, count)};
}

}  // namespace

GraphSize least_graph_size(const LayerTemplate& layer, std::int64_t layers, std::int64_t micro_batches) {
  const GraphSize one{static_cast<std::int64_t>(layer.forward.size() + layer.backward.size()),
                      running_bytes(layer.forward).back() + running_bytes(layer.backward).back()};
  return times(times(one, layers), micro_batches);
}

GraphSize graph_size(const LayerTemplate& layer, const PlacementPlan& plan, std::int64_t micro_batches) {
  const std::vector<std::int64_t> forward = running_bytes(layer.forward), backward = running_bytes(layer.backward);
  GraphSize size;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb == PlanVerb::kDrop) continue;
      const std::vector<std::int64_t>& sums = step.verb == PlanVerb::kForward ? forward : backward;
      size.ops += step.last - step.first + 1;
      size.bytes += sums[static_cast<std::size_t>(step.last) + 1] - sums[static_cast<std::size_t>(step.first)];
    }
  }
  return times(size, micro_batches);
}

void check_graph_size(const GraphSize& size, std::int64_t layers, std::int64_t micro_batches) {
  if (size.ops <= kMostGraphOps && size.bytes <= kMostGraphBytes) return;
  const bool many_layers = layers >= micro_batches;
  const std::string flag = many_layers ? "--layers" : "--global-batch";
  throw InputError({flag, 0, 0},
                   fmt::format("found a step of {}{} ops and {:.1f} GiB as a graph ({} layers, {} micro-batches), wanted at most "
                               "{} ops and {} GiB",
                               size.ops == kMost ? "more than " : "", size.ops,
                               static_cast<double>(size.bytes) / static_cast<double>(std::int64_t{1} << 30), layers, micro_batches,
                               kMostGraphOps, kMostGraphBytes >> 30));
}

}  // namespace stepsim
