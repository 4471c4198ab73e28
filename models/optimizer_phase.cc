#include "models/optimizer_phase.h"

#include <algorithm>
#include <vector>

#include "sim/check.h"

namespace stepsim {

namespace {

// Everything of one kind, as views of whole storages.
struct Operands {
  std::vector<Tensor> tensors;
  Bytes size{};
  void add(StorageId storage, Bytes bytes) {
    if (!storage.valid() || bytes.value == 0) return;
    tensors.push_back({storage, Bytes(0), bytes});
    size += bytes;
  }
  std::vector<StorageId> storages() const {
    std::vector<StorageId> ids;
    for (const Tensor& tensor : tensors) ids.push_back(tensor.storage);
    return ids;
  }
};

// Operands of the parameters' size that each of torch's kernels reads and writes in an AdamW update (torch/optim/adamw.py
// _multi_tensor_adamw, composer decoupled_weight_decay.py): 20 of them, 80 B a parameter of 4 B (spec accuracy.md B.4).
struct EagerPass {
  std::int64_t reads, writes;
};
constexpr EagerPass kEagerAdamW[] = {{1, 1},   // weight decay
                                     {2, 1},   // first moment, towards the gradient
                                     {1, 1},   // second moment, decayed
                                     {2, 1},   // and the gradient's square added
                                     {1, 1},   // its root
                                     {1, 1},   // over the bias correction
                                     {1, 1},   // plus epsilon
                                     {3, 1}};  // the parameter's step

MemoryBound eager_adamw(Bytes parameters) {
  MemoryBound work;
  for (const EagerPass& pass : kEagerAdamW) {
    work.read += parameters * pass.reads;
    work.written += parameters * pass.writes;
  }
  return work;
}

// Appends ops of one stage; an op on another stream than the last one waits for it.
class StageWriter {
 public:
  StageWriter(OpGraphBuilder& builder, const StepFrame& frame, std::size_t stage, const StageTail& tail)
      : builder_(builder), labels_(frame.labels), frame_(frame.stages[stage]), last_(tail.last_compute), last_stream_(frame_.compute()) {
    if (tail.last_reduce.valid()) also_.push_back(tail.last_reduce);
  }

  const StageFrame& frame() const { return frame_; }

  void kernel(const char* name, const MemoryBound& work, std::int32_t layer, const OpLinks& links) {
    add(builder_.work(work), builder_.label(name), frame_.compute(), layer, links);
  }

  void collective(LabelId kind, WorkId work, PassStream stream, OpLinks links) {
    const QueueId queue = frame_.queue(stream);
    links.queues = std::span(&queue, 1);
    add(work, kind, frame_.stream(stream), -1, links);
  }

  // An op of several stages that this one takes part in: what it waits for here.
  std::vector<Edge> waits(StreamId stream) const {
    std::vector<Edge> edges;
    if (last_.valid() && stream != last_stream_) edges.push_back({last_});
    for (const OpId other : also_) edges.push_back({other});
    return edges;
  }
  void joined(OpId op, StreamId stream) {
    last_ = op;
    last_stream_ = stream;
    also_.clear();
  }

  // The host launches the next op when the last one is over.
  void host_reads() { host_reads_ = true; }
  OpId last() const { return last_; }

 private:
  void add(WorkId work, LabelId kind, StreamId stream, std::int32_t layer, OpLinks links) {
    const std::vector<Edge> edges = waits(stream);
    links.predecessors = edges;
    const OpId read = last_;
    if (host_reads_ && read.valid()) links.issue_after = std::span(&read, 1);
    host_reads_ = false;
    joined(builder_.add_op({.work = work,
                            .stream = stream,
                            .phase = labels_.phase(Phase::kOptimizer),
                            .kind = kind,
                            .layer = layer,
                            .issuer = frame_.issuer},
                           links),
           stream);
  }

  OpGraphBuilder& builder_;
  const StepLabels& labels_;
  const StageFrame& frame_;
  OpId last_;
  StreamId last_stream_;  // the micro-batches end on the compute stream
  std::vector<OpId> also_;
  bool host_reads_ = false;
};

class PhaseWriter {
 public:
  PhaseWriter(OpGraphBuilder& builder, const StepFrame& frame, const OptimizerContext& context, std::span<const StageTail> tails)
      : builder_(builder), frame_(frame), context_(context), bytes_(context.residents.bytes), tails_(tails) {
    for (std::size_t stage = 0; stage < tails.size(); ++stage) {
      stages_.emplace_back(builder, frame, stage, tails[stage]);
      Operands& gradients = gradients_.emplace_back();
      Operands& own = own_.emplace_back();
      Operands& copies = copies_.emplace_back();
      for (const UnitResidents& unit : units(stage)) {
        const std::int64_t whole = ResidentStorages::share(unit.parameters, context.residents.gradient_shards), mine = share(unit);
        gradients.add(unit.gradients, Bytes(whole * bytes_.gradient));
        own.add(unit.gradients, Bytes(mine * bytes_.gradient));
        copies.add(unit.gradient_copy, Bytes(mine * bytes_.gradient_copy));
      }
    }
  }

