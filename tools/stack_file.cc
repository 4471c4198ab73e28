#include "tools/stack_file.h"

#include <fmt/format.h>

namespace stepsim {

std::string quoted_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') result += '\\';
    if (byte < 0x20) {
      result += fmt::format("\\{:03o}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

namespace {

class StackLines {
 public:
  explicit StackLines(const std::string& source) : source_(source) {}
  void add_all(const std::string& field, const std::vector<std::string>& values) {
    for (const std::string& value : values) add_text(field, value);
  }
  void add_text(const std::string& field, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("{}{}: {}\n", indent_, field, quoted_text(value));
  }
  template <class Number>
  void add_number(const std::string& field, Number value, const std::string& what = "") {
    text_ += fmt::format("{}{}: {}  # {}{}{}\n", indent_, field, value, source_, what.empty() ? "" : ", ", what);
  }
  void open(const std::string& field) {
    text_ += field + " {\n";
    indent_ = "  ";
  }
  void close() {
    text_ += "}\n";
    indent_.clear();
  }
  void add_slowdown(const std::string& field, const SlowdownRange& range) {
    open(field);
    add_number("expected", fmt::format("{:.3f}", range.expected));
    add_number("lower", fmt::format("{:.3f}", range.lower), "of single steps");
    add_number("upper", fmt::format("{:.3f}", range.upper), "of single steps");
    close();
  }
  const std::string& text() const { return text_; }

 private:
  const std::string& source_;
  std::string text_, indent_;
};

std::string fraction(double value) { return fmt::format("{:.4f}", value); }

void add_evidence(const StackEvidence& evidence, StackLines& lines) {
  lines.open("evidence");
  lines.add_text("source", evidence.source);
  lines.add_text("conditions", evidence.conditions);
  lines.add_all("framework", evidence.frameworks);
  lines.add_text("models", evidence.models);
  lines.add_number("rows", evidence.rows);
  lines.add_number("error_before", fraction(evidence.error_before), "bare machine");
  lines.add_number("error_after", fraction(evidence.error_after));
  if (evidence.left_out) lines.add_number("left_out", fraction(*evidence.left_out), evidence.held_out ? "held-out half" : "");
  if (evidence.held_out) {
    const HeldOutSteps& steps = *evidence.held_out;
    lines.add_number("held_out_rows", steps.rows);
    lines.add_number("held_out_jobs", steps.jobs);
    lines.add_number("held_out_lower", fraction(steps.lower), "5th percentile");
    lines.add_number("held_out_upper", fraction(steps.upper), "95th percentile");
    lines.add_number("kernel_width", fraction(steps.kernel_width));
    lines.add_number("most_gpus", steps.most_gpus);
  }
  lines.add_text("fitted_on", evidence.fitted_on);
  lines.add_text("command", evidence.command);
  lines.add_text("date", evidence.date);
  lines.close();
}

bool is_given(const SlowdownRange& range) { return range.expected != 1 || range.lower != 1 || range.upper != 1; }

}  // namespace

std::string stack_file_text(const StackSpec& stack, const std::string& title, const std::string& source) {
  StackLines lines(source);
  lines.add_all("machine", stack.machines);
  lines.add_all("precision", stack.precisions);
  lines.add_all("framework", stack.frameworks);
  lines.add_text("software", stack.software);
  lines.add_slowdown("gemm", stack.gemm);
  for (const auto& [field, range] :
       {std::pair("attention", &stack.attention), std::pair("memory", &stack.memory), std::pair("collective", &stack.collective)}) {
    if (is_given(*range)) lines.add_slowdown(field, *range);
  }
  if (stack.gives_weight_gradient) lines.add_slowdown("weight_gradient", stack.weight_gradient);
  if (stack.straggler_per_doubling) lines.add_number("straggler_per_doubling", *stack.straggler_per_doubling);
  for (const StackEvidence& evidence : stack.evidence) add_evidence(evidence, lines);
  lines.add_all("assumption", stack.assumptions);
  return "# " + title + "\n" + lines.text();
}

}  // namespace stepsim
