#include "sim/memory_ledger.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "sim/check.h"
#include "sim/ledger_steps.h"

namespace stepsim {

namespace {

enum Spaces : std::uint8_t { kNoSpace = 0, kDeviceSpace = 1, kHostSpace = 2, kBothSpaces = 3 };

// The claims and releases of both spaces, taken step by step.
class Ledger {
 public:
  // `records`: keeps the log and not only the peaks; and what the peaks would be with `changed`, instead of changing anything.
  Ledger(const OpGraph& graph, const Machine& machine, const std::vector<OpRun>& timeline, bool defers, bool records,
         const Residency& changed = {})
      : graph_(graph), timeline_(timeline), records_(records) {
    open_accounts(machine);
    open_storages(machine, defers, changed);
    count_holders();
    if (!foreign_.empty()) note_ends();
    claim_residents();
  }

  // Only for the storages in `spaces`.
  void take(const LedgerStep& step, Spaces spaces) {
    const std::span<const Tensor> writes = graph_.writes(step.op);
    if (step.claims && !writes.empty() && !std::holds_alternative<Marker>(graph_.work(step.op))) {
      for (const Tensor& tensor : writes) claim(tensor.storage, step, spaces);
    }
    if (!step.releases) return;
    for (const Tensor& tensor : graph_.reads(step.op)) let_go(tensor.storage, step, spaces);
    for (const Tensor& tensor : writes) let_go(tensor.storage, step, spaces);
    for (const StorageId storage : graph_.holds(step.op)) let_go(storage, step, spaces);
  }

  // What no claim has polled is given back when the step is over.
  void finish(TimePoint end) {
    for (Account& account : accounts_) release_deferred(account, TimePoint::max(), end);
  }

  // Whether each device's memory depends on one host thread's order only: no two use it, and no free waits for an event.
  bool threads_are_apart() const { return threads_are_apart_ && foreign_.empty(); }

  // The same with what was to be changed, where the rest of the ledger would take no other way.
  bool knows_changed_peaks() const { return changes_apart_ && foreign_.empty(); }
  Bytes changed_peak(DeviceId device) const { return saturated(accounts_[at(device.index)].changed_peak); }

  // The largest sum so far of what was live in a device's memory.
  Bytes peak(DeviceId device) const { return saturated(accounts_[at(device.index)].peak); }

  bool any_host = false;
  std::vector<MemoryEvent> device_events, host_events;  // all residents are in the former, at its beginning
  std::optional<OutOfMemory> out_of_memory;             // the first, by time; device memory first
  bool forced_frees = false;

 private:
  struct Deferred {
    TimePoint ready;
    StorageId storage;
    friend auto operator<=>(const Deferred&, const Deferred&) = default;
  };
  using WideSum = __int128;  // of sizes, each of which may be as large as an int64
  struct Account {           // one device's memory or one host's
    WideSum used = 0, peak = 0;
    WideSum absent = 0, changed_peak = 0;  // of `used`, what would be claimed only later; the peak of the rest
    WideSum capacity = WideSum{1} << 120;  // no limit: above any sum of sizes
    TimePoint last{};
    std::optional<IssuerId> thread{};  // of the first op that uses a storage there
    std::priority_queue<Deferred, std::vector<Deferred>, std::greater<>> deferred;
  };
  struct PoolUse {
    WideSum live = 0, high_water = 0;
  };
  struct StorageUse {
    std::int64_t size = 0;
    std::int32_t account = -1;
    std::int32_t holders = 0;  // references by ops that have not let go yet
    std::int32_t pool = -1;
    std::int32_t deferred = -1;  // index into foreign_, where its free waits for other streams
    Spaces space = kNoSpace;     // none: without bytes
    bool live = false, claimed = false, live_at_start = false, live_at_end = false;
    bool absent = false;  // counted in its account's
  };
  struct ForeignUse {
    StreamId owner;
    TimePoint end = TimePoint::min();
  };

