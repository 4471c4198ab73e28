// Adds slots and ops to a LayerTemplate and keeps its invariants: sizes from shapes, traffic from operands, every slot written before it is
// read. Blocks (norm, linear, attention, ...) are functions over it. Knows one device of a tensor-parallel group and no block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/layer_template.h"

namespace stepsim {

// What one device of the tensor- and context-parallel groups holds of the dimensions. Every product of two of them that a template uses
// fits 56 bits.
struct DeviceShape {
  std::int64_t sequence = 0;  // tokens of each sequence on this device: the recipe's over the context-parallel ranks
  std::int64_t keys = 0;      // tokens of a whole sequence, which attention sees
  std::int64_t micro_batch = 0;
  std::int64_t tokens = 0;        // sequence x micro-batch
  std::int64_t local_tokens = 0;  // the part outside the tensor-parallel regions: tokens / ranks under sequence parallelism
  std::int64_t hidden = 0, head_dim = 0;
  std::int64_t query_heads = 0, kv_heads = 0;  // kv heads are replicated where there are more ranks than heads
  std::int64_t ffn = 0;                        // of a dense layer
  std::int64_t vocab = 0;                      // rows of the padded table
  std::int32_t ranks = 1;                      // of the tensor-parallel group
  std::int32_t context = 1;                    // ranks of the context-parallel group
  bool sequence_parallel = false;
  DType compute = DType::kBf16, gradient = DType::kFp32;
  DType product = DType::kBf16;  // of the linear parts' products: `compute`, or below 16 bits

