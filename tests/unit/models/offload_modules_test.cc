// Which tensors the names of offload select in real layers, and what the named placements move and run again.
#include "models/offload_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "models/offload_check.h"
#include "models/offload_presets.h"
#include "sim/input_error.h"
#include "tests/unit/models/small_step.h"
#include "tests/unit/models/template_case.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Table = std::vector<std::pair<std::string, std::vector<std::string>>>;

TemplateCase gpt(AttentionKind attention, std::int32_t tensor, double dropout) {
  TemplateCase gpt = megatron_22b();
  gpt.training.attention = attention;
  gpt.parallel.tensor = tensor;
  gpt.parallel.sequence_parallel = tensor > 1;
  gpt.model.dropout = gpt.training.dropout = dropout;
  return gpt;
}

// Transformer Engine's nodes: RMSNorm saves its input and rstd, a linear layer its input, fused attention q, k, v, its output and the
// log-sum-exp, SwiGLU its input. The last names are MaxText's.
TEST(OffloadModules, SaveWhatLlamasNodesRead) {
  EXPECT_EQ(offload_module_table(llama3_8b().layer()),
            (Table{{"attn_norm", {"input", "norm 1 statistics"}},
                   {"qkv_linear", {"norm 1 output"}},
                   {"qkv_proj", {"query", "key", "value"}},
                   {"core_attn", {"query", "key", "value", "attention output", "attention log-sum-exp"}},
                   {"attn_proj", {"attention output"}},
                   {"out_proj", {"attention residual"}},
                   {"mlp_norm", {"attention residual", "norm 2 statistics"}},
                   {"mlp_fc1", {"norm 2 output"}},
                   {"mlp_wi", {"gate and up output"}},
                   {"act", {"gate and up output"}},
                   {"mlp_fc2", {"activation output"}}}));
}

// 2205.05198's accounting: no statistics. With sequence parallelism a linear layer saves its part of the input and gathers it again. The
// dropouts after attention and MLP are in no module.
TEST(OffloadModules, SaveWhatTheNodesOfAnUnfusedGptRead) {
  EXPECT_EQ(offload_module_table(gpt(AttentionKind::kUnfused, 2, 0.1).layer()),
            (Table{{"attn_norm", {"input"}},
                   {"qkv_linear", {"norm 1 output"}},
                   {"qkv_proj", {"qkv output"}},
                   {"core_attn", {"qkv output", "attention softmax", "attention dropped softmax", "attention dropout mask"}},
                   {"attn_proj", {"attention output"}},
                   {"out_proj", {"attention residual"}},
                   {"mlp_norm", {"attention residual"}},
                   {"mlp_fc1", {"norm 2 output"}},
                   {"mlp_wi", {"fc1 output"}},
                   {"act", {"fc1 output"}},
                   {"mlp_fc2", {"activation output"}}}));
}

TEST(OffloadModules, FlashAttentionSavesItsInputsAndItsOutput) {
  for (const auto& [name, tensors] : offload_module_table(gpt(AttentionKind::kFlash, 2, 0.1).layer())) {
    if (name != "core_attn") continue;
    EXPECT_THAT(tensors, ElementsAre("qkv output", "attention output"));
  }
}

// What backward reads of a tensor's bytes does not depend on who asks: together the modules have all saved tensors but the masks.
TEST(OffloadModules, HaveAllSavedTensorsButTheDropoutMasks) {
  for (const LayerTemplate& layer :
       {llama3_8b().layer(), gpt(AttentionKind::kUnfused, 2, 0.1).layer(), gpt(AttentionKind::kFlash, 1, 0).layer()}) {
    std::set<std::string> saved, in_modules;
    for (const SlotIndex slot : saved_slots(layer)) {
      const std::string& name = slot_at(layer, slot).name;
      if (name.find("residual dropout mask") == std::string::npos) saved.insert(name);
    }
    for (const auto& [name, tensors] : offload_module_table(layer)) in_modules.insert(tensors.begin(), tensors.end());
    EXPECT_EQ(in_modules, saved);
  }
}

// ---- named placements

struct Outcome {
  std::set<std::string> offloaded, again;  // tensors; ops
};

