// The largest micro-batch or sequence with which a job fits its cards: found by simulating it. Knows no form of output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/step_run.h"

namespace stepsim {

enum class Growable : std::uint8_t { kMicroBatch, kSequence };

// "micro-batch", "sequence". InputError otherwise.
Growable growable(const std::string& text);

struct SizeTrial {
  std::int64_t size = 0;
  bool fits = false;
  bool by_retries = false;  // only by giving the allocator's cache back amid the step: not counted as fitting
  std::string refused{};    // by the job or the builder, which counts as not fitting; "": it was simulated
  Bytes reserved{};         // of the fullest card
  Duration step{};
};

struct LargestFit {
  Growable what = Growable::kMicroBatch;
  std::int64_t granule = 1;         // sizes are multiples of it
  std::int64_t size = 0;            // 0: not even one granule fits
  std::vector<SizeTrial> trials{};  // by size
  bool gaps = false;                // a smaller size was found that does not fit: memory is not monotone in the size
  const SizeTrial* trial(std::int64_t of_size) const;
};

// Bisection over whole granules between one that fits and one that does not; what is found is checked against its neighbours, two granules
// on either side, and the search goes on from one above that fits. `fits` is asked once for each size, at least one granule.
LargestFit largest_fit(Growable what, std::int64_t granule, std::int64_t start, const std::function<SizeTrial(std::int64_t)>& fits);

// The number of micro-batches stays; a sequence is a multiple of 128 tokens (a kernel's tile) and of what the layout divides it by. Fits:
// without giving cached segments back, beside the least that the process takes.
LargestFit largest_fit(Growable what, const JobInput& input, const Job& job);

// "largest micro-batch that fits: 6 (reserves 75.20 GiB); 7 does not (out of memory)"
std::string largest_fit_text(const LargestFit& fit);

}  // namespace stepsim
