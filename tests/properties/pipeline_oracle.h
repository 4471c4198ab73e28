// Pipelines by the rules that papers print, on plain integers: order of passes, times, passes in flight. Shares nothing with models/ or
// sim/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepsim {

struct OracleDurations {
  std::int64_t forward = 0, backward = 0, weight = 0;
};

struct OraclePipeline {
  std::string schedule;  // "gpipe", "1f1b", "interleaved", "zb-h1"
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<OracleDurations> durations;  // of one chunk and micro-batch, by stage
  std::int64_t transfer = 0;
};

struct OraclePass {
  char kind = 'F';  // F, B, W
  int chunk = 0, micro_batch = 0;
};

struct OracleOutcome {
  std::int64_t makespan = 0;
  std::vector<std::int64_t> until_backward, until_weight;  // by stage; the latter empty without weight passes
};

std::vector<OraclePass> oracle_order(const OraclePipeline&, int stage);

// Sends beside compute. A transfer starts when its input is there, the transfer before it of the same two stages and direction is over, and
// the receiver has run its pass of that kind before the one that the transfer feeds.
OracleOutcome oracle_outcome(const OraclePipeline&);

}  // namespace stepsim
