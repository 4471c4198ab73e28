// The accounting behind a run, for one micro-batch on one device of each pipeline stage: per layer, per saved tensor, per op; and what each
// module name selects.
#pragma once

#include <string>
#include <vector>

#include "tools/step_run.h"

namespace stepsim {

struct LayerAccount {
  std::string name;  // "embedding", "layer 3", "head"
  Bytes saved{};     // kept from forward to backward under the placement
  Bytes dropped{};   // saved tensors that are made again
  Bytes moved{};     // of `saved`: on the host meanwhile
  Flops forward{}, backward{}, recompute{};
};

// One claim and release of a tensor's storage: as it was made, made again, copied back from the host.
struct TensorLife {
  std::string born, dies;  // ops; "" for what lives all step; of memory that is freed by event, the copy that the event stands behind
  TimePoint born_at{}, dies_at{};
};

struct TensorAccount {
  std::string layer;
  const SavedTensor* tensor = nullptr;  // of BuiltStep::saved
  std::vector<TensorLife> lives{};
};

struct OpAccount {
  OpId op{};
  std::int32_t stage = 0;  // of its first part: the sender's, of a transfer
  std::string name, phase;
  KernelExplanation kernel{};
  Flops flops{};
  Bytes memory{}, link{};
  TimePoint start{};
  Duration time{};     // from start to end
  Duration slowed{};   // of that, longer than alone: what shares its resources
  Duration waiting{};  // of a rendezvous op: before its start, from when the first of its devices was there
};

struct ModuleAccount {
  std::string name;
  bool discards_output = false;
  std::vector<std::string> tensors{};
  Bytes bytes{};
  std::string layers{};  // "layers 0 to 2": of which kind of layer; "": all are alike
};

struct Explanation {
  std::vector<LayerAccount> layers{};
  std::vector<TensorAccount> tensors{};
  std::vector<OpAccount> ops{};  // in order of start
};

Explanation explanation(const Job& job, const StepRun& run);

// Of one layer of each kind; modules that the kind has not are left out. What --recompute-modules frees, what --offload-modules moves.
std::vector<ModuleAccount> module_table(const Job& job);
std::vector<ModuleAccount> offload_modules_of(const Job& job);

std::string explain_json(const Job& job, const StepRun& run, const Explanation& explained, const std::vector<ModuleAccount>& modules,
                         const std::vector<ModuleAccount>& offload_modules = {});
std::string explain_text(const Job& job, const StepRun& run, const Explanation& explained);
std::string module_table_text(const Job& job, const std::vector<ModuleAccount>& modules,
                              const std::vector<ModuleAccount>& offload_modules = {});

}  // namespace stepsim
