// Small graphs of copies and kernels on a machine of the catalog: what tests of host links run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "hardware/roofline_cost_model.h"
#include "sim/simulate.h"

namespace stepsim {

// The GPU alone at its root port and host memory: the GPUs beside it copy nothing.
inline ClusterSpec alone(ClusterSpec cluster) {
  cluster.gpus_per_host_memory = 1;
  cluster.root_port.gpus = 1;
  return cluster;
}

class CopyRun {
 public:
  CopyRun(const GpuSpec& gpu, const ClusterSpec& cluster, std::int32_t devices = 1)
      : CopyRun(gpu, cluster, make_machine(gpu, cluster, devices)) {}
  CopyRun(const GpuSpec& gpu, const ClusterSpec& cluster, Machine machine) : machine_(std::move(machine)), model_(gpu, cluster, machine_) {
    for (std::size_t i = 0; i < machine_.host_of_device.size(); ++i) {
      Engines engines;
      engines.device = builder_.add_device();
      for (StreamId* stream : {&engines.compute, &engines.in, &engines.out}) {
        *stream = builder_.add_stream({.device = engines.device, .kind = {}, .compute = stream == &engines.compute});
      }
      engines.engine_in = builder_.add_queue({.device = engines.device, .kind = {}});
      engines.engine_out = builder_.add_queue({.device = engines.device, .kind = {}});
      engines.host = builder_.add_issuer({.device = engines.device});
      devices_.push_back(engines);
    }
  }

  OpId kernel(const OpWork& work, std::size_t device = 0) { return add(work, devices_[device].compute, {}, {}); }
  // On the stream and the copy engine of its direction; `issued`: by the device's host thread instead of at time 0.
  OpId copy(const Copy& work, std::size_t device = 0, bool issued = false) {
    const Engines& at = devices_[device];
    const bool in = work.direction == CopyDirection::kHostToDevice;
    return add(work, in ? at.in : at.out, in ? at.engine_in : at.engine_out, issued ? at.host : IssuerId{});
  }
  // On a stream of its own.
  OpId copy_beside(const Copy& work, std::size_t device = 0) {
    const bool in = work.direction == CopyDirection::kHostToDevice;
    const Engines& at = devices_[device];
    return add(work, builder_.add_stream({.device = at.device, .kind = {}}), in ? at.engine_in : at.engine_out, {});
  }

  // Takes the graph.
  const StepResult& run() {
    graph_ = std::move(builder_).build();
    result_ = simulate(graph_, machine_, model_);
    EXPECT_FALSE(result_.deadlock);
    runs_.resize(graph_.ops().size());
    for (const OpRun& run : result_.timeline) runs_[static_cast<std::size_t>(run.op.index)] = run;
    return result_;
  }
  const OpRun& ran(OpId op) const { return runs_.at(static_cast<std::size_t>(op.index)); }
  // From start to end, without the fixed part: the rate at which the bytes moved.
  double gigabytes_per_s(OpId op) const {
    const Copy& work = std::get<Copy>(graph_.work(op));
    const Cost cost = model_.cost(work, DeviceId{0});
    return static_cast<double>(work.bytes.value) / seconds(ran(op).end - ran(op).start - cost.fixed) * 1e-9;
  }
  Cost cost(const OpWork& work) const { return model_.cost(work, DeviceId{0}); }

 private:
  struct Engines {
    DeviceId device{};
    StreamId compute{}, in{}, out{};
    QueueId engine_in{}, engine_out{};
    IssuerId host{};
  };
  OpId add(const OpWork& work, StreamId stream, QueueId engine, IssuerId issuer) {
    const Op op{.work = builder_.work(work), .stream = stream, .phase = {}, .kind = {}, .origin = {}, .issuer = issuer};
    const std::vector<QueueId> queues = engine.valid() ? std::vector<QueueId>{engine} : std::vector<QueueId>{};
    return builder_.add_op(op, {.queues = queues});
  }

  Machine machine_;
  RooflineCostModel model_;
  OpGraphBuilder builder_;
  std::vector<Engines> devices_;
  OpGraph graph_;
  StepResult result_;
  std::vector<OpRun> runs_;
};

}  // namespace stepsim