  void write() {
    if (std::all_of(gradients_.begin(), gradients_.end(), [](const Operands& each) { return each.tensors.empty(); })) return;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) sums_within_stage(stage);
    tied_table();
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) norm_kernels(stage);
    norm_all_reduce();
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) update(stage);
  }

 private:
  const std::vector<UnitResidents>& units(std::size_t stage) const { return context_.residents.stages[stage]; }
  std::int64_t share(const UnitResidents& unit) const {
    return ResidentStorages::share(unit.parameters, context_.residents.optimizer_shards);
  }
  const Operands& normed(std::size_t stage) const { return bytes_.gradient_copy > 0 ? copies_[stage] : own_[stage]; }
  bool no_gradients(std::size_t stage) const { return gradients_[stage].tensors.empty(); }

  void all_reduce(std::size_t stage, const char* name, Bytes message, std::int32_t ranks, const Operands& operands) {
    const Collective work{.kind = CollectiveKind::kAllReduce, .message = message, .ranks = ranks};
    stages_[stage].collective(builder_.label(name, static_cast<std::int32_t>(Group::kTensor)), builder_.work(work), PassStream::kTensor,
                              {.reads = operands.tensors, .writes = operands.tensors});
  }

  void sums_within_stage(std::size_t stage) {
    const StageTail& tail = tails_[stage];
    const ParallelLayout& parallel = context_.parallel;
    for (const GradientBucket& bucket : tail.unreduced) {
      stages_[stage].collective(bucket.kind, bucket.work, PassStream::kReduce, {.reads = bucket.gradients, .writes = bucket.gradients});
    }
    if (no_gradients(stage)) return;
    if (parallel.tensor > 1 && parallel.sequence_parallel) {
      const std::int64_t parameters = sequence_parallel_parameters(context_.model, tail.layers, tail.head);
      if (parameters > 0) {
        all_reduce(stage, "norm gradient all-reduce", Bytes(parameters * bytes_.gradient), parallel.tensor, gradients_[stage]);
      }
    }
    if (const std::int64_t replicated = replicated_kv_parameters(context_.model, parallel, tail.layers); replicated > 0) {
      const auto ranks = static_cast<std::int32_t>(parallel.tensor / context_.model.kv_heads);
      all_reduce(stage, "key and value gradient all-reduce", Bytes(replicated * bytes_.gradient), ranks, gradients_[stage]);
    }
  }

  // Ops with a part on each of several stages, launched by the first one's host.
  void across(const char* name, const Collective& work, const std::vector<std::size_t>& members, std::span<const Tensor> operands) {
    std::vector<Edge> edges;
    std::vector<OpPart> parts;
    for (const std::size_t member : members) {
      const StreamId stream = stages_[member].frame().model_parallel;
      for (const Edge& edge : stages_[member].waits(stream)) edges.push_back(edge);
      if (member != members.front()) parts.push_back({stream, {}});
    }
    const StageFrame& first = stages_[members.front()].frame();
    const OpId op = builder_.add_op({.work = builder_.work(work),
                                     .stream = first.model_parallel,
                                     .phase = frame_.labels.phase(Phase::kOptimizer),
                                     .kind = builder_.label(name, static_cast<std::int32_t>(Group::kPipeline)),
                                     .issuer = first.issuer},
                                    {.predecessors = edges, .reads = operands, .writes = operands}, parts);
    for (const std::size_t member : members) stages_[member].joined(op, stages_[member].frame().model_parallel);
  }

  // Megatron-LM: the first and the last stage each hold the table, and sum its gradient once a step.
  void tied_table() {
    std::vector<std::size_t> holders;
    std::vector<Tensor> tables;
    for (std::size_t stage = 0; stage < tails_.size(); ++stage) {
      if (!tails_[stage].table_gradient.storage.valid()) continue;
      holders.push_back(stage);
      tables.push_back(tails_[stage].table_gradient);
    }
    if (holders.size() < 2) return;
    const auto apart = static_cast<std::int32_t>(holders.back() - holders.front()) * stage_ranks();
    across("embedding gradient all-reduce",
           {.kind = CollectiveKind::kAllReduce,
            .message = tables.front().size,
            .ranks = static_cast<std::int32_t>(holders.size()),
            .stride = apart},
           holders, tables);
  }

  std::int32_t stage_ranks() const {
    return static_cast<std::int32_t>(std::int64_t{context_.parallel.tensor} * context_.parallel.context * context_.parallel.data);
  }

  void norm_kernels(std::size_t stage) {
    if (no_gradients(stage)) return;
    StageWriter& writer = stages_[stage];
    const Operands &own = own_[stage], &copies = copies_[stage];
    if (bytes_.gradient_copy > 0) {
      writer.kernel("fp32 gradients", {.read = own.size, .written = copies.size}, -1, {.reads = own.tensors, .writes = copies.tensors});
    }
    const Operands& gradients = normed(stage);
    if (context_.training.precision == Precision::kFp16) {  // divides by the loss scale and looks for infinities
      writer.kernel("gradient unscale", {.read = gradients.size, .written = gradients.size}, -1,
                    {.reads = gradients.tensors, .writes = gradients.tensors});
    }
    writer.kernel("gradient norm", {.read = gradients.size}, -1, {.reads = gradients.tensors});
  }

  // One fp32 number over all ranks that hold different gradients. The host reads it before it goes on.
  void norm_all_reduce() {
    const ParallelLayout& parallel = context_.parallel;
    const std::int64_t shards = parallel.zero >= 1 ? parallel.sharding_ranks() : 1;
    const std::int64_t ranks = std::int64_t{parallel.tensor} * parallel.context * parallel.pipeline * shards;
    const Collective work{.kind = CollectiveKind::kAllReduce, .message = Bytes(4), .ranks = static_cast<std::int32_t>(ranks)};
    if (parallel.pipeline > 1) {
      std::vector<std::size_t> all(stages_.size());
      for (std::size_t stage = 0; stage < all.size(); ++stage) all[stage] = stage;
      across("gradient norm all-reduce", work, all, {});
    } else if (ranks > 1) {
      const bool tensor = parallel.tensor > 1;
      stages_.front().collective(
          builder_.label("gradient norm all-reduce", static_cast<std::int32_t>(tensor ? Group::kTensor : Group::kData)),
          builder_.work(work), tensor ? PassStream::kTensor : PassStream::kReduce, {});
    }
    if (!context_.framework.reads_gradient_norm) return;
    for (StageWriter& stage : stages_) stage.host_reads();
  }

  void update(std::size_t stage) {
    if (no_gradients(stage)) return;
    StageWriter& writer = stages_[stage];
    const bool kept = context_.framework.gradients_always_allocated;
    const Operands& gradients = normed(stage);
    if (context_.framework.always_clips) {
      writer.kernel("gradient clip", {.read = gradients.size, .written = gradients.size}, -1,
                    {.reads = gradients.tensors, .writes = gradients.tensors});
    }
    // Gradients outlive the update where the framework clears them together afterwards.
    std::vector<StorageId> held = gradients_[stage].storages();
    const std::vector<StorageId> copied = copies_[stage].storages();
    held.insert(held.end(), copied.begin(), copied.end());
    std::size_t last = units(stage).size() - 1;
    while (units(stage)[last].parameters == 0) --last;
    for (std::size_t unit = 0; unit <= last; ++unit) {
      if (units(stage)[unit].parameters == 0) continue;
      const bool frees = unit == last && !kept;
      update_unit(writer, units(stage)[unit], frees ? std::span<const StorageId>(held) : std::span<const StorageId>());
    }
    gather_weights(stage);
    if (!kept) return;
    writer.kernel("gradient clear", {.written = gradients_[stage].size}, -1, {.writes = gradients_[stage].tensors, .holds = copied});
  }

  void update_unit(StageWriter& writer, const UnitResidents& unit, std::span<const StorageId> holds) {
    const auto of = [mine = share(unit)](std::int64_t each) { return Bytes(mine * each); };
    const std::int32_t layer = unit.weights.valid() ? builder_.storage(unit.weights).layer : builder_.storage(unit.master).layer;
    const bool copies = context_.framework.copies_updated_weights && bytes_.master > 0 && unit.weights.valid();
    Operands reads, writes, master, weights;
    const bool copied = bytes_.gradient_copy > 0;
    reads.add(copied ? unit.gradient_copy : unit.gradients, of(copied ? bytes_.gradient_copy : bytes_.gradient));
    master.add(unit.master, of(bytes_.master));
    weights.add(unit.weights, of(bytes_.weight));
    const Operands& updated = bytes_.master > 0 ? master : weights;
    reads.add(updated.tensors.front().storage, updated.size);
    reads.add(unit.moments, of(bytes_.moments));
    if (bytes_.master > 0) writes.add(unit.master, master.size);
    writes.add(unit.moments, of(bytes_.moments));
    if (!copies) writes.add(unit.weights, weights.size);
    const bool adamw = context_.training.optimizer == OptimizerKind::kAdamW;
    MemoryBound work{.read = reads.size, .written = writes.size};
    if (adamw && !context_.framework.fused_optimizer) work = eager_adamw(updated.size);
    writer.kernel(adamw ? "AdamW update" : "SGD update", work, layer, {.reads = reads.tensors, .writes = writes.tensors, .holds = holds});
    if (!copies) return;
    writer.kernel("weight copy", {.read = master.size, .written = weights.size}, layer,
                  {.reads = master.tensors, .writes = weights.tensors});
  }

  void gather_weights(std::size_t stage) {
    const ParallelLayout& parallel = context_.parallel;
    if (parallel.data == 1 || parallel.zero == 0 || parallel.zero == 3 || *parallel.overlap_weight_gather) return;
    StageWriter& writer = stages_[stage];
    const StreamId gathers = writer.frame().stream(PassStream::kGather);
    for (const UnitResidents& unit : units(stage)) {
      const OpId op = add_weight_gather(builder_, frame_, stage, context_, unit, Phase::kOptimizer, writer.last());
      if (op.valid()) writer.joined(op, gathers);
    }
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  const OptimizerContext& context_;
  const ParameterBytes& bytes_;
  std::span<const StageTail> tails_;
  std::vector<StageWriter> stages_;
  std::vector<Operands> gradients_, own_, copies_;  // by stage: all gradients, those that this rank updates, their fp32 copies
};

}  // namespace

