// What a training process takes of its card beside the allocator: the CUDA context and the buffers of communicators. Ranges, because
// drivers and libraries differ and nobody publishes them: shown apart from what is simulated. Knows no graph.
#pragma once

#include <string>
#include <vector>

#include "tools/job.h"

namespace stepsim {

struct ByteRange {
  Bytes lower{}, upper{};
  friend ByteRange operator+(const ByteRange& a, const ByteRange& b) { return {a.lower + b.lower, a.upper + b.upper}; }
};

struct CommunicatorMemory {
  std::string group;  // "tp"
  std::int64_t ranks = 0;
  ByteRange bytes{};
};

struct ProcessMemory {
  ByteRange context{};
  std::vector<CommunicatorMemory> communicators{};  // of the groups that exchange tensors; the first also has what the library takes once
  std::string library{};                            // "NCCL", "RCCL"
  std::string sources{};
  ByteRange communication() const;  // of all communicators
  ByteRange total() const { return context + communication(); }
};

// Nothing of a TPU, whose programs are placed by a compiler.
bool is_tpu(const GpuSpec& gpu);
ProcessMemory process_memory(const Job& job);

}  // namespace stepsim
