#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hardware/backends/cuda/kernels.cuh"
#include "hardware/backends/cuda/product_lt.h"
#include "hardware/backends/cuda/run_call.h"

namespace stepsim::cuda {

namespace {

// cuBLASLt's choice is free with 32 MiB on Hopper (cuBLAS documentation, "cublasSetWorkspace").
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// Device memory outside every pool, freed with its owner.
class DeviceBlock {
 public:
  explicit DeviceBlock(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&memory_, std::max<std::size_t>(bytes, 1)), "cudaMalloc"); }
  ~DeviceBlock() {
    if (memory_ != nullptr) cudaFree(memory_);
  }
  DeviceBlock(DeviceBlock&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  DeviceBlock& operator=(DeviceBlock&&) = delete;
  Scratch scratch() const { return {memory_, bytes_}; }
  float* floats() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

std::size_t most_scratch(const ExecutionPlan& plan) {
  std::size_t most = 0;
  for (const PlannedOp& op : plan.ops) {
    most = std::max(most, std::visit([](const auto& call) { return scratch_bytes(call); }, op.call));
  }
  return most;
}

using RotaryKey = std::tuple<std::int64_t, std::int64_t, double>;  // sequence, head_dim, base
RotaryKey key_of(const HeadShape& shape, double base) { return {shape.sequence, shape.head_dim, base}; }

template <class... Each>
struct Overloaded : Each... {
  using Each::operator()...;
};
template <class... Each>
Overloaded(Each...) -> Overloaded<Each...>;

}  // namespace

struct CallResources::State {
  explicit State(const ExecutionPlan& plan)
      : adamw(plan.adamw), step(plan.step), workspace(kWorkspaceBytes), scratch(most_scratch(plan)), squared_norm(sizeof(float)) {
    check(cudaMemset(squared_norm.floats(), 0, sizeof(float)), "cudaMemset");
    for (const PlannedOp& op : plan.ops) {
      if (const auto* forward = std::get_if<RotaryCall>(&op.call)) add_table(forward->shape, forward->base);
      if (const auto* backward = std::get_if<RotaryBackwardCall>(&op.call)) add_table(backward->shape, backward->base);
    }
  }
  void add_table(const HeadShape& shape, double base) {
    if (tables.count(key_of(shape, base)) > 0) return;
    const std::vector<float> table = rotary_table(shape, base);
    DeviceBlock block(table.size() * sizeof(float));
    check(cudaMemcpy(block.floats(), table.data(), table.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    tables.emplace(key_of(shape, base), std::move(block));
  }
  const float* table(const HeadShape& shape, double base) const { return tables.at(key_of(shape, base)).floats(); }

  AdamWSettings adamw;
  std::int64_t step;
  ProductLt products;
  DeviceBlock workspace, scratch, squared_norm;
  std::map<RotaryKey, DeviceBlock> tables;
};

CallResources::CallResources(const ExecutionPlan& plan) : state_(std::make_unique<State>(plan)) {}
CallResources::~CallResources() = default;

float CallResources::gradient_norm() const {
  float squared = 0;
  check(cudaMemcpy(&squared, state_->squared_norm.floats(), sizeof squared, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return std::sqrt(squared);
}

void run_call(const KernelCall& any, const StorageAddresses& addresses, cudaStream_t stream, std::uint64_t offset,
              CallResources& resources) {
  CallResources::State& state = resources.state();
  const Scratch scratch = state.scratch.scratch();
  std::visit(Overloaded{
                 [](const NoCall&) {},
                 [&](const ProductCall& call) { state.products.run(call, addresses, state.workspace.scratch(), stream); },
                 [&](const CopyCall& call) {
                   check(cudaMemcpyAsync(addresses.of<std::byte>(call.to), addresses.of<std::byte>(call.from),
                                         static_cast<std::size_t>(call.to.size.value), cudaMemcpyDefault, stream),
                         "cudaMemcpyAsync");
                 },
                 [](const AllReduceCall&) { throw std::runtime_error("a collective: plans are of one rank"); },
                 [](const NormAllReduceCall&) { throw std::runtime_error("a collective: plans are of one rank"); },
                 [&](const GradientNormCall& call) { run(call, addresses, state.squared_norm.floats(), scratch, stream); },
                 [&](const GradientClipCall& call) { run(call, addresses, state.squared_norm.floats(), stream); },
                 [&](const AdamWCall& call) { run(call, addresses, state.adamw, state.step, stream); },
                 [&](const RotaryCall& call) { run(call, addresses, state.table(call.shape, call.base), stream); },
                 [&](const RotaryBackwardCall& call) { run(call, addresses, state.table(call.shape, call.base), stream); },
                 [&](const DropoutCall& call) {
                   DropoutCall with = call;
                   with.draw.offset = offset;
                   run(with, addresses, stream);
                 },
                 [&](const ResidualCall& call) {
                   ResidualCall with = call;
                   with.draw.offset = offset;
                   run(with, addresses, stream);
                 },
                 [&](const EmbeddingGradientCall& call) { run(call, addresses, scratch, stream); },
                 [&](const NormWeightGradientCall& call) { run(call, addresses, scratch, stream); },
                 [&](const BiasGradientCall& call) { run(call, addresses, scratch, stream); },
                 [&](const ResidualBackwardCall& call) { run(call, addresses, scratch, stream); },
                 [&](const auto& call) { run(call, addresses, stream); },
             },
             any);
}

}  // namespace stepsim::cuda
