// The runs of NVIDIA's JAX blog of 2026-07-10 (../shared/spec/offload.md section 1) as graphs under declared parameters: the blog's batch,
// sharding, precision and recompute set are not known. Builds and runs one such graph; knows no published number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/roofline_cost_model.h"
#include "models/step_builder.h"
#include "tools/job.h"

namespace stepsim {

// What becomes of the tensors in question. The first three are the blog's rows; the last is its "keep on device".
enum class StudyRow : std::uint8_t { kRunAgain, kOffloadSynchronous, kOffloadScheduled, kKeep };

struct StudyParameters {
  std::string model{}, precision{};  // of matrix products
  std::int64_t expert_ranks = 1;     // of 128 GPUs; experts' parameters are sharded over the rest, all others over all GPUs
  std::int64_t sequence = 4096, micro_batch = 1;
  bool states_in_fp32 = false;       // weights, moments and reduced gradients; else bf16
  std::vector<std::string> moved{};  // tensors in question
  std::vector<std::string> kept{};   // that stay on the device in every row; all others are run again in every row
  // Of kOffloadScheduled: copies back are issued so many layers ahead; 0: the list scheduler decides, within the limit of memory.
  std::int64_t layers_ahead = 0;
  std::optional<Bytes> memory_limit{};  // none: the card's memory
};

// Kernels take `slowdown` times what the catalog's machine takes; `hidden` of every collective's time runs beside compute, where it costs
// compute the share of the SMs that it takes. Both for a whole step.
struct DeclaredCosts {
  double slowdown = 1, hidden = 0;
  double exposed_copies = 1;  // what is left of a copy's time where nothing runs beside it (kOffloadSynchronous)
};

struct StudyGraph {
  Job job{};
  OpGraph graph{};
  Machine machine{};
  std::unique_ptr<RooflineCostModel> costs{};
  double model_tflops = 0;  // of a GPU and step, in MaxText's convention
};

struct StudyFigures {
  double step_s = 0;
  double compute_s = 0, collective_s = 0, copy_s = 0;  // durations of the ops; they add up to the step where nothing overlaps
  double peak_gib = 0, host_gib = 0;                   // of one GPU
};

// A step of one micro-batch on 128 GB200. Collectives stand in the compute stream, so that what is exposed of them is
// DeclaredCosts::hidden's choice; under kOffloadScheduled weights are gathered one layer ahead and copies stand where XLA's latency-hiding
// scheduler puts them.
StudyGraph study_graph(const StudyParameters&, StudyRow);

StudyFigures study_figures(const StudyGraph&, const DeclaredCosts&);

}  // namespace stepsim
