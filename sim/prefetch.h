// A word to the processor that some memory will be read soon; changes no result. For walks that jump among the ops of many devices, which
// lie interleaved and which hardware does not foresee.
#pragma once

namespace stepsim {

inline void prefetch(const void* address) { __builtin_prefetch(address); }

}  // namespace stepsim
