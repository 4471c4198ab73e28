// A user's own operator graph (schema graph.proto; text, JSON or binary form) <-> OpGraph with the costs that it gives.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost_model.h"
#include "sim/machine.h"
#include "sim/metrics.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct GraphFile {
  OpGraph graph;
  std::vector<GivenCostModel::Row> costs;             // rows of Given work; loads refer to `resources`
  std::vector<Resource> resources;                    // that the file declares
  std::vector<std::string> role_names;                // by bucket; with "other" for what has none
  std::vector<std::string> phase_names;               // by bucket
  std::vector<std::string> group_names;               // by bucket of kind labels; 0: ""
  PhaseMeaning phases;                                // exposed_copy: 0 forward, 1 backward, 2 tail
  bool needs_cost_model = false;                      // some op has modelled work (gemm, copy, ...): a machine is needed
  std::vector<std::optional<Bytes>> device_capacity;  // by device; where the file gives it
  std::vector<std::int32_t> host_of_device;           // by device
  std::vector<std::optional<Bytes>> host_capacity;    // by host
  bool declares_hosts = false;                        // else the two lines above are the default: a host for each device
};

// InputError with the place: unknown and duplicate names, a cycle (names its ops), negative sizes, a missing unit, a graph above 200
// million ops or 16 GiB. Binary if the name ends in .pb or .bin; otherwise JSON or text, as it begins.
GraphFile read_graph(const std::string& path);

// The same from memory; `file` is only named in errors.
GraphFile parse_graph(std::string_view text, const std::string& file);
GraphFile parse_binary_graph(std::string_view bytes, const std::string& file);

// What the graph runs on: `base` with the capacities, hosts and resources of the file added, and the cost rows with their loads moved to
// the resources' new ids. `base` has at least as many devices as the graph; plain_machine(graph.device_count()) if the file brings all.
struct MachineAndCosts {
  Machine machine;
  std::vector<GivenCostModel::Row> costs;
};
MachineAndCosts on_machine(const GraphFile&, Machine base);

// The text form, which reads back as the same graph: op order, costs to the picosecond. Not kept: an issue order other than the op order,
// views into storages, streams' lack of a compute flag. Names are made unique with " #<op id>" where needed.
std::string graph_text(const GraphFile&);

// The same for a step of which every op ran: each takes as long as it did, loads nothing and is launched by nobody.
std::string graph_text(const OpGraph&, const StepResult&);

}  // namespace stepsim
