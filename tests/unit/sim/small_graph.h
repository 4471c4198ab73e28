// Graphs of a handful of ops with given durations in picoseconds, for tests that a person can check.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "sim/cost_model.h"
#include "sim/op_graph.h"

namespace stepsim {

struct SmallOp {  // links of an op by value, so that tests can write braces
  std::vector<Edge> after = {};
  std::vector<StorageId> reads = {}, writes = {}, holds = {};
  std::vector<OpId> issue_after = {};
  std::vector<QueueId> queues = {};
  IssuerId issuer = {};
  std::int64_t issue = 0;
  std::int64_t fixed = 0;
  std::string_view phase = "", kind = "";
  std::int32_t phase_bucket = 0, kind_bucket = 0;
  std::vector<Load> loads = {};
};

struct SmallGraph {
  OpGraphBuilder builder;
  std::vector<GivenCostModel::Row> rows;

  StreamId stream(DeviceId device, bool compute = false) { return builder.add_stream({.device = device, .kind = {}, .compute = compute}); }

  StorageId storage(DeviceId device, std::int64_t size) { return builder.add_storage({.size = Bytes(size), .device = device}); }

  // A new row of costs for each op: alone `duration` after `fixed`.
  OpId op(StreamId stream, std::int64_t duration, const SmallOp& more = {}, Given::Class op_class = Given::Class::kCompute) {
    rows.push_back({.fixed = Duration(more.fixed), .alone = Duration(duration), .issue = Duration(more.issue), .loads = more.loads});
    return add(stream, Given{.index = static_cast<std::int32_t>(rows.size()) - 1, .op_class = op_class}, more);
  }

  OpId marker(StreamId stream, const SmallOp& more = {}) { return add(stream, Marker{}, more); }

  OpId add(StreamId stream, const OpWork& work, const SmallOp& more, std::span<const OpPart> further_parts = {}) {
    const auto tensors = [this](const std::vector<StorageId>& storages) {
      std::vector<Tensor> views;
      for (const StorageId id : storages) views.push_back({.storage = id, .offset = Bytes(0), .size = builder.storage(id).size});
      return views;
    };
    const std::vector<Tensor> reads = tensors(more.reads), writes = tensors(more.writes);
    return builder.add_op({.work = builder.work(work),
                           .stream = stream,
                           .phase = builder.label(more.phase, more.phase_bucket),
                           .kind = builder.label(more.kind, more.kind_bucket),
                           .issuer = more.issuer},
                          {.predecessors = more.after,
                           .reads = reads,
                           .writes = writes,
                           .holds = more.holds,
                           .issue_after = more.issue_after,
                           .queues = more.queues},
                          further_parts);
  }

  GivenCostModel costs() const { return GivenCostModel(rows); }
};

}  // namespace stepsim
