#include "tools/job_parallel.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "models/recipe_names.h"
#include "sim/dtype_name.h"

namespace stepsim {

constexpr std::int64_t kMostRanks = 1 << 20, kMostGpus = 1 << 24;  // of a kind, and together: as check_layout

static void resolve_ranks(JobValues& values, Job& job) {
  const std::int64_t tensor = values.whole("parallel.tp", 1, "no tensor parallelism", 1, kMostRanks);
  job.parallel.sequence_parallel = values.flag("parallel.sequence_parallel");
  const std::int64_t pipeline = values.whole("parallel.pp", 1, "no pipeline parallelism", 1, kMostRanks);
  const std::optional<std::int64_t> gpus = values.optional_whole("hardware.gpus");
  if (gpus && *gpus < 1) values.fail("hardware.gpus", fmt::format("found {}, wanted a whole number, at least 1", *gpus));
  const bool shares_sequences = values.given("parallel.cp");
  const std::int64_t context = shares_sequences ? values.whole("parallel.cp", 1, "", 1, kMostRanks) : 1;
  const std::string product =
      shares_sequences ? fmt::format("tp {} x pp {} x cp {}", tensor, pipeline, context) : fmt::format("tp {} x pp {}", tensor, pipeline);
  const std::string names = shares_sequences ? "tp x pp x cp" : "tp x pp";
  const std::int64_t group = tensor * pipeline * context;  // at most 2^60
  if (gpus && (*gpus < group || *gpus % group != 0)) {
    values.fail("hardware.gpus", fmt::format("found {}, wanted a multiple of {} ({})", *gpus, group, product));
  }
  const std::int64_t left = gpus.value_or(group) / group;
  if (left > kMostRanks && !values.given("parallel.dp")) {
    values.fail("hardware.gpus", fmt::format("found {}, wanted at most {} x {}", *gpus, kMostRanks, product));
  }
  const std::int64_t data = values.whole("parallel.dp", left, gpus ? "gpus / (" + names + ")" : "no data parallelism", 1, kMostRanks);
  job.parallel.tensor = static_cast<std::int32_t>(tensor);
  job.parallel.pipeline = static_cast<std::int32_t>(pipeline);
  job.parallel.context = static_cast<std::int32_t>(context);
  job.parallel.data = static_cast<std::int32_t>(data);
  if (context > 1 && group > kMostGpus / data) {
    values.fail("parallel.cp", fmt::format("found {}, wanted at most {} GPUs ({} x dp {})", context, kMostGpus, product, data));
  }
  if (gpus && *gpus != group * data) {
    values.fail("hardware.gpus", fmt::format("found {}, wanted {} ({} x dp {})", *gpus, group * data, product, data));
  }
  if (!gpus) values.note("hardware.gpus", std::to_string(group * data), "default: " + names + " x dp", JobValue::Form::kNumber);
  job.gpus = group * data;
}

// HybridEP exchanges within NVLink domains of more than a node (DeepEP PR 420: GB200); elsewhere those recipes take DeepEP
// (spec/accuracy.md C.2).
static bool lacks_hybrid_domain(const Job& job) {
  constexpr std::int32_t kGpusOfNode = 8;
  return job.framework.dispatcher == Dispatcher::kHybridEp && job.cluster.nvlink_domain <= kGpusOfNode;
}

static void resolve_experts(JobValues& values, Job& job) {
  const auto shown = [&](const char* path) { return job.model.has_experts() || values.given(path); };
  ParallelLayout& parallel = job.parallel;
  if (shown("parallel.ep")) {
    parallel.expert = static_cast<std::int32_t>(values.whole("parallel.ep", 1, "no expert parallelism", 1, kMostRanks));
  }
  if (shown("parallel.expert_tp")) {
    const std::int64_t ranks = values.whole("parallel.expert_tp", parallel.tensor, "as --tp", 1, kMostRanks);
    if (values.given("parallel.expert_tp")) parallel.expert_tensor = static_cast<std::int32_t>(ranks);
  }
  if (values.given("parallel.dispatcher")) {
    parallel.dispatcher = static_cast<Dispatcher>(values.choice("parallel.dispatcher", kDispatcherNames, {}, 0, ""));
  } else if (job.model.has_experts() && lacks_hybrid_domain(job) && parallel.expert > 1) {
    parallel.dispatcher = Dispatcher::kDeepEp;
    values.note("parallel.dispatcher", "deepep", "default: as " + framework_label(job.framework) + " where an NVLink domain is one node",
                JobValue::Form::kText);
  }
  parallel.overlap_expert_exchange = values.optional_flag("parallel.overlap_expert_exchange");
  parallel.delay_weight_gradients = values.optional_flag("parallel.delay_weight_gradients");
}

static void resolve_exchanges(JobValues& values, Job& job) {
  if (values.given("parallel.context_exchange")) {
    job.parallel.context_exchange =
        static_cast<ContextExchange>(values.choice("parallel.context_exchange", kContextExchangeNames, {}, 0, ""));
  }
  if (values.given("parallel.tensor_overlap")) {
    job.parallel.tensor_overlap = static_cast<TensorOverlap>(values.choice("parallel.tensor_overlap", kTensorOverlapNames, {}, 0, ""));
  }
}

static void resolve_pipeline(JobValues& values, Job& job) {
  constexpr std::array<std::string_view, 6> kSchedules = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"};  // by PipelineKind
  constexpr std::array<std::string_view, 3> kTransfers = {"blocking", "batched", "overlapped"};                          // by PointToPoint
  ParallelLayout& parallel = job.parallel;
  const auto shown = [&](const char* path) { return parallel.pipeline > 1 || values.given(path); };
  if (shown("parallel.virtual_stages")) {
    const std::int64_t chunks = values.whole("parallel.virtual_stages", 1, "one model chunk a stage", 1, kMostRanks);
    parallel.virtual_stages = static_cast<std::int32_t>(chunks);
  }
  if (shown("parallel.schedule")) {
    const bool chunks = parallel.virtual_stages > 1;
    parallel.schedule = static_cast<PipelineKind>(
        values.choice("parallel.schedule", kSchedules, {}, chunks ? 2 : 1, chunks ? "for virtual stages" : "usual"));
  }
  parallel.split.layout = values.optional_text("parallel.pp_layout").value_or("");
  const auto layers = [&](const char* path) { return values.given(path) ? values.whole(path, 0, "", 1, kUnbounded) : 0; };
  parallel.split.first_stage_layers = layers("parallel.first_stage_layers");
  parallel.split.last_stage_layers = layers("parallel.last_stage_layers");
  if (values.given("parallel.p2p")) {
    parallel.point_to_point = static_cast<PointToPoint>(values.choice("parallel.p2p", kTransfers, {}, 0, ""));
  }
  parallel.deallocate_outputs = values.optional_flag("parallel.deallocate_outputs");
}

// "worst", "last" or the index of a stage.
static void resolve_rank(JobValues& values, Job& job) {
  if (job.parallel.pipeline == 1 && !values.given("parallel.rank")) return;
  const std::int32_t last = job.parallel.pipeline - 1;
  const std::string rank = values.text("parallel.rank", "worst", "the stage with the largest peak");
  if (rank == "worst") return;
  std::int32_t stage = last;
  if (rank != "last") {
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), stage);
    if (error != std::errc() || end != rank.data() + rank.size() || stage < 0 || stage > last) {
      values.fail("parallel.rank", fmt::format("found \"{}\", wanted worst, last or a pipeline stage from 0 to {}", rank, last));
    }
  }
  job.reported_stage = stage;
}

