// Costs that are remembered: without allocation, in their place, by any number of threads. A program of its own, since it counts all
// allocations.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <thread>

#include "hardware/profile_cost_model.h"
#include "hardware/roofline_cost_model.h"
#include "hardware/work_memo.h"

static std::atomic<std::int64_t> allocations{0};

// Not inlined: g++ would see malloc and free through them and call the pairs mismatched.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  const auto step = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(step, (size + step - 1) / step * step)) return memory;
  throw std::bad_alloc();
}
// A sanitizer has one of its own, which would not match our delete.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace stepsim {
namespace {

constexpr std::int32_t kDevices = 3;

struct Modelled {
  GpuSpec gpu = load_gpu("a100-sxm-80gb");
  ClusterSpec cluster = usual_cluster(gpu);
  Machine machine = make_machine(gpu, cluster, kDevices);
  RooflineCostModel model{gpu, cluster, machine};
};

std::vector<OpWork> works(std::int64_t count) {
  std::vector<OpWork> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(Gemm{.m = 64 + i, .n = 4096, .k = 4096});
    all.push_back(Attention{.batch = 1, .heads = 8, .kv_heads = 8, .queries = 128 + i, .keys = 128 + i, .head_dim = 128});
    all.push_back(MemoryBound{.read = Bytes(4096 + i), .written = Bytes(4096)});
    all.push_back(Collective{.kind = CollectiveKind::kAllGather, .message = Bytes(1 << 20), .ranks = static_cast<std::int32_t>(i + 2)});
    all.push_back(Copy{.bytes = Bytes(4096 * (i + 1))});
  }
  return all;
}

std::int64_t allocations_of_asking(const CostModel& model, const std::vector<OpWork>& asked) {
  const std::int64_t before = allocations;
  std::int64_t sum = 0;
  for (std::int32_t device = 0; device < kDevices; ++device) {
    for (const OpWork& work : asked) sum += model.cost(work, DeviceId{device}).alone.count();
  }
  EXPECT_GT(sum, 0);
  return allocations - before;
}

TEST(CostMemo, KnownCostsAllocateNothing) {
  const Modelled modelled;
  const std::vector<OpWork> asked = works(300);
  EXPECT_GT(allocations_of_asking(modelled.model, asked), 0);  // the count works
  EXPECT_EQ(allocations_of_asking(modelled.model, asked), 0);
  KernelProfile profile;
  profile.kernels.push_back({asked[0], std::chrono::microseconds(50)});
  const ProfileCostModel profiled(modelled.model, profile);
  EXPECT_GT(allocations_of_asking(profiled, asked), 0);
  EXPECT_EQ(allocations_of_asking(profiled, asked), 0);
}

// Loads stay where they are while thousands of others come, and are those of a model that is asked in the other order.
TEST(CostMemo, LoadsStayInTheirPlace) {
  const Modelled modelled, other;
  std::vector<OpWork> asked = works(1000);
  std::vector<Cost> first;
  for (const OpWork& work : asked) first.push_back(modelled.model.cost(work, DeviceId{1}));
  for (std::size_t i = asked.size(); i-- > 0;) {
    const Cost reversed = other.model.cost(asked[i], DeviceId{1}), again = modelled.model.cost(asked[i], DeviceId{1});
    ASSERT_EQ(again.loads.data(), first[i].loads.data());
    ASSERT_EQ(again.alone, first[i].alone);
    ASSERT_EQ(reversed.fixed, first[i].fixed);
    ASSERT_EQ(reversed.alone, first[i].alone);
    ASSERT_EQ(reversed.loads.size(), first[i].loads.size());
    for (std::size_t k = 0; k < reversed.loads.size(); ++k) {
      ASSERT_EQ(reversed.loads[k].fraction_2e30, first[i].loads[k].fraction_2e30);
      ASSERT_EQ(reversed.loads[k].resource, first[i].loads[k].resource);
    }
  }
}

TEST(CostMemo, DevicesLoadResourcesOfTheirOwn) {
  const Modelled modelled;
  const Gemm work{.m = 4096, .n = 4096, .k = 4096};
  const Cost one = modelled.model.cost(work, DeviceId{0}), two = modelled.model.cost(work, DeviceId{2});
  EXPECT_EQ(one.alone, two.alone);
  ASSERT_EQ(one.loads.size(), two.loads.size());
  for (std::size_t i = 0; i < one.loads.size(); ++i) {
    EXPECT_EQ(one.loads[i].fraction_2e30, two.loads[i].fraction_2e30);
    EXPECT_NE(one.loads[i].resource, two.loads[i].resource);
  }
}

