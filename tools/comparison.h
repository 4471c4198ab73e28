// Steps side by side: their figures, what differs between their jobs, and which ops explain the difference of their times. Knows no form of
// output.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/step_run.h"

namespace stepsim {

enum class FigureUnit : std::uint8_t { kTime, kBytes, kFraction, kPerSecond };  // s, bytes, of 1, 1/s

struct ComparedFigure {
  std::string key;   // "exposed_copy_forward_s": a field of the JSON
  std::string name;  // "exposed copies, forward"
  FigureUnit unit = FigureUnit::kTime;
  std::optional<double> value{};  // none: a step that was stopped has no speed
};

// One job run to its end, reduced to what is compared.
struct ComparedStep {
  std::string label{};                       // "a.textproto", "with placement.recompute=full"
  std::string job{};                         // "llama3-8b on 8 x h100-sxm-80gb"
  std::map<std::string, std::string> set{};  // values of the job by path, and of the machine and cluster where --set changed them
  std::vector<ComparedFigure> figures{};     // of every step the same ones in the same order
  bool fits = true;
  Bytes short_by{}, host_short_by{};
  std::map<std::string, Duration> shares{};  // time_shares()
};
ComparedStep compared_step(const std::string& label, const Job& job, const StepRun& run);

// A value that is not the same in all jobs; "" where a job does not have it.
struct ChangedValue {
  std::string path{};
  std::vector<std::string> values{};  // by step
};
std::vector<ChangedValue> changed_values(const std::vector<ComparedStep>& steps);

// What takes another time in `other` than in `base`, the largest difference first (tie: by name). Adds up to the difference of the steps.
struct OpDifference {
  std::string name{};
  Duration base{}, other{};
  Duration difference() const { return other - base; }
};
std::vector<OpDifference> op_differences(const ComparedStep& base, const ComparedStep& other);

// The first step is what the others are compared with; at least two. A table, then the five differences of each that explain most.
std::string comparison_text(const std::vector<ComparedStep>& steps);
std::string comparison_json(const std::vector<ComparedStep>& steps);

}  // namespace stepsim
