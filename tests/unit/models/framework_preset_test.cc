#include "models/framework_preset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "models/framework_catalog.h"
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
  EXPECT_THAT(framework_names(),
              ElementsAre("accelerate@2025", "automodel@2025", "axolotl@2025", "deepspeed@2023", "fms-fsdp@2024", "hf-eager@2024",
                          "internevo@2024", "litgpt@2024", "llm-foundry-te@2023-10", "llm-foundry@2023-05", "llm-foundry@2023-10",
                          "llm-foundry@2024-01", "megatron-bridge@25.09", "megatron-bridge@25.11", "megatron-bridge@26.02",
                          "megatron-bridge@26.04", "megatron-bridge@26.06", "megatron-bridge@26.08", "megatron-core@2025",
                          "megatron-core@2026", "megatron-deepspeed@2021", "megatron-lm@2022-05", "megatron-simumax@2026-01", "nemo@24.07",
                          "prime-rl@2025", "pytorch-fsdp@2023", "stepsim-kernels@1", "torchtitan-compiled@2024-12", "torchtitan-compiled@2026",
                          "torchtitan@2024-04", "torchtitan@2024-08", "torchtitan@2024-12", "torchtitan@2025-09", "torchtitan@2025-11",
                          "torchtitan@2026", "torchtitan@2026-06", "torchtune@2025", "transformers@2025"));
}

