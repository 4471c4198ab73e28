#include "tools/process_memory.h"

namespace stepsim {

namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20, kMega = 1'000'000;

// What processes show beyond torch's reserved bytes before they communicate: 0.16 to 0.5 GiB (design notes 3.2; no publication).
constexpr ByteRange kContext{Bytes(164 * kMebi), Bytes(512 * kMebi)};

// NCCL, lower: 544 MB for a group of 2, 688 MB for more, A100 and NVLink (NVIDIA/nccl#964). Upper: 1.6 GB after the first collective, about
// 6 GB with three communicators (NVIDIA/nccl#864): 2.2 GB for each further one.
constexpr Bytes kPair(544 * kMega), kGroup(688 * kMega), kFirstMost(1600 * kMega), kFurtherMost(2200 * kMega);

// RCCL: 1 GiB and 0.65 GiB for each further communicator, a rule of thumb (LUMI guide, issue 111).
constexpr Bytes kRcclFirst(1024 * kMebi), kRcclFurther(666 * kMebi);

bool is_amd(const GpuSpec& gpu) { return gpu.name.compare(0, 2, "mi") == 0; }

ByteRange communicator(bool amd, bool first, std::int64_t ranks) {
  if (amd) return first ? ByteRange{kRcclFirst, kRcclFirst} : ByteRange{kRcclFurther, kRcclFurther};
  return {ranks == 2 ? kPair : kGroup, first ? kFirstMost : kFurtherMost};
}

}  // namespace

ByteRange ProcessMemory::communication() const {
  ByteRange sum;
  for (const CommunicatorMemory& each : communicators) sum = sum + each.bytes;
  return sum;
}

bool is_tpu(const GpuSpec& gpu) { return gpu.name.compare(0, 3, "tpu") == 0; }

ProcessMemory process_memory(const Job& job) {
  if (is_tpu(job.gpu)) return {};
  const bool amd = is_amd(job.gpu);
  ProcessMemory memory{.context = kContext, .library = amd ? "RCCL" : "NCCL"};
  memory.sources = amd ? "context 0.16 to 0.5 GiB; RCCL 1 GiB + 0.65 GiB a further communicator (LUMI guide, issue 111)"
                       : "context 0.16 to 0.5 GiB; NCCL 544 MB for 2 ranks, 688 MB for more (nccl#964) to 1.6 GB + 2.2 GB a further "
                         "communicator (nccl#864)";
  const ParallelLayout& parallel = job.parallel;
  const std::pair<const char*, std::int64_t> groups[] = {
      {"tp", parallel.tensor}, {"dp", parallel.data}, {"pp", parallel.pipeline}, {"cp", parallel.context}, {"ep", parallel.expert}};
  for (const auto& [group, ranks] : groups) {
    if (ranks < 2) continue;
    memory.communicators.push_back({group, ranks, communicator(amd, memory.communicators.empty(), ranks)});
  }
  return memory;
}

}  // namespace stepsim