std::int64_t sequence_parallel_parameters(const ModelSpec& model, std::int64_t layers, bool head) {
  const bool two_vectors = model.normalization == Normalization::kLayerNorm && model.norm_bias;
  const std::int64_t norm = (two_vectors ? 2 : 1) * model.hidden;
  const std::int64_t head_norms = model.qk_norm ? 2 * model.head_dim : 0;
  const std::int64_t biases = model.linear_bias ? 2 * model.hidden : 0;  // of the attention projection and of the second MLP matrix
  const std::int64_t layer = (model.parallel_block ? 1 : 2) * norm + head_norms + biases;
  return layers * layer + (head ? norm : 0);
}

std::int64_t replicated_kv_parameters(const ModelSpec& model, const ParallelLayout& parallel, std::int64_t layers) {
  if (parallel.tensor <= model.kv_heads) return 0;
  const std::int64_t bias = model.linear_bias || model.qkv_bias ? 1 : 0;
  return layers * 2 * model.head_dim * (model.hidden + bias);
}

OpId add_weight_gather(OpGraphBuilder& builder, const StepFrame& frame, std::size_t stage, const OptimizerContext& context,
                       const UnitResidents& unit, Phase phase, OpId after) {
  if (unit.parameters == 0) return {};
  const ParallelLayout& parallel = context.parallel;
  const StageFrame& where = frame.stages[stage];
  const Tensor weights{unit.weights, Bytes(0), Bytes(unit.parameters * context.residents.bytes.weight)};
  const Edge edge{after};
  const QueueId queue = where.queue(PassStream::kGather);
  OpLinks links{.reads = std::span(&weights, 1), .writes = std::span(&weights, 1), .queues = std::span(&queue, 1)};
  if (after.valid()) links.predecessors = std::span(&edge, 1);
  const Collective work{.kind = CollectiveKind::kAllGather,
                        .message = weights.size,
                        .ranks = static_cast<std::int32_t>(parallel.sharding_ranks()),
                        .stride = static_cast<std::int32_t>(std::int64_t{parallel.tensor} * parallel.context)};
  return builder.add_op({.work = builder.work(work),
                         .stream = where.stream(PassStream::kGather),
                         .phase = frame.labels.phase(phase),
                         .kind = builder.label("weight all-gather", static_cast<std::int32_t>(Group::kData)),
                         .layer = builder.storage(unit.weights).layer,
                         .issuer = where.issuer},
                        links);
}

void add_optimizer_phase(OpGraphBuilder& builder, const StepFrame& frame, const OptimizerContext& context,
                         std::span<const StageTail> tails) {
  PhaseWriter(builder, frame, context, tails).write();
}

}  // namespace stepsim
