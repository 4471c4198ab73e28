#include "models/bucket_ops.h"

#include <utility>

namespace stepsim {

namespace {

struct BucketOp {
  WorkId work;
  LabelId kind;
  PassStream stream = PassStream::kCompute;
};

// On a bucket's gradients, behind `after`; its number.
std::int32_t add_bucket_op(ScriptWriter& writer, const GradientBucket& bucket, const BucketOp& op, std::int32_t after) {
  const bool queued = op.stream == PassStream::kReduce;
  const std::int32_t number =
      writer.begin({.work = op.work, .kind = op.kind, .phase = Phase::kBackward, .stream = op.stream, .queued = queued});
  for (const Tensor& tensor : bucket.gradients) {
    writer.read(~tensor.storage.index, tensor.offset, tensor.size);
    writer.write(~tensor.storage.index, tensor.offset, tensor.size);
  }
  writer.wait_for(after);
  writer.end();
  return number;
}

void copy_back(ScriptWriter& writer, const GradientBucket& bucket, std::int32_t sum) {
  add_bucket_op(writer, bucket, {bucket.copy, bucket.copy_out}, sum);
}

}  // namespace

void BucketOps::reduce(ScriptWriter& writer, const GradientBucket& bucket, bool last) {
  const bool flattened = bucket.copy.valid();
  std::int32_t made = writer.last_compute_op();
  if (flattened) made = add_bucket_op(writer, bucket, {bucket.copy, bucket.copy_in}, -1);
  std::int32_t sum = add_bucket_op(writer, bucket, {bucket.work, bucket.kind, PassStream::kReduce}, made);
  if (bucket.over_instances.valid()) {
    sum = add_bucket_op(writer, bucket, {bucket.over_instances, bucket.over_instances_kind, PassStream::kReduce}, made);
  }
  if (!flattened) return;
  const GradientBucket* const before = std::exchange(flat_, &bucket);
  const std::int32_t before_sum = std::exchange(flat_sum_, sum);
  if (before != nullptr) copy_back(writer, *before, before_sum);
  if (last) copy_back(writer, bucket, sum);
}

}  // namespace stepsim
