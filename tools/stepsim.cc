// The program: arguments to commands, errors to exit codes. Everything else is in the files beside it.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <iostream>
#include <new>

#include "schema/nearest_name.h"
#include "sim/input_error.h"
#include "tools/commands.h"

namespace stepsim {
namespace {

struct Arguments {
  RunArguments run;
  ExplainArguments explain;
  CompareArguments compare;
  ListArguments list;
  SimulateArguments simulate;
  ValidateArguments validate;
  CalibrateArguments calibrate;
};

// The job flags of one command, as they were given.
struct JobArguments {
  std::string file;
  std::vector<std::string> files;               // of compare
  std::deque<std::vector<std::string>> values;  // by job_flags(); a deque keeps the addresses that CLI11 writes to
  std::vector<std::string> sets;
};

std::string group_of(const JobFlag& flag) {
  std::string section(flag.path.substr(0, flag.path.find('.')));
  section.front() = static_cast<char>(section.front() - 'a' + 'A');
  return section;
}

CLI::Option* add_text(CLI::App& command, const std::string& flag, std::string& value, const std::string& type, const std::string& help) {
  return command.add_option(flag, value, help)->type_name(type)->option_text(type);
}

void add_job_file(CLI::App& command, JobArguments& job) {
  command.add_option("job", job.file, "job file: text or JSON, schema tools/job.proto; flags override it")->option_text("JOB");
}

void add_job_flags(CLI::App& command, JobArguments& job) {
  for (const JobFlag& flag : job_flags()) {
    job.values.emplace_back();
    CLI::Option* const option = flag.value.empty() ? command.add_flag(std::string(flag.flag), job.values.back(), std::string(flag.help))
                                                   : command.add_option(std::string(flag.flag), job.values.back(), std::string(flag.help));
    if (!flag.value.empty()) option->expected(1)->option_text(std::string(flag.value));
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group(flag.help.empty() ? "" : group_of(flag));
  }
  command.add_option("--set", job.sets, "any field of the job, the machine (hardware.*) or the cluster (cluster.*)")
      ->option_text("PATH=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Job");
}

JobInput job_input(const JobArguments& job) {
  JobInput input{job.file};
  for (std::size_t i = 0; i < job.values.size(); ++i) {
    const JobFlag& flag = job_flags()[i];
    if (job.values[i].size() > 1) {
      throw InputError({std::string(flag.flag)}, "found " + std::to_string(job.values[i].size()) + " values, wanted one");
    }
    for (const std::string& value : job.values[i]) input.flags.push_back({std::string(flag.flag), std::string(flag.path), value});
  }
  for (const std::string& set : job.sets) input.flags.push_back(parse_set(set));
  return input;
}

void add_outputs(CLI::App& command, std::string& json, std::string* trace, std::string* memory_csv) {
  add_text(command, "--json", json, "FILE|-", "the result as JSON")->group("Output");
  if (trace != nullptr)
    add_text(command, "--trace", *trace, "FILE|-", "Chrome trace: .json or .json.gz, opens in Perfetto")->group("Output");
  if (memory_csv != nullptr) add_text(command, "--memory-csv", *memory_csv, "FILE|-", "the memory curve")->group("Output");
}

void add_run(CLI::App& app, RunArguments& run, JobArguments& job) {
  CLI::App& command = *app.add_subcommand("run", "one training step: verdict, time, speed, memory");
  add_job_file(command, job);
  add_job_flags(command, job);
  add_outputs(command, run.json, &run.trace, &run.memory_csv);
  add_text(command, "--max", run.max, "micro-batch|sequence", "the largest that fits, with what the allocator reserves")->group("Output");
  CheckOptions& check = run.check;
  add_text(command, "--check", check.baseline, "BASELINE.json", "compare with the --json of an earlier run; exit 3 if worse")
      ->group("Check");
  add_text(command, "--max-time", check.max_time, "+P%|+T|T", "allowed step time, above the baseline or at all")->group("Check");
  add_text(command, "--max-peak", check.max_peak, "+P%|+SIZE|SIZE", "allowed peak memory: above the baseline's, or of every stage")
      ->group("Check");
  command.add_flag("--must-fit", check.must_fit, "exit 3 if the step does not fit")->group("Check");
  add_text(command, "--min-margin", check.min_margin, "SIZE", "exit 3 if less memory stays free on any stage")->group("Check");
  command.footer(
      "Examples:\n"
      "  stepsim run --model llama3-8b --hardware h100-sxm-80gb --tp 8 --sequence-parallel --sequence 8192 \\\n"
      "              --recompute full --trace step.json.gz\n"
      "  stepsim run job.textproto --set parallel.tp=4 --json -\n"
      "  stepsim run job.textproto --check baseline.json --max-time +2% --max-peak +1GiB --must-fit");
}

void add_explain(CLI::App& app, ExplainArguments& explain, JobArguments& job) {
  CLI::App& command = *app.add_subcommand("explain", "the accounting: per layer, per saved tensor, per op");
  add_job_file(command, job);
  add_job_flags(command, job);
  add_outputs(command, explain.json, nullptr, nullptr);
  command
      .add_flag("--tensors", explain.tensors, "every tensor of the device: who claims it, who releases it, when; what is alive at the peak")
      ->group("Output");
  command
      .add_flag("--module-table", explain.module_table, "which tensors each name of --recompute-modules frees, of --offload-modules moves")
      ->group("Output");
  command.footer(
      "Times of ops: from start to end (time_s), of which longer than alone (slowed_s); waiting before that, of an op on several\n"
      "devices for the last of them (waiting_s).\n"
      "Examples:\n"
      "  stepsim explain --model llama3-8b --hardware h100-sxm-80gb --sequence 8192 --json -\n"
      "  stepsim explain --model llama3-8b --hardware h100-sxm-80gb --sequence 8192 --module-table");
}

void add_compare(CLI::App& app, CompareArguments& compare, JobArguments& jobs) {
  CLI::App& command = *app.add_subcommand("compare", "jobs side by side, or a job and what --set changes in it: which ops explain it");
  command.add_option("jobs", jobs.files, "job files; the first is what the others are compared with")->option_text("JOB...");
  add_job_flags(command, jobs);
  add_outputs(command, compare.json, nullptr, nullptr);
  command.footer(
      "Flags say the same of all jobs. With one JOB, or none, --set is what the second step changes, all of them together.\n"
      "Examples:\n"
      "  stepsim compare a.textproto b.textproto --sequence 8192\n"
      "  stepsim compare --model llama3-8b --hardware h100-sxm-80gb --tp 8 --sequence 8192 --set placement.recompute=full --json -");
}

void add_list(CLI::App& app, ListArguments& list) {
  CLI::App& command = *app.add_subcommand("list", "what the catalog has");
  command.add_option("what", list.what, "models, hardware, clusters, stacks, frameworks, placements, conventions")->option_text("WHAT");
  add_outputs(command, list.json, nullptr, nullptr);
  command.footer("Examples:\n  stepsim list models\n  stepsim list hardware --json -");
}

void add_simulate(CLI::App& app, SimulateArguments& simulate) {
  CLI::App& command = *app.add_subcommand("simulate", "an operator graph of your own");
  command.add_option("graph", simulate.graph, "text, JSON or binary form; schema traces/graph.proto")->option_text("GRAPH");
  add_text(command, "--hardware", simulate.hardware, "NAME|FILE", "needed for work that the graph gives no duration of");
  add_text(command, "--cluster", simulate.cluster, "NAME|FILE", "node and network [the machine's usual one]");
  add_outputs(command, simulate.json, &simulate.trace, &simulate.memory_csv);
  command.footer("Example:\n  stepsim simulate graph.textproto --hardware h100-sxm-80gb --trace graph.json");
}

void add_validate(CLI::App& app, ValidateArguments& validate) {
  CLI::App& command = *app.add_subcommand("validate", "published measurements, or real kernels, against stepsim");
  add_text(command, "--published", validate.file, "FILE", "CSV with a head, or a JSON list of rows");
  add_text(command, "--format", validate.format,
           "auto|results|pairs|mpt|vtrain|megatron-golden|gemm|attention|collective|elementwise|pipeline|offload",
           "layout of the file [by its head]");
  add_text(command, "--by", validate.by, "COLUMN", "statistics by the values of a column");
  add_text(command, "--evidence", validate.evidence, "FILE",
           "the compared steps as rows of the table of measured steps that the program carries");
  add_text(command, "--quality", validate.quality, "A,B,C,D", "grades of the rows that are compared, of results and pairs [A,B]");
  command.add_flag("--rows", validate.rows, "print every row, and what the jobs guess");
  add_text(command, "--max-error", validate.max_error, "X",
           "exit 3 if the median error is above, such as 0.1 or 10% (pipeline: if a row differs)");
  add_text(command, "--backend", validate.backend, "cpu|cuda",
           "runs small steps with real kernels and simulates them; --trace: both timelines");
  add_text(command, "--plans", validate.plans, "FOLDER",
           "of cuda: steps that another machine runs (tools/cuda_node.sh); first writes them, then reads what they took");
  add_text(command, "--kernels", validate.kernels, "FILE", "what the steps' matrix products took, a CSV for `stepsim calibrate`");
  add_outputs(command, validate.json, &validate.trace, nullptr);
  command.footer("Examples:\n  stepsim validate --published gemm_aic_H100-SXM.csv --by dtype\n  stepsim validate --backend cpu");
}

void add_calibrate(CLI::App& app, CalibrateArguments& calibrate) {
  CLI::App& command = *app.add_subcommand("calibrate", "measured kernels -> a machine file; 3-10 measured steps -> a stack file");
  command.add_option("files", calibrate.files, "CSV of kernels or steps, output of nccl-tests (layouts: tools/README.md)")
      ->option_text("FILE...");
  add_text(command, "--gpu", calibrate.gpu, "NAME", "whose rows, where a file has several GPUs");
  add_text(command, "--base", calibrate.base, "NAME", "catalog machine for what the rows do not give [that of --gpu]");
  command
      .add_option("--set", calibrate.sets, "a fact of the machine, any field of hardware/machine.proto: peak.bf16, hbm, memory, sms, ...")
      ->option_text("PATH=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_text(command, "--repeats", calibrate.repeats, "refuse|keep", "a shape that comes twice [collectives are kept, all else refused]");
  add_text(command, "--conditions", calibrate.conditions, "TEXT", "of the measurement, for the file's records [column source]");
  add_text(command, "--ranks", calibrate.ranks, "N", "of nccl-tests, where its output lists no devices");
  add_text(command, "--collective", calibrate.collective, "NAME",
           "of nccl-tests, where its output does not say: all_reduce, all_gather, ...");
  add_text(command, "--software", calibrate.software, "TEXT", "of measured steps: what the stack is called");
  add_text(command, "--output", calibrate.output, "FILE|-", "the machine or stack file [-]")->group("Output");
  add_outputs(command, calibrate.json, nullptr, nullptr);
  add_text(command, "--recipe", calibrate.recipe, "FILE", "refit the catalog: hardware/data/calibration.textproto; exit 3 if it differs")
      ->group("Catalog");
  add_text(command, "--data", calibrate.data, "FOLDER", "of the files that the recipe names")->group("Catalog");
  add_text(command, "--published", calibrate.published, "FILE",
           "a published table of steps -> the stacks of its rows, fitted on half of them")
      ->group("Published steps");
  add_text(command, "--format", calibrate.format, "results|mpt|vtrain", "of the published table [by its columns]")
      ->group("Published steps");
  add_text(command, "--where", calibrate.where, "COLUMN=A|B,...", "rows of the published table; COLUMN!=A for all others")
      ->group("Published steps");
  add_text(command, "--models", calibrate.models, "all|dense", "which are fitted; the others are tested [all]")->group("Published steps");
  add_text(command, "--date", calibrate.date, "TEXT", "of the fit, for the stack files")->group("Published steps");
  command
      .add_option("--write", calibrate.folder, "of published steps: the folder of the stack files; of a recipe: write the files beside it")
      ->expected(0, 1)
      ->option_text("[FOLDER]")
      ->group("Catalog");
  command.footer(
      "Examples:\n"
      "  stepsim calibrate gemm.csv --base h100-sxm-80gb --set peak.bf16=\"600 TFLOP/s\" --set hbm=\"3000 GB/s\" \\\n"
      "              --set memory=\"96 GiB\" --set sms=120 --output my-gpu.textproto\n"
      "  stepsim run --model llama3-8b --hardware my-gpu.textproto --sequence 8192\n"
      "  stepsim calibrate all_reduce_perf.txt all_gather_perf.txt --base h100-sxm-80gb --output my-node.textproto\n"
      "  stepsim calibrate steps.csv --output my-stack.textproto\n"
      "  stepsim calibrate --published results.csv --where \"quality=A|B,gpu=B200\" --write my-stacks\n"
      "  stepsim calibrate --recipe hardware/data/calibration.textproto --data ../shared/data");
}

// What CLI11 could not place: flags that are not built yet, misspelt ones, a second positional.
void refuse_rest(const CLI::App& command) {
  const std::vector<std::string> rest = command.remaining();
  if (rest.empty()) return;
  const std::string word = rest.front();
  const std::string flag = word.substr(0, word.find('='));
  if (flag.empty() || flag.front() != '-') throw InputError({command.get_name()}, "found \"" + word + "\", wanted flags only here");
  for (const std::string_view later : later_flags()) {
    if (later == flag)
      throw InputError({flag}, "found a flag that is not built yet, wanted one of `stepsim " + command.get_name() + " --help`");
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) names.push_back("--" + option->get_lnames().front());
  }
  throw InputError({flag}, "found an unknown flag, wanted one of `stepsim " + command.get_name() + " --help`" + suggestion(flag, names));
}

void refuse_command(const std::string& name, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  for (const std::string_view later : later_commands()) {
    if (later == name) throw InputError({name}, "found a command that is not built yet, wanted one of `stepsim --help`");
  }
  const bool known = std::find(names.begin(), names.end(), name) != names.end();
  if (!known) throw InputError({"stepsim"}, "found command \"" + name + "\", wanted one of `stepsim --help`" + suggestion(name, names));
}

// An empty value means nothing: it is no default. Of all options and positionals of the command, switches too ("--must-fit=").
void refuse_empty(const CLI::App& command, int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    const bool empty = flag.compare(0, 2, "--") == 0 && flag.size() + 1 == word.size();
    if (empty && command.get_option_no_throw(flag) != nullptr) throw InputError({flag}, "found an empty text, wanted a value");
  }
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_min() == 0) continue;  // its value may be absent
    for (const std::string& value : option->results()) {
      const std::string name = option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames().front();
      if (value.empty()) throw InputError({name}, "found an empty text, wanted " + option->get_option_text());
    }
  }
}

