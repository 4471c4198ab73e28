#include "models/pipeline_program.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "models/chunk_placement.h"
#include "sim/check.h"

namespace stepsim {

std::string_view point_to_point_name(PointToPoint mode) {
  constexpr std::array<std::string_view, 3> kNames = {"blocking", "batched", "overlapped"};
  return kNames[static_cast<std::size_t>(mode)];
}

namespace {

// A transfer has the number of the pass that it feeds: a pass receives at most one. Passes are numbered through all stages.
class PipelineOrder {
 public:
  PipelineOrder(const std::vector<StagePasses>& passes, const ChunkPlacement& placement, PointToPoint mode);
  std::vector<PipelineItem> items() &&;

 private:
  std::int32_t stages() const { return static_cast<std::int32_t>(passes_.size()); }
  std::int32_t number(std::int32_t stage, std::int32_t pass) const { return first_[at(stage)] + pass; }
  std::size_t place(const Pass& pass) const {
    return (at(static_cast<std::int32_t>(pass.kind)) * at(placement_.chunks) + at(pass.chunk)) * at(micro_batches_) + at(pass.micro_batch);
  }
  void index_passes();
  void add_transfers(std::int32_t stage);
  std::optional<ChunkPlace> fed_by(std::int32_t stage, std::int32_t pass) const;
  std::int32_t first_after_exchange(std::int32_t stage, std::int32_t pass) const;
  PipelineItem transfer_to(std::int32_t stage, std::int32_t pass, ChunkPlace from, std::int32_t posted_after) const;
  std::int32_t length(std::int32_t stage, std::int32_t pass) const { return passes_[at(stage)].pairs_with_next(pass) ? 2 : 1; }
  bool is_ready(std::int32_t stage) const;
  void list_pass(std::int32_t stage);
  void settle(std::int32_t transfer);  // one of the things that the transfer waits for is there
  void let_go(std::int32_t stage, std::int32_t pass);

