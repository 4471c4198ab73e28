// The training section of a job: batch, precision, optimizer, loss, and which parameters are trained.
#pragma once

#include <optional>
#include <string>

#include "tools/job_values.h"

namespace stepsim {

// Fills job.training but the global batch, which needs the layout. The model and the framework must be there. A value without effect on
// the model or precision is noted only if it was given.
void resolve_training(JobValues& values, Job& job);

// Notes the gradient dtype that the framework decides. Behind the layout, which it depends on.
void note_gradient_dtype(JobValues& values, const Job& job);

// "all", "lora(r=16,targets=qkv+attention projection)", "qlora(...)": the base in 4 bits, "frozen(embedding+layers)". None for another
// form; whether names and numbers make sense check_trainable() says. A comma may stand for '+'.
std::optional<TrainableMask> parse_trainable(const std::string& text);

// The file that --packed names; "" for a list, or without it.
std::string packed_file(const Job& job);

}  // namespace stepsim
