// What a cost model must know of an op and what a real backend needs to run it. The engine never looks inside, with two exceptions that
// metrics need: whether an op is a copy, a collective or a point-to-point transfer (op_class). Shapes are per device, after sharding.
#pragma once

#include <compare>
#include <cstdint>
#include <variant>

#include "sim/units.h"

namespace stepsim {

enum class DType : std::uint8_t { kFp32, kTf32, kBf16, kFp16, kFp8, kMxFp8, kNvFp4, kInt64, kInt32, kUint8 };

// C[m,n] += A[m,k] B[k,n], `batch` times. FLOPs = 2 m n k batch. Reads (mk + kn) batch, writes mn batch elements.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType dtype = DType::kBf16;
  bool transpose_a = false, transpose_b = false;  // TN forward, NN input gradient, NT weight gradient
  bool accumulate_fp32 = false;                   // weight gradient added to an fp32 buffer (reads and writes 4 mn)
  bool accumulate = false;                        // added to what C holds, in its dtype: C is read too
  std::int8_t in_flight = 0;                      // 0: one kernel for all of the batch; n: a kernel each, n at a time (on n streams)
  friend auto operator<=>(const Gemm&, const Gemm&) = default;
};

// One fused attention kernel (scores never reach memory). FLOPs = 4 batch heads queries keys head_dim (half if causal), backward 2.5 times.
struct Attention {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0;
  DType dtype = DType::kBf16;
  bool causal = true, backward = false;
  // AttentionKernel of the builder's kernel set: 0 flash 2, 1 flash 3, 2 cuDNN, 3 TensorRT-LLM, 4 flash 1 in Triton, 5 flash 4
  std::int8_t kernel = 0;
  friend auto operator<=>(const Attention&, const Attention&) = default;
};

enum class MemoryKernel : std::int8_t {
  kFusedElementwise,  // one pass: bias+GeLU, SwiGLU, dropout+add, cast, optimizer
  kNorm,              // fused normalization over the last dimension
  kSoftmax,           // scale+mask+softmax over the last dimension
  kUnfused,           // eager elementwise, norm or softmax built of several kernels
  kGather,            // embedding rows, permutations
  kQuantize,          // casts to 8 and 4 bits with their scales and largest values
  kTopK,              // selection of experts
  kHostUpdate,        // the optimizer on the host's processor: bytes of host memory, none of the device's
};

// A kernel bound by memory traffic. FLOPs are not counted in any convention.
struct MemoryBound {
  Bytes read{}, written{};
  MemoryKernel kernel = MemoryKernel::kFusedElementwise;
  std::int32_t launches = 1;  // kernels, one behind the other, that share the bytes evenly
  friend auto operator<=>(const MemoryBound&, const MemoryBound&) = default;
};

enum class CollectiveKind : std::int8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSendReceive,
  kDispatch,
  kCombine
};

// Who moves the bytes: kernels of NCCL, or those of an expert-parallel library (dispatch and combine).
enum class CollectiveLibrary : std::int8_t { kNccl, kDeepEp, kHybridEp };

// Where tokens go: to `choices` of `experts`, which are spread evenly over the ranks, without order and none twice; within the best
// `best_groups` of `groups` equal groups of consecutive experts. No experts: nothing is known, every rank gets its own part.
struct Routing {
  std::int32_t experts = 0, choices = 0;
  std::int32_t groups = 1, best_groups = 1;
  friend auto operator<=>(const Routing&, const Routing&) = default;
};

// Of `parts` equal parts of the experts, how many a token goes to, on average over uniform choices.
double parts_reached(const Routing& routing, std::int64_t parts);

// `message` is the full tensor: what an all-gather ends with, a reduce-scatter starts from, an all-reduce keeps. All-to-all: the buffer of
// one rank. Dispatch and combine: what one rank sends, or gets back, in all, a token once for each rank that it goes to, its own included.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes message{};
  std::int32_t ranks = 1;
  std::int32_t stride = 1;  // distance of neighbouring ranks in the machine: 1 = consecutive GPUs (tensor parallel)
  CollectiveLibrary library = CollectiveLibrary::kNccl;  // of a dispatch or combine
  Routing routing{};  // likewise: over the network a token goes once to each NVLink domain, where a rank hands it on to the others
  friend auto operator<=>(const Collective&, const Collective&) = default;
};

enum class CopyDirection : std::int8_t { kDeviceToHost, kHostToDevice, kDeviceToDevice };

struct Copy {
  Bytes bytes{};
  CopyDirection direction = CopyDirection::kDeviceToHost;
  bool pinned = true;
  bool allocates = false;  // the host buffer is allocated and pinned before the launch: host time
  friend auto operator<=>(const Copy&, const Copy&) = default;
};

// A cost that is given, not modelled: row `index` of a GivenCosts table (user graphs, tests, imported traces).
struct Given {
  std::int32_t index = 0;
  enum class Class : std::int8_t { kCompute, kCollective, kCopyToHost, kCopyToDevice, kPointToPoint } op_class = Class::kCompute;
  friend auto operator<=>(const Given&, const Given&) = default;
};

struct Marker {  // zero duration, claims no memory, no cost
  friend auto operator<=>(const Marker&, const Marker&) = default;
};

using OpWork = std::variant<Marker, Gemm, Attention, MemoryBound, Collective, Copy, Given>;

enum class OpClass : std::uint8_t { kMarker, kCompute, kCollective, kPointToPoint, kCopyToHost, kCopyToDevice };
OpClass op_class(const OpWork& work);

// What a part of an op does to its device's links: of a point-to-point transfer between two parts one receives and one sends, all else
// does both.
enum class TransferSide : std::uint8_t { kBoth, kReceives, kSends };

// Arithmetic of the op itself (0 for copies, collectives, memory-bound kernels); a multiply-add counts 2. Causal attention counts half.
Flops arithmetic(const OpWork& work);

// Bytes that the op moves through device memory, each operand once (collectives: their buffers; copies: their bytes).
Bytes memory_traffic(const OpWork& work);

std::int64_t bits_of(DType dtype);
inline Bytes size_of(std::int64_t elements, DType dtype) { return Bytes(elements * bits_of(dtype) / 8); }

}  // namespace stepsim
