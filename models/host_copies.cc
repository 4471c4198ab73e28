#include "models/host_copies.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

HostCopies::HostCopies(OpGraphBuilder& builder, ScriptWriter& writer, const StepLabels& labels, const OffloadSchedule& schedule)
    : builder_(builder),
      writer_(writer),
      labels_(labels),
      schedule_(schedule),
      marker_(builder.work(Marker{})),
      waits_(builder.label("wait for copies")) {}

PassStream HostCopies::stream(CopyEngine engine) {
  std::int32_t index = 0;
  if (schedule_.streams == 2) index = engine == CopyEngine::kIn;
  if (schedule_.streams > 2) index = copies_ % schedule_.streams;
  return static_cast<PassStream>(static_cast<std::int32_t>(PassStream::kCopy0) + index);
}

Bytes HostCopies::host_size(Bytes size) const {
  if (!schedule_.power_of_two) return size;
  std::int64_t rounded = 1;
  while (rounded < size.value) rounded *= 2;
  return Bytes(rounded);
}

std::int32_t HostCopies::begin_copy(CopyEngine engine, Bytes size, Phase phase, std::int32_t layer, const std::string& name) {
  const bool out = engine == CopyEngine::kOut;
  const bool waits = out ? schedule_.copy_out_waits_for_compute : schedule_.copy_in_waits_for_compute;
  const Copy work{.bytes = size,
                  .direction = out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice,
                  .pinned = schedule_.pinned,
                  .allocates = out && schedule_.allocates};
  const std::int32_t op = writer_.begin({.work = builder_.work(work),
                                         .kind = builder_.label((out ? "copy out " : "copy in ") + name),
                                         .phase = phase,
                                         .stream = stream(engine),
                                         .after_compute = waits || schedule_.synchronous,
                                         .engine = engine,
                                         .layer = layer});
  ++copies_;
  return op;
}

void HostCopies::copy_out(std::int32_t code, std::int32_t layer, const std::string& name, bool comes_back) {
  flush();
  const Bytes size = writer_.size(code);
  const std::int32_t host = writer_.add_storage(
      {.size = host_size(size), .role = labels_.on_host, .name = builder_.label(name), .layer = layer, .unit = -1, .on_host = true});
  const std::int32_t op = begin_copy(CopyEngine::kOut, size, Phase::kForward, layer, name);
  writer_.read(code, Bytes(0), size);
  writer_.write(host, Bytes(0), size);
  writer_.end();
  writer_.script().storages[static_cast<std::size_t>(code)].copied_out = true;
  copied_[code] = {host, op};
  not_let_go_.insert(code);
  const bool until_backward =
      !comes_back || schedule_.host_lifetime == HostLifetime::kBackwardEnd || schedule_.host_lifetime == HostLifetime::kStep;
  if (until_backward) held_until_[layer].push_back(host);
}

void HostCopies::wait(std::int32_t code, Phase phase, bool releases) {
  const auto found = copied_.find(code);
  STEPSIM_CHECK(found != copied_.end());
  pending_waits_.push_back(found->second.op);
  if (releases) {
    pending_holds_.push_back(code);
    not_let_go_.erase(code);
  }
  pending_phase_ = phase;
}

void HostCopies::release_by_event(std::int32_t code) {
  writer_.script().storages[static_cast<std::size_t>(code)].deferred_free = true;
  not_let_go_.erase(code);
}

void HostCopies::finish() {
  for (const std::int32_t code : not_let_go_) writer_.script().storages[static_cast<std::size_t>(code)].deferred_free = true;
}

void HostCopies::flush() {
  if (pending_waits_.empty()) return;
  writer_.begin({.work = marker_, .kind = waits_, .phase = pending_phase_, .stream = PassStream::kCompute, .layer = -1});
  for (const std::int32_t op : pending_waits_) writer_.wait_for(op);
  for (const std::int32_t code : pending_holds_) writer_.hold(code);
  if (schedule_.synchronous) writer_.op().launched_after = *std::max_element(pending_waits_.begin(), pending_waits_.end());
  writer_.end();
  pending_waits_.clear();
  pending_holds_.clear();
}

std::int32_t HostCopies::copy_in(std::int32_t code, const ScriptStorage& like, const std::string& name) {
  flush();
  const auto found = copied_.find(code);
  STEPSIM_CHECK(found != copied_.end());
  const Copied from = found->second;
  const Bytes size = writer_.size(code);
  ScriptStorage storage = like;
  storage.size = size;
  storage.copied_back = true;
  const std::int32_t back = writer_.add_storage(storage);
  const bool gives_back_first = schedule_.host_lifetime == HostLifetime::kReloadStart;
  if (gives_back_first) {  // the pool has the buffer again before the copy has read it
    writer_.begin({.work = marker_,
                   .kind = waits_,
                   .phase = Phase::kBackward,
                   .stream = stream(CopyEngine::kIn),
                   .after_compute = schedule_.copy_in_waits_for_compute || schedule_.synchronous,
                   .layer = like.layer});
    writer_.wait_for(from.op);
    writer_.hold(from.host);
    writer_.end();
  }
  const std::int32_t op = begin_copy(CopyEngine::kIn, size, Phase::kBackward, like.layer, name);
  if (gives_back_first) {
    writer_.wait_for(from.op);
  } else {
    writer_.read(from.host, Bytes(0), size);
  }
  writer_.write(back, Bytes(0), size);
  writer_.end();
  if (!schedule_.synchronous) return back;
  pending_waits_.push_back(op);
  pending_phase_ = Phase::kBackward;
  flush();
  return back;
}

void HostCopies::end_of_backward(std::int32_t layer) {
  const auto held = held_until_.find(layer);
  if (held == held_until_.end()) return;
  for (const std::int32_t host : held->second) writer_.hold(host);
  held_until_.erase(held);
}

}  // namespace stepsim
