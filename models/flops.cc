#include "models/flops.h"

#include <algorithm>
#include <array>
#include <span>

#include "sim/check.h"

namespace stepsim {

namespace {

struct ConventionName {
  FlopsConvention convention;
  std::string_view name;
};

constexpr std::array<ConventionName, 8> kConventions = {{{FlopsConvention::kMegatronCausal, "megatron-causal"},
                                                         {FlopsConvention::kMegatronFull, "megatron-full"},
                                                         {FlopsConvention::kPalm, "palm"},
                                                         {FlopsConvention::k6N, "6n"},
                                                         {FlopsConvention::kMaxText, "maxtext"},
                                                         {FlopsConvention::kTorchTitan, "torchtitan"},
                                                         {FlopsConvention::kLlmFoundry, "llm-foundry"},
                                                         {FlopsConvention::k6NWithoutEmbedding, "6n-without-embedding"}}};

// Forward FLOPs per token of QK^T and PV of one layer, every query against all `sequence` keys: 2 x 2 multiply-adds a key and channel.
double square_attention(double width, std::int64_t sequence) { return 4.0 * width * static_cast<double>(sequence); }

double attention_width(const ModelSpec& model) { return static_cast<double>(model.heads * model.head_dim); }

// Conventions that add up matrix products.
FlopsPerToken of_products(const ModelSpec& model, const ParameterCount& count, std::int64_t sequence, std::int64_t vocab, bool causal) {
  FlopsPerToken flops;
  flops.layer_matrices = 2.0 * static_cast<double>(count.layer_matrices);
  flops.attention = square_attention(attention_width(model), sequence) / (causal ? 2.0 : 1.0);
  flops.head = 2.0 * static_cast<double>(vocab * model.hidden);
  return flops;
}

// Conventions that count parameters: `counted` of them, the layers' share as layers and the rest as the head.
FlopsPerToken of_parameters(const ModelSpec& model, const ParameterCount& count, std::int64_t counted, double attention) {
  FlopsPerToken flops;
  flops.layer_matrices = 2.0 * static_cast<double>(count.layer);
  flops.attention = attention;
  flops.head = 2.0 * static_cast<double>(counted - model.layers * count.layer);
  return flops;
}

// llm-foundry's HFU is 4/3 of its MFU under activation checkpointing: a re-run layer repeats its share of all that is counted.
FlopsPerToken of_llm_foundry(const ModelSpec& model, const ParameterCount& count, std::int64_t sequence) {
  const std::int64_t counted = count.total - (model.tied_head ? 0 : count.embedding);
  const std::int64_t share = counted / model.layers;
  FlopsPerToken flops;
  flops.layer_matrices = 2.0 * static_cast<double>(share);
  flops.attention = square_attention(static_cast<double>(model.hidden), sequence);
  flops.head = 2.0 * static_cast<double>(counted - share * model.layers);  // what the division leaves
  return flops;
}

FlopsPerToken forward_flops(FlopsConvention convention, const ModelSpec& model, std::int64_t sequence, std::int64_t vocab_padded) {
  const ParameterCount count = parameter_count(model, sequence);
  const double attention = square_attention(attention_width(model), sequence);
  switch (convention) {
    case FlopsConvention::kMegatronCausal:
      return of_products(model, count, sequence, vocab_padded, true);
    case FlopsConvention::kMegatronFull:
      return of_products(model, count, sequence, vocab_padded, false);
    case FlopsConvention::kMaxText:
      return of_products(model, count, sequence, model.vocab, true);
    case FlopsConvention::kPalm:
      return of_parameters(model, count, count.total, attention);
    case FlopsConvention::k6N:
      return of_parameters(model, count, count.total, 0);
    case FlopsConvention::kTorchTitan:
      return of_parameters(model, count, count.total - count.embedding - count.positions, attention);
    case FlopsConvention::kLlmFoundry:
      return of_llm_foundry(model, count, sequence);
    case FlopsConvention::k6NWithoutEmbedding:
      return of_parameters(model, count, count.total - count.embedding, 0);
  }
  STEPSIM_CHECK(false);
}

struct Products {
  double matrices = 0, attention = 0;
};

bool is_core_attention(const TemplateOp& op) {
  return std::holds_alternative<Attention>(op.work) || op.module.find("core_attn") != std::string::npos;
}

Products products(std::span<const TemplateOp> ops) {
  Products sum;
  for (const TemplateOp& op : ops) (is_core_attention(op) ? sum.attention : sum.matrices) += arithmetic(op.work).value;
  return sum;
}

}  // namespace

std::string convention_name(FlopsConvention convention) {
  for (const ConventionName& known : kConventions) {
    if (known.convention == convention) return std::string(known.name);
  }
  STEPSIM_CHECK(false);
}

std::optional<FlopsConvention> convention_from_name(std::string_view name) {
  for (const ConventionName& known : kConventions) {
    if (known.name == name) return known.convention;
  }
  return std::nullopt;
}

std::vector<FlopsConvention> all_conventions() {
  std::vector<FlopsConvention> all;
  for (const ConventionName& known : kConventions) all.push_back(known.convention);
  return all;
}

FlopsConvention default_convention(const ModelSpec& model) {
  const bool gpt = model.normalization == Normalization::kLayerNorm && model.activation == Activation::kGelu;
  return gpt ? FlopsConvention::kMegatronFull : FlopsConvention::kMegatronCausal;
}

FlopsPerToken flops_per_token(FlopsConvention convention, const ModelSpec& model, std::int64_t sequence, std::int64_t vocab_padded) {
  FlopsPerToken flops = forward_flops(convention, model, sequence, vocab_padded);
  const double forward = static_cast<double>(model.layers) * (flops.layer_matrices + flops.attention) + flops.head;
  flops.model = 3.0 * forward;  // backward: a gradient for each of the two factors of every product
  return flops;
}

Rerun rerun_of_plan(const PlacementPlan& plan, const LayerTemplate& layer, std::int64_t layers) {
  const Products once = products(layer.forward);
  Products again;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb != PlanVerb::kForward || !step.again) continue;
      STEPSIM_CHECK(step.layer >= 0 && step.layer < layers);
      STEPSIM_CHECK(step.first >= 0 && step.first <= step.last);
      STEPSIM_CHECK(static_cast<std::size_t>(step.last) < layer.forward.size());
      const auto count = static_cast<std::size_t>(step.last - step.first + 1);
      const Products part = products(std::span(layer.forward).subspan(static_cast<std::size_t>(step.first), count));
      again.matrices += part.matrices;
      again.attention += part.attention;
    }
  }
  Rerun rerun;
  if (once.matrices > 0) rerun.layer_matrices = again.matrices / once.matrices;
  if (once.attention > 0) rerun.attention = again.attention / once.attention;
  return rerun;
}