static void resolve_bucket(JobValues& values, Job& job) {
  const std::optional<std::string> bucket = values.optional_text("parallel.bucket_size");
  if (!bucket) return;
  try {
    job.parallel.bucket = parse_bytes(*bucket);
  } catch (const QuantityError& error) {
    values.fail("parallel.bucket_size", error.what());
  }
}

static void resolve_data_parallel(JobValues& values, Job& job) {
  constexpr std::array<std::string_view, 3> kNames = {"bf16", "fp16", "fp32"};
  constexpr std::array<DType, 3> kTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
  ParallelLayout& parallel = job.parallel;
  parallel.zero = static_cast<std::int32_t>(values.whole("parallel.zero", 0, "replicas", 0, 3));
  if (values.given("parallel.shard")) {
    parallel.shard = static_cast<std::int32_t>(values.whole("parallel.shard", 0, "", 1, kMostRanks));
  }
  if (values.given("parallel.optimizer_instances")) {
    parallel.optimizer_instances = static_cast<std::int32_t>(values.whole("parallel.optimizer_instances", 1, "", 1, kMostRanks));
  }
  parallel.overlap_gradient_reduce = values.optional_flag("parallel.overlap_grad_reduce");
  parallel.overlap_weight_gather = values.optional_flag("parallel.overlap_param_gather");
  resolve_bucket(values, job);
  if (values.given("parallel.reduce_dtype")) {
    parallel.reduce_dtype = kTypes[values.choice("parallel.reduce_dtype", kNames, {}, 0, "")];
  }
  parallel.reduce_every_micro_batch = values.optional_flag("parallel.reduce_every_micro_batch");
  parallel.reshard_after_forward = values.optional_flag("parallel.reshard_after_forward");
  parallel.prefetch_forward = values.optional_flag("parallel.prefetch_forward");
  parallel.prefetch_backward = values.optional_flag("parallel.prefetch_backward");
  if (values.given("parallel.gather_limit")) {
    parallel.gather_limit = static_cast<std::int32_t>(values.whole("parallel.gather_limit", 0, "", 0, kMostRanks));
  }
}

