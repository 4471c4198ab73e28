// A hash of works that is the same on every machine, for memos: no result depends on it.
#pragma once

#include <cstdint>

#include "sim/op_work.h"

namespace stepsim {

// Sum of the words, each times an odd constant of its own, mixed at the end: the products do not wait for one another.
class WorkHash {
 public:
  explicit WorkHash(std::uint64_t first) : sum_(first) {}
  void add(std::int64_t word) {
    sum_ += (static_cast<std::uint64_t>(word) ^ (static_cast<std::uint64_t>(word) >> 29)) * factor_;
    factor_ += 0x9e3779b97f4a7c16u;  // even: the next factor is odd again
  }
  // The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  std::uint64_t value() const {
    std::uint64_t z = (sum_ ^ (sum_ >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t sum_, factor_ = 0xd1342543de82ef95u;
};

inline void add_words(WorkHash& hash, const Gemm& work) {
  hash.add(work.m);
  hash.add(work.n);
  hash.add(work.k);
  hash.add(work.batch);
  hash.add(work.in_flight << 8 | static_cast<int>(work.dtype) << 4 | work.transpose_a << 3 | work.transpose_b << 2 |
           work.accumulate_fp32 << 1 | work.accumulate);
}
inline void add_words(WorkHash& hash, const Attention& work) {
  hash.add(work.batch);
  hash.add(work.heads);
  hash.add(work.kv_heads);
  hash.add(work.queries);
  hash.add(work.keys);
  hash.add(work.head_dim);
  hash.add((static_cast<int>(work.dtype) << 10) + (work.causal << 9) + (work.backward << 8) + work.kernel + 128);
}
inline void add_words(WorkHash& hash, const MemoryBound& work) {
  hash.add(work.read.value);
  hash.add(work.written.value);
  hash.add((static_cast<std::int64_t>(work.launches) << 8) + static_cast<int>(work.kernel));
}
inline void add_words(WorkHash& hash, const Collective& work) {
  hash.add(work.message.value);
  hash.add((static_cast<std::int64_t>(work.ranks) << 32) + work.stride);
  hash.add((static_cast<int>(work.kind) << 8) + static_cast<int>(work.library));
  if (work.routing.experts == 0) return;
  hash.add((static_cast<std::int64_t>(work.routing.experts) << 32) + work.routing.choices);
  hash.add((static_cast<std::int64_t>(work.routing.groups) << 32) + work.routing.best_groups);
}
inline void add_words(WorkHash& hash, const Copy& work) {
  hash.add(work.bytes.value);
  hash.add((static_cast<int>(work.direction) << 2) + (work.pinned << 1) + work.allocates);
}
inline void add_words(WorkHash& hash, const Given& work) {
  hash.add((static_cast<std::int64_t>(work.index) << 8) + static_cast<int>(work.op_class));
}
inline void add_words(WorkHash&, const Marker&) {}

inline std::uint64_t work_hash(const OpWork& work, DeviceId device, TransferSide side) {
  WorkHash hash((static_cast<std::uint64_t>(static_cast<std::uint32_t>(device.index)) << 8) + (static_cast<std::uint64_t>(side) << 4) +
                work.index());
  std::visit([&](const auto& each) { add_words(hash, each); }, work);
  return hash.value();
}

// As a == b; the comparison of variants goes through a table of functions.
inline bool same_work(const OpWork& a, const OpWork& b) {
  if (a.index() != b.index()) return false;
  const auto same = [&](const auto* one, const auto* other) { return one == nullptr || *one == *other; };
  return same(std::get_if<Gemm>(&a), std::get_if<Gemm>(&b)) && same(std::get_if<MemoryBound>(&a), std::get_if<MemoryBound>(&b)) &&
         same(std::get_if<Collective>(&a), std::get_if<Collective>(&b)) && same(std::get_if<Attention>(&a), std::get_if<Attention>(&b)) &&
         same(std::get_if<Copy>(&a), std::get_if<Copy>(&b)) && same(std::get_if<Given>(&a), std::get_if<Given>(&b));
}

}  // namespace stepsim
