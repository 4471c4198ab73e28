// All passes of all stages and the transfers between them in one order, in which a graph can be written: whatever a pass or a transfer
// waits for stands before it. Knows no layer, no size and no time.
//
// A transfer carries a forward pass's output to the next model part's forward pass, or a backward pass's input gradient to the previous
// part's backward pass, when those are on different stages.
#pragma once

#include <cstdint>
#include <vector>

#include "models/pipeline_schedule.h"

namespace stepsim {

enum class PointToPoint : std::uint8_t {
  kBlocking,    // compute waits for each exchange, all transfers of a device one behind another
  kBatched,     // compute waits for each exchange, whose transfers go at once (ncclGroup: batch_isend_irecv)
  kOverlapped,  // sends run beside compute; a receive is posted after the previous pass of its kind on its stage
};
std::string_view point_to_point_name(PointToPoint);  // "blocking", "batched", "overlapped"

struct PipelineItem {
  bool is_transfer = false;
  std::int32_t stage = 0, pass = 0;            // of the pass; of the pass that the transfer feeds: index into that stage's passes
  std::int32_t from_stage = 0, from_pass = 0;  // transfers: the pass that made what is sent
  std::int32_t posted_after = -1;              // transfers: pass of `stage` after which the receive is posted; -1: from the start
  // Transfers: the first pass of the sending stage that waits until the transfer is over, and of the receiving one (`pass` waits in any
  // case). -1: none. Not under kOverlapped.
  std::int32_t sender_waits = -1, receiver_waits = -1;
  bool pair = false;  // passes `pass` and `pass` + 1, of one pair
  friend bool operator==(const PipelineItem&, const PipelineItem&) = default;
};

// The order is that of passes of one unit of time each: sweep by sweep, every stage whose next pass has all that it waits for lists it,
// stages ascending; a transfer follows the pass that it waited for last. Transfers of one directed pair of stages and one kind stand in the
// order in which they are sent, which is that in which they are received (of one chunk, where chunks go both ways). None of the kinds
// blocks under any PointToPoint (tested for p <= 9, v <= 5, m <= 40). `passes` as pipeline_passes() makes them, `chunks` model chunks a
// stage, which lie as the kind says. Every pass occurs once, in the order of its stage, passes of a pair in one item; a transfer stands
// behind `from_pass` and `posted_after` and before `pass`, `sender_waits` and `receiver_waits`. What a chunk hands to another of its own
// stage is no transfer. STEPSIM_CHECK if the passes of the stages wait for one another, or one of them is missing or occurs twice.
std::vector<PipelineItem> pipeline_program(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint,
                                           PipelineKind = PipelineKind::k1F1B);

}  // namespace stepsim
