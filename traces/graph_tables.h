// The tables of a graph file (devices, streams, storages, ...) on their way into an OpGraphBuilder, by name. Knows no op.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/op_graph.h"
#include "traces/graph_file.h"
#include "traces/graph_source.h"
#include "traces/name_table.h"

namespace stepsim {

namespace graph_file {
class Graph;
class Storage;
}  // namespace graph_file

// Words in order of first use: the buckets of a kind of label.
class Buckets {
 public:
  explicit Buckets(std::string otherwise) : otherwise_(std::move(otherwise)) {}
  std::int32_t bucket(const std::string& word);  // "" counts as `otherwise`
  const std::vector<std::string>& words() const { return table_.names(); }

 private:
  std::string otherwise_;
  NameTable table_;
};

class GraphTables {
 public:
  // Reads every table but the ops.
  GraphTables(const graph_file::Graph& graph, const GraphSource& source, OpGraphBuilder& builder, GraphFile& file);

  // By name; a name of a table that the file leaves out is added, at the first device. InputError otherwise, with the nearest name.
  StreamId stream(const FieldPath& path, const std::string& name);
  QueueId queue(const FieldPath& path, const std::string& name);
  IssuerId issuer(const FieldPath& path, const std::string& name);
  ResourceId resource(const FieldPath& path, const std::string& name) const;
  StorageId storage(const FieldPath& path, const std::string& name) const;
  Bytes storage_size(StorageId id) const { return builder_.storage(id).size; }
  // Adds the first device if there is none.
  DeviceId first_device();

 private:
  DeviceId device(const FieldPath& path, const std::string& name);
  std::int32_t known(const NameTable& table, const FieldPath& path, const std::string& name, const std::string& what) const;
  void add_name(NameTable& table, const FieldPath& path, const std::string& name, const std::string& what) const;
  std::int32_t host(const FieldPath& path, const std::string& name);
  DeviceId add_device(std::optional<std::int32_t> its_host);  // none: one of its own
  void read_hosts_and_devices();
  void read_streams();
  void read_queues_and_issuers();
  void read_resources();
  void read_pools();
  void read_storages();
  Storage storage_of(const graph_file::Storage& from, const FieldPath& path);

  const graph_file::Graph& graph_;
  const GraphSource& source_;
  OpGraphBuilder& builder_;
  GraphFile& file_;
  NameTable hosts_, devices_, streams_, queues_, issuers_, resources_, pools_, storages_;
  std::vector<std::int32_t> host_numbers_;  // by name, where hosts are named by use
  Buckets roles_;
  std::vector<bool> has_compute_;  // by device
};

}  // namespace stepsim
