#include "tools/studies/chain_graph.h"

#include <algorithm>
#include <array>
#include <optional>

#include "sim/check.h"

namespace stepsim {

namespace {

struct PlannedOp {
  Op op{};
  std::vector<Edge> after;
  std::vector<Tensor> reads, writes;
  std::vector<StorageId> holds;
  std::vector<QueueId> queues;
};

// Walks the list once and notes ops and storages; links grow while it walks, so ops enter the graph at the end.
class ChainGraphWriter {
 public:
  ChainGraphWriter(const Chain& chain, const ChainReplay& replayed) : chain_(chain), runs_(replayed.runs) {
    device_ = builder_.add_device();
    compute_ = builder_.add_stream({.device = device_, .kind = builder_.label("compute"), .compute = true});
    copies_[0] = builder_.add_stream({.device = device_, .kind = builder_.label("copies out")});
    copies_[1] = builder_.add_stream({.device = device_, .kind = builder_.label("copies in")});
    engines_[0] = builder_.add_queue({.device = device_});
    engines_[1] = chain.one_engine ? engines_[0] : builder_.add_queue({.device = device_});
    for (auto* storages : {&live_, &on_host_}) (*storages)[0] = (*storages)[1] = std::vector<StorageId>(chain.output.size());
    gradients_.resize(chain.gradient.size());
    live_[0][0] = builder_.add_storage({.size = Bytes(chain.output[0]), .device = device_, .live_at_start = true, .live_at_end = true});
  }

  void add(std::size_t index, const ChainAction& action) {
    if (action.kind == ChainActionKind::kDrop) {
      const StorageId dropped = live_[action.saved][from_zero(action.layer)];
      planned_[ended_at(index, runs_[index].start)].holds.push_back(dropped);
      for (Instance& instance : instances_) instance.gone = instance.gone || instance.storage == dropped;
      return;
    }
    PlannedOp planned;
    planned.op.layer = action.layer;
    const std::int64_t start = runs_[index].start;
    if (start > 0) planned.after.push_back({OpId{static_cast<std::int32_t>(ended_at(index, start))}});
    action.kind >= ChainActionKind::kDrop ? write_copy(index, action, planned) : write_compute(index, action, planned);
    const bool out = action.kind == ChainActionKind::kCopyOut, in = action.kind == ChainActionKind::kCopyIn;
    const auto op_class = out ? Given::Class::kCopyToHost : in ? Given::Class::kCopyToDevice : Given::Class::kCompute;
    if (out || in) planned.queues.push_back(engines_[in]);
    planned.op.stream = out || in ? copies_[in] : compute_;
    push(std::move(planned), index, start, runs_[index].end, op_class);
  }

  OpGraph build() && {
    hold_until_backward();
    for (const PlannedOp& planned : planned_) {
      builder_.add_op(planned.op, {.predecessors = planned.after,
                                   .reads = planned.reads,
                                   .writes = planned.writes,
                                   .holds = planned.holds,
                                   .queues = planned.queues});
    }
    return std::move(builder_).build();
  }

  std::vector<GivenCostModel::Row> costs;

 private:
  struct Placed {
    std::size_t index = 0;  // of the action
    std::int64_t start = 0, end = 0;
  };

  // What a backward op lets go of: whatever of its layer and above is there at its end. A copy out that runs then holds on for itself.
  void hold_until_backward() {
    for (const Backward& backward : backward_) {
      for (Instance& instance : instances_) {
        if (instance.gone || instance.layer < backward.layer || instance.there_from > backward.end) continue;
        planned_[backward.op].holds.push_back(instance.storage);
        instance.gone = true;
      }
    }
  }

  struct Backward {
    std::size_t op = 0;
    int layer = 0;
    std::int64_t end = 0;
  };

  void push(PlannedOp planned, std::size_t index, std::int64_t start, std::int64_t end, Given::Class op_class) {
    planned.op.work = builder_.work(Given{.index = static_cast<std::int32_t>(costs.size()), .op_class = op_class});
    costs.push_back({.alone = Duration(end - start)});
    planned_.push_back(std::move(planned));
    placed_.push_back({index, start, end});
  }

  // The op after whose end the action `index` stands at `time`: one without duration at that instant if there is any, as the ledger counts
  // those after all other ends. Where an action waits for no op but only for its time, an op of a stream of its own that lasts until then.
  std::size_t ended_at(std::size_t index, std::int64_t time) {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < placed_.size(); ++i) {
      if (placed_[i].index >= index || placed_[i].end != time) continue;
      if (!found || placed_[i].start == time) found = i;
    }
    if (found) return *found;
    PlannedOp timer;
    timer.op.stream = builder_.add_stream({.device = device_, .kind = builder_.label("time")});
    push(std::move(timer), index, 0, time, Given::Class::kCompute);
    return planned_.size() - 1;
  }

