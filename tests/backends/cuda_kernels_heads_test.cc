// Orders of heads, rotary embedding and repeated heads of the CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "hardware/backends/cuda/heads.cuh"
#include "hardware/backends/cuda/rotary.cuh"
#include "tests/backends/cuda_kernels_operands.h"

namespace stepsim::cuda {
namespace {

constexpr HeadShape kHeadShapes[] = {
    {.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.batch = 2, .sequence = 5, .heads = 6, .kv_heads = 2, .head_dim = 6},
    {.batch = 2, .sequence = 3, .heads = 4, .kv_heads = 4, .head_dim = 16},
    {.batch = 1, .sequence = 4, .heads = 8, .kv_heads = 2, .head_dim = 32},
};

template <class Body>
void for_head_shapes(const Body& body) {
  for_kernel_variants(false, [&](KernelVariant variant) {
    for (const HeadShape& shape : kHeadShapes) {
      SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
      body(variant, shape);
    }
  });
}

// One element of a tensor of heads.
struct HeadElement {
  std::int64_t sample = 0, position = 0, head = 0, dim = 0;
};

std::size_t token_major_place(const HeadShape& shape, std::int64_t heads, HeadElement at) {
  return static_cast<std::size_t>(((at.sample * shape.sequence + at.position) * heads + at.head) * shape.head_dim + at.dim);
}
std::size_t head_major_place(const HeadShape& shape, std::int64_t heads, HeadElement at) {
  return static_cast<std::size_t>(((at.sample * heads + at.head) * shape.sequence + at.position) * shape.head_dim + at.dim);
}

// Calls body for all elements of `heads` heads, in token-major order.
void for_head_elements(const HeadShape& shape, std::int64_t heads, const std::function<void(HeadElement)>& body) {
  for (HeadElement at; at.sample < shape.batch; ++at.sample) {
    for (at.position = 0; at.position < shape.sequence; ++at.position) {
      for (at.head = 0; at.head < heads; ++at.head) {
        for (at.dim = 0; at.dim < shape.head_dim; ++at.dim) body(at);
      }
    }
  }
}

std::int64_t head_count(const HeadShape& shape, std::int64_t heads) { return shape.batch * shape.sequence * heads * shape.head_dim; }

TEST(CudaKernelHeads, HeadsToTokens) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const std::int64_t count = head_count(shape, shape.heads);
    const HeadsToTokensCall call{operands.random(count, variant.elements), operands.blank(count, variant.elements), shape,
                                 variant.elements};
    operands.run_call(call);
    const std::vector<double> from = operands.values(call.input, variant.elements);
    std::vector<double> wanted;
    for_head_elements(shape, shape.heads, [&](HeadElement at) { wanted.push_back(from[head_major_place(shape, shape.heads, at)]); });
    EXPECT_EQ(operands.values(call.output, variant.elements), wanted);
  });
}

struct Qkv {
  Tensor query{}, key{}, value{};
};
Qkv random_qkv(CallOperands& operands, const HeadShape& shape, DType type) {
  const std::int64_t queries = head_count(shape, shape.heads), keys = head_count(shape, shape.kv_heads);
  return {operands.random(queries, type), operands.random(keys, type), operands.random(keys, type)};
}
Qkv blank_qkv(CallOperands& operands, const HeadShape& shape, DType type) {
  const std::int64_t queries = head_count(shape, shape.heads), keys = head_count(shape, shape.kv_heads);
  return {operands.blank(queries, type), operands.blank(keys, type), operands.blank(keys, type)};
}

// The element of joint qkv of a head-major query, key or value.
using HeadMajorValue = std::function<double(const std::vector<double>& tensor, std::int64_t heads, HeadElement at)>;
std::vector<double> joined(const CallOperands& operands, const Qkv& qkv, const HeadShape& shape, DType type,
                           const HeadMajorValue& of_query_or_key) {
  const std::vector<double> query = operands.values(qkv.query, type), key = operands.values(qkv.key, type);
  const std::vector<double> value = operands.values(qkv.value, type);
  std::vector<double> result;
  for_head_elements(shape, shape.heads + 2 * shape.kv_heads, [&](HeadElement at) {
    if (at.head < shape.heads) {
      result.push_back(of_query_or_key(query, shape.heads, at));
    } else if (at.head -= shape.heads; at.head < shape.kv_heads) {
      result.push_back(of_query_or_key(key, shape.kv_heads, at));
    } else {
      at.head -= shape.kv_heads;
      result.push_back(value[head_major_place(shape, shape.kv_heads, at)]);
    }
  });
  return result;
}

TEST(CudaKernelHeads, JoinHeads) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const Qkv qkv = random_qkv(operands, shape, variant.elements);
    const Tensor joint = operands.blank(head_count(shape, shape.heads + 2 * shape.kv_heads), variant.elements);
    operands.run_call(JoinHeadsCall{qkv.query, qkv.key, qkv.value, joint, shape, variant.elements});
    const HeadMajorValue as_it_is = [&](const std::vector<double>& tensor, std::int64_t heads, HeadElement at) {
      return tensor[head_major_place(shape, heads, at)];
    };
    EXPECT_EQ(operands.values(joint, variant.elements), joined(operands, qkv, shape, variant.elements, as_it_is));
  });
}

constexpr double kTestBase = 100;

