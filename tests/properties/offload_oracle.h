// Offload of a stack of equal layers by the rules of offload.md, section 5, on plain integers and event by event; and the recurrence of one
// real implementation. Shares nothing with models/ or sim/.
#pragma once

#include <cstdint>
#include <optional>

namespace stepsim {

struct OracleStack {
  std::int64_t layers = 1, forward = 0, backward = 0, head = 0, copy_out = 0, copy_in = 0, keep_last = 0;
  std::optional<std::int64_t> max_resident, lookahead;
  int engines = 2;
};

struct OracleFigures {
  std::int64_t forward_end = 0, total = 0, resident_sets = 0, host_sets = 0;
  friend bool operator==(const OracleFigures&, const OracleFigures&) = default;
};

// None: at some instant nothing runs, nothing can start and backward is not over.
std::optional<OracleFigures> oracle_figures(const OracleStack&);

struct RecurrenceTimes {
  std::int64_t forward_end = 0, total = 0;
};

// Transformer Engine's default: forward of layer i waits for the copy out of layer i - kept, the copy in of layer i is issued before
// backward of layer i + kept - 1, one stream for both directions (offload.md, section 2). kept = layers that stay, 1 to all. Takes layers,
// forward, backward, head, copy_out and copy_in of the stack.
RecurrenceTimes transformer_engine_times(const OracleStack&, std::int64_t kept);

}  // namespace stepsim
