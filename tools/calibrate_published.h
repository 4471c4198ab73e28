// The slowdown of matrix products of a stack, fitted on half of the configurations of published steps and tested on the other half. Knows
// no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hardware/stack_spec.h"
#include "tools/published_step.h"

namespace stepsim {

struct GroupedStep {
  PublishedStep step{};
  bool experts = false;  // of a model with experts
  std::int64_t gpus = 1;
};

// Steps of one machine, precision and stack.
struct StackGroup {
  std::string name{};                     // of the stack
  std::vector<std::string> machines{};    // catalog names, "h100-sxm-80gb"
  std::vector<std::string> precisions{};  // of the products
  std::vector<std::string> frameworks{};  // of the steps, with versions
  std::vector<GroupedStep> steps{};
};

// One step as calibrated.
struct FittedStep {
  std::string id{};
  bool held_out = false, experts = false;
  std::string refused{};  // why it could not be simulated; then nothing below is set
  std::size_t job = 0;    // of the group's different configurations
  double measured_s = 0, bare_s = 0, with_stack_s = 0;
  double kernel_width = 0;  // to either side of with_stack_s, of it: what the errors of its kernels leave open
  double bare_error() const { return bare_s / measured_s - 1; }
  double error() const { return with_stack_s / measured_s - 1; }
};

struct StackCalibration {
  StackSpec stack{};                // its evidence holds the errors, an entry each for dense models and for those with experts
  std::vector<FittedStep> steps{};  // in the order of the group
};

// simulate_published, or what stands for it in a test.
using PublishedSimulation = std::function<std::vector<SimulatedStep>(std::span<const PublishedStep>)>;

// Each step's machine, precision and framework by its job. Steps whose jobs are refused are left out and counted under the reason.
struct GroupedSteps {
  std::vector<StackGroup> groups{};  // by machine, precision and framework, sorted
  std::map<std::string, std::size_t> skipped{};
};
GroupedSteps grouped_steps(const std::vector<PublishedStep>& steps);

// Which of the different configurations are held out: every second one in the order of a hash of their texts, so that one alone is fitted
// and repeats never part. By step.
std::vector<bool> held_out_half(const std::vector<std::string>& configurations);

struct FitChoice {
  bool dense_only = false;  // models with experts are tested only
  bool attention = false;   // attention has a slowdown of its own, which is fitted beside that of products
};

// Each step of the fitted half is simulated at three slowdowns of products (and one of attention), then at what is found until that stays;
// the others on the bare machine and at that. InputError if nothing can be fitted.
StackCalibration calibrate_published(const StackGroup& group, const FitChoice& choice, const PublishedSimulation& simulate);

}  // namespace stepsim
