// The costs of the ops of a graph, asked once for each (work, device, side), in flat tables.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/op_graph.h"
#include "sim/sharing.h"

namespace stepsim {

class OpCosts {
 public:
  struct Row {
    Duration fixed{}, alone{}, issue{};
    std::uint32_t first_load = 0, loads = 0;       // while it runs
    std::uint32_t first_waiting = 0, waiting = 0;  // while a part waits for the others
  };

  OpCosts(const OpGraph& graph, const Machine& machine, const CostModel& model)
      : graph_(graph), machine_(machine), model_(model), last_(graph.works().size()) {}

  // The row of the work on a device; not for markers.
  std::int32_t row_on(WorkId work, DeviceId device, TransferSide side = TransferSide::kBoth) {
    const Known& last = last_[static_cast<std::size_t>(work.index)];
    return last.row >= 0 && last.device == device && last.side == side ? last.row : looked_up(work, device, side);
  }
  // A row for an op with several parts: fixed and alone the maxima, loads their union (of a resource that several parts load, the largest
  // fraction, peers and weight), issue that of the first.
  std::int32_t together(std::span<const std::int32_t> parts);

  const Row& row(std::int32_t index) const { return rows_[static_cast<std::size_t>(index)]; }
  std::span<const Share> loads(const Row& row) const { return std::span<const Share>(shares_).subspan(row.first_load, row.loads); }
  std::span<const Share> waiting_loads(const Row& row) const {
    return std::span<const Share>(shares_).subspan(row.first_waiting, row.waiting);
  }

 private:
  struct Known {
    DeviceId device{};
    std::int32_t row = -1;
    TransferSide side = TransferSide::kBoth;
  };
  std::int32_t looked_up(WorkId, DeviceId, TransferSide);
  std::int32_t added(WorkId, DeviceId, TransferSide);
  void add_to_union(Share load);

  const OpGraph& graph_;
  const Machine& machine_;
  const CostModel& model_;
  std::vector<Known> last_;                                 // by work: most run on one device, or on one for a while
  std::unordered_map<std::uint64_t, std::int32_t> row_of_;  // by work, device and side; looked up, never walked
  std::vector<Row> rows_;
  std::vector<Share> shares_;
  std::vector<std::size_t> place_;  // by resource: 1 + its place in the union that is being made, 0: not in it
};

}  // namespace stepsim
