// What known policies and planners make of a chain within a budget: the field that fastest_schedule() is compared with. Each answer is a
// schedule that replays within the budget, or none. README.md, "Baselines", says what each can and cannot express.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/studies/chain_sequence.h"

namespace stepsim {

using MaybeSchedule = std::optional<ChainSchedule>;

MaybeSchedule keep_all(const Chain& chain, const ChainBudget& budget);
// Every layer is a checkpoint of its own: full recompute.
MaybeSchedule drop_all(const Chain& chain, const ChainBudget& budget);
// Checkpoints of equally many layers (the last one may have fewer), all run again. All numbers of layers take the same time; of those that
// fit, the one with the least peak.
MaybeSchedule uniform_segments(const Chain& chain, const ChainBudget& budget);
// The first k layers are checkpoints of their own, the others kept: Megatron-LM's recompute method block. The fastest k that fits.
MaybeSchedule block_recompute(const Chain& chain, const ChainBudget& budget);
// Segments of ceil(sqrt(L)) layers, the last one kept (Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost",
// 1604.06174).
MaybeSchedule sqrt_segments(const Chain& chain, const ChainBudget& budget);
// The fastest partition into consecutive segments, each kept or a checkpoint: all that torch.utils.checkpoint can express without nesting.
MaybeSchedule best_segments(const Chain& chain, const ChainBudget& budget);
// The best persistent schedule (rotor.h); sizes in at most `slots` units, exact if the budget has no more than so many.
MaybeSchedule rotor(const Chain& chain, const ChainBudget& budget, std::int64_t slots = 512);
// Layers are taken out of device memory, the most bytes for each unit of time that it costs first, by recompute of the layer or by a copy
// of its saved set, until what is left fits.
MaybeSchedule greedy_by_rate(const Chain& chain, const ChainBudget& budget);
// The plan of the recurrence of POFO (Beaumont, Eyraud-Dubois, Shilova, "Efficient combination of rematerialization and offloading for
// training DNNs", NeurIPS 2021), as ColossalAI's PofoSolver has it, made into a schedule with copies of whole tensors. None without copies.
// The recurrence is an approximation twice over: memory is freed byte by byte as it is copied, at one rate in both directions, and a
// segment that is run again while other tensors come back is taken to last the mean of perfect overlap and none. So its own time is no
// bound and is not returned; where whole tensors do not fit, plans for less memory are tried.
MaybeSchedule pofo(const Chain& chain, const ChainBudget& budget, std::int64_t slots = 24);

struct ChainBaseline {
  std::string name;
  MaybeSchedule schedule{};
  std::int64_t time = 0, peak = 0;  // of its replay; 0 without a schedule
};
// All of the above; those that copy only where the chain has copies and `copies` allows it.
std::vector<ChainBaseline> chain_baselines(const Chain& chain, const ChainBudget& budget, bool copies = true);

}  // namespace stepsim
