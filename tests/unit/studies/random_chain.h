// Chains and budgets for property tests, from a seed.
#pragma once

#include <cstdint>
#include <random>

#include "tools/studies/chain.h"

namespace stepsim {

struct RandomChainLimits {
  int most_layers = 6;
  std::int64_t most_time = 6, most_size = 6;
  bool copies = true;  // of three chains in four
};

struct RandomChain {
  Chain chain;
  ChainBudget budget;  // from what the largest op needs to a little more than what keeping everything does
};

RandomChain random_chain(std::mt19937_64& random, const RandomChainLimits& limits);

}  // namespace stepsim
