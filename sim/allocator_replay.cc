#include "sim/allocator_replay.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "sim/check.h"
#include "sim/prefetch.h"

namespace stepsim {

namespace {

constexpr std::size_t kWorthThreads = 20'000;  // events; below, a thread takes longer to start than what it would do
constexpr std::size_t kAhead = 16;             // events; measured

// What happens in a step beside the log, in order of time.
struct Aside {
  TimePoint time{};
  StorageId storage{};
  OpId op{};
  std::size_t before = 0;  // the event of its course that it comes before
};

// What happens on some devices, in the order of the whole log. No device sees another: each has a course of its own, whose allocator stays
// in the near caches and which a thread can run, unless somebody observes them all.
struct Course {
  std::int32_t first_device = 0, end_device = 0;
  std::vector<MemoryEvent> log{};
  std::vector<Aside> births{}, last_uses{};
  std::int32_t step = 0;
};

class Replay {
 public:
  Replay(const OpGraph& graph, const StepResult& result, const AllocatorReplay& asked) : graph_(graph), result_(result), asked_(asked) {
    open_devices();
    open_storages();
    note_births();
    note_last_uses();
    part_courses();
  }

  std::vector<DeviceAllocation> devices() && {
    run_courses();
    std::vector<DeviceAllocation> all;
    for (Device& device : devices_) {
      if (!device.done.refused) device.done.retries = device.allocator.retries();
      all.push_back(std::move(device.done));
    }
    return all;
  }

 private:
  struct Device {
    CachingAllocator allocator;
    DeviceAllocation done{};
    StepAllocation now{};
    std::optional<Bytes> limit{};
    std::int32_t compute = 0;  // its stream
  };
  struct Item {  // a storage
    CachingAllocator::Claim claim{};
    std::int32_t stream = -1;  // -1: not known before its first claim
    std::int32_t device = -1;  // -1: host memory
  };
  struct PoolUse {
    std::int64_t live = 0, high_water = 0;
  };

  void open_devices() {
    devices_.reserve(at(graph_.device_count()));
    for (std::int32_t i = 0; i < graph_.device_count(); ++i) {
      const std::optional<Bytes> limit = at(i) < asked_.limits.size() ? asked_.limits[at(i)] : std::nullopt;
      devices_.push_back({.allocator = CachingAllocator(asked_.settings, limit), .limit = limit});
    }
    for (std::int32_t stream = 0; at(stream) < graph_.streams().size(); ++stream) {
      const Stream& each = graph_.streams()[at(stream)];
      if (each.compute) devices_[at(each.device.index)].compute = stream;
    }
    pools_.resize(graph_.pools().size());
  }

  void open_storages() {
    items_.resize(graph_.storages().size());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Storage& storage = graph_.storages()[i];
      if (storage.space != MemorySpace::kDevice) continue;
      const bool pooled = storage.pool >= 0;
      items_[i].device = (pooled ? graph_.pools()[at(storage.pool)].device : storage.device).index;
      if (storage.live_at_start) items_[i].stream = devices_[at(items_[i].device)].compute;
    }
  }

  TimePoint host_time(const OpRun& run) const { return graph_.op(run.op).issuer.valid() ? run.issued : run.start; }

  void note_births() {
    if (asked_.born.empty()) return;
    std::vector<std::int32_t> place(items_.size(), -1);
    for (const StorageId id : asked_.born) place[at(id.index)] = 0;
    for (const OpRun& run : result_.timeline) {
      for (const Tensor& tensor : graph_.writes(run.op)) {
        std::int32_t& birth = place[at(tensor.storage.index)];
        if (birth < 0) continue;
        if (birth == 0) {
          births_.push_back({host_time(run), tensor.storage, run.op});
          birth = static_cast<std::int32_t>(births_.size());
          continue;
        }
        Aside& known = births_[at(birth - 1)];
        if (graph_.issue_position(run.op) < graph_.issue_position(known.op)) known = {host_time(run), tensor.storage, run.op};
      }
    }
    const auto sooner = [this](const Aside& a, const Aside& b) {
      return a.time != b.time ? a.time < b.time : graph_.issue_position(a.op) < graph_.issue_position(b.op);
    };
    std::stable_sort(births_.begin(), births_.end(), sooner);
    is_born_.resize(items_.size(), false);
    for (const Aside& birth : births_) is_born_[at(birth.storage.index)] = true;
  }

