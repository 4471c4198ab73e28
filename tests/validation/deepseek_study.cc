#include "tests/validation/deepseek_study.h"

#include <algorithm>
#include <optional>

#include "models/flops.h"
#include "sim/check.h"
#include "sim/simulate.h"
#include "tools/job_flags.h"
#include "tools/latency_hiding.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

class DeclaredCostModel : public CostModel {
 public:
  // The base outlives this.
  DeclaredCostModel(const CostModel& base, const DeclaredCosts& declared, double collective_sms)
      : base_(base), declared_(declared), collective_(1 - declared.hidden + declared.hidden * collective_sms) {}

  Cost cost(const OpWork& work, DeviceId device, TransferSide side) const override {
    Cost cost = base_.cost(work, device, side);
    const double factor = factor_of(op_class(work));
    cost.fixed = duration_from_seconds(seconds(cost.fixed) * factor);
    cost.alone = duration_from_seconds(seconds(cost.alone) * factor);
    return cost;
  }

 private:
  double factor_of(OpClass of) const {
    if (of == OpClass::kCompute) return declared_.slowdown;
    if (of == OpClass::kCollective) return collective_;
    return of == OpClass::kCopyToHost || of == OpClass::kCopyToDevice ? declared_.exposed_copies : 1;
  }

  const CostModel& base_;
  DeclaredCosts declared_;
  double collective_;
};

bool is_low_copy(const OpGraph& graph, const Storage& storage) { return graph.label(storage.name) == "cached low-precision weights"; }

std::vector<Tensor> present(const OpGraph& graph, std::span<const Tensor> tensors) {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors) {
    if (!is_low_copy(graph, graph.storages()[at(tensor.storage.index)])) found.push_back(tensor);
  }
  return found;
}

void add_tables(const OpGraph& graph, OpGraphBuilder& builder) {
  for (std::int32_t i = 0; i < graph.label_count(); ++i) {
    const LabelId label{i};
    STEPSIM_CHECK(builder.label(graph.label(label), graph.bucket(label)) == label);
  }
  for (std::size_t i = 0; i < graph.works().size(); ++i) {
    STEPSIM_CHECK(builder.work(graph.works()[i]).index == static_cast<std::int32_t>(i));
  }
  for (std::int32_t i = 0; i < graph.device_count(); ++i) builder.add_device();
  for (const Stream& stream : graph.streams()) builder.add_stream(stream);
  for (const Queue& queue : graph.queues()) builder.add_queue(queue);
  for (const Issuer& issuer : graph.issuers()) builder.add_issuer(issuer);
  for (const Pool& pool : graph.pools()) builder.add_pool(pool);
  for (Storage storage : graph.storages()) {
    // The builder keeps 8-bit copies of all layers' gathered weights for the whole step. XLA quantises what it has just gathered, and both
    // die with the layer.
    if (is_low_copy(graph, storage)) storage.size = Bytes(0);
    builder.add_storage(storage);
  }
}

bool is_host_copy(const OpGraph& graph, OpId id) {
  const OpClass of = op_class(graph.work(id));
  return of == OpClass::kCopyToHost || of == OpClass::kCopyToDevice;
}

// Who waits for a copy waits for those before it on its stream. Schedule order only sees edges: without these a copy whose successor is
// waited for would hold its tensor to the end of the step. They move nothing.
class ImpliedWaits {
 public:
  explicit ImpliedWaits(const OpGraph& graph) : graph_(graph), outstanding_(graph.streams().size()) {}

  // Called for all ops in the order of their ids.
  std::vector<Edge> edges_into(OpId id) {
    const std::span<const Edge> given = graph_.predecessors(id);
    std::vector<Edge> edges(given.begin(), given.end());
    for (const Edge& edge : given) {
      if (edge.kind != EdgeKind::kEndToStart || !is_host_copy(graph_, edge.from)) continue;
      std::vector<OpId>& before = outstanding_[static_cast<std::size_t>(graph_.op(edge.from).stream.index)];
      const auto until = std::find_if(before.begin(), before.end(), [&](OpId copy) { return copy.index > edge.from.index; });
      for (auto copy = before.begin(); copy != until; ++copy) {
        if (*copy != edge.from) edges.push_back({*copy, EdgeKind::kEndToStart});
      }
      before.erase(before.begin(), until);
    }
    if (is_host_copy(graph_, id)) outstanding_[static_cast<std::size_t>(graph_.op(id).stream.index)].push_back(id);
    return edges;
  }

 private:
  const OpGraph& graph_;
  std::vector<std::vector<OpId>> outstanding_;  // by stream: copies that nothing waited for yet, ascending
};

// The same graph of one device with its collectives in the compute stream, in the order of the program.
OpGraph with_collectives_in_line(const OpGraph& graph) {
  StreamId compute{};
  for (std::size_t i = 0; i < graph.streams().size(); ++i) {
    if (graph.streams()[i].compute) compute = StreamId{static_cast<std::int32_t>(i)};
  }
  OpGraphBuilder builder;
  add_tables(graph, builder);
  ImpliedWaits waits(graph);
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const OpId id{static_cast<std::int32_t>(i)};
    STEPSIM_CHECK(graph.parts(id).size() <= 1);
    Op op = graph.op(id);
    if (op_class(graph.work(id)) == OpClass::kCollective) op.stream = compute;
    const std::vector<Edge> edges = waits.edges_into(id);
    const std::vector<Tensor> reads = present(graph, graph.reads(id)), writes = present(graph, graph.writes(id));
    OpLinks links{.predecessors = edges, .reads = reads, .writes = writes, .holds = graph.holds(id), .issue_after = graph.issue_after(id)};
    if (!graph.parts(id).empty()) links.queues = graph.queues(id, 0);
    builder.add_op(op, links);
  }
  return std::move(builder).build();
}

