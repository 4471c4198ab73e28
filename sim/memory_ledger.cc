#include "sim/memory_ledger.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// A ledger rule is a list of these, in the order in which the ledger takes them.
struct Step {
  TimePoint time;
  OpId op;
  std::int32_t position = -1;  // issue position, to order steps of several issuers at one time; -1 in device time
  bool claims = false;         // what the op writes first
  bool releases = false;       // what the op is the last to hold
};

bool sooner(const Step& a, const Step& b) { return a.time != b.time ? a.time < b.time : a.position < b.position; }

constexpr std::int32_t kDidNotRun = -1;

std::vector<std::int32_t> run_of_op(const OpGraph& graph, const std::vector<OpRun>& timeline) {
  std::vector<std::int32_t> run(graph.ops().size(), kDidNotRun);
  for (std::size_t i = 0; i < timeline.size(); ++i) run[at(timeline[i].op.index)] = static_cast<std::int32_t>(i);
  return run;
}

// Starts and ends of the wanted ops in device time. Few ops run at once, so a heap of their ends is cheaper than sorting all ends.
template <class Wanted, class Use>
void for_each_device_step(const OpGraph& graph, const std::vector<OpRun>& timeline, const Wanted& wanted, const Use& use) {
  using End = std::pair<TimePoint, OpId>;
  std::priority_queue<End, std::vector<End>, std::greater<>> running;
  const auto end_all_until = [&](TimePoint time) {
    for (; !running.empty() && running.top().first <= time; running.pop()) {
      use(Step{.time = running.top().first, .op = running.top().second, .releases = true});
    }
  };
  for (std::size_t first = 0, last = 0; first < timeline.size(); first = last) {
    const TimePoint now = timeline[first].start;
    bool any_zero = false;
    for (; last < timeline.size() && timeline[last].start == now; ++last) any_zero = any_zero || timeline[last].end == now;
    end_all_until(now);
    if (any_zero) {
      for (const bool markers : {true, false}) {
        for (std::size_t i = first; i < last; ++i) {
          const OpId op = timeline[i].op;
          if (timeline[i].end != now || std::holds_alternative<Marker>(graph.work(op)) != markers || !wanted(op)) continue;
          use(Step{.time = now, .op = op, .claims = true, .releases = true});
        }
      }
    }
    for (std::size_t i = first; i < last; ++i) {
      if (timeline[i].end == now || !wanted(timeline[i].op)) continue;
      use(Step{.time = now, .op = timeline[i].op, .claims = true});
      running.emplace(timeline[i].end, timeline[i].op);
    }
  }
  end_all_until(TimePoint::max());
}

// Merges neighbouring sorted runs, of which run i begins at begin[i] (the last entry is the size), until one is left.
void merge_runs(std::vector<Step>& steps, std::vector<std::size_t> begin) {
  std::vector<Step> merged(begin.size() > 2 ? steps.size() : 0);
  while (begin.size() > 2) {
    std::vector<std::size_t> next{0};
    for (std::size_t run = 0; run + 1 < begin.size(); run += 2) {
      const std::size_t middle = begin[run + 1], end = run + 2 < begin.size() ? begin[run + 2] : middle;
      const auto iterator = [&steps](std::size_t i) { return steps.begin() + static_cast<std::ptrdiff_t>(i); };
      std::merge(iterator(begin[run]), iterator(middle), iterator(middle), iterator(end),
                 merged.begin() + static_cast<std::ptrdiff_t>(begin[run]), sooner);
      next.push_back(end);
    }
    steps.swap(merged);
    begin = std::move(next);
  }
}

// Launches that ran, in the order of the issuer.
template <class Use>
void for_each_launch(const OpGraph& graph, const std::vector<OpRun>& timeline, const std::vector<std::int32_t>& run, IssuerId issuer,
                     const Use& use) {
  for (const OpId op : graph.issue_order(issuer)) {
    const std::int32_t found = run[at(op.index)];
    if (found == kDidNotRun) continue;
    use(Step{.time = timeline[at(found)].issued, .op = op, .position = graph.issue_position(op), .claims = true, .releases = true});
  }
}

// Whether one thread launches everything, in the order of time: simulated steps of one device. Nothing is to be sorted or merged then.
bool one_thread_in_order(const OpGraph& graph, const std::vector<OpRun>& timeline, const std::vector<std::int32_t>& run) {
  if (graph.issuers().size() != 1 || graph.issue_order(IssuerId{0}).size() != graph.ops().size()) return false;
  TimePoint last = TimePoint::min();
  for (const OpId op : graph.issue_order(IssuerId{0})) {
    const std::int32_t found = run[at(op.index)];
    if (found == kDidNotRun) continue;
    if (timeline[at(found)].issued < last) return false;
    last = timeline[at(found)].issued;
  }
  return true;
}

