// A graph made executable: the kernel call of each op, and what its storages hold at the start. Knows no backend and no model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hardware/backends/kernel_calls.h"
#include "hardware/backends/resident_rule.h"
#include "sim/op_graph.h"

namespace stepsim {

// Values of a part of a resident storage at the start of a step; backends convert them to `type`. What no part covers starts as zero.
struct ResidentPart {
  Tensor tensor{};
  DType type = DType::kFp32;
  ResidentRule rule{};
  std::vector<float> values{};  // instead of the rule's, if there are any
};

// Tokens or labels, written when the storage is claimed.
struct BatchPart {
  StorageId storage{};
  std::vector<std::int64_t> values{};
};

struct KernelProgram {
  std::vector<KernelCall> calls{};  // by OpId
  std::vector<ResidentPart> residents{};
  std::vector<BatchPart> batch{};
  AdamWSettings adamw{};
  std::int64_t step = 1;  // of the optimizer, counted from 1
};

std::vector<float> resident_values(const ResidentPart& part);

// The tensors of a call, in the order of its fields.
std::vector<Tensor> operands(const KernelCall&);

// Whether an op draws random numbers.
bool draws(const KernelCall&);

// What is wrong with a program for a graph, in words, or none: a call for each op, on a stream; a call's tensors lie within storages that
// the op reads or writes; a marker has no call, a copy a CopyCall, a collective an AllReduceCall or NormAllReduceCall; parts of residents
// and of the batch have as many values as their storages have room for.
std::optional<std::string> program_error(const OpGraph&, const KernelProgram&);

}  // namespace stepsim
