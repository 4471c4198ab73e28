#include "tools/megatron_recipe.h"

#include <array>
#include <charconv>

#include "tools/megatron_model.h"

namespace stepsim {

namespace {

DType dtype(const MegatronArguments& arguments, std::string_view flag) {
  const std::string name = arguments.text(flag, "fp32");
  if (name == "fp32") return DType::kFp32;
  if (name == "bf16") return DType::kBf16;
  if (name == "fp16") return DType::kFp16;
  if (name == "fp8") return DType::kFp8;
  arguments.refuse(flag, "fp32, bf16, fp16 or fp8");
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// The rule of spec/megatron_memory.md section 4, as far as it does not need the date of a measurement.
AttentionKind attention(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  if (has_local_layers(arguments)) return AttentionKind::kUnfused;
  const std::string backend = arguments.text("attention-backend", arguments.on("use-flash-attn") ? "flash" : "auto");
  if (backend == "unfused" || backend == "local") return AttentionKind::kUnfused;
  if (backend == "flash") return AttentionKind::kFlash;
  if (backend == "fused") return AttentionKind::kFused;
  if (backend != "auto") arguments.refuse("attention-backend", "auto, unfused, flash, fused or local");
  const std::string machine = golden_machine(run.golden);
  const bool deterministic = arguments.text("env.NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0";
  if (machine == "a100-sxm-80gb") {
    // The old software that these goldens name has no deterministic flash attention.
    const bool old = contains(run.golden, "lts") && contains(run.golden, "dracooci");
    return old && deterministic ? AttentionKind::kUnfused : AttentionKind::kFlash;
  }
  const bool hopper = contains(machine, "h100") || contains(machine, "h200");
  return hopper || !deterministic ? AttentionKind::kFused : AttentionKind::kFlash;
}

// The first batch of a run: --rampup-batch-size "start increment samples", --step-batch-size-schedule "0:384 200B:768".
std::int64_t global_batch(const MegatronArguments& arguments) {
  for (const char* const flag : {"step-batch-size-schedule", "rampup-batch-size"}) {
    const std::vector<std::string> words = arguments.words(flag);
    if (words.empty()) continue;
    const std::string first = words[0].substr(words[0].find(':') == std::string::npos ? 0 : words[0].find(':') + 1);
    std::int64_t batch = 0;
    const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), batch);
    if (error != std::errc() || end != first.data() + first.size() || batch < 1) arguments.refuse(flag, "a batch size first");
    return batch;
  }
  return arguments.whole("global-batch-size", arguments.whole("micro-batch-size", 1));
}

// Muon is skipped (megatron_run.cc).
void add_optimizer(const MegatronArguments& arguments, TrainingRecipe& training) {
  const std::string name = arguments.text("optimizer", "adam");
  if (name == "adam" || name == "adamw") return;
  if (name != "sgd") arguments.refuse("optimizer", "adam or sgd");
  training.optimizer = OptimizerKind::kSgd;
  training.momentum = arguments.real("sgd-momentum", 0.9);  // arguments.py
}

void add_precision(const MegatronArguments& arguments, TrainingRecipe& training) {
  training.precision = arguments.on("bf16") ? Precision::kBf16 : arguments.on("fp16") ? Precision::kFp16 : Precision::kFp32;
  // arguments.py: bf16 forces fp32 accumulation; --grad-reduce-in-bf16 takes it back.
  if (arguments.on("grad-reduce-in-bf16") && training.precision == Precision::kBf16) training.gradient_dtype = DType::kBf16;
  if (arguments.on("accumulate-allreduce-grads-in-fp32")) training.gradient_dtype = DType::kFp32;
  if (!arguments.on("use-precision-aware-optimizer")) return;
  // core/optimizer/optimizer_config.py: the same dtypes by default, and store_param_remainders.
  if (dtype(arguments, "main-grads-dtype") == DType::kBf16) training.gradient_dtype = DType::kBf16;
  training.moment_dtype = dtype(arguments, "exp-avg-dtype");
  training.second_moment_dtype = dtype(arguments, "exp-avg-sq-dtype");
  const bool remainders = training.precision == Precision::kBf16 && dtype(arguments, "main-params-dtype") == DType::kFp32;
  if (remainders && !arguments.on("no-store-param-remainders")) training.master_bits = 16;
  if (dtype(arguments, "main-params-dtype") == DType::kFp16) training.master_bits = 16;
}

}  // namespace

bool has_local_layers(const MegatronArguments& arguments) {
  return arguments.text("transformer-impl", "transformer_engine") == "local" || arguments.text("spec") == "local";
}

TrainingRecipe megatron_recipe(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  TrainingRecipe training;
  training.sequence = arguments.whole("seq-length", arguments.whole("encoder-seq-length", 0));
  if (training.sequence == 0) arguments.refuse("seq-length", "a number");
  if (run.family() == "t5" || arguments.given("decoder-num-layers")) {
    training.sequence = arguments.whole("encoder-seq-length", training.sequence);
    training.decoder_sequence = arguments.whole("decoder-seq-length", training.sequence);
  }
  training.micro_batch = arguments.whole("micro-batch-size", 1);
  training.global_batch = global_batch(arguments);
  training.attention = attention(run);
  training.dropout = arguments.real("hidden-dropout", kMegatronDropout);
  const double of_attention = arguments.real("attention-dropout", kMegatronDropout);
  if (of_attention != training.dropout) training.attention_dropout = of_attention;
  const bool fused = arguments.on("cross-entropy-loss-fusion") && arguments.text("cross-entropy-fusion-impl", "native") == "te";
  if (fused) training.loss = LossKind::kFused;
  add_precision(arguments, training);
  add_optimizer(arguments, training);
  training.capacity = arguments.real("moe-expert-capacity-factor", 0);
  if (arguments.on("defer-embedding-wgrad-compute")) {
    // --wgrad-deferral-limit 0: of all micro-batches (core/model_parallel_config.py).
    const std::int64_t limit = arguments.whole("wgrad-deferral-limit", 0, 0);
    training.deferred_head_gradients = limit == 0 ? training.global_batch : limit;
  }
  return training;
}

PlacementPolicy megatron_placement(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  PlacementPolicy placement;
  std::string granularity = arguments.text("recompute-granularity");
  if (granularity.empty() && arguments.on("recompute-activations")) granularity = "selective";
  if (granularity.empty()) return placement;
  if (granularity == "selective") {
    placement.granularity = RecomputeGranularity::kSelective;
    placement.modules = arguments.words("recompute-modules");
    return placement;
  }
  if (granularity != "full") arguments.refuse("recompute-granularity", "full or selective");
  placement.granularity = RecomputeGranularity::kFull;
  const bool block = arguments.text("recompute-method", "uniform") == "block";
  placement.method = block ? RecomputeMethod::kBlock : RecomputeMethod::kUniform;
  placement.num_layers = arguments.whole("recompute-num-layers", 1);
  return placement;
}

FrameworkPreset megatron_preset(const MegatronRun& run) {
  const MegatronArguments& arguments = run.arguments;
  FrameworkPreset preset = load_framework("megatron-core@2025");
  const bool local = has_local_layers(arguments);
  preset.transformer_engine = !local;
  preset.engine_workspace = !local;
  // FA 3 is for Hopper; elsewhere Transformer Engine's flash backend is FA 2, which copies its output (spec section 3.2).
  const std::string machine = golden_machine(run.golden);
  preset.flash_version = contains(machine, "h100") || contains(machine, "h200") ? 3 : 2;
  // Its output is [b, s, ...], which the layers' [s, b, ...] is a copy of; with one sequence both are alike
  // (TransformerEngine@d0067d0d attention/dot_product_attention/backends.py:1361-1370).
  const bool copies = attention(run) == AttentionKind::kFlash && preset.flash_version == 2 && arguments.whole("micro-batch-size", 1) > 1;
  preset.shares_attention_output = !copies;
  // Megatron-LM's own fused loss is compiled, and out of place (spec section 3.4: 5 Lg).
  const bool compiled = arguments.on("cross-entropy-loss-fusion") && arguments.text("cross-entropy-fusion-impl", "native") == "native";
  if (compiled) preset.loss_in_place = false;
  // Transformer Engine's unfused attention has its own softmax. Scaling by the layer's number forces the eager one to fp32 (arguments.py).
  preset.fused_softmax = !local || !arguments.on("no-masked-softmax-fusion");
  preset.softmax_in_fp32 = arguments.on("attention-softmax-in-fp32") || arguments.on("apply-query-key-layer-scaling");
  preset.groups_expert_products = arguments.on("moe-grouped-gemm");
  if (arguments.on("no-create-attention-mask-in-dataloader")) preset.creates_attention_mask = false;
  preset.vocab_multiple = arguments.given("padded-vocab-size") ? 1 : arguments.whole("make-vocab-size-divisible-by", preset.vocab_multiple);
  return preset;
}

std::optional<Bytes> configured_blas_workspace(const MegatronArguments& arguments) {
  constexpr std::string_view kFlag = "env.CUBLAS_WORKSPACE_CONFIG";
  const std::string text = arguments.text(kFlag);
  if (text.empty()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const char *at = text.data(), *const end = at + text.size(); at < end;) {
    std::int64_t number = 0;
    const auto read = *at == ':' ? std::from_chars(at + 1, end, number) : std::from_chars_result{at, std::errc::invalid_argument};
    if (read.ec != std::errc() || number < 0 || number > 1 << 20) arguments.refuse(kFlag, "pairs such as :4096:8");
    numbers.push_back(number);
    at = read.ptr;
  }
  if (numbers.size() % 2 != 0 || numbers.size() > 8) arguments.refuse(kFlag, "pairs such as :4096:8");
  Bytes sum{};
  for (std::size_t i = 0; i < numbers.size(); i += 2) sum += Bytes(numbers[i] * 1024 * numbers[i + 1]);
  return sum;
}

}  // namespace stepsim
