// Memory that no tensor of a layer and no copy of a parameter is: workspaces of cuBLAS and Transformer Engine, Megatron-LM's global buffer,
// hidden states that a pipeline holds beside those of its layers. Which of it there is and when it lives: spec/megatron_memory.md sections
// 3.1 and 3.3, as fields of FrameworkPreset.
#pragma once

#include <vector>

#include "models/pipeline_schedule.h"
#include "models/resident_storages.h"
#include "models/step_builder.h"
#include "models/step_stamper.h"

namespace stepsim {

// The workspace of autograd's cuBLAS handles, born in the first iteration.
inline constexpr const char* kAutogradWorkspace = "cuBLAS workspace of autograd's thread";

// What the memory of a step is made from. `chunks`, `scripts` and `passes` by stage.
struct StepMemoryContext {
  const StepRequest& request;  // everything decided
  const StepTemplates& templates;
  const StageLayout& stages;
  const std::vector<std::vector<ChunkStamps>>& chunks;
};

// Workspaces that live all step, of each stage: one of each cuBLAS handle (in the first iteration the main thread's alone), Transformer
// Engine's, four more of it where a layer of the stage is a mixture of experts.
std::vector<std::vector<ResidentWorkspace>> library_workspaces(const StepMemoryContext&);

// Adds the rest, and says which ops make it and let go of it: what add_pass_memory() gives is for StepStamper::touch().
std::vector<PassTouch> add_pass_memory(OpGraphBuilder&, const StepFrame&, const StepMemoryContext&, const ResidentStorages&,
                                       const std::vector<std::vector<ChunkScripts>>& scripts, const std::vector<StagePasses>& passes);

// Of Megatron-LM's buffer "mpu" on one stage: the largest of its uses; 0 where there is none.
Bytes global_buffer(const StepMemoryContext&, std::int32_t stage);

}  // namespace stepsim
