// A finished step as Chrome Trace Event JSON: opens in Perfetto and chrome://tracing. A process per device, a row per stream, memory counters by
// role, a flow for every dependency across streams. Times are integer nanoseconds inside; dur is end - start in text. Format notes: traces/README.md.
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct ChromeTraceOptions {
  std::span<const std::string_view> role_names;  // by bucket: the keys of the memory counter
  std::string title;                             // goes to "metadata"
  bool flows = true;
};

// Appends text to a sink in blocks; the sink writes, compresses or counts.
using TextSink = std::function<void(std::string_view)>;

void write_chrome_trace(const OpGraph&, const StepResult&, const ChromeTraceOptions&, const TextSink&);

}  // namespace stepsim
