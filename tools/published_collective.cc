// Measured collectives against the cost model of the machine that each row names, on its usual cluster.
#include <map>

#include "tools/published_format.h"
#include "tools/published_kernels.h"

namespace stepsim {

static std::optional<CollectiveKind> kind_of(const std::string& name) {
  static const std::map<std::string, CollectiveKind> kKinds = {
      {"all_reduce", CollectiveKind::kAllReduce},         {"all_gather", CollectiveKind::kAllGather},
      {"reduce_scatter", CollectiveKind::kReduceScatter}, {"alltoall", CollectiveKind::kAllToAll},
      {"all_to_all", CollectiveKind::kAllToAll},          {"broadcast", CollectiveKind::kBroadcast}};
  const auto found = kKinds.find(name);
  return found == kKinds.end() ? std::nullopt : std::optional(found->second);
}

// message_size counts elements of the full message and is not read.
PublishedComparison compare_collective(const CsvTable& table) {
  PublishedComparison comparison;
  comparison.quantity = "latency_us";
  const std::size_t op = *table.column("op"), ranks = *table.column("num_gpus"), bytes = *table.column("message_bytes"),
                    gpu = *table.column("gpu"), latency = *table.column("latency_us");
  constexpr std::int64_t kMostRanks = 1 << 20, kMostBytes = std::int64_t{1} << 50;
  NamedMachines machines;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow& row = table.rows[i];
    const auto skip = [&](const std::string& reason) { ++comparison.skipped[reason]; };
    const std::optional<CollectiveKind> kind = kind_of(row.cells[op]);
    if (!kind) {
      skip("op " + row.cells[op] + " is no collective");
      continue;
    }
    const Collective work{.kind = *kind,
                          .message = Bytes(whole_cell(table, row, bytes, 1, kMostBytes)),
                          .ranks = static_cast<std::int32_t>(whole_cell(table, row, ranks, 2, kMostRanks))};
    const double measured = number_cell(table, row, latency, kLeastMicroseconds, kMostMicroseconds);
    const NamedMachine& machine = machines.find(row.cells[gpu]);
    if (!machine.problem.empty()) {
      skip(machine.problem);
      continue;
    }
    comparison.rows.push_back({table.row_id(i), i, measured, kernel_us(machine, work)});
  }
  return comparison;
}

}  // namespace stepsim
