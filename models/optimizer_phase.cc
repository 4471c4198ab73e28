#include "models/optimizer_phase.h"

#include <vector>

#include "sim/check.h"

namespace stepsim {

namespace {

// Appends ops of the phase; an op on another stream than the last one waits for it.
class PhaseWriter {
 public:
  PhaseWriter(OpGraphBuilder& builder, const StepFrame& frame) : builder_(builder), frame_(frame), last_stream_(frame.compute) {}

  void kernel(const char* name, const MemoryBound& work, std::int32_t layer, const OpLinks& links) {
    add(builder_.work(work), builder_.label(name), frame_.compute, layer, links);
  }

  void all_reduce(const char* name, Bytes message, std::int32_t ranks, OpLinks links) {
    links.queues = std::span(&frame_.tensor_queue, 1);
    const Collective work{.kind = CollectiveKind::kAllReduce, .message = message, .ranks = ranks};
    add(builder_.work(work), builder_.label(name, static_cast<std::int32_t>(Group::kTensor)), frame_.tensor, -1, links);
  }

 private:
  void add(WorkId work, LabelId kind, StreamId stream, std::int32_t layer, OpLinks links) {
    const OpId before{static_cast<std::int32_t>(builder_.op_count()) - 1};
    STEPSIM_CHECK(before.valid());
    const Edge wait{before};
    if (stream != last_stream_) links.predecessors = std::span(&wait, 1);
    last_stream_ = stream;
    builder_.add_op(
        {.work = work, .stream = stream, .phase = frame_.phase(Phase::kOptimizer), .kind = kind, .layer = layer, .issuer = frame_.issuer},
        links);
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  StreamId last_stream_;  // the micro-batches end on the compute stream
};

// Everything of one kind, as views of whole storages.
struct Operands {
  std::vector<Tensor> tensors;
  Bytes size{};
  void add(StorageId storage, Bytes bytes) {
    if (!storage.valid()) return;
    tensors.push_back({storage, Bytes(0), bytes});
    size += bytes;
  }
};

void add_update(PhaseWriter& writer, const ResidentStorages& residents, const UnitResidents& unit, std::int32_t layer, const char* name,
                std::span<const StorageId> holds) {
  const ParameterBytes& bytes = residents.bytes;
  const auto of = [&unit](std::int64_t each) { return Bytes(unit.parameters * each); };
  Operands reads, writes;
  if (bytes.gradient_copy > 0) {
    reads.add(unit.gradient_copy, of(bytes.gradient_copy));
  } else {
    reads.add(unit.gradients, of(bytes.gradient));
  }
  if (bytes.master > 0) {
    reads.add(unit.master, of(bytes.master));
    writes.add(unit.master, of(bytes.master));
  } else {
    reads.add(unit.weights, of(bytes.weight));
  }
  reads.add(unit.moments, of(bytes.moments));
  writes.add(unit.moments, of(bytes.moments));
  writes.add(unit.weights, of(bytes.weight));
  writer.kernel(name, {.read = reads.size, .written = writes.size}, layer,
                {.reads = reads.tensors, .writes = writes.tensors, .holds = holds});
}

}  // namespace

std::int64_t sequence_parallel_parameters(const ModelSpec& model) {
  const bool two_vectors = model.normalization == Normalization::kLayerNorm && model.norm_bias;
  const std::int64_t norm = (two_vectors ? 2 : 1) * model.hidden;
  const std::int64_t head_norms = model.qk_norm ? 2 * model.head_dim : 0;
  const std::int64_t biases = model.linear_bias ? 2 * model.hidden : 0;  // of the attention projection and of the second MLP matrix
  const std::int64_t layer = (model.parallel_block ? 1 : 2) * norm + head_norms + biases;
  return model.layers * layer + norm;
}

std::int64_t replicated_kv_parameters(const ModelSpec& model, const ParallelLayout& parallel) {
  if (parallel.tensor <= model.kv_heads) return 0;
  const std::int64_t bias = model.linear_bias || model.qkv_bias ? 1 : 0;
  return model.layers * 2 * model.head_dim * (model.hidden + bias);
}

void add_optimizer_phase(OpGraphBuilder& builder, const StepFrame& frame, const ModelSpec& model, const TrainingRecipe& training,
                         const ParallelLayout& parallel, const FrameworkPreset& framework, const ResidentStorages& residents) {
  PhaseWriter writer(builder, frame);
  const ParameterBytes& bytes = residents.bytes;
  Operands gradients, copies;
  for (const UnitResidents& unit : residents.units) {
    gradients.add(unit.gradients, Bytes(unit.parameters * bytes.gradient));
    copies.add(unit.gradient_copy, Bytes(unit.parameters * bytes.gradient_copy));
  }
  if (gradients.tensors.empty()) return;
  if (parallel.tensor > 1 && parallel.sequence_parallel) {
    const Bytes message(sequence_parallel_parameters(model) * bytes.gradient);
    writer.all_reduce("norm gradient all-reduce", message, parallel.tensor, {.reads = gradients.tensors, .writes = gradients.tensors});
  }
  if (const std::int64_t replicated = replicated_kv_parameters(model, parallel); replicated > 0) {
    const auto ranks = static_cast<std::int32_t>(parallel.tensor / model.kv_heads);
    writer.all_reduce("key and value gradient all-reduce", Bytes(replicated * bytes.gradient), ranks,
                      {.reads = gradients.tensors, .writes = gradients.tensors});
  }
  if (bytes.gradient_copy > 0) {
    writer.kernel("fp32 gradients", {.read = gradients.size, .written = copies.size}, -1,
                  {.reads = gradients.tensors, .writes = copies.tensors});
  }
  const Operands& normed = bytes.gradient_copy > 0 ? copies : gradients;
  writer.kernel("gradient norm", {.read = normed.size}, -1, {.reads = normed.tensors});
  if (parallel.tensor > 1) writer.all_reduce("gradient norm all-reduce", Bytes(4), parallel.tensor, {});  // one fp32 number
  // Gradients outlive the update where the framework clears them together afterwards.
  std::vector<StorageId> held;
  for (const Operands* each : {&gradients, &copies}) {
    for (const Tensor& tensor : each->tensors) held.push_back(tensor.storage);
  }
  std::size_t last = residents.units.size() - 1;
  while (residents.units[last].parameters == 0) --last;
  const char* name = training.optimizer == OptimizerKind::kAdamW ? "AdamW update" : "SGD update";
  for (std::size_t unit = 0; unit <= last; ++unit) {
    if (residents.units[unit].parameters == 0) continue;
    const bool inner = unit > 0 && unit + 1 < residents.units.size();
    const bool frees = unit == last && !framework.gradients_always_allocated;
    add_update(writer, residents, residents.units[unit], inner ? static_cast<std::int32_t>(unit) - 1 : -1, name,
               frees ? std::span<const StorageId>(held) : std::span<const StorageId>());
  }
  if (!framework.gradients_always_allocated) return;
  std::vector<StorageId> copied;
  for (const Tensor& tensor : copies.tensors) copied.push_back(tensor.storage);
  writer.kernel("gradient clear", {.written = gradients.size}, -1, {.writes = gradients.tensors, .holds = copied});
}

}  // namespace stepsim
