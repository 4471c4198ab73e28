#include "hardware/backends/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "hardware/backends/cpu/op_progress.h"
#include "sim/check.h"

namespace stepsim {

namespace {

using cpu::OpProgress;
using cpu::RankStep;

// Where all threads of a step wait until the last is there, or the start is called off because one could not be made.
class StartLine {
 public:
  explicit StartLine(std::size_t threads) : missing_(threads) {}
  bool wait() {  // false: called off
    missing_.fetch_sub(1, std::memory_order_acq_rel);
    while (missing_.load(std::memory_order_acquire) > 0) {
      if (called_off_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void call_off() { called_off_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> missing_;
  std::atomic<bool> called_off_{false};
};

// Sets a flag when its scope ends, however it ends.
class SetAtExit {
 public:
  explicit SetAtExit(std::atomic<bool>& flag) : flag_(flag) {}
  ~SetAtExit() { flag_.store(true); }
  SetAtExit(const SetAtExit&) = delete;
  SetAtExit& operator=(const SetAtExit&) = delete;

 private:
  std::atomic<bool>& flag_;
};

// An exclusive queue: taken for the time of an op.
using QueueLocks = std::vector<std::unique_ptr<std::mutex>>;

struct RunningRank {
  const OpGraph& graph;
  RankStep& step;
  OpProgress& progress;
  QueueLocks& queues;
  bool serial = false;
};

bool wait_for_predecessors(const RunningRank& rank, OpId op, OpId before) {
  bool goes_on = true;
  for (const Edge& edge : rank.graph.predecessors(op)) {
    goes_on = (edge.kind == EdgeKind::kEndToStart ? rank.progress.wait_done(edge.from) : rank.progress.wait_started(edge.from)) && goes_on;
  }
  if (rank.serial && before.valid()) goes_on = rank.progress.wait_done(before) && goes_on;
  return goes_on;
}

void run_op(const RunningRank& rank, OpId op) {
  std::vector<std::unique_lock<std::mutex>> taken;
  for (const QueueId queue : rank.graph.queues(op, 0)) taken.emplace_back(*rank.queues[at(queue.index)]);
  const bool fits = rank.step.run(op, rank.progress.stopped(), [&] { rank.progress.started(op); });
  taken.clear();
  if (!fits) {
    rank.progress.stop();
    return;
  }
  rank.progress.done(op);
}

// By op: the one before it in issue order.
std::vector<OpId> ops_before(const OpGraph& graph) {
  std::vector<OpId> order(graph.ops().size()), before(graph.ops().size());
  for (std::int32_t op = 0; at(op) < order.size(); ++op) order[at(graph.issue_position(OpId{op}))] = OpId{op};
  for (std::size_t i = 1; i < order.size(); ++i) before[at(order[i].index)] = order[i - 1];
  return before;
}

void run_stream(const RunningRank& rank, StreamId stream, std::span<const OpId> before) {
  for (const OpId op : rank.graph.stream_order(stream)) {
    if (!wait_for_predecessors(rank, op, before[at(op.index)])) return;
    run_op(rank, op);
    if (rank.progress.stopped()) return;
  }
}

// The first error of any thread.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

std::vector<StreamId> used_streams(const OpGraph& graph) {
  std::vector<StreamId> found;
  for (std::int32_t stream = 0; at(stream) < graph.streams().size(); ++stream) {
    if (!graph.stream_order(StreamId{stream}).empty()) found.push_back(StreamId{stream});
  }
  return found;
}

Duration median(std::vector<Duration> values) {
  STEPSIM_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Copies blocks of one size, again and again, out of and back into memory that is larger than a cache.
class CopyLoop {
 public:
  explicit CopyLoop(Bytes block) : size_(static_cast<std::size_t>(block.value)) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      device_.emplace_back(size_, std::byte{1});
      host_.emplace_back(size_, std::byte{2});
    }
  }

  void run(const std::atomic<bool>& stop) {
    for (std::size_t turn = 0; !stop.load(std::memory_order_relaxed); ++turn) {
      std::vector<std::byte>&device = device_[turn % kBlocks], &host = host_[turn % kBlocks];
      const bool out = turn / kBlocks % 2 == 0;
      const auto begin = std::chrono::steady_clock::now();
      std::memcpy((out ? host : device).data(), (out ? device : host).data(), size_);
      times_.push_back(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - begin));
    }
  }

  Duration restart() {  // the median so far; counts anew
    const Duration found = times_.empty() ? Duration{} : median(times_);
    times_.clear();
    return found;
  }

 private:
  static constexpr std::size_t kBlocks = 8;
  std::size_t size_;
  std::vector<std::vector<std::byte>> device_, host_;
  std::vector<Duration> times_;
};

// From the end of an op to the start of the next one where that is on another stream. None: no two streams meet.
std::vector<Duration> handoffs(const OpGraph& graph, const StepResult& step) {
  std::vector<Duration> found;
  for (std::size_t i = 1; i < step.timeline.size(); ++i) {
    const OpRun &before = step.timeline[i - 1], &after = step.timeline[i];
    if (graph.op(before.op).stream != graph.op(after.op).stream) found.push_back(after.start - before.end);
  }
  return found;
}

// By op the median over the faster half of the steps: others were disturbed.
MeasuredOps typical_times(const OpGraph& graph, std::vector<Execution> steps) {
  const std::size_t ops = graph.ops().size();
  std::sort(steps.begin(), steps.end(), [](const Execution& a, const Execution& b) { return a.result.end < b.result.end; });
  steps.resize((steps.size() + 1) / 2);
  std::vector<std::vector<Duration>> by_op(ops);
  for (const Execution& step : steps) {
    for (const OpRun& run : step.result.timeline) by_op[at(run.op.index)].push_back(run.end - run.start);
  }
  MeasuredOps found;
  for (const std::vector<Duration>& each : by_op) found.alone.push_back(median(each));
  std::vector<Duration> gaps;
  for (const Execution& step : steps) {
    for (const Duration gap : handoffs(graph, step.result)) gaps.push_back(gap);
  }
  std::sort(gaps.begin(), gaps.end());
  if (!gaps.empty()) found.handoff = gaps[gaps.size() / 4];  // the others waited for a thread that slept
  return found;
}

}  // namespace

std::string CpuBackend::machine_name() const {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::vector<Execution> CpuBackend::run(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options,
                                       bool serial) {
  for (const KernelProgram& program : ranks) STEPSIM_CHECK(!program_error(graph, program));
  while (arenas_.size() < ranks.size()) arenas_.push_back(std::make_unique<cpu::Arenas>());
  const StorageLifetimes lifetimes(graph);
  const std::vector<OpId> before = ops_before(graph);
  std::vector<std::unique_ptr<cpu::RankMeeting>> meetings(graph.ops().size());
  for (std::size_t op = 0; op < meetings.size(); ++op) {
    if (op_class(graph.work(OpId{static_cast<std::int32_t>(op)})) == OpClass::kCollective) {
      meetings[op] = std::make_unique<cpu::RankMeeting>(ranks.size());
    }
  }
  std::vector<std::unique_ptr<RankStep>> steps;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    steps.push_back(std::make_unique<RankStep>(RankStep::Setting{graph, ranks[rank], lifetimes, options, *arenas_[rank], meetings, rank}));
  }
  std::vector<std::unique_ptr<OpProgress>> progress;
  std::vector<QueueLocks> queues(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    progress.push_back(std::make_unique<OpProgress>(graph.ops().size()));
    for (std::size_t queue = 0; queue < graph.queues().size(); ++queue) queues[rank].push_back(std::make_unique<std::mutex>());
  }
  const std::vector<StreamId> streams = used_streams(graph);
  StartLine line(ranks.size() * streams.size() + 1);
  FirstError error;
  std::vector<std::jthread> threads;
  try {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const StreamId stream : streams) {
        threads.emplace_back([&, rank, stream] {
          if (!line.wait()) return;
          try {
            run_stream({graph, *steps[rank], *progress[rank], queues[rank], serial}, stream, before);
          } catch (...) {
            error.keep(std::current_exception());
            progress[rank]->stop();
          }
          if (!progress[rank]->stopped()) return;
          for (const auto& each : progress) each->stop();  // the others may wait for this rank
        });
      }
    }
  } catch (...) {
    line.call_off();
    throw;
  }
  const auto origin = std::chrono::steady_clock::now();
  for (const auto& step : steps) step->start_clock(origin);
  line.wait();
  threads.clear();
  error.rethrow();
  std::vector<Execution> executions;
  for (const auto& step : steps) executions.push_back(step->finish());
  return executions;
}

std::vector<Execution> CpuBackend::execute(const OpGraph& graph, std::span<const KernelProgram> ranks, const ExecuteOptions& options) {
  return run(graph, ranks, options, false);
}

MeasuredOps CpuBackend::measure(const OpGraph& graph, const KernelProgram& program, const MeasureOptions& options) {
  STEPSIM_CHECK(options.repeats > 0);
  const auto timed = [&] {
    std::vector<Execution> steps;
    for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first one maps memory
      std::vector<Execution> step = run(graph, std::span(&program, 1), {}, true);
      if (repeat >= 0) steps.push_back(std::move(step.front()));
    }
    return typical_times(graph, std::move(steps));
  };
  MeasuredOps measured = timed();
  if (options.copy_beside == Bytes(0)) return measured;
  CopyLoop loop(options.copy_beside);
  const auto copies_for = [&](const auto& meanwhile) {
    std::atomic<bool> stop{false};
    std::jthread copier([&] { loop.run(stop); });
    {
      const SetAtExit stopped(stop);
      meanwhile();
    }
    copier.join();
    return loop.restart();
  };
  measured.copy_alone = copies_for([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  measured.copy_beside = copies_for([&] { measured.beside_copy = timed().alone; });
  return measured;
}

}  // namespace stepsim
