// A machine that really runs a step: measured steps are StepResults, as simulated ones. Several implementations (cpu/, cuda/); knows no
// model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "hardware/backends/kernel_program.h"
#include "sim/memory_ledger.h"
#include "sim/step_result.h"
#include "sim/units.h"

namespace stepsim {

struct ExecuteOptions {
  // Memory is filled with a pattern (0xFF: NaN) before it is claimed and after its release: a use of what is not there shows in the
  // results. Costs time: not for steps that are timed.
  bool poison = false;
  std::vector<StorageId> observed{};       // whose contents are wanted as they are when released, or at the end. Costs time likewise
  bool restores_random_state = true;       // a re-run draws the numbers of its origin; false: what goes wrong without (a test)
  std::optional<Bytes> device_capacity{};  // of the arena; a claim above it ends the step with StepResult::out_of_memory
};

struct Observation {
  StorageId storage{};
  std::vector<std::byte> contents{};
};

// One rank's measured step.
struct Execution {
  StepResult result{};  // times are the backend's clock since the first op was allowed to start; memory events as they happened
  Bytes device_peak{}, host_peak{};     // counted by the arenas
  std::vector<Observation> observed{};  // in the order of `observed`; empty contents: never claimed
  float gradient_norm = 0;
};

// What ops take alone: nothing runs beside them but, where asked for, copies between device and host memory.
struct MeasuredOps {
  std::vector<Duration> alone{};         // by OpId: medians over the faster half of the repeats
  std::vector<Duration> beside_copy{};   // likewise, while another thread copies; empty if not asked for
  Duration handoff{};                    // from the end of an op to the start of one on another stream that waits for it: lower quartile
  Duration copy_alone{}, copy_beside{};  // medians of one such copy: with nothing beside it, and beside the ops
};

struct MeasureOptions {
  int repeats = 10;
  Bytes copy_beside{};  // bytes of each copy beside the ops; 0: none
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;
  virtual std::string machine_name() const = 0;  // of the processor, for reports
  // When its device memory is claimed and released, and by how much its count of a peak may differ from the ledger's.
  virtual LedgerRule device_ledger() const = 0;
  virtual double peak_tolerance() const = 0;

  // Runs the graph with one program for each of its ranks (tensor-parallel peers, all on this machine). Streams run at the same time; ops
  // start by the rules of the simulator: order within a stream, edges, queues. STEPSIM_CHECK: program_error() finds nothing, streams of
  // collectives are the compute stream or have one.
  virtual std::vector<Execution> execute(const OpGraph&, std::span<const KernelProgram> ranks, const ExecuteOptions&) = 0;

  // Ops one after another in issue order, copies too, each timed.
  virtual MeasuredOps measure(const OpGraph&, const KernelProgram&, const MeasureOptions&) = 0;
};

}  // namespace stepsim
