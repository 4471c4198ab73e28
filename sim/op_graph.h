// The operator DAG of one training step: ops, streams, queues, storages and how they depend on each other. Knows no hardware and no time.
// Made by OpGraphBuilder, then immutable. Tables in compressed sparse rows; ops are small integers; no strings and no vectors per op.
//
// Invariants:
//  1. Op ids are dense, 0..ops().size()-1. One order of all ops, issue_position(), by default ascending op id, gives the order within every
//     issuer (issue_order) and within every stream (stream_order).
//  2. Ops of a stream start in stream_order(stream); an op with several parts is in the order of each of their streams.
//  3. A storage is claimed by the first op, in issue order, that writes it, unless live_at_start; it is released by its last holder (an op
//     that reads, writes or holds it), unless live_at_end.
//  4. Markers have work Marker; they write nothing that they would claim.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/op_work.h"
#include "sim/units.h"

namespace stepsim {

struct Op {
  WorkId work{};
  StreamId stream{};               // of its first part; none only for a marker outside every stream
  LabelId phase{}, kind{};         // words of the builder; the engine only groups by them
  std::int32_t layer = -1;         // -1: outside the layers
  std::int32_t micro_batch = -1;   // -1: not of one micro-batch
  OpId origin{};                   // the op that this one runs again, if it is a clone
  std::int32_t priority = 0;       // less starts first among ops that can start at one instant
  IssuerId issuer{};               // host thread that launches it; none: known at time 0, no issue cost
  std::int32_t launch_group = -1;  // consecutive ops of one captured graph (equal value >= 0) are issued together, by one launch
};

enum class MemorySpace : std::uint8_t { kDevice, kHost };

// Memory that is accounted apart. never_shrinks: what is released is reused inside the pool but not given back within the step.
// gated: claims wait, first come first served, until they fit (host pools only).
struct Pool {
  MemorySpace space = MemorySpace::kHost;
  std::int32_t host = 0;
  DeviceId device{};
  Bytes capacity{};
  bool gated = false;
  bool never_shrinks = false;
};

struct Storage {
  Bytes size{};
  LabelId role{};     // its bucket names the memory role
  LabelId name{};     // what it is, for reports ("qkv output"); may be none
  DeviceId device{};  // whose memory, or which device's host memory
  MemorySpace space = MemorySpace::kDevice;
  std::int32_t pool = -1;  // index into pools(); -1: none
  std::int32_t layer = -1, micro_batch = -1;
  bool live_at_start = false, live_at_end = false;
  bool deferred_free = false;  // used on a stream other than its own and released through an event (record_stream)
  // Its memory comes from the pool of the claiming op's stream even where that op is a collective (whose outputs otherwise come from the
  // compute stream's, where the program asks for them).
  bool of_claiming_stream = false;
};

struct Tensor {  // a view: dropping it frees nothing, its storage does
  StorageId storage{};
  Bytes offset{}, size{};
};

struct Stream {
  DeviceId device{};
  LabelId kind{};
  bool compute = false;       // the stream whose time axis metrics partition; one a device
  bool any_ready_op = false;  // a labelled bound: start any op that can start instead of the next in order
};

// Exclusive, first come first served by (priority, time met, op id). A copy engine, a communicator.
struct Queue {
  DeviceId device{};
  LabelId kind{};
  std::int32_t slots = 1;
};

struct Issuer {
  DeviceId device{};
  std::int32_t run_ahead = 1024;  // launches issued and not yet started; the host blocks beyond it
};

enum class EdgeKind : std::uint8_t { kEndToStart, kStartToStart };
struct Edge {
  OpId from{};
  EdgeKind kind = EdgeKind::kEndToStart;
};

class OpGraph {
 public:
  std::span<const Op> ops() const { return ops_; }
  const Op& op(OpId id) const { return ops_[static_cast<std::size_t>(id.index)]; }
  std::span<const Stream> streams() const { return streams_; }
  std::span<const Queue> queues() const { return queues_; }
  std::span<const Issuer> issuers() const { return issuers_; }
  std::span<const Storage> storages() const { return storages_; }
  std::span<const Pool> pools() const { return pools_; }
  std::int32_t device_count() const { return device_count_; }

  std::span<const Edge> predecessors(OpId id) const { return row(edges_, edge_begin_, id); }
  std::span<const Tensor> reads(OpId id) const { return row(reads_, read_begin_, id); }
  std::span<const Tensor> writes(OpId id) const { return row(writes_, write_begin_, id); }
  std::span<const StorageId> holds(OpId id) const { return row(holds_, hold_begin_, id); }
  std::span<const OpId> issue_after(OpId id) const { return row(issue_after_, issue_after_begin_, id); }
  // Streams of the op's parts, its own first (size 1 for an ordinary op, 0 for a marker outside every stream).
  std::span<const StreamId> parts(OpId id) const;
  // Of a point-to-point op with two parts one receives, the one on whose device it writes (the second if it writes nothing), and the other
  // sends. Parts of other ops do both.
  TransferSide side(OpId id, std::int32_t part) const;
  // Queues that part `part` takes when it could start and gives back at its end.
  std::span<const QueueId> queues(OpId id, std::int32_t part) const;
  std::span<const OpId> issue_order(IssuerId id) const;
  std::span<const OpId> stream_order(StreamId id) const;
  // Place of the op in the one order of all ops from which issue_order and stream_order follow; by default its id.
  std::int32_t issue_position(OpId id) const { return issue_position_[static_cast<std::size_t>(id.index)]; }