  static Bytes saturated(WideSum size) {
    return Bytes(static_cast<std::int64_t>(std::min<WideSum>(size, std::numeric_limits<std::int64_t>::max())));
  }

  void open_accounts(const Machine& machine) {
    const std::size_t devices = at(graph_.device_count());
    std::size_t hosts = machine.host_capacity.size();
    for (const std::int32_t host : machine.host_of_device) hosts = std::max(hosts, at(host) + 1);
    for (const Pool& pool : graph_.pools()) hosts = std::max(hosts, at(pool.host) + 1);
    accounts_.resize(devices + std::max<std::size_t>(hosts, 1));
    const auto limit = [this](std::size_t account, const std::optional<Bytes>& capacity) {
      if (!capacity) return;
      STEPSIM_CHECK(capacity->value >= 0);
      accounts_[account].capacity = capacity->value;
    };
    for (std::size_t i = 0; i < std::min(devices, machine.device_capacity.size()); ++i) limit(i, machine.device_capacity[i]);
    for (std::size_t i = 0; i < machine.host_capacity.size(); ++i) limit(devices + i, machine.host_capacity[i]);
    pools_.resize(graph_.pools().size());
  }

  std::int32_t account_of(const Storage& storage, const Machine& machine) const {
    const bool pooled = storage.pool >= 0;
    const Pool pool = pooled ? graph_.pools()[at(storage.pool)] : Pool{};
    if (storage.space == MemorySpace::kDevice) return pooled ? pool.device.index : storage.device.index;
    const std::size_t device = at(storage.device.index);
    const std::int32_t host = device < machine.host_of_device.size() ? machine.host_of_device[device] : 0;
    return graph_.device_count() + (pooled ? pool.host : host);
  }

  void open_storages(const Machine& machine, bool defers, const Residency& changed) {
    std::vector<StreamId> compute(at(graph_.device_count()));
    for (std::int32_t stream = 0; at(stream) < graph_.streams().size(); ++stream) {
      const Stream& each = graph_.streams()[at(stream)];
      if (each.compute) compute[at(each.device.index)] = StreamId{stream};
    }
    storages_.resize(graph_.storages().size());
    std::size_t in_space[3] = {0, 0, 0};
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      const Storage& storage = graph_.storages()[i];
      if (storage.size.value == 0) continue;
      StorageUse& use = storages_[i];
      use.space = storage.space == MemorySpace::kHost ? kHostSpace : kDeviceSpace;
      use.size = storage.size.value;
      use.account = account_of(storage, machine);
      use.pool = storage.pool;
      use.live_at_start = storage.live_at_start;
      use.live_at_end = storage.live_at_end;
      in_space[use.space] += 2;
      if (!defers || !storage.deferred_free || storage.space != MemorySpace::kDevice) continue;
      use.deferred = static_cast<std::int32_t>(foreign_.size());
      foreign_.push_back({.owner = compute[at(storage.device.index)]});
    }
    for (const StorageId id : changed.storages) {
      StorageUse& use = storages_[at(id.index)];
      if (records_) {
        note_absent(use, changed);
      } else {
        use.live_at_start = changed.live_at_start;
        use.live_at_end = changed.live_at_end;
      }
    }
    any_host = in_space[kHostSpace] > 0;
    if (!records_) return;
    device_events.reserve(in_space[kDeviceSpace]);
    host_events.reserve(in_space[kHostSpace]);
  }

  void note_absent(StorageUse& use, const Residency& changed) {
    if (use.space != kDeviceSpace) return;
    const bool only_later = use.live_at_start && use.live_at_end && use.pool < 0 && !changed.live_at_start && changed.live_at_end;
    changes_apart_ = changes_apart_ && only_later;
    if (!only_later || use.absent) return;
    use.absent = true;
    accounts_[at(use.account)].absent += use.size;
  }

