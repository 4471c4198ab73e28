#include "models/framework_fields.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "models/framework.pb.h"
#include "models/recipe_names.h"
#include "sim/check.h"

namespace stepsim {

namespace pb = google::protobuf;

namespace {

struct SwitchField {
  const char* name;
  bool FrameworkPreset::*member;
};
constexpr SwitchField kSwitches[] = {
    {"saves_norm_statistics", &FrameworkPreset::saves_norm_statistics},
    {"saves_softmax_statistics", &FrameworkPreset::saves_softmax_statistics},
    {"saves_dropout_masks", &FrameworkPreset::saves_dropout_masks},
    {"creates_attention_mask", &FrameworkPreset::creates_attention_mask},
    {"mask_per_sequence", &FrameworkPreset::mask_per_sequence},
    {"shares_attention_output", &FrameworkPreset::shares_attention_output},
    {"fused_softmax", &FrameworkPreset::fused_softmax},
    {"softmax_in_fp32", &FrameworkPreset::softmax_in_fp32},
    {"fused_bias_activation", &FrameworkPreset::fused_bias_activation},
    {"fused_bias_dropout_add", &FrameworkPreset::fused_bias_dropout_add},
    {"fused_rotary", &FrameworkPreset::fused_rotary},
    {"fused_gate_up", &FrameworkPreset::fused_gate_up},
    {"backward_all_reduce_overlaps_weight_gradient", &FrameworkPreset::backward_all_reduce_overlaps_weight_gradient},
    {"sequence_parallel_gather_again", &FrameworkPreset::sequence_parallel_gather_again},
    {"stops_after_last_saved", &FrameworkPreset::stops_after_last_saved},
    {"gradients_always_allocated", &FrameworkPreset::gradients_always_allocated},
    {"loss_in_place", &FrameworkPreset::loss_in_place},
    {"logits_fp32", &FrameworkPreset::logits_fp32},
    {"deallocates_pipeline_outputs", &FrameworkPreset::deallocates_pipeline_outputs},
    {"scatters_pipeline_messages", &FrameworkPreset::scatters_pipeline_messages},
    {"waits_after_exchange", &FrameworkPreset::waits_after_exchange},
    {"overlaps_gradient_reduce", &FrameworkPreset::overlaps_gradient_reduce},
    {"overlaps_weight_gather", &FrameworkPreset::overlaps_weight_gather},
    {"reduce_every_micro_batch", &FrameworkPreset::reduce_every_micro_batch},
    {"reshard_after_forward", &FrameworkPreset::reshard_after_forward},
    {"prefetch_forward", &FrameworkPreset::prefetch_forward},
    {"prefetch_backward", &FrameworkPreset::prefetch_backward},
    {"keeps_last_layer_gathered", &FrameworkPreset::keeps_last_layer_gathered},
    {"root_holds_ends", &FrameworkPreset::root_holds_ends},
    {"copies_out_of_gathers", &FrameworkPreset::copies_out_of_gathers},
    {"copies_pointer_tables", &FrameworkPreset::copies_pointer_tables},
    {"frees_gathers_by_event", &FrameworkPreset::frees_gathers_by_event},
    {"copies_updated_weights", &FrameworkPreset::copies_updated_weights},
    {"always_clips", &FrameworkPreset::always_clips},
    {"fused_optimizer", &FrameworkPreset::fused_optimizer},
    {"reads_gradient_norm", &FrameworkPreset::reads_gradient_norm},
    {"engine_workspace", &FrameworkPreset::engine_workspace},
    {"groups_expert_products", &FrameworkPreset::groups_expert_products},
    {"global_buffers", &FrameworkPreset::global_buffers},
    {"transformer_engine", &FrameworkPreset::transformer_engine},
    {"keeps_weight_shards", &FrameworkPreset::keeps_weight_shards},
    {"keeps_master_weights", &FrameworkPreset::keeps_master_weights},
    {"keeps_fp32_gradient_copies", &FrameworkPreset::keeps_fp32_gradient_copies},
    {"copies_expert_probabilities", &FrameworkPreset::copies_expert_probabilities},
    {"dummy_gradients", &FrameworkPreset::dummy_gradients},
    {"saves_quantised_inputs", &FrameworkPreset::saves_quantised_inputs},
    {"host_issue", &FrameworkPreset::host_issue},
    {"overlaps_expert_exchange", &FrameworkPreset::overlaps_expert_exchange},
    {"delays_weight_gradients", &FrameworkPreset::delays_weight_gradients},
    {"concatenates_gradients", &FrameworkPreset::concatenates_gradients},
    {"predivides_gradients", &FrameworkPreset::predivides_gradients},
    {"prefetches_after_backward", &FrameworkPreset::prefetches_after_backward},
    {"loops_over_parameters", &FrameworkPreset::loops_over_parameters},
    {"fused_expert_mlp", &FrameworkPreset::fused_expert_mlp},
    {"fused_permutation", &FrameworkPreset::fused_permutation},
    {"permutes_in_exchange", &FrameworkPreset::permutes_in_exchange},
    {"reads_expert_counts", &FrameworkPreset::reads_expert_counts},
    {"eager_expert_activation", &FrameworkPreset::eager_expert_activation},
    {"fused_qkv", &FrameworkPreset::fused_qkv},
    {"fused_norm", &FrameworkPreset::fused_norm},
    {"keeps_unread_products", &FrameworkPreset::keeps_unread_products},
    {"eager_loss", &FrameworkPreset::eager_loss},
    {"fused_loss_keeps_logits", &FrameworkPreset::fused_loss_keeps_logits},
    {"unpermutes_with_probabilities", &FrameworkPreset::unpermutes_with_probabilities},
    {"casts_norm_input", &FrameworkPreset::casts_norm_input},
    {"reruns_norms", &FrameworkPreset::reruns_norms},
    {"measures_accuracy", &FrameworkPreset::measures_accuracy},
    {"casts_output", &FrameworkPreset::casts_output},
    {"reduces_to_all", &FrameworkPreset::reduces_to_all},
    {"flattens_buckets", &FrameworkPreset::flattens_buckets},
    {"broadcasts_weights", &FrameworkPreset::broadcasts_weights},
    {"copies_token_shards", &FrameworkPreset::copies_token_shards},
    {"views_single_sequence", &FrameworkPreset::views_single_sequence},
};

constexpr std::int64_t kMostBucket = std::int64_t{1} << 40;  // parameters
constexpr std::int64_t kMostMultiple = 1 << 20;
constexpr std::int64_t kMostBuffers = 64;  // of one kind

// From `least` to `most` in steps of `step`; one of the two members is the field's.
struct NumberField {
  const char* name;
  std::int32_t FrameworkPreset::*narrow;
  std::int64_t FrameworkPreset::*wide;
  std::int64_t least, most, step;
  const char* wanted;
};
constexpr NumberField kNumbers[] = {
    {"flash_version", &FrameworkPreset::flash_version, nullptr, 1, 4, 1, "1, 2, 3 or 4"},
    {"gradient_bits", &FrameworkPreset::gradient_bits, nullptr, 16, 32, 16, "16 or 32"},
    {"vocab_multiple", nullptr, &FrameworkPreset::vocab_multiple, 1, kMostMultiple, 1, "a whole number from 1 to 1048576"},
    {"bucket_parameters", nullptr, &FrameworkPreset::bucket_parameters, 0, kMostBucket, 1, "a whole number from 0 to 2^40"},
    {"bucket_parameters_per_rank", nullptr, &FrameworkPreset::bucket_parameters_per_rank, 0, kMostBucket, 1,
     "a whole number from 0 to 2^40"},
    {"reduce_bits", &FrameworkPreset::reduce_bits, nullptr, 16, 32, 16, "16 or 32"},
    {"gather_limit", &FrameworkPreset::gather_limit, nullptr, 0, 1000, 1, "a number from 0 to 1000"},
    {"blas_handles", &FrameworkPreset::blas_handles, nullptr, 0, kMostBuffers, 1, "a whole number from 0 to 64"},
    {"pipeline_buffers", &FrameworkPreset::pipeline_buffers, nullptr, 0, kMostBuffers, 1, "a whole number from 0 to 64"},
    {"pipeline_buffers_interleaved", &FrameworkPreset::pipeline_buffers_interleaved, nullptr, 0, kMostBuffers, 1,
     "a whole number from 0 to 64"},
    {"pipeline_leftovers", &FrameworkPreset::pipeline_leftovers, nullptr, 0, kMostBuffers, 1, "a whole number from 0 to 64"},
    {"expert_streams", &FrameworkPreset::expert_streams, nullptr, 0, kMostBuffers, 1, "a whole number from 0 to 64"},
    {"loss_chunks", nullptr, &FrameworkPreset::loss_chunks, 1, kMostMultiple, 1, "a whole number from 1 to 1048576"},
    {"metric_passes", nullptr, &FrameworkPreset::metric_passes, 0, kMostBuffers, 1, "a whole number from 0 to 64"},
};

struct ChoiceField {
  const char* name;
  std::span<const std::string_view> names;
  void (*set)(FrameworkPreset&, std::size_t);
};
constexpr std::array<std::string_view, 3> kPointToPointNames = {"blocking", "batched", "overlapped"};  // by PointToPoint
const ChoiceField kChoices[] = {
    {"point_to_point", kPointToPointNames, [](FrameworkPreset& preset, std::size_t i) { preset.point_to_point = PointToPoint(i); }},
    {"point_to_point_interleaved", kPointToPointNames,
     [](FrameworkPreset& preset, std::size_t i) { preset.point_to_point_interleaved = PointToPoint(i); }},
    {"cuda_graph", kCudaGraphNames, [](FrameworkPreset& preset, std::size_t i) { preset.cuda_graph = CudaGraph(i); }},
    {"attention", kAttentionNames, [](FrameworkPreset& preset, std::size_t i) { preset.attention = AttentionKind(i); }},
    {"loss", kLossNames, [](FrameworkPreset& preset, std::size_t i) { preset.loss = LossKind(i); }},
    {"dispatcher", kDispatcherNames, [](FrameworkPreset& preset, std::size_t i) { preset.dispatcher = Dispatcher(i); }},
    {"context_exchange", kContextExchangeNames,
     [](FrameworkPreset& preset, std::size_t i) { preset.context_exchange = ContextExchange(i); }},
    {"tensor_overlap", kTensorOverlapNames, [](FrameworkPreset& preset, std::size_t i) { preset.tensor_overlap = TensorOverlap(i); }},
};

const pb::FieldDescriptor& field_of(const files::Framework& message, const char* name) {
  const pb::FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  STEPSIM_CHECK(field != nullptr);
  return *field;
}

bool has(const files::Framework& message, const char* name) { return message.GetReflection()->HasField(message, &field_of(message, name)); }

std::int64_t number_in(const files::Framework& message, const NumberField& number) {
  const pb::FieldDescriptor& field = field_of(message, number.name);
  const pb::Reflection& reflection = *message.GetReflection();
  return number.narrow != nullptr ? reflection.GetInt32(message, &field) : reflection.GetInt64(message, &field);
}

std::string text_in(const files::Framework& message, const char* name) {
  return message.GetReflection()->GetString(message, &field_of(message, name));
}

// "blocking, batched or overlapped"
std::string either(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ").append(names[i]);
  }
  return text;
}

void check_stored(const files::Framework& message, const PlaceOfField& place) {
  for (int i = 0; i < message.stored_size(); ++i) {
    const files::StoredFormat& format = message.stored(i);
    const std::string at = "stored[" + std::to_string(i) + "].";
    if (format.bits() < 4 || format.bits() > 16) {
      throw InputError(place(at + "bits"), "found bits " + std::to_string(format.bits()) + ", wanted a number from 4 to 16");
    }
    if (format.block() < 0 || format.block() > kMostMultiple) {
      throw InputError(place(at + "block"), "found block " + std::to_string(format.block()) + ", wanted a whole number from 0 to 1048576");
    }
  }
}

}  // namespace