template <class Use>
void for_each_issue_step(const OpGraph& graph, const std::vector<OpRun>& timeline, const std::vector<std::int32_t>& run, const Use& use) {
  if (one_thread_in_order(graph, timeline, run)) return for_each_launch(graph, timeline, run, IssuerId{0}, use);
  std::vector<Step> steps;
  steps.reserve(timeline.size());
  const auto keep = [&steps](const Step& step) { steps.push_back(step); };
  const auto without_issuer = [&graph](OpId op) { return !graph.op(op).issuer.valid(); };
  if (graph.issuers().empty()) return for_each_device_step(graph, timeline, without_issuer, use);
  for_each_device_step(graph, timeline, without_issuer, keep);
  std::vector<std::size_t> begin{0};
  if (!steps.empty()) begin.push_back(steps.size());
  for (std::int32_t issuer = 0; at(issuer) < graph.issuers().size(); ++issuer) {
    for_each_launch(graph, timeline, run, IssuerId{issuer}, keep);
    const auto first = steps.begin() + static_cast<std::ptrdiff_t>(begin.back());
    if (!std::is_sorted(first, steps.end(), sooner)) std::sort(first, steps.end(), sooner);  // measured launches may be out of order
    if (steps.size() > begin.back()) begin.push_back(steps.size());
  }
  merge_runs(steps, std::move(begin));
  for (const Step& step : steps) use(step);
}

std::vector<OpId> ops_in_issue_order(const OpGraph& graph) {
  std::vector<OpId> order(graph.ops().size());
  for (std::int32_t op = 0; at(op) < order.size(); ++op) order[at(graph.issue_position(OpId{op}))] = OpId{op};
  return order;
}

template <class Use>
void for_each_schedule_step(const OpGraph& graph, const StepResult& result, const std::vector<std::int32_t>& run, const Use& use) {
  enum : std::uint8_t { kNotStarted, kStarted, kDone };
  std::vector<std::uint8_t> state(graph.ops().size(), kNotStarted);  // of asynchronous ops
  std::vector<TimePoint> place(at(graph.device_count()), TimePoint{});
  const std::vector<OpId> order = ops_in_issue_order(graph);
  for (const OpId op : order) {
    const std::int32_t found = run[at(op.index)];
    if (found == kDidNotRun) continue;
    const StreamId stream = graph.op(op).stream;
    TimePoint time = result.timeline[at(found)].start;
    const bool asynchronous = is_asynchronous(graph, op);
    if (stream.valid()) {
      TimePoint& here = place[at(graph.streams()[at(stream.index)].device.index)];
      if (!asynchronous) here = std::max(here, time);
      time = here;
    }
    for (const Edge& edge : graph.predecessors(op)) {
      if (edge.kind != EdgeKind::kEndToStart || state[at(edge.from.index)] != kStarted) continue;
      state[at(edge.from.index)] = kDone;
      use(Step{.time = time, .op = edge.from, .releases = true});
    }
    if (asynchronous) state[at(op.index)] = kStarted;
    use(Step{.time = time, .op = op, .claims = true, .releases = !asynchronous});
  }
  for (const OpId op : order) {
    if (state[at(op.index)] == kStarted) use(Step{.time = result.end, .op = op, .releases = true});
  }
}

enum Spaces : std::uint8_t { kNoSpace = 0, kDeviceSpace = 1, kHostSpace = 2, kBothSpaces = 3 };

// The claims and releases of both spaces, taken step by step.
class Ledger {
 public:
  Ledger(const OpGraph& graph, const Machine& machine, const std::vector<OpRun>& timeline, const std::vector<std::int32_t>& run,
         bool defers)
      : graph_(graph), timeline_(timeline), run_(run) {
    open_accounts(machine);
    open_storages(machine, defers);
    count_holders();
    claim_residents();
  }

