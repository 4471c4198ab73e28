// What a pipeline schedule cannot be run with, beyond what check_layout() refuses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/step_builder.h"

namespace stepsim {

// InputError, "--schedule: found X, wanted Y" or the flag that the schedule does not go with: ZB-V and DualPipe with one stage, with other
// virtual stages than their two, with gradients sharded between passes (ZeRO 2 and 3), with a tied table (both of its holders' chunks would
// be on one device); DualPipe with an odd number of stages, or with micro-batches that are odd or fewer than two a stage
// (deepseek-ai/DualPipe dualpipe.py step()). `micro_batches` of a step.
void check_pipeline(const StepRequest&, std::int64_t micro_batches);

// Whether passes run as pairs: exchanges between experts that ops of the templates make beside compute are to overlap
// (ParallelLayout::overlap_expert_exchange), and the schedule has pairs: 1F1B with one stage, interleaved, DualPipe. The layout has
// everything decided.
bool runs_pairs(const ParallelLayout&, const StepTemplates&);

// Of exchanges that are asked to overlap and do not.
void warn_of_exposed_exchanges(const ParallelLayout&, const StepTemplates&, std::vector<std::string>& warnings);

}  // namespace stepsim
