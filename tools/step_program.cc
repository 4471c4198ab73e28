#include "tools/step_program.h"

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "sim/check.h"
#include "sim/input_error.h"
#include "tools/step_contents.h"

namespace stepsim {

namespace {

using Operand = ProductCall::Operand;

DType dtype_of(Precision precision) {
  if (precision == Precision::kFp32) return DType::kFp32;
  if (precision == Precision::kBf16) return DType::kBf16;
  refuse("--precision", "one of 8 or 4 bits or fp16", "fp32 or bf16: real kernels are written for those");
}

bool ends_with(std::string_view text, std::string_view end) { return text.ends_with(end); }

class CallWriter {
 public:
  CallWriter(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options)
      : request_(request), graph_(graph), options_(options), elements_(dtype_of(request.training.precision)) {
    gradients_ = request.training.gradient_dtype.value_or(request.framework.gradient_bits == 32 ? DType::kFp32 : elements_);
    const ModelSpec& model = request.model;
    const std::int64_t ranks = request.parallel.tensor;
    heads_ = {.batch = request.training.micro_batch,
              .sequence = request.training.sequence,
              .heads = model.heads / ranks,
              .kv_heads = std::max<std::int64_t>(model.kv_heads / ranks, 1),
              .head_dim = model.head_dim};
  }

  std::vector<KernelCall> calls() {
    std::vector<KernelCall> found(graph_.ops().size());
    for (std::int32_t place = 0; at(place) < found.size(); ++place) order_.push_back(OpId{});
    for (std::int32_t op = 0; at(op) < found.size(); ++op) order_[at(graph_.issue_position(OpId{op}))] = OpId{op};
    for (const OpId op : order_) found[at(op.index)] = call(op);
    return found;
  }

 private:
  using Maker = KernelCall (CallWriter::*)();

  KernelCall call(OpId op) {
    op_ = op;
    kind_ = graph_.label(graph_.op(op).kind);
    reads_.assign(graph_.reads(op).begin(), graph_.reads(op).end());
    writes_.assign(graph_.writes(op).begin(), graph_.writes(op).end());
    const OpWork& work = graph_.work(op);
    if (std::holds_alternative<Marker>(work)) return NoCall{};
    if (std::holds_alternative<Copy>(work)) return CopyCall{read(0), write(0)};
    if (std::holds_alternative<Collective>(work)) return all_reduce();
    if (const auto* gemm = std::get_if<Gemm>(&work)) return gemm->batch > 1 || is_attention() ? attention_product(*gemm) : product(*gemm);
    if (const auto* memory = std::get_if<MemoryBound>(&work); memory != nullptr && memory->kernel == MemoryKernel::kNorm) return norm();
    if (const auto named = makers().find(kind_); named != makers().end()) return (this->*named->second)();
    return by_suffix();
  }

  [[noreturn]] void unknown() const {
    refuse("--backend", "the op '" + graph_.op_name(op_) + "'", "one that a kernel is written for: dense GPT and Llama layers, adamw");
  }

  const Tensor& read(std::size_t i) const { return i < reads_.size() ? reads_[i] : missing(); }
  const Tensor& write(std::size_t i) const { return i < writes_.size() ? writes_[i] : missing(); }
  const Tensor& missing() const { unknown(); }
  std::int64_t count(const Tensor& tensor, DType type) const { return tensor.size.value * 8 / bits_of(type); }
  std::int64_t count(const Tensor& tensor) const { return count(tensor, elements_); }
  std::int64_t tokens() const { return heads_.batch * heads_.sequence; }
  std::int64_t hidden() const { return request_.model.hidden; }
  const Storage& storage(const Tensor& tensor) const { return graph_.storages()[at(tensor.storage.index)]; }
  bool is_main_gradient(const Tensor& tensor) const { return graph_.label(storage(tensor).role) == "gradients"; }

  // Whether what a gradient holds is added to: not where the step has not written it yet. `split`: each rank has a part of its own.
  bool accumulates(const Tensor& gradient, bool split) {
    const bool known = storage(gradient).live_at_start;
    const bool first = touched_.insert({gradient.storage.index, gradient.offset.value}).second;
    if (first && split) split_gradients_.push_back(gradient);
    return !first || known;
  }

  TableShare vocabulary(std::int64_t rows) const { return {.first = options_.rank * rows, .rows = rows}; }

