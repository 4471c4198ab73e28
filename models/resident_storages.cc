#include "models/resident_storages.h"

#include <algorithm>

#include "sim/check.h"
#include "sim/op_work.h"

namespace stepsim {

namespace {

// Parameters that share an fp32 scale: bitsandbytes@51294d9 optim/optimizer.py Optimizer2State.init_state, `blocks = n // 256`, one absmax
// a block for each of the two moments (2,048 in releases before 0.45).
constexpr std::int64_t kAdam8BitBlock = 256;

bool shards_gradients(const ParallelLayout& parallel) { return parallel.zero >= 2 && parallel.replicas() > 1; }

void set_moments(const TrainingRecipe& training, ParameterBytes& bytes) {
  const std::int64_t moment = bits_of(training.moment_dtype) / 8;
  switch (training.optimizer) {
    case OptimizerKind::kAdamW:
      bytes.moments = bytes.other_moments = moment + (training.second_moment_dtype ? bits_of(*training.second_moment_dtype) / 8 : moment);
      return;
    case OptimizerKind::kAdam8Bit:
      bytes.moments = bytes.other_moments = 2;
      bytes.moment_block = kAdam8BitBlock;
      return;
    case OptimizerKind::kSgd:
      bytes.moments = bytes.other_moments = training.momentum > 0 ? moment : 0;
      return;
    case OptimizerKind::kLion:  // arXiv 2302.06675 algorithm 2: m alone
      bytes.moments = bytes.other_moments = moment;
      return;
    case OptimizerKind::kMuon:  // momentum of matrices, AdamW's two of the rest: Megatron-LM core/optimizer/muon.py
      bytes.moments = moment;
      bytes.other_moments = 2 * moment;
      return;
    case OptimizerKind::kNone:
      bytes.moments = bytes.other_moments = 0;
      return;
  }
}

bool gathers_weights(const ParallelLayout& parallel) { return parallel.zero == 3 && parallel.replicas() > 1; }

}  // namespace

Bytes ParameterBytes::moment_bytes(std::int64_t parameters, std::int64_t matrices) const {
  const std::int64_t scales = moment_block == 0 ? 0 : 2 * 4 * ResidentStorages::share(parameters, moment_block);
  return Bytes(matrices * moments + (parameters - matrices) * other_moments + scales);
}

ParameterBytes parameter_bytes(const TrainingRecipe& training, const ParallelLayout& parallel) {
  const bool half = training.precision != Precision::kFp32;
  ParameterBytes bytes;
  bytes.weight = half ? 2 : 4;
  bytes.gradient = bits_of(*training.gradient_dtype) / 8;
  if (shards_gradients(parallel)) {
    bytes.unsharded_gradient = bytes.gradient;
    bytes.gradient = bits_of(*parallel.reduce_dtype) / 8;
  }
  bytes.reduced_gradient = bytes.gradient;
  bytes.gradient_copy = bytes.gradient < 4 ? 4 : 0;  // main_param.grad = main_grad.float(), spec/megatron_memory.md section 3.1
  bytes.master = half ? training.master_bits / 8 : 0;
  set_moments(training, bytes);
  return bytes;
}

ParameterBytes parameter_bytes(const TrainingRecipe& training, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  ParameterBytes bytes = parameter_bytes(training, parallel);
  if (!framework.keeps_master_weights) bytes.master = 0;
  // What is updated from a gradient as it is made needs no copy of it.
  if (!framework.keeps_master_weights || training.optimizer_in_backward) bytes.gradient_copy = 0;
  if (training.optimizer == OptimizerKind::kNone) {
    bytes.gradient_copy = 0;
    if (!shards_are_weights(parallel, framework, bytes)) bytes.master = 0;
  }
  // FSDP1's shards are cast to what the parameters' are: _runtime_utils.py _cast_grad_to_param_dtype, unless keep_low_precision_grads.
  const bool flat = framework.concatenates_gradients || framework.predivides_gradients;
  if (flat && shards_gradients(parallel) && shards_are_weights(parallel, framework, bytes)) {
    bytes.gradient = bytes.master;
    bytes.gradient_copy = 0;
  }
  return bytes;
}

bool shards_are_weights(const ParallelLayout& parallel, const FrameworkPreset& framework, const ParameterBytes& bytes) {
  return gathers_weights(parallel) && bytes.master > 0 && !framework.keeps_weight_shards;
}

TrainingRecipe with_gradient_dtype(const TrainingRecipe& training, const ParallelLayout& parallel, const FrameworkPreset& framework) {
  TrainingRecipe resolved = training;
  if (resolved.gradient_dtype) return resolved;
  switch (training.precision) {
    case Precision::kFp32:
      resolved.gradient_dtype = DType::kFp32;
      break;
    case Precision::kFp16:
      resolved.gradient_dtype = DType::kFp16;
      break;
    case Precision::kBf16:
    case Precision::kFp8:  // below 16 bits all but the products is bf16
    case Precision::kMxFp8:
    case Precision::kNvFp4:
      resolved.gradient_dtype = framework.gradient_bits == 32 && !shards_gradients(parallel) ? DType::kFp32 : DType::kBf16;
      break;
  }
  return resolved;
}

namespace {

class ResidentWriter {
 public:
  ResidentWriter(OpGraphBuilder& builder, const StepFrame& frame, const TrainingRecipe& training, const ParallelLayout& parallel,
                 const FrameworkPreset& framework, ResidentStorages& residents)
      : builder_(builder),
        frame_(frame),
        residents_(residents),
        first_(training.iteration == IterationKind::kFirst),
        keeps_gradients_(framework.gradients_always_allocated && !training.optimizer_in_backward),
        keeps_copies_(framework.keeps_fp32_gradient_copies),
        accumulates_unsharded_(!*parallel.reduce_every_micro_batch),
        gathers_weights_(gathers_weights(parallel)),
        only_master_(shards_are_weights(parallel, framework, residents.bytes)),
        offload_(training.optimizer == OptimizerKind::kNone ? 0 : training.optimizer_offload) {
    STEPSIM_CHECK(offload_ >= 0);
    STEPSIM_CHECK(offload_ <= 1);
  }

