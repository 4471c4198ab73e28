#include "traces/graph_work.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "sim/check.h"
#include "traces/graph.pb.h"

namespace stepsim {

namespace {

// Shapes far above any real one, whose products stay below 2^63: four factors of 2^40 would not, so the products are checked as well.
constexpr std::int64_t kLargestDimension = std::int64_t{1} << 40;
constexpr double kLargestProduct = 4e18;  // bytes or elements; int64 ends at 9.2e18

constexpr DType kDTypes[] = {DType::kBf16,  DType::kFp32,  DType::kTf32,  DType::kFp16,  DType::kFp8,
                             DType::kMxFp8, DType::kNvFp4, DType::kInt64, DType::kInt32, DType::kUint8};  // in the order of graph.proto

// The other enums are in the order of sim/op_work.h. Protobuf keeps numbers that it does not know in an enum field (binary form).
static_assert(static_cast<int>(MemoryKernel::kHostUpdate) == graph_file::host_update);
static_assert(static_cast<int>(CollectiveKind::kCombine) == graph_file::combine);
static_assert(static_cast<int>(CollectiveLibrary::kHybridEp) == graph_file::hybrid_ep);
static_assert(static_cast<int>(CopyDirection::kDeviceToDevice) == graph_file::device_to_device);
static_assert(static_cast<int>(Given::Class::kPointToPoint) == graph_file::point_to_point);
template <class Enum>
Enum known(const FieldPath& path, int value, int count, const GraphSource& source) {
  return static_cast<Enum>(source.within(path, value, 0, count - 1));
}

DType dtype(const FieldPath& path, int value, const GraphSource& source) {
  static_assert(std::size(kDTypes) == graph_file::DType_ARRAYSIZE);
  return kDTypes[source.within(path, value, 0, graph_file::DType_MAX)];
}

std::int64_t dimension(const FieldPath& path, std::int64_t value, const GraphSource& source) {
  return source.within(path, value, 1, kLargestDimension);
}

void check_product(const FieldPath& path, std::initializer_list<std::int64_t> factors, const GraphSource& source) {
  double product = 1;
  for (const std::int64_t factor : factors) product *= static_cast<double>(factor);
  if (product > kLargestProduct) source.fail(path, "found a shape of more than 4e18 bytes, wanted a smaller one");
}

constexpr std::int64_t kWidestElement = 8;  // bytes
constexpr std::int64_t kMostRanks = 1 << 24;

OpWork work_of(const graph_file::Gemm& m, const FieldPath& path, const GraphSource& source) {
  const auto size = [&](std::string_view name, std::int64_t value) { return dimension({&path, name}, value, source); };
  const Gemm work{.m = size("m", m.m()),
                  .n = size("n", m.n()),
                  .k = size("k", m.k()),
                  .batch = m.has_batch() ? size("batch", m.batch()) : 1,
                  .dtype = dtype({&path, "dtype"}, m.dtype(), source),
                  .transpose_a = m.transpose_a(),
                  .transpose_b = m.transpose_b(),
                  .accumulate_fp32 = m.accumulate_fp32(),
                  .accumulate = m.accumulate(),
                  .in_flight = static_cast<std::int8_t>(source.within({&path, "in_flight"}, m.in_flight(), 0, 127))};
  check_product(path, {work.m, work.k, work.batch, kWidestElement, 4}, source);
  check_product(path, {work.k, work.n, work.batch, kWidestElement, 4}, source);
  check_product(path, {work.m, work.n, work.batch, kWidestElement, 4}, source);
  return work;
}

OpWork work_of(const graph_file::Attention& a, const FieldPath& path, const GraphSource& source) {
  const auto size = [&](std::string_view name, std::int64_t value) { return dimension({&path, name}, value, source); };
  const Attention work{.batch = size("batch", a.batch()),
                       .heads = size("heads", a.heads()),
                       .kv_heads = a.has_kv_heads() ? size("kv_heads", a.kv_heads()) : a.heads(),
                       .queries = size("queries", a.queries()),
                       .keys = a.has_keys() ? size("keys", a.keys()) : a.queries(),
                       .head_dim = size("head_dim", a.head_dim()),
                       .dtype = dtype({&path, "dtype"}, a.dtype(), source),
                       .causal = a.has_causal() ? a.causal() : true,
                       .backward = a.backward(),
                       .kernel = known<std::int8_t>({&path, "kernel"}, a.kernel(), graph_file::Attention::Kernel_ARRAYSIZE, source)};
  const std::int64_t heads = std::max(work.heads, work.kv_heads);
  check_product(path, {work.batch, heads, std::max(work.queries, work.keys), work.head_dim, kWidestElement, 16}, source);
  return work;
}

Bytes moved_bytes(const FieldPath& path, const std::string& text, const GraphSource& source) {
  const Bytes bytes = source.bytes(path, text);
  if (bytes.value > std::numeric_limits<std::int64_t>::max() / 4) source.fail(path, "found " + in_quotes(text) + ", wanted at most 2 EiB");
  return bytes;
}

OpWork work_of(const graph_file::MemoryBound& m, const FieldPath& path, const GraphSource& source) {
  if (m.read().empty() && m.written().empty()) source.fail(path, "found neither read nor written, wanted a size like \"8 MiB\"");
  const auto bytes = [&](std::string_view name, const std::string& text) {
    return text.empty() ? Bytes(0) : moved_bytes({&path, name}, text, source);
  };
  return MemoryBound{
      .read = bytes("read", m.read()),
      .written = bytes("written", m.written()),
      .kernel = known<MemoryKernel>({&path, "kernel"}, m.kernel(), graph_file::MemoryKernel_ARRAYSIZE, source),
      .launches = m.has_launches() ? static_cast<std::int32_t>(source.within({&path, "launches"}, m.launches(), 1, kMostRanks)) : 1};
}

// Absent: nothing is known.
Routing routing_of(const graph_file::Routing& r, const FieldPath& path, const GraphSource& source) {
  const auto count = [&](std::string_view name, std::int64_t value, std::int64_t most) {
    return static_cast<std::int32_t>(source.within({&path, name}, value, 1, most));
  };
  Routing routing{.experts = count("experts", r.experts(), kMostRanks)};
  routing.choices = count("choices", r.choices(), routing.experts);
  routing.groups = r.has_groups() ? count("groups", r.groups(), routing.experts) : 1;
  routing.best_groups = r.has_best_groups() ? count("best_groups", r.best_groups(), routing.groups) : 1;
  return routing;
}

OpWork work_of(const graph_file::Collective& c, const FieldPath& path, const GraphSource& source) {
  return Collective{.kind = known<CollectiveKind>({&path, "kind"}, c.kind(), graph_file::CollectiveKind_ARRAYSIZE, source),
                    .message = moved_bytes({&path, "message"}, c.message(), source),
                    .ranks = static_cast<std::int32_t>(source.within({&path, "ranks"}, c.ranks(), 1, kMostRanks)),
                    .stride = c.has_stride() ? static_cast<std::int32_t>(source.within({&path, "stride"}, c.stride(), 1, kMostRanks)) : 1,
                    .library = known<CollectiveLibrary>({&path, "library"}, c.library(), graph_file::CollectiveLibrary_ARRAYSIZE, source),
                    .routing = c.has_routing() ? routing_of(c.routing(), {&path, "routing"}, source) : Routing{}};
}

OpWork work_of(const graph_file::Copy& c, const FieldPath& path, const GraphSource& source) {
  return Copy{.bytes = moved_bytes({&path, "bytes"}, c.bytes(), source),
              .direction = known<CopyDirection>({&path, "direction"}, c.direction(), graph_file::CopyDirection_ARRAYSIZE, source),
              .pinned = c.has_pinned() ? c.pinned() : true,
              .allocates = c.allocates()};
}

std::string bytes_text(Bytes bytes) { return std::to_string(bytes.value) + " B"; }

graph_file::DType message_dtype(DType dtype) {
  for (int i = 0; i < graph_file::DType_ARRAYSIZE; ++i) {
    if (kDTypes[i] == dtype) return static_cast<graph_file::DType>(i);
  }
  check_failed("dtype", __FILE__, __LINE__);
}

struct SetWork {
  graph_file::Op& op;