  Tensor all_of(StorageId id) const { return {id, {}, builder_.storage(id).size}; }

  StorageId storage(std::int64_t size, int layer, MemorySpace space = MemorySpace::kDevice) {
    const bool host = space == MemorySpace::kHost;
    return builder_.add_storage({.size = Bytes(size), .device = device_, .space = space, .layer = layer, .live_at_end = host});
  }

  std::int64_t size(int layer, bool saved) const { return saved ? chain_.saved[by_layer(layer)] : chain_.output[from_zero(layer)]; }

  void write(PlannedOp& planned, StorageId id) { planned.writes.push_back(all_of(id)); }

  void write_copy(std::size_t index, const ChainAction& action, PlannedOp& planned) {
    const StorageId live = live_[action.saved][from_zero(action.layer)];
    StorageId& host = on_host_[action.saved][from_zero(action.layer)];
    if (action.kind == ChainActionKind::kCopyOut) {
      host = storage(size(action.layer, action.saved), action.layer, MemorySpace::kHost);
      planned.reads.push_back(all_of(live));
      write(planned, host);
      return;
    }
    planned.reads.push_back(all_of(host));
    make_live(planned, index, action.layer, action.saved);
  }

  void write_compute(std::size_t index, const ChainAction& action, PlannedOp& planned) {
    const bool loss = action.kind == ChainActionKind::kLoss, backward = action.kind == ChainActionKind::kBackward;
    const int input = loss ? chain_.layers() : action.layer - 1;
    planned.reads.push_back(all_of(live_[runs_[index].reads_saved][from_zero(input)]));
    if (loss || backward) {
      StorageId& made = gradients_[from_zero(input)];
      made = storage(chain_.gradient[from_zero(input)], input);
      write(planned, made);
    }
    if (loss) return;
    const auto& transients = backward ? chain_.backward_transient : chain_.forward_transient;
    write(planned, storage(transients[by_layer(action.layer)], action.layer));
    if (!backward) {
      make_live(planned, index, action.layer, action.kind == ChainActionKind::kForwardSaved);
      return;
    }
    planned.reads.push_back(all_of(gradients_[from_zero(action.layer)]));
    planned.reads.push_back(all_of(live_[1][from_zero(action.layer)]));
    backward_.push_back({planned_.size(), action.layer, runs_[index].end});
  }

  // A tensor in device memory, from an op to a drop or to the end of a backward op.
  struct Instance {
    StorageId storage{};
    int layer = 0;
    std::int64_t there_from = 0;
    bool gone = false;
  };

  void make_live(PlannedOp& planned, std::size_t index, int layer, bool saved) {
    StorageId& live = live_[saved][from_zero(layer)];
    live = storage(size(layer, saved), layer);
    write(planned, live);
    instances_.push_back({live, layer, runs_[index].end});
  }

  const Chain& chain_;
  const std::vector<ChainRun>& runs_;
  OpGraphBuilder builder_;
  DeviceId device_{};
  StreamId compute_{};
  std::array<StreamId, 2> copies_{};  // out, in
  std::array<QueueId, 2> engines_{};
  std::array<std::vector<StorageId>, 2> live_, on_host_;  // [saved][layer]: the latest
  std::vector<StorageId> gradients_;
  std::vector<PlannedOp> planned_;
  std::vector<Placed> placed_;
  std::vector<Backward> backward_;
  std::vector<Instance> instances_;
};

}  // namespace

ChainGraph chain_graph(const Chain& chain, const ChainBudget& budget, const ChainSchedule& schedule) {
  const ChainReplay replayed = replay(chain, budget, schedule);
  STEPSIM_CHECK(!replayed.violation);
  ChainGraphWriter writer(chain, replayed);
  for (std::size_t i = 0; i < schedule.size(); ++i) writer.add(i, schedule[i]);
  std::vector<GivenCostModel::Row> costs = std::move(writer.costs);
  ChainGraph result{.graph = std::move(writer).build(), .machine = plain_machine(1), .costs = std::move(costs)};
  result.machine.device_capacity[0] = Bytes(budget.device);
  result.machine.host_capacity[0] = Bytes(budget.host);
  return result;
}

}  // namespace stepsim
