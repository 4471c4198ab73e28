// What the placement section of a job says about offload, over what its named placement says.
#pragma once

#include "models/offload_policy.h"
#include "models/placement_table.h"
#include "tools/job_values.h"

namespace stepsim {

// `policy` has the rows and the preset's offload policy already; `preset`: its name, "" for none. Knobs without anything to move are
// refused. A schedule that the job does not say is noted with where it comes from.
void resolve_offload(JobValues& values, const std::string& preset, PlacementPolicy& policy);

// "core_attn, mlp_norm" or "3 rows": what goes to the host; "" for nothing.
std::string offload_label(const PlacementPolicy& policy);

}  // namespace stepsim
