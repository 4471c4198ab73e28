// How files and flags spell the choices of a recipe, by the value of the enum.
#pragma once

#include <array>
#include <string_view>

#include "models/training_recipe.h"

namespace stepsim {

inline constexpr std::array<std::string_view, 3> kAttentionNames = {"unfused", "flash", "fused"};
inline constexpr std::array<std::string_view, 3> kLossNames = {"plain", "fused", "chunked"};
inline constexpr std::array<std::string_view, 4> kDispatcherNames = {"allgather", "alltoall", "deepep", "hybridep"};
inline constexpr std::array<std::string_view, 3> kContextExchangeNames = {"allgather", "ring", "alltoall"};
inline constexpr std::array<std::string_view, 2> kTensorOverlapNames = {"none", "ring"};
inline constexpr std::array<std::string_view, 3> kCudaGraphNames = {"none", "scopes", "full"};
inline constexpr std::array<std::string_view, 6> kOptimizerNames = {"adamw", "sgd", "adam8bit", "lion", "muon", "none"};

template <class Enum, std::size_t N>
constexpr std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

}  // namespace stepsim