  // --- products
  KernelCall product(const Gemm& gemm) {
    ProductCall call{.m = gemm.m, .n = gemm.n, .k = gemm.k, .elements = elements_, .output = elements_};
    call.transpose_a = gemm.transpose_b;  // NT, of a weight gradient: [k, m]^T [k, n]
    call.transpose_b = gemm.transpose_a;  // TN, forward: [m, k] [n, k]^T
    call.a = {.tensor = read(0), .row = call.transpose_a ? gemm.m : gemm.k};
    call.b = {.tensor = read(1), .row = call.transpose_b ? gemm.k : gemm.n};
    call.c = {.tensor = write(0), .row = gemm.n};
    if (is_main_gradient(write(0))) {
      call.output = gradients_;
      call.accumulate = accumulates(write(0), true);
    }
    return call;
  }

  bool is_attention() const {
    static const std::set<std::string_view> kinds = {"attention scores", "attention over values", "attention probabilities gradient",
                                                     "value gradient",   "query gradient",        "key gradient"};
    return kinds.contains(kind_);
  }

  std::int64_t joint_width() const { return (heads_.heads + 2 * heads_.kv_heads) * heads_.head_dim; }

  // Queries, keys, values or what attention gives, with `heads` heads: a tensor of its own, or columns of the joint one.
  Operand token_major(const Tensor& tensor, std::int64_t first_head_of_joint) const {
    const std::int64_t dim = heads_.head_dim;
    const bool joint = count({tensor.storage, {}, storage(tensor).size}) == tokens() * joint_width() && storage(tensor).size != tensor.size;
    const std::int64_t row = joint ? joint_width() : heads_.heads * dim;
    const Bytes offset = joint ? size_of(first_head_of_joint * dim, elements_) : Bytes(0);
    return {.tensor = {tensor.storage, offset, storage(tensor).size - offset}, .row = row, .outer = heads_.sequence * row, .inner = dim};
  }
  Operand query(const Tensor& tensor) const { return token_major(tensor, 0); }
  Operand key(const Tensor& tensor) const { return token_major(tensor, heads_.heads); }
  Operand value(const Tensor& tensor) const { return token_major(tensor, heads_.heads + heads_.kv_heads); }
  Operand head_major(const Tensor& tensor, std::int64_t row) const {
    return {.tensor = tensor, .row = row, .outer = heads_.heads * heads_.sequence * row, .inner = heads_.sequence * row};
  }
  Operand scores(const Tensor& tensor) const { return head_major(tensor, heads_.sequence); }
  Operand by_head(const Tensor& tensor) const { return head_major(tensor, heads_.head_dim); }

  KernelCall attention_product(const Gemm& gemm) {
    ProductCall call{.m = gemm.m, .n = gemm.n, .k = gemm.k, .outer = heads_.batch, .inner = heads_.heads};
    call.elements = call.output = elements_;
    call.transpose_a = gemm.transpose_b;
    call.transpose_b = gemm.transpose_a;
    if (kind_ == "attention scores") {
      call.a = query(read(0)), call.b = key(read(1)), call.c = scores(write(0));
    } else if (kind_ == "attention over values") {
      call.a = scores(read(0)), call.b = value(read(1)), call.c = by_head(write(0));
    } else if (kind_ == "attention probabilities gradient") {
      call.a = query(read(0)), call.b = value(read(1)), call.c = scores(write(0));
    } else if (kind_ == "value gradient") {
      call.a = scores(read(0)), call.b = query(read(1)), call.c = by_head(write(0));
    } else if (kind_ == "query gradient") {
      call.a = scores(read(0)), call.b = key(read(1)), call.c = by_head(write(0));
    } else if (kind_ == "key gradient") {
      call.a = scores(read(0)), call.b = query(read(1)), call.c = by_head(write(0));
    } else {
      unknown();
    }
    return call;
  }

  // --- norms
  bool is_centred() const { return request_.model.normalization == Normalization::kLayerNorm; }

