#include "tools/idle_settings.h"

#include <fmt/format.h>

#include "tools/job_flags.h"

namespace stepsim {

namespace {

struct Idle {
  bool idle = false;
  const char* path = "";
  std::string reason{};
};

// Values that ask for nothing: one rank, one chunk, replicas, a switch that is off by itself.
bool asks_for_nothing(const std::string& path, const std::string& value) {
  if (path == "parallel.zero") return value == "0";
  if (path == "parallel.virtual_stages") return value == "1";
  if (path == "training.iteration") return value == "steady";
  if (path == "parallel.expert_tp" || path == "training.imbalance") return value == "1";
  if (path == "training.capacity") return value == "0";
  if (path == "training.optimizer_offload") return value == "0";
  if (path == "parallel.tensor_overlap" || path == "training.cuda_graph") return value == "none";
  if (path == "training.deferred_head_gradients") return value == "0";
  if (path.starts_with("framework.")) return value == "none" || value == "false" || value == "0";
  return value == "false" &&
         (path == "parallel.sequence_parallel" || path == "parallel.overlap_expert_exchange" || path == "parallel.delay_weight_gradients");
}

std::vector<Idle> pipeline_settings(const ParallelLayout& parallel) {
  const bool one = parallel.pipeline == 1;
  const std::string stage = "--pp is 1: there is one stage", transfer = "--pp is 1: nothing is sent from stage to stage";
  const bool own_weights =
      parallel.schedule == PipelineKind::kZbH1 || parallel.schedule == PipelineKind::kZbV || parallel.schedule == PipelineKind::kDualPipe;
  return {{own_weights, "training.deferred_head_gradients", "--schedule puts off weight gradients by itself"},
          {one, "framework.pipeline_buffers", stage},
          {one, "parallel.virtual_stages", stage},
          {one, "parallel.schedule", stage},
          {one, "parallel.pp_layout", stage},
          {one, "parallel.rank", stage},
          {one, "parallel.p2p", transfer},
          {one, "parallel.deallocate_outputs", transfer}};
}

std::vector<Idle> data_parallel_settings(const ParallelLayout& parallel) {
  std::vector<Idle> settings;
  const auto add = [&](bool idle, const char* path, const std::string& reason) {
    const bool alone = parallel.replicas() == 1;
    settings.push_back({alone || idle, path, alone ? "--dp is 1: there are no ranks to share with" : reason});
  };
  const std::string zero = fmt::format("with --zero {} ", parallel.zero);
  const bool units = parallel.zero >= 2;  // gradients are reduced unit by unit
  const std::string by_unit = zero + "gradients are reduced unit by unit beside backward";
  const bool apart = !parallel.overlap_gradient_reduce.value_or(false);
  add(false, "parallel.zero", "");
  add(!units, "parallel.shard", zero + "no weights or gradients are sharded");
  add(units, "parallel.overlap_grad_reduce", by_unit);
  add(parallel.zero == 0 || parallel.zero == 3, "parallel.overlap_param_gather", zero + "no updated weights are gathered");
  add(units || apart, "parallel.bucket_size", units ? by_unit : "without overlap_grad_reduce gradients are one bucket");
  add(false, "parallel.reduce_dtype", "");
  add(!units, "parallel.reduce_every_micro_batch", zero + "gradients are reduced once a step, after the last micro-batch");
  for (const char* const path :
       {"parallel.reshard_after_forward", "parallel.prefetch_forward", "parallel.prefetch_backward", "parallel.gather_limit"}) {
    add(parallel.zero != 3, path, zero + "no weights are gathered for a layer");
  }
  return settings;
}

std::vector<Idle> expert_settings(const Job& job) {
  const bool none = !job.model.has_experts();
  const bool alone = job.parallel.expert == 1 && job.parallel.expert_tensor_ranks() == 1;
  const std::string reason = none ? job.model.name + " has no experts" : "--ep is 1: tokens stay where they are";
  const TrainingRecipe& training = job.training;
  const bool one = training.global_batch == training.micro_batch * job.parallel.replicas();
  const std::string overlapped = none || alone ? reason : "there is one micro-batch, which has no other to run beside";
  return {{none || alone, "parallel.dispatcher", reason},
          {none || alone || one, "parallel.overlap_expert_exchange", overlapped},
          {none || alone, "framework.overlaps_expert_exchange", reason},
          {none, "framework.delays_weight_gradients", reason},
          {none, "parallel.delay_weight_gradients", reason},
          {none, "parallel.expert_tp", reason},
          {none, "training.imbalance", reason},
          {none, "training.capacity", reason}};
}

std::vector<Idle> kernel_settings(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  const TrainingRecipe& training = job.training;
  const bool whole = parallel.tensor > 1 && !parallel.sequence_parallel, stays = training.optimizer_offload == 0;
  const std::string collectives =
      whole ? "without --sequence-parallel there are no gathers and scatters to overlap" : "--tp is 1: there are no collectives";
  const std::size_t packed = training.packed.size();
  const std::string sequences = "--cp is 1: each rank has whole sequences";
  return {{parallel.tensor == 1 || whole, "parallel.tensor_overlap", collectives},
          {parallel.tensor == 1 || whole, "framework.tensor_overlap", collectives},
          {parallel.context == 1, "parallel.context_exchange", sequences},
          {parallel.context == 1, "framework.context_exchange", sequences},
          {!job.framework.host_issue, "training.cuda_graph", "framework.host_issue is false: launches cost no time"},
          {training.optimizer == OptimizerKind::kNone, "training.optimizer_offload", "--optimizer none updates nothing"},
          {stays, "training.overlap_optimizer_copies", "without --optimizer-offload nothing of the optimizer is copied"},
          {packed == 1, "training.packed", "one document is the whole sequence"}};
}

// "--zero 3", "--sequence-parallel", "parallel.p2p batched".
std::string setting_name(const std::string& path, const std::string& value) {
  const std::string flag = flag_of_path(path);
  const bool bare_switch = flag != path && value == "true";
  return bare_switch ? flag : flag + " " + value;
}

// FSDP2 has no limiter: the gate is on the device.
bool limits_in_vain(const Job& job) {
  return job.parallel.data > 1 && job.parallel.zero == 3 && job.framework.copies_out_of_gathers &&
         job.parallel.gather_limit.value_or(0) > 0;
}

}  // namespace

std::vector<std::string> idle_settings(const Job& job) {
  const ParallelLayout& parallel = job.parallel;
  const bool stateless = job.training.optimizer == OptimizerKind::kSgd && job.training.momentum == 0;
  const bool handles = job.framework.blas_handles > 1;  // the second one's workspace is made in the first backward
  std::vector<Idle> settings = {{stateless && !handles, "training.iteration", "sgd has no state that the first step makes"},
                                {stateless, "training.moment_dtype", "sgd keeps no momentum (training.momentum)"},
                                {parallel.tensor == 1, "parallel.sequence_parallel", "--tp is 1: there are no ranks to share with"}};
  for (const Idle& each : pipeline_settings(parallel)) settings.push_back(each);
  for (const Idle& each : data_parallel_settings(parallel)) settings.push_back(each);
  for (const Idle& each : expert_settings(job)) settings.push_back(each);
  for (const Idle& each : kernel_settings(job)) settings.push_back(each);
  std::vector<std::string> sentences;
  for (const Idle& each : settings) {
    const auto entry = job.entries.values.find(each.path);
    if (!each.idle || entry == job.entries.values.end() || asks_for_nothing(each.path, entry->second.value)) continue;
    sentences.push_back(fmt::format("{} has no effect: {}", setting_name(each.path, entry->second.value), each.reason));
  }
  if (job.entries.values.count("parallel.gather_limit") > 0 && limits_in_vain(job)) {
    sentences.push_back(
        fmt::format("parallel.gather_limit {} frees no memory: with {} (FSDP2) each gather waits for the copy-out before it anyhow; "
                    "only the host waits more",
                    *parallel.gather_limit, framework_label(job.framework)));
  }
  if (job.training.attention == AttentionKind::kUnfused && job.training.packed.size() > 1) {
    sentences.push_back("--packed makes attention no faster: --attention unfused computes and masks all pairs of the sequence");
  }
  return sentences;
}

}  // namespace stepsim