  void count_holders() {
    for (std::int32_t op = 0; at(op) < graph_.ops().size(); ++op) {
      const IssuerId thread = graph_.op(OpId{op}).issuer;
      for (const Tensor& tensor : graph_.reads(OpId{op})) count_holder(tensor.storage, thread);
      for (const Tensor& tensor : graph_.writes(OpId{op})) count_holder(tensor.storage, thread);
      for (const StorageId storage : graph_.holds(OpId{op})) count_holder(storage, thread);
    }
  }
  void count_holder(StorageId id, IssuerId thread) {
    StorageUse& use = storages_[at(id.index)];
    ++use.holders;
    if (use.space != kDeviceSpace) return;
    std::optional<IssuerId>& only = accounts_[at(use.account)].thread;
    if (!only) only = thread;
    threads_are_apart_ = threads_are_apart_ && *only == thread;
  }

  void note_ends() {
    ends_.resize(graph_.ops().size());
    for (const OpRun& run : timeline_) ends_[at(run.op.index)] = run.end;
  }

  void claim_residents() {
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      StorageUse& use = storages_[i];
      if (use.space == kNoSpace || !use.live_at_start) continue;
      add(use);
      if (!records_) continue;
      device_events.push_back({.at = {}, .storage = StorageId{static_cast<std::int32_t>(i)}, .by = {}, .bytes = Bytes(use.size)});
    }
    for (std::size_t i = 0; i < accounts_.size() && !out_of_memory; ++i) {
      const Account& account = accounts_[i];
      if (account.used <= account.capacity) continue;
      const bool device = i < at(graph_.device_count());
      const std::vector<StorageId> holders = live_in(static_cast<std::int32_t>(i));
      out_of_memory = OutOfMemory{.op = {},
                                  .device = graph_.storages()[at(holders.front().index)].device,
                                  .space = device ? MemorySpace::kDevice : MemorySpace::kHost,
                                  .at = {},
                                  .requested = saturated(account.used),
                                  .available = saturated(account.capacity),
                                  .holders = holders};
      overdrawn_[kDeviceSpace] = overdrawn_[kHostSpace] = true;
    }
  }

  // How much a claim adds to its account: nothing while a never-shrinking pool has room of its own.
  WideSum growth(const StorageUse& use) const {
    if (use.pool < 0 || !graph_.pools()[at(use.pool)].never_shrinks) return use.size;
    const PoolUse& pool = pools_[at(use.pool)];
    return std::max<WideSum>(0, pool.live + use.size - pool.high_water);
  }

  void add(StorageUse& use) {
    Account& account = accounts_[at(use.account)];
    account.used += growth(use);
    account.peak = std::max(account.peak, account.used);
    account.changed_peak = std::max(account.changed_peak, account.used - account.absent);
    use.live = use.claimed = true;
    if (use.pool < 0) return;
    PoolUse& pool = pools_[at(use.pool)];
    pool.live += use.size;
    pool.high_water = std::max(pool.high_water, pool.live);
  }

  // With what was to be changed, the storage would be claimed now.
  void end_absence(StorageUse& use) {
    use.absent = false;
    Account& account = accounts_[at(use.account)];
    account.absent -= use.size;
    account.changed_peak = std::max(account.changed_peak, account.used - account.absent);
  }

  // Room for a claim: in its account, and in its pool where that has a capacity of its own (a byte gate keeps itself).
  WideSum available(const StorageUse& use) const {
    const Account& account = accounts_[at(use.account)];
    const WideSum room = account.capacity - account.used;
    if (use.pool < 0) return room;
    const Pool& pool = graph_.pools()[at(use.pool)];
    if (pool.gated || pool.capacity.value == 0) return room;
    return std::min<WideSum>(room, pool.capacity.value - pools_[at(use.pool)].live - use.size + growth(use));
  }

