#include "models/resident_storages.h"

#include "sim/op_work.h"

namespace stepsim {

ParameterBytes parameter_bytes(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const bool half = training.precision != Precision::kFp32;
  const bool shards_gradients = parallel.zero >= 2 && parallel.data > 1;
  ParameterBytes bytes;
  bytes.weight = half ? 2 : 4;
  bytes.gradient = bits_of(*training.gradient_dtype) / 8;
  if (shards_gradients) {
    bytes.unsharded_gradient = bytes.gradient;
    bytes.gradient = bits_of(*parallel.reduce_dtype) / 8;
  }
  bytes.gradient_copy = bytes.gradient < 4 ? 4 : 0;  // main_param.grad = main_grad.float(), spec/megatron_memory.md section 3.1
  bytes.master = half ? 4 : 0;
  bytes.moments = training.optimizer == OptimizerKind::kAdamW ? 8 : 0;
  return bytes;
}

TrainingRecipe with_gradient_dtype(const TrainingRecipe& training, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  TrainingRecipe resolved = training;
  if (resolved.gradient_dtype) return resolved;
  const bool autograd = parallel.zero >= 2 && parallel.data > 1;
  switch (training.precision) {
    case Precision::kFp32:
      resolved.gradient_dtype = DType::kFp32;
      break;
    case Precision::kFp16:
      resolved.gradient_dtype = DType::kFp16;
      break;
    case Precision::kBf16:
      resolved.gradient_dtype = framework.gradient_bits == 32 && !autograd ? DType::kFp32 : DType::kBf16;
      break;
  }
  return resolved;
}

namespace {

class ResidentWriter {
 public:
  ResidentWriter(OpGraphBuilder& builder, const StepFrame& frame, const TrainingRecipe& training, const ParallelLayout& parallel,
                 const FrameworkPreset& framework, ResidentStorages& residents)
      : builder_(builder),
        frame_(frame),
        residents_(residents),
        first_(training.iteration == IterationKind::kFirst),
        keeps_gradients_(framework.gradients_always_allocated),
        accumulates_unsharded_(!*parallel.reduce_every_micro_batch),
        gathers_weights_(parallel.zero == 3 && parallel.data > 1) {}

  UnitResidents unit(std::size_t stage, const UnitParameters& each) {
    stage_ = stage;
    layer_ = each.layer;
    const ParameterBytes& bytes = residents_.bytes;
    const std::int64_t optimizer = ResidentStorages::share(each.parameters, residents_.optimizer_shards);
    const std::int64_t weights = ResidentStorages::share(each.parameters, residents_.weight_shards);
    const std::int64_t gradients = ResidentStorages::share(each.parameters, residents_.gradient_shards);
    // Sharded fp32 weights are the master weights: what is gathered is cast from them.
    const bool only_master = gathers_weights_ && bytes.master > 0;
    UnitResidents unit;
    unit.parameters = each.parameters;
    unit.weights = add(only_master ? 0 : weights * bytes.weight, Role::kWeights, "weights", true, true);
    unit.gradients = add(gradients * bytes.gradient, Role::kGradients, "main gradients", keeps_gradients_, keeps_gradients_);
    unit.master = add(optimizer * bytes.master, only_master ? Role::kWeights : Role::kOptimizerState, "master weights", true, true);
    unit.moments = add(optimizer * bytes.moments, Role::kOptimizerState, "optimizer moments", !first_, true);
    unit.gradient_copy = add(optimizer * bytes.gradient_copy, Role::kGradients, "fp32 gradients", false, false);
    if (bytes.unsharded_gradient > 0 && accumulates_unsharded_) {
      unit.unsharded_gradients = add(each.parameters * bytes.unsharded_gradient, Role::kGradients, "unsharded gradients", false, false);
    }
    return unit;
  }

  void workspace(std::size_t stage, Bytes size) {
    stage_ = stage;
    layer_ = -1;
    add(size.value, Role::kWorkspace, "library workspace", true, true);
  }

 private:
  StorageId add(std::int64_t size, Role role, const char* name, bool at_start, bool at_end) {
    const LabelId label = builder_.label(name);
    if (size == 0) return StorageId{};
    return builder_.add_storage({.size = Bytes(size),
                                 .role = frame_.labels.role(role),
                                 .name = label,
                                 .device = frame_.stages[stage_].device,
                                 .layer = layer_,
                                 .live_at_start = at_start,
                                 .live_at_end = at_end});
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  ResidentStorages& residents_;
  bool first_, keeps_gradients_, accumulates_unsharded_, gathers_weights_;
  std::size_t stage_ = 0;
  std::int32_t layer_ = -1;
};

}  // namespace

ResidentStorages add_residents(OpGraphBuilder& builder, const StepFrame& frame, const TrainingRecipe& training,
                               const ParallelLayout& parallel, const FrameworkPreset& framework,
                               const std::vector<std::vector<UnitParameters>>& stages, Bytes library_workspace) {
  ResidentStorages residents{.bytes = parameter_bytes(training, parallel), .stages = {}};
  const std::int64_t ranks = parallel.sharding_ranks();
  residents.optimizer_shards = parallel.zero >= 1 ? ranks : 1;
  residents.gradient_shards = parallel.zero >= 2 ? ranks : 1;
  residents.weight_shards = parallel.zero >= 3 ? ranks : 1;
  ResidentWriter writer(builder, frame, training, parallel, framework, residents);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<UnitResidents>& units = residents.stages.emplace_back();
    for (const UnitParameters& unit : stages[stage]) units.push_back(writer.unit(stage, unit));
    writer.workspace(stage, library_workspace);
  }
  return residents;
}

}  // namespace stepsim
