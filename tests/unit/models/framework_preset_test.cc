#include "models/framework_preset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A catalog file with `from` replaced.
std::string core_with(const std::string& from, const std::string& to) {
  std::ifstream file(STEPSIM_SOURCE_DIR "/models/data/frameworks/megatron-core@2025.textproto");
  std::stringstream text;
  text << file.rdbuf();
  std::string changed = text.str();
  EXPECT_NE(changed.find(from), std::string::npos);
  return changed.replace(changed.find(from), from.size(), to);
}

std::string error_with(const std::string& from, const std::string& to) {
  return error_of([&] { parse_framework(core_with(from, to), "f.textproto"); });
}

TEST(FrameworkPreset, ListsVersions) {
  EXPECT_THAT(framework_names(), ElementsAre("megatron-core@2025", "megatron-core@2026", "megatron-lm@2022-05", "pytorch-fsdp@2023",
                                             "torchtitan-compiled@2024-12", "torchtitan-compiled@2026", "torchtitan@2024-12",
                                             "torchtitan@2026", "torchtune@2025", "transformers@2025"));
}

// 2205.05198: no statistics, masks kept, backward all-reduce hidden behind the weight gradient, fp32 main gradients.
TEST(FrameworkPreset, PaperAccounting) {
  const FrameworkPreset preset = load_framework("megatron-lm@2022-05");
  EXPECT_EQ(preset.name, "megatron-lm");
  EXPECT_EQ(preset.version, "2022-05");
  EXPECT_FALSE(preset.saves_norm_statistics);
  EXPECT_FALSE(preset.saves_softmax_statistics);
  EXPECT_TRUE(preset.saves_dropout_masks);
  EXPECT_TRUE(preset.backward_all_reduce_overlaps_weight_gradient);
  EXPECT_FALSE(preset.fused_rotary);
  EXPECT_EQ(preset.gradient_bits, 32);
  EXPECT_EQ(preset.vocab_multiple, 128);
}

TEST(FrameworkPreset, NewestVersionWithoutAt) {
  const FrameworkPreset preset = load_framework("megatron-core");
  EXPECT_EQ(preset.version, "2026");
  EXPECT_TRUE(preset.saves_norm_statistics);
  EXPECT_TRUE(preset.saves_softmax_statistics);
  EXPECT_TRUE(preset.fused_rotary);
  EXPECT_EQ(preset.flash_version, 3);
  EXPECT_FALSE(preset.source.empty());
}