  // Of storages whose release waits for an event.
  void note_last_uses() {
    for (const MemoryEvent& event : result_.memory) {
      if (event.bytes.value > 0 || event.by.valid() || items_[at(event.storage.index)].device < 0) continue;
      last_uses_.push_back({TimePoint::min(), event.storage, {}});
    }
    if (last_uses_.empty()) return;
    std::vector<std::int32_t> place(items_.size(), -1);
    for (std::size_t i = 0; i < last_uses_.size(); ++i) place[at(last_uses_[i].storage.index)] = static_cast<std::int32_t>(i);
    for (const OpRun& run : result_.timeline) {
      const TimePoint time = graph_.op(run.op).issuer.valid() ? run.issued : run.end;
      const auto use = [&](StorageId id) {
        const std::int32_t known = place[at(id.index)];
        if (known >= 0) last_uses_[at(known)].time = std::max(last_uses_[at(known)].time, time);
      };
      for (const Tensor& tensor : graph_.reads(run.op)) use(tensor.storage);
      for (const Tensor& tensor : graph_.writes(run.op)) use(tensor.storage);
      for (const StorageId id : graph_.holds(run.op)) use(id);
    }
    std::stable_sort(last_uses_.begin(), last_uses_.end(), [](const Aside& a, const Aside& b) { return a.time < b.time; });
  }

  std::size_t course_of(std::int32_t device) const { return courses_.size() == 1 ? 0 : at(device); }

  // Calls `use` with each event of device memory and its device.
  template <class Use>
  void for_each_device_event(const Use& use) const {
    const std::vector<MemoryEvent>& log = result_.memory;
    for (std::size_t i = 0; i < log.size(); ++i) {
      if (i + kAhead < log.size()) prefetch(&items_[at(log[i + kAhead].storage.index)]);
      const std::int32_t device = items_[at(log[i].storage.index)].device;
      if (device >= 0) use(log[i], device);
    }
  }

  void part_courses() {
    courses_.resize(asked_.observer ? 1 : devices_.size());
    for (std::int32_t i = 0; at(i) < courses_.size(); ++i) courses_[at(i)].first_device = i;
    for (Course& course : courses_) course.end_device = courses_.size() == 1 ? graph_.device_count() : course.first_device + 1;
    std::vector<std::size_t> events(courses_.size(), 0);
    for_each_device_event([&](const MemoryEvent&, std::int32_t device) { ++events[course_of(device)]; });
    for (std::size_t i = 0; i < courses_.size(); ++i) courses_[i].log.reserve(events[i]);
    const auto put = [this](const Aside& aside, std::vector<Aside> Course::*list) {
      const std::int32_t device = items_[at(aside.storage.index)].device;
      if (device < 0) return;
      Course& course = courses_[course_of(device)];
      (course.*list).push_back({aside.time, aside.storage, aside.op, course.log.size()});
    };
    std::size_t birth = 0, last_use = 0;
    for_each_device_event([&](const MemoryEvent& event, std::int32_t device) {
      for (; birth < births_.size() && comes_before(births_[birth], event); ++birth) put(births_[birth], &Course::births);
      for (; last_use < last_uses_.size() && last_uses_[last_use].time < event.at; ++last_use) {
        put(last_uses_[last_use], &Course::last_uses);
      }
      courses_[course_of(device)].log.push_back(event);
    });
    for (; birth < births_.size(); ++birth) put(births_[birth], &Course::births);
  }

