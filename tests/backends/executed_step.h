// Small steps for tests of real backends: built, made executable, executed.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "hardware/backends/cpu/cpu_backend.h"
#include "tools/backend_cases.h"
#include "tools/backend_validation.h"
#include "tools/kernel_times.h"
#include "tools/step_program.h"

namespace stepsim {

inline BackendModel tiny_gpt(std::int64_t layers = 2) {
  BackendModel model{.name = "tiny gpt", .sequence = 24, .micro_batch = 2};
  model.model.name = "tiny gpt";
  model.model.layers = layers;
  model.model.hidden = 48;
  model.model.heads = model.model.kv_heads = 4;
  model.model.head_dim = 12;
  model.model.ffn_hidden = 192;
  model.model.vocab = 100;
  model.model.max_positions = 32;
  return model;
}

inline BackendModel tiny_llama(std::int64_t layers = 2) {
  BackendModel model = tiny_gpt(layers);
  model.name = model.model.name = "tiny llama";
  model.model.kv_heads = 2;
  model.model.ffn_hidden = 130;
  model.model.max_positions = 0;
  model.model.normalization = Normalization::kRmsNorm;
  model.model.activation = Activation::kSwiGlu;
  model.model.position = Position::kRotary;
  model.model.linear_bias = model.model.qkv_bias = model.model.norm_bias = false;
  model.model.tied_head = false;
  return model;
}

struct TestStep {
  StepRequest request;
  BuiltStep built;
  std::vector<KernelProgram> ranks;

  const OpGraph& graph() const { return built.graph; }
};

inline TestStep executable_step(const BackendModel& model, const PlacementPolicy& policy, const BackendRecipe& recipe = {},
                                const ProgramOptions& options = {}) {
  TestStep step{backend_request(model, policy, recipe), {}, {}};
  step.built = build_step(step.request);
  for (std::int32_t rank = 0; rank < recipe.tensor; ++rank) {
    ProgramOptions with = options;
    with.rank = rank;
    step.ranks.push_back(step_program(step.request, step.built.graph, with));
  }
  return step;
}

inline std::vector<float> floats(const Observation& observation) {
  std::vector<float> values(observation.contents.size() / sizeof(float));
  std::memcpy(values.data(), observation.contents.data(), observation.contents.size());
  return values;
}

inline std::vector<StorageId> storages_named(const OpGraph& graph, std::string_view name) {
  std::vector<StorageId> found;
  for (std::int32_t id = 0; at(id) < graph.storages().size(); ++id) {
    if (graph.label(graph.storages()[at(id)].name) == name) found.push_back(StorageId{id});
  }
  return found;
}

}  // namespace stepsim