  void note(const StorageUse& use, const MemoryEvent& event) {
    if (records_) (use.space == kHostSpace ? host_events : device_events).push_back(event);
  }

  void claim(StorageId id, const LedgerStep& step, Spaces spaces) {
    StorageUse& use = storages_[at(id.index)];
    if ((use.space & spaces) == 0) return;
    if (use.absent) end_absence(use);
    if (use.claimed) return;
    Account& account = accounts_[at(use.account)];
    const TimePoint time = account.last = std::max(account.last, step.time);
    if (!account.deferred.empty()) release_deferred(account, time, time);
    if (!overdrawn_[use.space] && growth(use) > available(use)) {
      forced_frees = forced_frees || !account.deferred.empty();
      release_deferred(account, TimePoint::max(), time);
      if (growth(use) > available(use)) note_out_of_memory(id, step.op, time);
    }
    add(use);
    if (use.deferred >= 0) foreign_[at(use.deferred)].owner = stream_on(step.op, graph_.storages()[at(id.index)].device);
    note(use, {.at = time, .storage = id, .by = step.op, .bytes = Bytes(use.size)});
  }

  // From here on this space counts as unlimited.
  void note_out_of_memory(StorageId id, OpId op, TimePoint time) {
    const StorageUse& use = storages_[at(id.index)];
    const Storage& storage = graph_.storages()[at(id.index)];
    overdrawn_[use.space] = true;
    if (out_of_memory && out_of_memory->at <= time) return;
    out_of_memory = OutOfMemory{.op = op,
                                .device = storage.device,
                                .space = storage.space,
                                .at = time,
                                .requested = saturated(growth(use)),
                                .available = saturated(available(use)),
                                .holders = live_in(use.account)};
  }

  void let_go(StorageId id, const LedgerStep& step, Spaces spaces) {
    StorageUse& use = storages_[at(id.index)];
    if ((use.space & spaces) == 0) return;
    --use.holders;
    if (use.deferred >= 0) note_foreign_use(use, id, step.op);
    if (use.holders > 0 || !use.live || use.live_at_end) return;
    Account& account = accounts_[at(use.account)];
    const TimePoint time = account.last = std::max(account.last, step.time);
    if (use.deferred >= 0 && foreign_[at(use.deferred)].end != TimePoint::min()) {
      account.deferred.push({.ready = foreign_[at(use.deferred)].end, .storage = id});
    } else {
      release(id, step.op, time);
    }
  }

  void note_foreign_use(const StorageUse& use, StorageId id, OpId op) {
    ForeignUse& foreign = foreign_[at(use.deferred)];
    if (stream_on(op, graph_.storages()[at(id.index)].device) == foreign.owner) return;
    foreign.end = std::max(foreign.end, ends_[at(op.index)]);
  }

  // The stream of the op's part on a device; of its first part where it has none there.
  StreamId stream_on(OpId op, DeviceId device) const {
    for (const StreamId part : graph_.parts(op)) {
      if (graph_.streams()[at(part.index)].device == device) return part;
    }
    return graph_.op(op).stream;
  }

  void release(StorageId id, OpId by, TimePoint time) {
    StorageUse& use = storages_[at(id.index)];
    use.live = false;
    if (use.pool >= 0) pools_[at(use.pool)].live -= use.size;
    if (use.pool < 0 || !graph_.pools()[at(use.pool)].never_shrinks) accounts_[at(use.account)].used -= use.size;
    note(use, {.at = time, .storage = id, .by = by, .bytes = Bytes(-use.size)});
  }

  void release_deferred(Account& account, TimePoint ready, TimePoint time) {
    for (; !account.deferred.empty() && account.deferred.top().ready <= ready; account.deferred.pop()) {
      release(account.deferred.top().storage, {}, time);
    }
  }

