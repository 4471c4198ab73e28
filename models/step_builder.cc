#include "models/step_builder.h"

#include <fmt/format.h>

#include "models/graph_limit.h"
#include "models/micro_batch_script.h"
#include "models/optimizer_phase.h"
#include "models/resident_storages.h"
#include "models/saved_tensors.h"
#include "models/step_frame.h"
#include "models/step_stamper.h"
#include "models/template_stamp.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

void check_model(const ModelSpec& model) {
  if (const std::optional<FieldProblem> problem = model_problem(model)) {
    throw InputError({model.name.empty() ? "--model" : model.name, 0, 0},
                     fmt::format("found {} {}, wanted {}", problem->field, problem->found, problem->wanted));
  }
}

// A copy to the host or back that keeps an op waiting: before forward ops; before backward and recompute ops; at the end of the step.
PhaseMeaning phase_meaning() {
  PhaseMeaning meaning;
  meaning.copy_wait_of_bucket = {0, 1, 1, 2};                   // forward, backward, recompute, optimizer
  meaning.copy_out_first_is_tail = {false, true, false, true};  // before the first backward op and before the optimizer
  meaning.tail = 2;
  meaning.copy_waits = 3;
  return meaning;
}

// Parameters whose storage is the unit's own: the tied head's table is the embedding's.
std::int64_t own_parameters(const TemplateStamp& stamp, const ParameterBytes& bytes) {
  const std::int64_t parameters = stamp.own_weights.value / bytes.weight;
  STEPSIM_CHECK(stamp.own_weight_gradients.value <= parameters * bytes.gradient);
  return parameters;
}

// FlashAttention takes fp16 and bf16 (Dao-AILab/flash-attention README, "NVIDIA CUDA Support"), cuDNN's fused attention those and fp8
// (docs.nvidia.com, cudnn frontend, operations/Attention, "Support Matrix").
void warn_of_missing_kernels(const TrainingRecipe& training, std::vector<std::string>& warnings) {
  if (training.precision != Precision::kFp32 || training.attention == AttentionKind::kUnfused) return;
  warnings.push_back(fmt::format("{} attention has no fp32 kernel: priced as if it had; use --attention unfused",
                                 training.attention == AttentionKind::kFlash ? "flash" : "cuDNN's fused"));
}

std::vector<std::string> not_modelled(const StepRequest& request) {
  std::vector<std::string> notes{"data loading and logging between steps", "host waits for the loss and for the gradient norm"};
  if (request.training.precision == Precision::kFp16) notes.push_back("loss scaling: no step is skipped");
  return notes;
}

}  // namespace

BuiltStep build_step(const StepRequest& request, const StepTemplates& templates) {
  const std::int64_t layers = request.model.layers;
  STEPSIM_CHECK(layers >= 1);
  STEPSIM_CHECK(request.training.micro_batch >= 1);
  STEPSIM_CHECK(request.training.global_batch % request.training.micro_batch == 0);
  const std::int64_t micro_batches = request.training.global_batch / request.training.micro_batch;
  check_graph_size(least_graph_size(templates.layer, layers, micro_batches), layers, micro_batches);
  BuiltStep built;
  built.warnings = check_policy(request.placement, templates.layer, layers, request.training.attention);
  warn_of_missing_kernels(request.training, built.warnings);
  const PlacementPlan plan = make_plan(templates.layer, layers, request.placement, request.framework);
  check_graph_size(graph_size(templates.layer, plan, layers, micro_batches), layers, micro_batches);

  OpGraphBuilder builder;
  const StepFrame frame = add_step_frame(builder, request.parallel, request.framework);
  std::vector<BatchTensor> batch;
  const TemplateStamp embedding = make_stamp(builder, templates.embedding, batch);
  const TemplateStamp layer = make_stamp(builder, templates.layer, batch);
  const TemplateStamp head = make_stamp(builder, templates.head, batch, request.model.tied_head ? &templates.embedding : nullptr);
  const ParameterBytes bytes = parameter_bytes(request.training, request.framework);
  const UnitParameters parameters{own_parameters(embedding, bytes), own_parameters(layer, bytes), own_parameters(head, bytes)};
  built.parameters_per_device = parameters.embedding + layers * parameters.layer + parameters.head;
  const ResidentStorages residents =
      add_residents(builder, frame, request.training, request.framework, parameters, layers, request.library_workspace);

  const ScriptStamps stamps{embedding, layer, head, batch};
  const MicroBatchScript script = make_script(stamps, layers, plan, residents, frame);
  const auto count = static_cast<std::size_t>(micro_batches);
  const std::size_t optimizer_ops = residents.units.size() + 5;
  builder.reserve(count * script.ops.size() + optimizer_ops, count * script.storages.size() + 5 * residents.units.size() + 1);
  const StampedStep stamped = stamp_micro_batches(builder, frame, script, static_cast<std::int32_t>(micro_batches));
  add_optimizer_phase(builder, frame, request.model, request.training, request.parallel, request.framework, residents);

  built.saved = saved_tensors(stamps, layers, script, stamped.first_storage);
  built.phases = phase_meaning();
  built.saved_roles = {frame.saved, frame.saved_again};
  built.phase_labels.assign(frame.phases.begin(), frame.phases.end());
  built.not_modelled = not_modelled(request);
  built.graph = std::move(builder).build();
  return built;
}

BuiltStep build_step(const StepRequest& request) {
  check_model(request.model);
  check_layout(request.model, request.training, request.parallel);
  StepRequest resolved = request;
  resolved.training = with_gradient_dtype(request.training, request.framework);
  const TemplateContext context{resolved.model, resolved.training, resolved.parallel, resolved.framework};
  return build_step(resolved, {embedding_layer(context), transformer_layer(context), head_layer(context)});
}

}  // namespace stepsim
