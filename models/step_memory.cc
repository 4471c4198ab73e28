#include "models/step_memory.h"

#include <algorithm>
#include <set>
#include <variant>

#include "models/dummy_gradients.h"
#include "models/template_builder.h"

namespace stepsim {

namespace {

// Whether layers of the stage are mixtures of experts.
bool has_experts(const StepMemoryContext& context, std::int32_t stage) {
  const ModelSpec& model = context.request.model;
  if (!model.has_experts()) return false;
  for (std::int32_t index = 0; index < context.stages.chunks; ++index) {
    const ModelChunk& chunk = context.stages.chunk(stage, index);
    for (std::int64_t layer = chunk.first_layer; layer < chunk.first_layer + chunk.layers; ++layer) {
      if (model.kind(layer).experts) return true;
    }
  }
  return false;
}

bool has_head(const StepMemoryContext& context, std::int32_t stage) {
  for (std::int32_t index = 0; index < context.stages.chunks; ++index) {
    if (context.stages.chunk(stage, index).head) return true;
  }
  return false;
}

// A hidden state as it lies between layers on one rank, and of all ranks of the tensor-parallel group.
Bytes hidden_state(const StepMemoryContext& context) {
  const LayerTemplate& layer = context.templates.kinds.front();
  return layer.slots[at(layer.input)].size;
}
Bytes whole_hidden_state(const StepMemoryContext& context) {
  const ParallelLayout& parallel = context.request.parallel;
  return hidden_state(context) * (parallel.sequence_parallel ? parallel.tensor : 1);
}

// Scores of all heads of one rank: queries of its own part of the sequence, keys of all.
Bytes scores(const StepRequest& request) {
  const TrainingRecipe& training = request.training;
  const std::int64_t heads = std::max<std::int64_t>(1, request.model.heads / request.parallel.tensor);
  const std::int64_t queries = training.sequence / request.parallel.context;
  return size_of(training.micro_batch * heads * queries * training.sequence, compute_dtype(training.precision));
}

// Adds storages of stages and notes what makes and frees them.
class PassMemory {
 public:
  PassMemory(OpGraphBuilder& builder, const StepFrame& frame, const StepMemoryContext& context,
             const std::vector<std::vector<ChunkScripts>>& scripts, const std::vector<StagePasses>& passes)
      : builder_(builder), frame_(frame), context_(context), scripts_(scripts), passes_(passes) {}

  void stage(std::int32_t index, std::span<const UnitResidents> units) {
    stage_ = index;
    const std::optional<std::int32_t> first = first_pass(PassKind::kForward, kAnyChunk);
    if (!first) return;  // the stage runs nothing
    for (const UnitResidents& unit : units) {
      if (unit.old_gradient_copy.valid()) let_go(unit.old_gradient_copy, *first, first_op(*first));
    }
    autograd_handle();
    global_buffer_of(*first);
    if (context_.request.parallel.pipeline == 1) return;
    pipeline_buffers(*first);
    for (std::int32_t chunk = 0; chunk < context_.stages.chunks; ++chunk) leftovers(chunk);
  }

  std::vector<PassTouch> take() && { return std::move(touches_); }

 private:
  static constexpr std::int32_t kAnyChunk = -1;

  bool first_iteration() const { return context_.request.training.iteration == IterationKind::kFirst; }
  const std::vector<Pass>& passes() const { return passes_[at(stage_)].passes; }
  const MicroBatchScript& script(std::int32_t pass) const {
    const Pass& found = passes()[at(pass)];
    return scripts_[at(stage_)][at(found.chunk)].of(found.micro_batch);
  }
  std::int32_t begin(std::int32_t pass) const {
    const std::size_t kind = at(passes()[at(pass)].kind);
    return kind == 0 ? 0 : script(pass).pass_end[kind - 1];
  }
  std::int32_t end(std::int32_t pass) const { return script(pass).pass_end[at(passes()[at(pass)].kind)]; }

