// Whole steps on the CPU backend: placements change nothing, gradients are gradients, memory is what the simulator says.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "sim/simulate.h"
#include "tests/backends/executed_step.h"

namespace stepsim {

namespace {

constexpr float kNoClip = std::numeric_limits<float>::infinity();

std::vector<std::vector<std::byte>> observed(const Execution& run) {
  std::vector<std::vector<std::byte>> contents;
  for (const Observation& each : run.observed) contents.push_back(each.contents);
  return contents;
}

Execution executed(CpuBackend& backend, const TestStep& step, const ExecuteOptions& options) {
  return std::move(backend.execute(step.graph(), step.ranks, options).front());
}

double mean_loss(CpuBackend& backend, const TestStep& step) {
  const Execution run = executed(backend, step, {.poison = true, .observed = storages_named(step.graph(), "loss")});
  double sum = 0;
  std::size_t tokens = 0;
  for (const Observation& each : run.observed) {
    for (const float loss : floats(each)) sum += static_cast<double>(loss);
    tokens += floats(each).size();
  }
  return sum / static_cast<double>(tokens);
}

// Weights and their gradients have the same layout in fp32, and stand in the same order.
std::vector<StorageId> with_role(const OpGraph& graph, std::string_view role) {
  std::vector<StorageId> found;
  for (std::int32_t id = 0; at(id) < graph.storages().size(); ++id) {
    if (graph.label(graph.storages()[at(id)].role) == role) found.push_back(StorageId{id});
  }
  return found;
}

// A resident's values as they are at the start, whole.
std::vector<float> start_values(const TestStep& step, StorageId storage) {
  std::vector<float> values(static_cast<std::size_t>(step.graph().storages()[at(storage.index)].size.value / 4), 0.0F);
  for (const ResidentPart& part : step.ranks.front().residents) {
    if (part.tensor.storage != storage) continue;
    std::copy(part.values.begin(), part.values.end(), values.begin() + part.tensor.offset.value / 4);
  }
  return values;
}

void set_start_values(TestStep& step, StorageId storage, const std::vector<float>& values) {
  for (ResidentPart& part : step.ranks.front().residents) {
    if (part.tensor.storage != storage) continue;
    const auto first = values.begin() + part.tensor.offset.value / 4;
    part.values.assign(first, first + static_cast<std::ptrdiff_t>(part.values.size()));
  }
}

}  // namespace

TEST(CpuStep, PlacementsChangeNoBitOfLossGradientsAndWeights) {
  CpuBackend backend;
  for (const BackendModel& model : {tiny_gpt(4), tiny_llama(4)}) {
    std::vector<std::vector<std::byte>> kept;
    for (const BackendPlacement& placement : backend_placements()) {
      SCOPED_TRACE(model.name + ", " + std::string(placement.name));
      const TestStep step = executable_step(model, placement.policy, {.dropout = 0.2});
      const ExecuteOptions options{.poison = true, .observed = compared_storages(step.graph())};
      const Execution run = executed(backend, step, options);
      EXPECT_TRUE(std::isfinite(run.gradient_norm));
      EXPECT_GT(run.gradient_norm, 0);
      const auto contents = observed(run);
      for (const Observation& each : run.observed) {
        EXPECT_FALSE(each.contents.empty());
        for (const float value : floats(each)) ASSERT_TRUE(std::isfinite(value)) << step.graph().storage_name(each.storage);
      }
      if (kept.empty()) kept = contents;
      EXPECT_EQ(contents, kept);
    }
  }
}

// The check above can fail: a re-run that draws new numbers gives other gradients.
TEST(CpuStep, ReRunsWithoutTheirRandomStateGiveOtherGradients) {
  CpuBackend backend;
  const TestStep kept = executable_step(tiny_gpt(), backend_placement("none"), {.dropout = 0.2});
  const TestStep full = executable_step(tiny_gpt(), backend_placement("full"), {.dropout = 0.2});
  const auto gradients = [&](const TestStep& step, bool restores) {
    const ExecuteOptions options{.observed = compared_storages(step.graph()), .restores_random_state = restores};
    return observed(executed(backend, step, options));
  };
  EXPECT_EQ(gradients(full, true), gradients(kept, true));
  EXPECT_NE(gradients(full, false), gradients(kept, true));
}

// Along the gradient g of the weights the loss changes by |g|^2 per unit: (L(w + e g) - L(w - e g)) / 2e = g g.
TEST(CpuStep, GradientsAreFiniteDifferences) {
  CpuBackend backend;
  for (const BackendModel& model : {tiny_gpt(), tiny_llama()}) {
    SCOPED_TRACE(model.name);
    const ProgramOptions unclipped{.clip = kNoClip};
    const TestStep step = executable_step(model, backend_placement("none"), {.dropout = 0.1}, unclipped);
    const std::vector<StorageId> weights = with_role(step.graph(), "weights"), gradients = with_role(step.graph(), "gradients");
    ASSERT_EQ(weights.size(), gradients.size());
    const Execution run = executed(backend, step, {.poison = true, .observed = gradients});
    double squared = 0;
    for (const Observation& each : run.observed) {
      for (const float value : floats(each)) squared += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(std::sqrt(squared), run.gradient_norm, 1e-4 * std::sqrt(squared));
    const double length = 1e-2 / std::sqrt(squared);  // of the step in units of g: the weights move by 0.01 in all
    const auto moved = [&](double by) {
      TestStep other = step;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        std::vector<float> values = start_values(step, weights[i]);
        const std::vector<float> gradient = floats(run.observed[i]);
        EXPECT_EQ(values.size(), gradient.size());
        for (std::size_t k = 0; k < values.size(); ++k) values[k] += static_cast<float>(by * static_cast<double>(gradient[k]));
        set_start_values(other, weights[i], values);
      }
      return mean_loss(backend, other);
    };
    const double difference = (moved(length) - moved(-length)) / (2 * length);
    EXPECT_NEAR(difference / squared, 1, 5e-3);  // fp32: losses near 5 to 5e-7, over a change of 2e-2 |g|
  }
}

// Each tensor of each unit by itself, so that no small gradient hides behind a large one.
TEST(CpuStep, EachWeightHasItsGradient) {
  CpuBackend backend;
  for (const BackendModel& model : {tiny_gpt(1), tiny_llama(1)}) {
    const TestStep step = executable_step(model, backend_placement("none"), {.dropout = 0.1}, {.clip = kNoClip});
    const std::vector<StorageId> weights = with_role(step.graph(), "weights"), gradients = with_role(step.graph(), "gradients");
    const Execution run = executed(backend, step, {.observed = gradients});
    for (std::size_t part = 0; part < step.ranks.front().residents.size(); ++part) {
      const ResidentPart& resident = step.ranks.front().residents[part];
      const auto unit = static_cast<std::size_t>(std::find(weights.begin(), weights.end(), resident.tensor.storage) - weights.begin());
      ASSERT_LT(unit, weights.size());
      const std::vector<float> all = floats(run.observed[unit]);
      const auto first = all.begin() + resident.tensor.offset.value / 4;
      const std::vector<float> gradient(first, first + static_cast<std::ptrdiff_t>(resident.values.size()));
      const double squared = std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0);
      ASSERT_GT(squared, 0) << model.name << ", part " << part;
      const double length = 2e-2 / std::sqrt(squared);
      const auto moved = [&](double by) {
        TestStep other = step;
        std::vector<float>& values = other.ranks.front().residents[part].values;
        for (std::size_t k = 0; k < values.size(); ++k) values[k] += static_cast<float>(by * static_cast<double>(gradient[k]));
        return mean_loss(backend, other);
      };
      const double difference = (moved(length) - moved(-length)) / (2 * length);
      // Absolute as well: the loss is known to about 3e-7, divided by the step of 2 * 0.02 / |g|.
      EXPECT_NEAR(difference, squared, 2e-2 * squared + 2e-5 * std::sqrt(squared)) << model.name << ", part " << part;
    }
  }
}

