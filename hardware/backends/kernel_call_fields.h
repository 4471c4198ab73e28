// The fields of every kernel call, listed once: for what treats them alike (their tensors, their text). Knows no backend.
#pragma once

#include "hardware/backends/kernel_calls.h"

namespace stepsim {

// visit(field) for each of the fields.
template <class Visit, class... Fields>
void each_field(Visit& visit, Fields&... fields) {
  (visit(fields), ...);
}

// visit(field) for each field of a call, in the order of its declaration.
template <class Visit>
void visit_fields(NoCall&, Visit&&) {}
template <class Visit>
void visit_fields(NormAllReduceCall&, Visit&&) {}

template <class Visit>
void visit_fields(ProductCall& call, Visit&& visit) {
  each_field(visit, call.a, call.b, call.c, call.m, call.n, call.k, call.outer, call.inner, call.transpose_a, call.transpose_b,
             call.accumulate, call.elements, call.output);
}

template <class Visit>
void visit_fields(EmbeddingCall& call, Visit&& visit) {
  each_field(visit, call.tokens, call.table, call.output, call.count, call.hidden, call.share, call.elements);
}

template <class Visit>
void visit_fields(EmbeddingGradientCall& call, Visit&& visit) {
  each_field(visit, call.tokens, call.gradient, call.table_gradient, call.count, call.hidden, call.share, call.accumulate, call.elements,
             call.gradients);
}

template <class Visit>
void visit_fields(PositionCall& call, Visit&& visit) {
  each_field(visit, call.input, call.table, call.output, call.batch, call.sequence, call.hidden, call.elements);
}

template <class Visit>
void visit_fields(PositionGradientCall& call, Visit&& visit) {
  each_field(visit, call.gradient, call.table_gradient, call.batch, call.sequence, call.hidden, call.table_rows, call.accumulate,
             call.elements, call.gradients);
}

template <class Visit>
void visit_fields(DropoutCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output, call.mask, call.count, call.draw, call.elements);
}

template <class Visit>
void visit_fields(DropoutBackwardCall& call, Visit&& visit) {
  each_field(visit, call.gradient, call.mask, call.output, call.count, call.probability, call.elements);
}

template <class Visit>
void visit_fields(NormCall& call, Visit&& visit) {
  each_field(visit, call.input, call.gain, call.output, call.statistics, call.bias, call.rows, call.columns, call.centred, call.epsilon,
             call.elements);
}

template <class Visit>
void visit_fields(NormBackwardCall& call, Visit&& visit) {
  each_field(visit, call.output_gradient, call.input, call.gain, call.statistics, call.input_gradient, call.rows, call.columns,
             call.centred, call.elements);
}

template <class Visit>
void visit_fields(NormWeightGradientCall& call, Visit&& visit) {
  each_field(visit, call.output_gradient, call.input, call.statistics, call.gain_gradient, call.bias_gradient, call.rows, call.columns,
             call.centred, call.accumulate, call.elements, call.gradients);
}

template <class Visit>
void visit_fields(BiasCall& call, Visit&& visit) {
  each_field(visit, call.input, call.bias, call.output, call.rows, call.columns, call.elements);
}

template <class Visit>
void visit_fields(BiasGradientCall& call, Visit&& visit) {
  each_field(visit, call.gradient, call.bias_gradient, call.rows, call.columns, call.accumulate, call.elements, call.gradients);
}

template <class Visit>
void visit_fields(AttentionSoftmaxCall& call, Visit&& visit) {
  each_field(visit, call.scores, call.output, call.matrices, call.queries, call.keys, call.scale, call.causal, call.elements);
}

template <class Visit>
void visit_fields(AttentionSoftmaxBackwardCall& call, Visit&& visit) {
  each_field(visit, call.softmax, call.gradient, call.scores_gradient, call.matrices, call.queries, call.keys, call.scale, call.causal,
             call.elements);
}

template <class Visit>
void visit_fields(HeadsToTokensCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output, call.shape, call.elements);
}

template <class Visit>
void visit_fields(JoinHeadsCall& call, Visit&& visit) {
  each_field(visit, call.query, call.key, call.value, call.joint, call.shape, call.elements);
}

