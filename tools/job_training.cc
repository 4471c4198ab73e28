#include "tools/job_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "models/recipe_names.h"
#include "models/resident_storages.h"
#include "schema/read_message.h"
#include "sim/dtype_name.h"

namespace stepsim {

// Whole numbers between commas, blanks and line ends; empty: something else stands there.
static std::vector<std::int64_t> read_lengths(std::string_view text) {
  constexpr std::string_view kBetween = ", \t\r\n";
  std::vector<std::int64_t> lengths;
  for (std::size_t begin = text.find_first_not_of(kBetween); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    std::int64_t length = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, length);
    if (read.ec != std::errc() || read.ptr != text.data() + end || length < 1) return {};
    lengths.push_back(length);
    begin = text.find_first_not_of(kBetween, end);
  }
  return lengths;
}

// Else a file's name, which has something else in it.
static bool is_list(const std::string& packed) { return packed.find_first_not_of("0123456789,-+. ") == std::string::npos; }

static bool has_empty_item(const std::string& list) {
  bool empty = true;
  for (const char c : list) {
    if (c == ',' && empty) return true;
    if (c != ' ') empty = c == ',';
  }
  return empty;
}

std::string packed_file(const Job& job) {
  const auto entry = job.entries.values.find("training.packed");
  return entry == job.entries.values.end() || is_list(entry->second.value) ? "" : entry->second.value;
}

static void resolve_packed(JobValues& values, Job& job) {
  const std::optional<std::string> packed = values.optional_text("training.packed");
  if (!packed) return;
  const std::string file = packed_file(job);
  const bool gap = file.empty() && has_empty_item(*packed);
  if (!gap) job.training.packed = read_lengths(file.empty() ? *packed : read_text_file(file));
  if (!job.training.packed.empty()) return;
  const std::string wanted = "the tokens of each document, such as 1024,3072";
  if (!file.empty()) throw InputError({file}, "found something else, wanted " + wanted);
  values.fail("training.packed", "found \"" + *packed + "\", wanted " + wanted + ", or a file of them");
}

// As long as the documents packed into it; saturated, check_layout refuses what is too long.
static std::int64_t packed_tokens(const TrainingRecipe& training) {
  std::int64_t sum = 0;
  for (const std::int64_t length : training.packed) sum = length > kUnbounded - sum ? kUnbounded : sum + length;
  return sum;
}

// As many tokens as the encoder's unless the user says so.
static void resolve_decoder_sequence(JobValues& values, Job& job) {
  const bool two = job.model.encoder_layers > 0;
  if (!two && !values.given("training.decoder_sequence")) return;
  job.training.decoder_sequence = values.whole("training.decoder_sequence", job.training.sequence, "as the encoder's", 1, kUnbounded);
}

static void resolve_sequence(JobValues& values, Job& job) {
  if (!job.training.packed.empty()) {
    job.training.sequence = values.whole("training.sequence", packed_tokens(job.training), "the documents of --packed", 1, kUnbounded);
    return;
  }
  const std::int64_t positions = job.model.max_positions;
  if (positions > 0) {
    job.training.sequence = values.whole("training.sequence", positions, "the learned positions of " + job.model.name, 1, kUnbounded);
    return;
  }
  const std::optional<std::int64_t> given = values.optional_whole("training.sequence");
  if (!given) values.fail("training.sequence", "found none, wanted the tokens of a sequence (" + job.model.name + " has no usual length)");
  job.training.sequence = *given;
}

// "chunked=8"; 0 where it is none.
static std::int64_t chunks_of(const std::string& loss) {
  constexpr std::string_view kChunked = "chunked=";
  if (loss.compare(0, kChunked.size(), kChunked) != 0) return 0;
  std::int64_t chunks = 0;
  const char* const end = loss.data() + loss.size();
  const auto read = std::from_chars(loss.data() + kChunked.size(), end, chunks);
  return read.ec == std::errc() && read.ptr == end ? chunks : 0;
}

