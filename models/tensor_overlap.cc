#include "models/tensor_overlap.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace stepsim {

namespace {

constexpr std::int64_t kPipelinePieces = 4;  // Transformer Engine module/base.py get_default_config: num_splits

bool uses(const std::vector<SlotIndex>& slots, SlotIndex slot) { return std::find(slots.begin(), slots.end(), slot) != slots.end(); }
bool touches(const TemplateOp& op, SlotIndex slot) {
  return uses(op.reads, slot) || uses(op.writes, slot) || uses(op.updates, slot) || uses(op.holds, slot);
}

const Collective* collective_of_tensor_group(const TemplateOp& op, CollectiveKind kind) {
  const auto* work = std::get_if<Collective>(&op.work);
  const bool wanted = work != nullptr && work->kind == kind && op.group == Group::kTensor && op.stream == OpStream::kCompute;
  return wanted ? work : nullptr;
}

// A product of rows; its result's rows are its first operand's.
const Gemm* product_of_rows(const TemplateOp& op) {
  const auto* work = std::get_if<Gemm>(&op.work);
  return work != nullptr && work->batch == 1 && !work->transpose_b && op.writes.size() == 1 && op.updates.empty() ? work : nullptr;
}

// The next op behind `from` that touches the slot.
std::optional<std::size_t> next_use(const std::vector<TemplateOp>& ops, std::size_t from, SlotIndex slot) {
  for (std::size_t op = from + 1; op < ops.size(); ++op) {
    if (touches(ops[op], slot)) return op;
  }
  return std::nullopt;
}

class Overlap {
 public:
  Overlap(const std::vector<Slot>& slots, std::vector<TemplateOp> ops) : slots_(slots), ops_(std::move(ops)), number_(ops_.size(), -1) {}

  std::vector<TemplateOp> overlapped() && {
    find_gathers();
    find_scatters();
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      if (gather_of_[op]) {
        add_gathered_product(op, *gather_of_[op]);
      } else if (scatter_of_[op]) {
        add_scattered_product(op, *scatter_of_[op]);
      } else if (!is_scattered_[op]) {
        add_plain(op);
      }
    }
    return std::move(made_);
  }

 private:
  // A slot that other slots are views of may be touched through them.
  bool has_views(SlotIndex slot) const {
    return std::any_of(slots_.begin(), slots_.end(), [slot](const Slot& each) { return each.view_of == slot; });
  }

