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

// Which products a convention counts, and how.
struct Counting {
  bool causal_half = false;  // causal attention counts half
  bool router = false;       // the product that scores the experts
  bool megatron = false;     // Megatron-LM's terms for norms of compressed q and kv, and for norms of multi-token prediction
};

// Tokens of a sequence: encoder-decoders have two kinds.
struct Tokens {
  double encoder = 0, decoder = 0;            // without an encoder both are the sequence's
  std::span<const std::int64_t> documents{};  // packed into it; none: one
  double share() const { return decoder / encoder; }
};

// Forward FLOPs of one layer per token of the sequence.
struct LayerFlops {
  double matrices = 0, attention = 0;
};

// Keys that a query may see, its mean over the sequence: of its document, or a window of that.
double keys_seen(const LayerKind& kind, double own, std::span<const std::int64_t> documents) {
  const auto limited = [&](double keys) { return kind.window > 0 ? std::min(static_cast<double>(kind.window), keys) : keys; };
  if (documents.empty()) return limited(own);
  double sum = 0;
  for (const std::int64_t length : documents) sum += static_cast<double>(length) * limited(static_cast<double>(length));
  return sum / own;
}

// Every query against all keys, or those in its window: 2 multiply-adds a key and channel.
double square_attention(double channels, double keys) { return 2.0 * channels * keys; }

LayerFlops products_of_layer(const ModelSpec& model, const LayerKind& kind, const Tokens& tokens, const Counting& counting) {
  const LayerParameters layer = layer_parameters(model, kind);
  std::int64_t weights = layer.active_matrices - (counting.router ? 0 : layer.router);
  if (counting.megatron && model.is_latent()) weights += model.latent.q_rank + model.latent.kv_rank;
  const bool decoder = kind.side == LayerSide::kFirstDecoder || kind.side == LayerSide::kDecoder;
  const bool halved = counting.causal_half && model.causal && kind.side != LayerSide::kEncoder;
  const auto channels = static_cast<double>(layer.attention_channels);
  const double own = decoder ? tokens.decoder : tokens.encoder;
  const double attention = square_attention(channels, keys_seen(kind, own, tokens.documents)) / (halved ? 2.0 : 1.0);
  if (!decoder) return {2.0 * static_cast<double>(weights), attention};
  // Keys and values of the attention over the encoder's output are projected from the encoder's tokens.
  const std::int64_t cross = 2 * model.hidden * model.kv_heads * model.head_dim;
  const double share = tokens.share();
  return {2.0 * (static_cast<double>(weights - cross) * share + static_cast<double>(cross)),
          (attention + square_attention(channels, tokens.encoder)) * share};
}

// Multi-token prediction: a layer of the last kind, a product of both inputs and the head once more, for each of its layers.
double multi_token_products(const ModelSpec& model, const Tokens& tokens, std::int64_t vocab, const Counting& counting) {
  if (model.multi_token_layers == 0) return 0;
  const LayerFlops layer = products_of_layer(model, model.kind(model.layers - 1), tokens, counting);
  std::int64_t weights = 2 * model.hidden * model.hidden + vocab * model.hidden;
  if (counting.megatron) weights += 3 * model.hidden;
  return static_cast<double>(model.multi_token_layers) * (layer.matrices + layer.attention + 2.0 * static_cast<double>(weights));
}

// The head's matrices: a transform and a pooler are there for BERT alone, whose pooler sees one token of a sequence.
double head_products(const ModelSpec& model, const Tokens& tokens, std::int64_t vocab) {
  const std::int64_t transform = model.head_transform ? model.hidden * model.hidden : 0;
  return 2.0 * static_cast<double>(vocab * model.hidden + transform) * tokens.share();
}

