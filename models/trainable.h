// Which weights of a model a TrainableMask trains. Knows names, no shapes.
#pragma once

#include <string>
#include <vector>

#include "models/training_recipe.h"

namespace stepsim {

// `part`: the template that has the weight ("embedding", "head", else a layer's); `weight`: its slot's name ("qkv weight").
bool is_trained(const TrainableMask& mask, const std::string& part, const std::string& weight);

// Whether LoRA's factors stand beside a linear layer ("qkv").
bool is_lora_target(const TrainableMask& mask, const std::string& linear);

// Whether any weight of the parts before the layers, or of a layer, is trained: where none is, backward ends behind them.
bool trains_embedding(const TrainableMask& mask);
bool trains_layers(const TrainableMask& mask);

inline constexpr const char* kLoraDownWeight = " LoRA down weight";  // behind the linear layer's name

// InputError for a target of LoRA that stands for none of `linears`, the layers of this model and framework that have its factors.
void check_lora_targets(const TrainableMask&, const std::vector<std::string>& linears);

// LoRA without a rank or a target, targets that name nothing, bits that no format has: "--trainable: found X, wanted Y", InputError.
void check_trainable(const TrainableMask& mask);

}  // namespace stepsim
