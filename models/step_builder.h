// A model, a recipe, a layout, a preset and a placement -> the operator DAG of one training step, with one representative rank for each
// pipeline stage (device i is stage i). Templates are stamped per layer and micro-batch; equal work is stored once. Knows no machine.
#pragma once

#include <string>
#include <vector>

#include "models/layer_stack.h"
#include "models/placement_plan.h"
#include "models/stage_layout.h"
#include "sim/metrics.h"
#include "sim/op_graph.h"

namespace stepsim {

// Bytes that libraries keep on a machine: facts of machine and library. How many of each live is the framework's.
struct LibraryWorkspaces {
  Bytes blas_handle{};  // of one cuBLAS handle
  Bytes engine{};       // of Transformer Engine's products
  Bytes other{};        // lives all step whatever the framework is
};

struct StepRequest {
  ModelSpec model;
  TrainingRecipe training;
  ParallelLayout parallel;
  FrameworkPreset framework;
  PlacementPolicy placement;
  LibraryWorkspaces workspaces{};
};

// One saved tensor of one layer, for explain.
struct SavedTensor {
  std::int32_t stage = 0;
  std::int32_t layer = 0;  // -1 embedding, `layers` head
  std::string op, name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::kBf16;
  Bytes bytes;
  std::string placement;            // "keep", "recompute", "offload", "checkpoint" (kept as the input of a re-run)
  std::vector<StorageId> storages;  // of micro-batch 0: the first made, then re-made ones
};

struct BuiltStep {
  OpGraph graph;
  PhaseMeaning phases;
  std::vector<SavedTensor> saved;     // of micro-batch 0, by layer
  std::vector<LabelId> saved_roles;   // role labels that saved_activations_peak_bytes counts
  std::vector<LabelId> phase_labels;  // by Phase
  StageLayout stages;
  std::vector<std::int64_t> parameters_of_stage;  // that a device of the stage holds, of all ranks that share them
  std::int64_t parameters_per_device = 0;         // the largest of those
  std::vector<std::string> warnings;
  std::vector<std::string> not_modelled;
};

// The templates that a step is stamped from.
struct StepTemplates {
  LayerTemplate embedding;
  std::vector<LayerTemplate> kinds;     // of layers
  std::vector<std::int32_t> kind_of{};  // by layer, an index of `kinds`; empty: all the first
  LayerTemplate head;
};
StepTemplates step_templates(const TemplateContext&);
// Of `layers` layers. The templates outlive it.
LayerStack layer_stack(const StepTemplates&, std::int64_t layers);

// Throws InputError for what check_layout and check_policy refuse, and for graphs above 200 million ops (with the number).
BuiltStep build_step(const StepRequest&);

// The same from given templates; the model's dimensions are not looked at beyond its number of layers, tying and norms.
BuiltStep build_step(const StepRequest&, const StepTemplates&);

}  // namespace stepsim
