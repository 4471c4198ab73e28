#include "models/context_ring.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/check.h"

namespace stepsim {

namespace {

std::int32_t last_step(const TemplateBuilder& builder) { return builder.shape().context - 1; }

// Of forward's step 0 .. ranks - 1.
AttentionForm step_form(const TemplateBuilder& builder, const AttentionForm& form, std::int32_t step) {
  AttentionForm part = form;
  part.keys = std::max<std::int64_t>(1, form.keys / builder.shape().context);
  if (!form.causal || step == 0) return part;
  part.keys = (part.keys + 1) / 2;
  part.causal = false;
  return part;
}

std::vector<std::int64_t> joined_shape(const TemplateBuilder& builder, const AttentionForm& form) {
  const std::int64_t keys = builder.shape().micro_batch * std::max<std::int64_t>(1, form.keys / builder.shape().context);
  return {keys, form.kv_heads, form.head_dim + form.value_dim};
}

// One transfer to the next rank and from the one before, beside compute.
void send(TemplateBuilder& builder, Direction direction, const std::string& name, std::vector<SlotIndex> sent,
          std::vector<SlotIndex> received) {
  Bytes message{};
  for (const SlotIndex slot : sent) message += builder.size(slot);
  const CommunicatorRanks ring = builder.context_ranks();
  builder.op(direction,
             {.name = name,
              .module = "",
              .work = Collective{.kind = CollectiveKind::kSendReceive, .message = message, .ranks = ring.ranks, .stride = ring.stride},
              .group = ring.group,
              .stream = OpStream::kContext,
              .reads = std::move(sent),
              .writes = std::move(received),
              .updates = {},
              .holds = {},
              .after = {}});
}

// Transformer Engine makes its operands contiguous for flash attention under context parallelism (backends.py FlashAttention.forward),
// which wants [batch, sequence, ...]: copies, unless one sequence makes both orders the same and each is a tensor of its own.
void order_operands(TemplateBuilder& builder, CoreAttention& core) {
  const TemplateContext& context = builder.context();
  const bool views = builder.slot(core.query).view_of != kNoSlot;
  if (context.training.attention != AttentionKind::kFlash || (context.training.micro_batch == 1 && !views)) return;
  KernelPass pass{.name = "attention operands copy",
                  .module = "",
                  .reads = {core.query, core.key, core.value},
                  .writes = {},
                  .updates = {},
                  .holds = {}};
  for (SlotIndex* const operand : {&core.query, &core.key, &core.value}) {
    *operand = builder.activation(builder.slot(*operand).name + ", contiguous", builder.slot(*operand).shape);
    pass.writes.push_back(*operand);
  }
  builder.pass(kForwardOp, std::move(pass));
}

// What a forward pass has made so far, by step.
struct Steps {
  std::vector<SlotIndex> carried, outputs, statistics;
};

SlotIndex add_carried(TemplateBuilder& builder, const CoreAttention& core, std::int32_t step) {
  return builder.add({.name = "key and value, step " + std::to_string(step),
                      .kind = SlotKind::kForward,
                      .size = {},
                      .shape = joined_shape(builder, core.form),
                      .dtype = builder.slot(core.key).dtype,
                      .module = ""});
}

void send_carried(TemplateBuilder& builder, const CoreAttention& core, std::int32_t step, Steps& steps) {
  if (step >= last_step(builder)) return;
  steps.carried.push_back(add_carried(builder, core, step + 1));
  send(builder, kForwardOp, "key and value exchange", {steps.carried[at(step)]}, {steps.carried[at(step + 1)]});
}

// All steps' attention. The transfer of the step after next is launched before a step's attention: it needs none of it.
Steps run_steps(TemplateBuilder& builder, const CoreAttention& core, const std::vector<std::int64_t>& output_shape) {
  Steps steps;
  steps.carried.push_back(add_carried(builder, core, 0));
  builder.pass(kForwardOp, {.name = "key and value join",
                            .module = "",
                            .reads = {core.key, core.value},
                            .writes = {steps.carried.front()},
                            .updates = {},
                            .holds = {}});
  const std::vector<SlotIndex> holds = held_batch(builder, core.form);
  send_carried(builder, core, 0, steps);
  for (std::int32_t step = 0; step <= last_step(builder); ++step) {
    send_carried(builder, core, step + 1, steps);
    const std::string number = ", step " + std::to_string(step);
    const AttentionForm form = step_form(builder, core.form, step);
    steps.outputs.push_back(builder.activation("attention output" + number, output_shape, kCoreAttention));
    steps.statistics.push_back(add_log_sum_exp(builder, form, "attention log-sum-exp" + number));
    const KernelOperands operands{.query = core.query,
                                  .key = steps.carried[at(step)],
                                  .value = kNoSlot,
                                  .output = steps.outputs.back(),
                                  .log_sum_exp = steps.statistics.back(),
                                  .sinks = {}};
    add_kernel_forward(builder, step == 0 ? "attention" : "attention of received keys", form, operands, holds);
  }
  return steps;
}

// flash_attn_fwd_softmax_lse_correction: log-sum-exps over all steps.
void merge_statistics(TemplateBuilder& builder, CoreAttention& core, const Steps& steps) {
  core.log_sum_exp = add_log_sum_exp(builder, core.form, "attention log-sum-exp");
  builder.pass(kForwardOp, {.name = "log-sum-exp copy",
                            .module = kCoreAttention,
                            .reads = {steps.statistics.front()},
                            .writes = {core.log_sum_exp},
                            .updates = {},
                            .holds = {}});
  for (std::int32_t step = 1; step <= last_step(builder); ++step) {
    builder.pass(kForwardOp, {.name = "log-sum-exp correction",
                              .module = kCoreAttention,
                              .reads = {steps.statistics[at(step)]},
                              .writes = {},
                              .updates = {core.log_sum_exp},
                              .holds = {}});
  }
}

// flash_attn_fwd_out_correction: partial outputs, each scaled and added. Lists of the function hold what every step made until it returns.
void merge_outputs(TemplateBuilder& builder, const CoreAttention& core, const Steps& steps) {
  for (std::int32_t step = 0; step <= last_step(builder); ++step) {
    KernelPass pass{.name = "attention output correction",
                    .module = kCoreAttention,
                    .reads = {steps.outputs[at(step)], core.log_sum_exp, steps.statistics[at(step)]},
                    .writes = {},
                    .updates = {},
                    .holds = {}};
    (step == 0 ? pass.writes : pass.updates).push_back(core.kernel_output);
    if (step == last_step(builder)) {
      for (const auto* made : {&steps.carried, &steps.outputs, &steps.statistics}) {
        pass.holds.insert(pass.holds.end(), made->begin(), made->end());
      }
    }
    builder.pass(kForwardOp, std::move(pass));
  }
}

// What backward has on its way round the ring.
class ReverseRing {
 public:
  ReverseRing(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient)
      : builder_(builder), core_(core), output_gradient_(output_gradient) {
    STEPSIM_CHECK(last_step(builder) >= 1);
    carried_ = add_carried(0);
    builder.pass(
        kBackwardOp,
        {.name = "key and value copy", .module = kCoreAttention, .reads = {core.key}, .writes = {carried_}, .updates = {}, .holds = {}});
    query_gradient_ = builder.gradient("query gradient", builder.slot(core.query).shape);
  }