  std::int64_t query_width() const { return query_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// What everything is computed in that does not run below 16 bits: bf16, fp16, fp32.
DType compute_dtype(Precision precision);

// InputError if the sizes of this device's tensors cannot be counted in 56 bits.
DeviceShape device_shape(const TemplateContext&);

enum class Direction : std::uint8_t { kForward, kBackward };
constexpr Direction kForwardOp = Direction::kForward, kBackwardOp = Direction::kBackward;

struct Weight {  // kNoSlot in both: the layer has none (no bias); in `gradient` alone: it is not trained
  SlotIndex value = kNoSlot, gradient = kNoSlot;
  bool present() const { return value != kNoSlot; }
  bool trained() const { return gradient != kNoSlot; }
};

// A kernel bound by memory traffic: each operand moves once (updates: read and written), plus what its further passes move again.
struct KernelPass {
  std::string name, module;
  std::vector<SlotIndex> reads, writes, updates, holds;
  MemoryKernel kernel = MemoryKernel::kFusedElementwise;
  Bytes further_reads{}, further_writes{};
  bool random = false;
  OpStream stream = OpStream::kCompute;
  std::int32_t launches = 1;  // kernels, one behind the other
};

// Of consecutive members of a group; `stride` is the distance of neighbours among the machine's devices.
struct CommunicatorRanks {
  Group group = Group::kTensor;
  std::int32_t ranks = 1, stride = 1;
};

struct CollectiveCall {
  std::string name, module;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  SlotIndex input = kNoSlot;                 // an all-reduce works in place on it
  SlotIndex output = kNoSlot;                // of all other kinds
  bool beside_compute = false;               // on its group's communication stream, from the last compute op so far on
  std::optional<CommunicatorRanks> ranks{};  // none: the tensor-parallel group
  CollectiveLibrary library = CollectiveLibrary::kNccl;
  Routing routing{};               // of a dispatch or combine
  std::optional<Bytes> message{};  // none: the whole of a gather or scatter, the larger buffer of an exchange
};

class TemplateBuilder {
 public:
  TemplateBuilder(std::string name, const TemplateContext& context);  // keeps the context by reference

  const TemplateContext& context() const { return context_; }
  const DeviceShape& shape() const { return shape_; }
  CommunicatorRanks tensor_ranks() const { return {Group::kTensor, shape_.ranks, 1}; }
  CommunicatorRanks context_ranks() const { return {Group::kContext, shape_.context, shape_.ranks}; }
  // Of the names of slots and ops added from now on, so that a block can stand twice in a template; not of shared weights and slots.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  // Size is computed from shape and dtype (a view's size too). The name must be new. InputError above 2^56 bytes.
  SlotIndex add(Slot slot);
  // Of a stated size, which the shape does not say (blocks with scales, packed values).
  SlotIndex add(Slot slot, Bytes size);
  SlotIndex input(const std::string& name, std::vector<std::int64_t> shape);
  SlotIndex activation(const std::string& name, std::vector<std::int64_t> shape, const std::string& module = "");
  SlotIndex gradient(const std::string& name, std::vector<std::int64_t> shape);
  SlotIndex view(const std::string& name, SlotIndex of, std::vector<std::int64_t> shape);
  // What a collective makes and one or two ops read.
  SlotIndex gathered(const std::string& name, std::vector<std::int64_t> shape);
  // Without a gradient where the recipe does not train it: ops that only update such gradients are left out. `expert`: a routed expert's.
  Weight weight(const std::string& name, std::vector<std::int64_t> shape, bool expert = false);
  // Of a linear layer, [groups,] outputs x inputs: kept in the recipe's bits where it is frozen, cached in the products' format if `low`.
  Weight matrix(const std::string& name, std::vector<std::int64_t> shape, bool expert, bool low);
  // A weight that the embedding owns under the same name (tied head): one storage for both templates, its parameters counted there.
  // Asked for again, it is the same.
  Weight shared_weight(const std::string& name, std::vector<std::int64_t> shape);
  // A storage that other templates know by the same name: kShared is written by one layer's op and there for the others; kSharedGradient is
  // only updated and read.
  SlotIndex shared(const std::string& name, std::vector<std::int64_t> shape, SlotKind kind);

  void op(Direction, TemplateOp op);
  void pass(Direction, KernelPass pass);
  void gemm(Direction, const std::string& name, const std::string& module, const Gemm& work, std::vector<SlotIndex> reads,
            SlotIndex written);
  // Nothing where the group has one rank.
  void collective(Direction, const CollectiveCall& call);
  // Made in `direction`: a transient or saved activation, or a gradient.
  SlotIndex made(Direction direction, const std::string& name, std::vector<std::int64_t> shape, const std::string& module);

  // Weight gradients are added to a 16-bit buffer of their own dtype, which is read too. A 32-bit one always is: Gemm::accumulate_fp32.
  bool adds_to_gradients() const { return context_.framework.gradients_always_allocated && shape_.gradient != DType::kFp32; }

  Bytes size(SlotIndex slot) const { return slots_[static_cast<std::size_t>(slot)].size; }
  const Slot& slot(SlotIndex index) const { return slots_[static_cast<std::size_t>(index)]; }
  const std::string& module_of(SlotIndex slot) const { return slots_[static_cast<std::size_t>(slot)].module; }

  bool in_layer() const;  // not in the embedding or the head
  // Whether linear parts run below 16 bits here: in layers.
  bool low_precision() const;

  // The copy by columns of an operand below 16 bits that is there by rows; itself where one copy serves both, kNoSlot: none is known.
  void set_by_columns(SlotIndex rows, SlotIndex columns) { columns_[rows] = columns; }
  SlotIndex by_columns(SlotIndex rows) const {
    const auto found = columns_.find(rows);
    return found == columns_.end() ? kNoSlot : found->second;
  }

  // The ends of the layer (kNoSlot: none). Checks the invariants (STEPSIM_CHECK) and gives transient slots their role.
  struct Ends {
    SlotIndex input = kNoSlot, output = kNoSlot, output_gradient = kNoSlot, input_gradient = kNoSlot;
  };
  LayerTemplate build(const Ends& ends) &&;

 private:
  std::string name_, prefix_;
  const TemplateContext& context_;
  DeviceShape shape_;
  std::vector<Slot> slots_;
  std::vector<TemplateOp> forward_, backward_;
  std::map<SlotIndex, SlotIndex> columns_;  // by operand by rows
  std::int64_t parameters_ = 0, expert_parameters_ = 0, frozen_parameters_ = 0;
  Bytes frozen_bytes_{}, cached_weights_{};
};

// The token table: of the embedding, and of a head that is tied to it.
inline constexpr const char* kWordEmbedding = "word embedding weight";

// The slot whose storage `slot` shares.
SlotIndex root_of(const std::vector<Slot>& slots, SlotIndex slot);

}  // namespace stepsim
