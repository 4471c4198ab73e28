#include "tools/fitted_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "sim/check.h"

namespace stepsim {

// Whole nanoseconds.
static std::string microseconds(Duration duration) { return fmt::format("\"{:.5g} us\"", std::round(seconds(duration) * 1e9) * 1e-3); }

static std::string comment(const std::string& source) { return source.empty() ? "" : "  # " + source; }

FittedBlock tile_block(const GemmTileFit& fit, const std::string& source) {
  return {
      .name = "gemm_tile",
      .lines = {"  fixed: " + microseconds(fit.fixed) + comment(source), fmt::format("  compute: {:.4g}{}", fit.compute, comment(source)),
                fmt::format("  memory: {:.4g}{}", fit.memory, comment(source)),
                fmt::format("  feed: \"{:.4g} GB/s\"{}", fit.feed.value * 1e-9, comment(source)),
                fmt::format("  waves: {:.3g}{}", fit.waves, comment(source))}};
}

FittedBlock weight_gradient_block(double ratio, const std::string& source) {
  return {.name = "gemm_tile", .lines = {fmt::format("  weight_gradient: {:.4g}{}", ratio, comment(source))}};
}

FittedBlock roofline_block(std::optional<Duration> fixed, double compute, double memory, const std::string& source) {
  FittedBlock block{.name = "gemm", .lines = {}};
  if (fixed) block.lines.push_back("  fixed: " + microseconds(*fixed) + comment(source));
  block.lines.push_back(fmt::format("  compute: {:.4g}{}", compute, comment(source)));
  block.lines.push_back(fmt::format("  memory: {:.4g}{}", memory, comment(source)));
  return block;
}

FittedBlock fp32_block(double compute, const std::string& source) {
  return {.name = "gemm", .lines = {fmt::format("  compute_fp32: {:.4g}{}", compute, comment(source))}};
}

std::string attention_kernel_name(std::int8_t kernel) {
  static const char* const kNames[] = {"FLASH2", "FLASH3", "CUDNN", "TENSORRT", "FLASH1_TRITON", "FLASH4"};
  STEPSIM_CHECK(kernel >= 0);
  STEPSIM_CHECK(kernel < static_cast<std::int8_t>(std::size(kNames)));
  return kNames[kernel];
}

FittedBlock attention_block(const AttentionFit& fit, const std::string& source, const std::string& fixed_source,
                            const std::vector<std::string>& sources) {
  STEPSIM_CHECK(sources.size() == fit.rates.size());
  const std::string first = (fit.low ? "  low: true kernel: " : "  kernel: ") + attention_kernel_name(fit.kernel);  // tells blocks apart
  FittedBlock block{.name = "attention", .first = first, .lines = {first}, .whole = true};
  block.lines.push_back("  fixed: " + microseconds(fit.fixed) + comment(fixed_source));
  block.lines.push_back(fmt::format("  memory: {:.4g}{}", fit.memory, comment(fixed_source)));
  for (std::size_t i = 0; i < fit.rates.size(); ++i) {
    const AttentionRate& rate = fit.rates[i];
    const std::string both = source.empty() || sources[i].empty() ? source + sources[i] : source + "; " + sources[i];
    block.lines.push_back(fmt::format(
        "  rate {{ head_dim: {} causal: {} forward: {:.4f} forward_half_length: {:.1f} backward: {:.4f} backward_half_length: {:.1f} }}{}",
        rate.head_dim, rate.causal, rate.forward, rate.forward_half_length, rate.backward, rate.backward_half_length, comment(both)));
  }
  return block;
}

FittedBlock memory_block(MemoryKernel kernel, double fraction, const std::string& source) {
  static const char* const kFields[] = {"fused", "norm", "softmax", "unfused", "gather", "quantize", "top_k"};
  const auto index = static_cast<std::size_t>(kernel);
  STEPSIM_CHECK(index < std::size(kFields));
  return {.name = "memory_kernels", .lines = {fmt::format("  {}: {:.3g}{}", kFields[index], fraction, comment(source))}};
}

FittedBlock memory_fixed_block(Duration fixed, const std::string& source) {
  return {.name = "memory_kernels", .lines = {"  fixed: " + microseconds(fixed) + comment(source)}};
}

FittedBlock collective_block(const char* field, const CollectiveFit& fit, const std::string& source) {
  std::string quick;
  if (fit.quick_bus > 0) {
    quick = fmt::format(" quick_fixed: {} quick_per_rank: {} quick_bus: {:.4g}", microseconds(fit.quick_fixed),
                        microseconds(fit.quick_per_rank), fit.quick_bus);
  }
  return {.name = "collectives",
          .lines = {fmt::format("  {} {{ fixed: {} per_rank: {} bus: {:.4g} small_group: {:.4g} pipeline: {}{} }}{}", field,
                                microseconds(fit.fixed), microseconds(fit.per_rank), fit.bus, fit.small_group, microseconds(fit.pipeline),
                                quick, comment(source))}};
}

static std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

FittedBlock record_block(const FitRecord& record) {
  FittedBlock block{
      .name = "fit",
      .lines = {"  op_class: " + quoted(record.op_class), "  data: " + quoted(record.data), "  conditions: " + quoted(record.conditions),
                fmt::format("  fitted_rows: {}", record.fitted_rows), fmt::format("  fitted_error: {:.4f}", record.fitted_error)},
      .whole = true};
  if (!record.part.empty()) block.lines.insert(block.lines.begin() + 1, "  part: " + quoted(record.part));
  if (record.held_out_rows == 0) return block;
  block.lines.push_back(fmt::format("  held_out_rows: {}", record.held_out_rows));
  block.lines.push_back(fmt::format("  held_out_error: {:.4f}", record.held_out_error));
  block.lines.push_back(fmt::format("  held_out_bias: {:.4f}", record.held_out_bias));
  return block;
}

// The field that a line of a block sets: its first word without ':'.
static std::string field_of(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_first_of(": {", begin) - begin);
}

