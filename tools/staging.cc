#include "tools/staging.h"

#include <algorithm>

namespace stepsim {

namespace {

const Storage& storage_of(const OpGraph& graph, StorageId id) { return graph.storages()[at(id.index)]; }

bool on_device(const OpGraph& graph, StorageId id) { return storage_of(graph, id).space == MemorySpace::kDevice; }

// What becomes of a storage's part in the staging when the program has come to a place.
struct Turn {
  std::int32_t position = 0;  // issue position; `behind` it: when something later happens
  bool behind = false;
  StorageId storage{};
  bool staged = false;
};

// The turns of one device in the order of the program.
std::vector<std::vector<Turn>> turns_of(const OpGraph& graph, const CopiedStorages& copied) {
  std::vector<std::vector<Turn>> turns(at(graph.device_count()));
  const auto add = [&](OpId op, bool behind, StorageId storage, bool staged) {
    turns[at(storage_of(graph, storage).device.index)].push_back({graph.issue_position(op), behind, storage, staged});
  };
  for (const CopiedOutStorage& out : copied.out) add(out.last_use, true, out.storage, true);
  for (const ReloadedStorage& back : copied.reloaded) {
    if (back.first_use.valid()) add(back.first_use, false, back.storage, false);
  }
  for (std::vector<Turn>& of_device : turns) {
    std::stable_sort(of_device.begin(), of_device.end(),
                     [](const Turn& a, const Turn& b) { return std::pair(a.position, a.behind) < std::pair(b.position, b.behind); });
  }
  return turns;
}

enum class Stand : std::uint8_t { kUsed, kStaged, kReleased };

// One device's memory, event by event. `stands`: of all storages.
class StagingCount {
 public:
  StagingCount(const OpGraph& graph, std::vector<Turn> turns, std::vector<Stand>& stands)
      : graph_(graph), turns_(std::move(turns)), stands_(stands) {}

  void take(const MemoryEvent& event, bool reloaded) {
    if (event.by.valid()) turn(graph_.issue_position(event.by));
    in_use_ += event.bytes;
    if (event.bytes.value < 0) {
      become(event.storage, Stand::kReleased);
    } else if (reloaded) {
      become(event.storage, Stand::kStaged);
    }
    result_.peak = std::max(result_.peak, bytes_);
    if (in_use_ <= most_) return;
    most_ = in_use_;
    result_.at_peak = bytes_;
  }
  const Staging& result() const { return result_; }

 private:
  void turn(std::int32_t position) {
    for (; next_ < turns_.size(); ++next_) {
      const Turn& turn = turns_[next_];
      if (turn.position > position || (turn.behind && turn.position == position)) return;
      if (stands_[at(turn.storage.index)] == Stand::kReleased) continue;
      become(turn.storage, turn.staged ? Stand::kStaged : Stand::kUsed);
    }
  }

  void become(StorageId storage, Stand next) {
    Stand& stand = stands_[at(storage.index)];
    if (stand == next) return;
    if (next == Stand::kStaged) bytes_ += storage_of(graph_, storage).size;
    if (stand == Stand::kStaged) bytes_ -= storage_of(graph_, storage).size;
    stand = next;
  }

  const OpGraph& graph_;
  std::vector<Turn> turns_;
  std::vector<Stand>& stands_;
  std::size_t next_ = 0;
  Bytes in_use_{}, most_{}, bytes_{};
  Staging result_{};
};

}  // namespace

CopiedStorages copied_storages(const OpGraph& graph) {
  CopiedStorages copied;
  std::vector<OpId> last_use(graph.storages().size()), first_read(graph.storages().size());
  const auto before = [&](OpId a, OpId b) { return graph.issue_position(a) < graph.issue_position(b); };
  for (std::int32_t index = 0; at(index) < graph.ops().size(); ++index) {
    const OpId op{index};
    const OpClass its_class = op_class(graph.work(op));
    const StreamId stream = graph.op(op).stream;
    const bool computes = stream.valid() && graph.streams()[at(stream.index)].compute;
    const auto note_use = [&](const Tensor& tensor) {
      OpId& last = last_use[at(tensor.storage.index)];
      if (!last.valid() || before(last, op)) last = op;
    };
    for (const Tensor& tensor : graph.writes(op)) note_use(tensor);
    for (const Tensor& tensor : graph.reads(op)) {
      note_use(tensor);
      OpId& first = first_read[at(tensor.storage.index)];
      if (computes && (!first.valid() || before(op, first))) first = op;
    }
    if (its_class == OpClass::kCopyToHost) {
      for (const Tensor& tensor : graph.reads(op)) {
        if (on_device(graph, tensor.storage)) copied.out.push_back({tensor.storage, op, op});
      }
    } else if (its_class == OpClass::kCopyToDevice) {
      for (const Tensor& tensor : graph.writes(op)) {
        if (on_device(graph, tensor.storage)) copied.reloaded.push_back({tensor.storage, op, {}});
      }
    }
  }
  for (CopiedOutStorage& out : copied.out) out.last_use = last_use[at(out.storage.index)];
  for (ReloadedStorage& back : copied.reloaded) back.first_use = first_read[at(back.storage.index)];
  return copied;
}

std::vector<Staging> staging_of(const OpGraph& graph, const StepResult& result, const CopiedStorages& copied) {
  std::vector<bool> reloaded(graph.storages().size(), false);
  for (const ReloadedStorage& back : copied.reloaded) reloaded[at(back.storage.index)] = true;
  std::vector<Stand> stands(graph.storages().size(), Stand::kUsed);
  std::vector<StagingCount> counts;
  for (std::vector<Turn>& turns : turns_of(graph, copied)) counts.emplace_back(graph, std::move(turns), stands);
  for (const MemoryEvent& event : result.memory) {
    if (!on_device(graph, event.storage)) continue;
    counts[at(storage_of(graph, event.storage).device.index)].take(event, reloaded[at(event.storage.index)]);
  }
  std::vector<Staging> staging;
  for (const StagingCount& count : counts) staging.push_back(count.result());
  return staging;
}

std::vector<Bytes> host_copied(const OpGraph& graph, const StepResult& result) {
  std::vector<Bytes> copied(graph.storages().size());
  for (std::int32_t index = 0; at(index) < graph.ops().size(); ++index) {
    if (op_class(graph.work(OpId{index})) != OpClass::kCopyToHost) continue;
    for (const Tensor& tensor : graph.writes(OpId{index})) copied[at(tensor.storage.index)] += tensor.size;
  }
  std::vector<Bytes> now(at(graph.device_count())), most(at(graph.device_count()));
  for (const MemoryEvent& event : result.memory) {
    if (on_device(graph, event.storage)) continue;
    const std::size_t device = at(storage_of(graph, event.storage).device.index);
    const Bytes bytes = copied[at(event.storage.index)];
    event.bytes.value > 0 ? now[device] += bytes : now[device] -= bytes;
    most[device] = std::max(most[device], now[device]);
  }
  return most;
}

}  // namespace stepsim
