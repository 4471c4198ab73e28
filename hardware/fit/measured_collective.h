// Measured collectives: what a fit takes, wherever the rows were read from. Knows no file.
#pragma once

#include <vector>

#include "sim/op_work.h"

namespace stepsim {

struct MeasuredCollective {
  Collective work;
  double measured_s = 0;
  bool held_out = false;
  int line = 0;  // of the file that it was read from
};

// The fits' split by size: rows whose message has an odd floor(log2 bytes) are held out.
inline void hold_out_odd_sizes(std::vector<MeasuredCollective>& rows) {
  for (MeasuredCollective& row : rows) {
    row.held_out = false;
    for (std::int64_t bytes = row.work.message.value; bytes > 1; bytes /= 2) row.held_out = !row.held_out;
  }
}

}  // namespace stepsim
