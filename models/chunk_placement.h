// Where the parts of a model lie on a pipeline, and through which model chunks a micro-batch goes: the one place that knows it.
//   round robin (GPipe, 1F1B, interleaved, ZB-H1): chunk c of stage s is part c x stages + s.
//   ZB-V: two chunks a stage, parts s and 2 x stages - 1 - s: down the stages and back (2401.10241 section 6).
//   DualPipe: as many parts as stages, each twice: chunk 0 of stage s is part s, chunk 1 part stages - 1 - s. The first half of the
//   micro-batches goes through chunks 0 from stage 0 down, the second half through chunks 1 from the last stage up
//   (deepseek-ai/DualPipe dualpipe.py).
#pragma once

#include <cstdint>
#include <optional>

#include "models/pipeline_schedule.h"

namespace stepsim {

struct ChunkPlace {
  std::int32_t stage = 0, chunk = 0;
  friend bool operator==(const ChunkPlace&, const ChunkPlace&) = default;
};

// A run of micro-batches, the end not included.
struct MicroBatchRange {
  std::int32_t begin = 0, end = 0;
};

struct ChunkPlacement {
  PipelineKind kind = PipelineKind::k1F1B;
  std::int32_t stages = 1, chunks = 1;  // chunks of a stage

  std::int64_t parts() const;                                                      // of the model
  std::int32_t copies() const { return kind == PipelineKind::kDualPipe ? 2 : 1; }  // stages that hold each part
  std::int32_t part(ChunkPlace) const;
  // On a micro-batch's way: whose forward pass feeds that of the chunk, and whose it feeds. None at the ends of the model.
  std::optional<ChunkPlace> before(ChunkPlace) const;
  std::optional<ChunkPlace> after(ChunkPlace) const;
  // Whether a transfer of a forward or backward pass runs on the streams of what goes down: what forward passes hand on. Where chunks go
  // both ways, whatever goes to a higher stage: one stream for each neighbour and direction, as one communicator has them.
  bool goes_down(PassKind, std::int32_t from_stage, std::int32_t stage) const;
  // That go through the chunk, of so many in all.
  MicroBatchRange micro_batches(std::int32_t chunk, std::int32_t all) const;

 private:
  std::optional<ChunkPlace> neighbour(ChunkPlace, std::int32_t step) const;
};

// Chunks of a stage: two where a schedule folds the model, whatever the user says; else as many as virtual stages.
std::int32_t chunks_of_stage(PipelineKind, std::int32_t virtual_stages);
// ZB-V and DualPipe.
bool goes_both_ways(PipelineKind);

}  // namespace stepsim
