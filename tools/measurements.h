// Rows of measured kernels and collectives, read from a CSV layout that its head tells or from the output of nccl-tests. Knows no fit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/fit/measured_attention.h"
#include "hardware/fit/measured_collective.h"
#include "hardware/fit/measured_gemm.h"
#include "hardware/fit/measured_memory.h"

namespace stepsim {

// What to make of a shape that was measured more than once.
enum class RepeatRule : std::uint8_t {
  kByClass,  // collectives are kept, all else is refused
  kRefuse,
  kKeep,
};

struct MeasurementOptions {
  std::string gpu{};  // "": the one that the file names
  RepeatRule repeats = RepeatRule::kByClass;
  std::optional<std::int32_t> ranks{};  // of nccl-tests, where its output does not tell
  std::string collective{};             // likewise: all_reduce, all_gather, reduce_scatter, alltoall, sendrecv
  std::int8_t attention_kernel = 3;     // of attention rows without a column `impl`: as Attention::kernel
  std::string implementation{};         // of rows with one: these alone; "": those that have a kernel of ours
};

struct Measurements {
  std::string file{};
  std::string gpu{};                   // as the rows name it; "": they name none
  std::vector<std::string> sources{};  // distinct values of the column `source`, in order, the first few
  std::vector<MeasuredGemm> gemms{};
  std::vector<MeasuredAttention> attentions{};           // forward, of one kernel over many shapes
  std::vector<MeasuredAttention> training_attentions{};  // of kernels that are named, with backward passes or by length
  std::vector<MeasuredMemory> memory{};
  std::vector<MeasuredCollective> collectives{};
  std::map<std::string, std::size_t> skipped{};  // rows that no fit takes, by reason
  std::size_t repeats = 0;                       // rows whose shape stood before
  bool states_rates = false;                     // TFLOP/s in place of latencies
  std::vector<std::string> hosts{};              // of the ranks that nccl-tests list, in order
  int second_host_line = 0;
  std::vector<std::string> notes{};  // what else the user is told of the file

  std::size_t rows() const { return gemms.size() + attentions.size() + training_attentions.size() + memory.size() + collectives.size(); }
};

// InputError "file:line:column: found X, wanted Y" for a head that no layout has, a latency that is no positive number, an unknown op or
// dtype, a shape that comes twice; "--gpu" with the names where the file has several and none is chosen.
Measurements read_measurements(const std::string& file, const std::string& text, const MeasurementOptions& options);

// Two names of one GPU: alike but for case and blanks, or of one catalog machine.
bool same_gpu(const std::string& a, const std::string& b);

// Whether a text is what all_reduce_perf and its siblings print, a run that failed too; and its rows.
bool is_nccl_tests(const std::string& text);
Measurements read_nccl_tests(const std::string& file, const std::string& text, const MeasurementOptions& options);

}  // namespace stepsim
