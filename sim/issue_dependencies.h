// What must be issued before what, whatever the streams: edges, what a launch waits for (issue_after), the order of reads and writes of
// each storage, and markers, which are fences of their stream. Used where an issue order is changed before the graph runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/op_graph.h"

namespace stepsim {

class IssueDependencies {
 public:
  // The graph must be a DAG (find_cycle), else a check fails. Asynchronous ops of which `moves` says no (empty: all move) stay where they
  // are among the ops of their devices, but for markers and for asynchronous ones that move.
  explicit IssueDependencies(const OpGraph&, const std::function<bool(OpId)>& moves = {});

  // End-to-start only where the graph has such an edge; what follows from storages and fences is order, kept as start-to-start.
  std::span<const Edge> before(OpId op) const { return row(before_, before_begin_, op); }
  std::span<const Edge> after(OpId op) const { return row(after_, after_begin_, op); }  // Edge::from is the later op here

  // All ops: each after what it depends on and as early as the graph's issue order has it.
  std::span<const OpId> order() const { return order_; }

  // The same, but `lazy` ops stand just before the first op that depends on them; those that none depends on stand last.
  std::vector<OpId> order_with_lazy(const std::function<bool(OpId)>& lazy) const;

 private:
  static std::span<const Edge> row(const std::vector<Edge>& edges, const std::vector<std::uint32_t>& begin, OpId op) {
    const auto i = static_cast<std::size_t>(op.index);
    return std::span<const Edge>(edges).subspan(begin[i], begin[i + 1] - begin[i]);
  }

  std::vector<std::uint32_t> before_begin_, after_begin_;
  std::vector<Edge> before_, after_;
  std::vector<OpId> order_;
};

}  // namespace stepsim
