#include "tools/time_shares.h"

#include "sim/check.h"

namespace stepsim {

namespace {

std::string share_name(const OpGraph& graph, const TimeSpent& spent) {
  const auto name = [&graph](OpId op) {
    const std::string phase(graph.label(graph.op(op).phase)), kind(graph.label(graph.op(op).kind));
    return phase.empty() ? kind : phase + " " + kind;
  };
  switch (spent.on) {
    case TimeSpent::On::kRunning:
      return name(spent.op);
    case TimeSpent::On::kOp:
      return "waiting for " + name(spent.op);
    case TimeSpent::On::kDevices:
      return "waiting for other stages";
    case TimeSpent::On::kLaunch:
      return "waiting for the host's launches";
    case TimeSpent::On::kNothing:
      return "idle";
  }
  return "";
}

}  // namespace

std::map<std::string, Duration> time_shares(const OpGraph& graph, const GraphRun& run) {
  std::map<std::string, Duration> shares;
  Duration sum{};
  time_partition(graph, run.result, {}, [&](const TimeSpent& spent) {
    shares[share_name(graph, spent)] += spent.until - spent.from;
    sum += spent.until - spent.from;
  });
  STEPSIM_CHECK(sum == run.result.end);
  return shares;
}

}  // namespace stepsim
