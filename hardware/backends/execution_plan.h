// A step as a backend needs it that has no graph: ops in the order in which a host issues them, with what each claims and lets go of. What
// stepsim_cuda_validate reads from a file (plan_text.h). Plain data; knows no model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hardware/backends/kernel_program.h"

namespace stepsim {

struct PlannedOp {
  std::int32_t op = -1;                   // its id in the graph
  std::int32_t stream = 0;                // index into streams
  std::int32_t origin = -1;               // id of the op that it runs again; -1: none
  std::vector<std::int32_t> after_end{};  // ids of ops of other streams that end before it starts
  std::vector<std::int32_t> after_start{};
  std::vector<StorageId> claims{}, releases{};  // of storages: before it runs; behind it, as the last in issue order that touches them
  KernelCall call{};
};

struct PlannedStorage {
  Bytes size{};
  bool on_host = false, resident = false;
};

struct ExecutionPlan {
  std::vector<std::string> streams{};
  std::vector<PlannedStorage> storages{};  // by StorageId
  std::vector<PlannedOp> ops{};            // in issue order
  std::vector<ResidentPart> residents{};   // rules alone
  std::vector<BatchPart> batch{};
  std::vector<StorageId> observed{};  // of whose contents sums are wanted, as they are when released or at the end
  AdamWSettings adamw{};
  std::int64_t step = 1;
};

}  // namespace stepsim