StepFlops step_flops(FlopsConvention convention, const ModelSpec& model, const TrainingRecipe& training, std::int64_t vocab_padded,
                     const Rerun& rerun) {
  const FlopsPerToken flops = flops_per_token(convention, model, training.sequence, vocab_padded);
  const double tokens = static_cast<double>(training.global_batch) * static_cast<double>(training.sequence);
  double again = rerun.layer_matrices * flops.layer_matrices + rerun.attention * flops.attention + rerun.head * flops.head;
  if (convention == FlopsConvention::kMegatronFull) {
    // 2205.05198 equation 8 (selective) adds 12BLs^2h for attention that runs again alone, three times its forward 4BLs^2h; its formula for
    // full recompute adds the forward once. Its printed HFU follow equation 8.
    again += 2.0 * std::max(0.0, rerun.attention - rerun.layer_matrices) * flops.attention;
  }
  return {Flops(tokens * flops.model), Flops(tokens * (flops.model + again))};
}

Utilisation utilisation(const StepFlops& flops, Duration step, std::int64_t devices, const NamedPeak& peak) {
  STEPSIM_CHECK(step.count() > 0);
  STEPSIM_CHECK(devices > 0);
  STEPSIM_CHECK(peak.per_device.value > 0);
  const double possible = seconds(step) * static_cast<double>(devices) * peak.per_device.value;
  return {flops.model.value / possible, flops.hardware.value / possible, peak.name};
}

}  // namespace stepsim