  KernelCall norm() {
    const bool weights = ends_with(kind_, " weight gradient");
    const std::int64_t columns = weights ? count(write(0), gradients_) : ends_with(kind_, " backward") ? count(read(2)) : count(read(1));
    const std::int64_t rows = count(read(0)) / columns;
    if (weights) {
      NormWeightGradientCall call{.output_gradient = read(0), .input = read(1), .statistics = read(2), .gain_gradient = write(0)};
      if (writes_.size() > 1) call.bias_gradient = write(1);
      call.rows = rows, call.columns = columns, call.centred = is_centred();
      call.accumulate = accumulates(write(0), false);
      call.elements = elements_, call.gradients = gradients_;
      return call;
    }
    if (ends_with(kind_, " backward")) {
      return NormBackwardCall{.output_gradient = read(0),
                              .input = read(1),
                              .gain = read(2),
                              .statistics = read(3),
                              .input_gradient = write(0),
                              .rows = rows,
                              .columns = columns,
                              .centred = is_centred(),
                              .elements = elements_};
    }
    NormCall call{.input = read(0), .gain = read(1), .output = write(0), .statistics = write(1)};
    if (reads_.size() > 2) call.bias = read(2);
    call.rows = rows, call.columns = columns, call.centred = is_centred();
    call.epsilon = options_.norm_epsilon, call.elements = elements_;
    return call;
  }

  // --- kernels that are known by the end of their name
  KernelCall by_suffix() {
    if (ends_with(kind_, " bias gradient")) return bias_gradient(write(0), read(0));
    if (ends_with(kind_, " gradient sum")) return AddCall{read(0), write(0), count(read(0)), elements_};
    if (ends_with(kind_, " residual backward")) return residual_backward();
    if (ends_with(kind_, " residual")) return residual();
    if (ends_with(kind_, " dropout backward")) return dropout_backward();
    if (ends_with(kind_, " dropout")) return dropout();
    if (ends_with(kind_, " bias")) {
      const std::int64_t columns = count(read(1));
      return BiasCall{read(0), read(1), write(0), count(read(0)) / columns, columns, elements_};
    }
    unknown();
  }

  // A bias behind a sum over the ranks is held by all of them; others are of the outputs that ranks share.
  KernelCall bias_gradient(const Tensor& gradient, const Tensor& of) {
    const bool split = !ends_with(kind_, " residual bias gradient");
    const std::int64_t columns = count(gradient, gradients_);
    return BiasGradientCall{of, gradient, count(of) / columns, columns, accumulates(gradient, split), elements_, gradients_};
  }

  std::int64_t megatron_seed(bool within_tensor_region) const {
    return static_cast<std::int64_t>(options_.seed) + (within_tensor_region && request_.parallel.tensor > 1 ? 2718 + options_.rank : 0);
  }
  float probability() const {
    const double attention = request_.training.attention_dropout.value_or(request_.training.dropout);
    return static_cast<float>(kind_.starts_with("attention dropout") ? attention : request_.training.dropout);
  }
  Draw draw() const {
    return {.probability = probability(), .seed = static_cast<std::uint64_t>(megatron_seed(kind_.starts_with("attention dropout")))};
  }

  KernelCall dropout() { return DropoutCall{read(0), write(0), write(1), count(read(0)), draw(), elements_}; }
  KernelCall dropout_backward() { return DropoutBackwardCall{read(0), read(1), write(0), count(read(0)), probability(), elements_}; }

  KernelCall residual() {
    ResidualCall call{.branch = read(0), .residual = read(1), .output = write(0)};
    if (reads_.size() > 2) call.bias = read(2);
    if (writes_.size() > 1) call.mask = write(1);
    call.rows = tokens(), call.columns = count(read(0)) / tokens();
    if (call.mask) call.draw = draw();
    call.elements = elements_;
    return call;
  }

  KernelCall residual_backward() {
    ResidualBackwardCall call{.gradient = read(0)};
    for (std::size_t i = 1; i < reads_.size(); ++i) {
      if (!is_main_gradient(reads_[i])) call.mask = reads_[i];
    }
    for (const Tensor& each : writes_) (is_main_gradient(each) ? call.bias_gradient : call.branch_gradient) = each;
    call.rows = tokens(), call.columns = count(read(0)) / tokens();
    call.probability = call.mask ? static_cast<float>(request_.training.dropout) : 0.0F;
    if (call.bias_gradient) call.accumulate = accumulates(*call.bias_gradient, false);
    call.elements = elements_, call.gradients = gradients_;
    return call;
  }

