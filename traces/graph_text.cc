#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <optional>
#include <unordered_set>

#include "sim/check.h"
#include "traces/graph.pb.h"
#include "traces/graph_file.h"
#include "traces/graph_work.h"

namespace stepsim {

namespace {

std::string time_text(Duration duration) { return std::to_string(duration.count()) + " ps"; }
std::string size_text(Bytes bytes) { return std::to_string(bytes.value) + " B"; }

// The readable names where they differ, else with the number behind.
class UniqueNames {
 public:
  std::string unique(std::string name, std::int32_t number) {
    if (name.empty() || !used_.insert(name).second) {
      do name += (name.empty() ? "#" : " #") + std::to_string(number);
      while (!used_.insert(name).second);
    }
    return name;
  }

 private:
  std::unordered_set<std::string> used_;
};

class GraphText {
 public:
  GraphText(const OpGraph& graph, const GraphFile* file, const std::vector<const OpRun*>* runs) : graph_(graph), file_(file), runs_(runs) {
    printer_.SetSingleLineMode(true);
    printer_.SetUseUtf8StringEscaping(true);
  }

  std::string text() {
    devices();
    streams();
    queues_and_issuers();
    resources();
    pools();
    storages();
    UniqueNames names;
    for (std::int32_t i = 0; at(i) < graph_.ops().size(); ++i) op_names_.push_back(names.unique(graph_.op_name(OpId{i}), i));
    for (std::int32_t i = 0; at(i) < graph_.ops().size(); ++i) op(OpId{i});
    return std::move(text_);
  }

 private:
  void line(std::string_view table, const google::protobuf::Message& message) {
    std::string fields;
    const bool printed = printer_.PrintToString(message, &fields);
    STEPSIM_CHECK(printed);
    text_ += table;
    text_ += " { " + fields + "}\n";
  }

  std::string device(DeviceId id) const { return "gpu" + std::to_string(id.index); }
  // The word that the bucket stands for, where the caller knows it: several labels may share a bucket.
  std::string word(const std::vector<std::string>* words, LabelId label) const {
    const std::size_t bucket = at(graph_.bucket(label));
    if (words != nullptr && bucket < words->size()) return (*words)[bucket];
    return std::string(graph_.label(label));
  }

  void devices() {
    if (file_ != nullptr && file_->declares_hosts) {
      for (std::size_t i = 0; i < file_->host_capacity.size(); ++i) {
        graph_file::Host host;
        host.set_name("host" + std::to_string(i));
        if (file_->host_capacity[i]) host.set_capacity(size_text(*file_->host_capacity[i]));
        line("hosts", host);
      }
    }
    for (std::int32_t i = 0; i < graph_.device_count(); ++i) {
      graph_file::Device message;
      message.set_name(device(DeviceId{i}));
      if (file_ != nullptr && file_->device_capacity[at(i)]) message.set_capacity(size_text(*file_->device_capacity[at(i)]));
      if (file_ != nullptr && file_->declares_hosts) message.set_host("host" + std::to_string(file_->host_of_device[at(i)]));
      line("devices", message);
    }
  }

  void streams() {
    UniqueNames names;
    for (std::size_t i = 0; i < graph_.streams().size(); ++i) {
      const Stream& stream = graph_.streams()[i];
      graph_file::Stream message;
      stream_names_.push_back(names.unique(std::string(graph_.label(stream.kind)), static_cast<std::int32_t>(i)));
      message.set_name(stream_names_.back());
      message.set_device(device(stream.device));
      message.set_compute(stream.compute);
      message.set_any_ready_op(stream.any_ready_op);
      line("streams", message);
    }
  }

