#include "tests/validation/golden_peak.h"

#include <algorithm>
#include <numeric>

#include "hardware/roofline_cost_model.h"
#include "sim/simulate.h"
#include "tools/stage_memory.h"
#include "tools/step_run.h"

namespace stepsim {

namespace {

bool begins(std::string_view text, std::string_view start) { return text.compare(0, start.size(), start) == 0; }
bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

PeakPart workspace_part(std::string_view name) {
  if (begins(name, "cuBLAS")) return PeakPart::kBlas;
  if (name == "Transformer Engine workspace") return PeakPart::kEngine;
  if (has(name, "grouped products")) return PeakPart::kGroupedEngine;
  return name == "global buffer" ? PeakPart::kGlobalBuffer : PeakPart::kOther;
}

PeakPart saved_part(std::string_view name) {
  if (has(name, "dropout mask")) return PeakPart::kMasks;
  if (begins(name, "attention softmax") || name == "attention dropped softmax") return PeakPart::kScores;
  if (name == "attention kernel output") return PeakPart::kAttentionCopy;
  if (has(name, ", normalised")) return PeakPart::kNormalisedHeads;
  for (const char* const start : {"experts", "expert ", "shared experts", "router", "routing", "row map"}) {
    if (begins(name, start)) return PeakPart::kExperts;
  }
  return PeakPart::kLayers;
}

PeakPart outer_part(std::string_view name) {
  if (name == "embedding dropout mask") return PeakPart::kEmbeddingMask;
  if (name == "input" || name == "final norm output") return PeakPart::kFinalNorm;
  for (const char* const batch : {"attention mask", "token ids", "position ids", "labels", "loss mask"}) {
    if (name == batch) return PeakPart::kBatch;
  }
  return PeakPart::kOther;
}

PeakPart part_of(const OpGraph& graph, const Storage& storage, std::int64_t first_layer) {
  const std::string_view role = graph.label(storage.role), name = storage.name.valid() ? graph.label(storage.name) : "";
  if (begins(name, "multi-token")) return PeakPart::kMultiToken;
  if (role == "weights") return PeakPart::kWeights;
  if (role == "gradients") return PeakPart::kGradients;
  if (role == "optimizer_state") return PeakPart::kOptimizer;
  if (role == "workspace") return workspace_part(name);
  if (name == "pipeline buffers") return PeakPart::kPipelineBuffers;
  if (role == "logits") return name == "logits" || name == "softmax" ? PeakPart::kLogits : PeakPart::kFurtherLogits;
  if (role == kSavedActivations) return storage.layer < first_layer ? PeakPart::kEarlierChunks : saved_part(name);
  return outer_part(name);
}

GoldenPeak peak_of(const BuiltStep& built, const StepResult& result, std::int32_t stage) {
  const OpGraph& graph = built.graph;
  const ModelChunk& chunk = built.stages.chunk(stage, built.stages.chunks - 1);
  GoldenPeak peak;
  for (const StorageId id : holders_at_peak(graph, result, DeviceId{stage}, MemorySpace::kDevice)) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(id.index)];
    peak.bytes[static_cast<std::size_t>(part_of(graph, storage, chunk.first_layer))] += storage.size.value;
  }
  return peak;
}

}  // namespace

std::int64_t GoldenPeak::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

GoldenPeaks golden_peaks(const GoldenRow& row) {
  const MegatronJob made = megatron_job(row.run);
  StepRequest request = step_request(made.job);
  if (made.blas_workspace) request.workspaces.blas_handle = *made.blas_workspace;
  const std::int64_t micro_batches = telling_micro_batches(request.training, request.parallel);
  request.training.global_batch = micro_batches * request.training.micro_batch * request.parallel.data;
  const BuiltStep built = build_step(request);
  Machine machine = make_machine(made.job.gpu, made.job.cluster, built.graph.device_count());
  std::fill(machine.device_capacity.begin(), machine.device_capacity.end(), std::nullopt);
  const StepResult result = simulate(built.graph, machine, RooflineCostModel(made.job.gpu, made.job.cluster, machine));
  return {peak_of(built, result, 0), peak_of(built, result, request.parallel.pipeline - 1)};
}

bool is_core(const MegatronRun& run) {
  const std::string group = run_group(run);
  const bool other = group == "T5" || group == "BERT" || group == "FSDP" || has(group, "multi-token");
  return !other && !has(run.name(), "release");
}

}  // namespace stepsim
