// ZeRO 2 and 3 around the runs of a pass: what gathers a unit's weights before it runs and what reduces its gradients behind it. Units that
// a framework wraps together (the embedding and the head) are gathered at once and reduced at once.
//
// Invariant: where gradients are copied into a buffer that is reduced (FSDP2), at most one such buffer lives; of gathered buffers that
// weights are copied out of, at most two.
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

  // `weights` and `gradients`: codes by unit. Before a run its unit's weights are there and a place for the gradients that it makes.
  void before_run(std::size_t run, std::vector<std::int32_t>& weights, std::vector<std::int32_t>& gradients);
  // `reduces`: this micro-batch's gradients are reduced.
  // Reduced at the end of the pass.
  bool in_root(std::int32_t number) const { return wrap(unit(number).wrap).root; }
  void after_run(std::size_t run, std::vector<std::int32_t>& weights, const std::vector<std::int32_t>& gradients, bool reduces);

 private:
  const ShardedUnit& unit(std::int32_t number) const { return sharding_.units[static_cast<std::size_t>(number)]; }
  std::int32_t wrap_of_run(std::size_t run) const { return unit(runs_[run]).wrap; }
  const UnitWrap& wrap(std::int32_t number) const { return sharding_.wraps[static_cast<std::size_t>(number)]; }
  void gather(std::int32_t wrap, std::size_t now, const std::vector<std::int32_t>& weights);
  void copy_out(std::int32_t wrap, std::vector<std::int32_t>& weights);
  void free_weights(const UnitWrap&, std::vector<std::int32_t>& weights);
  std::vector<Tensor> whole_gradients(const UnitWrap&, const std::vector<std::int32_t>& gradients);
  void reduce(const UnitWrap&, std::vector<Tensor> gradients);
  std::int32_t reduce_input(const UnitWrap&, const std::vector<Tensor>& gradients);
  void wait_for_reductions();
  void copy_table(const UnitWrap&);
  void let_go(std::int32_t code);
  std::int32_t add_storage(Bytes size, Role role, LabelId name, std::int32_t layer);
  std::int32_t kernel(const UnitWrap&, WorkId, LabelId kind, PassStream stream, bool queued);

  const UnitSharding& sharding_;
  ScriptWriter& writer_;
  const StepLabels& labels_;
  std::span<const UnitResidents> residents_;
  PassKind pass_ = PassKind::kForward;
  std::vector<std::int32_t> runs_;                   // units
  std::vector<std::vector<std::int32_t>> gathered_;  // by wrap: gathered buffers that no unit uses yet
  std::int32_t reduce_input_ = -1;                   // FSDP2's, of the last reduction
  std::int32_t copied_out_ = -1;                     // FSDP2's, the buffer that was copied out of last in forward
  std::int32_t freed_by_ = -1;                       // the copy-out that read the buffer that was let go of last
  std::int32_t last_copy_out_ = -1, last_scatter_ = -1, last_reduction_ = -1;
};

}  // namespace stepsim
