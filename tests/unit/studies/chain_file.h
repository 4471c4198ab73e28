// Chains of the shared planner data.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/studies/chain.h"

namespace stepsim {

// planner/optimal_instances.json; none where the shared data is absent.
std::optional<nlohmann::json> shared_json(const std::string& name);

struct TruthInstance {
  Chain chain;
  ChainBudget budget;
};
TruthInstance truth_instance(const nlohmann::json& instance);

// An integer, or none for null and for what is not there.
std::optional<std::int64_t> optional_integer(const nlohmann::json& object, const std::string& key);

// planner/chains/<name>.csv: blocks with their forward and backward times (ns) and bytes; gradients as large as outputs, no network input.
Chain logged_chain(const std::string& name);

}  // namespace stepsim
