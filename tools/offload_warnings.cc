#include <fmt/format.h>

#include <algorithm>

#include "tools/offload_report.h"
#include "tools/staging.h"

namespace stepsim {

namespace {

// meta-pytorch/torchtune torchtune/training/_activation_offloading.py warns above this share of host memory (spec/offload.md section 2).
constexpr double kMuchOfHostMemory = 0.6;

// Why a selection moves nothing: the first of its limits without which it would.
std::string why_nothing_moves(const Job& job, const StageLayout& stages) {
  Job wider = job;
  OffloadSelection& selection = wider.placement.offload.selection;
  const auto moves = [&] { return offload_counterparts(wider, stages).moved > 0; };
  selection.least_elements = 0;
  selection.least_bytes = {};
  if (moves()) return "every selected tensor is below offload_min_elements or offload_min_bytes";
  selection.budget.reset();
  if (moves()) return "no selected tensor goes into offload_budget";
  OffloadSelection names_only;
  names_only.names = selection.names;
  selection = names_only;
  if (moves()) return "what is selected lies in layers or groups that stay (keep_last_layers, keep_last_groups, less_per_stage)";
  return "what is selected is dropped and run again, or backward does not read it";
}

bool frees_by_event(const OpGraph& graph) {
  const CopiedStorages copied = copied_storages(graph);
  return std::any_of(copied.out.begin(), copied.out.end(), [&](const CopiedOutStorage& out) {
    return graph.storages()[static_cast<std::size_t>(out.storage.index)].deferred_free;
  });
}

std::string frees_nothing(const StepRun& run, const OffloadVerdict& verdict) {
  std::string text = fmt::format("offload frees nothing: the peak is {:.2f} GiB, {:.2f} GiB with the same tensors kept",
                                 gib(verdict.own.peak), gib(verdict.kept.peak));
  if (frees_by_event(run.step.graph)) {
    text += "; memory that is freed by event (record_stream) comes back when a later launch finds the copy done, and the host runs ahead";
  }
  return text;
}

}  // namespace

std::vector<std::string> offload_warnings(const Job& job, const StepRun& run, const std::optional<OffloadVerdict>& verdict) {
  std::vector<std::string> sentences;
  if (!job.placement.offloads()) return sentences;
  const OpGraph& graph = run.step.graph;
  const bool copies = std::any_of(graph.works().begin(), graph.works().end(), [](const OpWork& work) {
    const OpClass its_class = op_class(work);
    return its_class == OpClass::kCopyToHost || its_class == OpClass::kCopyToDevice;
  });
  if (!copies) {
    sentences.push_back("offload moves nothing: " + why_nothing_moves(job, run.step.stages));
    return sentences;
  }
  if (verdict && verdict->not_compared.empty() && verdict->own.peak >= verdict->kept.peak) {
    sentences.push_back(frees_nothing(run, *verdict));
  }
  const DeviceMemory* fullest = nullptr;
  for (const DeviceMemory& memory : run.run.memory) {
    if (memory.host_capacity && (fullest == nullptr || memory.host_peak > fullest->host_peak)) fullest = &memory;
  }
  if (fullest == nullptr) return sentences;
  const double share =
      static_cast<double>(fullest->host_peak.value) / static_cast<double>(std::max<std::int64_t>(fullest->host_capacity->value, 1));
  if (share > kMuchOfHostMemory) {
    sentences.push_back(fmt::format("offload takes {:.0f} % of the {:.2f} GiB of host memory that {} has (torchtune warns above 60 %)",
                                    100 * share, gib(*fullest->host_capacity), device_name(fullest->device)));
  }
  return sentences;
}

}  // namespace stepsim
