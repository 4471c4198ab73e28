#include "tools/largest_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "sim/check.h"

namespace stepsim {

Growable growable(const std::string& text) {
  if (text == "micro-batch") return Growable::kMicroBatch;
  if (text == "sequence") return Growable::kSequence;
  throw InputError({"--max"}, "found \"" + text + "\", wanted micro-batch or sequence");
}

const SizeTrial* LargestFit::trial(std::int64_t of_size) const {
  const auto found = std::find_if(trials.begin(), trials.end(), [&](const SizeTrial& each) { return each.size == of_size; });
  return found == trials.end() ? nullptr : &*found;
}

namespace {

constexpr std::int64_t kMostGranules = std::int64_t{1} << 24;  // beyond, sizes are absurd whatever fits

// Sizes in granules; each tried once.
class Search {
 public:
  Search(std::int64_t granule, const std::function<SizeTrial(std::int64_t)>& trial) : granule_(granule), trial_(trial) {}

  bool fits(std::int64_t granules) {
    auto known = known_.find(granules);
    if (known == known_.end()) known = known_.emplace(granules, trial_(granules * granule_)).first;
    return known->second.fits;
  }

  // The largest of a run of sizes that fit, from one that does on.
  std::int64_t grown(std::int64_t low) {
    std::int64_t high = low;
    while (high < kMostGranules && fits(high)) {
      low = high;
      high *= 2;
    }
    return between(low, high);
  }

  // `low` fits or is 0, `high` does not fit.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

  std::vector<SizeTrial> trials() const {
    std::vector<SizeTrial> all;
    for (const auto& [size, trial] : known_) all.push_back(trial);
    return all;
  }

 private:
  std::int64_t granule_;
  const std::function<SizeTrial(std::int64_t)>& trial_;
  std::map<std::int64_t, SizeTrial> known_;
};

}  // namespace

LargestFit largest_fit(Growable what, std::int64_t granule, std::int64_t start, const std::function<SizeTrial(std::int64_t)>& fits) {
  STEPSIM_CHECK(granule >= 1);
  Search search(granule, fits);
  const std::int64_t first = std::clamp(start / granule, std::int64_t{1}, kMostGranules);
  std::int64_t largest = search.fits(first) ? search.grown(first) : search.between(0, first);
  constexpr std::int64_t kNeighbours = 2;
  for (std::int64_t above = largest + 1; above <= largest + kNeighbours; ++above) {
    if (!search.fits(above)) continue;
    largest = search.grown(above);
    above = largest;
  }
  for (std::int64_t below = 1; below <= kNeighbours && below < largest; ++below) search.fits(largest - below);
  LargestFit fit{.what = what, .granule = granule, .size = largest * granule, .trials = search.trials()};
  fit.gaps = std::any_of(fit.trials.begin(), fit.trials.end(), [&](const SizeTrial& each) { return each.size < fit.size && !each.fits; });
  return fit;
}

// As check_layout wants it: the ranks that share a sequence have equal parts, two each under context parallelism (causal balance).
static std::int64_t granule_of(Growable what, const Job& job) {
  if (what == Growable::kMicroBatch) return 1;
  constexpr std::int64_t kTile = 128;
  const std::int64_t tensor = job.parallel.sequence_parallel ? job.parallel.tensor : 1;
  const std::int64_t context = job.parallel.context > 1 ? std::int64_t{2} * job.parallel.context : 1;
  return std::lcm(kTile, tensor * context);
}

static JobInput sized(Growable what, const JobInput& input, const Job& job, std::int64_t size) {
  JobInput with = input;
  const auto set = [&](const char* path, std::int64_t value) { with.flags.push_back({"--set", path, std::to_string(value)}); };
  if (what == Growable::kSequence) {
    set("training.sequence", size);
    return with;
  }
  const std::int64_t micro_batches = micro_batches_of(job);
  set("training.micro_batch", size);
  set("training.global_batch", size * job.parallel.data * micro_batches);
  return with;
}

LargestFit largest_fit(Growable what, const JobInput& input, const Job& job) {
  const auto tried = [&](std::int64_t size) {
    SizeTrial trial{.size = size};
    try {
      const Job other = resolve_job(sized(what, input, job, size));
      const StepRun run = run_step(other);
      if (run.allocation.replayed()) trial.reserved = reserved_peak(run.allocation.devices[run.allocation.fullest]);
      trial.fits = !run.run.result.out_of_memory && run.allocation.fit <= CardFit::kTight;
      trial.by_retries = !run.run.result.out_of_memory && run.allocation.fit == CardFit::kRetries;
      trial.step = run.run.result.end;
    } catch (const InputError& error) {
      trial.refused = error.what();
    }
    return trial;
  };
  const std::int64_t start = what == Growable::kMicroBatch ? job.training.micro_batch : job.training.sequence;
  return largest_fit(what, granule_of(what, job), start, tried);
}

std::string largest_fit_text(const LargestFit& fit) {
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
  const char* const name = fit.what == Growable::kMicroBatch ? "micro-batch" : "sequence";
  const SizeTrial* const next = fit.trial(fit.size + fit.granule);
  std::string text;
  if (fit.size == 0) {
    text = fmt::format("no {} fits", name);
  } else {
    const SizeTrial& best = *fit.trial(fit.size);
    text = fmt::format("{} {} is the largest that fits (reserves {:.2f} GiB, step {})", name, fit.size, gib(best.reserved),
                       print_duration(best.step));
  }
  if (next != nullptr) {
    const std::string ends = next->by_retries ? "fits only by giving the allocator's cache back amid the step"
                                              : fmt::format("does not ({:.2f} GiB)", gib(next->reserved));
    text +=
        next->refused.empty() ? fmt::format("; {} {}", next->size, ends) : fmt::format("; {} is refused: {}", next->size, next->refused);
  }
  if (fit.gaps) text += "; a smaller one does not fit: its memory is not monotone";
  return text;
}

}  // namespace stepsim