TEST(CpuStep, RunsTwiceAlike) {
  CpuBackend backend;
  const TestStep step = executable_step(tiny_llama(), backend_placement("offload, prefetch"));
  const ExecuteOptions options{.observed = compared_storages(step.graph())};
  EXPECT_EQ(observed(executed(backend, step, options)), observed(executed(backend, step, options)));
}

TEST(CpuStep, StreamsRunInOrderAndWaitForWhatTheyNeed) {
  CpuBackend backend;
  const TestStep step = executable_step(tiny_gpt(4), backend_placement("offload, prefetch"));
  const OpGraph& graph = step.graph();
  const Execution run = executed(backend, step, {});
  ASSERT_EQ(run.result.timeline.size(), graph.ops().size());
  std::vector<OpRun> by_op(graph.ops().size());
  for (const OpRun& each : run.result.timeline) by_op[at(each.op.index)] = each;
  std::size_t edges = 0;
  for (std::int32_t op = 0; at(op) < by_op.size(); ++op) {
    EXPECT_LE(by_op[at(op)].start, by_op[at(op)].end);
    for (const Edge& edge : graph.predecessors(OpId{op})) {
      const OpRun& before = by_op[at(edge.from.index)];
      EXPECT_LE(edge.kind == EdgeKind::kEndToStart ? before.end : before.start, by_op[at(op)].start);
      ++edges;
    }
  }
  EXPECT_GT(edges, 0u);
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    TimePoint last{};
    for (const OpId op : graph.stream_order(StreamId{stream})) {
      EXPECT_LE(last, by_op[at(op.index)].start);
      last = by_op[at(op.index)].end;
    }
  }
}