// Notes what the framework decided, where it has an effect.
static void note_preset(JobValues& values, const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  const std::string source = "default: of " + framework_label(job.framework);
  const auto note = [&](bool matters, const char* path, const std::string& value, JobValue::Form form) {
    if (matters && !values.given(path)) values.note(path, value, source, form);
  };
  const auto note_flag = [&](bool matters, const char* path, const std::optional<bool>& value) {
    if (value) note(matters, path, *value ? "true" : "false", JobValue::Form::kSwitch);
  };
  const bool pipeline = parallel.pipeline > 1, data = parallel.replicas() > 1, sharded = parallel.zero == 3;
  const bool whole = parallel.zero <= 1;  // gradients, in buckets
  if (parallel.point_to_point) {
    note(pipeline, "parallel.p2p", std::string(point_to_point_name(*parallel.point_to_point)), JobValue::Form::kText);
  }
  note_flag(pipeline, "parallel.deallocate_outputs", parallel.deallocate_outputs);
  note_flag(data && whole, "parallel.overlap_grad_reduce", parallel.overlap_gradient_reduce);
  note_flag(data && (parallel.zero == 1 || parallel.zero == 2), "parallel.overlap_param_gather", parallel.overlap_weight_gather);
  if (parallel.bucket) note(data && whole, "parallel.bucket_size", fmt::format("{} B", parallel.bucket->value), JobValue::Form::kText);
  if (parallel.reduce_dtype) note(data, "parallel.reduce_dtype", dtype_name(*parallel.reduce_dtype), JobValue::Form::kText);
  note_flag(data && parallel.zero >= 2, "parallel.reduce_every_micro_batch", parallel.reduce_every_micro_batch);
  note_flag(sharded, "parallel.reshard_after_forward", parallel.reshard_after_forward);
  note_flag(sharded, "parallel.prefetch_forward", parallel.prefetch_forward);
  note_flag(sharded, "parallel.prefetch_backward", parallel.prefetch_backward);
  const bool experts = job.model.has_experts(), exchanged = experts && parallel.expert > 1;
  const auto note_name = [&](bool matters, const char* path, std::string_view value) {
    note(matters, path, std::string(value), JobValue::Form::kText);
  };
  const bool noted = lacks_hybrid_domain(job) && parallel.expert > 1;
  note_name(experts && !noted, "parallel.dispatcher", name_of(kDispatcherNames, *parallel.dispatcher));
  note_flag(exchanged, "parallel.overlap_expert_exchange", parallel.overlap_expert_exchange);
  note_flag(experts, "parallel.delay_weight_gradients", parallel.delay_weight_gradients);
  note_name(parallel.context > 1, "parallel.context_exchange", name_of(kContextExchangeNames, *parallel.context_exchange));
  note_name(parallel.tensor > 1 && parallel.sequence_parallel, "parallel.tensor_overlap",
            name_of(kTensorOverlapNames, *parallel.tensor_overlap));
  if (parallel.gather_limit) note(sharded, "parallel.gather_limit", std::to_string(*parallel.gather_limit), JobValue::Form::kNumber);
}

void resolve_parallel(JobValues& values, Job& job) {
  resolve_ranks(values, job);
  resolve_experts(values, job);
  resolve_exchanges(values, job);
  resolve_pipeline(values, job);
  resolve_rank(values, job);
  resolve_data_parallel(values, job);
  job.parallel = with_preset(job.parallel, job.training, job.framework);
  note_preset(values, job);
  const std::int64_t together = job.training.micro_batch * job.parallel.data;
  job.training.global_batch = values.whole("training.global_batch", together, "micro-batch x dp", 1, kMostSequences);
}

}  // namespace stepsim