void check_framework_fields(const files::Framework& message, const PlaceOfField& place) {
  for (const NumberField& number : kNumbers) {
    if (!has(message, number.name)) continue;
    const std::int64_t found = number_in(message, number);
    if (found >= number.least && found <= number.most && (found - number.least) % number.step == 0) continue;
    throw InputError(place(number.name), std::string("found ") + number.name + " " + std::to_string(found) + ", wanted " + number.wanted);
  }
  for (const ChoiceField& choice : kChoices) {
    if (!has(message, choice.name)) continue;
    const std::string found = text_in(message, choice.name);
    if (std::find(choice.names.begin(), choice.names.end(), found) != choice.names.end()) continue;
    throw InputError(place(choice.name), std::string("found ") + choice.name + " \"" + found + "\", wanted " + either(choice.names));
  }
  check_stored(message, place);
}

std::string missing_framework_field(const files::Framework& message) {
  for (const SwitchField& field : kSwitches) {
    if (!has(message, field.name)) return field.name;
  }
  for (const NumberField& field : kNumbers) {
    if (!has(message, field.name)) return field.name;
  }
  for (const ChoiceField& field : kChoices) {
    if (!has(message, field.name)) return field.name;
  }
  return "";
}

FrameworkPreset preset_of_fields(const files::Framework& message) {
  FrameworkPreset preset;
  preset.name = message.name();
  preset.version = message.version();
  preset.source = message.source();
  for (const SwitchField& field : kSwitches) {
    preset.*field.member = message.GetReflection()->GetBool(message, &field_of(message, field.name));
  }
  for (const NumberField& field : kNumbers) {
    const std::int64_t value = number_in(message, field);
    if (field.narrow != nullptr) {
      preset.*field.narrow = static_cast<std::int32_t>(value);
    } else {
      preset.*field.wide = value;
    }
  }
  for (const ChoiceField& field : kChoices) {
    const auto found = std::find(field.names.begin(), field.names.end(), text_in(message, field.name));
    STEPSIM_CHECK(found != field.names.end());
    field.set(preset, static_cast<std::size_t>(found - field.names.begin()));
  }
  for (const files::StoredFormat& format : message.stored()) {
    preset.stored.push_back({.slot = format.slot(), .bits = format.bits(), .block = format.block()});
  }
  return preset;
}

}  // namespace stepsim
