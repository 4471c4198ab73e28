// The modules whose saved tensors can go to the host by name, as Megatron-LM's fine-grained offloading names them: what the autograd nodes
// of a module read in backward. (Recompute modules are named by what they make: recompute_groups.h.)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/layer_template.h"
#include "models/slot_table.h"

namespace stepsim {

struct OffloadModule {
  std::string name;
  std::vector<SlotIndex> saved;    // roots that its backward ops read, ascending; the layer's input among them
  std::int32_t last_forward = -1;  // its last forward op
  std::int32_t last_backward = -1;
};

// Those that save something in this layer, in the order of their forward ops.
std::vector<OffloadModule> offload_modules(const LayerTemplate&, const SlotTable&);

// Module -> names of tensors.
std::vector<std::pair<std::string, std::vector<std::string>>> offload_module_table(const LayerTemplate&);

}  // namespace stepsim