  // Only for the storages in `spaces`.
  void take(const Step& step, Spaces spaces) {
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

  bool any_host = false;
  std::vector<MemoryEvent> residents, device_events, host_events;
  std::optional<OutOfMemory> out_of_memory;  // the first, by time; device memory first
  bool forced_frees = false;

 private:
  struct Deferred {
    TimePoint ready;
    StorageId storage;
    friend auto operator<=>(const Deferred&, const Deferred&) = default;
  };
  using WideSum = __int128;  // of sizes, each of which may be as large as an int64
  struct Account {           // one device's memory or one host's
    WideSum used = 0;
    WideSum capacity = WideSum{1} << 120;  // no limit: above any sum of sizes
    TimePoint last{};
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
    bool live = false, claimed = false, live_at_end = false;
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

  void open_storages(const Machine& machine, bool defers) {
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
      use.live_at_end = storage.live_at_end;
      in_space[use.space] += storage.live_at_start ? 1 : 2;
      if (!defers || !storage.deferred_free || storage.space != MemorySpace::kDevice) continue;
      use.deferred = static_cast<std::int32_t>(foreign_.size());
      foreign_.push_back({.owner = compute[at(storage.device.index)]});
    }
    device_events.reserve(in_space[kDeviceSpace]);
    host_events.reserve(in_space[kHostSpace]);
    any_host = in_space[kHostSpace] > 0;
  }

  void count_holders() {
    for (std::int32_t op = 0; at(op) < graph_.ops().size(); ++op) {
      for (const Tensor& tensor : graph_.reads(OpId{op})) ++storages_[at(tensor.storage.index)].holders;
      for (const Tensor& tensor : graph_.writes(OpId{op})) ++storages_[at(tensor.storage.index)].holders;
      for (const StorageId storage : graph_.holds(OpId{op})) ++storages_[at(storage.index)].holders;
    }
  }

  void claim_residents() {
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      StorageUse& use = storages_[i];
      if (use.space == kNoSpace || !graph_.storages()[i].live_at_start) continue;
      add(use);
      residents.push_back({.at = {}, .storage = StorageId{static_cast<std::int32_t>(i)}, .by = {}, .bytes = Bytes(use.size)});
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
    accounts_[at(use.account)].used += growth(use);
    use.live = use.claimed = true;
    if (use.pool < 0) return;
    PoolUse& pool = pools_[at(use.pool)];
    pool.live += use.size;
    pool.high_water = std::max(pool.high_water, pool.live);
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

  std::vector<MemoryEvent>& events(const StorageUse& use) { return use.space == kHostSpace ? host_events : device_events; }

  void claim(StorageId id, const Step& step, Spaces spaces) {
    StorageUse& use = storages_[at(id.index)];
    if ((use.space & spaces) == 0 || use.claimed) return;
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
    events(use).push_back({.at = time, .storage = id, .by = step.op, .bytes = Bytes(use.size)});
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

  void let_go(StorageId id, const Step& step, Spaces spaces) {
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
    foreign.end = std::max(foreign.end, timeline_[at(run_[at(op.index)])].end);
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
    events(use).push_back({.at = time, .storage = id, .by = by, .bytes = Bytes(-use.size)});
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
  const std::vector<std::int32_t>& run_;
  std::vector<Account> accounts_;              // devices, then hosts
  bool overdrawn_[3] = {false, false, false};  // by Spaces: out of memory before
  std::vector<PoolUse> pools_;
  std::vector<StorageUse> storages_;
  std::vector<ForeignUse> foreign_;
};

template <class Use>
void for_each_step(const OpGraph& graph, const StepResult& result, const std::vector<std::int32_t>& run, LedgerRule rule, const Use& use) {
  switch (rule) {
    case LedgerRule::kIssueOrder:
      return for_each_issue_step(graph, result.timeline, run, use);
    case LedgerRule::kDeviceOrder:
      return for_each_device_step(
          graph, result.timeline, [](OpId) { return true; }, use);
    case LedgerRule::kScheduleOrder:
      return for_each_schedule_step(graph, result, run, use);
  }
}

}  // namespace

void record_memory(const OpGraph& graph, const Machine& machine, LedgerRule device, LedgerRule host, StepResult& result) {
  const std::vector<std::int32_t> run = run_of_op(graph, result.timeline);
  Ledger ledger(graph, machine, result.timeline, run, device == LedgerRule::kIssueOrder);
  const bool together = device == host || !ledger.any_host;
  const Spaces first = together ? kBothSpaces : kDeviceSpace;
  for_each_step(graph, result, run, device, [&](const Step& step) { ledger.take(step, first); });
  if (!together) for_each_step(graph, result, run, host, [&](const Step& step) { ledger.take(step, kHostSpace); });
  ledger.finish(result.end);
  const auto earlier = [](const MemoryEvent& a, const MemoryEvent& b) { return a.at < b.at; };
  for (std::vector<MemoryEvent>* events : {&ledger.device_events, &ledger.host_events}) {
    // Each memory is monotone in time; memories that do not wait for one another need not be among themselves.
    if (!std::is_sorted(events->begin(), events->end(), earlier)) std::stable_sort(events->begin(), events->end(), earlier);
  }
  if (ledger.residents.empty() && ledger.host_events.empty()) {
    result.memory = std::move(ledger.device_events);
  } else {
    result.memory = std::move(ledger.residents);
    result.memory.reserve(result.memory.size() + ledger.device_events.size() + ledger.host_events.size());
    std::merge(ledger.device_events.begin(), ledger.device_events.end(), ledger.host_events.begin(), ledger.host_events.end(),
               std::back_inserter(result.memory), earlier);
  }
  result.out_of_memory = std::move(ledger.out_of_memory);
  result.forced_frees = ledger.forced_frees;
}

}  // namespace stepsim