static void add_lines(const std::vector<std::string>& lines, std::vector<std::string>& block) {
  for (const std::string& line : lines) {
    const auto same = [&](const std::string& other) { return field_of(other) == field_of(line); };
    const auto found = std::find_if(block.begin(), block.end(), same);
    if (found == block.end()) {
      block.push_back(line);
    } else {
      *found = line;
    }
  }
}

std::vector<FittedBlock> merged(const std::vector<FittedBlock>& blocks) {
  std::vector<FittedBlock> result;
  for (const FittedBlock& block : blocks) {
    const auto same = [&](const FittedBlock& other) { return other.name == block.name && other.first == block.first; };
    const auto found = std::find_if(result.begin(), result.end(), same);
    if (found == result.end()) {
      result.push_back(block);
    } else if (block.whole) {
      *found = block;
    } else {
      add_lines(block.lines, found->lines);
    }
  }
  return result;
}

static std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

struct Lines {
  std::size_t begin = 0, end = 0;  // of "name {" and behind "}"
};

static std::optional<Lines> find_block(const std::vector<std::string>& lines, const std::string& name, const std::string& first) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].compare(0, name.size() + 2, name + " {") != 0) continue;
    const auto end = std::find(lines.begin() + static_cast<std::ptrdiff_t>(i), lines.end(), "}");
    if (end == lines.end()) continue;
    const bool right = first.empty() || (i + 1 < lines.size() && lines[i + 1].compare(0, first.size(), first) == 0);
    if (right) return Lines{i, static_cast<std::size_t>(end - lines.begin()) + 1};
  }
  return std::nullopt;
}

static void remove_blocks(const std::string& name, std::vector<std::string>& lines) {
  while (const std::optional<Lines> found = find_block(lines, name, "")) {
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(found->begin), lines.begin() + static_cast<std::ptrdiff_t>(found->end));
  }
}

// In front of what files end with.
static void insert_block(const FittedBlock& block, const std::vector<std::string>& tail, std::vector<std::string>& lines) {
  const auto ends = [&](const std::string& line) { return std::find(tail.begin(), tail.end(), field_of(line)) != tail.end(); };
  auto at = std::find_if(lines.begin(), lines.end(), ends);
  std::vector<std::string> added = {block.name + " {"};
  added.insert(added.end(), block.lines.begin(), block.lines.end());
  added.emplace_back("}");
  lines.insert(at, added.begin(), added.end());
}

std::string with_blocks(const std::string& text, const std::vector<FittedBlock>& blocks, const std::vector<FitRecord>& records) {
  std::vector<std::string> lines = lines_of(text);
  for (const FittedBlock& block : merged(blocks)) {
    const std::optional<Lines> found = find_block(lines, block.name, block.first);
    if (!found) {
      insert_block(block, {"memory_kernels", "collectives", "expert_exchange", "kernel_issue", "usual_cluster", "assumption", "fit"},
                   lines);
      continue;
    }
    const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(found->begin) + 1;
    const auto end = lines.begin() + static_cast<std::ptrdiff_t>(found->end) - 1;
    std::vector<std::string> inside(begin, end);
    if (block.whole) {
      inside = block.lines;
    } else {
      add_lines(block.lines, inside);
    }
    const auto at = lines.erase(begin, end);
    lines.insert(at, inside.begin(), inside.end());
  }
  remove_blocks("fit", lines);
  for (const FitRecord& record : records) insert_block(record_block(record), {"assumption"}, lines);
  std::string result;
  for (const std::string& line : lines) result += line + "\n";
  return result;
}

// A word as a number with the unit of its last digit: "0.8154" is 0.8154 and 1e-4.
struct Number {
  double value = 0, digit = 1;
};
static std::optional<Number> number_of(const std::string& word) {
  Number number;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number.value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  const std::size_t point = word.find('.');
  for (std::size_t i = point; point != std::string::npos && i + 1 < word.size(); ++i) number.digit /= 10;
  return number;
}

static bool same_but_rounding(const std::string& wanted, const std::string& found) {
  std::istringstream a(wanted), b(found);
  const auto trimmed = [](std::string word) {
    while (!word.empty() && std::string("\",;%").find(word.back()) != std::string::npos) word.pop_back();
    if (!word.empty() && word.front() == '"') word.erase(0, 1);
    return word;
  };
  for (std::string x, y;;) {
    const bool more = static_cast<bool>(a >> x), others = static_cast<bool>(b >> y);
    if (more != others) return false;
    if (!more) return true;
    if (x == y) continue;
    const std::optional<Number> p = number_of(trimmed(x)), q = number_of(trimmed(y));
    if (!p || !q) return false;
    const double digit = std::max(p->digit, q->digit), allowed = std::max(1e-3 * std::abs(p->value), 1.01 * digit);
    if (std::abs(p->value - q->value) > allowed) return false;
  }
}

std::vector<std::string> text_differences(const std::string& wanted, const std::string& found) {
  const std::vector<std::string> a = lines_of(wanted), b = lines_of(found);
  std::vector<std::string> differences;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size() && i < b.size() && same_but_rounding(a[i], b[i])) continue;
    differences.push_back(fmt::format("line {}: {}\n  refitted: {}", i + 1, i < b.size() ? b[i] : "none", i < a.size() ? a[i] : "none"));
    if (a.size() != b.size()) break;  // all that follows is shifted
  }
  return differences;
}

}  // namespace stepsim
