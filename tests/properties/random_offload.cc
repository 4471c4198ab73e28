#include "tests/properties/random_offload.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "tests/unit/models/small_step.h"

namespace stepsim {

namespace {

const std::vector<std::string> kTensors = {"input", "norm output", "statistics", "fc1 output", "act output", "mask"};

class RandomChoices {
 public:
  RandomChoices(std::uint64_t seed, bool in_place) : random_(seed), in_place_(in_place) {}

  std::int64_t upto(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return upto(1, 100) <= percent; }

  OffloadSelection selection(std::int64_t layers) {
    OffloadSelection selection;
    if (chance(50)) {
      selection.names = {"*"};
    } else {
      for (const char* const name : {"mlp_fc2", "fc1 output", "input", "mlp_fc1", "mask", "norm output"}) {
        if (chance(45)) selection.names.push_back(name);
      }
    }
    if (chance(20)) selection.first_layers = upto(1, layers);
    if (chance(30)) selection.keep_last_layers = upto(0, layers);
    if (chance(20)) selection.keep_last_groups = upto(0, 4);
    selection.keep_last_of_each_name = chance(20);
    if (chance(20)) selection.groups_fraction = 0.25 * static_cast<double>(upto(1, 4));
    if (chance(20)) selection.least_elements = upto(1, 20);
    if (chance(20)) selection.least_bytes = Bytes(upto(1, 20));
    if (chance(20)) selection.budget = Bytes(upto(0, 300));
    if (chance(20)) selection.less_per_stage = Bytes(upto(0, 100));
    return selection;
  }

  OffloadSchedule schedule() {
    OffloadSchedule schedule;
    schedule.copy_out = static_cast<CopyOutPlace>(upto(0, 3));
    schedule.copy_out_waits_for_compute = chance(50);
    schedule.release = static_cast<ReleasePlace>(upto(0, 4));
    schedule.release_distance = upto(0, 3);
    schedule.paced_by_kept_layers = chance(15);
    schedule.in_place = chance(30);
    if (chance(40)) schedule.in_flight = upto(0, 3);
    schedule.copy_in = static_cast<CopyInPlace>(upto(0, 2));
    schedule.lookahead = upto(0, 3);
    schedule.copy_in_waits_for_compute = chance(50);
    schedule.synchronous = chance(15);
    schedule.streams = static_cast<std::int32_t>(upto(1, kMostCopyStreams));
    schedule.engines = static_cast<std::int32_t>(upto(1, 2));
    schedule.pinned = chance(70);
    schedule.allocates = chance(30);
    schedule.power_of_two = chance(30);
    schedule.pool_never_shrinks = chance(30);
    schedule.host_lifetime = static_cast<HostLifetime>(upto(0, 3));
    return schedule;
  }

  // Of recomputation; rows too.
  PlacementPolicy placement(std::int64_t layers, std::int64_t chunk_layers, std::int64_t micro_batches) {
    PlacementPolicy policy;
    const std::int64_t kind = upto(0, 5);
    if (kind == 1) policy.granularity = RecomputeGranularity::kFull;
    if (kind == 1) policy.method = chance(50) ? RecomputeMethod::kUniform : RecomputeMethod::kBlock;
    if (kind == 1) policy.num_layers = upto(1, layers);
    if (kind == 2) policy.granularity = RecomputeGranularity::kSelective;
    if (kind == 2) policy.modules = {chance(50) ? "mlp" : "layernorm"};
    if (kind == 3) policy.segments = upto(1, chunk_layers);
    if (kind == 4) policy.halving = true;
    const bool whole = kind == 1 || kind == 3 || kind == 4;  // no rows that recompute
    for (std::int64_t row = upto(0, 4); row > 0; --row) policy.rows.push_back(random_row(layers, micro_batches, whole));
    return policy;
  }

