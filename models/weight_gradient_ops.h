// Backward ops of a template that only weight gradients depend on: they may run later, in a pass of their own, or behind what the layer
// before waits for.
#pragma once

#include <vector>

#include "models/template_stamp.h"

namespace stepsim {

// By backward op. `root`: by slot, whose storage it shares.
std::vector<bool> weight_gradient_ops(const LayerTemplate& layer, const std::vector<SlotIndex>& root);
std::vector<bool> weight_gradient_ops(const TemplateStamp& stamp);

// Moves them behind what other ranks and layers wait for (Megatron-LM --delay-wgrad-compute,
// core/models/common/model_chunk_schedule_plan.py TransformerLayerSchedulePlan.run: mlp.backward_dw follows mlp.backward, before the
// exchange that runs beside it is waited for; attn.backward_dw ends the layer). Those of routed experts stand behind the last exchange of
// the layer's backward pass that runs beside compute, where there is one; those of attention and shared experts at the end of the layer,
// behind the input's gradient. A dense MLP's and the router's stay, and so do gradients of norms and biases, and
// collectives, whose results then live longer.
void delay_weight_gradients(LayerTemplate& layer);

}  // namespace stepsim