Job study_job(const StudyParameters& parameters, StudyRow row) {
  const char* const ahead = row == StudyRow::kOffloadScheduled ? "true" : "false";
  const char* const states = parameters.states_in_fp32 ? "fp32" : "bf16";
  JobInput input;
  // No preset is MaxText's. The nearest: what a compiler makes of FSDP, less what only PyTorch does (copies out of gathered buffers, host
  // launches, autograd's workspaces, the root unit) and with the sister configuration's states
  // (../shared/data/offload/deepseek_v3_gb300_128gpu_maxtext.json: weight_dtype, mu_dtype bfloat16).
  for (const std::string& setting : {std::string("model.name=") + parameters.model,
                                     std::string("hardware.name=gb200"),
                                     std::string("hardware.stack=none"),
                                     std::string("hardware.gpus=128"),
                                     std::string("framework.name=torchtitan-compiled@2026"),
                                     std::string("framework.host_issue=false"),
                                     std::string("framework.copies_out_of_gathers=false"),
                                     std::string("framework.copies_pointer_tables=false"),
                                     std::string("framework.root_holds_ends=false"),
                                     std::string("framework.keeps_last_layer_gathered=false"),
                                     std::string("framework.blas_handles=0"),
                                     std::string("framework.fused_optimizer=true"),
                                     std::string("framework.keeps_master_weights=") + (parameters.states_in_fp32 ? "true" : "false"),
                                     std::string("training.moment_dtype=") + states,
                                     std::string("parallel.reduce_dtype=") + states,
                                     std::string("training.attention=fused"),
                                     std::string("training.precision=") + parameters.precision,
                                     std::string("training.sequence=") + std::to_string(parameters.sequence),
                                     std::string("training.micro_batch=") + std::to_string(parameters.micro_batch),
                                     std::string("parallel.zero=3"),
                                     std::string("parallel.ep=") + std::to_string(parameters.expert_ranks),
                                     std::string("parallel.prefetch_forward=") + ahead,
                                     std::string("parallel.prefetch_backward=") + ahead,
                                     std::string("placement.name=maxtext:qkv_proj_offloaded")}) {
    input.flags.push_back(parse_set(setting));
  }
  Job job = resolve_job(input);
  const PlacementAction action = row == StudyRow::kRunAgain ? PlacementAction::kRecompute
                                 : row == StudyRow::kKeep   ? PlacementAction::kKeep
                                                            : PlacementAction::kOffload;
  job.placement.rows = {{.module_or_slot = "*", .action = PlacementAction::kRecompute}};
  for (const std::string& name : parameters.kept) job.placement.rows.push_back({.module_or_slot = name, .action = PlacementAction::kKeep});
  for (const std::string& name : parameters.moved) job.placement.rows.push_back({.module_or_slot = name, .action = action});
  if (row == StudyRow::kOffloadSynchronous) {
    job.placement.offload.schedule.synchronous = true;
    job.placement.offload.schedule.order = OffloadSchedule::Order::kProgram;
    job.placement.offload.schedule.lookahead = 0;
  }
  if (row == StudyRow::kOffloadScheduled && parameters.layers_ahead > 0) {
    job.placement.offload.schedule.order = OffloadSchedule::Order::kProgram;
    job.placement.offload.schedule.lookahead = parameters.layers_ahead;
    job.placement.offload.schedule.copy_in_waits_for_compute = true;
  }
  return job;
}

}  // namespace

StudyGraph study_graph(const StudyParameters& parameters, StudyRow row) {
  StudyGraph study{.job = study_job(parameters, row)};
  study.machine = make_machine(study.job.gpu, study.job.cluster, 1);
  if (parameters.memory_limit) study.machine.device_capacity = {parameters.memory_limit};
  study.costs = std::make_unique<RooflineCostModel>(study.job.gpu, study.job.cluster, study.machine);
  study.graph = with_collectives_in_line(build_step(step_request(study.job)).graph);
  if (row == StudyRow::kOffloadScheduled) {
    study.graph = latency_hidden(std::move(study.graph), study.job.placement.offload.schedule, study.machine, *study.costs);
  }
  const StepFlops flops = step_flops(FlopsConvention::kMaxText, study.job.model, study.job.training, study.job.model.vocab, {});
  study.model_tflops = flops.model.value / static_cast<double>(study.job.gpus) / 1e12;
  return study;
}

StudyFigures study_figures(const StudyGraph& study, const DeclaredCosts& declared) {
  const DeclaredCostModel costs(*study.costs, declared, study.job.gpu.fit.collective_sms);
  const StepResult result = simulate(study.graph, study.machine, costs, {.device = LedgerRule::kScheduleOrder});
  STEPSIM_CHECK(!result.deadlock);
  StudyFigures figures{.step_s = seconds(result.end)};
  for (const OpRun& run : result.timeline) {
    const double lasted = seconds(run.end - run.start);
    switch (op_class(study.graph.work(run.op))) {
      case OpClass::kCompute:
        figures.compute_s += lasted;
        break;
      case OpClass::kCollective:
        figures.collective_s += lasted;
        break;
      case OpClass::kCopyToHost:
      case OpClass::kCopyToDevice:
        figures.copy_s += lasted;
        break;
      default:
        break;
    }
  }
  const MemoryPeaks peaks = memory_peaks(study.graph, result);
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  figures.peak_gib = gib(peaks.device.at(0).bytes);
  figures.host_gib = gib(peaks.host.at(0).bytes);
  return figures;
}

}  // namespace stepsim
