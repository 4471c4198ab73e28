// The text that nccl-tests print: all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf, sendrecv_perf.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "sim/input_error.h"
#include "tools/measurements.h"

namespace stepsim {

namespace {

struct Word {
  std::string text;
  int column = 0;
};

struct Line {
  int number = 0;
  std::string text;
  std::vector<Word> words;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream stream(text);
  for (std::string each; std::getline(stream, each);) {
    Line line{static_cast<int>(lines.size()) + 1, each, {}};
    for (std::size_t at = 0; at < each.size();) {
      const std::size_t begin = each.find_first_not_of(" \t\r", at);
      if (begin == std::string::npos) break;
      at = std::min(each.find_first_of(" \t\r", begin), each.size());
      line.words.push_back({each.substr(begin, at - begin), static_cast<int>(begin) + 1});
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// "node01: Test NCCL failure common.cu:958 'unhandled system error'": which of the two; "": neither.
std::string failure_in(const Line& line) {
  for (const char* const failure : {"Test NCCL failure", "Test CUDA failure"}) {
    if (line.text.find(failure) != std::string::npos) return failure;
  }
  return "";
}

bool is_head(const Line& line) {
  const auto has = [&](const char* name) {
    return std::any_of(line.words.begin(), line.words.end(), [&](const Word& word) { return word.text == name; });
  };
  return !line.words.empty() && line.words.front().text.front() == '#' && has("size") && has("time") && has("busbw");
}

// The columns of the head without its '#': one a word.
struct Columns {
  std::vector<std::string> names;
  std::vector<std::size_t> times, wrong;  // out of place, in place
  std::size_t bus = 0, algorithm = 0;
};

Columns columns_of(const Line& head) {
  Columns columns;
  for (const Word& word : head.words) {
    const std::string name = word.text.front() == '#' && word.text != "#wrong" ? word.text.substr(1) : word.text;
    if (name.empty()) continue;
    if (name == "time") columns.times.push_back(columns.names.size());
    if (name == "#wrong" || name == "error") columns.wrong.push_back(columns.names.size());
    if (name == "busbw" && columns.bus == 0) columns.bus = columns.names.size();
    if (name == "algbw" && columns.algorithm == 0) columns.algorithm = columns.names.size();
    columns.names.push_back(name);
  }
  return columns;
}

class NcclReader {
 public:
  NcclReader(const std::string& file, const std::string& text, const MeasurementOptions& options)
      : file_(file), lines_(lines_of(text)), options_(options) {}

  Measurements measurements();

 private:
  [[noreturn]] void fail(const Line& line, const Word& word, const std::string& problem) const {
    throw InputError({file_, line.number, word.column}, problem);
  }
  double number(const Line& line, const Word& word, const std::string& name) const;
  void read_device(const Line& line);
  void check_units(const Line& line) const;
  void read_row(const Line& line);
  CollectiveKind kind();
  std::int32_t ranks(const Line& line) const;
  void refuse_another_kind(CollectiveKind chosen) const;

  const std::string& file_;
  std::vector<Line> lines_;
  const MeasurementOptions& options_;
  Columns columns_;
  const Line* head_ = nullptr;
  std::int32_t devices_ = 0;
  CollectiveKind kind_ = CollectiveKind::kAllReduce;
  Measurements result_;
};

double NcclReader::number(const Line& line, const Word& word, const std::string& name) const {
  double value = 0;
  const auto [end, error] = std::from_chars(word.text.data(), word.text.data() + word.text.size(), value);
  if (error != std::errc() || end != word.text.data() + word.text.size() || !std::isfinite(value)) {
    fail(line, word, fmt::format("found {} \"{}\", wanted a number", name, word.text));
  }
  return value;
}

// "#  Rank  0 Group  0 Pid  30563 on  node device  0 [0x07] NVIDIA A100-SXM4-80GB"
void NcclReader::read_device(const Line& line) {
  ++devices_;
  const auto on = std::find_if(line.words.begin(), line.words.end(), [](const Word& word) { return word.text == "on"; });
  if (on != line.words.end() && on + 1 != line.words.end()) {
    std::vector<std::string>& hosts = result_.hosts;
    const std::string& host = (on + 1)->text;
    const bool known = std::find(hosts.begin(), hosts.end(), host) != hosts.end();
    if (!known && hosts.size() == 1) result_.second_host_line = line.number;
    if (!known) hosts.push_back(host);
  }
  const std::size_t at = line.text.find("] ");
  if (at == std::string::npos || !result_.gpu.empty()) return;
  std::string name = line.text.substr(at + 2);
  name.erase(name.find_last_not_of(" \t\r") + 1);
  const std::string maker = "NVIDIA ";
  result_.gpu = name.compare(0, maker.size(), maker) == 0 ? name.substr(maker.size()) : name;
}

// "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)": the line below the head.
void NcclReader::check_units(const Line& line) const {
  for (const Word& word : line.words) {
    if (word.text == "(ms)" || word.text == "(s)" || word.text == "(ns)") fail(line, word, "found times in " + word.text + ", wanted (us)");
  }
}

std::int32_t NcclReader::ranks(const Line& line) const {
  if (options_.ranks && devices_ > 0 && *options_.ranks != devices_) {
    throw InputError({"--ranks"}, fmt::format("found {}, wanted {} as {} lists devices", *options_.ranks, devices_, file_));
  }
  const std::int32_t count = options_.ranks.value_or(devices_);
  if (count < 2) throw InputError({file_, line.number, 1}, "found no list of at least two devices above, wanted one, or --ranks N");
  return count;
}

constexpr std::pair<const char*, CollectiveKind> kKinds[] = {{"all_reduce", CollectiveKind::kAllReduce},
                                                             {"all_gather", CollectiveKind::kAllGather},
                                                             {"reduce_scatter", CollectiveKind::kReduceScatter},
                                                             {"alltoall", CollectiveKind::kAllToAll},
                                                             {"sendrecv", CollectiveKind::kSendReceive}};

// The text may name several programs: a script's trace.
void NcclReader::refuse_another_kind(CollectiveKind chosen) const {
  const Line* other = nullptr;
  std::string found;
  for (const Line& line : lines_) {
    for (const auto& [name, kind] : kKinds) {
      if (line.text.find(std::string(name) + "_perf") == std::string::npos) continue;
      if (kind == chosen) return;
      if (other == nullptr) other = &line, found = name;
    }
  }
  if (other == nullptr) return;
  throw InputError({"--collective"},
                   fmt::format("found {}, wanted {} as {} says in line {}", options_.collective, found, file_, other->number));
}

// By --collective, the program's name in the text or the file's name.
CollectiveKind NcclReader::kind() {
  for (const auto& [name, kind] : kKinds) {
    if (options_.collective != name) continue;
    refuse_another_kind(kind);
    return kind;
  }
  if (!options_.collective.empty()) {
    throw InputError({"--collective"},
                     "found \"" + options_.collective + "\", wanted all_reduce, all_gather, reduce_scatter, alltoall or sendrecv");
  }
  for (const auto& [name, kind] : kKinds) {
    for (const Line& line : lines_) {
      if (line.text.find(std::string(name) + "_perf") != std::string::npos) return kind;
    }
  }
  const std::string stem = file_.substr(file_.find_last_of('/') + 1);
  for (const auto& [name, kind] : kKinds) {
    if (stem.find(name) != std::string::npos) return kind;
  }
  throw InputError({file_, head_->number, 1},
                   "found no name of the collective, wanted it in the text (all_reduce_perf), the file's name, or --collective");
}

void NcclReader::read_row(const Line& line) {
  if (line.words.size() != columns_.names.size()) {
    fail(line, line.words.front(),
         fmt::format("found {} columns, wanted {} as in line {}", line.words.size(), columns_.names.size(), head_->number));
  }
  const std::int32_t count = ranks(line);
  const double size = number(line, line.words.front(), "size");
  constexpr double kMost = 1099511627776;  // 1 TiB
  if (size < 0 || size > kMost || size != std::floor(size))
    fail(line, line.words.front(), "found size " + line.words.front().text + ", wanted bytes up to 2^40");
  for (const std::size_t column : columns_.wrong) {
    const Word& word = line.words[column];
    if (word.text != "N/A" && number(line, word, columns_.names[column]) > 1e-3) {
      fail(line, word, "found " + word.text + " wrong values, wanted none: the collective failed");
    }
  }
  for (const std::size_t column : columns_.times) {
    const Word& word = line.words[column];
    if (word.text == "N/A") continue;
    const double time_us = number(line, word, "time");
    if (!(time_us > 0)) fail(line, word, fmt::format("found time {}, wanted microseconds above zero", word.text));
    constexpr double kMostTime_us = 1e12;  // as in tables
    if (time_us > kMostTime_us) fail(line, word, fmt::format("found time {}, wanted at most {} us", word.text, kMostTime_us));
    if (size < (1 << 10)) {
      ++result_.skipped["collectives below 1 KiB"];
      continue;
    }
    result_.collectives.push_back({.work = {.kind = kind_, .message = Bytes(static_cast<std::int64_t>(size)), .ranks = count},
                                   .measured_s = time_us * 1e-6,
                                   .held_out = false,
                                   .line = line.number});
  }
}

Measurements NcclReader::measurements() {
  result_.file = file_;
  bool ended = false;
  for (const Line& line : lines_) {
    if (const std::string failure = failure_in(line); !failure.empty()) {
      fail(line, line.words.front(), "found \"" + failure + "\", wanted the output of a run that ended well");
    }
    ended = ended || line.text.find("# Avg bus bandwidth") == 0;
    if (is_head(line)) {
      if (head_ == nullptr) {
        head_ = &line;
        columns_ = columns_of(line);
        kind_ = kind();
      } else {
        fail(line, line.words.front(), fmt::format("found a second table, wanted one a file (the first in line {})", head_->number));
      }
    } else if (line.words.size() > 2 && line.words[0].text == "#" && line.words[1].text == "Rank") {
      read_device(line);
    } else if (head_ != nullptr && line.number == head_->number + 1 && line.text.find('#') == 0) {
      check_units(line);
    } else if (head_ != nullptr && !line.words.empty() && line.words.front().text.front() >= '0' &&
               line.words.front().text.front() <= '9') {
      read_row(line);
    }
  }
  if (!options_.gpu.empty()) result_.gpu = options_.gpu;
  if (result_.collectives.empty()) throw InputError({file_, head_->number, 1}, "found no row of 1 KiB and more below, wanted some");
  if (!ended) result_.notes.push_back(file_ + ": no footer (# Avg bus bandwidth): the output may be cut");
  return std::move(result_);
}

}  // namespace

bool is_nccl_tests(const std::string& text) {
  const std::vector<Line> lines = lines_of(text.substr(0, std::size_t{1} << 16));
  const auto any = [&](auto&& what) { return std::any_of(lines.begin(), lines.end(), what); };
  // A cell of a CSV file may say that a run failed, but no line of it begins like the list of devices.
  return any(is_head) || (any([](const Line& line) { return !failure_in(line).empty(); }) &&
                          any([](const Line& line) { return !line.words.empty() && line.words.front().text == "#"; }));
}

Measurements read_nccl_tests(const std::string& file, const std::string& text, const MeasurementOptions& options) {
  return NcclReader(file, text, options).measurements();
}

}  // namespace stepsim