  UnitResidents unit(std::size_t stage, const UnitParameters& each) {
    stage_ = stage;
    layer_ = each.layer;
    const ParameterBytes& bytes = residents_.bytes;
    UnitResidents unit;
    unit.parameters = each.parameters;
    unit.expert_parameters = each.expert_parameters;
    unit.matrices = each.matrices;
    unit.frozen = each.frozen;
    unit.kept = each.kept.value > 0 ? each.kept : Bytes(each.parameters * bytes.weight);
    const std::int64_t optimizer = residents_.optimizer_share(unit);
    unit.tensors = each.tensors;
    unit.offloaded = static_cast<std::int64_t>(static_cast<double>(optimizer) * offload_);
    const std::int64_t updated_here = optimizer - unit.offloaded;
    const std::int64_t frozen = ResidentStorages::share(each.frozen.value, residents_.weight_shards);
    const std::int64_t whole = gathers_weights_ ? residents_.weight_share(unit) * bytes.weight : unit.kept.value;
    const char* const name = each.parameters > 0 ? "weights" : "frozen weights";
    unit.weights = add((only_master_ ? 0 : whole) + frozen, Role::kWeights, name, true, true);
    // fully_shard's foreach_reduce and FSDP 1's post-backward hook ask for the reduced shard under the stream of the reduction.
    own_stream_ = residents_.gradient_shards > 1;
    unit.gradients =
        add(residents_.gradient_share(unit) * bytes.gradient, Role::kGradients, "main gradients", keeps_gradients_, keeps_gradients_);
    own_stream_ = false;
    // Sharded fp32 weights are the master weights: what is gathered is cast from them.
    unit.master = only_master_ ? add(optimizer * bytes.master, Role::kWeights, "master weights", true, true)
                               : add(updated_here * bytes.master, Role::kOptimizerState, "master weights", true, true);
    unit.moments = add(moments(unit, updated_here).value, Role::kOptimizerState, kOptimizerMoments, !first_, true);
    unit.gradient_copy = add(optimizer * bytes.gradient_copy, Role::kGradients, "fp32 gradients", false, keeps_copies_);
    if (keeps_copies_ && !first_) {
      unit.old_gradient_copy = add(optimizer * bytes.gradient_copy, Role::kGradients, "fp32 gradients of the step before", true, false);
    }
    if (unit.offloaded > 0) add_on_host(unit);
    unit.low_copies = add(each.cached.value, Role::kWeights, "cached low-precision weights", true, true);
    if (bytes.unsharded_gradient > 0 && accumulates_unsharded_) {
      unit.unsharded_gradients = add(each.parameters * bytes.unsharded_gradient, Role::kGradients, "unsharded gradients", false, false);
    }
    return unit;
  }

