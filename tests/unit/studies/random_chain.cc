#include "tests/unit/studies/random_chain.h"

#include <algorithm>

namespace stepsim {

namespace {

// Both ends included. Not std::uniform_int_distribution, whose numbers differ between libraries.
std::int64_t between(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

void draw_copies(std::mt19937_64& random, RandomChain& drawn) {
  Chain& chain = drawn.chain;
  set_copy_rate(chain, between(random, 1, 4), between(random, 1, 4));
  if (random() % 3 == 0) {
    for (auto* copies : {&chain.output_copy, &chain.saved_copy}) {
      for (ChainCopy& copy : *copies) copy.in += between(random, 0, 2);
    }
  }
  chain.one_engine = random() % 4 == 0;
  std::int64_t all = 0;
  for (const std::int64_t size : chain.saved) all += size;
  if (random() % 3 == 0) drawn.budget.host = between(random, 0, all);
}

}  // namespace

RandomChain random_chain(std::mt19937_64& random, const RandomChainLimits& limits) {
  RandomChain drawn;
  Chain& chain = drawn.chain;
  const auto layers = static_cast<int>(between(random, 1, limits.most_layers));
  const bool transients = random() % 2 == 0;
  const auto size = [&](std::int64_t least) { return between(random, least, limits.most_size); };
  for (int i = 0; i <= layers; ++i) {
    chain.output.push_back(size(random() % 8 == 0 ? 0 : 1));
    chain.gradient.push_back(random() % 4 == 0 ? size(0) : chain.output.back());
  }
  std::int64_t most = 0, all = chain.output[0];
  for (int i = 1; i <= layers; ++i) {
    chain.forward_time.push_back(between(random, random() % 8 == 0 ? 0 : 1, limits.most_time));
    chain.backward_time.push_back(between(random, random() % 8 == 0 ? 0 : 1, limits.most_time));
    chain.saved.push_back(chain.output[from_zero(i)] + size(0));
    chain.forward_transient.push_back(transients ? between(random, 0, 3) : 0);
    chain.backward_transient.push_back(transients ? between(random, 0, 3) : 0);
    all += chain.saved.back();
    most = std::max(most, chain.saved.back() + chain.gradient[from_zero(i)] + chain.gradient[from_zero(i - 1)]);
  }
  chain.loss_time = between(random, 0, 2);
  drawn.budget.device = between(random, chain.output[0] + most, all + 2 * limits.most_size);
  if (limits.copies && random() % 4 != 0) draw_copies(random, drawn);
  return drawn;
}

}  // namespace stepsim