  void queues_and_issuers() {
    UniqueNames names;
    for (std::size_t i = 0; i < graph_.queues().size(); ++i) {
      const Queue& queue = graph_.queues()[i];
      graph_file::Queue message;
      queue_names_.push_back(names.unique(std::string(graph_.label(queue.kind)), static_cast<std::int32_t>(i)));
      message.set_name(queue_names_.back());
      if (queue.device.valid()) message.set_device(device(queue.device));
      if (queue.slots != 1) message.set_slots(queue.slots);
      line("queues", message);
    }
    if (runs_ != nullptr) return;  // what ran is launched by nobody
    for (std::size_t i = 0; i < graph_.issuers().size(); ++i) {
      const Issuer& issuer = graph_.issuers()[i];
      graph_file::Issuer message;
      message.set_name(issuer_name(static_cast<std::int32_t>(i)));
      if (issuer.device.valid()) message.set_device(device(issuer.device));
      message.set_run_ahead(issuer.run_ahead);
      line("issuers", message);
    }
  }
  static std::string issuer_name(std::int32_t index) { return "issuer" + std::to_string(index); }

  void resources() {
    if (file_ == nullptr) return;
    for (const Resource& resource : file_->resources) {
      graph_file::Resource message;
      message.set_name(resource.name);
      message.set_kind(resource.kind);
      if (resource.device.valid()) message.set_device(device(resource.device));
      if (resource.bandwidth.value > 0) message.set_bandwidth(fmt::format("{:.0f} B/s", resource.bandwidth.value));
      line("resources", message);
    }
  }

  void pools() {
    for (std::size_t i = 0; i < graph_.pools().size(); ++i) {
      const Pool& pool = graph_.pools()[i];
      graph_file::Pool message;
      message.set_name("pool" + std::to_string(i));
      message.set_space(space(pool.space));
      if (pool.device.valid()) message.set_device(device(pool.device));
      if (pool.gated || pool.capacity.value > 0) message.set_capacity(size_text(pool.capacity));
      message.set_gated(pool.gated);
      message.set_never_shrinks(pool.never_shrinks);
      line("pools", message);
    }
  }
  static graph_file::Space space(MemorySpace space) { return space == MemorySpace::kHost ? graph_file::host : graph_file::device; }

  void storages() {
    UniqueNames names;
    for (std::int32_t i = 0; at(i) < graph_.storages().size(); ++i) {
      const Storage& storage = graph_.storages()[at(i)];
      graph_file::Storage message;
      storage_names_.push_back(names.unique(graph_.storage_name(StorageId{i}), i));
      message.set_name(storage_names_.back());
      message.set_size(size_text(storage.size));
      message.set_role(word(file_ == nullptr ? nullptr : &file_->role_names, storage.role));
      message.set_device(device(storage.device));
      message.set_space(space(storage.space));
      if (storage.pool >= 0) message.set_pool("pool" + std::to_string(storage.pool));
      message.set_live_at_start(storage.live_at_start);
      message.set_live_at_end(storage.live_at_end);
      message.set_deferred_free(storage.deferred_free);
      message.set_of_claiming_stream(storage.of_claiming_stream);
      line("storages", message);
    }
  }

  void op(OpId id) {
    const Op& from = graph_.op(id);
    graph_file::Op message;
    message.set_name(op_names_[at(id.index)]);
    if (graph_.label(from.kind) != message.name()) message.set_kind(std::string(graph_.label(from.kind)));
    message.set_phase(word(file_ == nullptr ? nullptr : &file_->phase_names, from.phase));
    if (file_ != nullptr) message.set_group(word(&file_->group_names, from.kind));
    if (from.layer >= 0) message.set_layer(from.layer);
    if (from.micro_batch >= 0) message.set_micro_batch(from.micro_batch);
    if (from.origin.valid()) message.set_runs_again(op_names_[at(from.origin.index)]);
    message.set_priority(from.priority);
    parts(id, message);
    for (const Edge& edge : graph_.predecessors(id)) {
      (edge.kind == EdgeKind::kStartToStart ? message.add_start_after() : message.add_after())->assign(op_names_[at(edge.from.index)]);
    }
    for (const Tensor& tensor : graph_.reads(id)) message.add_reads(storage_names_[at(tensor.storage.index)]);
    for (const Tensor& tensor : graph_.writes(id)) message.add_writes(storage_names_[at(tensor.storage.index)]);
    for (const StorageId held : graph_.holds(id)) message.add_holds(storage_names_[at(held.index)]);
    launch(id, message);
    cost(id, message);
    line("ops", message);
  }

