#include "traces/graph_file.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"
#include "traces/graph.pb.h"
#include "traces/graph_ops.h"
#include "traces/graph_source.h"
#include "traces/graph_tables.h"

namespace stepsim {

namespace {

namespace pb = google::protobuf;

constexpr std::size_t kMostOps = 200'000'000;                                // spec/cli.md, "Exit codes"
constexpr std::size_t kMostMemory = std::size_t{16} << 30;                   // likewise
constexpr std::size_t kBytesPerOp = sizeof(graph_file::Op) + sizeof(void*);  // of the message alone

// Before the parser takes memory for them: `ops` is at least as many as there are.
void check_size(std::size_t ops, const std::string& file) {
  if (ops > kMostOps) throw InputError({.file = file}, fmt::format("found {} ops, wanted at most {}", ops, kMostOps));
  if (ops > kMostMemory / kBytesPerOp) {
    throw InputError({.file = file},
                     fmt::format("found {} ops, which take more than 16 GiB, wanted at most {}", ops, kMostMemory / kBytesPerOp));
  }
}

std::size_t ops_in_binary(std::string_view bytes) {
  pb::io::CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  std::size_t ops = 0;
  while (const std::uint32_t tag = input.ReadTag()) {
    if (pb::internal::WireFormatLite::GetTagFieldNumber(tag) == graph_file::Graph::kOpsFieldNumber) ++ops;
    if (!pb::internal::WireFormatLite::SkipField(&input, tag)) break;
  }
  return ops;
}

bool has_unknown_fields(const pb::Message& message) {
  const pb::Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return true;
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (has_unknown_fields(reflection.GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      if (has_unknown_fields(reflection.GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

void refuse_cycle(const GraphFile& file, const std::vector<std::string>& names, const GraphSource& source) {
  const std::vector<OpId> cycle = find_cycle(file.graph);
  if (cycle.empty()) return;
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(cycle.size(), kShown); ++i) text += names[static_cast<std::size_t>(cycle[i].index)] + " -> ";
  if (cycle.size() > kShown) text += fmt::format("... ({} ops) -> ", cycle.size());
  text += names[static_cast<std::size_t>(cycle.front().index)];
  source.fail({nullptr, "ops", cycle.front().index},
              "found a cycle " + text + ", wanted an acyclic graph (ops of one stream start in the order of the file)");
}

GraphFile graph_of(const graph_file::Graph& message, const GraphSource& source) {
  if (message.ops_size() == 0) throw InputError({.file = source.file}, "found a graph without ops, wanted at least one");
  check_size(static_cast<std::size_t>(message.ops_size()), source.file);
  GraphFile file;
  OpGraphBuilder builder;
  builder.reserve(static_cast<std::size_t>(message.ops_size()), static_cast<std::size_t>(message.storages_size()));
  GraphTables tables(message, source, builder, file);
  const std::vector<std::string> names = add_ops(message, source, tables, builder, file);
  tables.first_device();
  file.graph = std::move(builder).build();
  refuse_cycle(file, names, source);
  return file;
}

std::string read_binary_file(const std::string& path) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{1} << 30;  // as read_text_file; Protobuf itself stops at 2 GiB
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw InputError({.file = path}, "found a folder, wanted a file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargest) throw InputError({.file = path}, fmt::format("found {} bytes, wanted at most 1 GiB", size));
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError({.file = path}, "found no readable file, wanted a graph");
  std::string bytes(std::istreambuf_iterator<char>(stream), {});
  if (stream.bad()) throw InputError({.file = path}, "found a file that cannot be read to its end, wanted a graph");
  return bytes;
}

}  // namespace

GraphFile parse_graph(std::string_view text, const std::string& file) {
  // Every op opens a brace (or an angle bracket of the text form).
  const auto braces = std::count_if(text.begin(), text.end(), [](char c) { return c == '{' || c == '<'; });
  if (static_cast<std::size_t>(braces) > kMostMemory / kBytesPerOp) check_size(static_cast<std::size_t>(braces), file);
  graph_file::Graph message;
  read_message(text, file, message);
  return graph_of(message, {.text = text, .file = file});
}

GraphFile parse_binary_graph(std::string_view bytes, const std::string& file) {
  if (bytes.size() > (std::size_t{1} << 30)) throw InputError({.file = file}, "found more than 1 GiB, wanted a smaller graph");
  check_size(ops_in_binary(bytes), file);
  graph_file::Graph message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw InputError({.file = file}, "found bytes that are not a Graph message of traces/graph.proto, wanted its binary form");
  }
  if (has_unknown_fields(message)) {
    throw InputError({.file = file}, "found fields that traces/graph.proto does not have, wanted only known ones");
  }
  return graph_of(message, {.text = {}, .file = file});
}

GraphFile read_graph(const std::string& path) {
  if (path.ends_with(".pb") || path.ends_with(".bin")) return parse_binary_graph(read_binary_file(path), path);
  return parse_graph(read_text_file(path, kLargestTable), path);
}

MachineAndCosts on_machine(const GraphFile& file, Machine base) {
  const auto devices = static_cast<std::size_t>(file.graph.device_count());
  STEPSIM_CHECK(base.device_capacity.size() >= devices);
  STEPSIM_CHECK(base.host_of_device.size() >= devices);
  for (std::size_t device = 0; device < devices; ++device) {
    if (file.device_capacity[device]) base.device_capacity[device] = file.device_capacity[device];
    if (file.declares_hosts) base.host_of_device[device] = file.host_of_device[device];
  }
  if (file.declares_hosts) {
    base.host_capacity = file.host_capacity;
    // Devices of the machine that the graph does not have keep a host that exists.
    for (std::size_t device = devices; device < base.host_of_device.size(); ++device) base.host_of_device[device] = 0;
  }
  const auto first = static_cast<std::int32_t>(base.resources.size());
  base.resources.insert(base.resources.end(), file.resources.begin(), file.resources.end());
  std::vector<GivenCostModel::Row> costs = file.costs;
  for (GivenCostModel::Row& row : costs) {
    for (Load& load : row.loads) load.resource.index += first;
  }
  return {.machine = std::move(base), .costs = std::move(costs)};
}

}  // namespace stepsim
