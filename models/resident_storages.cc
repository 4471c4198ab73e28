#include "models/resident_storages.h"

#include "sim/op_work.h"

namespace stepsim {

ParameterBytes parameter_bytes(const TrainingRecipe& training, const FrameworkPreset& framework) {
  const bool half = training.precision != Precision::kFp32;
  ParameterBytes bytes;
  bytes.weight = half ? 2 : 4;
  const TrainingRecipe resolved = with_gradient_dtype(training, framework);
  bytes.gradient = bits_of(*resolved.gradient_dtype) / 8;
  bytes.gradient_copy = bytes.gradient < 4 ? 4 : 0;  // main_param.grad = main_grad.float(), spec/megatron_memory.md section 3.1
  bytes.master = half ? 4 : 0;
  bytes.moments = training.optimizer == OptimizerKind::kAdamW ? 8 : 0;
  return bytes;
}

TrainingRecipe with_gradient_dtype(const TrainingRecipe& training, const FrameworkPreset& framework) {
  TrainingRecipe resolved = training;
  if (resolved.gradient_dtype) return resolved;
  switch (training.precision) {
    case Precision::kFp32:
      resolved.gradient_dtype = DType::kFp32;
      break;
    case Precision::kFp16:
      resolved.gradient_dtype = DType::kFp16;
      break;
    case Precision::kBf16:
      resolved.gradient_dtype = framework.gradient_bits == 32 ? DType::kFp32 : DType::kBf16;
      break;
  }
  return resolved;
}

ResidentStorages add_residents(OpGraphBuilder& builder, const StepFrame& frame, const TrainingRecipe& training,
                               const FrameworkPreset& framework, const UnitParameters& counts, std::int64_t layers,
                               Bytes library_workspace) {
  ResidentStorages residents{.bytes = parameter_bytes(training, framework), .units = {}};
  const ParameterBytes& bytes = residents.bytes;
  const LabelId weights = builder.label("weights"), gradients = builder.label("main gradients"), master = builder.label("master weights"),
                moments = builder.label("optimizer moments"), copy = builder.label("fp32 gradients");
  const bool first = training.iteration == IterationKind::kFirst;
  const auto add = [&](std::int64_t size, Role role, LabelId name, std::int32_t layer, bool at_start, bool at_end) {
    if (size == 0) return StorageId{};
    return builder.add_storage({.size = Bytes(size),
                                .role = frame.role(role),
                                .name = name,
                                .device = frame.device,
                                .layer = layer,
                                .live_at_start = at_start,
                                .live_at_end = at_end});
  };
  for (std::int64_t unit = 0; unit < layers + 2; ++unit) {
    const std::int64_t parameters = unit == 0 ? counts.embedding : unit <= layers ? counts.layer : counts.head;
    const bool inner = unit > 0 && unit <= layers;
    const std::int32_t layer = inner ? static_cast<std::int32_t>(unit - 1) : -1;
    const bool kept = framework.gradients_always_allocated;
    residents.units.push_back({.weights = add(parameters * bytes.weight, Role::kWeights, weights, layer, true, true),
                               .gradients = add(parameters * bytes.gradient, Role::kGradients, gradients, layer, kept, kept),
                               .master = add(parameters * bytes.master, Role::kOptimizerState, master, layer, true, true),
                               .moments = add(parameters * bytes.moments, Role::kOptimizerState, moments, layer, !first, true),
                               .gradient_copy = add(parameters * bytes.gradient_copy, Role::kGradients, copy, layer, false, false),
                               .parameters = parameters});
  }
  add(library_workspace.value, Role::kWorkspace, builder.label("library workspace"), -1, true, true);
  return residents;
}

}  // namespace stepsim