// Conventions that add up matrix products.
FlopsPerToken of_products(const ModelSpec& model, const Tokens& tokens, std::int64_t vocab, const Counting& counting) {
  FlopsPerToken flops;
  for (const auto& [kind, layers] : kind_counts(model)) {
    const LayerFlops layer = products_of_layer(model, kind, tokens, counting);
    flops.layer_matrices += static_cast<double>(layers) * layer.matrices;
    flops.attention += static_cast<double>(layers) * layer.attention;
  }
  flops.head = head_products(model, tokens, vocab);
  flops.multi_token = multi_token_products(model, tokens, vocab, counting);
  return flops;
}

// Parameters that a token of each side passes: an encoder's layers see its tokens, all else the decoder's.
double passed(const ModelSpec& model, std::int64_t parameters, std::int64_t encoder, const Tokens& tokens) {
  if (model.encoder_layers == 0) return static_cast<double>(parameters);
  return static_cast<double>(encoder) + static_cast<double>(parameters - encoder) * tokens.share();
}

std::int64_t encoder_parameters(const ModelSpec& model) {
  std::int64_t all = 0;
  for (const auto& [kind, layers] : kind_counts(model)) {
    if (kind.side == LayerSide::kEncoder) all += layers * layer_parameters(model, kind).all;
  }
  return all;
}

// Every query against all keys, whatever its window: 12 L H Q T (with two widths 6 L H (qk + v) T).
double full_attention(const ModelSpec& model, const Tokens& tokens) {
  double flops = 0;
  for (const auto& [kind, layers] : kind_counts(model)) {
    LayerKind open = kind;
    open.window = 0;
    flops += static_cast<double>(layers) * products_of_layer(model, open, tokens, {}).attention;
  }
  return flops;
}

// Conventions that count parameters, active ones where there are experts: `counted` of them, the layers' share as layers and the rest as
// the head.
FlopsPerToken of_parameters(const ModelSpec& model, const ParameterCount& count, std::int64_t counted, const Tokens& tokens,
                            double attention) {
  const std::int64_t encoder = encoder_parameters(model);
  FlopsPerToken flops;
  flops.layer_matrices = 2.0 * passed(model, count.active_layers, encoder, tokens);
  flops.attention = attention;
  flops.head = 2.0 * passed(model, counted, encoder, tokens) - flops.layer_matrices;
  if (model.multi_token_layers > 0) {
    const LayerParameters layer = layer_parameters(model, model.kind(model.layers - 1));
    flops.multi_token = 2.0 * static_cast<double>(count.multi_token - model.multi_token_layers * (layer.all - layer.active));
    flops.multi_token += attention / static_cast<double>(model.layers) * static_cast<double>(model.multi_token_layers);
  }
  return flops;
}

// llm-foundry's HFU is 4/3 of its MFU under activation checkpointing: a re-run layer repeats its share of all that is counted.
FlopsPerToken of_llm_foundry(const ModelSpec& model, const ParameterCount& count, const Tokens& tokens) {
  const std::int64_t counted = count.active - (model.tied_head ? 0 : model.vocab * model.hidden);
  const double attention = square_attention(2.0 * static_cast<double>(model.hidden), tokens.encoder) * static_cast<double>(model.layers);
  FlopsPerToken flops = of_parameters(model, count, counted, tokens, attention);
  const double all = flops.layer_matrices + flops.head;
  const std::int64_t share = counted / model.layers;
  flops.layer_matrices = model.encoder_layers == 0 ? 2.0 * static_cast<double>(share * model.layers) : all;
  flops.head = all - flops.layer_matrices;  // what the division leaves
  return flops;
}

