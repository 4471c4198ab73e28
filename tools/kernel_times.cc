#include "tools/kernel_times.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "sim/append_graph.h"
#include "sim/check.h"

namespace stepsim {

namespace {

constexpr double kLeastSpeed = 0.2;      // bounds of what contention can do to either side: beyond them a measurement was disturbed
constexpr double kMostCopySpeed = 0.99;  // a copy that nothing slows: kernels' share of the resource must be above 0
constexpr std::uint16_t kCopyWeight = 10000;

// What the time of an op is in proportion to.
double amount(const OpWork& work) {
  const double flops = arithmetic(work).value;
  return flops > 0 ? flops : as_double(std::max<std::int64_t>(memory_traffic(work).value, 1));
}

bool is_copy(const OpWork& work) { return std::holds_alternative<Copy>(work); }

bool accumulates(const KernelCall& call) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.accumulate; }) return each.accumulate;
        return false;
      },
      call);
}

bool waits_for_stream(const OpGraph& graph, OpId op) {
  const std::span<const Edge> edges = graph.predecessors(op);
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return graph.op(edge.from).stream != graph.op(op).stream; });
}

double speed(Duration alone, Duration beside) {
  if (beside.count() <= 0) return 1;
  return std::clamp(as_double(alone.count()) / as_double(beside.count()), kLeastSpeed, 1.0);
}

Given::Class class_of(const OpWork& work) {
  switch (op_class(work)) {
    case OpClass::kCopyToHost:
      return Given::Class::kCopyToHost;
    case OpClass::kCopyToDevice:
      return Given::Class::kCopyToDevice;
    case OpClass::kCollective:
      return Given::Class::kCollective;
    default:
      return Given::Class::kCompute;
  }
}

}  // namespace

KernelTimes::Key KernelTimes::key_of(const OpGraph& graph, const KernelProgram& program, OpId op) {
  const OpWork& work = graph.work(op);
  std::string kind(graph.label(graph.op(op).kind));
  if (is_copy(work)) kind = op_class(work) == OpClass::kCopyToHost ? "copy out" : "copy in";
  return {std::move(kind), work, accumulates(program.calls[at(op.index)])};
}

void KernelTimes::add(const OpGraph& graph, const KernelProgram& program, const MeasuredOps& measured, bool copies) {
  std::map<Key, std::pair<std::vector<Duration>, std::vector<Duration>>> found;
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    if (is_copy(graph.work(OpId{op})) != copies || std::holds_alternative<Marker>(graph.work(OpId{op}))) continue;
    auto& [alone, beside] = found[key_of(graph, program, OpId{op})];
    alone.push_back(measured.alone[at(op)]);
    if (!measured.beside_copy.empty()) beside.push_back(measured.beside_copy[at(op)]);
  }
  const auto mean = [](const std::vector<Duration>& values) {
    Duration sum{};
    for (const Duration each : values) sum += each;
    return values.empty() ? sum : sum / static_cast<std::int64_t>(values.size());
  };
  for (const auto& [key, values] : found) times_.try_emplace(key, Times{mean(values.first), mean(values.second)});
  if (copies) handoff_ = measured.handoff;
  if (measured.copy_beside.count() > 0) copy_speed_ = std::min(speed(measured.copy_alone, measured.copy_beside), kMostCopySpeed);
}

KernelTimes::Times KernelTimes::times_of(const Key& key) const {
  if (const auto known = times_.find(key); known != times_.end()) return known->second;
  const Times* nearest = nullptr;
  double scale = 1, distance = 0;
  for (const auto& [other, times] : times_) {
    if (other.kind != key.kind) continue;
    const double ratio = amount(key.work) / amount(other.work), apart = std::abs(std::log(ratio));
    if (nearest != nullptr && apart >= distance) continue;
    nearest = &times;
    scale = ratio;
    distance = apart;
  }
  STEPSIM_CHECK(nearest != nullptr);
  const auto scaled = [&](Duration time) { return Duration(static_cast<std::int64_t>(as_double(time.count()) * scale)); };
  return {scaled(nearest->alone), scaled(nearest->beside)};
}

// A copy loads the resource wholly, a kernel with (1 - c) / x where copies run at c of their speed beside kernels and the kernel at x
// beside copies. With weights in the ratio c : (1 - c) both then run at exactly those speeds (sim/sharing.h).
MeasuredCosts KernelTimes::costs(const OpGraph& graph, const KernelProgram& program, double slower) const {
  Machine machine = plain_machine(graph.device_count());
  machine.resources.push_back({.name = "memory of the machine", .kind = "memory", .device = DeviceId{0}, .bandwidth = {}});
  const ResourceId memory{0};
  std::vector<GivenCostModel::Row> rows;
  std::vector<OpWork> works;
  for (std::int32_t op = 0; at(op) < graph.ops().size(); ++op) {
    const OpWork& work = graph.work(OpId{op});
    works.push_back(work);
    if (std::holds_alternative<Marker>(work)) continue;
    const Times times = times_of(key_of(graph, program, OpId{op}));
    Load load{.resource = memory, .fraction_2e30 = kFullLoad, .weight = kCopyWeight};
    if (!is_copy(work)) {
      const double share = std::min((1 - copy_speed_) / speed(times.alone, times.beside), 1.0);
      load.fraction_2e30 = load_fraction(share);
      load.weight = static_cast<std::uint16_t>(std::clamp(kCopyWeight * (1 - copy_speed_) / copy_speed_, 1.0, 65535.0));
    }
    works.back() = Given{.index = static_cast<std::int32_t>(rows.size()), .op_class = class_of(work)};
    const Duration alone(static_cast<std::int64_t>(as_double(times.alone.count()) * slower));
    rows.push_back({.fixed = waits_for_stream(graph, OpId{op}) ? handoff_ : Duration{}, .alone = alone, .issue = {}, .loads = {load}});
  }
  return {with_works(graph, [&](OpId op) { return works[at(op.index)]; }), std::move(machine), GivenCostModel(std::move(rows))};
}

}  // namespace stepsim
