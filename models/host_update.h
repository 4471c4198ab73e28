// The part of an optimizer that lives on the host (Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py): gradients are copied
// out, the host's processor updates its fp32 weights and moments, updated weights are copied back in. Three streams beside the GPU's.
#pragma once

#include <span>
#include <vector>

#include "models/stage_writer.h"
#include "models/update_kernels.h"

namespace stepsim {

class HostUpdate {
 public:
  // Of one stage's units; of those that nothing is offloaded of, nothing. All must outlive it.
  HostUpdate(StageWriter&, const OptimizerContext&, std::span<const UnitResidents>);

  bool present() const { return !parts_.empty(); }
  // Copies of gradients, behind what the stage has so far.
  void copy_out();
  // Updates and the copies of what they make: each unit's behind its own copy or, where copies do not overlap, behind all of them.
  void update_and_copy_in();
  // The compute stream waits for the last copy; `holds`: until then.
  void join(std::span<const StorageId> holds);

 private:
  struct Part {
    Tensor gradients, sent;  // on the device, on the host
    Tensor state;            // on the host
    MemoryBound work;
    Tensor weights;  // on the device
    OpId copied, updated;
  };
  void add_part(const OptimizerContext&, const UnitResidents&);
  OpId add(const Part&, const OpWork&, const char* name, StreamId stream, QueueId queue, std::span<const Edge> edges, const Tensor& read,
           const Tensor& written);

  StageWriter& writer_;
  bool overlaps_;
  std::vector<Part> parts_;
  StreamId out_, host_, in_;
  QueueId engine_out_, engine_in_;
  OpId last_copy_in_;
};

}  // namespace stepsim