// Of a preset on four layers.
Outcome outcome_of(TemplateCase of, std::string_view name) {
  const OffloadPreset& preset = *offload_preset(name);
  of.model.layers = 4;
  StepRequest request;
  request.model = of.model;
  request.training = of.training;
  request.parallel = of.parallel;
  request.framework = of.framework;
  request.placement.granularity = preset.recompute;
  request.placement.rows = preset.rows;
  request.placement.offload = preset.offload;
  const BuiltStep built = build_step(request, {.embedding = of.embedding(), .kinds = {of.layer()}, .kind_of = {}, .head = of.head()});
  Outcome outcome;
  for (const Op& op : built.graph.ops()) {
    const auto* copy = std::get_if<Copy>(&built.graph.work(op.work));
    const std::string kind(built.graph.label(op.kind));
    if (copy != nullptr && copy->direction == CopyDirection::kDeviceToHost) {
      outcome.offloaded.insert(kind.substr(9));  // behind "copy out "
    } else if (op.phase == built.phase_labels[static_cast<std::size_t>(Phase::kRecompute)] && copy == nullptr) {
      outcome.again.insert(kind);
    }
  }
  return outcome;
}

using Names = std::set<std::string>;

TEST(OffloadPresets, MaxTextMinimalOffloadsTheProjections) {
  const Outcome llama = outcome_of(llama3_8b(), "maxtext:minimal_offloaded");
  EXPECT_EQ(llama.offloaded, (Names{"query", "key", "value", "attention residual", "gate and up output"}));
  EXPECT_EQ(llama.again, (Names{"norm 1", "attention", "norm 2", "activation"}));  // no matrix product but attention's
  const Outcome unfused = outcome_of(gpt(AttentionKind::kUnfused, 1, 0), "maxtext:minimal_offloaded");
  EXPECT_EQ(unfused.offloaded, (Names{"qkv output", "attention residual", "fc1 output"}));
  EXPECT_EQ(unfused.again, (Names{"norm 1", "attention scores", "attention softmax", "attention over values", "attention output transpose",
                                  "norm 2", "activation"}));
}

TEST(OffloadPresets, MaxTextQkvOffloadsQueryKeyAndValue) {
  const Outcome llama = outcome_of(llama3_8b(), "maxtext:qkv_proj_offloaded");
  EXPECT_EQ(llama.offloaded, (Names{"query", "key", "value"}));
  EXPECT_EQ(llama.again,
            (Names{"norm 1", "attention", "attention projection", "attention residual", "norm 2", "gate and up", "activation"}));
  const Outcome unfused = outcome_of(gpt(AttentionKind::kUnfused, 1, 0), "maxtext:qkv_proj_offloaded");
  EXPECT_EQ(unfused.offloaded, (Names{"qkv output"}));
  EXPECT_EQ(unfused.again, (Names{"norm 1", "attention scores", "attention softmax", "attention over values", "attention output transpose",
                                  "attention projection", "attention residual", "norm 2", "fc1", "activation"}));
}

TEST(OffloadPresets, OthersMoveWhatTheySay) {
  const Outcome megatron = outcome_of(llama3_8b(), "megatron-fine-grained");
  // The log-sum-exp has 32 heads x 8,192 queries = 2^18 elements, less than 2^20.
  EXPECT_EQ(megatron.offloaded, (Names{"query", "key", "value", "attention output"}));
  EXPECT_EQ(megatron.again, Names{});
  const Outcome engine = outcome_of(llama3_8b(), "te");  // statistics of 8,192 elements stay, 2^18 of the log-sum-exp are just enough
  EXPECT_EQ(engine.offloaded, (Names{"input", "norm 1 output", "query", "key", "value", "attention output", "attention log-sum-exp",
                                     "attention residual", "norm 2 output", "gate and up output", "activation output"}));
  const Outcome deepspeed = outcome_of(llama3_8b(), "deepspeed");
  EXPECT_EQ(deepspeed.offloaded, Names{"input"});
  EXPECT_EQ(deepspeed.again.count("gate and up"), 1u);
}

TEST(OffloadPresets, EachHasASourceAndIsFoundByItsName) {
  std::set<std::string_view> names;
  for (const OffloadPreset& each : offload_presets()) {
    EXPECT_FALSE(each.source.empty());
    EXPECT_FALSE(each.meaning.empty());
    EXPECT_EQ(offload_preset(each.name), &each);
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
  }
  EXPECT_EQ(offload_preset("tee"), nullptr);
}

// ---- refusals

