// What an op costs on a device: a fixed part, time alone at full speed, host launch time, and the fraction of each shared resource that it
// uses while running alone. Costs are facts about (work, device, side); how ops share is sharing.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/op_work.h"
#include "sim/units.h"

namespace stepsim {

inline constexpr std::uint32_t kFullLoad = 1u << 30;

struct Load {
  ResourceId resource{};
  std::uint32_t fraction_2e30 = 0;  // 0 < u <= 2^30: share of the resource while the op runs alone, in units of 2^-30, rounded down
  std::uint16_t peers = 1;          // representative-equivalent users that are not simulated use it too: the resource sees peers * u
  std::uint16_t weight = 1;         // where hardware is unfair (PCIe 4 duplex: 24 out, 11.5 in)
  bool while_waiting = false;       // also loads while a rendezvous part waits for its peers (a spinning kernel's SMs)
};

struct Cost {
  Duration fixed{};               // holds stream and queues, loads nothing, is never slowed
  Duration alone{};               // then this long at full speed, with loads
  Duration issue{};               // host time to launch it
  std::span<const Load> loads{};  // in the model's table, valid as long as the model; each resource at most once
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Pure; the caller memoises by (work, device, side). A transfer takes as long on either side; one part of it loads what it receives by,
  // the other what it sends by.
  virtual Cost cost(const OpWork& work, DeviceId device, TransferSide side = TransferSide::kBoth) const = 0;
};

// Costs that are given by row (user graphs, tests), on either side; other work goes to `otherwise`, which must be there if such work
// occurs.
class GivenCostModel : public CostModel {
 public:
  struct Row {
    Duration fixed{}, alone{}, issue{};
    std::vector<Load> loads{};
  };
  explicit GivenCostModel(std::vector<Row> rows, const CostModel* otherwise = nullptr);
  Cost cost(const OpWork& work, DeviceId device, TransferSide side = TransferSide::kBoth) const override;

 private:
  std::vector<Row> rows_;
  const CostModel* otherwise_;
};

// u as the engine counts it: floor(u * 2^30), at least 1 unit for u > 0, at most 2^30.
std::uint32_t load_fraction(double u);

}  // namespace stepsim
