// A graph of whole pipeline passes with given durations: what published schedules and their closed forms are about. Knows no layer and no
// size; steps of models are step_builder.h.
#pragma once

#include <optional>
#include <vector>

#include "models/pipeline_program.h"
#include "sim/cost_model.h"
#include "sim/op_graph.h"
#include "sim/step_result.h"

namespace stepsim {

struct PassDurations {  // of one chunk and micro-batch
  // Where a stage has weight passes but none for a backward pass, that takes backward + weight.
  Duration forward{}, backward{}, weight{};
  std::optional<Duration> pair{};  // of a forward and a whole backward pass that run as one; none: one behind the other
};

// One device a stage. Every pass is an op of its stage's compute stream (layer = chunk), every transfer a rendezvous of streams "pp receive
// forward", "pp send forward", "pp receive backward", "pp send backward", or of one stream "pp" a device under kBlocking: part 0 is the
// receiver's; where chunks go both ways (goes_both_ways), "forward" are transfers to the next stage and "backward" those to the one before.
// A pair is an op of the forward pass, which takes the pair's time, and one of no time behind it. What a chunk hands to another of its
// stage takes none. No launches. Run it on plain_machine() with the device-order ledger.
struct PipelineGraph {
  OpGraph graph;
  std::vector<GivenCostModel::Row> costs;
  // Roles of the storages, each of 1 byte, that a forward pass claims for its chunk and micro-batch: peaks in bytes are passes in flight.
  LabelId until_backward{};  // released by the backward pass
  LabelId until_weight{};    // by the weight pass, where there is none of a micro-batch by its backward pass; none without such passes
};

// `passes` as pipeline_passes() makes them, `of_stage` by stage, `transfer` of every transfer. STEPSIM_CHECK: no negative duration.
PipelineGraph pipeline_graph(const std::vector<StagePasses>& passes, std::int32_t chunks, PointToPoint,
                             const std::vector<PassDurations>& of_stage, Duration transfer, PipelineKind = PipelineKind::k1F1B);

// By stage: the most chunk-micro-batches of the role that are held at one time.
std::vector<std::int64_t> passes_in_flight(const PipelineGraph&, const StepResult&, LabelId role);

}  // namespace stepsim