  // --- kernels that are known by their name
  static const std::map<std::string_view, Maker>& makers() {
    static const std::map<std::string_view, Maker> table = {
        {"embedding", &CallWriter::embedding},
        {"embedding gradient", &CallWriter::embedding_gradient},
        {"position embedding", &CallWriter::position},
        {"position embedding gradient", &CallWriter::position_gradient},
        {"attention softmax", &CallWriter::softmax},
        {"attention softmax backward", &CallWriter::softmax_backward},
        {"attention output transpose", &CallWriter::heads_to_tokens},
        {"qkv gradient concatenation", &CallWriter::join_heads},
        {"rotary", &CallWriter::rotary},
        {"rotary backward", &CallWriter::rotary_backward},
        {"repeat key and value heads", &CallWriter::repeat_heads},
        {"repeat key and value heads backward", &CallWriter::repeat_heads_backward},
        {"activation", &CallWriter::activation},
        {"activation backward", &CallWriter::activation_backward},
        {"gate activation", &CallWriter::activation},
        {"gate activation backward", &CallWriter::gate_backward},
        {"gate product", &CallWriter::gate_product},
        {"gate product backward", &CallWriter::gate_product_backward},
        {"logits to fp32", &CallWriter::widen},
        {"logits gradient cast", &CallWriter::narrow},
        {"logits maximum", &CallWriter::loss_maximum},
        {"target mask", &CallWriter::target_mask},
        {"softmax numerator", &CallWriter::loss_numerator},
        {"softmax", &CallWriter::loss},
        {"cross entropy backward", &CallWriter::loss_backward},
        {"gradient norm", &CallWriter::gradient_norm},
        {"gradient clip", &CallWriter::gradient_clip},
        {"AdamW update", &CallWriter::adamw},
    };
    return table;
  }

