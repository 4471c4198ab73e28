// Layouts of heads and rotary positions of the CPU's kernels, element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "hardware/backends/cpu/heads.h"
#include "hardware/backends/cpu/rotary.h"
#include "tests/backends/cpu_kernels_operands.h"

namespace stepsim::cpu {
namespace {

// Two products and a sum of a pair, with a cosine and a sine that are rounded once: some 2e-7 of the pair.
constexpr double kRotaryTolerance = 1e-6;
constexpr double kRotaryBase = 500;

const std::vector<HeadShape> kHeadShapes = {{1, 1, 1, 1, 2}, {2, 3, 4, 2, 6}, {1, 9, 6, 1, 16}, {3, 5, 2, 2, 10}, {2, 37, 4, 2, 34}};

std::int64_t head_count(const HeadShape& shape, std::int64_t heads) { return shape.batch * shape.sequence * heads * shape.head_dim; }
std::int64_t joint_count(const HeadShape& shape) { return head_count(shape, shape.heads + 2 * shape.kv_heads); }

// Calls visit(batch, token, head, i) for every element of `heads` heads.
template <class Visit>
void each_element(const HeadShape& shape, std::int64_t heads, const Visit& visit) {
  for (std::int64_t at = 0; at < head_count(shape, heads); ++at) {
    const std::int64_t row = at / shape.head_dim;
    visit(row / heads / shape.sequence, row / heads % shape.sequence, row % heads, at % shape.head_dim);
  }
}

struct HeadPlaces {  // of element i of a head
  HeadShape shape{};
  std::size_t token_major(std::int64_t heads, std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) const {
    return static_cast<std::size_t>(((batch * shape.sequence + token) * heads + head) * shape.head_dim + i);
  }
  std::size_t head_major(std::int64_t heads, std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) const {
    return static_cast<std::size_t>(((batch * heads + head) * shape.sequence + token) * shape.head_dim + i);
  }
  std::size_t joint(std::int64_t first, std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) const {
    return token_major(shape.heads + 2 * shape.kv_heads, batch, token, first + head, i);
  }
};

std::vector<float> as_head_major(const std::vector<float>& token_major, const HeadShape& shape, std::int64_t heads) {
  std::vector<float> found(token_major.size());
  const HeadPlaces places{shape};
  each_element(shape, heads, [&](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) {
    found[places.head_major(heads, batch, token, head, i)] = token_major[places.token_major(heads, batch, token, head, i)];
  });
  return found;
}

TEST(CpuKernelHeads, TokensAndBack) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const std::int64_t count = head_count(shape, shape.heads);
    const HeadsToTokensCall call{operands.random(count), operands.blank(count), shape};
    run(call, operands.addresses());
    EXPECT_EQ(as_head_major(operands.values<float>(call.output), shape, shape.heads), operands.values<float>(call.input));
  }
}

TEST(CpuKernelHeads, JoinedAndApart) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const JoinHeadsCall call{operands.random(head_count(shape, shape.heads)), operands.random(head_count(shape, shape.kv_heads)),
                             operands.random(head_count(shape, shape.kv_heads)), operands.blank(joint_count(shape)), shape};
    run(call, operands.addresses());
    const std::vector<float> joint = operands.values<float>(call.joint);
    const HeadPlaces places{shape};
    const auto expect_part = [&](const Tensor& part, std::int64_t heads, std::int64_t first) {
      const std::vector<float> wanted = operands.values<float>(part);
      each_element(shape, heads, [&](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) {
        ASSERT_EQ(joint[places.joint(first, batch, token, head, i)], wanted[places.head_major(heads, batch, token, head, i)]);
      });
    };
    expect_part(call.query, shape.heads, 0);
    expect_part(call.key, shape.kv_heads, shape.heads);
    expect_part(call.value, shape.kv_heads, shape.heads + shape.kv_heads);
  }
}

TEST(CpuKernelHeads, RepeatedForTheirGroup) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const std::int64_t few = head_count(shape, shape.kv_heads), many = head_count(shape, shape.heads);
    const RepeatHeadsCall call{operands.random(few), operands.random(few), operands.blank(many), operands.blank(many), shape};
    run(call, operands.addresses());
    const HeadPlaces places{shape};
    for (const auto& [from, to] : {std::pair(call.key, call.repeated_key), std::pair(call.value, call.repeated_value)}) {
      const std::vector<float> before = operands.values<float>(from), after = operands.values<float>(to);
      each_element(shape, shape.heads, [&](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) {
        const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
        ASSERT_EQ(after[places.token_major(shape.heads, batch, token, head, i)],
                  before[places.token_major(shape.kv_heads, batch, token, kv_head, i)]);
      });
    }
  }
}

TEST(CpuKernelHeads, GradientsOfAGroupAreSummed) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const std::int64_t few = head_count(shape, shape.kv_heads), many = head_count(shape, shape.heads);
    const RepeatHeadsBackwardCall call{operands.random(many), operands.random(many), operands.blank(few), operands.blank(few), shape};
    run(call, operands.addresses());
    const HeadPlaces places{shape};
    for (const auto& [from, to] : {std::pair(call.key, call.summed_key), std::pair(call.value, call.summed_value)}) {
      const std::vector<double> gradient = operands.doubles(from);
      std::vector<double> wanted(static_cast<std::size_t>(few), 0.0);
      each_element(shape, shape.heads, [&](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) {
        wanted[places.head_major(shape.kv_heads, batch, token, head / (shape.heads / shape.kv_heads), i)] +=
            gradient[places.head_major(shape.heads, batch, token, head, i)];
      });
      expect_close(operands.doubles(to), wanted, 1e-6);  // at most five roundings of 6e-8
    }
  }
}

