#include "traces/trace_rows.h"

#include "sim/check.h"

namespace stepsim {

namespace {

// Perfetto nests zero-length slices that start together and drops what is nested deeper than 512 (traces/README.md, "Measured").
constexpr std::size_t kZeroLengthTogether = 256;

}  // namespace

TraceRows::TraceRows(const OpGraph& graph, Announce announce) : announce_(std::move(announce)) {
  outside_process_ = graph.device_count() + 1;
  next_thread_ = static_cast<std::int32_t>(graph.streams().size()) + 1;
  streams_.resize(graph.streams().size() + 1);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    StreamRows& rows = streams_[i];
    const bool compute = i < graph.streams().size() && graph.streams()[i].compute;
    rows.sort_index = compute ? 0 : static_cast<std::int32_t>(i + 1) * 4;  // room for the further rows
    if (i == graph.streams().size()) {
      rows.process = outside_process_;
      rows.name = "markers";
      continue;
    }
    const Stream& stream = graph.streams()[i];
    rows.process = stream.device.index + 1;
    rows.name = graph.label(stream.kind);
    if (rows.name.empty()) rows.name = "stream " + std::to_string(i);
    rows.slices.push_back({.row = {.process = rows.process, .thread = static_cast<std::int32_t>(i) + 1}});
    announce_(rows.slices.front().row, rows.name, rows.sort_index);
  }
}

TraceRow TraceRows::row(StreamId stream, NanosecondSpan span) {
  STEPSIM_CHECK(span.start >= 0);
  STEPSIM_CHECK(span.end >= span.start);
  StreamRows& rows = streams_[stream.valid() ? static_cast<std::size_t>(stream.index) : streams_.size() - 1];
  return span.start == span.end ? instant_row(rows, span.start) : slice_row(rows, span);
}

TraceRow TraceRows::slice_row(StreamRows& rows, NanosecondSpan span) {
  for (Lane& lane : rows.slices) {
    if (span.start < lane.end) continue;
    lane.end = span.end;
    return lane.row;
  }
  rows.slices.push_back({.row = new_row(rows, " (overlapping)", rows.slices.size(), 2), .end = span.end});
  return rows.slices.back().row;
}

TraceRow TraceRows::instant_row(StreamRows& rows, std::int64_t instant) {
  if (instant != rows.instant) rows.used_at_instant = 0;
  rows.instant = instant;
  const std::size_t index = rows.used_at_instant++ / kZeroLengthTogether;
  if (index == rows.instants.size()) rows.instants.push_back(new_row(rows, " (zero length)", index + 1, 1));
  return rows.instants[index];
}

TraceRow TraceRows::new_row(const StreamRows& rows, std::string_view suffix, std::size_t number, std::int32_t sort_offset) {
  const TraceRow row{.process = rows.process, .thread = next_thread_++};
  std::string name = rows.name;
  name += suffix;
  if (number > 1) {
    name += ' ';
    name += std::to_string(number);
  }
  announce_(row, name, rows.sort_index + sort_offset);
  return row;
}

}  // namespace stepsim
