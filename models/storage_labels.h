// Roles and names of a script's storages: what was saved for backward, what was made again, what is a gradient.
#pragma once

#include <vector>

#include "models/micro_batch_script.h"

namespace stepsim {

// Of those that stand for a template's slot and have none yet. A saved storage is one that a backward op reads, or what a re-run starts
// from. An output is named and counted as the next unit's input.
void label_storages(std::vector<ScriptStorage>& storages, const ChunkStamps& stamps, const StepLabels& labels);

}  // namespace stepsim
