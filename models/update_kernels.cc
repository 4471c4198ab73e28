#include "models/update_kernels.h"

#include <algorithm>
#include <array>

#include "models/stage_writer.h"
#include "sim/check.h"

namespace stepsim {

namespace {

// Operands of the parameters' size that each of torch's kernels reads and writes in an AdamW update (torch/optim/adamw.py
// _multi_tensor_adamw, composer decoupled_weight_decay.py): 20 of them, 80 B a parameter of 4 B (spec accuracy.md B.4).
struct EagerPass {
  std::int64_t reads, writes;
};
constexpr std::array<EagerPass, 8> kEagerAdamW = {{{1, 1},    // weight decay
                                                   {2, 1},    // first moment, towards the gradient
                                                   {1, 1},    // second moment, decayed
                                                   {2, 1},    // and the gradient's square added
                                                   {1, 1},    // its root
                                                   {1, 1},    // over the bias correction
                                                   {1, 1},    // plus epsilon
                                                   {3, 1}}};  // the parameter's step

MemoryBound eager_adamw(Bytes parameters) {
  MemoryBound work;
  for (const EagerPass& pass : kEagerAdamW) {
    work.read += parameters * pass.reads;
    work.written += parameters * pass.writes;
  }
  return work;
}

const char* update_name(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::kAdamW:
      return "AdamW update";
    case OptimizerKind::kSgd:
      return "SGD update";
    case OptimizerKind::kAdam8Bit:
      return "8-bit Adam update";
    case OptimizerKind::kLion:
      return "Lion update";
    case OptimizerKind::kMuon:
      return "Muon update";
    case OptimizerKind::kNone:
      break;
  }
  check_failed("optimizer", __FILE__, __LINE__);
}

// What this rank holds of each parameter that the optimizer sees, `mine` in all: of equal shares of all tensors, or of the flat parameter
// that FSDP1 makes of a unit.
std::vector<std::int64_t> parameter_shares(const OptimizerContext& context, const UnitResidents& unit, std::int64_t mine) {
  const bool flat = context.parallel.zero == 3 && context.parallel.replicas() > 1 && !context.framework.copies_out_of_gathers;
  if (flat || unit.tensors.empty()) return {mine};
  std::vector<std::int64_t> shares;
  double before = 0;  // exact: a unit's parameters stay below 2^53 (layer_template.h sizes)
  std::int64_t given = 0;
  for (const std::int64_t tensor : unit.tensors) {
    before += static_cast<double>(tensor);
    const auto until = static_cast<std::int64_t>(static_cast<double>(mine) * (before / static_cast<double>(unit.parameters)));
    shares.push_back(until - given);
    given = until;
  }
  shares.back() += mine - given;
  return shares;
}

// The parts of whole storages that belong to `share` of `whole` parameters behind `first`.
std::vector<Tensor> parts(const std::vector<Tensor>& tensors, std::int64_t first, std::int64_t share, std::int64_t whole) {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors) {
    const std::int64_t each = tensor.size.value / whole;  // bytes a parameter
    found.push_back({tensor.storage, tensor.offset + Bytes(first * each), Bytes(share * each)});
  }
  return found;
}

// composer decoupled_weight_decay.py: `for i, param in enumerate(params)`, each with `step = state_steps[i].item()`.
std::vector<UpdateKernel> looped_adamw(OpGraphBuilder& builder, const std::vector<std::int64_t>& shares, std::int64_t mine, Bytes parameter,
                                       const Operands& reads, const Operands& writes) {
  std::vector<UpdateKernel> kernels;
  std::int64_t first = 0;
  for (const std::int64_t share : shares) {
    if (share == 0) continue;
    bool host_reads = true;
    for (const EagerPass& pass : kEagerAdamW) {
      const Bytes size = parameter * share;
      const MemoryBound work{.read = size * pass.reads, .written = size * pass.writes};
      kernels.push_back({.kind = builder.label(update_name(OptimizerKind::kAdamW)),
                         .work = builder.work(work),
                         .reads = parts(reads.tensors, first, share, mine),
                         .writes = parts(writes.tensors, first, share, mine),
                         .host_reads = host_reads});
      host_reads = false;
    }
    first += share;
  }
  return kernels;
}

}  // namespace

Bytes updated_weights(const OptimizerContext& context, const UnitResidents& unit, std::int64_t parameters) {
  const ParameterBytes& bytes = context.residents.bytes;
  if (shards_are_weights(context.parallel, context.framework, bytes)) return {};
  if (unit.kept == Bytes(unit.parameters * bytes.weight)) return Bytes(parameters * bytes.weight);
  const Bytes whole(ResidentStorages::share(unit.kept.value, context.residents.optimizer_shards));
  const std::int64_t mine = context.residents.optimizer_share(unit);
  return parameters == mine ? whole : Bytes(whole.value / mine * parameters);
}

std::vector<UpdateKernel> update_kernels(OpGraphBuilder& builder, const OptimizerContext& context, const UnitResidents& unit) {
  const OptimizerKind optimizer = context.training.optimizer;
  const ParameterBytes& bytes = context.residents.bytes;
  const std::int64_t mine = context.residents.optimizer_share(unit) - unit.offloaded;
  if (unit.parameters == 0 || mine == 0 || optimizer == OptimizerKind::kNone) return {};
  const auto of = [mine](std::int64_t each) { return Bytes(mine * each); };
  Operands reads, writes, master, weights;
  const bool copied = bytes.gradient_copy > 0;
  reads.add(copied ? unit.gradient_copy : unit.gradients, of(copied ? bytes.gradient_copy : bytes.gradient));
  master.add(unit.master, of(bytes.master));
  weights.add(unit.weights, updated_weights(context, unit, mine));
  const bool copies = context.framework.copies_updated_weights && bytes.master > 0 && !weights.tensors.empty();
  const Operands& updated = bytes.master > 0 ? master : weights;
  reads.add(updated.tensors.front().storage, updated.size);
  const Bytes moments = unit.moments.valid() ? builder.storage(unit.moments).size : Bytes(0);
  reads.add(unit.moments, moments);
  if (bytes.master > 0) writes.add(unit.master, master.size);
  writes.add(unit.moments, moments);
  if (!copies) writes.add(unit.weights, weights.size);
  std::vector<UpdateKernel> kernels;
  const bool eager = optimizer == OptimizerKind::kAdamW && !context.framework.fused_optimizer;
  if (optimizer == OptimizerKind::kAdamW && context.framework.loops_over_parameters) {
    kernels = looped_adamw(builder, parameter_shares(context, unit, mine), mine, Bytes(updated.size.value / mine), reads, writes);
  } else {
    const MemoryBound work = eager ? eager_adamw(updated.size) : MemoryBound{.read = reads.size, .written = writes.size};
    kernels.push_back({builder.label(update_name(optimizer)), builder.work(work), reads.tensors, writes.tensors});
  }
  if (!copies) return kernels;
  const MemoryBound copy{.read = master.size, .written = weights.size};
  kernels.push_back({builder.label("weight copy"), builder.work(copy), master.tensors, weights.tensors});
  return kernels;
}

}  // namespace stepsim
