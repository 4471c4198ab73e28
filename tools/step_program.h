// A built step made executable: which kernel each op runs, on which operands; then what weights, tokens and labels are at the start. The
// graphs are those of the preset stepsim-kernels, whose ops are one kernel each. Knows no backend.
#pragma once

#include <cstdint>

#include "hardware/backends/kernel_program.h"
#include "models/step_builder.h"

namespace stepsim {

struct ProgramOptions {
  std::uint64_t seed = 1;      // of weights, tokens and dropout
  std::int32_t rank = 0;       // of the tensor-parallel group
  float clip = 1;              // largest norm of the gradients
  float norm_epsilon = 1e-5F;  // torch.nn.LayerNorm's
  double rotary_base = 10000;  // arXiv 2104.09864 section 3.2.2
  std::int64_t optimizer_step = 1;
  bool fills_values = true;  // weights as numbers; false: their rule alone, of large models that run elsewhere
};

// The calls alone: without contents. InputError for an op that no kernel is written for, with its kind.
// Random numbers of attention dropout, within the tensor-parallel region, differ from rank to rank, all others are the same on every rank
// (Megatron-LM core/tensor_parallel/random.py: seed + 2718 + rank).
KernelProgram step_calls(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options);

// With contents: every rank has its part of the weights that a single rank would have, and all tokens.
KernelProgram step_program(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options);

}  // namespace stepsim
