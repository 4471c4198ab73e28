// Jobs of published tables: a request from a row, run on the machine of the table.
#pragma once

#include <string>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "tests/validation/csv_rows.h"
#include "tools/graph_run.h"

namespace stepsim {

struct PublishedRun {
  BuiltStep step;
  GraphRun run;
};

inline PublishedRun run_published(StepRequest request, const std::string& machine_name) {
  const GpuSpec gpu = load_gpu(machine_name);
  request.workspaces = {.blas_handle = gpu.blas_workspace, .engine = gpu.engine_workspace};
  PublishedRun published{.step = build_step(request), .run = {}};
  const ClusterSpec cluster = usual_cluster(gpu);
  const OpGraph& graph = published.step.graph;
  const Machine machine = make_machine(gpu, cluster, graph.device_count());
  published.run = run_graph(graph, machine, RooflineCostModel(gpu, cluster, machine), published.step.phases, {});
  return published;
}

// The time alone.
inline double published_step_s(const StepRequest& request, const std::string& machine_name) {
  const BuiltStep step = build_step(request);
  const GpuSpec gpu = load_gpu(machine_name);
  const ClusterSpec cluster = usual_cluster(gpu);
  const Machine machine = make_machine(gpu, cluster, step.graph.device_count());
  return seconds(simulate(step.graph, machine, RooflineCostModel(gpu, cluster, machine), {.memory = false}).end);
}

// 2205.05198: fp16 with fp32 gradients (accuracy.md C.1 counts 58 B a parameter for that optimizer), sequence 2048, dropout, unfused
// attention, TP 8, Megatron-LM of that month. Columns: model, pipeline, virtual_stages, global_batch, micro_batch.
inline StepRequest megatron_request(const NamedCells& row) {
  StepRequest request;
  request.model = load_model(row.at("model"));
  request.framework = load_framework("megatron-lm@2022-05");
  request.training.precision = Precision::kFp16;
  request.training.gradient_dtype = DType::kFp32;
  request.training.sequence = 2048;
  request.training.micro_batch = std::stoll(row.at("micro_batch"));
  request.training.global_batch = std::stoll(row.at("global_batch"));
  request.training.attention = AttentionKind::kUnfused;
  request.training.dropout = request.model.dropout;
  request.parallel.tensor = 8;
  request.parallel.pipeline = std::stoi(row.at("pipeline"));
  request.parallel.virtual_stages = std::stoi(row.at("virtual_stages"));
  if (request.parallel.virtual_stages > 1) request.parallel.schedule = PipelineKind::kInterleaved;
  return request;
}

}  // namespace stepsim