  bool suits(std::int32_t pass, std::optional<PassKind> kind, std::int32_t chunk) const {
    const Pass& each = passes()[at(pass)];
    const bool right = (!kind || each.kind == *kind) && (chunk == kAnyChunk || each.chunk == chunk);
    return right && last_compute_op(pass) >= 0;
  }
  std::optional<std::int32_t> first_pass(PassKind kind, std::int32_t chunk) const {
    for (std::int32_t pass = 0; at(pass) < passes().size(); ++pass) {
      if (suits(pass, kind, chunk)) return pass;
    }
    return std::nullopt;
  }
  std::optional<std::int32_t> last_pass(std::optional<PassKind> kind, std::int32_t chunk) const {
    for (auto pass = static_cast<std::int32_t>(passes().size()); pass-- > 0;) {
      if (suits(pass, kind, chunk)) return pass;
    }
    return std::nullopt;
  }

  // On the compute stream; -1: the pass has none.
  std::int32_t first_op(std::int32_t pass) const {
    for (std::int32_t op = begin(pass); op < end(pass); ++op) {
      if (script(pass).ops[at(op)].stream == PassStream::kCompute) return op;
    }
    return -1;
  }
  std::int32_t last_compute_op(std::int32_t pass) const {
    for (std::int32_t op = end(pass); op-- > begin(pass);) {
      if (script(pass).ops[at(op)].stream == PassStream::kCompute) return op;
    }
    return -1;
  }

  StorageId add(const char* name, Role role, Bytes size, bool at_start, bool at_end) {
    if (size.value == 0) return {};
    return builder_.add_storage({.size = size,
                                 .role = frame_.labels.role(role),
                                 .name = builder_.label(name),
                                 .device = frame_.stages[at(stage_)].device,
                                 .live_at_start = at_start,
                                 .live_at_end = at_end});
  }
  void made_by(StorageId storage, std::int32_t pass, std::int32_t op) {
    if (storage.valid()) touches_.push_back({stage_, pass, op, storage, builder_.storage(storage).size});
  }
  void let_go(StorageId storage, std::int32_t pass, std::int32_t op) {
    if (storage.valid()) touches_.push_back({stage_, pass, op, storage, Bytes(0)});
  }

  // Works of matrix products: they need a handle. Autograd's thread runs re-runs too.
  std::set<WorkId> products() const {
    std::set<WorkId> works;
    for (const ChunkStamps& chunk : context_.chunks[at(stage_)]) {
      for (std::size_t unit = 0; unit < chunk.units(); ++unit) {
        const TemplateStamp& stamp = chunk.unit(unit);
        const auto note = [&](const std::vector<TemplateOp>& ops, const std::vector<StampOp>& stamped) {
          for (std::size_t op = 0; op < ops.size(); ++op) {
            if (std::holds_alternative<Gemm>(ops[op].work)) works.insert(stamped[op].work);
          }
        };
        note(stamp.source->forward, stamp.forward);
        note(stamp.source->backward, stamp.backward);
      }
    }
    return works;
  }

  // Of the handles behind the main thread's: made in the first iteration by the first product of the first backward pass, after the first
  // loss.
  void autograd_handle() {
    const StepRequest& request = context_.request;
    const std::int64_t others = std::max(0, request.framework.blas_handles - 1);
    const Bytes size = request.workspaces.blas_handle * others;
    const std::optional<std::int32_t> pass = first_pass(PassKind::kBackward, kAnyChunk);
    const std::int32_t op = pass ? first_product(*pass) : -1;
    if (first_iteration() && op < 0) return;
    const StorageId handle = add(kAutogradWorkspace, Role::kWorkspace, size, !first_iteration(), true);
    if (op >= 0) made_by(handle, *pass, op);
  }

  // -1: the pass has none.
  std::int32_t first_product(std::int32_t pass) const {
    const std::set<WorkId> works = products();
    for (std::int32_t op = begin(pass); op < end(pass); ++op) {
      if (works.contains(script(pass).ops[at(op)].work)) return op;
    }
    return -1;
  }

  void global_buffer_of(std::int32_t first) {
    const Bytes size = global_buffer(context_, stage_);
    const bool born = first_iteration();
    const StorageId buffer = add("global buffer", Role::kWorkspace, size, !born, true);
    if (born) made_by(buffer, first, first_op(first));
  }

  // From the stage's first forward to its last backward pass.
  void pipeline_buffers(std::int32_t first) {
    const FrameworkPreset& framework = context_.request.framework;
    const bool interleaved = context_.request.parallel.virtual_stages > 1;
    const std::int64_t count = interleaved ? framework.pipeline_buffers_interleaved : framework.pipeline_buffers;
    const StorageId buffers = add("pipeline buffers", Role::kCommunication, hidden_state(context_) * count, false, false);
    made_by(buffers, first, first_op(first));
    const std::int32_t last = *last_pass(std::nullopt, kAnyChunk);
    let_go(buffers, last, last_compute_op(last));
  }

