#include "sim/op_work.h"

#include <algorithm>
#include <limits>

#include "sim/check.h"

namespace stepsim {

namespace {

// Sizes of absurd shapes saturate instead of wrapping; no real buffer comes near 2^63 bytes.
Bytes saturated(double bytes) {
  if (bytes >= 9.2e18) return Bytes(std::numeric_limits<std::int64_t>::max());
  return Bytes(static_cast<std::int64_t>(bytes));
}

double bytes_per_element(DType dtype) { return as_double(bits_of(dtype)) / 8; }

struct ClassOf {
  OpClass operator()(const Marker&) const { return OpClass::kMarker; }
  OpClass operator()(const Gemm&) const { return OpClass::kCompute; }
  OpClass operator()(const Attention&) const { return OpClass::kCompute; }
  OpClass operator()(const MemoryBound&) const { return OpClass::kCompute; }
  OpClass operator()(const Collective& work) const {
    return work.kind == CollectiveKind::kSendReceive ? OpClass::kPointToPoint : OpClass::kCollective;
  }
  OpClass operator()(const Copy& work) const {
    switch (work.direction) {
      case CopyDirection::kDeviceToHost:
        return OpClass::kCopyToHost;
      case CopyDirection::kHostToDevice:
        return OpClass::kCopyToDevice;
      case CopyDirection::kDeviceToDevice:
        return OpClass::kCompute;  // stays in device memory: never a wait for the host
    }
    check_failed("copy direction", __FILE__, __LINE__);
  }
  OpClass operator()(const Given& work) const {
    switch (work.op_class) {
      case Given::Class::kCompute:
        return OpClass::kCompute;
      case Given::Class::kCollective:
        return OpClass::kCollective;
      case Given::Class::kCopyToHost:
        return OpClass::kCopyToHost;
      case Given::Class::kCopyToDevice:
        return OpClass::kCopyToDevice;
      case Given::Class::kPointToPoint:
        return OpClass::kPointToPoint;
    }
    check_failed("class of given work", __FILE__, __LINE__);
  }
};

struct ArithmeticOf {
  template <class Work>
  Flops operator()(const Work&) const {
    return Flops(0);
  }
  Flops operator()(const Gemm& work) const {
    return Flops(2 * as_double(work.m) * as_double(work.n) * as_double(work.k) * as_double(work.batch));
  }
  Flops operator()(const Attention& work) const {
    // Two products of queries x keys x head_dim each, forward; five instead of two backward (FlashAttention-2, arXiv 2307.08691,
    // section 4.1).
    double flops = 4 * as_double(work.batch) * as_double(work.heads) * as_double(work.queries) * as_double(work.keys);
    flops *= as_double(work.head_dim);
    if (work.causal) flops *= 0.5;
    if (work.backward) flops *= 2.5;
    return Flops(flops);
  }
};

struct TrafficOf {
  Bytes operator()(const Marker&) const { return Bytes(0); }
  Bytes operator()(const Given&) const { return Bytes(0); }
  Bytes operator()(const Gemm& work) const {
    const double m = as_double(work.m), n = as_double(work.n), k = as_double(work.k), element = bytes_per_element(work.dtype);
    const double output = (work.accumulate_fp32 ? 4 : element) * m * n;
    const double passes = work.accumulate_fp32 || work.accumulate ? 2 : 1;  // an accumulator is read and written
    return saturated(as_double(work.batch) * (element * (m * k + k * n) + passes * output));
  }
  Bytes operator()(const Attention& work) const {
    // Forward: q and o, k and v. Backward: q, o and both gradients; k, v and their gradients.
    const double operands = work.backward ? 4 : 2;
    const double query_rows = as_double(work.heads) * as_double(work.queries);
    const double key_rows = as_double(work.kv_heads) * as_double(work.keys);
    const double rows = as_double(work.batch) * operands * (query_rows + key_rows);
    return saturated(rows * as_double(work.head_dim) * bytes_per_element(work.dtype));
  }
  Bytes operator()(const MemoryBound& work) const { return saturated(as_double(work.read.value) + as_double(work.written.value)); }
  Bytes operator()(const Collective& work) const {
    const double message = as_double(work.message.value);
    STEPSIM_CHECK(work.ranks >= 1);
    switch (work.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kDispatch:
      case CollectiveKind::kCombine:
        return saturated(2 * message);
      case CollectiveKind::kAllGather:
      case CollectiveKind::kReduceScatter:
        return saturated(message + message / work.ranks);  // the whole and this rank's shard
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kSendReceive:
        return work.message;
    }
    check_failed("collective kind", __FILE__, __LINE__);
  }
  Bytes operator()(const Copy& work) const {
    // Both ends of a copy within the device are in its memory.
    return work.direction == CopyDirection::kDeviceToDevice ? saturated(2 * as_double(work.bytes.value)) : work.bytes;
  }
};

}  // namespace

// One part's experts are all missed with probability (reachable - part) / reachable x (reachable - part - 1) / (reachable - 1) x ...
double parts_reached(const Routing& routing, std::int64_t parts) {
  STEPSIM_CHECK(routing.experts >= 1);
  STEPSIM_CHECK(parts >= 1);
  const std::int64_t part = std::max<std::int64_t>(1, routing.experts / parts), group = routing.experts / std::max(1, routing.groups);
  const bool grouped = routing.best_groups < routing.groups && part <= group;
  const std::int64_t reachable = grouped ? group * routing.best_groups : routing.experts;
  double missed = 1;
  for (std::int64_t i = 0; i < routing.choices && missed > 0; ++i) {
    missed *= std::max(0.0, as_double(reachable - part - i)) / as_double(reachable - i);
  }
  return as_double(reachable) / as_double(part) * (1 - missed);
}

OpClass op_class(const OpWork& work) { return std::visit(ClassOf{}, work); }
Flops arithmetic(const OpWork& work) { return std::visit(ArithmeticOf{}, work); }
Bytes memory_traffic(const OpWork& work) { return std::visit(TrafficOf{}, work); }

std::int64_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kTf32:
    case DType::kInt32:
      return 32;
    case DType::kBf16:
    case DType::kFp16:
      return 16;
    case DType::kFp8:
    case DType::kMxFp8:
    case DType::kUint8:
      return 8;
    case DType::kNvFp4:
      return 4;
    case DType::kInt64:
      return 64;
  }
  check_failed("dtype", __FILE__, __LINE__);
}

}  // namespace stepsim
