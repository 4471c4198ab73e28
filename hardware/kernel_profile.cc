#include "hardware/kernel_profile.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>

#include "hardware/catalog_source.h"
#include "hardware/field_reader.h"
#include "hardware/profile.pb.h"
#include "schema/read_message.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

DType dtype_of(files::NumberFormat format) {
  constexpr std::array<DType, 7> kTypes = {DType::kBf16, DType::kFp32,  DType::kTf32, DType::kFp16,
                                           DType::kFp8,  DType::kMxFp8, DType::kNvFp4};
  return kTypes.at(static_cast<std::size_t>(format));
}

// Reads the fields of one kernel after the other and sees to it that none stands twice.
class ProfileReader {
 public:
  ProfileReader(std::string_view text, const std::string& file) : text_(text), file_(file), fields_(text, file, {}), profile_{file, {}} {}

  void check_machine(const std::string& machine, const GpuSpec& gpu) const;
  void add(const files::ProfiledGemm& row);
  void add(const files::ProfiledAttention& row);
  void add(const files::ProfiledMemory& row);
  void add(const files::ProfiledCollective& row);
  template <class Rows>
  void add_all(const char* name, const Rows& rows) {
    for (int i = 0; i < rows.size(); ++i) {
      row_ = fmt::format("{}[{}]", name, i);
      add(rows[i]);
    }
  }
  KernelProfile profile() const {
    if (profile_.kernels.empty())
      throw InputError({file_, 1, 1}, "found no kernel, wanted at least one gemm, attention, memory or collective");
    return profile_;
  }

 private:
  std::int64_t count(const char* field, bool given, std::int64_t value) const;
  Bytes bytes(const char* field, bool given, const std::string& value) const;
  void measured(const OpWork& work, bool given, const std::string& latency);

  std::string_view text_;
  const std::string& file_;
  FieldReader fields_;
  KernelProfile profile_;
  std::string row_{};  // "gemm[3]"
  std::map<OpWork, std::string> seen_{};
};

void ProfileReader::check_machine(const std::string& machine, const GpuSpec& gpu) const {
  if (normalized_name(machine) == normalized_name(gpu.name)) return;
  std::string name;
  try {
    name = is_catalog_file(machine) ? machine : load_gpu(machine).name;
  } catch (const InputError& error) {
    const std::string what = error.what();
    throw InputError(locate_field(text_, file_, "machine"), what.substr(what.find("found ")));
  }
  if (name == gpu.name) return;
  throw InputError(locate_field(text_, file_, "machine"), fmt::format("found kernels of {}, wanted those of {}", name, gpu.name));
}

std::int64_t ProfileReader::count(const char* field, bool given, std::int64_t value) const {
  constexpr std::int64_t kMost = 1 << 24;  // as the columns of tables of measurements
  if (!given) fields_.fail(row_ + "." + field, "found none, wanted a whole number above zero");
  if (value < 1 || value > kMost) fields_.fail(row_ + "." + field, fmt::format("found {}, wanted 1 to 2^24", value));
  return value;
}

Bytes ProfileReader::bytes(const char* field, bool given, const std::string& value) const {
  constexpr Bytes kMost{std::int64_t{1} << 40};
  const std::string path = row_ + "." + field;
  const Bytes bytes = fields_.bytes(path, given ? std::optional(value) : std::nullopt);
  if (bytes > kMost) fields_.fail(path, fmt::format("found \"{}\", wanted 1 TiB at most", value));
  return bytes;
}

void ProfileReader::measured(const OpWork& work, bool given, const std::string& latency) {
  const std::string path = row_ + ".latency";
  const Duration time = fields_.duration(path, given ? std::optional(latency) : std::nullopt);
  if (time.count() <= 0) fields_.fail(path, fmt::format("found \"{}\", wanted more than zero", latency));
  const auto [place, fresh] = seen_.emplace(work, row_);
  if (!fresh) {
    const SourceLocation before = locate_field(text_, file_, place->second);
    throw InputError(locate_field(text_, file_, row_), fmt::format("found the kernel of line {} again, wanted each once", before.line));
  }
  profile_.kernels.push_back({work, time});
}

void ProfileReader::add(const files::ProfiledGemm& row) {
  Gemm work{.m = count("m", row.has_m(), row.m()), .n = count("n", row.has_n(), row.n()), .k = count("k", row.has_k(), row.k())};
  if (row.has_batch()) work.batch = count("batch", true, row.batch());
  work.dtype = dtype_of(row.dtype());
  work.transpose_a = row.layout() == files::ProfiledGemm::TN;
  work.transpose_b = row.layout() == files::ProfiledGemm::NT;
  work.accumulate_fp32 = row.accumulation() == files::ProfiledGemm::fp32_buffer;
  work.accumulate = row.accumulation() == files::ProfiledGemm::own_type;
  measured(work, row.has_latency(), row.latency());
}

void ProfileReader::add(const files::ProfiledAttention& row) {
  Attention work{.batch = count("batch", row.has_batch(), row.batch()),
                 .heads = count("heads", row.has_heads(), row.heads()),
                 .queries = count("queries", row.has_queries(), row.queries()),
                 .head_dim = count("head_dim", row.has_head_dim(), row.head_dim())};
  work.kv_heads = row.has_kv_heads() ? count("kv_heads", true, row.kv_heads()) : work.heads;
  work.keys = row.has_keys() ? count("keys", true, row.keys()) : work.queries;
  work.dtype = dtype_of(row.dtype());
  work.causal = !row.has_causal() || row.causal();
  work.backward = row.backward();
  work.kernel = static_cast<std::int8_t>(row.kernel());
  measured(work, row.has_latency(), row.latency());
}

void ProfileReader::add(const files::ProfiledMemory& row) {
  MemoryBound work{.kernel = static_cast<MemoryKernel>(row.kernel())};
  if (row.has_read() || !row.has_written()) work.read = bytes("read", row.has_read(), row.read());
  if (row.has_written()) work.written = bytes("written", true, row.written());
  measured(work, row.has_latency(), row.latency());
}

void ProfileReader::add(const files::ProfiledCollective& row) {
  Collective work{.kind = static_cast<CollectiveKind>(row.kind()), .message = bytes("message", row.has_message(), row.message())};
  work.ranks = static_cast<std::int32_t>(count("ranks", row.has_ranks(), row.ranks()));
  if (row.has_stride()) work.stride = static_cast<std::int32_t>(count("stride", true, row.stride()));
  if (work.ranks == 1) fields_.fail(row_ + ".ranks", "found 1, wanted at least 2");
  measured(work, row.has_latency(), row.latency());
}

}  // namespace

KernelProfile parse_kernel_profile(std::string_view text, const std::string& file, const GpuSpec& gpu) {
  files::Profile message;
  read_source({"", file, std::string(text)}, message);
  ProfileReader reader(text, file);
  if (message.has_machine()) reader.check_machine(message.machine(), gpu);
  reader.add_all("gemm", message.gemm());
  reader.add_all("attention", message.attention());
  reader.add_all("memory", message.memory());
  reader.add_all("collective", message.collective());
  return reader.profile();
}

}  // namespace stepsim
