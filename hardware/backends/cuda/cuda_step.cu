#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "hardware/backends/cuda/bf16.h"
#include "hardware/backends/cuda/cuda_step.h"
#include "hardware/backends/cuda/launch_shim.h"
#include "hardware/backends/cuda/run_call.h"
#include "sim/check.h"

namespace stepsim::cuda {

namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// An event, destroyed with its owner.
class Event {
 public:
  explicit Event(bool timed) {
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_back(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  double seconds_since(const Event& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

__global__ void fill_by_rule(float* wide, Bf16* narrow, ResidentRule rule, std::int64_t count) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = first; i < count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const float value = resident_value(rule, i);
    if (wide != nullptr) {
      wide[i] = value;
    } else {
      narrow[i] = rounded<Bf16>(value);
    }
  }
}

ContentSums sums_of(StorageId storage, const std::vector<std::byte>& contents) {
  ContentSums sums{.storage = storage, .hash = 0xcbf29ce484222325u};  // FNV-1a, 64 bits (draft-eastlake-fnv)
  for (const std::byte each : contents) sums.hash = (sums.hash ^ static_cast<std::uint64_t>(each)) * 0x100000001b3u;
  for (std::size_t i = 0; i + sizeof(float) <= contents.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, contents.data() + i, sizeof value);
    sums.sum += static_cast<double>(value);
    sums.squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return sums;
}

}  // namespace

std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);  // without a driver: InsufficientDriver, not NoDevice
  if (error != cudaSuccess) return std::string("no CUDA device (") + cudaGetErrorName(error) + ")";
  return count == 0 ? "no CUDA device" : "";
}