  QkvGradients run() {
    for (std::int32_t step = 0; step <= last_step(builder_); ++step) run_step(step);
    const AttentionForm& form = core_.form;
    const std::int64_t keys = joined_shape(builder_, form).front();
    return {.query = query_gradient_,
            .key = builder_.view("key gradient", summed_, {keys, form.kv_heads, form.head_dim}),
            .value = builder_.view("value gradient", summed_, {keys, form.kv_heads, form.value_dim})};
  }

 private:
  SlotIndex add_carried(std::int32_t step) {
    return builder_.add({.name = "key and value of backward, step " + std::to_string(step),
                         .kind = SlotKind::kWorkspace,
                         .size = {},
                         .shape = joined_shape(builder_, core_.form),
                         .dtype = builder_.slot(core_.key).dtype,
                         .role = Role::kCommunication,
                         .module = ""});
  }

  void run_step(std::int32_t step) {
    const std::int32_t last = last_step(builder_);
    const std::string number = ", step " + std::to_string(step);
    const SlotIndex here = carried_;
    const SlotIndex sum = builder_.gradient("key and value gradient, summed" + number, joined_shape(builder_, core_.form));
    exchange(step, sum);
    const AttentionForm form = step_form(builder_, core_.form, last - step);
    const SlotIndex query = builder_.gradient("query gradient" + number, builder_.slot(core_.query).shape);
    const SlotIndex own = builder_.gradient("key and value gradient" + number,
                                            {builder_.shape().micro_batch * form.keys, form.kv_heads, form.head_dim + form.value_dim});
    KernelOperands operands = core_.operands();
    operands.key = here;
    operands.value = kNoSlot;
    add_kernel_backward(builder_, "attention backward" + number, form, operands, output_gradient_, {query, own});
    add("query gradient sum", query, query_gradient_, step == 0, Bytes(0), {});
    // cuDNN's gradients of key and value are tensors of their own, which are joined first.
    const bool joins = builder_.context().training.attention == AttentionKind::kFused;
    // Two buffers for keys, values and their gradients live until the end: the last step's and that of the step before.
    const std::vector<SlotIndex> held = step == last ? std::vector<SlotIndex>{before_} : std::vector<SlotIndex>{};
    add("key and value gradient sum", own, sum, step == 0, joins ? builder_.size(own) : Bytes(0), held);
    summed_ = sum;
    before_ = here;
  }

