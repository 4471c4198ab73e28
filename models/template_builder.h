// Adds slots and ops to a LayerTemplate and keeps its invariants: sizes from shapes, traffic from operands, every slot written before it is
// read. Blocks (norm, linear, attention, ...) are functions over it. Knows one device of a tensor-parallel group and no block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/layer_template.h"

namespace stepsim {

// What one device of the tensor-parallel group holds of the dimensions. Every product of two of them that a template uses fits 56 bits.
struct DeviceShape {
  std::int64_t sequence = 0, micro_batch = 0;
  std::int64_t tokens = 0;        // sequence x micro-batch
  std::int64_t local_tokens = 0;  // the part outside the tensor-parallel regions: tokens / ranks under sequence parallelism
  std::int64_t hidden = 0, head_dim = 0;
  std::int64_t query_heads = 0, kv_heads = 0;  // kv heads are replicated where there are more ranks than heads
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;  // rows of the padded table
  std::int32_t ranks = 1;  // of the tensor-parallel group
  bool sequence_parallel = false;
  DType compute = DType::kBf16, gradient = DType::kFp32;

  std::int64_t query_width() const { return query_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// What matrix products read: bf16, fp16, fp32.
DType compute_dtype(Precision precision);

// InputError if the sizes of this device's tensors cannot be counted in 56 bits.
DeviceShape device_shape(const TemplateContext&);

enum class Direction : std::uint8_t { kForward, kBackward };

struct Weight {  // kNoSlot in both: the layer has none (no bias)
  SlotIndex value = kNoSlot, gradient = kNoSlot;
  bool present() const { return value != kNoSlot; }
};

// A kernel bound by memory traffic: each operand moves once (updates: read and written), plus what its further passes move again.
struct KernelPass {
  std::string name, module;
  std::vector<SlotIndex> reads, writes, updates, holds;
  MemoryKernel kernel = MemoryKernel::kFusedElementwise;
  Bytes further_reads{}, further_writes{};
  bool random = false;
};

struct CollectiveCall {
  std::string name, module;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  SlotIndex input = kNoSlot;    // an all-reduce works in place on it
  SlotIndex output = kNoSlot;   // of a gather or scatter
  bool beside_compute = false;  // on the communication stream, from the last compute op so far on
};

class TemplateBuilder {
 public:
  TemplateBuilder(std::string name, const TemplateContext& context);  // keeps the context by reference

  const TemplateContext& context() const { return context_; }
  const DeviceShape& shape() const { return shape_; }

  // Size is computed from shape and dtype (a view's size too). The name must be new. InputError above 2^56 bytes.
  SlotIndex add(Slot slot);
  SlotIndex input(const std::string& name, std::vector<std::int64_t> shape);
  SlotIndex activation(const std::string& name, std::vector<std::int64_t> shape, const std::string& module = "");
  SlotIndex gradient(const std::string& name, std::vector<std::int64_t> shape);
  SlotIndex view(const std::string& name, SlotIndex of, std::vector<std::int64_t> shape);
  // What a collective makes and one or two ops read.
  SlotIndex gathered(const std::string& name, std::vector<std::int64_t> shape);
  Weight weight(const std::string& name, std::vector<std::int64_t> shape);
  // A weight that the embedding owns under the same name (tied head): one storage for both templates, its parameters counted there.
  Weight shared_weight(const std::string& name, std::vector<std::int64_t> shape);

  void op(Direction, TemplateOp op);
  void pass(Direction, KernelPass pass);
  void gemm(Direction, const std::string& name, const std::string& module, const Gemm& work, std::vector<SlotIndex> reads,
            SlotIndex written);
  // Nothing where the group has one rank.
  void collective(Direction, const CollectiveCall& call);

  // Weight gradients are added to a 16-bit buffer of their own dtype, which is read too. A 32-bit one always is: Gemm::accumulate_fp32.
  bool adds_to_gradients() const { return context_.framework.gradients_always_allocated && shape_.gradient != DType::kFp32; }

  Bytes size(SlotIndex slot) const { return slots_[static_cast<std::size_t>(slot)].size; }
  const std::string& module_of(SlotIndex slot) const { return slots_[static_cast<std::size_t>(slot)].module; }

  // The ends of the layer (kNoSlot: none). Checks the invariants (STEPSIM_CHECK) and gives transient slots their role.
  struct Ends {
    SlotIndex input = kNoSlot, output = kNoSlot, output_gradient = kNoSlot, input_gradient = kNoSlot;
  };
  LayerTemplate build(const Ends& ends) &&;

 private:
  std::string name_;
  const TemplateContext& context_;
  DeviceShape shape_;
  std::vector<Slot> slots_;
  std::vector<TemplateOp> forward_, backward_;
  std::int64_t parameters_ = 0;
};

// The token table: of the embedding, and of a head that is tied to it.
inline constexpr const char* kWordEmbedding = "word embedding weight";

// The slot whose storage `slot` shares.
SlotIndex root_of(const std::vector<Slot>& slots, SlotIndex slot);

}  // namespace stepsim