FlopsPerToken forward_flops(FlopsConvention convention, const ModelSpec& model, const Tokens& tokens, std::int64_t sequence,
                            std::int64_t vocab_padded) {
  const ParameterCount count = parameter_count(model, sequence);
  switch (convention) {
    case FlopsConvention::kMegatronCausal:
      return of_products(model, tokens, vocab_padded, {.causal_half = true, .megatron = true});
    case FlopsConvention::kMegatronFull:
      return of_products(model, tokens, vocab_padded, {.megatron = true});
    case FlopsConvention::kMaxText:
      return of_products(model, tokens, model.vocab, {.causal_half = true, .router = true});
    case FlopsConvention::kPalm:
      return of_parameters(model, count, count.active, tokens, full_attention(model, tokens));
    case FlopsConvention::k6N:
      return of_parameters(model, count, count.active, tokens, 0);
    case FlopsConvention::kTorchTitan:
      return of_parameters(model, count, count.active - count.embedding - count.positions, tokens, full_attention(model, tokens));
    case FlopsConvention::kLlmFoundry:
      return of_llm_foundry(model, count, tokens);
    case FlopsConvention::k6NWithoutEmbedding:
      return of_parameters(model, count, count.active - count.embedding, tokens, 0);
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

FlopsPerToken flops_per_token(FlopsConvention convention, const ModelSpec& model, std::int64_t sequence, std::int64_t vocab_padded,
                              std::int64_t decoder_sequence, std::span<const std::int64_t> packed) {
  STEPSIM_CHECK(sequence > 0);
  const bool two = model.encoder_layers > 0 && decoder_sequence > 0;
  const bool megatron = convention == FlopsConvention::kMegatronCausal || convention == FlopsConvention::kMegatronFull;
  Tokens tokens = {.encoder = static_cast<double>(sequence), .decoder = static_cast<double>(two ? decoder_sequence : sequence)};
  if (megatron && model.encoder_layers == 0) tokens.documents = packed;
  FlopsPerToken flops = forward_flops(convention, model, tokens, sequence, vocab_padded);
  flops.model = 3.0 * flops.forward();  // backward: a gradient for each of the two factors of every product
  return flops;
}

Rerun rerun_of_plan(const PlacementPlan& plan, const LayerStack& stack) {
  Products once;  // of the average layer
  const std::vector<std::int64_t> layers = stack.whole().layers_of_kinds();
  for (std::int32_t kind = 0; kind < stack.kinds(); ++kind) {
    const double share = static_cast<double>(layers[static_cast<std::size_t>(kind)]) / static_cast<double>(stack.whole().layers());
    const Products of_kind = products(stack.kind(kind).forward);
    once.matrices += share * of_kind.matrices;
    once.attention += share * of_kind.attention;
  }
  Products again;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const PlanStep& step : *steps) {
      if (step.verb != PlanVerb::kForward || !step.again) continue;
      STEPSIM_CHECK(step.layer >= 0 && step.layer < stack.layers());
      const std::vector<TemplateOp>& ops = stack.layer(step.layer).forward;
      STEPSIM_CHECK(step.first >= 0 && step.first <= step.last);
      STEPSIM_CHECK(static_cast<std::size_t>(step.last) < ops.size());
      const auto count = static_cast<std::size_t>(step.last - step.first + 1);
      const Products part = products(std::span(ops).subspan(static_cast<std::size_t>(step.first), count));
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
  const FlopsPerToken flops =
      flops_per_token(convention, model, training.sequence, vocab_padded, training.decoder_sequence, training.packed);
  const double tokens = static_cast<double>(training.global_batch) * static_cast<double>(training.sequence);
  const auto layers = static_cast<double>(model.layers);
  const double layer_matrices = flops.layer_matrices / layers, attention = flops.attention / layers;  // of the average layer
  double again = rerun.layer_matrices * layer_matrices + rerun.attention * attention + rerun.head * flops.head;
  if (convention == FlopsConvention::kMegatronFull) {
    // 2205.05198 equation 8 (selective) adds 12BLs^2h for attention that runs again alone, three times its forward 4BLs^2h; its formula for
    // full recompute adds the forward once. Its printed HFU follow equation 8.
    again += 2.0 * std::max(0.0, rerun.attention - rerun.layer_matrices) * attention;
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
