#include "models/framework_preset.h"

#include <algorithm>
#include <span>

#include "models/framework.pb.h"
#include "models/resident_storages.h"
#include "models/template_builder.h"
#include "models/training_recipe.h"
#include "schema/embedded_files.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
#include "sim/check.h"
#include "sim/input_error.h"

namespace stepsim {

std::span<const EmbeddedFile> framework_files();  // written by stepsim_embed()

static void require_fields(const files::Framework& message, const std::string& file) {
  const std::pair<const char*, bool> required[] = {
      {"name", !message.name().empty()},
      {"version", !message.version().empty()},
      {"saves_norm_statistics", message.has_saves_norm_statistics()},
      {"saves_softmax_statistics", message.has_saves_softmax_statistics()},
      {"saves_dropout_masks", message.has_saves_dropout_masks()},
      {"shares_attention_output", message.has_shares_attention_output()},
      {"fused_softmax", message.has_fused_softmax()},
      {"fused_bias_activation", message.has_fused_bias_activation()},
      {"fused_bias_dropout_add", message.has_fused_bias_dropout_add()},
      {"fused_rotary", message.has_fused_rotary()},
      {"fused_gate_up", message.has_fused_gate_up()},
      {"flash_version", message.has_flash_version()},
      {"backward_all_reduce_overlaps_weight_gradient", message.has_backward_all_reduce_overlaps_weight_gradient()},
      {"sequence_parallel_gather_again", message.has_sequence_parallel_gather_again()},
      {"stops_after_last_saved", message.has_stops_after_last_saved()},
      {"gradient_bits", message.has_gradient_bits()},
      {"gradients_always_allocated", message.has_gradients_always_allocated()},
      {"vocab_multiple", message.has_vocab_multiple()},
      {"loss_in_place", message.has_loss_in_place()},
      {"logits_fp32", message.has_logits_fp32()},
      {"host_issue", message.has_host_issue()},
      {"point_to_point", message.has_point_to_point()},
      {"point_to_point_interleaved", message.has_point_to_point_interleaved()},
      {"deallocates_pipeline_outputs", message.has_deallocates_pipeline_outputs()},
      {"scatters_pipeline_messages", message.has_scatters_pipeline_messages()},
      {"waits_after_exchange", message.has_waits_after_exchange()},
      {"overlaps_gradient_reduce", message.has_overlaps_gradient_reduce()},
      {"overlaps_weight_gather", message.has_overlaps_weight_gather()},
      {"bucket_parameters", message.has_bucket_parameters()},
      {"bucket_parameters_per_rank", message.has_bucket_parameters_per_rank()},
      {"reduce_bits", message.has_reduce_bits()},
      {"reduce_every_micro_batch", message.has_reduce_every_micro_batch()},
      {"reshard_after_forward", message.has_reshard_after_forward()},
      {"prefetch_forward", message.has_prefetch_forward()},
      {"prefetch_backward", message.has_prefetch_backward()},
      {"gather_limit", message.has_gather_limit()},
      {"copies_out_of_gathers", message.has_copies_out_of_gathers()},
      {"copies_pointer_tables", message.has_copies_pointer_tables()},
      {"frees_gathers_by_event", message.has_frees_gathers_by_event()},
      {"copies_updated_weights", message.has_copies_updated_weights()},
      {"always_clips", message.has_always_clips()},
      {"fused_optimizer", message.has_fused_optimizer()},
      {"reads_gradient_norm", message.has_reads_gradient_norm()},
      {"creates_attention_mask", message.has_creates_attention_mask()},
      {"mask_per_sequence", message.has_mask_per_sequence()},
      {"keeps_last_layer_gathered", message.has_keeps_last_layer_gathered()},
      {"root_holds_ends", message.has_root_holds_ends()},
      {"blas_handles", message.has_blas_handles()},
      {"engine_workspace", message.has_engine_workspace()},
      {"global_buffers", message.has_global_buffers()},
      {"transformer_engine", message.has_transformer_engine()},
      {"pipeline_buffers", message.has_pipeline_buffers()},
      {"pipeline_buffers_interleaved", message.has_pipeline_buffers_interleaved()},
      {"pipeline_leftovers", message.has_pipeline_leftovers()},
      {"keeps_weight_shards", message.has_keeps_weight_shards()},
      {"keeps_master_weights", message.has_keeps_master_weights()},
      {"keeps_fp32_gradient_copies", message.has_keeps_fp32_gradient_copies()},
      {"copies_expert_probabilities", message.has_copies_expert_probabilities()},
      {"saves_quantised_inputs", message.has_saves_quantised_inputs()},
      {"fused_qkv", message.has_fused_qkv()},
      {"fused_norm", message.has_fused_norm()},
      {"eager_loss", message.has_eager_loss()},
      {"fused_loss_keeps_logits", message.has_fused_loss_keeps_logits()},
      {"unpermutes_with_probabilities", message.has_unpermutes_with_probabilities()},
      {"dummy_gradients", message.has_dummy_gradients()},
      {"keeps_unread_products", message.has_keeps_unread_products()}};
  for (const auto& [field, present] : required) {
    if (!present) throw InputError({file, 1, 1}, std::string("found no ") + field + ", wanted a framework with it");
  }
}

static void check_values(const files::Framework& message, const std::string& text, const std::string& file) {
  const auto refuse = [&](const char* field, std::int64_t found, const char* wanted) {
    throw InputError(locate_field(text, file, field), std::string("found ") + field + " " + std::to_string(found) + ", wanted " + wanted);
  };
  if (message.flash_version() != 2 && message.flash_version() != 3) refuse("flash_version", message.flash_version(), "2 or 3");
  if (message.gradient_bits() != 16 && message.gradient_bits() != 32) refuse("gradient_bits", message.gradient_bits(), "16 or 32");
  constexpr std::int64_t kMostMultiple = 1 << 20;
  if (message.vocab_multiple() < 1 || message.vocab_multiple() > kMostMultiple) {
    refuse("vocab_multiple", message.vocab_multiple(), "a whole number from 1 to 1048576");
  }
  constexpr std::int64_t kMostBucket = std::int64_t{1} << 40;  // parameters
  for (const auto& [field, value] : {std::pair("bucket_parameters", message.bucket_parameters()),
                                     std::pair("bucket_parameters_per_rank", message.bucket_parameters_per_rank())}) {
    if (value < 0 || value > kMostBucket) refuse(field, value, "a whole number from 0 to 2^40");
  }
  for (const files::StoredFormat& format : message.stored()) {
    if (format.bits() < 4 || format.bits() > 16) refuse("bits", format.bits(), "a number from 4 to 16");
    if (format.block() < 0 || format.block() > kMostMultiple) refuse("block", format.block(), "a whole number from 0 to 1048576");
  }
  if (message.reduce_bits() != 16 && message.reduce_bits() != 32) refuse("reduce_bits", message.reduce_bits(), "16 or 32");
  if (message.gather_limit() < 0 || message.gather_limit() > 1000)
    refuse("gather_limit", message.gather_limit(), "a number from 0 to 1000");
  constexpr std::int32_t kMostBuffers = 64;  // of one kind
  for (const auto& [field, value] :
       {std::pair("blas_handles", message.blas_handles()), std::pair("pipeline_buffers", message.pipeline_buffers()),
        std::pair("pipeline_buffers_interleaved", message.pipeline_buffers_interleaved()),
        std::pair("pipeline_leftovers", message.pipeline_leftovers())}) {
    if (value < 0 || value > kMostBuffers) refuse(field, value, "a whole number from 0 to 64");
  }
}

static PointToPoint parse_point_to_point(const std::string& value, const char* field, const std::string& text, const std::string& file) {
  for (const PointToPoint each : {PointToPoint::kBlocking, PointToPoint::kBatched, PointToPoint::kOverlapped}) {
    if (value == point_to_point_name(each)) return each;
  }
  throw InputError(locate_field(text, file, field),
                   "found " + std::string(field) + " \"" + value + "\", wanted blocking, batched or overlapped");
}

static void read_kernels(const files::Framework& message, FrameworkPreset& preset) {
  preset.fused_qkv = message.fused_qkv();
  preset.fused_norm = message.fused_norm();
  preset.eager_loss = message.eager_loss();
  preset.fused_loss_keeps_logits = message.fused_loss_keeps_logits();
  preset.unpermutes_with_probabilities = message.unpermutes_with_probabilities();
  preset.dummy_gradients = message.dummy_gradients();
  preset.keeps_unread_products = message.keeps_unread_products();
  for (const files::StoredFormat& format : message.stored()) {
    preset.stored.push_back({.slot = format.slot(), .bits = format.bits(), .block = format.block()});
  }
}

static void read_memory(const files::Framework& message, FrameworkPreset& preset) {
  preset.blas_handles = message.blas_handles();
  preset.engine_workspace = message.engine_workspace();
  preset.global_buffers = message.global_buffers();
  preset.transformer_engine = message.transformer_engine();
  preset.pipeline_buffers = message.pipeline_buffers();
  preset.pipeline_buffers_interleaved = message.pipeline_buffers_interleaved();
  preset.pipeline_leftovers = message.pipeline_leftovers();
  preset.keeps_weight_shards = message.keeps_weight_shards();
  preset.keeps_master_weights = message.keeps_master_weights();
  preset.keeps_fp32_gradient_copies = message.keeps_fp32_gradient_copies();
  preset.copies_expert_probabilities = message.copies_expert_probabilities();
  preset.saves_quantised_inputs = message.saves_quantised_inputs();
}

FrameworkPreset parse_framework(const std::string& text, const std::string& file) {
  files::Framework message;
  read_message(text, file, message);
  require_fields(message, file);
  check_values(message, text, file);
  FrameworkPreset preset;
  preset.name = message.name();
  preset.version = message.version();
  preset.source = message.source().empty() ? file : message.source();
  preset.saves_norm_statistics = message.saves_norm_statistics();
  preset.saves_softmax_statistics = message.saves_softmax_statistics();
  preset.saves_dropout_masks = message.saves_dropout_masks();
  preset.shares_attention_output = message.shares_attention_output();
  preset.fused_softmax = message.fused_softmax();
  preset.fused_bias_activation = message.fused_bias_activation();
  preset.fused_bias_dropout_add = message.fused_bias_dropout_add();
  preset.fused_rotary = message.fused_rotary();
  preset.fused_gate_up = message.fused_gate_up();
  preset.flash_version = message.flash_version();
  preset.backward_all_reduce_overlaps_weight_gradient = message.backward_all_reduce_overlaps_weight_gradient();
  preset.sequence_parallel_gather_again = message.sequence_parallel_gather_again();
  preset.stops_after_last_saved = message.stops_after_last_saved();
  preset.gradient_bits = message.gradient_bits();
  preset.gradients_always_allocated = message.gradients_always_allocated();
  preset.vocab_multiple = message.vocab_multiple();
  preset.loss_in_place = message.loss_in_place();
  preset.logits_fp32 = message.logits_fp32();
  preset.host_issue = message.host_issue();
  preset.point_to_point = parse_point_to_point(message.point_to_point(), "point_to_point", text, file);
  preset.point_to_point_interleaved = parse_point_to_point(message.point_to_point_interleaved(), "point_to_point_interleaved", text, file);
  preset.deallocates_pipeline_outputs = message.deallocates_pipeline_outputs();
  preset.scatters_pipeline_messages = message.scatters_pipeline_messages();
  preset.waits_after_exchange = message.waits_after_exchange();
  preset.overlaps_gradient_reduce = message.overlaps_gradient_reduce();
  preset.overlaps_weight_gather = message.overlaps_weight_gather();
  preset.bucket_parameters = message.bucket_parameters();
  preset.bucket_parameters_per_rank = message.bucket_parameters_per_rank();
  preset.reduce_bits = message.reduce_bits();
  preset.reduce_every_micro_batch = message.reduce_every_micro_batch();
  preset.reshard_after_forward = message.reshard_after_forward();
  preset.prefetch_forward = message.prefetch_forward();
  preset.prefetch_backward = message.prefetch_backward();
  preset.gather_limit = message.gather_limit();
  preset.copies_out_of_gathers = message.copies_out_of_gathers();
  preset.copies_pointer_tables = message.copies_pointer_tables();
  preset.frees_gathers_by_event = message.frees_gathers_by_event();
  preset.copies_updated_weights = message.copies_updated_weights();
  preset.always_clips = message.always_clips();
  preset.fused_optimizer = message.fused_optimizer();
  preset.reads_gradient_norm = message.reads_gradient_norm();
  preset.creates_attention_mask = message.creates_attention_mask();
  preset.mask_per_sequence = message.mask_per_sequence();
  preset.keeps_last_layer_gathered = message.keeps_last_layer_gathered();
  preset.root_holds_ends = message.root_holds_ends();
  read_memory(message, preset);
  read_kernels(message, preset);
  return preset;
}

static PointToPoint preset_point_to_point(const ParallelLayout& parallel, const FrameworkPreset& framework) {
  switch (parallel.schedule) {
    case PipelineKind::kGPipe:
    case PipelineKind::k1F1B:
      return framework.point_to_point;
    case PipelineKind::kInterleaved:
      return framework.point_to_point_interleaved;
    case PipelineKind::kZbH1:
      return PointToPoint::kOverlapped;  // sail-sg/zero-bubble-pipeline-parallelism: sends and receives beside compute
  }
  check_failed("pipeline kind", __FILE__, __LINE__);
}

ParallelLayout with_preset(const ParallelLayout& given, const TrainingRecipe& training, const FrameworkPreset& framework) {
  ParallelLayout parallel = given;
  const auto decide = [](auto& value, auto preset) {
    if (!value) value = preset;
  };
  decide(parallel.point_to_point, preset_point_to_point(parallel, framework));
  decide(parallel.deallocate_outputs, framework.deallocates_pipeline_outputs);
  decide(parallel.overlap_gradient_reduce, framework.overlaps_gradient_reduce);
  decide(parallel.overlap_weight_gather, framework.overlaps_weight_gather);
  const DType own = framework.reduce_bits == 32 ? DType::kFp32 : compute_dtype(training.precision);
  decide(parallel.reduce_dtype, parallel.zero >= 2 ? own : *with_gradient_dtype(training, parallel, framework).gradient_dtype);
  const std::int64_t per_rank = framework.bucket_parameters_per_rank * parallel.replicas();
  const std::int64_t parameters = framework.bucket_parameters == 0 ? 0 : std::max(framework.bucket_parameters, per_rank);
  decide(parallel.bucket, size_of(parameters, *parallel.reduce_dtype));
  decide(parallel.reduce_every_micro_batch, framework.reduce_every_micro_batch);
  decide(parallel.reshard_after_forward, framework.reshard_after_forward);
  decide(parallel.prefetch_forward, framework.prefetch_forward);
  decide(parallel.prefetch_backward, framework.prefetch_backward);
  decide(parallel.gather_limit, framework.gather_limit);
  return parallel;
}

std::vector<std::string> framework_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : framework_files()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

FrameworkPreset load_framework(const std::string& name_at_version) {
  const bool any_version = name_at_version.find('@') == std::string::npos;
  const EmbeddedFile* newest = nullptr;  // versions are years, then months: the text order is the order of time
  for (const EmbeddedFile& file : framework_files()) {
    const std::string_view name = any_version ? file.name.substr(0, file.name.find('@')) : file.name;
    if (name == name_at_version && (newest == nullptr || newest->name < file.name)) newest = &file;
  }
  if (newest != nullptr) return parse_framework(std::string(newest->text), std::string(newest->path));
  std::vector<std::string> names = framework_names();
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  for (std::size_t i = names.size(); i-- > 0;) names.push_back(names[i].substr(0, names[i].find('@')));
  throw InputError({"--framework"}, "found \"" + name_at_version + "\", wanted one of " + all + suggestion(name_at_version, names));
}

}  // namespace stepsim
