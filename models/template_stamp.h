// A layer template resolved against one graph: ids of work and labels, and for every operand where its storage is found. Made once per
// build; stamping a layer then only looks up storages.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "models/layer_template.h"
#include "models/slot_table.h"
#include "sim/op_graph.h"

namespace stepsim {

// Where the storage of an operand is found. The first eight are made anew in every micro-batch, the others live all step.
enum class OperandPlace : std::uint8_t {
  kOwn,             // of this layer alone
  kInput,           // shared with the layer before
  kOutput,          // shared with the layer behind
  kOutputGradient,  // likewise
  kInputGradient,
  kBatch,           // shared by all layers, by name
  kShared,          // likewise; made by one of them
  kSharedGradient,  // likewise; made by the first that adds to it
  kWeights,         // of this layer
  kWeightGradients,
  kTiedWeights,  // the embedding's, used by the head or a layer
  kTiedWeightGradients,
};
constexpr std::size_t at(OperandPlace place) { return static_cast<std::size_t>(place); }
inline constexpr std::size_t kPlacesPerMicroBatch = 8;

struct StampOperand {
  OperandPlace place = OperandPlace::kOwn;
  std::int32_t index = 0;  // kOwn: the root; kBatch: which batch tensor; kShared, kSharedGradient: which shared one; else 0
  bool claims = false;     // a write that makes the storage (the root's first writer in its direction)
  Bytes offset{}, size{};
};

struct StampOp {
  WorkId work;
  LabelId kind;
  OpStream stream = OpStream::kCompute;
  bool queued = false;      // takes its group's communicator
  bool host_reads = false;  // a copy to the host, which waits for it before it launches what follows
  Group group = Group::kNone;
  std::vector<StampOperand> reads, writes, updates, holds;
  std::vector<std::int32_t> after;
};

// A tensor of the batch (token ids, labels): one storage per micro-batch, whichever templates read it.
struct BatchTensor {
  std::string name;
  Bytes size;
  LabelId label;
};

// What templates know by name: tensors of the batch; shared tensors and gradients.
struct NamedTensors {
  std::vector<BatchTensor> batch;
  std::vector<std::pair<SlotKind, std::string>> shared;
};

struct TemplateStamp {
  const LayerTemplate* source = nullptr;
  SlotTable table;
  std::vector<StampOp> forward, backward;
  std::vector<LabelId> names;                   // by slot
  std::vector<StampOperand> roots;              // by root: its whole storage
  Bytes own_weights{}, own_weight_gradients{};  // sums of the layer's slots
  bool tied = false;                            // it uses weights of the embedding
};

// `named` grows by the tensors that the template is the first to name. `embedding`: the template whose weights this one shares (slots of
// the same name: a tied head, a decoder's embedding), null where it has none of its stage. Routed experts' weights and gradients lie behind
// the others.
TemplateStamp make_stamp(OpGraphBuilder&, const LayerTemplate&, NamedTensors& named, const LayerTemplate* embedding = nullptr);

}  // namespace stepsim
