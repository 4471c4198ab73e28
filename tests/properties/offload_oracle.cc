#include "tests/properties/offload_oracle.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

namespace stepsim {

namespace {

// A resource that does one thing at a time.
struct Worker {
  bool busy = false;
  std::int64_t until = 0;
};

// State of the machine at an instant. The memory gate is a counter, the engines' queues are queues.
class OffloadOracle {
 public:
  explicit OffloadOracle(const OracleStack& of)
      : of_(of), offloaded_(std::max<std::int64_t>(of.layers - of.keep_last, 0)), next_queued_(offloaded_) {
    loaded_.assign(static_cast<std::size_t>(of.layers + 1), false);
    saved_ = loaded_;
  }
  std::optional<OracleFigures> figures();

 private:
  // Compute runs passes 0..2L: forward 1..L, head, backward L..1.
  bool forward() const { return pass_ < of_.layers; }
  bool head() const { return pass_ == of_.layers; }
  std::int64_t backward_layer() const { return 2 * of_.layers + 1 - pass_; }
  bool has_room() const { return !of_.max_resident || resident_ < *of_.max_resident; }

  bool complete();
  void complete_compute();
  void queue_copies_in();
  bool start(bool only_instant);
  bool start_copy_out(bool only_instant);
  bool start_backward(bool only_instant);
  bool start_forward(bool only_instant);
  bool start_copy_in(bool only_instant);
  void occupy(Worker& worker, std::int64_t duration) { worker = {true, now_ + duration}; }
  Worker& engine_in() { return of_.engines == 1 ? engine_[0] : engine_[1]; }

