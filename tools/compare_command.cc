#include <fmt/format.h>

#include "tools/commands.h"
#include "tools/comparison.h"
#include "tools/outputs.h"

namespace stepsim {

namespace {

struct NamedInput {
  std::string label;
  JobInput job;
};

// Several files: each with all flags. One file or none: as it is, and with what --set changes.
std::vector<NamedInput> inputs_of(const CompareArguments& arguments) {
  std::vector<FlagValue> all = arguments.flags;
  all.insert(all.end(), arguments.changes.begin(), arguments.changes.end());
  std::vector<NamedInput> inputs;
  if (arguments.files.size() >= 2) {
    for (const std::string& file : arguments.files) inputs.push_back({file, {file, all}});
    return inputs;
  }
  if (arguments.changes.empty()) {
    throw InputError({"compare"}, "found one job and nothing that changes it, wanted two jobs, or one and --set PATH=VALUE");
  }
  const std::string file = arguments.files.empty() ? "" : arguments.files.front();
  std::string changes;
  for (const FlagValue& change : arguments.changes)
    changes += fmt::format("{}{}={}", changes.empty() ? "" : ", ", change.path, change.value);
  inputs.push_back({file.empty() ? "the job" : file, {file, arguments.flags}});
  inputs.push_back({"with " + changes, {file, all}});
  return inputs;
}

}  // namespace

int compare_command(const CompareArguments& arguments) {
  const std::vector<NamedInput> inputs = inputs_of(arguments);
  std::vector<Job> jobs;
  std::vector<std::string> files;
  for (const NamedInput& input : inputs) {
    jobs.push_back(resolve_job(input.job));
    files.insert(files.end(), jobs.back().files.begin(), jobs.back().files.end());
  }
  std::vector<ComparedStep> steps;
  const std::vector<Output> outputs = {{"--json", arguments.json, [&](const TextSink& sink) { sink(comparison_json(steps)); }}};
  check_outputs(outputs, files);
  for (std::size_t i = 0; i < jobs.size(); ++i) steps.push_back(compared_step(inputs[i].label, jobs[i], run_step(jobs[i])));
  write_outputs(outputs, comparison_text(steps));
  return kExitDone;
}

}  // namespace stepsim
