// A finished step as Chrome Trace Event JSON: opens in Perfetto and chrome://tracing. A process per device, a row per stream, memory
// counters by role, a flow for every dependency across streams and along every point-to-point transfer. Times are integer nanoseconds
// inside; dur is end - start in text. Format notes: traces/README.md.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/op_graph.h"
#include "sim/step_result.h"
#include "traces/text_block.h"

namespace stepsim {

struct ChromeTraceOptions {
  std::span<const std::string_view> role_names;  // by bucket: the keys of the memory counter
  std::string title;                             // goes to "metadata"
  bool flows = true;
  std::vector<std::string> device_names{};  // by device; those it has no name for are "device 3"
};

// Invariants of the output:
//  1. Slices of one row never overlap on the nanosecond grid, and only slices of zero length share a start; those have rows of their own,
//     because a viewer binds a flow to the innermost slice at an instant.
//  2. One slice for each part of each op that ran, named without micro-batch; a slice "wait" where a part occupied its stream before the
//  start.
//  3. A pair s, f with an id of its own for each edge between ops that share no stream and both ran; each end lies in its op's slice.
//  4. Likewise a flow "transfer" from the sending part of a point-to-point op (OpGraph::side; with more than two parts the first) to each
//     other part.
void write_chrome_trace(const OpGraph&, const StepResult&, const ChromeTraceOptions&, const TextSink&);

}  // namespace stepsim
