#include "traces/memory_curve.h"

#include <algorithm>

#include "sim/check.h"

namespace stepsim {

namespace {

struct Account {  // of one device and space
  Bytes in_use;
  std::vector<Bytes> by_bucket;
  // The last state that was reported, and the highest one since.
  std::vector<Bytes> reported;
  Bytes highest;
  std::vector<Bytes> highest_by_bucket;
  Bytes peak;  // the largest in_use that was reported
  bool touched = false;
};

struct Accounts {
  const OpGraph& graph;
  std::vector<Account> accounts;     // by device, then space
  std::vector<std::size_t> touched;  // in this instant

  explicit Accounts(const OpGraph& of) : graph(of) {
    const std::vector<Bytes> zeros(bucket_count(of));
    accounts.resize(static_cast<std::size_t>(std::max(of.device_count(), 1)) * 2,
                    Account{.in_use = {}, .by_bucket = zeros, .reported = zeros, .highest = {}, .highest_by_bucket = zeros, .peak = {}});
  }

  void apply(const MemoryEvent& event) {
    const Storage& storage = graph.storages()[static_cast<std::size_t>(event.storage.index)];
    const auto device = static_cast<std::size_t>(std::max(storage.device.index, 0));
    const std::size_t index = device * 2 + (storage.space == MemorySpace::kHost ? 1 : 0);
    Account& account = accounts[index];
    if (!account.touched) {
      account.touched = true;
      account.highest = account.in_use;
      touched.push_back(index);
    }
    account.in_use += event.bytes;
    account.by_bucket[static_cast<std::size_t>(graph.bucket(storage.role))] += event.bytes;
    if (account.in_use > account.highest) {
      account.highest = account.in_use;
      account.highest_by_bucket = account.by_bucket;
    }
  }

  void report(TimePoint at, const std::function<void(const MemoryPoint&)>& take) {
    std::sort(touched.begin(), touched.end());
    for (const std::size_t index : touched) {
      Account& account = accounts[index];
      account.touched = false;
      const DeviceId device{static_cast<std::int32_t>(index / 2)};
      const MemorySpace space = index % 2 == 1 ? MemorySpace::kHost : MemorySpace::kDevice;
      if (account.highest > std::max(account.peak, account.in_use)) {
        take({.at = at,
              .device = device,
              .space = space,
              .in_use = account.highest,
              .by_bucket = account.highest_by_bucket,
              .highest = true});
        account.reported = account.highest_by_bucket;
        account.peak = account.highest;
      }
      if (account.reported == account.by_bucket) continue;  // claimed and released alike: nothing to see
      take({.at = at, .device = device, .space = space, .in_use = account.in_use, .by_bucket = account.by_bucket});
      account.reported = account.by_bucket;
      account.peak = std::max(account.peak, account.in_use);
    }
    touched.clear();
  }
};

}  // namespace

std::size_t bucket_count(const OpGraph& graph) {
  std::int32_t last = 0;
  for (const Storage& storage : graph.storages()) last = std::max(last, graph.bucket(storage.role));
  return static_cast<std::size_t>(last) + 1;
}

std::vector<std::string> bucket_names(std::span<const std::string_view> names, std::size_t count) {
  std::vector<std::string> all(names.begin(), names.end());
  while (all.size() < count) all.push_back("role " + std::to_string(all.size()));
  return all;
}

void replay_memory(const OpGraph& graph, const StepResult& result, Duration grain, const std::function<void(const MemoryPoint&)>& take) {
  STEPSIM_CHECK(grain.count() > 0);
  Accounts accounts(graph);
  const auto instant = [&](const MemoryEvent& event) { return event.at.count() / grain.count(); };
  for (std::size_t i = 0; i < result.memory.size(); ++i) {
    accounts.apply(result.memory[i]);
    const bool last = i + 1 == result.memory.size() || instant(result.memory[i + 1]) != instant(result.memory[i]);
    if (last) accounts.report(Duration(instant(result.memory[i]) * grain.count()), take);
  }
}

}  // namespace stepsim