  // An op claims before it lets go; at one time ops come in the order of their launches.
  bool comes_before(const Aside& birth, const MemoryEvent& event) const {
    if (birth.time != event.at) return birth.time < event.at;
    return event.by.valid() && graph_.issue_position(birth.op) <= graph_.issue_position(event.by);
  }

  // Which thread runs which changes no result.
  void run_courses() {
    std::atomic<std::size_t> next = 0;
    const auto run_some = [&] {
      for (std::size_t i = next++; i < courses_.size(); i = next++) run(courses_[i]);
    };
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    const std::size_t threads = result_.memory.size() < kWorthThreads ? 1 : std::min(cores, courses_.size());
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < threads; ++i) others.push_back(std::async(std::launch::async, run_some));
    run_some();
    for (std::future<void>& other : others) other.get();
  }

  void run(Course& course) {
    for (course.step = 0; course.step < asked_.steps; ++course.step) run_step(course);
    course.log = {};
  }

  void run_step(const Course& course) {
    const std::span<Device> devices = std::span(devices_).subspan(at(course.first_device), at(course.end_device - course.first_device));
    for (Device& device : devices) device.now = {};
    if (course.step > 0) {
      end_step(course);
      for (Device& device : devices) note(device, course, {});
    }
    const std::vector<MemoryEvent>& log = course.log;
    std::size_t birth = course.step == 0 ? 0 : course.births.size(), last_use = 0;
    for (std::size_t i = 0; i < log.size(); ++i) {
      if (i + kAhead < log.size()) prefetch(&items_[at(log[i + kAhead].storage.index)]);
      for (; birth < course.births.size() && course.births[birth].before == i; ++birth) give_birth(course.births[birth], course);
      for (; last_use < course.last_uses.size() && course.last_uses[last_use].before == i; ++last_use) {
        let_go(course.last_uses[last_use].storage);
      }
      take(log[i], course);
    }
    for (; birth < course.births.size(); ++birth) give_birth(course.births[birth], course);
    for (Device& device : devices) {
      device.now.at_end = device.allocator.use();
      device.done.steps.push_back(device.now);
    }
  }