// Flags that lack their value or are given twice: CLI11 names neither reliably. A list of values (job flags, --set) may be given twice.
void refuse_values(const CLI::App& command, int argc, char** argv) {
  std::vector<const CLI::Option*> given;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    const CLI::Option* const option = flag.compare(0, 2, "--") == 0 ? command.get_option_no_throw(flag) : nullptr;
    if (option == nullptr || option->get_items_expected_max() == 0) continue;
    const bool takes_next = option->get_items_expected_min() > 0 && flag.size() == word.size();
    if (takes_next && (i + 1 == argc || std::string_view(argv[i + 1]).substr(0, 2) == "--")) {
      throw InputError({flag}, "found no value, wanted one");
    }
    const bool once = option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw;
    if (once && std::find(given.begin(), given.end(), option) != given.end()) throw InputError({flag}, "found it twice, wanted it once");
    given.push_back(option);
    if (takes_next) ++i;
  }
}

void refuse_top_flag(const std::string& word) {
  const std::vector<std::string> known = {"--help", "--version", "-h"};
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  throw InputError({"arguments"}, "found " + word + ", wanted a command, --help or --version" + suggestion(word, known));
}

// CLI11's messages begin with the flag: "--tp: 1 required TEXT missing".
InputError input_error(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::size_t colon = text.find(": ");
  if (colon != std::string::npos && text.front() == '-') return InputError({text.substr(0, colon)}, "found no value, wanted one");
  return InputError({"arguments"}, "found " + text + ", wanted what `stepsim --help` shows");
}