 private:
  PlacementRow random_row(std::int64_t layers, std::int64_t micro_batches, bool only_offload) {
    PlacementRow row;
    row.first_layer = upto(0, layers - 1);
    row.last_layer = chance(50) ? -1 : upto(row.first_layer, layers - 1);
    row.action = only_offload || chance(60) ? PlacementAction::kOffload : chance(70) ? PlacementAction::kRecompute : PlacementAction::kKeep;
    const bool offloads = row.action == PlacementAction::kOffload;
    row.module_or_slot = chance(25) ? "*" : kTensors[static_cast<std::size_t>(upto(offloads ? 0 : 1, std::ssize(kTensors) - 1))];
    if (row.module_or_slot == "act output" && in_place_) row.module_or_slot = "fc1 output";
    if (offloads && chance(40)) {
      row.of_slices = static_cast<std::int32_t>(upto(2, 4));
      row.slices = static_cast<std::int32_t>(upto(1, row.of_slices));
    }
    if (chance(70)) return row;
    row.first_micro_batch = upto(0, micro_batches - 1);
    row.last_micro_batch = chance(50) ? -1 : upto(row.first_micro_batch, micro_batches - 1);
    return row;
  }

  std::mt19937_64 random_;
  bool in_place_;
};

std::string text_of(const StepRequest& request) {
  const PlacementPolicy& policy = request.placement;
  const OffloadSchedule& schedule = policy.offload.schedule;
  std::string text = "layers " + std::to_string(request.model.layers) + " batch " + std::to_string(request.training.global_batch) + " pp " +
                     std::to_string(request.parallel.pipeline) + " dp " + std::to_string(request.parallel.data) + " zero " +
                     std::to_string(request.parallel.zero) + " schedule " + std::to_string(static_cast<int>(request.parallel.schedule)) +
                     " recompute " + std::to_string(static_cast<int>(policy.granularity)) + " segments " + std::to_string(policy.segments) +
                     " halving " + std::to_string(policy.halving) + " out " + std::to_string(static_cast<int>(schedule.copy_out)) +
                     " release " + std::to_string(static_cast<int>(schedule.release)) + " in " +
                     std::to_string(static_cast<int>(schedule.copy_in)) + " lookahead " + std::to_string(schedule.lookahead) +
                     " synchronous " + std::to_string(schedule.synchronous) + " lifetime " +
                     std::to_string(static_cast<int>(schedule.host_lifetime)) + " names";
  for (const std::string& name : policy.offload.selection.names) text += " \"" + name + '"';
  for (const PlacementRow& row : policy.rows) {
    text += "; row " + std::to_string(row.first_layer) + ".." + std::to_string(row.last_layer) + " \"" + row.module_or_slot + "\" action " +
            std::to_string(static_cast<int>(row.action)) + " slices " + std::to_string(row.slices) + "/" + std::to_string(row.of_slices);
  }
  return text;
}

}  // namespace

StepTemplates offload_templates(bool in_place, std::int64_t gradient_bytes) {
  StepTemplates templates = small_templates(gradient_bytes);
  LayerTemplate layer{.name = "layer", .slots = {}, .forward = {}, .backward = {}};
  layer.slots = {small_slot("input", SlotKind::kInput, 8),                                                   // 0
                 small_slot("norm output", SlotKind::kForward, 17, "layernorm"),                             // 1
                 small_slot("statistics", SlotKind::kForward, 3),                                            // 2
                 small_slot("fc1 output", SlotKind::kForward, 40, "mlp"),                                    // 3
                 small_slot("gate", SlotKind::kForward, 20, "mlp"),                                          // 4, a view of 3
                 small_slot("act output", in_place ? SlotKind::kWorkspace : SlotKind::kForward, 15, "mlp"),  // 5
                 small_slot("mask", SlotKind::kForward, 5),                                                  // 6
                 small_slot("output", SlotKind::kForward, 8),                                                // 7
                 small_slot("output gradient", SlotKind::kInput, 8),                                         // 8
                 small_slot("act gradient", SlotKind::kGradient, 15),                                        // 9
                 small_slot("fc1 gradient", SlotKind::kGradient, 40),                                        // 10
                 small_slot("norm gradient", SlotKind::kGradient, 17),                                       // 11
                 small_slot("input gradient", SlotKind::kGradient, 8),                                       // 12
                 small_slot("weight", SlotKind::kWeight, 200),                                               // 13
                 small_slot("weight gradient", SlotKind::kWeightGradient, 100 * gradient_bytes)};            // 14
  layer.slots[4].view_of = 3;
  layer.forward = {small_op("norm", {0}, {1, 2}, {}, "layernorm"), small_op("fc1", {1, 13}, {3}, {}, "mlp"),
                   small_op("act", {4}, {5}, {}, "mlp"), small_op("fc2", {5, 0, 13}, {7, 6}, {}, "mlp")};
  layer.backward = {small_op("fc2 input gradient", {8, 6, 13}, {9}),
                    small_op("fc2 weight gradient", {8, 5}, {}, {14}),
                    small_op("act backward", {9, 3}, {10}),
                    small_op("fc1 input gradient", {10, 13}, {11}),
                    small_op("fc1 weight gradient", {10, 1}, {}, {14}),
                    small_op("norm backward", {11, 0, 2}, {12})};
  if (in_place) {
    layer.forward[2] = small_op("act", {}, {}, {3}, "mlp");
    layer.forward[3] = small_op("fc2", {3, 0, 13}, {7, 6}, {}, "mlp");
    layer.backward[1] = small_op("fc2 weight gradient", {8, 4}, {}, {14});
  }
  layer.input = 0;
  layer.output = 7;
  layer.output_gradient = 8;
  layer.input_gradient = 12;
  layer.parameters = 100;
  templates.kinds.front() = layer;
  return templates;
}

RandomStep random_offload_step(std::uint64_t seed) {
  RandomChoices shape(seed * 2 + 1, false);
  const bool in_place = shape.chance(30);
  RandomChoices random(seed, in_place);
  constexpr PipelineKind kKinds[] = {PipelineKind::k1F1B, PipelineKind::kGPipe, PipelineKind::kInterleaved, PipelineKind::kZbH1};
  const auto stages = static_cast<std::int32_t>(random.chance(50) ? 1 : random.upto(2, 3));
  const PipelineKind kind = stages == 1 ? PipelineKind::k1F1B : kKinds[random.upto(0, 3)];
  const std::int32_t chunks = kind == PipelineKind::kInterleaved ? 2 : 1;
  const std::int64_t chunk_layers = random.upto(1, stages == 1 ? 6 : 3), layers = chunk_layers * stages * chunks;
  const std::int64_t micro_batches = chunks > 1 ? stages * random.upto(1, 2) : random.upto(1, 4);
  StepRequest request = staged_request(layers, stages, micro_batches, kind, chunks);
  if (random.chance(40)) {
    request.parallel.data = 2;
    request.parallel.zero = kind == PipelineKind::k1F1B && stages == 1 ? static_cast<std::int32_t>(random.upto(0, 3)) : 0;
    request.parallel.overlap_gradient_reduce = request.parallel.zero >= 2 || random.chance(50);
    request.parallel.bucket = Bytes(random.upto(0, 600));
    request.training.global_batch = micro_batches * 2;
  }
  request.framework.host_issue = random.chance(50);
  request.framework.stops_after_last_saved = random.chance(50);
  request.placement = random.placement(layers, chunk_layers, micro_batches);
  request.placement.offload = {.selection = random.selection(layers), .schedule = random.schedule()};
  const bool half = request.parallel.zero >= 2;
  if (half) request.training.gradient_dtype = DType::kBf16;
  return {request, offload_templates(in_place, half ? 2 : 4), "seed " + std::to_string(seed) + ": " + text_of(request)};
}

StepRequest without_offload(const StepRequest& request) {
  StepRequest kept = request;
  kept.placement.offload = {};
  kept.placement.rows.clear();
  const PlacementPolicy& given = request.placement;
  const bool whole = given.granularity == RecomputeGranularity::kFull || given.segments > 0 || given.halving;
  if (whole) return kept;
  for (PlacementRow row : given.rows) {
    row.slices = row.of_slices = 1;
    if (row.action == PlacementAction::kOffload) row.action = PlacementAction::kKeep;
    kept.placement.rows.push_back(row);
  }
  return kept;
}

}  // namespace stepsim