  std::span<const OpWork> works() const { return works_; }
  const OpWork& work(WorkId id) const { return works_[static_cast<std::size_t>(id.index)]; }
  const OpWork& work(OpId id) const { return work(op(id).work); }
  std::int32_t label_count() const { return static_cast<std::int32_t>(labels_.size()); }
  std::string_view label(LabelId id) const;  // "" for none
  std::int32_t bucket(LabelId id) const;     // which sum of the metrics it belongs to; 0 for none
  std::size_t bucket_count() const;          // 1 + the largest bucket of any label

  // Readable and stable: "forward L3 attention", with " mb2" where there are several micro-batches.
  std::string op_name(OpId id) const;
  std::string storage_name(StorageId id) const;

 private:
  friend class OpGraphBuilder;
  friend OpGraph with_issue_order(OpGraph graph, std::span<const OpId> order);
  void set_issue_order(std::span<const OpId> order);  // all ops
  template <class T>
  static std::span<const T> row(const std::vector<T>& values, const std::vector<std::uint32_t>& begin, OpId id) {
    const auto i = static_cast<std::size_t>(id.index);
    return std::span<const T>(values).subspan(begin[i], begin[i + 1] - begin[i]);
  }
  struct Label {
    std::string text;
    std::int32_t bucket = 0;
  };
  std::vector<Op> ops_;
  std::vector<Stream> streams_;
  std::vector<Queue> queues_;
  std::vector<Issuer> issuers_;
  std::vector<Storage> storages_;
  std::vector<Pool> pools_;
  std::vector<OpWork> works_;
  std::vector<Label> labels_;
  std::int32_t device_count_ = 0;
  std::int32_t micro_batch_count_ = 0;
  std::vector<Edge> edges_;
  std::vector<Tensor> reads_, writes_;
  std::vector<StorageId> holds_;
  std::vector<OpId> issue_after_;
  std::vector<std::uint32_t> edge_begin_, read_begin_, write_begin_, hold_begin_, issue_after_begin_;
  std::vector<StreamId> part_streams_;  // CSR by op: all parts, the first included
  std::vector<std::uint32_t> part_begin_;
  std::vector<QueueId> part_queues_;  // CSR by part (index into part_streams_)
  std::vector<std::uint32_t> part_queue_begin_;
  std::vector<OpId> issue_order_;  // CSR by issuer
  std::vector<std::uint32_t> issue_order_begin_;
  std::vector<OpId> stream_order_;  // CSR by stream
  std::vector<std::uint32_t> stream_order_begin_;
  std::vector<std::int32_t> issue_position_;  // by op
};

// What one op adds to the graph. The spans are copied.
struct OpLinks {
  std::span<const Edge> predecessors = {};
  std::span<const Tensor> reads = {}, writes = {};
  std::span<const StorageId> holds = {};
  std::span<const OpId> issue_after = {};
  std::span<const QueueId> queues = {};  // of the first part
};

// One further part of a rendezvous op.
struct OpPart {
  StreamId stream{};
  std::span<const QueueId> queues = {};
};

class OpGraphBuilder {
 public:
  LabelId label(std::string_view text, std::int32_t bucket = 0);  // same text and bucket: same id
  WorkId work(const OpWork& work);                                // equal work: same id
  DeviceId add_device();
  StreamId add_stream(const Stream&);
  QueueId add_queue(const Queue&);
  IssuerId add_issuer(const Issuer&);
  std::int32_t add_pool(const Pool&);
  StorageId add_storage(const Storage&);
  OpId add_op(const Op&, const OpLinks&, std::span<const OpPart> further_parts = {});
  // An edge into an op added before; slower than OpLinks::predecessors (for start-to-start edges that look forward).
  void add_edge(OpId to, Edge edge);
  void reserve(std::size_t ops, std::size_t storages);
  std::size_t op_count() const;
  const Storage& storage(StorageId) const;

  // Takes everything; checks ids and shapes (STEPSIM_CHECK). Does not look for cycles: find_cycle() does.
  OpGraph build() &&;

  OpGraphBuilder();
  ~OpGraphBuilder();
  OpGraphBuilder(OpGraphBuilder&&) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether it runs beside the compute stream: a copy, a collective or a point-to-point transfer on another stream.
bool is_asynchronous(const OpGraph&, OpId);

// A cycle among edges of both kinds, stream order, issue order and issue_after, as ops in order, least id first; empty: the graph is a DAG.
// A launch waits for the launch before it, not for that op to start: an op may wait for one that its issuer launches later.
std::vector<OpId> find_cycle(const OpGraph&);

// The same graph, issued in the given order: a permutation of all ops of the graph; issuers and streams follow it.
OpGraph with_issue_order(OpGraph graph, std::span<const OpId> order);

}  // namespace stepsim