int dispatch(int argc, char** argv) {
  CLI::App app("Simulates one training step of a Transformer: does it fit, how long does it take, what does recompute cost.", "stepsim");
  app.set_version_flag("--version", std::string("stepsim ") + STEPSIM_VERSION);
  app.get_formatter()->column_width(42);
  app.footer("`stepsim COMMAND --help` shows the flags of a command.");
  app.require_subcommand(0, 1);
  Arguments arguments;
  JobArguments run_job, explain_job, compared_jobs;
  add_run(app, arguments.run, run_job);
  add_explain(app, arguments.explain, explain_job);
  add_compare(app, arguments.compare, compared_jobs);
  add_list(app, arguments.list);
  add_simulate(app, arguments.simulate);
  add_validate(app, arguments.validate);
  add_calibrate(app, arguments.calibrate);
  for (CLI::App* command : app.get_subcommands({})) command->allow_extras();

  if (argc < 2) throw InputError({"stepsim"}, "found no command, wanted one of `stepsim --help`");
  if (argv[1][0] != '-') refuse_command(argv[1], app);
  if (argv[1][0] == '-') refuse_top_flag(argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    const int code = app.exit(help);
    if (!std::cout.flush()) throw InputError({"stdout"}, "found no room to write, wanted a writable output");
    return code;
  } catch (const CLI::ParseError& error) {
    for (const CLI::App* command : app.get_subcommands({})) {
      if (command->get_name() == argv[1]) refuse_values(*command, argc, argv);
    }
    for (const CLI::App* command : app.get_subcommands()) refuse_rest(*command);
    throw input_error(error);
  }
  if (app.get_subcommands().empty()) throw InputError({"stepsim"}, "found no command, wanted one of `stepsim --help`");
  const CLI::App& command = *app.get_subcommands().front();
  refuse_rest(command);
  refuse_empty(command, argc, argv);
  const std::string name = command.get_name();
  if (name == "run") arguments.run.job = job_input(run_job);
  if (name == "explain") arguments.explain.job = job_input(explain_job);
  if (name == "compare") {
    arguments.compare.files = compared_jobs.files;
    for (const FlagValue& value : job_input(compared_jobs).flags) {
      (value.flag == "--set" ? arguments.compare.changes : arguments.compare.flags).push_back(value);
    }
    return compare_command(arguments.compare);
  }
  if (name == "run") return run_command(arguments.run);
  if (name == "explain") return explain_command(arguments.explain);
  if (name == "list") return list_command(arguments.list);
  if (name == "simulate") return simulate_command(arguments.simulate);
  if (name == "calibrate") {
    arguments.calibrate.write = command.count("--write") > 0;
    return calibrate_command(arguments.calibrate);
  }
  return validate_command(arguments.validate);
}

// One line, whatever a name from the command line contains.
void print_error(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  std::fputs((text + "\n").c_str(), stderr);
}

// A standard stream that is closed would lend its number to the first output file, into which the summary went. /dev/full refuses what is
// written to it.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/full", O_RDWR);  // takes the lowest number, which is this one
  }
}

}  // namespace
}  // namespace stepsim

int main(int argc, char** argv) {
  stepsim::occupy_standard_streams();
  try {
    return stepsim::dispatch(argc, argv);
  } catch (const stepsim::InputError& error) {
    stepsim::print_error(error.what());
    return stepsim::kExitBadInput;
  } catch (const std::bad_alloc&) {
    stepsim::print_error("stepsim: found a job that needs more memory than this computer has, wanted a smaller one");
    return stepsim::kExitBadInput;
  } catch (const std::exception& error) {
    stepsim::print_error(std::string("stepsim: a bug, please report it with the command line: ") + error.what());
    return stepsim::kExitBug;
  }
}