TEST(FrameworkPreset, EveryFieldReachesThePreset) {
  // Each switch of the file, reversed, shows in the preset.
  const std::pair<std::string, bool FrameworkPreset::*> switches[] = {
      {"saves_norm_statistics", &FrameworkPreset::saves_norm_statistics},
      {"saves_softmax_statistics", &FrameworkPreset::saves_softmax_statistics},
      {"saves_dropout_masks", &FrameworkPreset::saves_dropout_masks},
      {"fused_softmax", &FrameworkPreset::fused_softmax},
      {"fused_bias_activation", &FrameworkPreset::fused_bias_activation},
      {"fused_bias_dropout_add", &FrameworkPreset::fused_bias_dropout_add},
      {"fused_rotary", &FrameworkPreset::fused_rotary},
      {"fused_gate_up", &FrameworkPreset::fused_gate_up},
      {"backward_all_reduce_overlaps_weight_gradient", &FrameworkPreset::backward_all_reduce_overlaps_weight_gradient},
      {"sequence_parallel_gather_again", &FrameworkPreset::sequence_parallel_gather_again},
      {"gradients_always_allocated", &FrameworkPreset::gradients_always_allocated},
      {"loss_in_place", &FrameworkPreset::loss_in_place},
      {"logits_fp32", &FrameworkPreset::logits_fp32},
      {"host_issue", &FrameworkPreset::host_issue},
      {"engine_workspace", &FrameworkPreset::engine_workspace},
      {"global_buffers", &FrameworkPreset::global_buffers},
      {"transformer_engine", &FrameworkPreset::transformer_engine},
      {"keeps_weight_shards", &FrameworkPreset::keeps_weight_shards},
      {"keeps_master_weights", &FrameworkPreset::keeps_master_weights},
      {"keeps_fp32_gradient_copies", &FrameworkPreset::keeps_fp32_gradient_copies},
      {"copies_expert_probabilities", &FrameworkPreset::copies_expert_probabilities},
      {"saves_quantised_inputs", &FrameworkPreset::saves_quantised_inputs},
      {"fused_qkv", &FrameworkPreset::fused_qkv},
      {"fused_norm", &FrameworkPreset::fused_norm}};
  for (const auto& [name, field] : switches) {
    EXPECT_TRUE(load_framework("megatron-core@2025").*field) << name;
    EXPECT_FALSE(parse_framework(core_with(name + ": true", name + ": false"), "f").*field) << name;
  }
  EXPECT_TRUE(parse_framework(core_with("shares_attention_output: false", "shares_attention_output: true"), "f").shares_attention_output);
  EXPECT_TRUE(parse_framework(core_with("stops_after_last_saved: false", "stops_after_last_saved: true"), "f").stops_after_last_saved);
  EXPECT_EQ(parse_framework(core_with("flash_version: 3", "flash_version: 2"), "f").flash_version, 2);
  EXPECT_EQ(parse_framework(core_with("gradient_bits: 32", "gradient_bits: 16"), "f").gradient_bits, 16);
  EXPECT_EQ(parse_framework(core_with("vocab_multiple: 128", "vocab_multiple: 64"), "f").vocab_multiple, 64);
  EXPECT_EQ(parse_framework(core_with("blas_handles: 2", "blas_handles: 1"), "f").blas_handles, 1);
  EXPECT_EQ(parse_framework(core_with("pipeline_buffers: 2", "pipeline_buffers: 4"), "f").pipeline_buffers, 4);
  EXPECT_EQ(
      parse_framework(core_with("pipeline_buffers_interleaved: 3", "pipeline_buffers_interleaved: 4"), "f").pipeline_buffers_interleaved,
      4);
  EXPECT_EQ(parse_framework(core_with("pipeline_leftovers: 2", "pipeline_leftovers: 0"), "f").pipeline_leftovers, 0);
}

TEST(FrameworkPreset, NamesTheNearest) {
  EXPECT_EQ(
      error_of([] { load_framework("megatron-lm@2022-5"); }),
      "--framework: found \"megatron-lm@2022-5\", wanted one of megatron-core@2025, megatron-core@2026, megatron-lm@2022-05, "
      "pytorch-fsdp@2023, torchtitan-compiled@2024-12, torchtitan-compiled@2026, torchtitan@2024-12, torchtitan@2026, torchtune@2025, "
      "transformers@2025, did you mean \"megatron-lm@2022-05\"?");
  EXPECT_THAT(error_of([] { load_framework("megatron-cor"); }), HasSubstr("did you mean \"megatron-core\"?"));
  EXPECT_THAT(error_of([] { load_framework("megatron-core@2024-xx-unknown"); }), HasSubstr("--framework: found"));
  EXPECT_THAT(error_of([] { load_framework(""); }), HasSubstr("--framework: found \"\", wanted one of"));
}

TEST(FrameworkPreset, LocatesMistakes) {
  EXPECT_EQ(error_with("host_issue: true", ""), "f.textproto:1:1: found no host_issue, wanted a framework with it");
  EXPECT_THAT(error_with("flash_version: 3", "flash_version: 4"), HasSubstr(": found flash_version 4, wanted 2 or 3"));
  EXPECT_THAT(error_with("blas_handles: 2", "blas_handles: 65"), HasSubstr(": found blas_handles 65, wanted a whole number from 0 to 64"));
  EXPECT_THAT(error_with("pipeline_leftovers: 2", ""), HasSubstr("found no pipeline_leftovers"));
  EXPECT_THAT(error_with("gradient_bits: 32", "gradient_bits: 8"), HasSubstr(": found gradient_bits 8, wanted 16 or 32"));
  EXPECT_THAT(error_with("vocab_multiple: 128", "vocab_multiple: 0"), HasSubstr(": found vocab_multiple 0, wanted a whole number from 1"));
  EXPECT_THAT(error_with("fused_softmax", "fused_sotfmax"), HasSubstr("\"fused_softmax\""));
}

}  // namespace
}  // namespace stepsim