TEST(FrameworkPreset, SaysWhereItIsFrom) {
  for (const std::string& name : framework_names()) EXPECT_GE(load_framework(name).source.size(), 20u) << name;
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

std::string value_of(const DescribedFramework& framework, const std::string& field) {
  for (const FrameworkField& each : framework.fields) {
    if (each.name == field) return each.value;
  }
  return "none";
}

using Override = std::pair<std::string, std::string>;

// All members of two presets that differ, as bytes: one change of the file changes one member.
template <class T>
bool differ(const FrameworkPreset& a, const FrameworkPreset& b, T FrameworkPreset::*member) {
  return a.*member != b.*member;
}

TEST(FrameworkPreset, EverySwitchReachesThePreset) {
  const std::pair<const char*, bool FrameworkPreset::*> switches[] = {
      {"saves_norm_statistics", &FrameworkPreset::saves_norm_statistics},
      {"permutes_in_exchange", &FrameworkPreset::permutes_in_exchange},
      {"reads_expert_counts", &FrameworkPreset::reads_expert_counts},
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
  const DescribedFramework usual = describe_framework("megatron-core@2025");
  std::size_t found = 0;
  for (const FrameworkField& field : usual.fields) found += field.value == "true" || field.value == "false";
  EXPECT_EQ(found, std::size(switches));  // each of the file
  for (const auto& [name, member] : switches) {
    const bool value = usual.preset.*member;
    EXPECT_EQ(value_of(usual, name), value ? "true" : "false") << name;
    const std::vector<Override> reversed = {{name, value ? "false" : "true"}};
    const FrameworkPreset changed = describe_framework("megatron-core@2025", reversed).preset;
    for (const auto& [other, each] : switches) {
      EXPECT_EQ(differ(usual.preset, changed, each), std::string(other) == name) << name << " " << other;
    }
  }
}

TEST(FrameworkPreset, EveryNumberAndChoiceReachesThePreset) {
  const auto with = [](const std::string& field, const std::string& value) {
    const std::vector<Override> override = {{field, value}};
    return describe_framework("megatron-core@2025", override).preset;
  };
  EXPECT_EQ(with("flash_version", "1").flash_version, 1);
  EXPECT_EQ(with("gradient_bits", "16").gradient_bits, 16);
  EXPECT_EQ(with("vocab_multiple", "64").vocab_multiple, 64);
  EXPECT_EQ(with("bucket_parameters", "7").bucket_parameters, 7);
  EXPECT_EQ(with("bucket_parameters_per_rank", "8").bucket_parameters_per_rank, 8);
  EXPECT_EQ(with("reduce_bits", "16").reduce_bits, 16);
  EXPECT_EQ(with("gather_limit", "9").gather_limit, 9);
  EXPECT_EQ(with("blas_handles", "1").blas_handles, 1);
  EXPECT_EQ(with("pipeline_buffers", "4").pipeline_buffers, 4);
  EXPECT_EQ(with("pipeline_buffers_interleaved", "5").pipeline_buffers_interleaved, 5);
  EXPECT_EQ(with("pipeline_leftovers", "0").pipeline_leftovers, 0);
  EXPECT_EQ(with("loss_chunks", "8").loss_chunks, 8);
  EXPECT_EQ(with("metric_passes", "2").metric_passes, 2);
  EXPECT_EQ(with("point_to_point", "blocking").point_to_point, PointToPoint::kBlocking);
  EXPECT_EQ(with("point_to_point_interleaved", "batched").point_to_point_interleaved, PointToPoint::kBatched);
  EXPECT_EQ(with("cuda_graph", "full").cuda_graph, CudaGraph::kFull);
  EXPECT_EQ(with("attention", "fused").attention, AttentionKind::kFused);
  EXPECT_EQ(with("loss", "chunked").loss, LossKind::kChunked);
  EXPECT_EQ(with("dispatcher", "hybridep").dispatcher, Dispatcher::kHybridEp);
  EXPECT_EQ(with("context_exchange", "alltoall").context_exchange, ContextExchange::kAllToAll);
  EXPECT_EQ(with("tensor_overlap", "ring").tensor_overlap, TensorOverlap::kRing);
  const std::vector<Override> format = {{"stored[0].slot", "attention output"}, {"stored[0].bits", "8"}};  // replaces the preset's list
  const FrameworkPreset stored = describe_framework("megatron-core@2025", format).preset;
  ASSERT_EQ(stored.stored.size(), 1u);
  EXPECT_EQ(stored.stored[0].slot, "attention output");
  EXPECT_EQ(stored.stored[0].bits, 8);
}

TEST(FrameworkPreset, ABaseSaysWhatTheFileDoesNot) {
  const std::string text = R"(name: "mine" version: "1" base: "megatron-core@2026" gradient_bits: 16)";
  const FrameworkPreset mine = parse_framework(text, "f"), base = load_framework("megatron-core@2026");
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.gradient_bits, 16);
  EXPECT_EQ(base.gradient_bits, 32);
  EXPECT_TRUE(mine.dummy_gradients);    // of megatron-core@2026
  EXPECT_EQ(mine.vocab_multiple, 128);  // of its base megatron-core@2025
  EXPECT_EQ(mine.source, "f");          // not the base's
  const DescribedFramework bridge = describe_framework("megatron-bridge@26.06");
  const auto said_by = [&](const std::string& field) {
    for (const FrameworkField& each : bridge.fields) {
      if (each.name == field) return each.said_by;
    }
    return std::string();
  };
  EXPECT_EQ(said_by("cuda_graph"), "megatron-bridge@26.06");
  EXPECT_EQ(said_by("dispatcher"), "megatron-bridge@25.11");
  EXPECT_EQ(said_by("gradient_bits"), "megatron-bridge@25.09");
  EXPECT_EQ(said_by("dummy_gradients"), "megatron-core@2026");
  EXPECT_EQ(said_by("vocab_multiple"), "megatron-core@2025");
}

TEST(FrameworkPreset, RefusesBasesThatLeadNowhere) {
  const auto refused = [](const std::string& text) { return error_of([&] { parse_framework(text, "f"); }); };
  EXPECT_EQ(refused("name: \"mine\"\nversion: \"1\"\nbase: \"megatron-core@2062\""),
            "f:3:1: found base \"megatron-core@2062\", wanted NAME@VERSION of the catalog, did you mean \"megatron-core@2026\"?");
  EXPECT_EQ(refused("name: \"nemo\" version: \"24.07\" base: \"nemo@24.07\""),
            "f:1:31: found base \"nemo@24.07\", which is based on nemo@24.07 itself, wanted another one");
  EXPECT_EQ(refused("name: \"mine\" version: \"1\""), "f:1:1: found no saves_norm_statistics, wanted a framework with it, or a base");
  EXPECT_EQ(refused("name: \"mine\" base: \"nemo@24.07\""), "f:1:1: found no version, wanted a framework with it");
  const EmbeddedFile circle[] = {{"a@1", "a.textproto", "name: \"a\" version: \"1\" base: \"b@1\""},
                                 {"b@1", "b.textproto", "name: \"b\" version: \"1\" base: \"a@1\""}};
  EXPECT_EQ(error_of([&] { describe_framework_text(circle, std::string(circle[0].text), "a.textproto"); }),
            "b.textproto:1:24: found base \"a@1\", which is based on b@1 itself, wanted another one");
}

TEST(FrameworkPreset, NamesTheNearest) {
  EXPECT_EQ(error_of([] { load_framework("megatron-lm@2022-5"); }),
            "--framework: found \"megatron-lm@2022-5\", wanted one of megatron-lm@2022-05, did you mean \"megatron-lm@2022-05\"?");
  EXPECT_EQ(error_of([] { load_framework("megatron-cor"); }),
            "--framework: found \"megatron-cor\", wanted one of `stepsim list frameworks`, did you mean \"megatron-core\"?");
  EXPECT_THAT(error_of([] { load_framework("megatron-bridge@27"); }),
              HasSubstr("wanted one of megatron-bridge@25.09, megatron-bridge@25.11"));
  EXPECT_THAT(error_of([] { load_framework("megatron-core@2024-xx-unknown"); }), HasSubstr("--framework: found"));
  EXPECT_THAT(error_of([] { load_framework(""); }), HasSubstr("--framework: found \"\", wanted one of `stepsim list frameworks`"));
}

TEST(FrameworkPreset, LocatesMistakes) {
  EXPECT_EQ(error_with("host_issue: true", ""), "f.textproto:1:1: found no host_issue, wanted a framework with it, or a base");
  EXPECT_THAT(error_with("flash_version: 3", "flash_version: 5"), HasSubstr(": found flash_version 5, wanted 1, 2, 3 or 4"));
  EXPECT_THAT(error_with("blas_handles: 2", "blas_handles: 65"), HasSubstr(": found blas_handles 65, wanted a whole number from 0 to 64"));
  EXPECT_THAT(error_with("pipeline_leftovers: 2", ""), HasSubstr("found no pipeline_leftovers"));
  EXPECT_THAT(error_with("gradient_bits: 32", "gradient_bits: 8"), HasSubstr(": found gradient_bits 8, wanted 16 or 32"));
  EXPECT_THAT(error_with("vocab_multiple: 128", "vocab_multiple: 0"), HasSubstr(": found vocab_multiple 0, wanted a whole number from 1"));
  EXPECT_THAT(error_with("fused_softmax", "fused_sotfmax"), HasSubstr("\"fused_softmax\""));
  EXPECT_THAT(error_with("context_exchange: \"ring\"", "context_exchange: \"p2p\""),
              HasSubstr(": found context_exchange \"p2p\", wanted allgather, ring or alltoall"));
}

TEST(FrameworkPreset, LocatesMistakesOfOverrides) {
  const auto refused = [](const std::string& field, const std::string& value) {
    const std::vector<Override> override = {{field, value}};
    return error_of([&] { describe_framework("megatron-core@2025", override); });
  };
  EXPECT_EQ(refused("gather_limit", "1001"), "--set framework.gather_limit: found gather_limit 1001, wanted a number from 0 to 1000");
  EXPECT_EQ(refused("tensor_overlap", "bulk"), "--set framework.tensor_overlap: found tensor_overlap \"bulk\", wanted none or ring");
  EXPECT_THAT(refused("fused_nrm", "true"), HasSubstr("did you mean \"fused_norm\"?"));
  EXPECT_THAT(refused("fused_norm", "1.5"), HasSubstr("--set fused_norm: found"));
}

}  // namespace
}  // namespace stepsim