// Four threads ask the same new works at once, each in an order of its own.
TEST(CostMemo, ManyThreadsMayAsk) {
  const Modelled modelled, alone;
  const std::vector<OpWork> asked = works(400);
  std::vector<std::vector<Cost>> answers(4, std::vector<Cost>(asked.size()));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < answers.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < asked.size(); ++i) {
        const std::size_t which = (i * (2 * t + 1) + 97 * t) % asked.size();  // 2000 works: 1, 3 and 7 reach all, 5 a fifth
        answers[t][which] = modelled.model.cost(asked[which], DeviceId{0});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Cost expected = alone.model.cost(asked[i], DeviceId{0});
    ASSERT_EQ(answers[0][i].alone, expected.alone);
    ASSERT_EQ(answers[1][i].alone, expected.alone);
    ASSERT_EQ(answers[0][i].loads.data(), answers[1][i].loads.data());
    ASSERT_EQ(answers[3][i].loads.data(), answers[1][i].loads.data());
  }
}

// Every field counts.
TEST(WorkMemo, TellsWorksApart) {
  const Gemm gemm{.m = 1, .n = 2, .k = 3};
  const Attention attention{.batch = 1, .heads = 2, .kv_heads = 2, .queries = 3, .keys = 4, .head_dim = 5};
  std::vector<OpWork> different = {Marker{}, Given{}, Given{.index = 1}, Given{.op_class = Given::Class::kCollective}};
  const auto add = [&](auto work, auto change) {
    different.push_back(work);
    change(work);
    different.push_back(work);
  };
  different.push_back(gemm);
  const auto of_gemm = [&](auto change) {
    Gemm work = gemm;
    change(work);
    different.push_back(work);
  };
  of_gemm([](Gemm& work) { work.m = 2, work.n = 1; });
  of_gemm([](Gemm& work) { work.k = 4; });
  of_gemm([](Gemm& work) { work.batch = 2; });
  of_gemm([](Gemm& work) { work.dtype = DType::kFp16; });
  of_gemm([](Gemm& work) { work.transpose_a = true; });
  of_gemm([](Gemm& work) { work.transpose_b = true; });
  of_gemm([](Gemm& work) { work.accumulate_fp32 = true; });
  of_gemm([](Gemm& work) { work.accumulate = true; });
  add(attention, [](Attention& work) { work.batch = 2, work.heads = 1; });
  const auto of_attention = [&](auto change) {
    Attention work = attention;
    change(work);
    different.push_back(work);
  };
  of_attention([](Attention& work) { work.kv_heads = 1; });
  of_attention([](Attention& work) { work.queries = 4, work.keys = 3; });
  of_attention([](Attention& work) { work.head_dim = 6; });
  of_attention([](Attention& work) { work.dtype = DType::kFp16; });
  of_attention([](Attention& work) { work.causal = false; });
  of_attention([](Attention& work) { work.backward = true; });
  of_attention([](Attention& work) { work.kernel = 1; });
  add(MemoryBound{.read = Bytes(1), .written = Bytes(2)}, [](MemoryBound& work) { std::swap(work.read, work.written); });
  different.push_back(MemoryBound{.read = Bytes(1), .written = Bytes(2), .kernel = MemoryKernel::kNorm});
  add(Collective{.message = Bytes(1), .ranks = 2}, [](Collective& work) { work.stride = 2; });
  add(Collective{.message = Bytes(2), .ranks = 2}, [](Collective& work) { work.kind = CollectiveKind::kDispatch; });
  add(Collective{.kind = CollectiveKind::kDispatch, .message = Bytes(1), .ranks = 2},
      [](Collective& work) { work.library = CollectiveLibrary::kDeepEp; });
  add(Copy{.bytes = Bytes(1)}, [](Copy& work) { work.pinned = false; });
  add(Copy{.bytes = Bytes(1), .direction = CopyDirection::kHostToDevice}, [](Copy& work) { work.allocates = true; });

  WorkMemo<std::size_t> memo;
  std::size_t next = 0;
  const auto everywhere = [&](auto visit) {
    for (const OpWork& work : different) {
      for (const std::int32_t device : {-1, 0, 1}) {
        for (const TransferSide side : {TransferSide::kBoth, TransferSide::kSends}) visit(work, DeviceId{device}, side);
      }
    }
  };
  everywhere([&](const OpWork& work, DeviceId device, TransferSide side) {
    ASSERT_EQ(memo.find(work, device, side), nullptr);
    memo.insert(work, device, side, next++);
  });
  EXPECT_EQ(memo.size(), different.size() * 6);
  next = 0;
  everywhere([&](const OpWork& work, DeviceId device, TransferSide side) {
    ASSERT_NE(memo.find(work, device, side), nullptr);
    EXPECT_EQ(*memo.find(work, device, side), next++);
  });
}

}  // namespace
}  // namespace stepsim
