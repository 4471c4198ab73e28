#include "sim/step_result.h"

namespace stepsim {

namespace {

class Hash {
 public:
  void add(std::int64_t value) {
    // FNV-1a (Fowler, Noll, Vo) over words instead of bytes, with a shift so that high bits reach low ones; integers only, so the order of
    // bytes in memory does not matter.
    hash_ = (hash_ ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u;
    hash_ ^= hash_ >> 29;
  }
  void add(TimePoint time) { add(time.count()); }
  void add(Bytes bytes) { add(bytes.value); }
  template <class Tag>
  void add(Id<Tag> id) {
    add(std::int64_t{id.index});
  }
  template <class Tag>
  void add(const std::vector<Id<Tag>>& ids) {
    add(static_cast<std::int64_t>(ids.size()));
    for (const Id<Tag> id : ids) add(id);
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

std::uint64_t fingerprint(const StepResult& result) {
  Hash hash;
  hash.add(static_cast<std::int64_t>(result.timeline.size()));
  for (const OpRun& run : result.timeline) {
    hash.add(run.op);
    hash.add(run.start);
    hash.add(run.end);
  }
  hash.add(static_cast<std::int64_t>(result.memory.size()));
  for (const MemoryEvent& event : result.memory) {
    hash.add(event.at);
    hash.add(event.storage);
    hash.add(event.by);
    hash.add(event.bytes);
  }
  hash.add(result.end);
  hash.add(std::int64_t{result.out_of_memory.has_value()});
  if (const auto& out = result.out_of_memory) {
    hash.add(out->op.value_or(OpId{}));
    hash.add(out->device);
    hash.add(static_cast<std::int64_t>(out->space));
    hash.add(out->at);
    hash.add(out->requested);
    hash.add(out->available);
    hash.add(out->holders);
  }
  hash.add(std::int64_t{result.deadlock.has_value()});
  if (const auto& deadlock = result.deadlock) {
    hash.add(deadlock->first_waiting);
    hash.add(deadlock->holders);
    hash.add(deadlock->cycle);
  }
  hash.add(std::int64_t{result.forced_frees});
  return hash.value();
}

}  // namespace stepsim