  void parts(OpId id, graph_file::Op& message) const {
    const std::span<const StreamId> streams = graph_.parts(id);
    if (streams.size() == 1) message.set_stream(stream_names_[at(streams.front().index)]);
    for (std::size_t part = 0; part < streams.size(); ++part) {
      graph_file::Part* apart = streams.size() == 1 ? nullptr : message.add_parts();
      if (apart != nullptr) apart->set_stream(stream_names_[at(streams[part].index)]);
      for (const QueueId queue : graph_.queues(id, static_cast<std::int32_t>(part))) {
        (apart == nullptr ? message.add_queues() : apart->add_queues())->assign(queue_names_[at(queue.index)]);
      }
    }
  }

  void launch(OpId id, graph_file::Op& message) const {
    const Op& from = graph_.op(id);
    if (runs_ != nullptr || !from.issuer.valid()) return;
    message.set_issuer(issuer_name(from.issuer.index));
    if (from.launch_group >= 0) message.set_launch_group(from.launch_group);
    for (const OpId before : graph_.issue_after(id)) message.add_issue_after(op_names_[at(before.index)]);
  }

  void cost(OpId id, graph_file::Op& message) const {
    const OpWork& work = graph_.work(id);
    if (std::holds_alternative<Marker>(work)) return message.set_marker(true);
    if (runs_ != nullptr) {
      const OpRun* run = (*runs_)[at(id.index)];
      STEPSIM_CHECK(run != nullptr);
      message.set_duration(time_text(run->end - run->start));
      message.set_class_(class_of(op_class(work)));
      return;
    }
    set_work(work, message);
    const Given* given = std::get_if<Given>(&work);
    if (given == nullptr) return;
    const GivenCostModel::Row& row = file_->costs[at(given->index)];
    if (row.fixed.count() > 0) {
      message.set_fixed(time_text(row.fixed));
      message.set_alone(time_text(row.alone));
    } else {
      message.set_duration(time_text(row.alone));
    }
    if (row.issue.count() > 0 && graph_.op(id).issuer.valid()) message.set_issue(time_text(row.issue));
    for (const Load& load : row.loads) {
      graph_file::Load& added = *message.add_loads();
      added.set_resource(file_->resources[at(load.resource.index)].name);
      added.set_fraction(static_cast<double>(load.fraction_2e30) / kFullLoad);  // exact: a power of two
      if (load.peers != 1) added.set_peers(load.peers);
      if (load.weight != 1) added.set_weight(load.weight);
      added.set_while_waiting(load.while_waiting);
    }
  }

  static graph_file::OpClass class_of(OpClass op_class) {
    switch (op_class) {
      case OpClass::kMarker:
      case OpClass::kCompute:
        return graph_file::compute;
      case OpClass::kCollective:
        return graph_file::collective;
      case OpClass::kPointToPoint:
        return graph_file::point_to_point;
      case OpClass::kCopyToHost:
        return graph_file::copy_to_host;
      case OpClass::kCopyToDevice:
        return graph_file::copy_to_device;
    }
    check_failed("op class", __FILE__, __LINE__);
  }

  const OpGraph& graph_;
  const GraphFile* file_;                  // null: of a step that ran
  const std::vector<const OpRun*>* runs_;  // by op; null: of a file
  google::protobuf::TextFormat::Printer printer_;
  std::vector<std::string> stream_names_, queue_names_, storage_names_, op_names_;
  std::string text_;
};

}  // namespace

std::string graph_text(const GraphFile& file) { return GraphText(file.graph, &file, nullptr).text(); }

std::string graph_text(const OpGraph& graph, const StepResult& result) {
  std::vector<const OpRun*> runs(graph.ops().size(), nullptr);
  for (const OpRun& run : result.timeline) runs[at(run.op.index)] = &run;
  return GraphText(graph, nullptr, &runs).text();
}

}  // namespace stepsim
