#include "sim/op_work.h"

#include <gtest/gtest.h>

namespace stepsim {
namespace {

TEST(OpWork, GemmArithmeticAndTraffic) {
  const Gemm gemm{.m = 3, .n = 5, .k = 7, .batch = 2};
  EXPECT_EQ(arithmetic(gemm).value, 2.0 * 3 * 5 * 7 * 2);  // a multiply-add counts 2
  // Reads 3*7 + 7*5 = 56, writes 3*5 = 15 elements of 2 bytes, twice.
  EXPECT_EQ(memory_traffic(gemm), Bytes((56 + 15) * 2 * 2));
  Gemm accumulating = gemm;
  accumulating.accumulate_fp32 = true;  // 15 fp32 elements read and written: 15 * 8 instead of 15 * 2
  EXPECT_EQ(memory_traffic(accumulating), Bytes((56 * 2 + 15 * 8) * 2));
  accumulating.accumulate_fp32 = false;
  accumulating.accumulate = true;  // in bf16: 15 * 4
  EXPECT_EQ(memory_traffic(accumulating), Bytes((56 * 2 + 15 * 4) * 2));
}

TEST(OpWork, AttentionArithmetic) {
  Attention attention{.batch = 2, .heads = 4, .kv_heads = 1, .queries = 8, .keys = 8, .head_dim = 16, .causal = false};
  // Two products of 8 x 8 x 16 multiply-adds a head: 2 * 2 * 1024 = 4096; 2 * 4 heads.
  EXPECT_EQ(arithmetic(attention).value, 4096.0 * 8);
  // q and o: 2 * 4 * 8 * 16 * 2 elements = 2048; k and v with one head: 2 * 1 * 8 * 16 * 2 = 512; 2 bytes each.
  EXPECT_EQ(memory_traffic(attention), Bytes((2048 + 512) * 2));
  attention.causal = true;
  EXPECT_EQ(arithmetic(attention).value, 4096.0 * 8 / 2);
  attention.backward = true;  // five products instead of two
  EXPECT_EQ(arithmetic(attention).value, 4096.0 * 8 / 2 * 2.5);
  EXPECT_EQ(memory_traffic(attention), Bytes(2 * (2048 + 512) * 2));
}

// 2 of 8 experts. Of 4 parts with 2 experts one is missed with probability 6/8 x 5/7 = 15/28: 4 x 13/28 are reached; of 2 parts with 4:
// 4/8 x 3/7 = 3/14, 2 x 11/14; of 8: each choice is another, 2. Within the better of 2 groups of 4: 2/4 x 1/3 = 1/6, 2 parts x 5/6.
TEST(OpWork, PartsThatATokenReaches) {
  const Routing routing{.experts = 8, .choices = 2};
  EXPECT_EQ(parts_reached(routing, 1), 1);
  EXPECT_DOUBLE_EQ(parts_reached(routing, 2), 2 * 11.0 / 14);
  EXPECT_DOUBLE_EQ(parts_reached(routing, 4), 4 * 13.0 / 28);
  EXPECT_DOUBLE_EQ(parts_reached(routing, 8), 2);
  const Routing grouped{.experts = 8, .choices = 2, .groups = 2, .best_groups = 1};
  EXPECT_DOUBLE_EQ(parts_reached(grouped, 4), 2 * 5.0 / 6);
  EXPECT_DOUBLE_EQ(parts_reached(grouped, 2), 1);
}

TEST(OpWork, TransfersCarryNoArithmetic) {
  EXPECT_EQ(arithmetic(Copy{.bytes = Bytes(10)}).value, 0);
  EXPECT_EQ(arithmetic(Collective{.message = Bytes(10), .ranks = 2}).value, 0);
  EXPECT_EQ(arithmetic(MemoryBound{.read = Bytes(1), .written = Bytes(2)}).value, 0);
}

TEST(OpWork, TransferTraffic) {
  EXPECT_EQ(memory_traffic(MemoryBound{.read = Bytes(1), .written = Bytes(2)}), Bytes(3));
  EXPECT_EQ(memory_traffic(Copy{.bytes = Bytes(10), .direction = CopyDirection::kHostToDevice}), Bytes(10));
  EXPECT_EQ(memory_traffic(Copy{.bytes = Bytes(10), .direction = CopyDirection::kDeviceToDevice}), Bytes(20));  // read and written
  // All-gather over 4: a shard of 25 in, 100 out; an all-reduce keeps 100 in and 100 out.
  EXPECT_EQ(memory_traffic(Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(100), .ranks = 4}), Bytes(125));
  EXPECT_EQ(memory_traffic(Collective{.kind = CollectiveKind::kReduceScatter, .message = Bytes(100), .ranks = 4}), Bytes(125));
  EXPECT_EQ(memory_traffic(Collective{.kind = CollectiveKind::kAllReduce, .message = Bytes(100), .ranks = 4}), Bytes(200));
}

TEST(OpWork, Classes) {
  EXPECT_EQ(op_class(Marker{}), OpClass::kMarker);
  EXPECT_EQ(op_class(Gemm{}), OpClass::kCompute);
  EXPECT_EQ(op_class(Collective{.kind = CollectiveKind::kAllToAll}), OpClass::kCollective);
  EXPECT_EQ(op_class(Collective{.kind = CollectiveKind::kSendReceive}), OpClass::kPointToPoint);
  EXPECT_EQ(op_class(Copy{.direction = CopyDirection::kDeviceToHost}), OpClass::kCopyToHost);
  EXPECT_EQ(op_class(Copy{.direction = CopyDirection::kHostToDevice}), OpClass::kCopyToDevice);
  EXPECT_EQ(op_class(Copy{.direction = CopyDirection::kDeviceToDevice}), OpClass::kCompute);  // never leaves the device
  EXPECT_EQ(op_class(Given{.op_class = Given::Class::kPointToPoint}), OpClass::kPointToPoint);
}

TEST(OpWork, SizesOfElements) {
  EXPECT_EQ(size_of(3, DType::kBf16), Bytes(6));
  EXPECT_EQ(size_of(4, DType::kNvFp4), Bytes(2));
  EXPECT_EQ(size_of(4, DType::kInt64), Bytes(32));
}

TEST(OpWork, AbsurdShapesSaturate) {
  // 10^12 squared times 2 bytes is far above 2^63.
  const std::int64_t absurd = 1'000'000'000'000;
  EXPECT_EQ(memory_traffic(Gemm{.m = absurd, .n = absurd, .k = absurd}), Bytes(INT64_MAX));
}

}  // namespace
}  // namespace stepsim