template <class Visit>
void visit_fields(RotaryCall& call, Visit&& visit) {
  each_field(visit, call.joint, call.query, call.key, call.value, call.shape, call.base, call.elements);
}

template <class Visit>
void visit_fields(RotaryBackwardCall& call, Visit&& visit) {
  each_field(visit, call.query, call.key, call.value, call.joint, call.shape, call.base, call.elements);
}

template <class Visit>
void visit_fields(RepeatHeadsCall& call, Visit&& visit) {
  each_field(visit, call.key, call.value, call.repeated_key, call.repeated_value, call.shape, call.elements);
}

template <class Visit>
void visit_fields(RepeatHeadsBackwardCall& call, Visit&& visit) {
  each_field(visit, call.key, call.value, call.summed_key, call.summed_value, call.shape, call.elements);
}

template <class Visit>
void visit_fields(ResidualCall& call, Visit&& visit) {
  each_field(visit, call.branch, call.residual, call.output, call.bias, call.mask, call.rows, call.columns, call.draw, call.elements);
}

template <class Visit>
void visit_fields(ResidualBackwardCall& call, Visit&& visit) {
  each_field(visit, call.gradient, call.mask, call.bias_gradient, call.branch_gradient, call.rows, call.columns, call.probability,
             call.accumulate, call.elements, call.gradients);
}

template <class Visit>
void visit_fields(AddCall& call, Visit&& visit) {
  each_field(visit, call.input, call.sum, call.count, call.elements);
}

template <class Visit>
void visit_fields(ActivationCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output, call.count, call.kind, call.elements);
}

template <class Visit>
void visit_fields(ActivationBackwardCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output_gradient, call.input_gradient, call.count, call.kind, call.elements);
}

template <class Visit>
void visit_fields(GateProductCall& call, Visit&& visit) {
  each_field(visit, call.gate, call.up, call.output, call.count, call.elements);
}

template <class Visit>
void visit_fields(GateProductBackwardCall& call, Visit&& visit) {
  each_field(visit, call.output_gradient, call.gate, call.up, call.gate_gradient, call.up_gradient, call.count, call.elements);
}

template <class Visit>
void visit_fields(WidenCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output, call.count, call.elements);
}

template <class Visit>
void visit_fields(NarrowCall& call, Visit&& visit) {
  each_field(visit, call.input, call.output, call.count, call.elements);
}

template <class Visit>
void visit_fields(LossMaximumCall& call, Visit&& visit) {
  each_field(visit, call.logits, call.maximum, call.rows, call.columns);
}

template <class Visit>
void visit_fields(TargetMaskCall& call, Visit&& visit) {
  each_field(visit, call.labels, call.mask, call.target, call.rows, call.share);
}

template <class Visit>
void visit_fields(LossNumeratorCall& call, Visit&& visit) {
  each_field(visit, call.logits, call.maximum, call.mask, call.target, call.softmax, call.predicted, call.denominator, call.rows,
             call.columns);
}

template <class Visit>
void visit_fields(LossCall& call, Visit&& visit) {
  each_field(visit, call.predicted, call.denominator, call.softmax, call.loss, call.rows, call.columns);
}

template <class Visit>
void visit_fields(LossBackwardCall& call, Visit&& visit) {
  each_field(visit, call.softmax, call.mask, call.target, call.gradient, call.rows, call.columns, call.scale);
}

template <class Visit>
void visit_fields(GradientNormCall& call, Visit&& visit) {
  each_field(visit, call.gradients, call.type);
}

template <class Visit>
void visit_fields(GradientClipCall& call, Visit&& visit) {
  each_field(visit, call.gradients, call.most, call.type);
}

template <class Visit>
void visit_fields(AdamWCall& call, Visit&& visit) {
  each_field(visit, call.gradient, call.weight, call.moments, call.master, call.count, call.elements, call.gradients);
}

template <class Visit>
void visit_fields(CopyCall& call, Visit&& visit) {
  each_field(visit, call.from, call.to);
}

template <class Visit>
void visit_fields(AllReduceCall& call, Visit&& visit) {
  each_field(visit, call.operand, call.count, call.maximum, call.elements);
}

}  // namespace stepsim
