#include "models/chunk_placement.h"

#include "sim/check.h"

namespace stepsim {

bool goes_both_ways(PipelineKind kind) { return kind == PipelineKind::kZbV || kind == PipelineKind::kDualPipe; }

std::int32_t chunks_of_stage(PipelineKind kind, std::int32_t virtual_stages) { return goes_both_ways(kind) ? 2 : virtual_stages; }

std::int64_t ChunkPlacement::parts() const { return std::int64_t{stages} * chunks / copies(); }

std::int32_t ChunkPlacement::part(ChunkPlace place) const {
  if (!goes_both_ways(kind) || place.chunk == 0) return place.chunk * stages + place.stage;
  return static_cast<std::int32_t>(parts()) - 1 - place.stage;
}

std::optional<ChunkPlace> ChunkPlacement::neighbour(ChunkPlace place, std::int32_t step) const {
  STEPSIM_CHECK(place.stage >= 0);
  STEPSIM_CHECK(place.stage < stages);
  STEPSIM_CHECK(place.chunk >= 0);
  STEPSIM_CHECK(place.chunk < chunks);
  const std::int32_t wanted = part(place) + step;
  if (wanted < 0 || wanted >= parts()) return std::nullopt;
  switch (kind) {
    case PipelineKind::kDualPipe:
      return ChunkPlace{place.chunk == 0 ? wanted : stages - 1 - wanted, place.chunk};
    case PipelineKind::kZbV:
      return wanted < stages ? ChunkPlace{wanted, 0} : ChunkPlace{2 * stages - 1 - wanted, 1};
    case PipelineKind::kGPipe:
    case PipelineKind::k1F1B:
    case PipelineKind::kInterleaved:
    case PipelineKind::kZbH1:
      return ChunkPlace{wanted % stages, wanted / stages};
  }
  check_failed("pipeline kind", __FILE__, __LINE__);
}

std::optional<ChunkPlace> ChunkPlacement::before(ChunkPlace place) const { return neighbour(place, -1); }
std::optional<ChunkPlace> ChunkPlacement::after(ChunkPlace place) const { return neighbour(place, 1); }

bool ChunkPlacement::goes_down(PassKind pass, std::int32_t from_stage, std::int32_t stage) const {
  return goes_both_ways(kind) ? from_stage < stage : pass == PassKind::kForward;
}

MicroBatchRange ChunkPlacement::micro_batches(std::int32_t chunk, std::int32_t all) const {
  if (kind != PipelineKind::kDualPipe) return {0, all};
  return chunk == 0 ? MicroBatchRange{0, all / 2} : MicroBatchRange{all / 2, all};
}

}  // namespace stepsim