  void operator()(const Marker&) const { op.set_marker(true); }
  void operator()(const Given& w) const { op.set_class_(static_cast<graph_file::OpClass>(w.op_class)); }
  void operator()(const Gemm& w) const {
    graph_file::Gemm& gemm = *op.mutable_gemm();
    gemm.set_m(w.m);
    gemm.set_n(w.n);
    gemm.set_k(w.k);
    if (w.batch != 1) gemm.set_batch(w.batch);
    gemm.set_dtype(message_dtype(w.dtype));
    gemm.set_transpose_a(w.transpose_a);
    gemm.set_transpose_b(w.transpose_b);
    gemm.set_accumulate_fp32(w.accumulate_fp32);
    gemm.set_accumulate(w.accumulate);
    if (w.in_flight != 0) gemm.set_in_flight(w.in_flight);
  }
  void operator()(const Attention& w) const {
    graph_file::Attention& attention = *op.mutable_attention();
    attention.set_batch(w.batch);
    attention.set_heads(w.heads);
    attention.set_kv_heads(w.kv_heads);
    attention.set_queries(w.queries);
    attention.set_keys(w.keys);
    attention.set_head_dim(w.head_dim);
    attention.set_dtype(message_dtype(w.dtype));
    if (!w.causal) attention.set_causal(false);
    attention.set_backward(w.backward);
    attention.set_kernel(static_cast<graph_file::Attention::Kernel>(w.kernel));
  }
  void operator()(const MemoryBound& w) const {
    graph_file::MemoryBound& memory = *op.mutable_memory();
    memory.set_read(bytes_text(w.read));
    memory.set_written(bytes_text(w.written));
    memory.set_kernel(static_cast<graph_file::MemoryKernel>(w.kernel));
    if (w.launches != 1) memory.set_launches(w.launches);
  }
  void operator()(const Collective& w) const {
    graph_file::Collective& collective = *op.mutable_collective();
    collective.set_kind(static_cast<graph_file::CollectiveKind>(w.kind));
    collective.set_message(bytes_text(w.message));
    collective.set_ranks(w.ranks);
    if (w.stride != 1) collective.set_stride(w.stride);
    collective.set_library(static_cast<graph_file::CollectiveLibrary>(w.library));
    if (w.routing.experts == 0) return;
    graph_file::Routing& routing = *collective.mutable_routing();
    routing.set_experts(w.routing.experts);
    routing.set_choices(w.routing.choices);
    if (w.routing.groups != 1) routing.set_groups(w.routing.groups);
    if (w.routing.best_groups != 1) routing.set_best_groups(w.routing.best_groups);
  }
  void operator()(const Copy& w) const {
    graph_file::Copy& copy = *op.mutable_copy();
    copy.set_bytes(bytes_text(w.bytes));
    copy.set_direction(static_cast<graph_file::CopyDirection>(w.direction));
    if (!w.pinned) copy.set_pinned(false);
    copy.set_allocates(w.allocates);
  }
};

}  // namespace

std::optional<OpWork> work_of(const graph_file::Op& op, const FieldPath& path, const GraphSource& source) {
  switch (op.work_case()) {
    case graph_file::Op::kGemm:
      return work_of(op.gemm(), {&path, "gemm"}, source);
    case graph_file::Op::kAttention:
      return work_of(op.attention(), {&path, "attention"}, source);
    case graph_file::Op::kMemory:
      return work_of(op.memory(), {&path, "memory"}, source);
    case graph_file::Op::kCollective:
      return work_of(op.collective(), {&path, "collective"}, source);
    case graph_file::Op::kCopy:
      return work_of(op.copy(), {&path, "copy"}, source);
    case graph_file::Op::kMarker:
      return op.marker() ? std::optional<OpWork>(Marker{}) : std::nullopt;
    case graph_file::Op::WORK_NOT_SET:
      return std::nullopt;
  }
  check_failed("work of an op", __FILE__, __LINE__);
}

Given::Class given_class(const graph_file::Op& op, const FieldPath& path, const GraphSource& source) {
  return known<Given::Class>({&path, "class"}, op.class_(), graph_file::OpClass_ARRAYSIZE, source);
}

void set_work(const OpWork& work, graph_file::Op& op) { std::visit(SetWork{op}, work); }

}  // namespace stepsim