  std::vector<StorageId> live_in(std::int32_t account) const {
    std::vector<StorageId> live;
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].live && storages_[i].account == account) live.push_back(StorageId{static_cast<std::int32_t>(i)});
    }
    const auto larger = [this](StorageId a, StorageId b) { return storages_[at(a.index)].size > storages_[at(b.index)].size; };
    std::stable_sort(live.begin(), live.end(), larger);
    return live;
  }

  const OpGraph& graph_;
  const std::vector<OpRun>& timeline_;
  const bool records_;
  bool threads_are_apart_ = true;
  bool changes_apart_ = true;                  // what was to be changed is only claimed later
  std::vector<Account> accounts_;              // devices, then hosts
  bool overdrawn_[3] = {false, false, false};  // by Spaces: out of memory before
  std::vector<PoolUse> pools_;
  std::vector<StorageUse> storages_;
  std::vector<ForeignUse> foreign_;
  std::vector<TimePoint> ends_;  // by op; only with foreign uses
};

}  // namespace

std::vector<Bytes> record_memory(const OpGraph& graph, const Machine& machine, LedgerRule device, LedgerRule host, StepResult& result,
                                 const Residency& changed) {
  Ledger ledger(graph, machine, result.timeline, device == LedgerRule::kIssueOrder, true, changed);
  const bool together = device == host || !ledger.any_host;
  const Spaces first = together ? kBothSpaces : kDeviceSpace;
  for_each_ledger_step(graph, result, device, [&](const LedgerStep& step) { ledger.take(step, first); });
  if (!together) for_each_ledger_step(graph, result, host, [&](const LedgerStep& step) { ledger.take(step, kHostSpace); });
  ledger.finish(result.end);
  const auto earlier = [](const MemoryEvent& a, const MemoryEvent& b) { return a.at < b.at; };
  for (std::vector<MemoryEvent>* events : {&ledger.device_events, &ledger.host_events}) {
    // Each memory is monotone in time; memories that do not wait for one another need not be among themselves.
    if (!std::is_sorted(events->begin(), events->end(), earlier)) std::stable_sort(events->begin(), events->end(), earlier);
  }
  if (ledger.host_events.empty()) {
    result.memory = std::move(ledger.device_events);
  } else {
    result.memory.clear();
    result.memory.reserve(ledger.device_events.size() + ledger.host_events.size());
    std::merge(ledger.device_events.begin(), ledger.device_events.end(), ledger.host_events.begin(), ledger.host_events.end(),
               std::back_inserter(result.memory), earlier);
  }
  result.out_of_memory = std::move(ledger.out_of_memory);
  result.forced_frees = ledger.forced_frees;
  std::vector<Bytes> peaks;
  if (changed.storages.empty()) return peaks;
  if (!ledger.knows_changed_peaks()) return device_peaks(graph, machine, result, device, changed);
  for (std::int32_t i = 0; i < graph.device_count(); ++i) peaks.push_back(ledger.changed_peak(DeviceId{i}));
  return peaks;
}

void record_memory(const OpGraph& graph, const Machine& machine, LedgerRule device, LedgerRule host, StepResult& result) {
  record_memory(graph, machine, device, host, result, {});
}

std::vector<Bytes> device_peaks(const OpGraph& graph, const Machine& machine, const StepResult& result, LedgerRule device,
                                const Residency& changed) {
  Ledger ledger(graph, machine, result.timeline, device == LedgerRule::kIssueOrder, false, changed);
  const auto take = [&](const LedgerStep& step) { ledger.take(step, kDeviceSpace); };
  if (device == LedgerRule::kIssueOrder && ledger.threads_are_apart()) {
    launches_of(graph, result.timeline).for_each_in_turn(take);  // thread by thread: what one uses lies closer together
  } else {
    for_each_ledger_step(graph, result, device, take);
  }
  std::vector<Bytes> peaks;
  for (std::int32_t i = 0; i < graph.device_count(); ++i) peaks.push_back(ledger.peak(DeviceId{i}));
  return peaks;
}

}  // namespace stepsim
