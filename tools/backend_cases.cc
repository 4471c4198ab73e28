#include "tools/backend_cases.h"

#include "models/framework_catalog.h"
#include "sim/check.h"

namespace stepsim {

namespace {

ModelSpec gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t positions) {
  ModelSpec model;
  model.name = "gpt";
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.ffn_hidden = 4 * hidden;
  model.vocab = 1024;
  model.max_positions = positions;
  return model;
}

ModelSpec llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads) {
  ModelSpec model = gpt(layers, hidden, heads, 0);
  model.name = "llama";
  model.kv_heads = kv_heads;
  model.ffn_hidden = hidden * 11 / 4;  // Llama 2: 11008 of 4096
  model.normalization = Normalization::kRmsNorm;
  model.activation = Activation::kSwiGlu;
  model.position = Position::kRotary;
  model.linear_bias = model.qkv_bias = model.norm_bias = false;
  model.tied_head = false;
  return model;
}

OffloadSchedule copies(bool prefetched) {
  OffloadSchedule schedule;
  schedule.synchronous = !prefetched;
  schedule.streams = schedule.engines = 1;  // one thread copies
  return schedule;
}

PlacementPolicy recomputing(RecomputeGranularity granularity, std::int64_t layers) {
  PlacementPolicy policy;
  policy.granularity = granularity;
  policy.num_layers = layers;
  if (granularity == RecomputeGranularity::kSelective) policy.modules = {"core_attn"};
  return policy;
}

PlacementPolicy offloading(const char* names, bool prefetched) {
  PlacementPolicy policy;
  policy.offload.selection.names = {names};
  policy.offload.schedule = copies(prefetched);
  return policy;
}

}  // namespace

std::vector<BackendModel> processor_models() {
  return {{"gpt 4x256", gpt(4, 256, 4, 128), 128, 3}, {"llama 6x320", llama(6, 320, 5, 1), 128, 2}};
}

std::vector<BackendModel> gpu_models() {
  BackendModel large{"llama 4x4096", llama(4, 4096, 32, 8), 2048, 2};
  BackendModel middle{"gpt 8x2048", gpt(8, 2048, 16, 2048), 2048, 2};
  for (BackendModel* each : {&large, &middle}) each->model.vocab = 32000;
  return {middle, large};
}

std::vector<BackendPlacement> backend_placements() {
  PlacementPolicy mixed = recomputing(RecomputeGranularity::kSelective, 1);
  mixed.offload = offloading("mlp", true).offload;
  return {{"none", {}},
          {"full", recomputing(RecomputeGranularity::kFull, 1)},
          {"uniform 2", recomputing(RecomputeGranularity::kFull, 2)},
          {"selective core_attn", recomputing(RecomputeGranularity::kSelective, 1)},
          {"offload", offloading("*", false)},
          {"offload, prefetch", offloading("*", true)},
          {"selective, offload mlp", mixed}};
}

PlacementPolicy backend_placement(std::string_view name) {
  for (const BackendPlacement& each : backend_placements()) {
    if (each.name == name) return each.policy;
  }
  check_failed("a placement", __FILE__, __LINE__);
}

StepRequest backend_request(const BackendModel& model, const PlacementPolicy& policy, const BackendRecipe& recipe) {
  StepRequest request{
      .model = model.model, .training = {}, .parallel = {}, .framework = load_framework("stepsim-kernels@1"), .placement = policy};
  request.training.sequence = model.sequence;
  request.training.micro_batch = request.training.global_batch = model.micro_batch;
  request.training.precision = recipe.precision;
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = recipe.dropout;
  request.training.gradient_dtype = DType::kFp32;
  request.parallel.tensor = recipe.tensor;
  request.parallel = with_preset(request.parallel, request.training, request.framework);
  return request;
}

}  // namespace stepsim
