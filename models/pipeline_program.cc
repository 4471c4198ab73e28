#include "models/pipeline_program.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/check.h"

namespace stepsim {

std::string_view point_to_point_name(PointToPoint mode) {
  constexpr std::array<std::string_view, 3> kNames = {"blocking", "batched", "overlapped"};
  return kNames[static_cast<std::size_t>(mode)];
}

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// A transfer has the number of the pass that it feeds: a pass receives at most one. Passes are numbered through all stages.
class PipelineOrder {
 public:
  PipelineOrder(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint mode);
  std::vector<PipelineItem> items() &&;

 private:
  std::int32_t stages() const { return static_cast<std::int32_t>(passes_.size()); }
  std::int32_t number(std::int32_t stage, std::int32_t pass) const { return first_[at(stage)] + pass; }
  std::size_t place(const Pass& pass) const {
    return (at(static_cast<std::int32_t>(pass.kind)) * at(chunks_) + at(pass.chunk)) * at(micro_batches_) + at(pass.micro_batch);
  }
  void index_passes();
  void add_transfers(std::int32_t stage);
  std::int32_t stage_before(std::int32_t stage, const Pass& pass) const;
  std::int32_t first_after_exchange(std::int32_t stage, std::int32_t pass) const;
  void list_pass(std::int32_t stage);
  void look_at(std::int32_t stage);
  void settle(std::int32_t transfer);  // one of the things that the transfer waits for is there
  void let_go(std::int32_t stage, std::int32_t pass);

  const std::vector<StagePasses>& passes_;
  const std::int32_t chunks_;
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

PipelineOrder::PipelineOrder(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint mode)
    : passes_(passes), chunks_(chunks), mode_(mode) {
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
  STEPSIM_CHECK(chunks_ >= 1);
  std::size_t count = 0;
  for (const StagePasses& stage : passes_) {
    STEPSIM_CHECK(stage.exchanges.size() == stage.passes.size());
    first_.push_back(static_cast<std::int32_t>(count));
    count += stage.passes.size();
    STEPSIM_CHECK(count <= at(std::numeric_limits<std::int32_t>::max()));
    for (const Pass& pass : stage.passes) micro_batches_ = std::max(micro_batches_, pass.micro_batch + 1);
  }
  for (const StagePasses& stage : passes_) {
    std::vector<std::int32_t>& found = found_.emplace_back(3 * at(chunks_) * at(micro_batches_), -1);
    for (std::size_t i = 0; i < stage.passes.size(); ++i) {
      const Pass& pass = stage.passes[i];
      STEPSIM_CHECK(pass.chunk >= 0);
      STEPSIM_CHECK(pass.chunk < chunks_);
      STEPSIM_CHECK(pass.micro_batch >= 0);
      STEPSIM_CHECK(found[place(pass)] == -1);
      found[place(pass)] = static_cast<std::int32_t>(i);
    }
  }
  transfers_.assign(count, {.is_transfer = true, .from_stage = -1});
}

// The stage that makes what the pass needs; its own if it needs nothing from another.
std::int32_t PipelineOrder::stage_before(std::int32_t stage, const Pass& pass) const {
  if (pass.kind == PassKind::kWeight) return stage;
  const bool forward = pass.kind == PassKind::kForward;
  const std::int64_t part = std::int64_t{pass.chunk} * stages() + stage + (forward ? -1 : 1);
  const bool inside = part >= 0 && part < std::int64_t{chunks_} * stages();
  return inside ? static_cast<std::int32_t>(part % stages()) : stage;
}

// The pass behind the first exchange at or after the pass; -1: none.
std::int32_t PipelineOrder::first_after_exchange(std::int32_t stage, std::int32_t pass) const {
  const StagePasses& of = passes_[at(stage)];
  const auto count = static_cast<std::int32_t>(of.passes.size());
  while (pass < count && !of.exchanges[at(pass)]) ++pass;
  return pass + 1 < count ? pass + 1 : -1;
}

// Those that feed passes of the stage.
void PipelineOrder::add_transfers(std::int32_t stage) {
  const StagePasses& of = passes_[at(stage)];
  const auto count = static_cast<std::int32_t>(of.passes.size());
  std::int32_t exchange = -1;                       // the last one before the pass
  std::array<std::int32_t, 3> last = {-1, -1, -1};  // by kind: the last pass before
  for (std::int32_t i = 0; i < count; ++i) {
    const Pass& pass = of.passes[at(i)];
    const std::int32_t posted_after = mode_ == PointToPoint::kOverlapped ? last[static_cast<std::size_t>(pass.kind)] : exchange;
    last[static_cast<std::size_t>(pass.kind)] = i;
    const std::int32_t before = stage_before(stage, pass);
    if (before != stage) {
      const bool forward = pass.kind == PassKind::kForward;
      Pass from = pass;
      if (forward && before > stage) --from.chunk;
      if (!forward && before < stage) ++from.chunk;
      PipelineItem& transfer = transfers_[at(number(stage, i))];
      transfer.stage = stage;
      transfer.pass = i;
      transfer.from_stage = before;
      transfer.from_pass = found_[at(before)][place(from)];
      STEPSIM_CHECK(transfer.from_pass >= 0);
      transfer.posted_after = posted_after;
      if (mode_ != PointToPoint::kOverlapped) {
        transfer.sender_waits = first_after_exchange(before, transfer.from_pass);
        transfer.receiver_waits = posted_after + 1;
      }
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
  if (--held_by_[at(number(stage, pass))] == 0 && next_[at(stage)] == pass) ready_.push_back(stage);
}

// The stage is ready if it has a next pass that waits for no transfer.
void PipelineOrder::look_at(std::int32_t stage) {
  const std::int32_t pass = next_[at(stage)];
  if (at(pass) < passes_[at(stage)].passes.size() && held_by_[at(number(stage, pass))] == 0) ready_.push_back(stage);
}

void PipelineOrder::list_pass(std::int32_t stage) {
  const std::int32_t pass = next_[at(stage)]++;
  const std::int32_t listed = number(stage, pass);
  items_.push_back({.stage = stage, .pass = pass});
  look_at(stage);  // before anything is let go, which looks at the next pass again
  if (sends_[at(listed)] >= 0) settle(sends_[at(listed)]);
  for (std::int32_t transfer = posts_[at(listed)]; transfer >= 0; transfer = next_post_[at(transfer)]) settle(transfer);
}

// Sweep by sweep, as if every pass took one unit of time and a transfer none: in a sweep each stage runs its next pass if all that it waits
// for was there before the sweep. A stage gets ready once for each pass: a sweep looks at no other.
std::vector<PipelineItem> PipelineOrder::items() && {
  for (std::int32_t stage = 0; stage < stages(); ++stage) look_at(stage);
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

std::vector<PipelineItem> pipeline_program(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint mode) {
  return PipelineOrder(passes, chunks, mode).items();
}

}  // namespace stepsim