  void find_gathers() {
    gather_of_.resize(ops_.size());
    is_gather_.assign(ops_.size(), false);
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      const Collective* const gather = collective_of_tensor_group(ops_[op], CollectiveKind::kAllGather);
      if (gather == nullptr || has_views(ops_[op].writes.front())) continue;
      const SlotIndex whole = ops_[op].writes.front();
      const std::optional<std::size_t> reader = next_use(ops_, op, whole);
      const Gemm* const product = reader ? product_of_rows(ops_[*reader]) : nullptr;
      const bool first_operand = product != nullptr && ops_[*reader].reads.front() == whole;
      if (!first_operand || product->m != slots_[at(whole)].shape.front() || product->m % gather->ranks != 0) continue;
      gather_of_[*reader] = op;
      is_gather_[op] = true;
    }
  }

  void find_scatters() {
    scatter_of_.resize(ops_.size());
    is_scattered_.assign(ops_.size(), false);
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      const Gemm* const product = product_of_rows(ops_[op]);
      if (product == nullptr || gather_of_[op] || product->m < kPipelinePieces || has_views(ops_[op].writes.front())) continue;
      const std::optional<std::size_t> reader = next_use(ops_, op, ops_[op].writes.front());
      if (!reader || collective_of_tensor_group(ops_[*reader], CollectiveKind::kReduceScatter) == nullptr) continue;
      scatter_of_[op] = reader;
      is_scattered_[*reader] = true;
    }
  }

  std::int32_t add(TemplateOp op) {
    made_.push_back(std::move(op));
    return static_cast<std::int32_t>(made_.size()) - 1;
  }

  // What it came after, by new numbers.
  TemplateOp renumbered(std::size_t op) const {
    TemplateOp same = ops_[op];
    for (std::int32_t& before : same.after) before = number_[at(before)];
    return same;
  }

  void add_plain(std::size_t op) {
    TemplateOp same = renumbered(op);
    if (is_gather_[op]) {
      same.stream = OpStream::kTensor;
      if (const std::int32_t last = last_compute(); last >= 0) same.after.push_back(last);
    }
    number_[op] = add(std::move(same));
  }

  // A collective is launched from the compute stream (template_builder op()).
  std::int32_t last_compute() const {
    for (std::size_t op = made_.size(); op-- > 0;) {
      if (made_[op].stream == OpStream::kCompute) return static_cast<std::int32_t>(op);
    }
    return -1;
  }

  static TemplateOp piece(const TemplateOp& product, const char* name, std::int64_t rows) {
    TemplateOp part = product;
    part.name += name;
    std::get<Gemm>(part.work).m = rows;
    return part;
  }

  // The rest adds nothing to what the first piece wrote: it writes other rows of it.
  static void write_on(TemplateOp& rest) { rest.updates = std::exchange(rest.writes, {}); }

  void add_gathered_product(std::size_t op, std::size_t gather) {
    const TemplateOp product = renumbered(op);
    const std::int64_t rows = std::get<Gemm>(product.work).m;
    const std::int64_t last_rows = rows / std::get<Collective>(ops_[gather].work).ranks;
    TemplateOp first = piece(product, ", pieces as they arrive", rows - last_rows);
    const SlotIndex whole = std::exchange(first.reads.front(), ops_[gather].reads.front());
    first.holds.push_back(whole);
    TemplateOp last = piece(product, ", last piece", last_rows);
    write_on(last);
    add(std::move(first));
    number_[op] = add(std::move(last));
  }

  void add_scattered_product(std::size_t op, std::size_t scatter) {
    const TemplateOp product = renumbered(op);
    const std::int64_t rows = std::get<Gemm>(product.work).m;
    TemplateOp rest = piece(product, ", further pieces", rows - rows / kPipelinePieces);
    write_on(rest);
    const std::int32_t first = add(piece(product, ", first piece", rows / kPipelinePieces));
    TemplateOp head = ops_[scatter], tail = ops_[scatter];
    head.stream = tail.stream = OpStream::kTensor;
    auto &head_work = std::get<Collective>(head.work), &tail_work = std::get<Collective>(tail.work);
    tail_work.message = Bytes(head_work.message.value / kPipelinePieces);
    head_work.message -= tail_work.message;
    tail.name += ", last piece";
    // To read it is to wait for what wrote it last, the rest; and the rest would wait for what reads it.
    head.holds = std::exchange(head.reads, {});
    head.after = {first};
    tail.updates = std::exchange(tail.writes, {});
    tail.after.clear();
    add(std::move(head));
    number_[op] = add(std::move(rest));
    tail.after = {number_[op]};
    number_[scatter] = add(std::move(tail));
  }

  const std::vector<Slot>& slots_;
  std::vector<TemplateOp> ops_, made_;
  std::vector<std::optional<std::size_t>> gather_of_, scatter_of_;  // by product
  std::vector<bool> is_gather_, is_scattered_;                      // by collective
  std::vector<std::int32_t> number_;                                // by old op: its last new one
};

}  // namespace

bool overlaps_tensor_collectives(const TemplateContext& context) {
  const ParallelLayout& parallel = context.parallel;
  return parallel.tensor_overlap == TensorOverlap::kRing && parallel.sequence_parallel && parallel.tensor > 1;
}

void overlap_tensor_collectives(LayerTemplate& layer) {
  layer.forward = Overlap(layer.slots, std::move(layer.forward)).overlapped();
  layer.backward = Overlap(layer.slots, std::move(layer.backward)).overlapped();
}

}  // namespace stepsim