  // Lets go what lives at the end of a step and not at the beginning.
  void end_step(const Course& course) {
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const std::int32_t device = graph_.pools()[i].device.index;
      // What is resident is claimed anew, within the pool's room.
      if (device >= course.first_device && device < course.end_device) pools_[i].live = 0;
    }
    std::vector<StorageId> left;
    for (const MemoryEvent& event : course.log) {
      const std::size_t i = at(event.storage.index);
      if (event.bytes.value > 0 && items_[i].claim.block >= 0 && !graph_.storages()[i].live_at_start) left.push_back(event.storage);
    }
    std::sort(left.begin(), left.end());
    left.erase(std::unique(left.begin(), left.end()), left.end());
    for (const StorageId id : left) {
      Item& item = items_[at(id.index)];
      devices_[at(item.device)].allocator.release(item.claim);
      item.claim = {};
    }
  }

  void give_birth(const Aside& birth, const Course& course) {
    claim({.at = birth.time, .storage = birth.storage, .by = birth.op, .bytes = size_of(birth.storage)}, course);
  }
  Bytes size_of(StorageId id) const { return graph_.storages()[at(id.index)].size; }

  void let_go(StorageId id) {
    const Item& item = items_[at(id.index)];
    if (item.claim.block < 0) return;
    Device& device = devices_[at(item.device)];
    device.allocator.let_go(item.claim);
  }

  void take(const MemoryEvent& event, const Course& course) {
    Item& item = items_[at(event.storage.index)];
    if (event.bytes.value > 0) {
      if (course.step == 0 && !event.by.valid() && !is_born_.empty() && is_born_[at(event.storage.index)]) return;
      if (item.claim.block < 0) claim(event, course);
      return;
    }
    if (const std::int32_t pool = growing_pool(event.storage); pool >= 0) {
      pools_[at(pool)].live += event.bytes.value;
      return;
    }
    if (item.claim.block < 0) return;  // not claimed in this step: born in the first one, and not yet
    Device& device = devices_[at(item.device)];
    device.allocator.release(item.claim);
    item.claim = {};
    note(device, course, event.at);
  }

  void claim(const MemoryEvent& event, const Course& course) {
    Item& item = items_[at(event.storage.index)];
    if (item.stream < 0) item.stream = stream_of(event, item.device);
    Device& device = devices_[at(item.device)];
    const std::int32_t pool = growing_pool(event.storage);
    if (pool < 0) {
      item.claim = granted(device, event, event.bytes, item.stream, course.step);
    } else {
      PoolUse& use = pools_[at(pool)];
      use.live += event.bytes.value;
      if (use.live > use.high_water) granted(device, event, Bytes(use.live - use.high_water), item.stream, course.step);
      use.high_water = std::max(use.high_water, use.live);
    }
    note(device, course, event.at);
  }

  // The never-shrinking pool that the storage lies in; -1: none.
  std::int32_t growing_pool(StorageId id) const {
    if (pools_.empty()) return -1;
    const std::int32_t pool = graph_.storages()[at(id.index)].pool;
    return pool >= 0 && graph_.pools()[at(pool)].never_shrinks ? pool : -1;
  }

  CachingAllocator::Claim granted(Device& device, const MemoryEvent& event, Bytes request, std::int32_t stream, std::int32_t step) {
    const std::optional<CachingAllocator::Claim> claim = device.allocator.claim(request, stream);
    if (claim) return *claim;
    device.done.refused = AllocatorRefusal{.step = step,
                                           .at = event.at,
                                           .by = event.by,
                                           .storage = event.storage,
                                           .block = block_size(request),
                                           .limit = device.limit.value(),
                                           .use = device.allocator.use()};
    device.done.retries = device.allocator.retries();
    device.allocator.set_limit(std::nullopt);
    return device.allocator.claim(request, stream).value();
  }

  std::int32_t stream_of(const MemoryEvent& event, std::int32_t device) const {
    const std::int32_t compute = devices_[at(device)].compute;
    if (!event.by.valid()) return compute;
    const bool collective = std::holds_alternative<Collective>(graph_.work(event.by));
    const Storage& storage = graph_.storages()[at(event.storage.index)];
    if (collective && !storage.deferred_free && !storage.of_claiming_stream) return compute;
    for (const StreamId part : graph_.parts(event.by)) {
      if (graph_.streams()[at(part.index)].device.index == device) return part.index;
    }
    const StreamId own = graph_.op(event.by).stream;
    return own.valid() ? own.index : compute;
  }

  void note(Device& device, const Course& course, TimePoint time) {
    const AllocatorUse& use = device.allocator.use();
    StepAllocation& now = device.now;
    const bool fuller = use.reserved == now.at_peak.reserved && use.allocated > now.at_peak.allocated;
    if (use.reserved > now.at_peak.reserved || fuller) {
      now.at_peak = use;
      now.peak_at = time;
    }
    if (use.allocated > now.allocated_peak) {
      now.allocated_peak = use.allocated;
      now.at_allocated_peak = use;
    }
    now.active_peak = std::max(now.active_peak, use.active);
    now.unusable_peak = std::max(now.unusable_peak, use.unusable);
    if (asked_.observer && course.step + 1 == asked_.steps) {
      asked_.observer({time, DeviceId{static_cast<std::int32_t>(&device - devices_.data())}, use});
    }
  }

  const OpGraph& graph_;
  const StepResult& result_;
  const AllocatorReplay& asked_;
  std::vector<Device> devices_;
  std::vector<Item> items_;
  std::vector<PoolUse> pools_;
  std::vector<Aside> births_, last_uses_;
  std::vector<bool> is_born_;  // empty: none
  std::vector<Course> courses_;
};

}  // namespace

std::vector<DeviceAllocation> replayed_allocator(const OpGraph& graph, const StepResult& result, const AllocatorReplay& asked) {
  STEPSIM_CHECK(asked.steps >= 1);
  return Replay(graph, result, asked).devices();
}

}  // namespace stepsim
