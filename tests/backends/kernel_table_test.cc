#include "tools/kernel_table.h"

#include <gtest/gtest.h>

#include "tests/backends/executed_step.h"
#include "tools/measurements.h"

namespace stepsim {

// A block of the tiny GPT has products of hidden 48, qkv 144, MLP 192 and a head of 100, over 48 tokens, forward and of input gradients.
TEST(KernelTable, IsReadByCalibrate) {
  CpuBackend backend;
  const TestStep step = executable_step(tiny_gpt(), backend_placement("none"));
  std::vector<BackendCase> cases(1);
  cases[0].graph = step.graph();
  cases[0].measured = std::move(backend.execute(step.graph(), step.ranks, {}).front().result);
  const std::string text = product_table(cases, "a processor, of 2 cores");
  const Measurements read = read_measurements("products.csv", text, {});
  EXPECT_EQ(read.gpu, "a processor  of 2 cores");
  std::vector<std::string> shapes;
  for (const MeasuredGemm& each : read.gemms) {
    EXPECT_EQ(each.work.m, 48);
    EXPECT_EQ(each.work.dtype, DType::kFp32);
    shapes.push_back(std::to_string(each.work.n) + "x" + std::to_string(each.work.k));
  }
  std::sort(shapes.begin(), shapes.end());
  EXPECT_EQ(shapes, (std::vector<std::string>{"100x48", "144x48", "192x48", "48x100", "48x144", "48x192", "48x48"}));
}

}  // namespace stepsim