  KernelCall embedding() {
    return EmbeddingCall{read(0), read(1), write(writes_.size() - 1), tokens(), hidden(), vocabulary(count(read(1)) / hidden()), elements_};
  }
  KernelCall embedding_gradient() {
    const Tensor gradient = write(0);
    return EmbeddingGradientCall{
        read(0),   read(1),   gradient, tokens(), hidden(), vocabulary(count(gradient, gradients_) / hidden()), accumulates(gradient, true),
        elements_, gradients_};
  }
  KernelCall position() { return PositionCall{read(0), read(1), write(0), heads_.batch, heads_.sequence, hidden(), elements_}; }
  KernelCall position_gradient() {
    const std::int64_t rows = count(write(0), gradients_) / hidden();
    return PositionGradientCall{read(0),   write(0),  heads_.batch, heads_.sequence, hidden(), rows, accumulates(write(0), false),
                                elements_, gradients_};
  }
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(heads_.head_dim))); }
  KernelCall softmax() {
    return AttentionSoftmaxCall{read(0),         write(0), heads_.batch * heads_.heads, heads_.sequence,
                                heads_.sequence, scale(),  request_.model.causal,       elements_};
  }
  KernelCall softmax_backward() {
    return AttentionSoftmaxBackwardCall{read(0),         read(1),         write(0), heads_.batch * heads_.heads,
                                        heads_.sequence, heads_.sequence, scale(),  request_.model.causal,
                                        elements_};
  }
  KernelCall heads_to_tokens() { return HeadsToTokensCall{read(0), write(0), heads_, elements_}; }
  KernelCall join_heads() { return JoinHeadsCall{read(0), read(1), read(2), write(0), heads_, elements_}; }
  Tensor whole(const Tensor& view) const { return {view.storage, Bytes(0), storage(view).size}; }
  KernelCall rotary() {
    if (writes_.size() != 3) unknown();
    return RotaryCall{whole(read(0)), write(0), write(1), write(2), heads_, options_.rotary_base, elements_};
  }
  KernelCall rotary_backward() {
    if (reads_.size() != 3) unknown();
    return RotaryBackwardCall{read(0), read(1), read(2), write(0), heads_, options_.rotary_base, elements_};
  }
  KernelCall repeat_heads() {
    if (storage(read(0)).size != read(0).size) unknown();  // columns of the joint tensor
    return RepeatHeadsCall{read(0), read(1), write(0), write(1), heads_, elements_};
  }
  KernelCall repeat_heads_backward() { return RepeatHeadsBackwardCall{read(0), read(1), write(0), write(1), heads_, elements_}; }
  ActivationKind activation_kind() const {
    const Activation activation = request_.model.activation;
    if (activation == Activation::kGelu || activation == Activation::kGeGlu) return ActivationKind::kGelu;
    if (activation == Activation::kSwiGlu) return ActivationKind::kSilu;
    unknown();
  }
  KernelCall activation() { return ActivationCall{read(0), write(0), count(read(0)), activation_kind(), elements_}; }
  KernelCall activation_backward() {
    return ActivationBackwardCall{read(0), read(1), write(0), count(read(0)), activation_kind(), elements_};
  }
  KernelCall gate_backward() {  // reads the gradient first
    return ActivationBackwardCall{read(1), read(0), write(0), count(read(0)), activation_kind(), elements_};
  }
  KernelCall gate_product() { return GateProductCall{read(0), read(1), write(0), count(read(0)), elements_}; }
  KernelCall gate_product_backward() {
    return GateProductBackwardCall{read(0), read(1), read(2), write(0), write(1), count(read(0)), elements_};
  }
  KernelCall widen() { return WidenCall{read(0), write(0), count(read(0)), elements_}; }
  KernelCall narrow() { return NarrowCall{read(0), write(0), count(write(0)), elements_}; }
  KernelCall loss_maximum() { return LossMaximumCall{read(0), write(0), tokens(), count(read(0), DType::kFp32) / tokens()}; }
  KernelCall target_mask() { return TargetMaskCall{read(0), write(0), write(1), tokens(), vocabulary(padded_vocabulary())}; }
  std::int64_t padded_vocabulary() const {  // of this rank: rows of its part of the table
    for (const OpId op : order_) {
      if (graph_.label(graph_.op(op).kind) == "embedding") return count(graph_.reads(op)[1]) / hidden();
    }
    unknown();
  }
  KernelCall loss_numerator() {
    return LossNumeratorCall{
        read(3), read(0), read(1), read(2), write(2), write(0), write(1), tokens(), count(read(3), DType::kFp32) / tokens()};
  }
  KernelCall loss() {
    return LossCall{read(0), read(1), read(2), write(writes_.size() - 1), tokens(), count(read(2), DType::kFp32) / tokens()};
  }
  KernelCall loss_backward() {
    const std::int64_t micro_batches = request_.training.global_batch / request_.training.micro_batch;
    const double scale = 1 / static_cast<double>(tokens() * micro_batches);
    return LossBackwardCall{
        read(2), read(0), read(1), write(0), tokens(), count(read(2), DType::kFp32) / tokens(), static_cast<float>(scale)};
  }
  // What ranks hold alike counts once, with the first.
  KernelCall gradient_norm() { return GradientNormCall{options_.rank == 0 ? reads_ : split_gradients_, gradients_}; }
  KernelCall gradient_clip() { return GradientClipCall{writes_, options_.clip, gradients_}; }
  KernelCall adamw() {
    // The weight last among the writes; a master weight first, where there is one.
    AdamWCall call{.gradient = read(0)};
    for (const Tensor& each : writes_) {
      const std::string_view role = graph_.label(storage(each).role);
      if (role == "weights") {
        call.weight = each;
      } else if (graph_.label(storage(each).name) == "optimizer moments") {
        call.moments = each;
      } else {
        call.master = each;
      }
    }
    if (!call.weight.storage.valid() || !call.moments.storage.valid()) unknown();
    call.count = count(call.weight);
    call.elements = elements_, call.gradients = gradients_;
    return call;
  }

  KernelCall all_reduce() {
    const auto& work = std::get<Collective>(graph_.work(op_));
    if (work.kind != CollectiveKind::kAllReduce) unknown();
    if (reads_.empty()) return NormAllReduceCall{};
    const bool fp32 = graph_.label(graph_.op(op_).kind) == "logits maximum all-reduce" || kind_.starts_with("predicted logit") ||
                      kind_.starts_with("softmax denominator");
    const DType type = fp32 ? DType::kFp32 : elements_;
    return AllReduceCall{write(0), count(write(0), type), kind_.starts_with("logits maximum"), type};
  }

  const StepRequest& request_;
  const OpGraph& graph_;
  const ProgramOptions& options_;
  DType elements_, gradients_ = DType::kFp32;
  HeadShape heads_;
  std::vector<OpId> order_;
  std::set<std::pair<std::int32_t, std::int64_t>> touched_;  // gradients that the step has written: storage, offset
  std::vector<Tensor> split_gradients_;                      // those of which each rank has a part
  // Of the op being written.
  OpId op_;
  std::string_view kind_;
  std::vector<Tensor> reads_, writes_;
};

}  // namespace

KernelProgram step_calls(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options) {
  KernelProgram program;
  program.calls = CallWriter(request, graph, options).calls();
  program.step = options.optimizer_step;
  return program;
}

KernelProgram step_program(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options) {
  KernelProgram program = step_calls(request, graph, options);
  add_contents(request, graph, options, program);
  return program;
}

}  // namespace stepsim
