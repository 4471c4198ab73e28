#include "tools/job_framework.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace stepsim {

namespace {

constexpr std::string_view kFrameworkSection = "framework.";

std::vector<std::pair<std::string, std::string>> changed_fields(JobValues& values, const JobEntries& entries) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& [path, entry] : entries.values) {
    if (path.compare(0, kFrameworkSection.size(), kFrameworkSection) != 0 || path == "framework.name") continue;
    const std::string field = path.substr(kFrameworkSection.size());
    if (field == "version" || field == "source" || field == "base") {
      values.fail(path, "found a " + field + ", wanted framework.name (NAME@VERSION) and fields that differ from it");
    }
    fields.emplace_back(field, entry.value);
  }
  return fields;
}

// FlashAttention-3 is for Hopper (Dao-AILab/flash-attention README, "FlashAttention-3 beta release: optimized for Hopper GPUs"), -4 for
// Blackwell (likewise, flash_attn/cute).
std::int32_t flash_version_on(const GpuSpec& gpu, std::int32_t wanted) {
  if (wanted == 4 && gpu.compute_capability < 100) wanted = 3;
  if (wanted == 3 && gpu.compute_capability != 90) wanted = 2;
  return wanted;
}

// Fields whose value the job shows under a path of its own.
constexpr std::string_view kDecided[] = {
    "point_to_point",
    "point_to_point_interleaved",
    "deallocates_pipeline_outputs",
    "overlaps_gradient_reduce",
    "overlaps_weight_gather",
    "bucket_parameters",
    "bucket_parameters_per_rank",
    "reduce_bits",
    "reduce_every_micro_batch",
    "reshard_after_forward",
    "prefetch_forward",
    "prefetch_backward",
    "gather_limit",
    "gradient_bits",
    "attention",
    "loss",
    "loss_chunks",
    "dispatcher",
    "context_exchange",
    "tensor_overlap",
    "overlaps_expert_exchange",
    "delays_weight_gradients",
    "cuda_graph",
};

struct Condition {
  bool holds = false;
  std::vector<std::string_view> fields;
};

// Fields that have no effect unless something of the job asks for it.
std::vector<Condition> conditions(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  const bool tensor = parallel.tensor > 1, unfused = job.training.attention == AttentionKind::kUnfused;
  const bool sharded = parallel.replicas() > 1 && parallel.zero >= 2, low = bits_of(product_dtype(job.training.precision)) < 16;
  return {
      {tensor, {"backward_all_reduce_overlaps_weight_gradient"}},
      {tensor && parallel.sequence_parallel, {"sequence_parallel_gather_again"}},
      {parallel.pipeline > 1,
       {"scatters_pipeline_messages", "waits_after_exchange", "pipeline_buffers", "pipeline_buffers_interleaved", "pipeline_leftovers"}},
      {sharded,
       {"keeps_last_layer_gathered", "root_holds_ends", "copies_out_of_gathers", "copies_pointer_tables", "frees_gathers_by_event",
        "keeps_weight_shards", "concatenates_gradients", "predivides_gradients", "prefetches_after_backward"}},
      {unfused, {"fused_softmax", "softmax_in_fp32"}},
      {job.training.attention == AttentionKind::kFlash, {"flash_version"}},
      {!unfused, {"saves_softmax_statistics"}},
      {low, {"saves_quantised_inputs"}},
      {job.model.has_experts(),
       {"groups_expert_products", "copies_expert_probabilities", "unpermutes_with_probabilities", "fused_expert_mlp", "expert_streams",
        "fused_permutation", "eager_expert_activation", "permutes_in_exchange", "reads_expert_counts"}},
      {job.placement.granularity != RecomputeGranularity::kNone, {"stops_after_last_saved", "keeps_unread_products"}}};
}

template <class List>
bool among(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

DescribedFramework resolve_framework(JobValues& values, const JobEntries& entries, Job& job) {
  const bool gpt = job.model.normalization == Normalization::kLayerNorm && job.model.activation == Activation::kGelu;
  const std::string name = values.text("framework.name", gpt ? "megatron-lm@2022-05" : "megatron-core@2025",
                                       gpt ? "for LayerNorm + GeLU models" : "for models other than LayerNorm + GeLU");
  const std::vector<std::pair<std::string, std::string>> changed = changed_fields(values, entries);
  DescribedFramework framework = describe_framework(name, changed);
  job.framework = framework.preset;
  if (!values.given("framework.name")) job.assumed.push_back("framework " + framework_label(job.framework));
  return framework;
}

void take_flash_of_machine(Job& job) { job.framework.flash_version = flash_version_on(job.gpu, job.framework.flash_version); }

void note_framework(JobValues& values, const DescribedFramework& framework, const Job& job) {
  const std::vector<Condition> asked = conditions(job);
  const auto idle = [&](const std::string& field) {
    return std::any_of(asked.begin(), asked.end(), [&](const Condition& each) { return !each.holds && among(each.fields, field); });
  };
  for (const FrameworkField& field : framework.fields) {
    const std::string path = std::string(kFrameworkSection) + field.name;
    if (field.said_by.empty()) {
      values.note_given(path);
      continue;
    }
    if (among(kDecided, field.name) || idle(field.name)) continue;
    std::string value = field.value, source = "default: of " + field.said_by;
    if (field.name == "flash_version" && value != std::to_string(job.framework.flash_version)) {
      source = fmt::format("default: {} prefers {}, which {} has not", field.said_by, value, job.gpu.name);
      value = std::to_string(job.framework.flash_version);
    }
    values.note(path, value, source, form_of(value));
  }
}

}  // namespace stepsim