std::string refusal(const PlacementPolicy& policy) {
  try {
    check_policy(policy, small_layer(), 4, AttentionKind::kUnfused);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

PlacementPolicy named(const std::string& name) {
  PlacementPolicy policy;
  policy.offload.selection.names = {name};
  return policy;
}

TEST(OffloadCheck, RefusesNamesThatSelectNothing) {
  for (const char* const name : {"*", "mlp_fc1", "mlp_fc2", "mlp_wi", "fc1 output", "input"}) EXPECT_EQ(refusal(named(name)), "");
  EXPECT_EQ(refusal(named("mlp_fc")),
            "--offload-modules: found \"mlp_fc\", wanted \"*\", a module (mlp_fc1, mlp_wi, mlp_fc2) or a saved tensor of a layer, did you "
            "mean \"mlp_fc1\"?");
  EXPECT_THAT(refusal(named("act gradient")), HasSubstr("--offload-modules: found \"act gradient\""));
  PlacementPolicy policy;
  policy.rows = {{0, -1, "core_attn", PlacementAction::kOffload, 0, -1, 1, 1}};
  EXPECT_THAT(refusal(policy), HasSubstr("--placement: found \"core_attn\""));
}

TEST(OffloadCheck, RefusesNumbersOutOfRange) {
  struct Case {
    void (*change)(OffloadPolicy&);
    const char* start;
  };
  const Case cases[] = {
      {[](OffloadPolicy& offload) { offload.schedule.lookahead = -1; }, "--prefetch-layers: found -1, wanted 0 to"},
      {[](OffloadPolicy& offload) { offload.schedule.in_flight = -1; }, "--max-in-flight: found -1"},
      {[](OffloadPolicy& offload) { offload.schedule.release_distance = -1; }, "--set placement.release_distance: found -1"},
      {[](OffloadPolicy& offload) { offload.schedule.streams = 5; }, "--set placement.copy_streams: found 5, wanted 1 to 4"},
      {[](OffloadPolicy& offload) { offload.schedule.engines = 3; }, "--set placement.copy_engines: found 3, wanted 1 to 2"},
      {[](OffloadPolicy& offload) { offload.schedule.asynchronous_limit = 0; }, "--set placement.asynchronous_limit: found 0"},
      {[](OffloadPolicy& offload) { offload.selection.first_layers = 5; }, "--offload-layers: found 5, wanted 0 to 4"},
      {[](OffloadPolicy& offload) { offload.selection.keep_last_layers = 5; }, "--set placement.keep_last_layers: found 5, wanted 0 to 4"},
      {[](OffloadPolicy& offload) { offload.selection.keep_last_groups = -1; }, "--set placement.keep_last_groups: found -1"},
      {[](OffloadPolicy& offload) { offload.selection.groups_fraction = 0; }, "--offload-groups-fraction: found 0, wanted above 0"}};
  for (const Case& each : cases) {
    PlacementPolicy policy = named("*");
    each.change(policy.offload);
    EXPECT_THAT(refusal(policy), testing::StartsWith(each.start));
  }
}

TEST(OffloadCheck, RefusesSlicesThatAreNone) {
  PlacementPolicy policy;
  policy.rows = {{0, -1, "fc1 output", PlacementAction::kOffload, 0, -1, 3, 2}};
  EXPECT_EQ(refusal(policy), "--placement: found 3, wanted 1 to 2 slices of a tensor");
  policy.rows.front().of_slices = kMostSlices + 1;
  EXPECT_EQ(refusal(policy), "--placement: found 65, wanted 1 to 64 slices");
  policy.rows.front() = {0, -1, "fc1 output", PlacementAction::kKeep, 0, -1, 1, 2};
  EXPECT_THAT(refusal(policy), HasSubstr("slices of a tensor that is not offloaded"));
}

TEST(OffloadCheck, SaysThatCopyingAViewFreesNothing) {
  LayerTemplate layer = small_layer();
  layer.slots.push_back(small_slot("gate", SlotKind::kForward, 20));
  layer.slots.back().view_of = 1;
  try {
    check_policy(named("gate"), layer, 4, AttentionKind::kUnfused);
    FAIL() << "a view was accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "--offload-modules: found \"gate\", a view whose copy frees nothing, wanted its storage \"fc1 output\"");
  }
}

}  // namespace
}  // namespace stepsim