  const OracleStack of_;
  const std::int64_t offloaded_;
  std::int64_t now_ = 0, pass_ = 0;
  std::int64_t next_queued_;  // the layer whose copy in is queued next
  std::int64_t resident_ = 0, on_host_ = 0;
  Worker compute_, engine_[2];
  bool copying_in_ = false;  // what an only engine is doing
  std::int64_t out_layer_ = 0, in_layer_ = 0;
  std::deque<std::int64_t> out_queue_, in_queue_;
  std::vector<bool> saved_, loaded_;  // by layer: its copy out, in, has ended
  OracleFigures figures_;
};

// All that ends now, copies before compute. Whether anything did.
bool OffloadOracle::complete() {
  bool any = false;
  for (Worker& worker : engine_) {
    if (!worker.busy || worker.until > now_) continue;
    worker.busy = false;
    any = true;
    const bool in = of_.engines == 1 ? copying_in_ : &worker == &engine_[1];
    if (in) {
      loaded_[static_cast<std::size_t>(in_layer_)] = true;
      --on_host_;
    } else {
      saved_[static_cast<std::size_t>(out_layer_)] = true;
      --resident_;
    }
  }
  if (compute_.busy && compute_.until <= now_) {
    compute_.busy = false;
    any = true;
    complete_compute();
  }
  return any;
}

void OffloadOracle::complete_compute() {
  if (forward()) {
    const std::int64_t layer = pass_ + 1;
    if (layer <= offloaded_) out_queue_.push_back(layer);
    if (layer == of_.layers) figures_.forward_end = now_;
  } else if (!head()) {
    --resident_;
  }
  ++pass_;
  queue_copies_in();
}

// Copies in whose trigger has come: compute is idle before pass_, or has just started it.
void OffloadOracle::queue_copies_in() {
  const bool backward_began = pass_ > of_.layers;  // the head has ended
  while (backward_began && next_queued_ >= 1) {
    bool due = !of_.lookahead;
    if (of_.lookahead && *of_.lookahead == 0) due = backward_layer() <= next_queued_;
    if (of_.lookahead && *of_.lookahead > 0) {
      const bool none_above = *of_.lookahead > of_.layers - next_queued_;
      const std::int64_t started_down_to = compute_.busy ? backward_layer() : backward_layer() + 1;
      due = none_above || started_down_to <= next_queued_ + *of_.lookahead;
    }
    if (!due) return;
    in_queue_.push_back(next_queued_--);
  }
}

// One start: what releases before what claims. only_instant: of something that takes no time.
bool OffloadOracle::start(bool only_instant) {
  return start_copy_out(only_instant) || start_backward(only_instant) || start_forward(only_instant) || start_copy_in(only_instant);
}

bool OffloadOracle::start_copy_out(bool only_instant) {
  if (engine_[0].busy || out_queue_.empty() || (only_instant && of_.copy_out > 0)) return false;
  out_layer_ = out_queue_.front();
  out_queue_.pop_front();
  copying_in_ = false;
  figures_.host_sets = std::max(figures_.host_sets, ++on_host_);
  occupy(engine_[0], of_.copy_out);
  return true;
}

bool OffloadOracle::start_backward(bool only_instant) {
  if (compute_.busy || forward() || head() || pass_ > 2 * of_.layers || (only_instant && of_.backward > 0)) return false;
  const std::int64_t layer = backward_layer();
  if (layer <= offloaded_ && !loaded_[static_cast<std::size_t>(layer)]) return false;
  occupy(compute_, of_.backward);
  queue_copies_in();
  return true;
}

bool OffloadOracle::start_forward(bool only_instant) {
  if (compute_.busy || !(forward() || head()) || (only_instant && (head() ? of_.head : of_.forward) > 0)) return false;
  if (head()) {
    occupy(compute_, of_.head);
    return true;
  }
  if (!has_room()) return false;
  figures_.resident_sets = std::max(figures_.resident_sets, ++resident_);
  occupy(compute_, of_.forward);
  return true;
}

bool OffloadOracle::start_copy_in(bool only_instant) {
  Worker& engine = engine_in();
  const bool behind_copies_out = of_.engines == 1 && !out_queue_.empty();
  if (engine.busy || behind_copies_out || in_queue_.empty() || !has_room() || (only_instant && of_.copy_in > 0)) return false;
  if (!saved_[static_cast<std::size_t>(in_queue_.front())]) return false;
  in_layer_ = in_queue_.front();
  in_queue_.pop_front();
  copying_in_ = true;
  figures_.resident_sets = std::max(figures_.resident_sets, ++resident_);
  occupy(engine, of_.copy_in);
  return true;
}

std::optional<OracleFigures> OffloadOracle::figures() {
  while (pass_ <= 2 * of_.layers) {
    if (complete() || start(true) || start(false)) continue;
    std::optional<std::int64_t> next;
    for (const Worker& worker : {compute_, engine_[0], engine_[1]}) {
      if (worker.busy) next = std::min(next.value_or(worker.until), worker.until);
    }
    if (!next) return std::nullopt;
    now_ = *next;
  }
  figures_.total = now_;
  return figures_;
}

}  // namespace

std::optional<OracleFigures> oracle_figures(const OracleStack& of) { return OffloadOracle(of).figures(); }

RecurrenceTimes transformer_engine_times(const OracleStack& of, std::int64_t kept) {
  const auto size = static_cast<std::size_t>(of.layers + 2);
  const std::int64_t offloaded = of.layers - kept;
  std::vector<std::int64_t> out(size, 0), began(size, 0);  // by layer: end of its copy out, start of its backward
  std::int64_t compute = 0, engine = 0;
  for (std::int64_t layer = 1; layer <= of.layers; ++layer) {
    if (layer > kept) compute = std::max(compute, out[static_cast<std::size_t>(layer - kept)]);
    compute += of.forward;
    if (layer > offloaded) continue;
    engine = std::max(engine, compute) + of.copy_out;
    out[static_cast<std::size_t>(layer)] = engine;
  }
  RecurrenceTimes times{.forward_end = compute};
  compute += of.head;
  for (std::int64_t layer = of.layers; layer >= 1; --layer) {
    if (layer <= offloaded) {
      // Issued before backward of layer + kept - 1: its start, which for kept = 1 is that of this layer, when compute comes to it.
      const std::int64_t issued = kept == 1 ? compute : began[static_cast<std::size_t>(layer + kept - 1)];
      engine = std::max(engine, issued) + of.copy_in;
      compute = std::max(compute, engine);
    }
    began[static_cast<std::size_t>(layer)] = compute;
    compute += of.backward;
  }
  times.total = compute;
  return times;
}

}  // namespace stepsim
