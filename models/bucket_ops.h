// Ops of buckets of gradients in a micro-batch script: the kernels that flatten them, their collectives, the kernels that copy them back.
// Knows no unit: a bucket is reduced when it is told to be.
#pragma once

#include <cstdint>

#include "models/data_parallel.h"
#include "models/script_writer.h"

namespace stepsim {

class BucketOps {
 public:
  // Behind what computes so far. A flattened bucket is copied back when the next one has been flattened and sent off, the `last` one at
  // once: what computes then waits for its collective (InternEvo hybrid_zero_optim.py _reduce_grads_by_rank, step). Buckets must outlive
  // it.
  void reduce(ScriptWriter&, const GradientBucket&, bool last);

 private:
  const GradientBucket* flat_ = nullptr;  // not yet copied back
  std::int32_t flat_sum_ = -1;            // its collective
};

}  // namespace stepsim
