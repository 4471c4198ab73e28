#include "tools/job_allocator.h"

#include <array>
#include <charconv>

#include "schema/nearest_name.h"

namespace stepsim {

constexpr const char* kPath = "hardware.allocator";
constexpr std::array<std::string_view, 3> kOptions = {"expandable_segments", "max_split_size_mb", "garbage_collection_threshold"};

// A whole decimal number within the bounds.
static double number_of(const JobValues& values, const std::string& option, const std::string& text, double least, double most,
                        const char* wanted) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool good = read.ec == std::errc() && read.ptr == end && number >= least && number <= most;
  if (!good) values.fail(kPath, "found " + option + ":" + text + ", wanted " + wanted);
  return number;
}

static void apply_option(const JobValues& values, const std::string& option, const std::string& text, AllocatorSettings& settings) {
  if (option == "expandable_segments") {
    if (text != "True" && text != "False") values.fail(kPath, "found expandable_segments:" + text + ", wanted True or False");
    settings.expandable_segments = text == "True";
  } else if (option == "max_split_size_mb") {
    // Above 20 MiB, which is the large pool's segment (CUDAAllocatorConfig.cpp); of mebibytes.
    const double size = number_of(values, option, text, 21, 1 << 20, "whole mebibytes above 20");
    settings.max_split_size = Bytes(static_cast<std::int64_t>(size) << 20);
  } else if (option == "garbage_collection_threshold") {
    settings.collection_threshold = number_of(values, option, text, 1e-6, 0.999999, "a fraction between 0 and 1");
  } else {
    const std::vector<std::string> names(kOptions.begin(), kOptions.end());
    values.fail(kPath, "found \"" + option + "\", wanted expandable_segments, max_split_size_mb or garbage_collection_threshold" +
                           suggestion(option, names));
  }
}

// PYTORCH_ALLOC_CONF="expandable_segments:True" (torchtitan 0168bd5, run_train.sh). Other presets' launchers leave it to the user.
static bool launches_with_expandable_segments(const FrameworkPreset& framework) {
  constexpr std::string_view kTorchtitan = "torchtitan";
  return framework.name.compare(0, kTorchtitan.size(), kTorchtitan) == 0;
}

void resolve_allocator(JobValues& values, Job& job) {
  const std::string list = values.optional_text(kPath).value_or("");
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string each = list.substr(begin, end - begin);
    const std::size_t colon = each.find(':');
    if (colon == std::string::npos) values.fail(kPath, "found \"" + each + "\", wanted OPTION:VALUE");
    apply_option(values, each.substr(0, colon), each.substr(colon + 1), job.allocator);
    begin = end + 1;
  }
  if (const std::optional<bool> given = values.optional_flag("hardware.expandable_segments")) {
    job.allocator.expandable_segments = *given;
  } else if (list.empty() && launches_with_expandable_segments(job.framework)) {
    job.allocator.expandable_segments = true;
    values.note("hardware.expandable_segments", "true", "default: of torchtitan's run_train.sh", JobValue::Form::kSwitch);
  }
}

}  // namespace stepsim
