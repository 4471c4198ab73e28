#include "tests/unit/traces/trace_validator.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace stepsim {

namespace {

std::int64_t read_nanoseconds(const nlohmann::json& number) { return std::llround(number.get<double>() * 1000); }

// Perfetto's order: by start, the longer first, then as in the file. What starts before the innermost open slice ends must end with it.
void check_nesting(std::vector<ReadSlice> row, std::vector<std::string>& problems) {
  std::stable_sort(row.begin(), row.end(),
                   [](const ReadSlice& a, const ReadSlice& b) { return a.start != b.start ? a.start < b.start : a.duration > b.duration; });
  for (std::size_t i = 1; i < row.size(); ++i) {
    const ReadSlice &before = row[i - 1], &slice = row[i];
    if (slice.start < before.start + before.duration) problems.push_back(slice.name + " overlaps " + before.name);
    if (slice.start == before.start && slice.duration != before.duration) problems.push_back(slice.name + " starts with " + before.name);
  }
}

// The slice that a flow end binds to: the one open at its time; of zero-length ones at one time the last that stands before it in the file.
std::int64_t bound_op(const std::vector<ReadSlice>& row, std::int64_t instant, std::size_t place) {
  const ReadSlice* bound = nullptr;
  for (const ReadSlice& slice : row) {
    const bool open = slice.duration == 0 ? slice.start == instant && slice.place < place
                                          : slice.start <= instant && instant < slice.start + slice.duration;
    if (open) bound = &slice;
  }
  return bound == nullptr ? -1 : bound->op;
}

class TraceReader {
 public:
  explicit TraceReader(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);  // throws on NaN, truncation, bad escapes
    const nlohmann::json& events = json.at("traceEvents");
    for (std::size_t place = 0; place < events.size(); ++place) read_event(events[place], place);
    for (const auto& [row, slices] : rows_) {
      check_nesting(slices, trace_.problems);
      if (trace_.thread_names.count(row) == 0) trace_.problems.push_back("row without name");
      if (trace_.process_names.count(row.first) == 0) trace_.problems.push_back("process without name");
    }
    join_flows();
  }
  ReadTrace take() { return std::move(trace_); }

 private:
  using Row = std::pair<std::int64_t, std::int64_t>;
  struct End {
    Row row;
    std::int64_t instant = 0;
    std::size_t place = 0;
    std::string key;
  };

  void problem(const std::string& what, const nlohmann::json& event) { trace_.problems.push_back(what + ": " + event.dump()); }

  void read_event(const nlohmann::json& event, std::size_t place) {
    const std::string phase = event.at("ph");
    const Row row{event.at("pid"), event.value("tid", std::int64_t{1})};
    if (std::min(row.first, row.second) < 1 || std::max(row.first, row.second) > 4294967295) problem("pid or tid out of range", event);
    const std::int64_t instant = phase == "M" ? 0 : read_nanoseconds(event.at("ts"));
    if (instant < 0) problem("negative time", event);
    if (phase == "X") {
      read_slice(event, row, instant, place);
    } else if (phase == "s" || phase == "f") {
      if (phase == "f" && event.value("bp", "") != "e") problem("flow end without bp", event);
      const std::string key = event.at("cat").get<std::string>() + "/" + event.at("name").get<std::string>();
      if (!(phase == "s" ? starts_ : ends_).emplace(event.at("id"), End{row, instant, place, key}).second) problem("flow id twice", event);
    } else if (phase == "C") {
      read_counter(event, row.first, instant);
    } else if (phase == "M") {
      if (event.at("name") == "thread_name") trace_.thread_names[row] = event.at("args").at("name");
      if (event.at("name") == "process_name") trace_.process_names[row.first] = event.at("args").at("name");
    } else {
      problem("unknown phase", event);
    }
  }

  void read_slice(const nlohmann::json& event, Row row, std::int64_t instant, std::size_t place) {
    ReadSlice slice{.pid = row.first,
                    .tid = row.second,
                    .start = instant,
                    .duration = read_nanoseconds(event.at("dur")),
                    .op = event.at("args").at("op"),
                    .name = event.at("name"),
                    .place = place};
    if (slice.duration < 0) problem("negative duration", event);
    rows_[row].push_back(slice);
    (event.at("cat") == "wait" ? trace_.waits : trace_.slices).push_back(std::move(slice));
  }

  void read_counter(const nlohmann::json& event, std::int64_t pid, std::int64_t instant) {
    const std::string counter = std::to_string(pid) + " " + event.at("name").get<std::string>();
    std::map<std::string, std::int64_t> values;
    std::set<std::string> keys;
    for (const auto& [key, value] : event.at("args").items()) {
      values[key] = value;
      keys.insert(key);
    }
    if (keys_.emplace(counter, keys).first->second != keys) problem("counter keys change", event);
    values["ts"] = instant;
    trace_.counters[counter].push_back(values);
  }

  void join_flows() {
    for (const auto& [id, start] : starts_) {
      const auto end = ends_.find(id);
      if (end == ends_.end()) {
        trace_.problems.push_back("flow without end");
        continue;
      }
      if (end->second.key != start.key) trace_.problems.push_back("flow ends differ in name");
      if (std::pair(end->second.instant, end->second.place) < std::pair(start.instant, start.place))
        trace_.problems.push_back("flow goes back");
      trace_.flows.push_back({.from_op = bound_op(rows_[start.row], start.instant, start.place),
                              .to_op = bound_op(rows_[end->second.row], end->second.instant, end->second.place)});
      if (trace_.flows.back().from_op < 0 || trace_.flows.back().to_op < 0) trace_.problems.push_back("flow end outside slices");
    }
    if (ends_.size() != starts_.size()) trace_.problems.push_back("flow without start");
    std::sort(trace_.flows.begin(), trace_.flows.end());
  }

  ReadTrace trace_;
  std::map<Row, std::vector<ReadSlice>> rows_;
  std::map<std::int64_t, End> starts_, ends_;
  std::map<std::string, std::set<std::string>> keys_;
};

}  // namespace

ReadTrace read_trace(const std::string& text) { return TraceReader(text).take(); }

std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> transfer_arrows(const std::string& text) {
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> arrows;
  std::map<std::int64_t, std::int64_t> starts;  // process by id
  std::int64_t op = -1;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") op = event.at("args").at("op");
    if (event.at("name") != "transfer") continue;
    if (event.at("ph") == "s") starts[event.at("id")] = event.at("pid");
    if (event.at("ph") == "f") arrows[op].emplace_back(starts.at(event.at("id")), event.at("pid"));
  }
  return arrows;
}

}  // namespace stepsim