struct CudaStep::State {
  explicit State(const ExecutionPlan& given) : plan(given), place_of_op(given.ops.size(), 0), offsets(given.ops.size(), 0) {
    for (std::size_t i = 0; i < plan.ops.size(); ++i) place_of_op[at(plan.ops[i].op)] = i;
    for (std::size_t i = 0; i < plan.streams.size(); ++i) {
      check(cudaStreamCreateWithFlags(&streams.emplace_back(), cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    check(cudaStreamCreateWithFlags(&releases, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    std::uint64_t all = ~std::uint64_t{0};  // what is freed stays with the pool between steps
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
    addresses.base.assign(plan.storages.size(), nullptr);
    for (std::size_t i = 0; i < plan.ops.size(); ++i) done.emplace_back(false);
    find_users();
    resources = std::make_unique<CallResources>(plan);
    add_offsets();
  }

  ~State() {
    cudaDeviceSynchronize();
    for (std::size_t i = 0; i < addresses.base.size(); ++i) {
      if (addresses.base[i] != nullptr && !plan.storages[i].on_host) cudaFreeAsync(addresses.base[i], releases);
    }
    for (const auto& [size, blocks] : pinned) {
      for (std::byte* block : blocks) cudaFreeHost(block);
    }
    cudaDeviceSynchronize();
    for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
    cudaStreamDestroy(releases);
  }

  // By storage: places of the ops that touch it, in issue order, as far as its calls and claims say.
  void find_users() {
    users.resize(plan.storages.size());
    for (std::size_t place = 0; place < plan.ops.size(); ++place) {
      std::vector<StorageId> touched = plan.ops[place].claims;
      touched.insert(touched.end(), plan.ops[place].releases.begin(), plan.ops[place].releases.end());
      for (const Tensor& tensor : operands(plan.ops[place].call)) touched.push_back(tensor.storage);
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      for (const StorageId storage : touched) users[at(storage.index)].push_back(place);
    }
  }

  // Each op that draws has the next number, a re-run that of its origin.
  void add_offsets() {
    std::uint64_t next = 0;
    for (const PlannedOp& op : plan.ops) {
      if (draws(op.call)) offsets[at(op.op)] = op.origin >= 0 ? offsets[at(op.origin)] : next++;
    }
  }

  // A block that ops may still use holds back the stream that claims it.
  std::byte* claim_host(std::int64_t size, cudaStream_t stream) {
    host_in_use += size;
    host_peak = std::max(host_peak, host_in_use);
    std::vector<std::byte*>& blocks = pinned[size];
    std::vector<FreedBlock>& kept = free_pinned[size];
    if (!kept.empty()) {
      const FreedBlock freed = std::move(kept.back());
      kept.pop_back();
      for (const std::size_t place : freed.users) done[place].hold_back(stream);
      return freed.block;
    }
    void* block = nullptr;
    check(cudaHostAlloc(&block, static_cast<std::size_t>(std::max<std::int64_t>(size, 1)), cudaHostAllocDefault), "cudaHostAlloc");
    blocks.push_back(static_cast<std::byte*>(block));
    return blocks.back();
  }

  void claim(StorageId id, cudaStream_t stream) {
    const PlannedStorage& storage = plan.storages[at(id.index)];
    if (storage.on_host) {
      addresses.base[at(id.index)] = claim_host(storage.size.value, stream);
      return;
    }
    void* block = nullptr;
    check(cudaMallocAsync(&block, static_cast<std::size_t>(std::max<std::int64_t>(storage.size.value, 1)), stream), "cudaMallocAsync");
    addresses.base[at(id.index)] = static_cast<std::byte*>(block);
  }

  void fill_residents() {
    for (std::size_t i = 0; i < plan.storages.size(); ++i) {
      if (!plan.storages[i].resident) continue;
      const StorageId id{static_cast<std::int32_t>(i)};
      if (addresses.base[i] == nullptr) claim(id, streams.front());
      check(cudaMemsetAsync(addresses.base[i], 0, static_cast<std::size_t>(plan.storages[i].size.value), streams.front()),
            "cudaMemsetAsync");
    }
    for (const ResidentPart& part : plan.residents) {
      const std::int64_t count = part.rule.rows * part.rule.columns;
      const bool wide = part.type == DType::kFp32;
      launch(fill_by_rule, grid_of(std::min<std::int64_t>(ceil_div(count, 256), 65535)), dim3(256), streams.front(),
             wide ? addresses.of<float>(part.tensor) : nullptr, wide ? nullptr : addresses.of<Bf16>(part.tensor), part.rule, count);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void fill_batch(StorageId id, cudaStream_t stream) {
    for (const BatchPart& part : plan.batch) {
      if (part.storage != id) continue;
      check(cudaMemcpyAsync(addresses.base[at(id.index)], part.values.data(), part.values.size() * sizeof(std::int64_t),
                            cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
    }
  }

  // Freed once all ops that touch it are over: on their stream, or on one of its own that waits for them.
  void release(StorageId id, CudaStepResult* observing) {
    if (observing != nullptr) observe(id, *observing);
    std::byte*& block = addresses.base[at(id.index)];
    const PlannedStorage& storage = plan.storages[at(id.index)];
    if (storage.on_host) {
      host_in_use -= storage.size.value;
      free_pinned[storage.size.value].push_back({std::exchange(block, nullptr), users[at(id.index)]});
      return;
    }
    const std::vector<std::size_t>& touching = users[at(id.index)];
    cudaStream_t stream = streams[at(plan.ops[touching.back()].stream)];
    const bool alone = std::all_of(touching.begin(), touching.end(),
                                   [&](std::size_t place) { return plan.ops[place].stream == plan.ops[touching.back()].stream; });
    if (!alone) {
      stream = releases;
      for (const std::size_t place : touching) done[place].hold_back(stream);
    }
    check(cudaFreeAsync(std::exchange(block, nullptr), stream), "cudaFreeAsync");
  }

  void observe(StorageId id, CudaStepResult& result) {
    if (std::find(plan.observed.begin(), plan.observed.end(), id) == plan.observed.end()) return;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> contents(static_cast<std::size_t>(plan.storages[at(id.index)].size.value));
    check(cudaMemcpy(contents.data(), addresses.base[at(id.index)], contents.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    result.observed.push_back(sums_of(id, contents));
  }

  void wait(const PlannedOp& op, cudaStream_t stream) const {
    for (const std::int32_t before : op.after_end) done[place_of_op[at(before)]].hold_back(stream);
    for (const std::int32_t before : op.after_start) {
      // It has started once the op before it on its stream is over: that is recorded when it is issued.
      started[place_of_op[at(before)]].hold_back(stream);
    }
  }

  const ExecutionPlan& plan;
  std::vector<std::size_t> place_of_op;  // by op id
  std::vector<std::uint64_t> offsets;    // by op id, of those that draw
  std::vector<cudaStream_t> streams;
  cudaStream_t releases = nullptr;
  cudaMemPool_t pool = nullptr;
  StorageAddresses addresses;
  std::vector<std::vector<std::size_t>> users;
  std::vector<Event> done, started;  // by place in issue order
  struct FreedBlock {
    std::byte* block = nullptr;
    std::vector<std::size_t> users;  // places of the ops that touched what it held
  };
  std::map<std::int64_t, std::vector<std::byte*>> pinned;  // by size
  std::map<std::int64_t, std::vector<FreedBlock>> free_pinned;
  std::int64_t host_in_use = 0, host_peak = 0;
  std::unique_ptr<CallResources> resources;
};

CudaStep::CudaStep(const ExecutionPlan& plan) : state_(std::make_unique<State>(plan)) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) state_->started.emplace_back(false);
}
CudaStep::~CudaStep() = default;

std::string CudaStep::device_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties.name;
}

CudaStepResult CudaStep::run(const CudaStepOptions& options) {
  State& state = *state_;
  CudaStepResult result;
  if (state.streams.empty()) return result;  // a plan of nothing
  state.fill_residents();
  state.host_in_use = state.host_peak = 0;
  std::uint64_t zero = 0;
  check(cudaMemPoolSetAttribute(state.pool, cudaMemPoolAttrUsedMemHigh, &zero), "cudaMemPoolSetAttribute");
  std::vector<Event> begins, ends;
  for (std::size_t i = 0; options.times_ops && i < state.plan.ops.size(); ++i) {
    begins.emplace_back(true);
    ends.emplace_back(true);
  }
  const Event first(true), last(true);
  first.record(state.streams.front());
  for (cudaStream_t stream : state.streams) first.hold_back(stream);
  for (std::size_t place = 0; place < state.plan.ops.size(); ++place) {
    const PlannedOp& op = state.plan.ops[place];
    cudaStream_t stream = state.streams[at(op.stream)];
    state.wait(op, stream);
    for (const StorageId claimed : op.claims) {
      state.claim(claimed, stream);
      state.fill_batch(claimed, stream);
    }
    state.started[place].record(stream);
    if (options.times_ops) begins[place].record(stream);
    run_call(op.call, state.addresses, stream, state.offsets[at(op.op)], *state.resources);
    if (options.times_ops) ends[place].record(stream);
    state.done[place].record(stream);
    for (const StorageId released : op.releases) state.release(released, options.observes ? &result : nullptr);
  }
  for (const Event& each : state.done) each.hold_back(state.streams.front());
  last.record(state.streams.front());
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  result.step_s = last.seconds_since(first);
  for (std::size_t place = 0; place < begins.size(); ++place) {
    result.ops.push_back({state.plan.ops[place].op, begins[place].seconds_since(first), ends[place].seconds_since(first)});
  }
  std::uint64_t high = 0;
  check(cudaMemPoolGetAttribute(state.pool, cudaMemPoolAttrUsedMemHigh, &high), "cudaMemPoolGetAttribute");
  result.device_peak = static_cast<std::int64_t>(high);
  result.host_peak = state.host_peak;
  result.gradient_norm = state.resources->gradient_norm();
  if (!options.observes) return result;
  for (const StorageId id : state.plan.observed) {
    if (state.addresses.base[at(id.index)] != nullptr) state.observe(id, result);
  }
  return result;
}

}  // namespace stepsim::cuda
