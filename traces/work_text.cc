#include "traces/work_text.h"

#include <fmt/format.h>

#include "sim/check.h"
#include "sim/dtype_name.h"

namespace stepsim {

namespace {

std::string_view kernel_text(MemoryKernel kernel) {
  switch (kernel) {
    case MemoryKernel::kFusedElementwise:
      return "fused elementwise";
    case MemoryKernel::kNorm:
      return "norm";
    case MemoryKernel::kSoftmax:
      return "softmax";
    case MemoryKernel::kUnfused:
      return "unfused";
    case MemoryKernel::kGather:
      return "gather";
    case MemoryKernel::kQuantize:
      return "quantize";
    case MemoryKernel::kTopK:
      return "top-k";
    case MemoryKernel::kHostUpdate:
      return "host update";
  }
  check_failed("memory kernel", __FILE__, __LINE__);
}

std::string_view collective_text(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSendReceive:
      return "send-receive";
    case CollectiveKind::kDispatch:
      return "dispatch";
    case CollectiveKind::kCombine:
      return "combine";
  }
  check_failed("collective kind", __FILE__, __LINE__);
}

std::string_view direction_text(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kDeviceToHost:
      return "device to host";
    case CopyDirection::kHostToDevice:
      return "host to device";
    case CopyDirection::kDeviceToDevice:
      return "device to device";
  }
  check_failed("copy direction", __FILE__, __LINE__);
}

struct TextOf {
  std::string operator()(const Marker&) const { return ""; }
  std::string operator()(const Given&) const { return ""; }
  std::string operator()(const Gemm& w) const {
    std::string batch = w.batch == 1 ? "" : fmt::format(" batch={}", w.batch);
    if (w.in_flight > 0) batch += fmt::format(" in_flight={}", w.in_flight);
    return fmt::format("gemm m={} n={} k={}{} {}{}{}", w.m, w.n, w.k, batch, w.transpose_a ? 'T' : 'N', w.transpose_b ? "T " : "N ",
                       dtype_name(w.dtype)) +
           (w.accumulate_fp32 ? " into fp32"
            : w.accumulate    ? " added"
                              : "");
  }
  std::string operator()(const Attention& w) const {
    return fmt::format("attention {} batch={} heads={} kv_heads={} queries={} keys={} head_dim={}{} {}",
                       w.backward ? "backward" : "forward", w.batch, w.heads, w.kv_heads, w.queries, w.keys, w.head_dim,
                       w.causal ? " causal" : "", dtype_name(w.dtype));
  }
  std::string operator()(const MemoryBound& w) const {
    const std::string launches = w.launches == 1 ? "" : fmt::format(" launches={}", w.launches);
    return fmt::format("{} read={} written={}{}", kernel_text(w.kernel), w.read.value, w.written.value, launches);
  }
  std::string operator()(const Collective& w) const {
    return fmt::format("{} message={} ranks={}", collective_text(w.kind), w.message.value, w.ranks);
  }
  std::string operator()(const Copy& w) const {
    return fmt::format("copy {}{}{}", direction_text(w.direction), w.pinned ? "" : " pageable", w.allocates ? " allocating" : "");
  }
};

}  // namespace

std::string work_text(const OpWork& work) { return std::visit(TextOf(), work); }

std::string_view class_text(OpClass op_class) {
  switch (op_class) {
    case OpClass::kMarker:
      return "marker";
    case OpClass::kCompute:
      return "compute";
    case OpClass::kCollective:
      return "collective";
    case OpClass::kPointToPoint:
      return "point-to-point";
    case OpClass::kCopyToHost:
      return "copy to host";
    case OpClass::kCopyToDevice:
      return "copy to device";
  }
  check_failed("op class", __FILE__, __LINE__);
}

}  // namespace stepsim