static void resolve_loss(JobValues& values, Job& job) {
  const FrameworkPreset& framework = job.framework;
  std::string usual(name_of(kLossNames, framework.loss));
  if (framework.loss == LossKind::kChunked) usual += fmt::format("={}", framework.loss_chunks);
  const std::string loss = values.text("training.loss", usual, "of " + framework_label(framework));
  if (loss == "plain" || loss == "fused") {
    job.training.loss = loss == "plain" ? LossKind::kPlain : LossKind::kFused;
    return;
  }
  const std::int64_t chunks = chunks_of(loss);
  if (chunks < 1) values.fail("training.loss", "found \"" + loss + "\", wanted one of plain, fused, chunked=N");
  job.training.loss = LossKind::kChunked;
  job.training.loss_chunks = chunks;
}

static void resolve_gradient_dtype(JobValues& values, Job& job) {
  constexpr std::array<std::string_view, 3> kNames = {"bf16", "fp16", "fp32"};
  constexpr std::array<DType, 3> kTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
  if (values.given("training.grad_dtype")) {
    job.training.gradient_dtype = kTypes[values.choice("training.grad_dtype", kNames, {}, 0, "")];
  }
}

static std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

static std::vector<std::string> parts_at(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find_first_of(separators);
    parts.emplace_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The text behind "NAME(" without the closing bracket; none if it is another call.
static std::optional<std::string_view> arguments_of(std::string_view text, std::string_view name) {
  const bool call =
      text.size() > name.size() + 1 && text.compare(0, name.size(), name) == 0 && text[name.size()] == '(' && text.back() == ')';
  if (!call) return std::nullopt;
  return trimmed(text.substr(name.size() + 1, text.size() - name.size() - 2));
}

static bool read_whole(std::string_view text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "r=16,targets=qkv+fc1": a part without '=' is one more target.
static bool read_lora(std::string_view arguments, TrainableMask& mask) {
  for (const std::string& part : parts_at(arguments, ",")) {
    const std::size_t equals = part.find('=');
    const std::string key = equals == std::string::npos ? "targets" : part.substr(0, equals);
    const std::string value = equals == std::string::npos ? part : part.substr(equals + 1);
    if (key == "targets") {
      for (const std::string& target : parts_at(value, "+")) mask.targets.push_back(target);
    } else if (key == "r" || key == "rank") {
      if (!read_whole(value, mask.rank)) return false;
    } else if (key == "bits") {
      if (!read_whole(value, mask.base_bits)) return false;
    } else {
      return false;
    }
  }
  return true;
}

std::optional<TrainableMask> parse_trainable(const std::string& text) {
  const std::string_view whole = trimmed(text);
  TrainableMask mask;
  if (whole == "all") return mask;
  if (const auto parts = arguments_of(whole, "frozen")) {
    mask.kind = TrainableMask::Kind::kFrozen;
    mask.targets = parts_at(*parts, "+,");
    return mask;
  }
  for (const std::string_view name : {"lora", "qlora"}) {
    const auto arguments = arguments_of(whole, name);
    if (!arguments) continue;
    mask.kind = TrainableMask::Kind::kLora;
    if (name == "qlora") mask.base_bits = 4;
    if (read_lora(*arguments, mask)) return mask;
  }
  return std::nullopt;
}

static void resolve_trainable(JobValues& values, Job& job) {
  const std::optional<std::string> text = values.optional_text("training.trainable");
  if (!text) return;
  const std::optional<TrainableMask> mask = parse_trainable(*text);
  if (!mask) {
    values.fail("training.trainable",
                "found \"" + *text + "\", wanted all, lora(r=16,targets=A+B), qlora(r=16,targets=A+B) or frozen(A+B)");
  }
  job.training.trainable = *mask;
}

static void resolve_precision(JobValues& values, Job& job) {
  constexpr std::array<std::string_view, 6> kPrecisions = {"bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"};  // by Precision
  constexpr std::array<std::string_view, 3> kRecipes = {"current", "delayed", "blockwise"};                   // by ScalingRecipe
  TrainingRecipe& training = job.training;
  training.precision = static_cast<Precision>(values.choice("training.precision", kPrecisions, {}, 0, "usual"));
  const bool fp8 = training.precision == Precision::kFp8, given = values.given("training.fp8_recipe");
  if (fp8 || given) {
    training.scaling = static_cast<ScalingRecipe>(values.choice("training.fp8_recipe", kRecipes, {}, 0, "one scale a tensor, of its own"));
  }
  if (given && !fp8) values.fail("training.fp8_recipe", "found a recipe, wanted --precision fp8 with it (mxfp8 and nvfp4 have their own)");
  training.primary_weights_low = values.optional_flag("training.low_precision_weights").value_or(false);
  training.low_precision_attention = values.optional_flag("training.low_precision_attention").value_or(false);
  resolve_gradient_dtype(values, job);
}

static void resolve_optimizer(JobValues& values, Job& job) {
  constexpr std::array<std::string_view, 2> kIterations = {"steady", "first"};
  constexpr std::array<std::string_view, 3> kNames = {"bf16", "fp16", "fp32"};
  constexpr std::array<DType, 3> kTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
  TrainingRecipe& training = job.training;
  training.optimizer = static_cast<OptimizerKind>(values.choice("training.optimizer", kOptimizerNames, {}, 0, "usual"));
  if (values.given("training.moment_dtype")) {
    training.moment_dtype = kTypes[values.choice("training.moment_dtype", kNames, {}, 2, "")];
  }
  if (values.given("training.momentum")) training.momentum = values.real("training.momentum", 0, "");
  training.optimizer_in_backward = values.optional_flag("training.optimizer_in_backward").value_or(false);
  if (values.given("training.optimizer_offload")) training.optimizer_offload = values.real("training.optimizer_offload", 0, "");
  training.overlap_optimizer_copies = values.optional_flag("training.overlap_optimizer_copies").value_or(true);
  training.iteration = static_cast<IterationKind>(values.choice("training.iteration", kIterations, {}, 0, "a step amid training"));
}

static void resolve_routing(JobValues& values, Job& job) {
  const bool experts = job.model.has_experts();
  if (experts || values.given("training.capacity")) job.training.capacity = values.real("training.capacity", 0, "dropless");
  if (experts || values.given("training.imbalance")) job.training.imbalance = values.real("training.imbalance", 1, "even experts");
}

// Recipes graph models with experts, whose host falls behind (spec/accuracy.md C.2: rows of dense models have none); who changes the
// preset's field means it for every model.
static void resolve_cuda_graph(JobValues& values, Job& job) {
  const bool meant = job.model.has_experts() || values.given("framework.cuda_graph");
  const CudaGraph usual = meant ? job.framework.cuda_graph : CudaGraph::kNone;
  const std::string reason =
      "of " + framework_label(job.framework) + (usual == job.framework.cuda_graph ? "" : " for models without experts");
  job.training.cuda_graph =
      static_cast<CudaGraph>(values.choice("training.cuda_graph", kCudaGraphNames, {}, static_cast<std::size_t>(usual), reason));
}

void resolve_training(JobValues& values, Job& job) {
  const std::string of_framework = "of " + framework_label(job.framework);
  resolve_packed(values, job);
  resolve_sequence(values, job);
  resolve_decoder_sequence(values, job);
  job.training.micro_batch = values.whole("training.micro_batch", 1, "one sequence at a time", 1, kMostSequences);
  resolve_precision(values, job);
  job.training.attention = static_cast<AttentionKind>(
      values.choice("training.attention", kAttentionNames, {}, static_cast<std::size_t>(job.framework.attention), of_framework));
  job.training.dropout = values.real("training.dropout", job.model.dropout, "of the model");
  resolve_loss(values, job);
  resolve_trainable(values, job);
  resolve_optimizer(values, job);
  resolve_routing(values, job);
  if (values.given("training.deferred_head_gradients")) {
    job.training.deferred_head_gradients = values.whole("training.deferred_head_gradients", 0, "", 0, kUnbounded);
  }
  resolve_cuda_graph(values, job);
  job.stop_at_out_of_memory = values.flag("training.stop_at_out_of_memory");
}

void note_gradient_dtype(JobValues& values, const Job& job) {
  if (job.training.gradient_dtype) return;
  const TrainingRecipe decided = with_gradient_dtype(job.training, job.parallel, job.framework);
  const bool autograd = job.parallel.zero >= 2 && job.parallel.replicas() > 1;
  const std::string source = autograd ? "as backward makes them" : "of " + framework_label(job.framework);
  values.note("training.grad_dtype", dtype_name(*decided.gradient_dtype), "default: " + source, JobValue::Form::kText);
}

}  // namespace stepsim
