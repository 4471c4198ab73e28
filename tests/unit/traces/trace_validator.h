// Reads a Chrome trace back and finds what a viewer would drop, move or bind wrongly. The rules are Perfetto's, as measured:
// traces/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace stepsim {

struct ReadSlice {
  std::int64_t pid = 0, tid = 0, start = 0, duration = 0;  // ns
  std::int64_t op = -1;
  std::string name;
  std::size_t place = 0;  // in the file
};

struct ReadFlow {
  std::int64_t from_op = -1, to_op = -1;
  auto operator<=>(const ReadFlow&) const = default;
};

struct ReadTrace {
  std::vector<ReadSlice> slices;  // of ops; waits apart
  std::vector<ReadSlice> waits;
  std::vector<ReadFlow> flows;
  std::map<std::string, std::vector<std::map<std::string, std::int64_t>>> counters;  // by "pid name"
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> thread_names;
  std::map<std::int64_t, std::string> process_names;
  std::vector<std::string> problems;
};

// `text` is the file; what is no JSON throws.
ReadTrace read_trace(const std::string& text);

// Of every op whose slices a flow "transfer" follows: processes where it starts and ends.
std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> transfer_arrows(const std::string& text);

}  // namespace stepsim
