#include "tools/studies/chain.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

void check_values(const std::vector<std::int64_t>& values, std::size_t count) {
  STEPSIM_CHECK(values.size() == count);
  for (const std::int64_t value : values) STEPSIM_CHECK(value >= 0);
}

}  // namespace

void check_chain(const Chain& chain) {
  const std::size_t layers = chain.forward_time.size();
  STEPSIM_CHECK(layers > 0);
  for (const auto* values :
       {&chain.forward_time, &chain.backward_time, &chain.saved, &chain.forward_transient, &chain.backward_transient}) {
    check_values(*values, layers);
  }
  check_values(chain.output, layers + 1);
  check_values(chain.gradient, layers + 1);
  STEPSIM_CHECK(chain.loss_time >= 0);
  STEPSIM_CHECK(chain.output_copy.size() == chain.saved_copy.size());
  if (!chain.has_copies()) return;
  STEPSIM_CHECK(chain.saved_copy.size() == layers);
  for (const auto* copies : {&chain.output_copy, &chain.saved_copy}) {
    for (const ChainCopy& copy : *copies) STEPSIM_CHECK(std::min(copy.out, copy.in) >= 0);
  }
}

void set_copy_rate(Chain& chain, std::int64_t numerator, std::int64_t denominator) {
  const auto copy = [&](std::int64_t size) {
    const std::int64_t time = (size * numerator + denominator - 1) / denominator;
    return ChainCopy{time, time};
  };
  chain.output_copy.clear();
  chain.saved_copy.clear();
  for (int i = 1; i <= chain.layers(); ++i) {
    chain.output_copy.push_back(copy(chain.output[from_zero(i)]));
    chain.saved_copy.push_back(copy(chain.saved[by_layer(i)]));
  }
}

std::int64_t all_kept_time(const Chain& chain) {
  std::int64_t time = chain.loss_time;
  for (const std::int64_t forward : chain.forward_time) time += forward;
  for (const std::int64_t backward : chain.backward_time) time += backward;
  return time;
}

}  // namespace stepsim
