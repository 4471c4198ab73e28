#include "models/framework_preset.h"

#include <algorithm>
#include <span>

#include "models/framework.pb.h"
#include "schema/embedded_files.h"
#include "schema/nearest_name.h"
#include "schema/read_message.h"
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
      {"host_issue", message.has_host_issue()}};
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
  return preset;
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
