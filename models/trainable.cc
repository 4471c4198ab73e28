#include "models/trainable.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "schema/nearest_name.h"
#include "sim/input_error.h"

namespace stepsim {

namespace {

// Linear layers as users name them, and the templates' names of those. Megatron-Bridge's: peft/lora.py. A framework has one product or
// several for query, key and value, and for gate and up.
struct LinearName {
  std::string_view given;
  std::array<std::string_view, 4> linears;
};
constexpr std::array<LinearName, 19> kLinearNames = {{{"qkv", {"qkv", "query", "key", "value"}},
                                                      {"linear_qkv", {"qkv", "query", "key", "value"}},
                                                      {"query", {"query"}},
                                                      {"key", {"key"}},
                                                      {"value", {"value"}},
                                                      {"query down", {"query down"}},
                                                      {"query up", {"query up"}},
                                                      {"key-value down", {"key-value down"}},
                                                      {"key-value up", {"key-value up"}},
                                                      {"attention projection", {"attention projection"}},
                                                      {"linear_proj", {"attention projection"}},
                                                      {"gate and up", {"gate and up", "gate", "up"}},
                                                      {"fc1", {"fc1", "gate and up", "gate", "up"}},
                                                      {"linear_fc1", {"fc1", "gate and up", "gate", "up"}},
                                                      {"down", {"down"}},
                                                      {"fc2", {"fc2", "down"}},
                                                      {"linear_fc2", {"fc2", "down"}},
                                                      {"router", {"router"}},
                                                      {"head", {"head"}}}};
constexpr std::array<std::string_view, 4> kParts = {"embedding", "head", "layers", "norms"};

constexpr std::string_view kLoraMark = " LoRA ";

// Of routed and of shared experts as of a dense MLP.
std::string_view without_experts(std::string_view linear) {
  for (const std::string_view prefix : {std::string_view("shared experts "), std::string_view("experts ")}) {
    if (linear.substr(0, prefix.size()) == prefix) return linear.substr(prefix.size());
  }
  return linear;
}

bool names_linear(const TrainableMask& mask, std::string_view linear) {
  const std::string_view plain = without_experts(linear);
  return std::any_of(mask.targets.begin(), mask.targets.end(), [&](const std::string& target) {
    return std::any_of(kLinearNames.begin(), kLinearNames.end(), [&](const LinearName& name) {
      return name.given == target && std::find(name.linears.begin(), name.linears.end(), plain) != name.linears.end();
    });
  });
}

bool has_target(const TrainableMask& mask, std::string_view part) {
  return std::find(mask.targets.begin(), mask.targets.end(), part) != mask.targets.end();
}

bool is_frozen(const TrainableMask& mask, const std::string& part, const std::string& weight) {
  const bool table = weight.find("embedding") != std::string::npos;  // wherever a table is used: a tied head's too
  const bool norm = weight.find("norm") != std::string::npos;
  if (table) return has_target(mask, "embedding");
  if (norm && has_target(mask, "norms")) return true;
  if (part == "head" && !norm && has_target(mask, "head")) return true;
  if (part != "head" && part != "embedding" && has_target(mask, "layers")) return true;
  const std::size_t last = weight.rfind(' ');
  return last != std::string::npos && names_linear(mask, std::string_view(weight).substr(0, last));
}

}  // namespace

bool is_trained(const TrainableMask& mask, const std::string& part, const std::string& weight) {
  switch (mask.kind) {
    case TrainableMask::Kind::kAll:
      return true;
    case TrainableMask::Kind::kLora:
      return weight.find(kLoraMark) != std::string::npos;
    case TrainableMask::Kind::kFrozen:
      return !is_frozen(mask, part, weight);
  }
  return true;
}

bool is_lora_target(const TrainableMask& mask, const std::string& linear) {
  return mask.kind == TrainableMask::Kind::kLora && names_linear(mask, linear);
}

bool trains_embedding(const TrainableMask& mask) {
  if (mask.kind == TrainableMask::Kind::kLora) return false;
  return mask.trains_all() || !has_target(mask, "embedding");
}

bool trains_layers(const TrainableMask& mask) {
  if (mask.kind == TrainableMask::Kind::kFrozen) return !has_target(mask, "layers");
  return mask.trains_all() || mask.targets != std::vector<std::string>{"head"};
}

void check_lora_targets(const TrainableMask& mask, const std::vector<std::string>& linears) {
  if (mask.kind != TrainableMask::Kind::kLora) return;
  TrainableMask one = mask;
  for (const std::string& target : mask.targets) {
    one.targets = {target};
    if (std::any_of(linears.begin(), linears.end(), [&one](const std::string& linear) { return names_linear(one, linear); })) continue;
    throw InputError({"--trainable"},
                     "found target \"" + target +
                         "\", wanted a linear layer that this model has under this framework (query, key and value are one, "
                         "qkv, where the framework makes them by one product)");
  }
}

void check_trainable(const TrainableMask& mask) {
  if (mask.trains_all()) return;
  const bool lora = mask.kind == TrainableMask::Kind::kLora;
  std::vector<std::string> names;
  for (const LinearName& name : kLinearNames) names.emplace_back(name.given);
  if (!lora) names.insert(names.end(), kParts.begin(), kParts.end());
  if (mask.targets.empty()) throw InputError({"--trainable"}, "found no targets, wanted at least one");
  for (const std::string& target : mask.targets) {
    if (std::find(names.begin(), names.end(), target) != names.end()) continue;
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    throw InputError({"--trainable"}, "found target \"" + target + "\", wanted one of " + list + suggestion(target, names));
  }
  constexpr std::int64_t kLargestRank = 1 << 16;
  if (lora && (mask.rank < 1 || mask.rank > kLargestRank)) {
    throw InputError({"--trainable"}, "found rank " + std::to_string(mask.rank) + ", wanted a whole number from 1 to 65536");
  }
  if (mask.base_bits != 0 && mask.base_bits != 4) {
    throw InputError({"--trainable"}, "found base bits " + std::to_string(mask.base_bits) + ", wanted 4 (NF4) or none");
  }
}

}  // namespace stepsim
