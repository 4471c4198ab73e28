// Laws of steps that offload, on random policies. Each is read off the graph, the timeline and the memory log, not off the builder.
#include "tests/properties/random_offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <variant>

#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

constexpr std::uint64_t kSeeds = 1500;

// Durations that differ by kind of work and size, zeros among them; launches cost host time, so issue order matters.
class UnevenCost : public CostModel {
 public:
  explicit UnevenCost(std::int64_t copy) : copy_(copy) {}
  Cost cost(const OpWork& work, DeviceId device, TransferSide) const override {
    Cost cost;
    if (std::holds_alternative<Marker>(work)) return cost;
    cost.issue = Duration(1 + device.index);
    cost.alone = Duration(7);
    if (const auto* copy = std::get_if<Copy>(&work)) cost.alone = Duration(copy->bytes.value * copy_ / 4);
    if (const auto* collective = std::get_if<Collective>(&work)) cost.alone = Duration(collective->message.value % 11);
    return cost;
  }

 private:
  std::int64_t copy_;  // quarters of a picosecond a byte
};

struct Ran {
  RandomStep step;
  BuiltStep built;
  StepResult result;
  std::vector<OpRun> runs;  // by op
};

Ran run_of(std::uint64_t seed, LedgerRule device) {
  RandomStep step = random_offload_step(seed);
  BuiltStep built = build_step(step.request, step.templates);
  StepResult result =
      simulate(built.graph, plain_machine(built.graph.device_count()), UnevenCost(static_cast<std::int64_t>(seed % 5)), {.device = device});
  std::vector<OpRun> runs = runs_by_op(built.graph, result);
  return {std::move(step), std::move(built), std::move(result), std::move(runs)};
}

template <class Law>
void for_each_step(Law law, LedgerRule device = LedgerRule::kIssueOrder) {
  for (std::uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed) {
    const Ran ran = run_of(seed, device);
    SCOPED_TRACE(ran.step.text);
    ASSERT_FALSE(ran.result.deadlock.has_value());
    ASSERT_EQ(ran.result.timeline.size(), ran.built.graph.ops().size());
    law(ran);
  }
}

// To the host or back; null for others.
const Copy* copy_of(const OpGraph& graph, OpId op) {
  const auto* copy = std::get_if<Copy>(&graph.work(op));
  return copy != nullptr && copy->direction != CopyDirection::kDeviceToDevice ? copy : nullptr;
}

bool is_marker(const OpGraph& graph, OpId op) { return std::holds_alternative<Marker>(graph.work(op)); }

// By storage: ops that read, write or hold it, in issue order.
struct Uses {
  std::vector<OpId> writers, readers, all;
};

std::vector<Uses> uses_of(const OpGraph& graph) {
  std::vector<Uses> uses(graph.storages().size());
  for (std::int32_t index = 0; at(index) < graph.ops().size(); ++index) {
    const OpId op{index};
    const auto note = [&](StorageId storage) {
      std::vector<OpId>& all = uses[at(storage.index)].all;
      if (all.empty() || all.back() != op) all.push_back(op);
    };
    for (const Tensor& tensor : graph.writes(op)) uses[at(tensor.storage.index)].writers.push_back(op), note(tensor.storage);
    for (const Tensor& tensor : graph.reads(op)) uses[at(tensor.storage.index)].readers.push_back(op), note(tensor.storage);
    for (const StorageId storage : graph.holds(op)) note(storage);
  }
  return uses;
}