  void workspace(std::size_t stage, const ResidentWorkspace& workspace) {
    stage_ = stage;
    layer_ = -1;
    add(workspace.size.value, Role::kWorkspace, workspace.name, true, true);
  }

 private:
  // Of this rank's share, in which matrices are as frequent as in the whole.
  Bytes moments(const UnitResidents& unit, std::int64_t share) const {
    const bool all_alike = residents_.bytes.moments == residents_.bytes.other_moments;
    if (all_alike || unit.matrices == 0) return residents_.bytes.moment_bytes(share, 0);
    const std::int64_t rest = unit.parameters - unit.matrices;
    const std::int64_t shared_rest = std::min(share, ResidentStorages::share(rest, residents_.optimizer_shards));
    return residents_.bytes.moment_bytes(share, share - shared_rest);
  }

  // Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py: fp32 weights and moments, pinned buffers of gradients as they come.
  void add_on_host(UnitResidents& unit) {
    constexpr std::int64_t kHostWeight = 4;
    const ParameterBytes& bytes = residents_.bytes;
    const std::int64_t gradient = bytes.gradient_copy > 0 ? bytes.gradient_copy : bytes.gradient;
    space_ = MemorySpace::kHost;
    unit.host_state = add(unit.offloaded * kHostWeight + moments(unit, unit.offloaded).value, Role::kOptimizerState,
                          "optimizer state on the host", true, true);
    unit.host_gradients = add(unit.offloaded * gradient, Role::kGradients, "gradients on the host", true, true);
    space_ = MemorySpace::kDevice;
  }

  StorageId add(std::int64_t size, Role role, const char* name, bool at_start, bool at_end) {
    const LabelId label = builder_.label(name);
    if (size == 0) return StorageId{};
    return builder_.add_storage({.size = Bytes(size),
                                 .role = frame_.labels.role(role),
                                 .name = label,
                                 .device = frame_.stages[stage_].device,
                                 .space = space_,
                                 .layer = layer_,
                                 .live_at_start = at_start,
                                 .live_at_end = at_end,
                                 .of_claiming_stream = own_stream_});
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  ResidentStorages& residents_;
  bool own_stream_ = false;
  MemorySpace space_ = MemorySpace::kDevice;
  bool first_, keeps_gradients_, keeps_copies_, accumulates_unsharded_, gathers_weights_;
  bool only_master_;  // the sharded fp32 weights are the only ones
  double offload_;
  std::size_t stage_ = 0;
  std::int32_t layer_ = -1;
};

}  // namespace

// As many groups as the others have: optimizer instances, replicas of a sharding group.
std::int64_t expert_sharding_ranks(const ParallelLayout& parallel) {
  const std::int64_t groups = std::max<std::int64_t>(1, parallel.replicas() / std::max(1, parallel.sharding_ranks()));
  return std::max<std::int64_t>(1, parallel.expert_replicas() / groups);
}

ResidentStorages add_residents(OpGraphBuilder& builder, const StepFrame& frame, const TrainingRecipe& training,
                               const ParallelLayout& parallel, const FrameworkPreset& framework,
                               const std::vector<std::vector<UnitParameters>>& stages,
                               const std::vector<std::vector<ResidentWorkspace>>& workspaces) {
  ResidentStorages residents;
  residents.bytes = parameter_bytes(training, parallel, framework);
  const std::int64_t ranks = parallel.sharding_ranks(), expert_ranks = expert_sharding_ranks(parallel);
  const auto shards = [&](std::int32_t zero, std::int64_t& all, std::int64_t& experts) {
    all = parallel.zero >= zero ? ranks : 1;
    experts = parallel.zero >= zero ? expert_ranks : 1;
  };
  shards(1, residents.optimizer_shards, residents.expert_optimizer_shards);
  shards(2, residents.gradient_shards, residents.expert_gradient_shards);
  shards(3, residents.weight_shards, residents.expert_weight_shards);
  ResidentWriter writer(builder, frame, training, parallel, framework, residents);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<UnitResidents>& units = residents.stages.emplace_back();
    for (const UnitParameters& unit : stages[stage]) units.push_back(writer.unit(stage, unit));
    if (stage >= workspaces.size()) continue;
    for (const ResidentWorkspace& workspace : workspaces[stage]) writer.workspace(stage, workspace);
  }
  return residents;
}

}  // namespace stepsim
