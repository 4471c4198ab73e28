#include "tools/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "schema/read_message.h"
#include "sim/input_error.h"
#include "tools/measurements.h"

namespace stepsim {

// Messages of the reader name flags of `calibrate`.
static Measurements measurements_of(const std::string& file, const std::string& text, const std::string& gpu) {
  try {
    return read_measurements(file, text, {.gpu = gpu});
  } catch (const InputError& error) {
    std::string what = error.what();
    const std::string flag = "--gpu: ", hint = " (--repeats";
    if (what.compare(0, flag.size(), flag) == 0) {  // rows of other GPUs: no misspelling of the job's
      throw InputError({"--profile"}, what.substr(flag.size(), what.find(", did you mean") - flag.size()));
    }
    const std::size_t at = what.find(hint);
    if (at == std::string::npos) throw;
    what.resize(at);
    const std::size_t problem = what.find(": found ");
    if (problem == std::string::npos) throw;
    throw InputError({what.substr(0, problem)}, what.substr(problem + 2));
  }
}

// Only collectives come more than once.
class MeasuredTimes {
 public:
  explicit MeasuredTimes(const std::string& file) : file_(file) {}
  void add(int line, const OpWork& work, double measured_s) {
    constexpr double kMost_s = 1000;
    if (!(measured_s < kMost_s))
      throw InputError({file_, line, 1}, fmt::format("found a kernel of {:.3g} s, wanted less than 1000 s", measured_s));
    times_[work].push_back(duration_from_seconds(measured_s));
  }
  std::vector<MeasuredKernel> medians() {
    std::vector<MeasuredKernel> kernels;
    for (auto& [work, times] : times_) {
      const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
      std::nth_element(times.begin(), middle, times.end());
      if (middle->count() > 0) kernels.push_back({work, *middle});
    }
    return kernels;
  }

 private:
  const std::string& file_;
  std::map<OpWork, std::vector<Duration>> times_;
};

static void add_attention(const std::vector<MeasuredAttention>& rows, MeasuredTimes& times) {
  for (const MeasuredAttention& row : rows) {
    if (row.pass == AttentionPass::kBoth) continue;  // which part backward takes is not known
    Attention work = row.work;
    work.backward = row.pass == AttentionPass::kBackward;
    times.add(row.line, work, row.measured_s);
  }
}

static KernelProfile profile_of_table(const std::string& file, const std::string& text, const GpuSpec& gpu) {
  const Measurements measured = measurements_of(file, text, gpu.name);
  MeasuredTimes times(file);
  for (const MeasuredGemm& row : measured.gemms) times.add(row.line, row.work, row.measured_s);
  add_attention(measured.attentions, times);
  add_attention(measured.training_attentions, times);
  for (const MeasuredMemory& row : measured.memory) times.add(row.line, row.work, row.measured_s);
  for (const MeasuredCollective& row : measured.collectives) times.add(row.line, row.work, row.measured_s);
  KernelProfile profile{file, times.medians()};
  if (profile.kernels.empty())
    throw InputError({"--profile"}, "found no row of a kernel that is costed in " + file + ", wanted at least one");
  return profile;
}

KernelProfile load_kernel_profile(const std::string& file, const GpuSpec& gpu) {
  const auto ends_in = [&](std::string_view end) {
    return file.size() > end.size() && file.compare(file.size() - end.size(), end.size(), end) == 0;
  };
  const std::string text = read_text_file(file, kLargestTable);
  if (is_nccl_tests(text)) return profile_of_table(file, text, gpu);  // all_reduce_perf.txt
  if (ends_in(".textproto") || ends_in(".txt") || ends_in(".json")) return parse_kernel_profile(text, file, gpu);
  return profile_of_table(file, text, gpu);
}

}  // namespace stepsim