TEST(RandomOffload, PlansAreValid) {
  std::int64_t moves = 0;
  for (std::uint64_t seed = 1; seed <= 4 * kSeeds && !HasFailure(); ++seed) {
    const RandomStep step = random_offload_step(seed);
    SCOPED_TRACE(step.text);
    const std::int64_t layers = step.request.model.layers;
    const PlacementPolicy policy = chunk_policy(step.request.placement, 0, layers);
    const PlacementPlan plan =
        make_plan(step.templates.kinds.front(), layers, policy, step.request.framework, static_cast<std::int64_t>(seed % 3));
    EXPECT_EQ(plan_error(plan, step.templates.kinds.front(), layers), "");
    moves += std::count_if(plan.forward.begin(), plan.forward.end(), [](const PlanStep& each) { return moves_storage(each.verb); });
  }
  EXPECT_GT(moves, 20'000);
}

TEST(RandomOffload, EveryStorageIsClaimedOnceAndReleasedOnce) {
  for_each_step([](const Ran& ran) {
    const OpGraph& graph = ran.built.graph;
    std::vector<std::int32_t> claims(graph.storages().size()), releases(graph.storages().size());
    std::vector<std::int64_t> live(graph.storages().size());
    for (const MemoryEvent& event : ran.result.memory) {
      ++(event.bytes.value > 0 ? claims : releases)[at(event.storage.index)];
      live[at(event.storage.index)] += event.bytes.value;
    }
    for (std::int32_t index = 0; at(index) < graph.storages().size(); ++index) {
      const Storage& storage = storage_of(graph, StorageId{index});
      const std::string name = graph.storage_name(StorageId{index});
      const bool resident = storage.live_at_start && storage.live_at_end;
      if (storage.size.value == 0) continue;  // a slice of a tensor that has fewer bytes than slices
      EXPECT_EQ(claims[at(index)], 1) << name;
      EXPECT_EQ(releases[at(index)], resident ? 0 : 1) << name;
      EXPECT_EQ(live[at(index)], resident ? storage.size.value : 0) << name;
    }
  });
}

// Nothing is read before it is written, nor written while it is read; and what is let go of without an event has no user left.
TEST(RandomOffload, NoOpReadsWhatIsNotThere) {
  for_each_step([](const Ran& ran) {
    const OpGraph& graph = ran.built.graph;
    const std::vector<Uses> uses = uses_of(graph);
    for (std::int32_t index = 0; at(index) < graph.storages().size(); ++index) {
      const Storage& storage = storage_of(graph, StorageId{index});
      const Uses& of = uses[at(index)];
      if (storage.live_at_start && storage.live_at_end) continue;
      const std::string name = graph.storage_name(StorageId{index});
      ASSERT_FALSE(of.writers.empty()) << name;
      const bool on_host = storage.space == MemorySpace::kHost;  // backward may be over before the copy out of what it used in place is
      for (const OpId user : on_host ? of.readers : of.all) {
        if (user == of.writers.front()) continue;
        EXPECT_LE(ran.runs[at(of.writers.front().index)].end, ran.runs[at(user.index)].start) << name << " of " << graph.op_name(user);
      }
      for (const OpId writer : of.writers) {
        for (const OpId reader : of.readers) {
          const OpRun &write = ran.runs[at(writer.index)], &read = ran.runs[at(reader.index)];
          if (writer == reader) continue;
          EXPECT_TRUE(write.end <= read.start || read.end <= write.start) << name;
        }
      }
      const bool moves = std::any_of(of.all.begin(), of.all.end(), [&](OpId user) { return copy_of(graph, user) != nullptr; });
      if (storage.deferred_free || !moves || on_host) continue;
      for (const OpId user : of.all) EXPECT_LE(ran.runs[at(user.index)].end, ran.runs[at(of.all.back().index)].end) << name;
    }
  });
}

struct Moved {
  std::int64_t out = 0, in = 0;
  TimePoint last_out{}, first_in = TimePoint::max();
};

// By what is behind "copy out" and "copy in", layer, micro-batch.
std::map<std::tuple<std::string, std::int32_t, std::int32_t>, Moved> moved_in(const Ran& ran) {
  std::map<std::tuple<std::string, std::int32_t, std::int32_t>, Moved> moved;
  for (const OpRun& run : ran.result.timeline) {
    const Copy* copy = copy_of(ran.built.graph, run.op);
    if (copy == nullptr) continue;
    const Op& op = ran.built.graph.op(run.op);
    const bool out = copy->direction == CopyDirection::kDeviceToHost;
    const std::string name(ran.built.graph.label(op.kind).substr(out ? 9 : 8));
    Moved& tensor = moved[{name, op.layer, op.micro_batch}];
    (out ? tensor.out : tensor.in) += copy->bytes.value;
    if (out) tensor.last_out = std::max(tensor.last_out, run.end);
    if (!out) tensor.first_in = std::min(tensor.first_in, run.start);
  }
  return moved;
}

TEST(RandomOffload, WhatGoesOutComesBackOnceUnlessUsedInPlace) {
  std::int64_t copied = 0, stayed = 0;
  for_each_step([&](const Ran& ran) {
    const bool in_place = ran.step.request.placement.offload.schedule.in_place;
    for (const auto& [key, tensor] : moved_in(ran)) {
      SCOPED_TRACE(std::get<0>(key) + " L" + std::to_string(std::get<1>(key)) + " mb" + std::to_string(std::get<2>(key)));
      ++(tensor.in == 0 ? stayed : copied);
      EXPECT_TRUE(tensor.in == tensor.out || (in_place && tensor.in == 0));
      if (tensor.in == 0 || !ran.step.request.placement.rows.empty()) continue;  // slices come back one by one
      EXPECT_LE(tensor.last_out, tensor.first_in);
    }
  });
  EXPECT_GT(copied, 5'000);  // the laws above are about something
  EXPECT_GT(stayed, 100);
}

// Ops of the compute stream but waits, by name.
std::map<std::string, std::int64_t> computed(const OpGraph& graph) {
  std::map<std::string, std::int64_t> counts;
  for (std::int32_t index = 0; at(index) < graph.ops().size(); ++index) {
    const OpId op{index};
    if (is_marker(graph, op) || copy_of(graph, op) != nullptr) continue;
    ++counts[graph.op_name(op) + " in " + std::string(graph.label(graph.op(op).phase))];
  }
  return counts;
}

// Every gradient, every re-run, every collective and transfer, as often as with everything on the device.
TEST(RandomOffload, OffloadComputesWhatTheSamePolicyComputesWithoutIt) {
  for_each_step([](const Ran& ran) {
    const BuiltStep kept = build_step(without_offload(ran.step.request), ran.step.templates);
    EXPECT_EQ(computed(ran.built.graph), computed(kept.graph));
    for (const auto& [key, tensor] : moved_in({ran.step, build_step(without_offload(ran.step.request), ran.step.templates), {}, {}})) {
      ADD_FAILURE() << std::get<0>(key) << " is copied without offload";
    }
  });
}

TEST(RandomOffload, SynchronousCopiesOverlapNothing) {
  std::int64_t pairs = 0;
  for_each_step([&](const Ran& ran) {
    if (!ran.step.request.placement.offload.schedule.synchronous) return;
    const OpGraph& graph = ran.built.graph;
    for (const OpRun& copy : ran.result.timeline) {
      if (copy_of(graph, copy.op) == nullptr) continue;
      for (const OpId other : compute_ops(graph, device_of(graph, copy.op))) {
        const OpRun& run = ran.runs[at(other.index)];
        if (is_marker(graph, other) || copy.start == copy.end || run.start == run.end) continue;
        ++pairs;
        EXPECT_TRUE(run.end <= copy.start || copy.end <= run.start) << graph.op_name(copy.op) << " beside " << graph.op_name(other);
      }
    }
  });
  EXPECT_GT(pairs, 1000);
}

// A copy is on the host from the start of its copy out at the earliest, and until what the policy says at the latest.
TEST(RandomOffload, HostCopiesLiveAsLongAsThePolicySays) {
  std::int64_t seen = 0;
  for_each_step([&](const Ran& ran) {
    const HostLifetime lifetime = ran.step.request.placement.offload.schedule.host_lifetime;
    const OpGraph& graph = ran.built.graph;
    // Where weight gradients are put off, and where gradients are copied to be reduced, a layer's last op in backward is not its
    // backward's.
    const ParallelLayout& parallel = ran.step.request.parallel;
    if (parallel.schedule == PipelineKind::kZbH1 || parallel.zero >= 2) return;
    const std::vector<Uses> uses = uses_of(graph);
    std::map<StorageId, TimePoint> released;
    for (const MemoryEvent& event : ran.result.memory) {
      if (event.bytes.value < 0) released[event.storage] = event.at;
    }
    // The ends of the layers' last backward ops.
    std::map<std::tuple<DeviceId, std::int32_t, std::int32_t>, TimePoint> backward_end;
    for (const OpRun& run : ran.result.timeline) {
      const Op& op = graph.op(run.op);
      if (op.layer < 0 || op.phase != ran.built.phase_labels[static_cast<std::size_t>(Phase::kBackward)]) continue;
      const bool compute = op.stream.valid() && graph.streams()[at(op.stream.index)].compute;
      if (!compute || is_marker(graph, run.op)) continue;
      TimePoint& end = backward_end[{device_of(graph, run.op), op.layer, op.micro_batch}];
      end = std::max(end, run.end);
    }
    for (std::int32_t index = 0; at(index) < graph.storages().size(); ++index) {
      const Storage& storage = storage_of(graph, StorageId{index});
      if (storage.space != MemorySpace::kHost || storage.size.value == 0) continue;
      const auto end = backward_end.find({storage.device, storage.layer, storage.micro_batch});
      const bool until_backward = lifetime == HostLifetime::kBackwardEnd || lifetime == HostLifetime::kStep;
      if (!until_backward || end == backward_end.end()) continue;
      ++seen;
      // Used in place, the layer may be done before the copy out is.
      const TimePoint copied = ran.runs[at(uses[at(index)].writers.front().index)].end;
      EXPECT_EQ(released.at(StorageId{index}), std::max(end->second, copied)) << graph.storage_name(StorageId{index});
    }
  });
  EXPECT_GT(seen, 1000);
}

// Under issue order without events the peak is that of any durations; with them, and in device order, the log still ends at the residents.
TEST(RandomOffload, DeviceOrderEndsAtTheResidents) {
  for_each_step(
      [](const Ran& ran) {
        std::map<std::pair<std::int32_t, MemorySpace>, std::int64_t> live, residents;
        for (const MemoryEvent& event : ran.result.memory) {
          const Storage& storage = storage_of(ran.built.graph, event.storage);
          live[{storage.device.index, storage.space}] += event.bytes.value;
          EXPECT_GE((live[{storage.device.index, storage.space}]), 0);
        }
        for (const Storage& storage : ran.built.graph.storages()) {
          residents[{storage.device.index, storage.space}] += storage.live_at_end ? storage.size.value : 0;
        }
        for (const auto& [memory, bytes] : residents) EXPECT_EQ(live[memory], bytes);
      },
      LedgerRule::kDeviceOrder);
}

}  // namespace
}  // namespace stepsim
