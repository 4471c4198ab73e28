#include "models/training_recipe.h"

#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

constexpr std::int64_t kMostTokens = 1 << 24;  // of one sequence
constexpr std::int64_t kMostCount = 1 << 20;   // of sequences in a batch, of ranks

[[noreturn]] static void refuse(const char* flag, const std::string& found, const std::string& wanted) {
  throw InputError({flag}, "found " + found + ", wanted " + wanted);
}

static void check_range(const char* flag, std::int64_t value, std::int64_t most) {
  if (value < 1 || value > most) refuse(flag, std::to_string(value), "a whole number from 1 to " + std::to_string(most));
}

static void check_probability(const char* flag, double value) {
  if (!(value >= 0.0 && value < 1.0)) refuse(flag, std::to_string(value), "a probability from 0 to below 1");
}

// Either every rank owns whole key-value heads or every key-value head is on the same number of ranks.
static bool splits_kv_heads(const ModelSpec& model, std::int64_t ranks) {
  return model.kv_heads % ranks == 0 || ranks % model.kv_heads == 0;
}

// "1, 2, 4": divisors of the heads that the key-value heads allow too.
static std::string possible_ranks(const ModelSpec& model) {
  std::string list;
  for (std::int64_t ranks = 1; ranks <= model.heads; ++ranks) {
    if (model.heads % ranks == 0 && splits_kv_heads(model, ranks)) list += (list.empty() ? "" : ", ") + std::to_string(ranks);
  }
  return list;
}

static void check_tensor_ranks(const ModelSpec& model, std::int64_t ranks) {
  const std::string found = std::to_string(ranks);
  if (model.heads % ranks != 0)
    refuse("--tp", found, "a divisor of " + std::to_string(model.heads) + " heads (" + possible_ranks(model) + ")");
  if (!splits_kv_heads(model, ranks)) {
    refuse("--tp", found,
           "a divisor or a multiple of " + std::to_string(model.kv_heads) + " key-value heads (" + possible_ranks(model) + ")");
  }
  if (model.ffn_hidden % ranks != 0) refuse("--tp", found, "a divisor of ffn_hidden " + std::to_string(model.ffn_hidden));
}

static void check_ranks(const ModelSpec& model, const ParallelLayout& parallel) {
  check_range("--tp", parallel.tensor, kMostCount);
  const std::pair<const char*, std::int32_t> later[] = {{"--pp", parallel.pipeline}, {"--dp", parallel.data}, {"--cp", parallel.context}};
  for (const auto& [flag, ranks] : later) {
    check_range(flag, ranks, kMostCount);
    if (ranks != 1) refuse(flag, std::to_string(ranks), "1: not built yet");
  }
  check_tensor_ranks(model, parallel.tensor);
}

static void check_sequence(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  check_range("--sequence", training.sequence, kMostTokens);
  const std::string found = std::to_string(training.sequence);
  const bool table = model.position == Position::kLearned && !model.positions_follow_sequence;
  if (table && training.sequence > model.max_positions) {
    refuse("--sequence", found, "at most the " + std::to_string(model.max_positions) + " learned positions of " + model.name);
  }
  if (model.attention_window > 0 && training.sequence > model.attention_window) {
    refuse("--sequence", found,
           "at most the attention window of " + model.name + ", " + std::to_string(model.attention_window) + ": longer is not built yet");
  }
  if (parallel.sequence_parallel && training.sequence % parallel.tensor != 0) {
    refuse("--sequence", found, "a multiple of --tp " + std::to_string(parallel.tensor) + " with --sequence-parallel");
  }
}

static void check_batch(const TrainingRecipe& training, const ParallelLayout& parallel) {
  check_range("--micro-batch", training.micro_batch, kMostCount);
  check_range("--global-batch", training.global_batch, kMostCount);
  const std::int64_t together = training.micro_batch * parallel.data;
  if (training.global_batch % together != 0) {
    refuse("--global-batch", std::to_string(training.global_batch),
           "a multiple of " + std::to_string(together) + " (micro-batch " + std::to_string(training.micro_batch) + " x data-parallel " +
               std::to_string(parallel.data) + ")");
  }
}

// Tensors of all layers, at 16 bytes an element with four of each kind alive, stay below 2^62 bytes: no sum of sizes overflows.
static void check_size(const ModelSpec& model, const TrainingRecipe& training) {
  constexpr double kMostBytes = 4.6e18;  // 2^62
  const double tokens = static_cast<double>(training.sequence) * static_cast<double>(training.micro_batch);
  const double width = static_cast<double>(model.hidden + model.heads * model.head_dim + 2 * model.ffn_hidden);
  double elements = tokens * (width * static_cast<double>(model.layers) + static_cast<double>(model.vocab));
  if (training.attention == AttentionKind::kUnfused) {
    elements += tokens * static_cast<double>(training.sequence) * static_cast<double>(model.heads) * static_cast<double>(model.layers);
  }
  if (elements * 16 * 4 <= kMostBytes) return;
  const bool scores = training.attention == AttentionKind::kUnfused;
  refuse("--sequence", std::to_string(training.sequence),
         "a smaller one with --micro-batch " + std::to_string(training.micro_batch) + (scores ? " and --attention unfused" : "") +
             ": the activations of a step would pass 2^62 bytes");
}

void check_layout(const ModelSpec& model, const TrainingRecipe& training, const ParallelLayout& parallel) {
  STEPSIM_CHECK(!model_problem(model).has_value());
  check_ranks(model, parallel);
  check_sequence(model, training, parallel);
  check_batch(training, parallel);
  check_probability("--dropout", training.dropout);
  if (training.loss == LossKind::kChunked) check_range("--loss", training.loss_chunks, training.sequence * training.micro_batch);
  check_size(model, training);
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int32_t tensor) {
  STEPSIM_CHECK(vocab > 0);
  STEPSIM_CHECK(multiple > 0);
  STEPSIM_CHECK(tensor > 0);
  const std::int64_t step = multiple * tensor;
  return (vocab + step - 1) / step * step;
}

}  // namespace stepsim
