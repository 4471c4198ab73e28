// Steps side by side: their figures, what differs between their jobs, and which ops explain the difference of their times. Knows no form of
// output.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/memory_difference.h"
#include "tools/step_time_band.h"

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
  std::optional<BandedStep> banded{};        // none: the step was stopped
  PeakAccount peak{};                        // of the fullest device
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

// None where one of the steps was stopped.
std::optional<DifferenceBand> step_difference(const ComparedStep& base, const ComparedStep& other);

// "2 is +6.1 % [+5.0, +7.4], sign certain"; the steps' numbers count from 1.
std::string difference_band_text(const DifferenceBand& band, std::size_t number);

// The first step is what the others are compared with; at least two. A table, then of each its difference with the band, and the five
// parts of it that explain most.
std::string comparison_text(const std::vector<ComparedStep>& steps);
std::string comparison_json(const std::vector<ComparedStep>& steps);

}  // namespace stepsim