TEST(CpuStep, OffloadMovesBytesToTheHostArena) {
  CpuBackend backend;
  const TestStep kept = executable_step(tiny_gpt(4), backend_placement("none"));
  const TestStep offloaded = executable_step(tiny_gpt(4), backend_placement("offload"));
  const Execution of_kept = executed(backend, kept, {}), of_offloaded = executed(backend, offloaded, {});
  EXPECT_EQ(of_kept.host_peak, Bytes(0));
  EXPECT_GT(of_offloaded.host_peak, Bytes(0));
  EXPECT_LT(of_offloaded.device_peak, of_kept.device_peak);
}

TEST(CpuStep, AClaimAboveTheCapacityIsAResult) {
  CpuBackend backend;
  const TestStep step = executable_step(tiny_gpt(), backend_placement("none"));
  const Bytes peak = executed(backend, step, {}).device_peak;
  EXPECT_FALSE(executed(backend, step, {.device_capacity = peak}).result.out_of_memory.has_value());
  const Execution run = executed(backend, step, {.device_capacity = peak - Bytes(1)});
  ASSERT_TRUE(run.result.out_of_memory.has_value());
  const OutOfMemory& failed = *run.result.out_of_memory;
  ASSERT_TRUE(failed.op.has_value());
  EXPECT_EQ(failed.space, MemorySpace::kDevice);
  EXPECT_GT(failed.requested, failed.available);
  Bytes held{};
  for (const StorageId holder : failed.holders) held += step.graph().storages()[at(holder.index)].size;
  EXPECT_EQ(held + failed.available, peak - Bytes(1));
  // The simulator names the same op and the same holders.
  const MeasureOptions once{.repeats = 1};
  KernelTimes times;
  const MeasuredOps measured = backend.measure(step.graph(), step.ranks.front(), once);
  times.add(step.graph(), step.ranks.front(), measured, false);
  MeasuredCosts costs = times.costs(step.graph(), step.ranks.front());
  costs.machine.device_capacity[0] = peak - Bytes(1);
  const StepResult simulated = simulate(costs.graph, costs.machine, costs.costs, {.device = LedgerRule::kDeviceOrder});
  ASSERT_TRUE(simulated.out_of_memory.has_value());
  EXPECT_EQ(simulated.out_of_memory->op, failed.op);
  EXPECT_EQ(simulated.out_of_memory->holders.size(), failed.holders.size());
}

}  // namespace stepsim
