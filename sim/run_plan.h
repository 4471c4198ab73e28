// What the loop needs of a graph, in flat tables: what competes to start, in which order on each stream, and whom each op lets go.
//
// A candidate is what can be at the head of a stream: an op with one part (its candidate is the op's id), a part of an op with several
// (their candidates come after all ops), or a marker outside every stream.
// The parts of an op wait for the edges from their own device; an edge from a device on which the op has no part, or from a marker outside
// every stream, concerns all parts. (A receiver is in place while its sender still computes.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/op_costs.h"
#include "sim/op_graph.h"

namespace stepsim {

struct RunPlan {
  static constexpr std::int32_t kNoStream = -1;  // of a marker outside every stream
  static constexpr std::int32_t kSeveral = -2;   // of an op with several parts, whose own row counts the parts that are not there yet

  struct Row {               // by candidate
    std::int32_t unmet = 0;  // edges, and 1 until it is at the head of its stream
    std::int32_t stream = kNoStream;
    std::int32_t priority = 0;
    std::int32_t cost = -1;  // of OpCosts; -1 for markers
  };
  struct Part {
    OpId op{};
    std::int32_t part = 0;
  };
  enum Flag : std::uint8_t { kMarker = 1, kQueues = 2, kGated = 4, kIssued = 8, kParts = 16 };

  std::vector<Row> rows;
  std::vector<std::uint8_t> flags;       // by op
  std::vector<Part> parts;               // candidate ops + i
  std::vector<std::int32_t> first_part;  // by op: its first candidate if it has several parts; empty if none has

  std::vector<std::span<const OpId>> streams;  // candidates in order; empty for streams that start any ready op
  std::vector<OpId> owned_order;               // behind `streams`, where the order of the graph is not it: if ops have several parts
  std::vector<std::int32_t> unordered;         // candidates in no stream or in one that starts any ready op

  // Candidates that an op lets go when it ends and when it starts; empty if the graph has no such edges.
  struct Successors {
    struct Row {
      std::uint32_t begin = 0, end = 0;
    };
    std::vector<Row> rows;  // by op
    std::vector<std::int32_t> candidates;
    std::span<const std::int32_t> of(OpId op) const {
      if (rows.empty()) return {};
      const Row row = rows[static_cast<std::size_t>(op.index)];
      return std::span<const std::int32_t>(candidates).subspan(row.begin, row.end - row.begin);
    }
  };
  Successors at_end, at_start;
  bool any_launch_group = false;

  std::size_t ops() const { return flags.size(); }
  OpId op_of(std::int32_t candidate) const {
    const auto i = static_cast<std::size_t>(candidate);
    return i < ops() ? OpId{candidate} : parts[i - ops()].op;
  }
  std::int32_t part_of(std::int32_t candidate) const {
    const auto i = static_cast<std::size_t>(candidate);
    return i < ops() ? 0 : parts[i - ops()].part;
  }
};

// Every row's `unmet` includes 1 for the head of its stream, also where there is no order: the loop takes it away at the beginning.
// The plan refers to the graph; the costs grow by what its ops need.
RunPlan run_plan(const OpGraph&, OpCosts&);

}  // namespace stepsim