  // What a chunk's last micro-batch left: a chunk that receives its input holds it and its gradient until the next step's first input takes
  // their place.
  void leftovers(std::int32_t chunk) {
    if (context_.stages.chunk(stage_, chunk).embedding) return;
    const std::optional<std::int32_t> first = first_pass(PassKind::kForward, chunk), last = last_pass(PassKind::kBackward, chunk);
    if (!first || !last) return;
    const Bytes size = hidden_state(context_) * context_.request.framework.pipeline_leftovers;
    if (!first_iteration()) {
      let_go(add("pipeline leftovers of the step before", Role::kCommunication, size, true, false), *first, first_op(*first));
    }
    made_by(add("pipeline leftovers", Role::kCommunication, size, false, true), *last, last_compute_op(*last));
  }

  OpGraphBuilder& builder_;
  const StepFrame& frame_;
  const StepMemoryContext& context_;
  const std::vector<std::vector<ChunkScripts>>& scripts_;
  const std::vector<StagePasses>& passes_;
  std::int32_t stage_ = 0;
  std::vector<PassTouch> touches_;
};

}  // namespace

std::vector<std::vector<ResidentWorkspace>> library_workspaces(const StepMemoryContext& context) {
  const StepRequest& request = context.request;
  const FrameworkPreset& framework = request.framework;
  const bool first = request.training.iteration == IterationKind::kFirst;
  constexpr std::int64_t kGroupedStreams = 4;  // TransformerEngine@d0067d0d cpp_extensions/gemm.py:59-65 get_num_cublas_streams
  std::vector<std::vector<ResidentWorkspace>> workspaces;
  for (std::int32_t stage = 0; stage < context.stages.stages; ++stage) {
    std::vector<ResidentWorkspace>& each = workspaces.emplace_back();
    each.push_back({"cuBLAS workspace", request.workspaces.blas_handle * std::min(1, framework.blas_handles)});
    if (framework.engine_workspace) {
      each.push_back({"Transformer Engine workspace", request.workspaces.engine});
      const std::int64_t grouped = has_experts(context, stage) && framework.groups_expert_products ? kGroupedStreams : 0;
      each.push_back({"Transformer Engine workspaces of grouped products", request.workspaces.engine * grouped});
    }
    each.push_back({"Transformer Engine dummy gradients", first ? Bytes(0) : kept_dummy_gradients(context, stage)});
    each.push_back({"library workspace", request.workspaces.other});
  }
  return workspaces;
}

Bytes global_buffer(const StepMemoryContext& context, std::int32_t stage) {
  const StepRequest& request = context.request;
  const ParallelLayout& parallel = request.parallel;
  const FrameworkPreset& framework = request.framework;
  if (!framework.global_buffers) return {};
  Bytes size;
  // Column-parallel layers that gather their input: the head's, and all of them where none is Transformer Engine's (layers.py:627).
  const bool gathers = parallel.sequence_parallel && parallel.tensor > 1;
  if (gathers && (!framework.transformer_engine || has_head(context, stage))) size = whole_hidden_state(context);
  // dot_product_attention.py:189, the buffer that baddbmm adds to.
  const bool local_scores = !framework.transformer_engine && request.training.attention == AttentionKind::kUnfused;
  if (local_scores) size = std::max(size, scores(request));
  const std::int64_t expert_ranks = std::int64_t{parallel.expert} * parallel.expert_tensor_ranks();
  if (parallel.dispatcher == Dispatcher::kAllGather && expert_ranks > 1 && has_experts(context, stage)) {
    size = std::max(size, Bytes(whole_hidden_state(context).value / parallel.tensor * expert_ranks));
  }
  return size;
}

std::vector<PassTouch> add_pass_memory(OpGraphBuilder& builder, const StepFrame& frame, const StepMemoryContext& context,
                                       const ResidentStorages& residents, const std::vector<std::vector<ChunkScripts>>& scripts,
                                       const std::vector<StagePasses>& passes) {
  PassMemory memory(builder, frame, context, scripts, passes);
  for (std::int32_t stage = 0; stage < context.stages.stages; ++stage) memory.stage(stage, residents.stages[at(stage)]);
  return std::move(memory).take();
}

}  // namespace stepsim
