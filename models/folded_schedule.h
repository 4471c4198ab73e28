// Orders of passes where each stage has two chunks and micro-batches cross one another: ZB-V (2401.10241 section 6; in the order in which
// torch.distributed.pipelining has it, schedules.py ScheduleZBVZeroBubble) and DualPipe (deepseek-ai/DualPipe dualpipe.py, its eight
// steps). Knows no layer and no time.
//
// Sends never keep compute waiting (StagePasses::waits_for_sends): stages that waited for their sends would wait for one another.
#pragma once

#include "models/pipeline_schedule.h"

namespace stepsim {

// Every backward pass is split. With fewer than 2 x stages - 1 micro-batches: the order of so many without those that are not there.
StagePasses zb_v_passes(std::int32_t stages, std::int32_t micro_batches, std::int32_t stage);

// Backward passes are whole but for those that DualPipe splits: at the ends of the bubbles. `pairs`: a forward and a backward pass of the
// steady state run as one pair (F&B), else one behind the other. STEPSIM_CHECK: stages even, micro-batches even and at least twice as many.
StagePasses dual_pipe_passes(std::int32_t stages, std::int32_t micro_batches, std::int32_t stage, bool pairs);

}  // namespace stepsim
