#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/calibrate_steps.h"
#include "tools/calibration_report.h"
#include "tools/catalog_recipe.h"
#include "tools/commands.h"
#include "tools/csv_table.h"
#include "tools/job_flags.h"
#include "tools/outputs.h"
#include "tools/progress_bar.h"

namespace stepsim {

static RepeatRule repeat_rule(const std::string& text) {
  if (text.empty()) return RepeatRule::kByClass;
  if (text == "refuse") return RepeatRule::kRefuse;
  if (text == "keep") return RepeatRule::kKeep;
  throw InputError({"--repeats"}, "found \"" + text + "\", wanted refuse or keep");
}

static MeasurementOptions measurement_options(const CalibrateArguments& arguments) {
  MeasurementOptions options{.gpu = arguments.gpu, .repeats = repeat_rule(arguments.repeats), .collective = arguments.collective};
  if (!arguments.ranks.empty()) {
    std::int32_t ranks = 0;
    const char* const end = arguments.ranks.data() + arguments.ranks.size();
    const auto read = std::from_chars(arguments.ranks.data(), end, ranks);
    constexpr std::int32_t kMost = 1 << 20;
    if (read.ec != std::errc() || read.ptr != end || ranks < 2 || ranks > kMost) {
      throw InputError({"--ranks"}, "found \"" + arguments.ranks + "\", wanted a whole number from 2 to 2^20");
    }
    options.ranks = ranks;
  }
  return options;
}

static std::string output_of(const CalibrateArguments& arguments) {
  if (!arguments.output.empty()) return arguments.output;
  return arguments.json == "-" ? "" : "-";
}

// A name that --hardware and --stack take for a file.
static void check_output_name(const std::string& path) {
  const std::string end = ".textproto";
  const bool named = path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
  if (path.empty() || path == "-" || path == "/dev/null" || named) return;
  throw InputError({"--output"}, "found \"" + path + "\", wanted - or a name that ends in .textproto, which --hardware and --stack read");
}

std::string given_kernel_flag(const CalibrateArguments& arguments) {
  const std::pair<const char*, bool> given[] = {{"--gpu", !arguments.gpu.empty()},
                                                {"--base", !arguments.base.empty()},
                                                {"--set", !arguments.sets.empty()},
                                                {"--repeats", !arguments.repeats.empty()},
                                                {"--ranks", !arguments.ranks.empty()},
                                                {"--collective", !arguments.collective.empty()},
                                                {"--conditions", !arguments.conditions.empty()}};
  const auto found = std::find_if(std::begin(given), std::end(given), [](const auto& flag) { return flag.second; });
  return found != std::end(given) ? found->first : "";
}

static int calibrate_steps_of(const CalibrateArguments& arguments, const std::string& text) {
  if (const std::string flag = given_kernel_flag(arguments); !flag.empty()) {
    throw InputError({flag}, "found it with a file of measured steps, wanted it with measured kernels (its rows say their jobs)");
  }
  StepCalibration calibration;
  const std::vector<Output> outputs = {{"--output", output_of(arguments), [&](const TextSink& sink) { sink(stack_text(calibration)); }},
                                       {"--json", arguments.json, [&](const TextSink& sink) { sink(step_calibration_json(calibration)); }}};
  std::vector<MeasuredStep> steps = read_measured_steps(arguments.files.front(), text);
  std::vector<std::string> inputs = arguments.files;
  for (const MeasuredStep& step : steps) inputs.insert(inputs.end(), step.job.files.begin(), step.job.files.end());
  check_outputs(outputs, inputs);
  {
    ProgressBar bar;
    calibration = calibrate_steps(arguments.files.front(), std::move(steps), {.software = arguments.software},
                                  [&](std::size_t done, std::size_t all) {
                                    bar.show(static_cast<double>(done) / static_cast<double>(all == 0 ? 1 : all),
                                             fmt::format("steps, {} of {} simulations", done, all));
                                  });
  }
  write_outputs(outputs, step_calibration_text(calibration));
  return kExitDone;
}

static bool is_step_file(const std::string& file, const std::string& text) {
  if (is_nccl_tests(text)) return false;
  const std::string head = text.substr(0, text.find('\n')) + "\n";
  return is_step_table(parse_csv(head, file).head);
}

static int calibrate_kernels(const CalibrateArguments& arguments, const std::vector<std::string>& texts) {
  if (!arguments.software.empty()) throw InputError({"--software"}, "found it with measured kernels, wanted it with measured steps");
  MachineRequest request{.files = {}, .gpu = arguments.gpu, .base = arguments.base, .facts = {}, .conditions = arguments.conditions};
  for (const std::string& set : arguments.sets) {
    const FlagValue value = parse_set(set);
    request.facts.emplace_back(value.path, value.value);
  }
  const MeasurementOptions options = measurement_options(arguments);
  if (std::none_of(texts.begin(), texts.end(), is_nccl_tests)) {
    for (const auto& [flag, value] : {std::pair("--ranks", &arguments.ranks), std::pair("--collective", &arguments.collective)}) {
      if (!value->empty()) throw InputError({flag}, "found it without nccl-tests output, wanted none");
    }
  }
  CalibratedMachine machine;
  const std::vector<Output> outputs = {
      {"--output", output_of(arguments), [&](const TextSink& sink) { sink(machine.text); }},
      {"--json", arguments.json, [&](const TextSink& sink) { sink(calibration_json(machine, request.files)); }}};
  check_outputs(outputs, arguments.files);
  for (std::size_t i = 0; i < texts.size(); ++i) request.files.push_back(read_measurements(arguments.files[i], texts[i], options));
  for (const Measurements& file : request.files) {
    const std::string &first = request.files.front().gpu, &name = file.gpu;
    if (first != name && !first.empty() && !name.empty() && !same_gpu(first, name)) {
      throw InputError({"--gpu"}, fmt::format("found {} in {} and {} in {}, wanted rows of one GPU", first, request.files.front().file,
                                              name, file.file));
    }
  }
  {
    ProgressBar bar;
    machine = calibrate_machine(request, [&](double part, const std::string& what) { bar.show(part, what); });
  }
  write_outputs(outputs, calibration_text(machine, request.files));
  return kExitDone;
}

int calibrate_command(const CalibrateArguments& arguments) {
  if (!arguments.recipe.empty()) return recipe_command(arguments);
  if (!arguments.published.empty()) return published_command(arguments);
  if (!arguments.data.empty() || arguments.write) {
    throw InputError({arguments.write ? "--write" : "--data"}, "found it without --recipe, wanted both");
  }
  for (const auto& [flag, value] : {std::pair("--format", &arguments.format), std::pair("--where", &arguments.where),
                                    std::pair("--models", &arguments.models), std::pair("--date", &arguments.date)}) {
    if (!value->empty()) throw InputError({flag}, "found it without --published, wanted both");
  }
  check_output_name(arguments.output);
  if (arguments.files.empty())
    throw InputError({"calibrate"}, "found no file, wanted measured kernels or steps (stepsim calibrate --help)");
  std::vector<std::string> sorted = arguments.files;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) throw InputError({*twice}, "found the file twice, wanted it once");
  std::vector<std::string> texts;
  for (const std::string& file : arguments.files) texts.push_back(read_text_file(file, kLargestTable));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!is_step_file(arguments.files[i], texts[i])) continue;
    if (texts.size() > 1) throw InputError({arguments.files[i]}, "found measured steps beside other files, wanted them alone");
    return calibrate_steps_of(arguments, texts[i]);
  }
  return calibrate_kernels(arguments, texts);
}

}  // namespace stepsim
