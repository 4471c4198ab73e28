// Writes the ops of a MicroBatchScript and finds out what each waits for: who wrote or read its storages last on the other streams, and
// which transfer brings what it reads. Knows no template and no plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/micro_batch_script.h"

namespace stepsim {

class ScriptWriter {
 public:
  enum class Arrival : std::uint8_t { kNone, kInput, kGradient };

  std::int32_t add_storage(const ScriptStorage&);
  // A transfer writes it.
  void arrives(std::int32_t code, Arrival by) { use_[static_cast<std::size_t>(code)].arrival = by; }

  // An op between begin() and end(): its operands. Codes of the graph's storages (< 0) are not tracked: what an op needs of them is said by
  // wait_for().
  std::int32_t begin(const ScriptOp&);
  void read(std::int32_t code, Bytes offset, Bytes size);
  void write(std::int32_t code, Bytes offset, Bytes size);
  void hold(std::int32_t code);
  void hold_by_last(std::int32_t code);  // the op that was ended last holds it too; not one of a copy stream, which nobody waits for
  void wait_for(std::int32_t earlier);   // an op of this script; -1: none
  ScriptOp& op() { return op_; }
  void end();

  std::int32_t next_op() const { return static_cast<std::int32_t>(script_.ops.size()); }
  std::int32_t last_compute_op() const { return last_compute_; }
  std::int32_t last_writer(std::int32_t code) const { return use_[static_cast<std::size_t>(code)].writer; }
  Bytes size(std::int32_t code) const { return script_.storages[static_cast<std::size_t>(code)].size; }
  MicroBatchScript& script() { return script_; }

 private:
  void note_use(std::int32_t code);
  // By stream: no op.
  static constexpr std::array<std::int32_t, kPassStreams> nobody() {
    std::array<std::int32_t, kPassStreams> none{};
    for (std::int32_t& op : none) op = -1;
    return none;
  }
  static constexpr std::array<std::array<std::int32_t, kPassStreams>, kPassStreams> nobody_waited_for() {
    std::array<std::array<std::int32_t, kPassStreams>, kPassStreams> none{};
    for (std::array<std::int32_t, kPassStreams>& each : none) each = nobody();
    return none;
  }

  // Who touched a storage last: what an op of another stream waits for.
  struct StorageUse {
    std::int32_t writer = -1;
    std::array<std::int32_t, kPassStreams> reader = nobody();
    Arrival arrival = Arrival::kNone;
  };
  std::vector<StorageUse> use_;  // by storage
  std::array<std::array<std::int32_t, kPassStreams>, kPassStreams> waited_ =
      nobody_waited_for();                                   // by stream: up to which op of each other
  std::array<std::array<bool, 3>, kPassStreams> arrived_{};  // by stream and Arrival
  std::array<std::int32_t, kPassStreams> wanted_{};          // of the op being written
  ScriptOp op_;
  std::int32_t number_ = -1, last_compute_ = -1;
  MicroBatchScript script_;
};

}  // namespace stepsim
