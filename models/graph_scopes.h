// Which ops of a micro-batch's passes are replayed as one CUDA graph under CudaGraph::kScopes: those of a layer up to its MLP or the
// dispatch of its tokens, that is norms, attention and router (Megatron-LM cuda_graph_scope attn, moe_router, moe_preprocess), forward,
// and backward from behind them to the layer's input. Knows no launch.
#pragma once

#include <cstdint>
#include <map>

#include "models/layer_template.h"

namespace stepsim {

class GraphScopes {
 public:
  explicit GraphScopes(bool on) : on_(on) {}

  // Of the op that is written next as op `number` of the script: the number of its graph; -1: launched by itself. `layer` < 0: the
  // embedding or the head.
  std::int32_t of(const LayerTemplate& source, std::int32_t layer, std::int32_t index, Phase phase, std::int32_t number);

 private:
  struct Bounds {
    std::int32_t forward_end = 0, backward_begin = 0;  // ops of the template
  };
  const Bounds& bounds_of(const LayerTemplate&);

  bool on_;
  std::map<const LayerTemplate*, Bounds> bounds_;
  // The graph that was written last: where its next op would stand, of which layer and phase it is.
  std::int32_t graph_ = -1, next_ = -1, layer_ = -1;
  Phase phase_ = Phase::kForward;
};

}  // namespace stepsim
