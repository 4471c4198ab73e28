#include "tools/commands.h"
#include "tools/explain_report.h"
#include "tools/outputs.h"
#include "tools/storage_lives.h"

namespace stepsim {

int explain_command(const ExplainArguments& arguments) {
  const Job job = resolve_job(arguments.job);
  StepRun run;
  Explanation explained;
  std::vector<ModuleAccount> modules, offload_modules;
  const std::vector<Output> outputs = {
      {"--json", arguments.json, [&](const TextSink& sink) { sink(explain_json(job, run, explained, modules, offload_modules)); }}};
  check_outputs(outputs, job.files);
  modules = module_table(job);
  offload_modules = offload_modules_of(job);
  run = run_step(job);
  explained = explanation(job, run);
  const auto text = [&] {
    if (arguments.module_table) return module_table_text(job, modules, offload_modules);
    if (arguments.tensors) return storage_lives_text(run, storage_lives(run, run.reported().device)) + "\n" + peak_contents_text(run);
    return explain_text(job, run, explained);
  };
  write_outputs(outputs, text());
  return kExitDone;
}

}  // namespace stepsim