  // Keys and values of the next step and the gradients of those that the step before had; the latter arrive in this step's sum.
  void exchange(std::int32_t step, SlotIndex sum) {
    std::vector<SlotIndex> sent, received;
    if (step < last_step(builder_)) {
      sent.push_back(carried_);
      carried_ = add_carried(step + 1);
      received.push_back(carried_);
    }
    if (step > 0) {
      sent.push_back(summed_);
      received.push_back(sum);
    }
    const char* const name = step == 0                     ? "key and value exchange"
                             : step == last_step(builder_) ? "key and value gradient exchange"
                                                           : "key and value exchange with gradients";
    send(builder_, kBackwardOp, name, std::move(sent), std::move(received));
  }

  void add(const char* name, SlotIndex part, SlotIndex sum, bool first, Bytes joined, std::vector<SlotIndex> holds) {
    KernelPass pass{.name = name,
                    .module = kCoreAttention,
                    .reads = {part},
                    .writes = {},
                    .updates = {},
                    .holds = std::move(holds),
                    .further_reads = joined,
                    .further_writes = joined};
    (first ? pass.writes : pass.updates).push_back(sum);
    builder_.pass(kBackwardOp, std::move(pass));
  }

  TemplateBuilder& builder_;
  const CoreAttention& core_;
  SlotIndex output_gradient_ = kNoSlot;
  SlotIndex carried_ = kNoSlot, before_ = kNoSlot, summed_ = kNoSlot, query_gradient_ = kNoSlot;
};

}  // namespace

void ring_forward(TemplateBuilder& builder, CoreAttention& core, bool copied) {
  const std::vector<std::int64_t> shape = {builder.shape().micro_batch * core.form.queries, core.form.heads * core.form.value_dim};
  core.output = builder.activation("attention output", shape);
  core.kernel_output = copied ? builder.activation("attention kernel output", shape, kCoreAttention) : core.output;
  order_operands(builder, core);
  const Steps steps = run_steps(builder, core, shape);
  merge_statistics(builder, core, steps);
  merge_outputs(builder, core, steps);
  core.key = steps.carried.back();
  core.value = kNoSlot;
  if (copied) copy_kernel_output(builder, core);
}

QkvGradients ring_backward(TemplateBuilder& builder, const CoreAttention& core, SlotIndex output_gradient) {
  return ReverseRing(builder, core, output_gradient).run();
}

}  // namespace stepsim
