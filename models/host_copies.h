// The copies of one micro-batch's script: to host storages, back into new device storages, and what waits for them. Knows no plan and no
// template: storages are codes of the script.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/offload_policy.h"
#include "models/script_writer.h"
#include "models/step_frame.h"

namespace stepsim {

class HostCopies {
 public:
  // Both must outlive it.
  HostCopies(OpGraphBuilder&, ScriptWriter&, const StepLabels&, const OffloadSchedule&);

  // Of a device storage; `name` for reports. `comes_back`: a copy back will follow; else the host copy lives until backward of the layer is
  // over all the same: its owner holds it until the tensor is used.
  void copy_out(std::int32_t code, std::int32_t layer, const std::string& name, bool comes_back);
  // Compute waits for the copy out of `code`, and lets go of it or not.
  void wait(std::int32_t code, Phase phase, bool releases);
  // Its memory is free when the copy has ended.
  void release_by_event(std::int32_t code);
  // The new storage that holds what `code` held. `like`: its layer, unit, slot.
  std::int32_t copy_in(std::int32_t code, const ScriptStorage& like, const std::string& name);

  // Writes what compute waits for since the last call, if anything: before its next op.
  void flush();
  // While the last op of a layer's backward is being written.
  void end_of_backward(std::int32_t layer);
  // Of a whole script. What was used in place is free when its copy has ended too, which nobody waited for.
  void finish();

 private:
  struct Copied {
    std::int32_t host = -1, op = -1;  // code, script op
  };
  PassStream stream(CopyEngine);
  Bytes host_size(Bytes size) const;
  std::int32_t begin_copy(CopyEngine, Bytes size, Phase phase, std::int32_t layer, const std::string& name);

  OpGraphBuilder& builder_;
  ScriptWriter& writer_;
  const StepLabels& labels_;
  const OffloadSchedule& schedule_;
  WorkId marker_;
  LabelId waits_;
  std::map<std::int32_t, Copied> copied_;                         // by device code; looked up only
  std::map<std::int32_t, std::vector<std::int32_t>> held_until_;  // by layer: host codes that live until its backward is over
  std::set<std::int32_t> not_let_go_;                             // device codes that were copied out
  std::vector<std::int32_t> pending_waits_, pending_holds_;       // script ops, codes
  Phase pending_phase_ = Phase::kForward;
  std::int32_t copies_ = 0;
};

}  // namespace stepsim
