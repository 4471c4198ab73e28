#include "hardware/backends/cpu/rank_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "hardware/backends/cpu/adamw.h"
#include "hardware/backends/cpu/attention_softmax.h"
#include "hardware/backends/cpu/bias.h"
#include "hardware/backends/cpu/dropout.h"
#include "hardware/backends/cpu/elementwise.h"
#include "hardware/backends/cpu/embedding.h"
#include "hardware/backends/cpu/fp32_only.h"
#include "hardware/backends/cpu/gradient.h"
#include "hardware/backends/cpu/heads.h"
#include "hardware/backends/cpu/loss.h"
#include "hardware/backends/cpu/norm.h"
#include "hardware/backends/cpu/product.h"
#include "hardware/backends/cpu/residual.h"
#include "sim/check.h"

namespace stepsim::cpu {

namespace {

template <class... Each>
struct Overloaded : Each... {
  using Each::operator()...;
};
template <class... Each>
Overloaded(Each...) -> Overloaded<Each...>;

std::size_t byte_count(Bytes size) { return static_cast<std::size_t>(size.value); }

}  // namespace

RankStep::RankStep(const Setting& setting) : set_(setting) {
  const std::size_t storages = set_.graph.storages().size();
  addresses_.base.assign(storages, nullptr);
  holders_.assign(set_.lifetimes.holders().begin(), set_.lifetimes.holders().end());
  runs_.resize(set_.graph.ops().size());
  offset_of_.assign(set_.graph.ops().size(), 0);
  place_of_observed_.assign(storages, -1);
  for (std::size_t i = 0; i < set_.options.observed.size(); ++i) {
    place_of_observed_[at(set_.options.observed[i].index)] = static_cast<std::int32_t>(i);
    observed_.push_back({set_.options.observed[i], {}});
  }
  for (CountedArena* arena : {&set_.arenas.device, &set_.arenas.host}) arena->set_poison(set_.options.poison);
  set_.arenas.device.set_capacity(set_.options.device_capacity);
  for (const StorageId resident : set_.lifetimes.residents()) {
    const Bytes size = storage(resident).size;
    std::byte*& block = addresses_.base[at(resident.index)];
    block = arena(resident).claim(size);
    if (block == nullptr) {
      record_out_of_memory(OpId{}, resident, TimePoint{});
      return;
    }
    std::memset(block, 0, byte_count(size));
    events_.push_back({TimePoint{}, resident, OpId{}, size});
  }
  for (const ResidentPart& part : set_.program.residents) {
    check_fp32(part.type);
    const std::vector<float> values = part.values.empty() ? resident_values(part) : part.values;
    std::memcpy(addresses_.of<std::byte>(part.tensor), values.data(), byte_count(part.tensor.size));
  }
  for (CountedArena* arena : {&set_.arenas.device, &set_.arenas.host}) arena->restart_peak();
  add_tables();
}

RankStep::~RankStep() {
  for (std::size_t i = 0; i < addresses_.base.size(); ++i) {
    const StorageId id{static_cast<std::int32_t>(i)};
    if (addresses_.base[i] != nullptr) arena(id).release(addresses_.base[i], storage(id).size);
  }
}

void RankStep::add_tables() {
  const auto add = [&](const HeadShape& shape, double base) {
    tables_.try_emplace({shape.sequence, shape.head_dim, base}, shape.sequence, shape.head_dim, base);
  };
  for (const KernelCall& call : set_.program.calls) {
    if (const auto* forward = std::get_if<RotaryCall>(&call)) add(forward->shape, forward->base);
    if (const auto* backward = std::get_if<RotaryBackwardCall>(&call)) add(backward->shape, backward->base);
  }
}

CountedArena& RankStep::arena(StorageId id) { return storage(id).space == MemorySpace::kDevice ? set_.arenas.device : set_.arenas.host; }

TimePoint RankStep::now() const { return std::chrono::duration_cast<TimePoint>(std::chrono::steady_clock::now() - origin_); }

void RankStep::record_out_of_memory(OpId op, StorageId wanted, TimePoint when) {
  CountedArena& full = arena(wanted);
  OutOfMemory failed{.op = op.valid() ? std::optional<OpId>(op) : std::nullopt,
                     .device = storage(wanted).device,
                     .space = storage(wanted).space,
                     .at = when,
                     .requested = storage(wanted).size,
                     .available = full.available()};
  for (std::int32_t id = 0; at(id) < addresses_.base.size(); ++id) {
    if (addresses_.base[at(id)] != nullptr && storage(StorageId{id}).space == failed.space) failed.holders.push_back(StorageId{id});
  }
  std::stable_sort(failed.holders.begin(), failed.holders.end(),
                   [&](StorageId a, StorageId b) { return storage(a).size > storage(b).size; });
  out_of_memory_ = std::move(failed);
}

bool RankStep::run(OpId op, const std::atomic<bool>& stop, const std::function<void()>& started) {
  if (!begin(op)) return false;
  started();
  if (!run_kernel(op, stop)) return false;
  end(op);
  return true;
}

bool RankStep::begin(OpId op) {
  const std::scoped_lock lock(mutex_);
  if (out_of_memory_) return false;
  OpRun& run = runs_[at(op.index)];
  run.op = op;
  run.start = now();
  run.issued = run.start;
  for (const StorageId claimed : set_.lifetimes.claimed_by(op)) {
    std::byte* const block = arena(claimed).claim(storage(claimed).size);
    if (block == nullptr) {
      record_out_of_memory(op, claimed, run.start);
      run.op = OpId{};
      return false;
    }
    addresses_.base[at(claimed.index)] = block;
    if (storage(claimed).size > Bytes(0)) events_.push_back({run.start, claimed, op, storage(claimed).size});
    fill_batch(claimed);
  }
  return true;
}

void RankStep::fill_batch(StorageId id) {
  for (const BatchPart& part : set_.program.batch) {
    if (part.storage == id) std::memcpy(addresses_.base[at(id.index)], part.values.data(), byte_count(storage(id).size));
  }
}

void RankStep::observe(StorageId id) {
  const std::int32_t place = place_of_observed_[at(id.index)];
  if (place < 0 || addresses_.base[at(id.index)] == nullptr) return;
  const std::byte* const block = addresses_.base[at(id.index)];
  observed_[at(place)].contents.assign(block, block + storage(id).size.value);
}

void RankStep::end(OpId op) {
  const std::scoped_lock lock(mutex_);
  runs_[at(op.index)].end = now();
  for (const StorageId touched : set_.lifetimes.touched_by(op)) {
    if (holders_[at(touched.index)] == 0 || --holders_[at(touched.index)] > 0) continue;
    observe(touched);
    std::byte*& block = addresses_.base[at(touched.index)];
    arena(touched).release(std::exchange(block, nullptr), storage(touched).size);
    if (storage(touched).size > Bytes(0)) events_.push_back({runs_[at(op.index)].end, touched, op, Bytes(-storage(touched).size.value)});
  }
}

// A re-run has the state that its origin started from, and leaves the current one as it is.
Draw RankStep::drawn(OpId op, Draw draw) {
  const std::scoped_lock lock(mutex_);
  const OpId origin = set_.graph.op(op).origin;
  const bool restores = origin.valid() && set_.options.restores_random_state;
  draw.offset = restores ? offset_of_[at(origin.index)] : next_offset_++;
  offset_of_[at(op.index)] = draw.offset;
  return draw;
}

bool RankStep::run_kernel(OpId op, const std::atomic<bool>& stop) {
  bool whole = true;
  const auto reduce = [&](float* buffer, std::int64_t count, bool maximum) {
    whole = set_.meetings[at(op.index)]->reduce(set_.rank, buffer, count, maximum, stop);
  };
  std::visit(Overloaded{
                 [](const NoCall&) {},
                 [&](const CopyCall& call) {
                   std::memcpy(addresses_.of<std::byte>(call.to), addresses_.of<std::byte>(call.from), byte_count(call.to.size));
                 },
                 [&](const AllReduceCall& call) {
                   check_fp32(call.elements);
                   reduce(addresses_.of<float>(call.operand), call.count, call.maximum);
                 },
                 [&](const NormAllReduceCall&) {
                   auto sum = static_cast<float>(squared_norm_);
                   reduce(&sum, 1, false);
                   squared_norm_ = sum;
                 },
                 [&](const GradientNormCall& call) { squared_norm_ = squared_norm(call, addresses_); },
                 [&](const GradientClipCall& call) { clip(call, addresses_, std::sqrt(squared_norm_)); },
                 [&](const AdamWCall& call) { cpu::run(call, addresses_, set_.program.adamw, set_.program.step); },
                 [&](const RotaryCall& call) { cpu::run(call, addresses_, table(call.shape, call.base)); },
                 [&](const RotaryBackwardCall& call) { cpu::run(call, addresses_, table(call.shape, call.base)); },
                 [&](const DropoutCall& call) {
                   DropoutCall with = call;
                   with.draw = drawn(op, call.draw);
                   cpu::run(with, addresses_);
                 },
                 [&](const ResidualCall& call) {
                   ResidualCall with = call;
                   if (call.mask) with.draw = drawn(op, call.draw);
                   cpu::run(with, addresses_);
                 },
                 [&](const WidenCall&) { check_failed("fp32 only", __FILE__, __LINE__); },
                 [&](const NarrowCall&) { check_failed("fp32 only", __FILE__, __LINE__); },
                 [&](const auto& call) { cpu::run(call, addresses_); },
             },
             set_.program.calls[at(op.index)]);
  return whole;
}

Execution RankStep::finish() {
  Execution execution;
  StepResult& result = execution.result;
  for (const OpRun& run : runs_) {
    if (run.op.valid()) result.timeline.push_back(run);
    result.end = std::max(result.end, run.end);
  }
  std::sort(result.timeline.begin(), result.timeline.end(),
            [](const OpRun& a, const OpRun& b) { return std::pair(a.start, a.op) < std::pair(b.start, b.op); });
  result.memory = std::move(events_);
  result.out_of_memory = out_of_memory_;
  for (const Observation& each : observed_) observe(each.storage);
  execution.observed = std::move(observed_);
  execution.device_peak = set_.arenas.device.peak();
  execution.host_peak = set_.arenas.host.peak();
  execution.gradient_norm = static_cast<float>(std::sqrt(squared_norm_));
  return execution;
}

}  // namespace stepsim::cpu
