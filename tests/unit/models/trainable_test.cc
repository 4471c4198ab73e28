// Which weights are trained decides gradients, products, and what is saved for them.
#include "models/trainable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "models/layer_template.h"
#include "models/low_precision.h"
#include "models/step_builder.h"
#include "sim/input_error.h"

namespace stepsim {
namespace {

struct Case {
  ModelSpec model = load_model("llama3-8b");
  TrainingRecipe training{};
  ParallelLayout parallel{};
  FrameworkPreset framework = load_framework("megatron-core@2025");
  Case() { training.sequence = 1024; }
  TemplateContext context() const { return {model, training, parallel, framework}; }
  LayerTemplate layer() const { return transformer_layer(context()); }
};

TrainableMask lora(std::int64_t rank, std::vector<std::string> targets, std::int64_t bits = 0) {
  return {.kind = TrainableMask::Kind::kLora, .rank = rank, .targets = std::move(targets), .base_bits = bits};
}

TrainableMask frozen(std::vector<std::string> targets) { return {.kind = TrainableMask::Kind::kFrozen, .targets = std::move(targets)}; }

std::set<std::string> saved_names(const LayerTemplate& layer) {
  std::set<std::string> names;
  for (const SlotIndex slot : saved_slots(layer)) names.insert(layer.slots[static_cast<std::size_t>(slot)].name);
  return names;
}

bool has_op(const std::vector<TemplateOp>& ops, const std::string& name) {
  return std::any_of(ops.begin(), ops.end(), [&](const TemplateOp& op) { return op.name == name; });
}

bool has_slot(const LayerTemplate& layer, const std::string& name) {
  return std::any_of(layer.slots.begin(), layer.slots.end(), [&](const Slot& slot) { return slot.name == name; });
}

// Weights of a layer: qkv 4096 x 6144, projection 4096^2, gate and up 4096 x 28672, down 14336 x 4096, two norms of 4096.
constexpr std::int64_t kLayer = 25'165'824 + 16'777'216 + 117'440'512 + 58'720'256 + 8192;

TEST(Trainable, LoraTrainsItsFactorsAlone) {
  Case example;
  example.training.trainable = lora(16, {"qkv"});
  const LayerTemplate layer = example.layer();
  EXPECT_EQ(layer.parameters, 16 * (4096 + 6144));
  EXPECT_EQ(layer.frozen_parameters, kLayer);
  EXPECT_EQ(layer.frozen_bytes, Bytes(2 * kLayer));
  for (const char* const name : {"qkv weight gradient", "norm 1 weight gradient", "down weight gradient"}) {
    EXPECT_FALSE(has_op(layer.backward, name)) << name;
    EXPECT_FALSE(has_slot(layer, name)) << name;
  }
  for (const char* const name : {"qkv LoRA down weight gradient", "qkv LoRA up weight gradient", "gate and up input gradient"}) {
    EXPECT_TRUE(has_op(layer.backward, name)) << name;
  }
}

// What only a frozen weight's gradient reads is not saved: the inputs of gate and up and of down. The factors need the target's input and
// the inner product; norms, attention and SwiGLU their own operands, as ever.
TEST(Trainable, LoraSavesNoInputsOfFrozenLayers) {
  Case example;
  const std::set<std::string> all = saved_names(example.layer());
  example.training.trainable = lora(16, {"qkv"});
  const std::set<std::string> some = saved_names(example.layer());
  for (const char* const name : {"norm 2 output", "activation output"}) {
    EXPECT_TRUE(all.contains(name)) << name;
    EXPECT_FALSE(some.contains(name)) << name;
  }
  for (const char* const name : {"norm 1 output", "qkv LoRA inner", "query", "attention output", "gate and up output", "input"}) {
    EXPECT_TRUE(some.contains(name)) << name;
  }
}

// An NF4 value is half a byte; a byte of scale for 64 values, 4 bytes for 256 scales: n / 2 + n / 64 + n / 4096. 16-bit copies are made
// for each product and die with it.
TEST(Trainable, QloraKeepsFourBits) {
  EXPECT_EQ(nf4_bytes(1 << 20), Bytes((1 << 19) + (1 << 14) + (1 << 8)));
  Case example;
  example.training.trainable = lora(16, {"down"}, 4);
  const LayerTemplate layer = example.layer();
  const std::int64_t matrices = kLayer - 8192;
  EXPECT_EQ(layer.frozen_bytes, Bytes(matrices / 2 + matrices / 64 + matrices / 64 / 256 * 4 + 2 * 8192));
  const auto whole =
      std::find_if(layer.slots.begin(), layer.slots.end(), [](const Slot& slot) { return slot.name == "down weight, dequantised"; });
  ASSERT_NE(whole, layer.slots.end());
  EXPECT_EQ(whole->size, Bytes(58'720'256 * 2));
  EXPECT_EQ(whole->kind, SlotKind::kWorkspace);
  EXPECT_TRUE(has_slot(layer, "down weight, dequantised again"));
}

TEST(Trainable, FrozenPartsHaveNoGradients) {
  Case example;
  example.training.trainable = frozen({"embedding"});
  const LayerTemplate embedding = embedding_layer(example.context());
  EXPECT_TRUE(embedding.backward.empty());
  EXPECT_EQ(embedding.parameters, 0);
  EXPECT_EQ(embedding.frozen_parameters, std::int64_t{128256} * 4096);
  EXPECT_EQ(example.layer().parameters, kLayer);

  example.training.trainable = frozen({"norms", "down"});
  const LayerTemplate layer = example.layer();
  EXPECT_EQ(layer.frozen_parameters, 8192 + 58'720'256);
  EXPECT_EQ(layer.parameters + layer.frozen_parameters, kLayer);
  EXPECT_FALSE(saved_names(layer).contains("activation output"));
  EXPECT_TRUE(saved_names(layer).contains("norm 2 output"));  // gate and up are trained
}

// Backward ends behind the head where nothing before it is trained, the final norm included.
TEST(Trainable, BackwardStopsWhereNothingIsTrained) {
  Case example;
  example.training.trainable = frozen({"embedding", "layers", "norms"});
  const LayerTemplate head = head_layer(example.context());
  EXPECT_EQ(head.input_gradient, kNoSlot);
  EXPECT_FALSE(has_op(head.backward, "head input gradient"));
  EXPECT_TRUE(has_op(head.backward, "head weight gradient"));
  const LayerTemplate layer = example.layer();
  EXPECT_TRUE(layer.backward.empty());
  EXPECT_EQ(saved_bytes(layer), Bytes(0));
}

// With LoRA the embedding needs no gradient: the first layer makes none of its input (its qkv product and norm), the others do. A layer
// that is run again from its input does too.
TEST(Trainable, FirstLayerMakesNoInputGradient) {
  Case example;
  StepRequest request{
      .model = example.model, .training = example.training, .parallel = {}, .framework = example.framework, .placement = {}};
  request.model.layers = 3;
  request.training.trainable = lora(16, {"qkv"});
  const auto products = [](const StepRequest& of) {
    const BuiltStep step = build_step(of);
    return std::count_if(step.graph.ops().begin(), step.graph.ops().end(),
                         [&](const Op& op) { return step.graph.label(op.kind) == "qkv input gradient"; });
  };
  EXPECT_EQ(products(request), 2);
  request.placement.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(products(request), 3);
  request.placement.granularity = RecomputeGranularity::kNone;
  request.training.trainable = {};
  EXPECT_EQ(products(request), 3);
}

TEST(Trainable, Names) {
  const TrainableMask mask = lora(8, {"linear_fc1"});  // Megatron-Bridge's name
  EXPECT_TRUE(is_lora_target(mask, "gate and up"));
  EXPECT_TRUE(is_lora_target(mask, "fc1"));
  EXPECT_FALSE(is_lora_target(mask, "down"));
  EXPECT_FALSE(is_lora_target(frozen({"gate and up"}), "gate and up"));
  const auto refusal = [](const TrainableMask& wrong) {
    try {
      check_trainable(wrong);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(mask), "");
  EXPECT_NE(refusal(lora(8, {"qvk"})).find("--trainable: found target \"qvk\", wanted one of qkv"), std::string::npos);
  EXPECT_EQ(refusal(lora(0, {"qkv"})), "--trainable: found rank 0, wanted a whole number from 1 to 65536");
  EXPECT_EQ(refusal(lora(8, {"qkv"}, 3)), "--trainable: found base bits 3, wanted 4 (NF4) or none");
  EXPECT_EQ(refusal(frozen({})), "--trainable: found no targets, wanted at least one");
}

}  // namespace
}  // namespace stepsim
