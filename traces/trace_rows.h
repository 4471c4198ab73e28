// Which row of a trace each slice goes to, so that rows stay readable: no overlap, zero-length slices apart. Knows no file format.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim {

struct TraceRow {
  std::int32_t process = 1;  // 1 + device; one more than the devices: ops outside every stream
  std::int32_t thread = 1;   // unique in the whole trace; 1 + stream for the first row of a stream
};

struct NanosecondSpan {
  std::int64_t start = 0, end = 0;
};

// Hands out rows in order of start. A device's compute stream is sorted first, the others in the order of the graph. A stream has its own
// row; what would overlap on it (measured kernels that start early) spills to a further row, and zero-length slices go to a row "(zero
// length)".
class TraceRows {
 public:
  // `announce` is called before a row is first handed out: the streams' own rows in the constructor, in stream order, others when needed.
  using Announce = std::function<void(TraceRow, const std::string& name, std::int32_t sort_index)>;
  TraceRows(const OpGraph&, Announce announce);

  // The row of a slice on `stream` (none: outside every stream).
  TraceRow row(StreamId stream, NanosecondSpan span);
  std::int32_t outside_process() const { return outside_process_; }

 private:
  struct Lane {
    TraceRow row;
    std::int64_t end = 0;  // of its last slice
  };
  struct StreamRows {
    std::int32_t process = 1;
    std::int32_t sort_index = 0;
    std::string name;
    std::vector<Lane> slices;
    std::vector<TraceRow> instants;  // filled one after the other at one instant
    std::int64_t instant = -1;
    std::size_t used_at_instant = 0;
  };
  TraceRow slice_row(StreamRows& rows, NanosecondSpan span);
  TraceRow instant_row(StreamRows& rows, std::int64_t instant);
  TraceRow new_row(const StreamRows& rows, std::string_view suffix, std::size_t number, std::int32_t sort_offset);

  Announce announce_;
  std::vector<StreamRows> streams_;  // the last one: outside every stream
  std::int32_t outside_process_ = 1;
  std::int32_t next_thread_ = 1;
};

}  // namespace stepsim
