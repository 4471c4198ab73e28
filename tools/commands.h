// The commands of the program: each takes what the arguments said and returns the exit code. InputError for bad input.
#pragma once

#include <string>
#include <vector>

#include "tools/check_baseline.h"
#include "tools/job_entries.h"

namespace stepsim {

struct StackRecipe;

enum ExitCode : int { kExitDone = 0, kExitBug = 1, kExitBadInput = 2, kExitBeyondTolerance = 3 };

struct RunArguments {
  JobInput job{};
  std::string json, trace, memory_csv;
  std::string max;  // "micro-batch", "sequence": the largest that fits; "": not asked
  CheckOptions check{};
};
int run_command(const RunArguments& arguments);

struct ExplainArguments {
  JobInput job{};
  std::string json;
  bool module_table = false;
  bool tensors = false;
};
int explain_command(const ExplainArguments& arguments);

struct CompareArguments {
  std::vector<std::string> files{};  // several: side by side; one or none: as the flags say it, and with `changes`
  std::vector<FlagValue> flags{};    // of all jobs
  std::vector<FlagValue> changes{};  // --set, in order
  std::string json{};
};
int compare_command(const CompareArguments& arguments);

struct ListArguments {
  std::string what, json;
};
int list_command(const ListArguments& arguments);

struct SimulateArguments {
  std::string graph, hardware, cluster, json, trace, memory_csv;
};
int simulate_command(const SimulateArguments& arguments);

struct ValidateArguments {
  std::string file, format = "auto", json, by, quality = "A,B", evidence;
  bool rows = false;
  std::string max_error;                       // "0.05" or "5%"
  std::string backend, trace, plans, kernels;  // --backend: cpu, cuda; "": none. --plans: of cuda, a folder
};
int validate_command(const ValidateArguments& arguments);
int backend_command(const ValidateArguments& arguments);  // --backend

struct CalibrateArguments {
  std::vector<std::string> files{};
  std::string gpu, base, conditions, repeats, ranks, collective, software;
  std::vector<std::string> sets{};
  std::string output, json;  // output "": stdout, unless that carries the JSON
  std::string recipe, data;
  std::string published, format, where;  // --published: a published table of steps
  std::string models;                    // "dense": models with experts are tested, not fitted
  std::string date;                      // of a fit, for the stack files
  bool write = false;
  std::string folder;  // of --write
};
int calibrate_command(const CalibrateArguments& arguments);
int recipe_command(const CalibrateArguments& arguments);                                   // --recipe
int published_command(const CalibrateArguments& arguments);                                // --published
int stack_recipe_command(const CalibrateArguments& arguments, const StackRecipe& recipe);  // --recipe of stacks
// The first flag given that says something of measured kernels, "--base"; "": none.
std::string given_kernel_flag(const CalibrateArguments& arguments);

// The file name of --trace must end in .json or .json.gz.
void check_trace_name(const std::string& path);

}  // namespace stepsim
