#include "tests/unit/studies/chain_file.h"

#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace stepsim {

std::optional<nlohmann::json> shared_json(const std::string& name) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/planner/" + name);
  if (!file) return std::nullopt;
  return nlohmann::json::parse(file);
}

std::optional<std::int64_t> optional_integer(const nlohmann::json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<std::int64_t>();
}

TruthInstance truth_instance(const nlohmann::json& instance) {
  const nlohmann::json& chain = instance["chain"];
  const auto values = [&](const char* key) { return chain[key].get<std::vector<std::int64_t>>(); };
  TruthInstance truth;
  truth.chain = {.forward_time = values("f"),
                 .backward_time = values("b"),
                 .output = values("x"),
                 .saved = values("xbar"),
                 .gradient = values("g"),
                 .forward_transient = values("of"),
                 .backward_transient = values("ob"),
                 .loss_time = chain["loss"].get<std::int64_t>()};
  truth.budget.device = instance["budget"].get<std::int64_t>();
  if (!instance.contains("link")) return truth;
  const nlohmann::json& link = instance["link"];
  set_copy_rate(truth.chain, link["copy_time_num"].get<std::int64_t>(), link["copy_time_den"].get<std::int64_t>());
  truth.chain.one_engine = link["duplex"].get<std::string>() == "half";
  truth.budget.host = link["host_capacity"].get<std::int64_t>();
  return truth;
}

Chain logged_chain(const std::string& name) {
  std::ifstream file(STEPSIM_SHARED_DIR "/data/planner/chains/" + name + ".csv");
  Chain chain;
  chain.output = chain.gradient = {0};
  std::string line;
  std::getline(file, line);  // block,f_logged,b_logged,x_bytes,xbar_bytes,...
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::vector<std::int64_t> numbers;
    for (std::string cell; numbers.size() < 5 && std::getline(cells, cell, ',');) numbers.push_back(std::stoll(cell));
    chain.forward_time.push_back(numbers.at(1));
    chain.backward_time.push_back(numbers.at(2));
    chain.output.push_back(numbers.at(3));
    chain.gradient.push_back(numbers.at(3));
    chain.saved.push_back(numbers.at(4));
    chain.forward_transient.push_back(0);
    chain.backward_transient.push_back(0);
  }
  return chain;
}

}  // namespace stepsim
