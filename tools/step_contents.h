// What weights, tokens and labels of an executable step are at its start: numbers that follow from a seed and from the place in the whole
// model, so that ranks hold parts of one model. Knows no kernel.
#pragma once

#include "tools/step_program.h"

namespace stepsim {

// Adds contents to a program that has its calls: matrices and tables uniform, of variance 1 / inputs; gains about 1, biases about 0, so
// that no gradient vanishes by itself. Tokens are uniform over the vocabulary, a label is the next token.
void add_contents(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options, KernelProgram& program);

}  // namespace stepsim
