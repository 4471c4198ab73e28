#include "models/script_writer.h"

#include <algorithm>
#include <limits>

#include "sim/check.h"

namespace stepsim {

std::int32_t ScriptWriter::add_storage(const ScriptStorage& storage) {
  STEPSIM_CHECK(script_.storages.size() < at(std::numeric_limits<std::int32_t>::max()));
  script_.storages.push_back(storage);
  use_.push_back({});
  return static_cast<std::int32_t>(script_.storages.size()) - 1;
}

std::int32_t ScriptWriter::begin(const ScriptOp& op) {
  op_ = op;
  number_ = next_op();
  wanted_.fill(-1);
  return number_;
}

void ScriptWriter::note_use(std::int32_t code) {
  if (code < 0) return;
  ScriptStorage& storage = script_.storages[at(code)];
  storage.read_by_backward |= op_.phase == Phase::kBackward;
  storage.read_by_rerun |= op_.phase == Phase::kRecompute;
  const Arrival arrival = use_[at(code)].arrival;
  bool& arrived = arrived_[at(op_.stream)][static_cast<std::size_t>(arrival)];
  if (arrival == Arrival::kNone || arrived) return;
  arrived = true;
  (arrival == Arrival::kInput ? op_.awaits_input : op_.awaits_gradient) = true;
}

void ScriptWriter::read(std::int32_t code, Bytes offset, Bytes size) {
  script_.reads.push_back({StorageId{code}, offset, size});
  if (code < 0) return;
  note_use(code);
  StorageUse& use = use_[at(code)];
  wait_for(use.writer);
  use.reader[at(op_.stream)] = number_;
}

void ScriptWriter::write(std::int32_t code, Bytes offset, Bytes size) {
  script_.writes.push_back({StorageId{code}, offset, size});
  if (code < 0) return;
  StorageUse& use = use_[at(code)];
  wait_for(use.writer);
  for (const std::int32_t reader : use.reader) wait_for(reader);
  use.writer = number_;
}

void ScriptWriter::hold(std::int32_t code) {
  note_use(code);
  script_.holds.push_back(StorageId{code});
}

void ScriptWriter::hold_by_last(std::int32_t code) {
  STEPSIM_CHECK(!script_.ops.empty());
  std::size_t last = script_.ops.size() - 1;
  while (last > 0 && script_.ops[last].stream >= PassStream::kCopy0) --last;
  script_.holds.insert(script_.holds.begin() + script_.ops[last].hold_end, StorageId{code});
  for (std::size_t op = last; op < script_.ops.size(); ++op) ++script_.ops[op].hold_end;
}

// Ops of one stream end in order, so of another stream's ops only the last one needs an edge.
void ScriptWriter::wait_for(std::int32_t earlier) {
  if (earlier < 0 || earlier == number_) return;
  STEPSIM_CHECK(earlier < number_);
  const PassStream stream = script_.ops[at(earlier)].stream;
  if (stream != op_.stream) wanted_[at(stream)] = std::max(wanted_[at(stream)], earlier);
}

void ScriptWriter::end() {
  std::array<std::int32_t, kPassStreams>& waited = waited_[at(op_.stream)];
  for (std::size_t stream = 0; stream < kPassStreams; ++stream) {
    if (wanted_[stream] <= waited[stream]) continue;
    waited[stream] = wanted_[stream];
    script_.waits.push_back(wanted_[stream]);
  }
  op_.wait_end = static_cast<std::uint32_t>(script_.waits.size());
  op_.read_end = static_cast<std::uint32_t>(script_.reads.size());
  op_.write_end = static_cast<std::uint32_t>(script_.writes.size());
  op_.hold_end = static_cast<std::uint32_t>(script_.holds.size());
  if (op_.stream == PassStream::kCompute) last_compute_ = number_;
  script_.ops.push_back(op_);
  number_ = -1;
}

}  // namespace stepsim