// Element `at` of a head turned by its angle (direction 1) or back (-1), as a complex product; `place` gives where an element lies.
template <class PlaceOf>
double turned(const HeadShape& shape, HeadElement at, double direction, const std::vector<double>& values, const PlaceOf& place) {
  const std::int64_t half = shape.head_dim / 2, pair = at.dim % half;
  const double angle = direction * static_cast<double>(at.position) *
                       std::pow(kTestBase, -2 * static_cast<double>(pair) / static_cast<double>(shape.head_dim));
  HeadElement real = at, imaginary = at;
  real.dim = pair;
  imaginary.dim = pair + half;
  const double a = values[place(real)], b = values[place(imaginary)];
  return at.dim < half ? a * std::cos(angle) - b * std::sin(angle) : a * std::sin(angle) + b * std::cos(angle);
}

template <class Call>
void run_rotary(CallOperands& operands, const Call& call) {
  const std::vector<float> table = rotary_table(call.shape, call.base);
  operands.run(0, [&](const StorageAddresses& addresses, Scratch, Stream stream) { run(call, addresses, table.data(), stream); });
}

TEST(CudaKernelHeads, Rotary) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const std::int64_t all = shape.heads + 2 * shape.kv_heads;
    const Tensor joint = operands.random(head_count(shape, all), variant.elements);
    const Qkv qkv = blank_qkv(operands, shape, variant.elements);
    run_rotary(operands, RotaryCall{joint, qkv.query, qkv.key, qkv.value, shape, kTestBase, variant.elements});
    const std::vector<double> from = operands.values(joint, variant.elements);
    std::vector<double> query, key, value;
    const auto place = [&](HeadElement at) { return token_major_place(shape, all, at); };
    for_head_elements(shape, all, [&](HeadElement at) {
      if (at.head < shape.heads) {
        query.push_back(turned(shape, at, 1, from, place));
      } else if (at.head < shape.heads + shape.kv_heads) {
        key.push_back(turned(shape, at, 1, from, place));
      } else {
        value.push_back(from[place(at)]);
      }
    });
    expect_close(operands.values(qkv.query, variant.elements), query, variant.elements);
    expect_close(operands.values(qkv.key, variant.elements), key, variant.elements);
    EXPECT_EQ(operands.values(qkv.value, variant.elements), value);
  });
}

TEST(CudaKernelHeads, RotaryBackward) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const Qkv qkv = random_qkv(operands, shape, variant.elements);
    const Tensor joint = operands.blank(head_count(shape, shape.heads + 2 * shape.kv_heads), variant.elements);
    run_rotary(operands, RotaryBackwardCall{qkv.query, qkv.key, qkv.value, joint, shape, kTestBase, variant.elements});
    const HeadMajorValue turned_back = [&](const std::vector<double>& tensor, std::int64_t heads, HeadElement at) {
      return turned(shape, at, -1, tensor, [&](HeadElement other) { return head_major_place(shape, heads, other); });
    };
    expect_close(operands.values(joint, variant.elements), joined(operands, qkv, shape, variant.elements, turned_back), variant.elements);
  });
}

TEST(CudaKernelHeads, RepeatHeads) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const Qkv qkv = random_qkv(operands, shape, variant.elements);
    const std::int64_t count = head_count(shape, shape.heads), copies = shape.heads / shape.kv_heads;
    const RepeatHeadsCall call{qkv.key, qkv.value,       operands.blank(count, variant.elements), operands.blank(count, variant.elements),
                               shape,   variant.elements};
    operands.run_call(call);
    const std::vector<double> key = operands.values(call.key, variant.elements), value = operands.values(call.value, variant.elements);
    std::vector<double> keys, values;
    for_head_elements(shape, shape.heads, [&](HeadElement at) {
      at.head /= copies;
      keys.push_back(key[token_major_place(shape, shape.kv_heads, at)]);
      values.push_back(value[token_major_place(shape, shape.kv_heads, at)]);
    });
    EXPECT_EQ(operands.values(call.repeated_key, variant.elements), keys);
    EXPECT_EQ(operands.values(call.repeated_value, variant.elements), values);
  });
}

TEST(CudaKernelHeads, RepeatHeadsBackward) {
  for_head_shapes([](KernelVariant variant, const HeadShape& shape) {
    CallOperands operands(variant.aligned);
    const std::int64_t count = head_count(shape, shape.heads), copies = shape.heads / shape.kv_heads;
    const Qkv sums = blank_qkv(operands, shape, variant.elements);
    const RepeatHeadsBackwardCall call{
        operands.random(count, variant.elements), operands.random(count, variant.elements), sums.key, sums.value, shape, variant.elements};
    operands.run_call(call);
    const std::vector<double> key = operands.values(call.key, variant.elements), value = operands.values(call.value, variant.elements);
    std::vector<double> keys(static_cast<std::size_t>(head_count(shape, shape.kv_heads))), values(keys.size());
    for_head_elements(shape, shape.heads, [&](HeadElement at) {
      const std::size_t from = head_major_place(shape, shape.heads, at);
      at.head /= copies;
      keys[head_major_place(shape, shape.kv_heads, at)] += key[from];
      values[head_major_place(shape, shape.kv_heads, at)] += value[from];
    });
    expect_close(operands.values(call.summed_key, variant.elements), keys, variant.elements);
    expect_close(operands.values(call.summed_value, variant.elements), values, variant.elements);
  });
}

}  // namespace
}  // namespace stepsim::cuda
