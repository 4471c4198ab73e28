// What moving activations to the host did in a finished step: bytes, use of the links, memory on both sides, and what hides the copies.
// Knows no form of output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/offload_verdict.h"
#include "tools/step_run.h"

namespace stepsim {

struct StageOffload {
  Bytes out{}, in{};  // that were copied
  std::int64_t copies = 0;
  Bytes host_peak{};    // as the host's memory counts it, with rounded buffers and what a pool keeps
  Bytes host_copied{};  // the largest sum of what has been copied out, to the byte, while its buffer lives
  // Staging: bytes on the device that are there for the copies alone. Of a tensor on its way out, from behind its last use in forward until
  // it is released; of one on its way back, from its claim to its first use. A step whose copies needed no buffers would hold that much
  // less.
  Bytes staging_at_peak{};  // when the device's memory is at its peak
  Bytes staging_peak{};     // ever
};

// The copies over one link direction, one copy engine or one host memory.
struct CopyUse {
  std::string name{};                      // "gpu0 link out"
  DeviceId device{};                       // whose copies; of a shared link, of the last one
  Duration busy{};                         // while at least one copy uses it
  double of_step = 0;                      // busy over the step
  double of_forward = 0, of_backward = 0;  // its share of the time that compute spends forward, and backward with recompute
};

// How much earlier a tensor is back than needed: from the end of its copy back to when compute has done what stands before the first op
// that reads it. Negative: compute waits for so long.
struct ReloadSlack {
  Duration slack{};
  std::string tensor{};  // "backward L3 copy in qkv output"
};

struct OffloadReport {
  std::vector<StageOffload> stages{};  // by stage
  Bytes out{}, in{};
  std::int64_t copies = 0;
  std::vector<CopyUse> links{};
  std::vector<ReloadSlack> slack{};  // of every copy back, the least first
  // Rates of the link at which the critical stage's copies would take as long as its computation: below these they cannot be hidden. None
  // without copies or without computation.
  std::optional<BytesPerSecond> hidden_out{}, hidden_in{};

  std::size_t late() const;                                                  // copies back that compute waits for
  const ReloadSlack& median() const;                                         // of at least one
  const CopyUse* link(DeviceId device, const std::string& direction) const;  // "out", "in"; null: no copy used it
  std::size_t fullest_host() const;                                          // the stage with the largest host peak, the first of equals
};

// None: the job's placement moves nothing.
std::optional<OffloadReport> offload_report(const Job& job, const StepRun& run);

// A sentence each: offload that moves nothing, that frees nothing, that fills the host. What was not compared is not said.
std::vector<std::string> offload_warnings(const Job& job, const StepRun& run, const std::optional<OffloadVerdict>& verdict);

}  // namespace stepsim
