// ZeRO 2 and 3 around the runs of a pass: what gathers a unit's weights before it runs and what reduces its gradients behind it. One unit
// is what a framework wraps: the embedding, a layer, the head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/data_parallel.h"
#include "models/script_writer.h"

namespace stepsim {

class ShardedRuns {
 public:
  // All must outlive it.
  ShardedRuns(const UnitSharding&, ScriptWriter&, const StepLabels&, std::span<const UnitResidents>);

  // The units of a pass in the order of their runs.
  void begin_pass(PassKind, std::vector<std::int32_t> units);

  // `weights` and `gradients`: codes by unit. Before a run its unit's weights are there and, in backward, a place for its gradients.
  void before_run(std::size_t run, std::vector<std::int32_t>& weights, std::vector<std::int32_t>& gradients);
  // `reduces`: this micro-batch's gradients are reduced.
  void after_run(std::size_t run, std::vector<std::int32_t>& weights, const std::vector<std::int32_t>& gradients, bool reduces);

 private:
  const ShardedUnit& unit(std::int32_t number) const { return sharding_.units[static_cast<std::size_t>(number)]; }
  void gather(std::size_t run, std::size_t now, const std::vector<std::int32_t>& weights);
  void copy_out(std::int32_t unit, std::vector<std::int32_t>& weights);
  void free_weights(std::int32_t unit, std::vector<std::int32_t>& weights);
  void reduce(std::int32_t unit, std::int32_t gradients);
  std::int32_t add_storage(Bytes size, Role role, LabelId name, std::int32_t layer);
  std::int32_t kernel(std::int32_t unit, WorkId, LabelId kind, PassStream, bool queued);

  const UnitSharding& sharding_;
  ScriptWriter& writer_;
  const StepLabels& labels_;
  std::span<const UnitResidents> residents_;
  PassKind pass_ = PassKind::kForward;
  std::vector<std::int32_t> runs_;      // units
  std::vector<std::int32_t> gathered_;  // by unit: the gathered buffer, kNone
  std::vector<bool> asked_;             // by run: its gather is written
  std::int32_t reduce_input_ = -1;      // of the last reduction, kept until the next one begins
  std::int32_t last_copy_out_ = -1;
};

}  // namespace stepsim