  const std::vector<StagePasses>& passes_;
  const ChunkPlacement placement_;
  const PointToPoint mode_;
  std::int32_t micro_batches_ = 0;
  std::vector<std::int32_t> first_;               // by stage: the number of its first pass
  std::vector<std::vector<std::int32_t>> found_;  // by stage and place(): where the pass stands, -1: nowhere
  std::vector<PipelineItem> transfers_;           // by number; from_stage -1: none
  std::vector<std::int32_t> waits_for_;           // by number: passes that the transfer still waits for
  std::vector<std::int32_t> held_by_;             // by number: transfers that the pass still waits for
  std::vector<std::int32_t> sends_;               // by number: the transfer of what the pass makes, -1: none
  std::vector<std::int32_t> posts_, next_post_;   // by number: the first transfer posted after the pass, and behind a transfer the next
  std::vector<std::int32_t> next_;                // by stage: the next pass
  std::vector<std::int32_t> ready_;               // stages whose next pass waits for nothing: of the next sweep
  std::vector<PipelineItem> items_;
};

PipelineOrder::PipelineOrder(const std::vector<StagePasses>& passes, const ChunkPlacement& placement, PointToPoint mode)
    : passes_(passes), placement_(placement), mode_(mode) {
  index_passes();
  const std::size_t count = transfers_.size();
  waits_for_.assign(count, 0);
  held_by_.assign(count, 0);
  sends_.assign(count, -1);
  posts_.assign(count, -1);
  next_post_.assign(count, -1);
  next_.assign(passes.size(), 0);
  items_.reserve(2 * count);
  for (std::int32_t stage = 0; stage < stages(); ++stage) add_transfers(stage);
}

void PipelineOrder::index_passes() {
  STEPSIM_CHECK(!passes_.empty());
  STEPSIM_CHECK(placement_.chunks >= 1);
  std::size_t count = 0;
  for (const StagePasses& stage : passes_) {
    STEPSIM_CHECK(stage.exchanges.size() == stage.passes.size());
    first_.push_back(static_cast<std::int32_t>(count));
    count += stage.passes.size();
    STEPSIM_CHECK(count <= at(std::numeric_limits<std::int32_t>::max()));
    for (const Pass& pass : stage.passes) micro_batches_ = std::max(micro_batches_, pass.micro_batch + 1);
  }
  for (const StagePasses& stage : passes_) {
    std::vector<std::int32_t>& found = found_.emplace_back(3 * at(placement_.chunks) * at(micro_batches_), -1);
    for (std::size_t i = 0; i < stage.passes.size(); ++i) {
      const Pass& pass = stage.passes[i];
      STEPSIM_CHECK(pass.chunk >= 0);
      STEPSIM_CHECK(pass.chunk < placement_.chunks);
      STEPSIM_CHECK(pass.micro_batch >= 0);
      STEPSIM_CHECK(found[place(pass)] == -1);
      found[place(pass)] = static_cast<std::int32_t>(i);
    }
  }
  transfers_.assign(count, {.is_transfer = true, .from_stage = -1});
}

// The chunk that makes what the pass needs; none if it needs nothing from another stage.
std::optional<ChunkPlace> PipelineOrder::fed_by(std::int32_t stage, std::int32_t index) const {
  const Pass& pass = passes_[at(stage)].passes[at(index)];
  if (pass.kind == PassKind::kWeight) return std::nullopt;
  const ChunkPlace here{stage, pass.chunk};
  const std::optional<ChunkPlace> from = pass.kind == PassKind::kForward ? placement_.before(here) : placement_.after(here);
  if (!from || from->stage != stage) return from;
  const std::int32_t found = found_[at(stage)][place({pass.kind, from->chunk, pass.micro_batch})];
  STEPSIM_CHECK(found >= 0);
  STEPSIM_CHECK(found < index);
  return std::nullopt;
}

// The pass behind the first exchange at or after the pass; -1: none.
std::int32_t PipelineOrder::first_after_exchange(std::int32_t stage, std::int32_t pass) const {
  const StagePasses& of = passes_[at(stage)];
  const auto count = static_cast<std::int32_t>(of.passes.size());
  while (pass < count && !of.exchanges[at(pass)]) ++pass;
  return pass + 1 < count ? pass + 1 : -1;
}

PipelineItem PipelineOrder::transfer_to(std::int32_t stage, std::int32_t index, ChunkPlace from, std::int32_t posted_after) const {
  Pass made = passes_[at(stage)].passes[at(index)];
  made.chunk = from.chunk;
  PipelineItem transfer{.is_transfer = true, .stage = stage, .pass = index, .from_stage = from.stage};
  transfer.from_pass = found_[at(from.stage)][place(made)];
  STEPSIM_CHECK(transfer.from_pass >= 0);
  transfer.posted_after = posted_after;
  if (mode_ == PointToPoint::kOverlapped) return transfer;
  if (passes_[at(from.stage)].waits_for_sends) transfer.sender_waits = first_after_exchange(from.stage, transfer.from_pass);
  transfer.receiver_waits = posted_after + 1;
  return transfer;
}

// Those that feed passes of the stage.
void PipelineOrder::add_transfers(std::int32_t stage) {
  const StagePasses& of = passes_[at(stage)];
  const auto count = static_cast<std::int32_t>(of.passes.size());
  std::int32_t exchange = -1;                       // the last one before the pass
  std::array<std::int32_t, 3> last = {-1, -1, -1};  // by kind: the last pass before
  for (std::int32_t i = 0; i < count; ++i) {
    std::int32_t& last_of_kind = last[static_cast<std::size_t>(of.passes[at(i)].kind)];
    if (!of.waits_for_sends && (i == 0 || length(stage, i - 1) == 1)) exchange = i - 1;
    const std::int32_t posted_after = mode_ == PointToPoint::kOverlapped ? last_of_kind : exchange;
    last_of_kind = i;
    if (const std::optional<ChunkPlace> from = fed_by(stage, i)) {
      transfers_[at(number(stage, i))] = transfer_to(stage, i, *from, posted_after);
    }
    if (of.exchanges[at(i)]) exchange = i;
  }
  // From the last, so that the transfers posted after one pass are met in the order of what they feed.
  for (std::int32_t i = count - 1; i >= 0; --i) {
    const std::int32_t transfer = number(stage, i);
    const PipelineItem& item = transfers_[at(transfer)];
    if (item.from_stage < 0) continue;
    waits_for_[at(transfer)] = item.posted_after < 0 ? 1 : 2;
    sends_[at(number(item.from_stage, item.from_pass))] = transfer;
    ++held_by_[at(transfer)];
    if (item.sender_waits >= 0) ++held_by_[at(number(item.from_stage, item.sender_waits))];
    if (item.receiver_waits >= 0) ++held_by_[at(number(stage, item.receiver_waits))];
    if (item.posted_after < 0) continue;
    std::int32_t& first = posts_[at(number(stage, item.posted_after))];
    next_post_[at(transfer)] = first;
    first = transfer;
  }
}

void PipelineOrder::settle(std::int32_t transfer) {
  if (--waits_for_[at(transfer)] > 0) return;
  const PipelineItem& item = transfers_[at(transfer)];
  items_.push_back(item);
  let_go(item.stage, item.pass);
  if (item.sender_waits >= 0) let_go(item.from_stage, item.sender_waits);
  if (item.receiver_waits >= 0) let_go(item.stage, item.receiver_waits);
}

// A transfer that the pass waited for is there.
void PipelineOrder::let_go(std::int32_t stage, std::int32_t pass) {
  if (--held_by_[at(number(stage, pass))] > 0) return;
  const std::int32_t next = next_[at(stage)];
  if (pass >= next && is_ready(stage) && pass < next + length(stage, next)) ready_.push_back(stage);
}

// It has a next pass or pair that waits for no transfer.
bool PipelineOrder::is_ready(std::int32_t stage) const {
  const std::int32_t next = next_[at(stage)];
  if (at(next) >= passes_[at(stage)].passes.size()) return false;
  return held_by_[at(number(stage, next))] == 0 && (length(stage, next) == 1 || held_by_[at(number(stage, next + 1))] == 0);
}

void PipelineOrder::list_pass(std::int32_t stage) {
  const std::int32_t pass = next_[at(stage)], passes = length(stage, pass);
  next_[at(stage)] += passes;
  items_.push_back({.stage = stage, .pass = pass, .pair = passes == 2});
  if (is_ready(stage)) ready_.push_back(stage);  // before anything is let go, which looks at the next pass again
  for (std::int32_t listed = number(stage, pass); listed < number(stage, pass) + passes; ++listed) {
    if (sends_[at(listed)] >= 0) settle(sends_[at(listed)]);
    for (std::int32_t transfer = posts_[at(listed)]; transfer >= 0; transfer = next_post_[at(transfer)]) settle(transfer);
  }
}

// Sweep by sweep, as if every pass took one unit of time and a transfer none: in a sweep each stage runs its next pass if all that it waits
// for was there before the sweep. A stage gets ready once for each pass: a sweep looks at no other.
std::vector<PipelineItem> PipelineOrder::items() && {
  for (std::int32_t stage = 0; stage < stages(); ++stage) {
    if (is_ready(stage)) ready_.push_back(stage);
  }
  std::vector<std::int32_t> sweep;
  while (!ready_.empty()) {
    sweep.clear();
    std::swap(sweep, ready_);
    std::sort(sweep.begin(), sweep.end());
    for (const std::int32_t stage : sweep) list_pass(stage);
  }
  for (std::int32_t stage = 0; stage < stages(); ++stage) STEPSIM_CHECK(at(next_[at(stage)]) == passes_[at(stage)].passes.size());
  return std::move(items_);
}

}  // namespace

std::vector<PipelineItem> pipeline_program(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint mode,
                                           PipelineKind kind) {
  const ChunkPlacement placement{kind, static_cast<std::int32_t>(passes.size()), chunks};
  return PipelineOrder(passes, placement, mode).items();
}

}  // namespace stepsim
