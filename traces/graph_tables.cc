#include "traces/graph_tables.h"

#include <algorithm>
#include <limits>

#include "schema/nearest_name.h"
#include "traces/graph.pb.h"

namespace stepsim {

namespace {

constexpr std::int32_t kMostSlots = 1'000'000;

}  // namespace

std::int32_t Buckets::bucket(const std::string& word) {
  const std::string& filed = word.empty() ? otherwise_ : word;
  const std::optional<std::int32_t> known = table_.find(filed);
  return known ? *known : *table_.add(filed);
}

GraphTables::GraphTables(const graph_file::Graph& graph, const GraphSource& source, OpGraphBuilder& builder, GraphFile& file)
    : graph_(graph), source_(source), builder_(builder), file_(file), roles_("other") {
  read_hosts_and_devices();
  read_streams();
  read_queues_and_issuers();
  read_resources();
  read_pools();
  read_storages();
}

void GraphTables::add_name(NameTable& table, const FieldPath& path, const std::string& name, const std::string& what) const {
  if (name.empty()) source_.fail(path, "found a " + what + " without name, wanted a name");
  if (!table.add(name)) source_.fail({&path, "name"}, "found a second " + what + " " + in_quotes(name) + ", wanted unique names");
}

std::int32_t GraphTables::known(const NameTable& table, const FieldPath& path, const std::string& name, const std::string& what) const {
  const std::optional<std::int32_t> found = table.find(name);
  if (!found) source_.fail(path, "found " + in_quotes(name) + ", wanted the name of a " + what + suggestion(name, table.names()));
  return *found;
}

std::int32_t GraphTables::host(const FieldPath& path, const std::string& name) {
  if (graph_.hosts_size() > 0) return known(hosts_, path, name, "host");
  file_.declares_hosts = true;
  if (const std::optional<std::int32_t> used = hosts_.find(name)) return *used;
  // Hosts of devices that name none have numbers between those of the named ones.
  host_numbers_.push_back(static_cast<std::int32_t>(file_.host_capacity.size()));
  file_.host_capacity.emplace_back();
  hosts_.add(name);
  return host_numbers_.back();
}

DeviceId GraphTables::add_device(std::optional<std::int32_t> its_host) {
  has_compute_.push_back(false);
  file_.device_capacity.emplace_back();
  if (!its_host) {
    its_host = static_cast<std::int32_t>(file_.host_capacity.size());
    file_.host_capacity.emplace_back();
  }
  file_.host_of_device.push_back(*its_host);
  return builder_.add_device();
}

void GraphTables::read_hosts_and_devices() {
  file_.declares_hosts = graph_.hosts_size() > 0;
  for (int i = 0; i < graph_.hosts_size(); ++i) {
    const FieldPath path{nullptr, "hosts", i};
    add_name(hosts_, path, graph_.hosts(i).name(), "host");
    file_.host_capacity.emplace_back();
    if (graph_.hosts(i).has_capacity()) file_.host_capacity.back() = source_.bytes({&path, "capacity"}, graph_.hosts(i).capacity());
  }
  for (int i = 0; i < graph_.devices_size(); ++i) {
    const FieldPath path{nullptr, "devices", i};
    const graph_file::Device& device = graph_.devices(i);
    add_name(devices_, path, device.name(), "device");
    add_device(device.host().empty() ? std::nullopt : std::optional(host({&path, "host"}, device.host())));
    if (device.has_capacity()) file_.device_capacity.back() = source_.bytes({&path, "capacity"}, device.capacity());
  }
}

DeviceId GraphTables::first_device() {
  if (devices_.size() == 0) {
    devices_.add("gpu0");
    add_device(std::nullopt);
  }
  return DeviceId{0};
}

DeviceId GraphTables::device(const FieldPath& path, const std::string& name) {
  if (name.empty()) return first_device();
  if (graph_.devices_size() > 0) return DeviceId{known(devices_, path, name, "device")};
  if (const std::optional<std::int32_t> used = devices_.find(name)) return DeviceId{*used};
  devices_.add(name);
  return add_device(std::nullopt);
}

void GraphTables::read_streams() {
  std::vector<DeviceId> devices;
  for (int i = 0; i < graph_.streams_size(); ++i) {
    const FieldPath path{nullptr, "streams", i};
    const graph_file::Stream& stream = graph_.streams(i);
    add_name(streams_, path, stream.name(), "stream");
    devices.push_back(device({&path, "device"}, stream.device()));
    if (!stream.compute()) continue;
    const std::size_t its_device = at(devices.back().index);
    if (has_compute_[its_device]) source_.fail({&path, "compute"}, "found a second compute stream of a device, wanted one");
    has_compute_[its_device] = true;
  }
  for (int i = 0; i < graph_.streams_size(); ++i) {
    const graph_file::Stream& stream = graph_.streams(i);
    const std::size_t its_device = at(devices[at(i)].index);
    const bool first = !has_compute_[its_device];
    has_compute_[its_device] = true;
    builder_.add_stream({.device = devices[at(i)],
                         .kind = builder_.label(stream.name()),
                         .compute = stream.compute() || first,
                         .any_ready_op = stream.any_ready_op()});
  }
}

StreamId GraphTables::stream(const FieldPath& path, const std::string& name) {
  if (graph_.streams_size() > 0) return StreamId{known(streams_, path, name, "stream")};
  if (const std::optional<std::int32_t> used = streams_.find(name)) return StreamId{*used};
  streams_.add(name);
  const DeviceId its_device = first_device();
  const bool first = !has_compute_[at(its_device.index)];
  has_compute_[at(its_device.index)] = true;
  return builder_.add_stream({.device = its_device, .kind = builder_.label(name), .compute = first});
}

void GraphTables::read_queues_and_issuers() {
  for (int i = 0; i < graph_.queues_size(); ++i) {
    const FieldPath path{nullptr, "queues", i};
    const graph_file::Queue& queue = graph_.queues(i);
    add_name(queues_, path, queue.name(), "queue");
    const std::int64_t slots = queue.has_slots() ? source_.within({&path, "slots"}, queue.slots(), 1, kMostSlots) : 1;
    builder_.add_queue({.device = device({&path, "device"}, queue.device()),
                        .kind = builder_.label(queue.name()),
                        .slots = static_cast<std::int32_t>(slots)});
  }
  for (int i = 0; i < graph_.issuers_size(); ++i) {
    const FieldPath path{nullptr, "issuers", i};
    const graph_file::Issuer& issuer = graph_.issuers(i);
    add_name(issuers_, path, issuer.name(), "issuer");
    Issuer added{.device = device({&path, "device"}, issuer.device())};
    if (issuer.has_run_ahead()) {
      added.run_ahead = static_cast<std::int32_t>(source_.within({&path, "run_ahead"}, issuer.run_ahead(), 1, kLargestIndex));
    }
    builder_.add_issuer(added);
  }
}

QueueId GraphTables::queue(const FieldPath& path, const std::string& name) {
  if (graph_.queues_size() > 0) return QueueId{known(queues_, path, name, "queue")};
  if (const std::optional<std::int32_t> used = queues_.find(name)) return QueueId{*used};
  queues_.add(name);
  return builder_.add_queue({.device = first_device(), .kind = builder_.label(name)});
}

IssuerId GraphTables::issuer(const FieldPath& path, const std::string& name) {
  if (graph_.issuers_size() > 0) return IssuerId{known(issuers_, path, name, "issuer")};
  if (const std::optional<std::int32_t> used = issuers_.find(name)) return IssuerId{*used};
  issuers_.add(name);
  return builder_.add_issuer({.device = first_device()});
}

void GraphTables::read_resources() {
  for (int i = 0; i < graph_.resources_size(); ++i) {
    const FieldPath path{nullptr, "resources", i};
    const graph_file::Resource& from = graph_.resources(i);
    add_name(resources_, path, from.name(), "resource");
    Resource resource{.name = from.name(), .kind = from.kind(), .device = {}, .bandwidth = {}};
    if (!from.device().empty()) resource.device = device({&path, "device"}, from.device());
    if (from.has_bandwidth()) {
      try {
        resource.bandwidth = parse_bytes_per_second(from.bandwidth());
      } catch (const QuantityError& error) {
        source_.fail({&path, "bandwidth"}, error.what());
      }
    }
    file_.resources.push_back(std::move(resource));
  }
}

ResourceId GraphTables::resource(const FieldPath& path, const std::string& name) const {
  return ResourceId{known(resources_, path, name, "resource")};
}

void GraphTables::read_pools() {
  for (int i = 0; i < graph_.pools_size(); ++i) {
    const FieldPath path{nullptr, "pools", i};
    const graph_file::Pool& from = graph_.pools(i);
    add_name(pools_, path, from.name(), "pool");
    source_.within({&path, "space"}, from.space(), 0, graph_file::Space_MAX);
    Pool pool{.space = from.space() == graph_file::host ? MemorySpace::kHost : MemorySpace::kDevice,
              .host = 0,
              .device = device({&path, "device"}, from.device()),
              .capacity = {},
              .gated = from.gated(),
              .never_shrinks = from.never_shrinks()};
    if (pool.gated && pool.space == MemorySpace::kDevice)
      source_.fail({&path, "gated"}, "found a gated pool of device memory, wanted space: host");
    if (pool.gated && !from.has_capacity()) source_.fail(path, "found a gated pool without capacity, wanted one like \"64 GiB\"");
    if (from.has_capacity()) pool.capacity = source_.bytes({&path, "capacity"}, from.capacity());
    pool.host = file_.host_of_device[at(pool.device.index)];
    builder_.add_pool(pool);
  }
}

void GraphTables::read_storages() {
  // The ledger adds sizes up in 64 bits, the claims of several live storages at most once each.
  std::int64_t left = std::numeric_limits<std::int64_t>::max() / 2;
  for (int i = 0; i < graph_.storages_size(); ++i) {
    const FieldPath path{nullptr, "storages", i};
    const graph_file::Storage& from = graph_.storages(i);
    add_name(storages_, path, from.name(), "storage");
    const Storage storage = storage_of(from, path);
    if (storage.size.value > left) source_.fail({&path, "size"}, "found storages of more than 4 EiB together, wanted less");
    left -= storage.size.value;
    builder_.add_storage(storage);
  }
  if (roles_.words().empty()) roles_.bucket("");
  file_.role_names = roles_.words();
}

Storage GraphTables::storage_of(const graph_file::Storage& from, const FieldPath& path) {
  if (from.size().empty()) source_.fail(path, "found a storage without size, wanted one like \"80 MiB\"");
  source_.within({&path, "space"}, from.space(), 0, graph_file::Space_MAX);
  const std::string role = from.role().empty() ? "other" : from.role();
  Storage storage{.size = source_.bytes({&path, "size"}, from.size()),
                  .role = builder_.label(role, roles_.bucket(role)),
                  .name = builder_.label(from.name()),
                  .device = device({&path, "device"}, from.device()),
                  .space = from.space() == graph_file::host ? MemorySpace::kHost : MemorySpace::kDevice,
                  .live_at_start = from.live_at_start(),
                  .live_at_end = from.live_at_end(),
                  .deferred_free = from.deferred_free(),
                  .of_claiming_stream = from.of_claiming_stream()};
  if (from.has_layer()) storage.layer = static_cast<std::int32_t>(source_.within({&path, "layer"}, from.layer(), 0, kLargestIndex));
  if (from.has_micro_batch()) {
    storage.micro_batch = static_cast<std::int32_t>(source_.within({&path, "micro_batch"}, from.micro_batch(), 0, kLargestIndex));
  }
  if (from.pool().empty()) return storage;
  storage.pool = known(pools_, {&path, "pool"}, from.pool(), "pool");
  if (graph_.pools(storage.pool).space() != from.space()) {
    source_.fail({&path, "pool"}, "found a pool of the other memory space, wanted one of the storage's space");
  }
  return storage;
}

StorageId GraphTables::storage(const FieldPath& path, const std::string& name) const {
  return StorageId{known(storages_, path, name, "storage")};
}

}  // namespace stepsim