RotaryCall rotary_call(CpuOperands& operands, const HeadShape& shape) {
  const std::int64_t few = head_count(shape, shape.kv_heads), many = head_count(shape, shape.heads);
  return {operands.random(joint_count(shape)), operands.blank(many), operands.blank(few), operands.blank(few), shape, kRotaryBase};
}

TEST(CpuKernelRotary, TurnsPairsByThePosition) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const RotaryCall call = rotary_call(operands, shape);
    run(call, operands.addresses(), RotaryTable(shape.sequence, shape.head_dim, kRotaryBase));
    const std::vector<double> joint = operands.doubles(call.joint);
    const HeadPlaces places{shape};
    const std::int64_t half = shape.head_dim / 2;
    const auto expect_part = [&](const Tensor& part, std::int64_t heads, std::int64_t first, bool turned) {
      std::vector<double> wanted(static_cast<std::size_t>(head_count(shape, heads)));
      each_element(shape, heads, [&](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t i) {
        const double exponent = -2.0 * static_cast<double>(i % half) / static_cast<double>(shape.head_dim);
        const double angle = turned ? static_cast<double>(token) * std::pow(kRotaryBase, exponent) : 0.0;
        const double own = joint[places.joint(first, batch, token, head, i)];
        const double other = joint[places.joint(first, batch, token, head, (i + half) % shape.head_dim)];
        wanted[places.token_major(heads, batch, token, head, i)] = own * std::cos(angle) + (i < half ? -other : other) * std::sin(angle);
      });
      expect_close(operands.doubles(part), wanted, kRotaryTolerance);
    };
    expect_part(call.query, shape.heads, 0, true);
    expect_part(call.key, shape.kv_heads, shape.heads, true);
    expect_part(call.value, shape.kv_heads, shape.heads + shape.kv_heads, false);
  }
}

// The forward is linear and turns lengths into themselves: its gradient is its inverse.
TEST(CpuKernelRotary, BackwardTurnsBack) {
  for (const HeadShape& shape : kHeadShapes) {
    CpuOperands operands;
    const RotaryTable table(shape.sequence, shape.head_dim, kRotaryBase);
    const RotaryCall call = rotary_call(operands, shape);
    run(call, operands.addresses(), table);
    const auto head_major = [&](const Tensor& tensor, std::int64_t heads) {
      return operands.floats(as_head_major(operands.values<float>(tensor), shape, heads));
    };
    const RotaryBackwardCall back{head_major(call.query, shape.heads),
                                  head_major(call.key, shape.kv_heads),
                                  head_major(call.value, shape.kv_heads),
                                  operands.blank(joint_count(shape)),
                                  shape,
                                  kRotaryBase};
    run(back, operands.addresses(), table);
    expect_close(operands.doubles(back.joint), operands.doubles(call.joint), 2 * kRotaryTolerance);
  }
}

TEST(CpuKernelHeads, SameBitsAtAnyAddress) {
  for (const HeadShape& shape : kHeadShapes) {
    const RotaryTable table(shape.sequence, shape.head_dim, kRotaryBase);
    const std::int64_t few = head_count(shape, shape.kv_heads), many = head_count(shape, shape.heads);
    expect_same_bits_at_any_address([&](CpuOperands& operands) {
      const RotaryCall call = rotary_call(operands, shape);
      run(call, operands.addresses(), table);
      const Tensor joint = operands.blank(joint_count(shape)), joined = operands.blank(joint_count(shape)), tokens = operands.blank(many);
      run(RotaryBackwardCall{call.query, call.key, call.value, joint, shape, kRotaryBase}, operands.addresses(), table);
      run(JoinHeadsCall{call.query, call.key, call.value, joined, shape}, operands.addresses());
      run(HeadsToTokensCall{call.query, tokens, shape}, operands.addresses());
      const Tensor key = operands.blank(many), value = operands.blank(many), few_keys = operands.blank(few),
                   few_values = operands.blank(few);
      run(RepeatHeadsCall{call.key, call.value, key, value, shape}, operands.addresses());
      run(RepeatHeadsBackwardCall{call.query, tokens, few_keys, few_values, shape}, operands.addresses());
      return operands.contents({call.query, call.key, call.value, joint, joined, tokens, key, value, few_keys, few_values});
    });
  }
}

TEST(CpuKernelHeads, OtherTypesAreRefused) {
  const StorageAddresses none;
  const RotaryTable table(1, 2, kRotaryBase);
  EXPECT_THROW(run(HeadsToTokensCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(JoinHeadsCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(RepeatHeadsCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(RepeatHeadsBackwardCall{.elements = DType::kBf16}, none), std::logic_error);
  EXPECT_THROW(run(RotaryCall{.elements = DType::kBf16}, none, table), std::logic_error);
  EXPECT_THROW(run(RotaryBackwardCall{.elements = DType::kBf16}, none, table), std::logic_error);
}

}  // namespace
}  // namespace stepsim::cpu
