#include "tools/studies/segments.h"

#include <algorithm>

namespace stepsim {

namespace {

// What the layers up to some boundary hold until their backward passes, and the time for what runs again.
struct Label {
  std::int64_t held = 0, time = 0;
  int parent_boundary = -1;
  std::size_t parent = 0;
  bool kept = false;  // the last segment
};

// Keeps ascending `held` and descending `time`.
void add_label(std::vector<Label>& front, const Label& label) {
  const auto place =
      std::upper_bound(front.begin(), front.end(), label.held, [](std::int64_t held, const Label& l) { return held < l.held; });
  if (place != front.begin() && (place - 1)->time <= label.time) return;
  auto first = place;
  if (first != front.begin() && (first - 1)->held == label.held) --first;
  auto last = first;
  while (last != front.end() && last->time >= label.time) ++last;
  front.insert(front.erase(first, last), label);
}

// Peak of a backward op beyond what is held below it, its own saved set and those of its segment included.
std::int64_t backward_need(const Chain& chain, int layer, std::int64_t saved) {
  return saved + chain.gradient[from_zero(layer)] + chain.gradient[from_zero(layer - 1)] + chain.backward_transient[by_layer(layer)];
}

std::int64_t kept_need(const Chain& chain, int layer) {
  const std::int64_t saved = chain.saved[by_layer(layer)];
  std::int64_t need = std::max(saved + chain.forward_transient[by_layer(layer)], backward_need(chain, layer, saved));
  if (layer == chain.layers()) need = std::max(need, saved + chain.gradient.back());
  return need;
}

// Of a checkpoint of layers first..last: forward, keeping nothing between, and again, keeping everything.
std::int64_t checkpoint_need(const Chain& chain, int first, int last) {
  std::int64_t need = 0, saved = 0;
  for (int i = first; i <= last; ++i) {
    const std::int64_t input = i == first ? 0 : chain.output[from_zero(i - 1)];
    saved += chain.saved[by_layer(i)];
    need = std::max({need, input + chain.output[from_zero(i)] + chain.forward_transient[by_layer(i)],
                     chain.gradient[from_zero(last)] + saved + chain.forward_transient[by_layer(i)], backward_need(chain, i, saved)});
  }
  if (last == chain.layers()) need = std::max(need, chain.output.back() + chain.gradient.back());
  return need;
}

}  // namespace

std::optional<std::vector<ChainSegment>> fastest_segments(const Chain& chain, std::int64_t device_budget) {
  check_chain(chain);
  std::vector<std::vector<Label>> fronts(chain.output.size());
  add_label(fronts[0], {.held = chain.output[0]});
  for (int layer = 1; layer <= chain.layers(); ++layer) {
    const std::vector<Label>& front = fronts[from_zero(layer - 1)];
    for (std::size_t i = 0; i < front.size(); ++i) {
      if (front[i].held + kept_need(chain, layer) <= device_budget) {
        add_label(fronts[from_zero(layer)], {front[i].held + chain.saved[by_layer(layer)], front[i].time, layer - 1, i, true});
      }
      std::int64_t again = 0;
      for (int last = layer; last <= chain.layers(); ++last) {
        again += chain.forward_time[by_layer(last)];
        if (front[i].held + checkpoint_need(chain, layer, last) > device_budget) continue;
        add_label(fronts[from_zero(last)], {front[i].held + chain.output[from_zero(last)], front[i].time + again, layer - 1, i, false});
      }
    }
  }
  if (fronts.back().empty()) return std::nullopt;
  std::vector<ChainSegment> segments;
  Label label = fronts.back().back();  // the least time
  for (int boundary = chain.layers(); boundary > 0; boundary = segments.back().first - 1) {
    segments.push_back({label.parent_boundary + 1, boundary, label.kept});
    label = fronts[from_zero(label.parent_boundary)][label.parent];
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

}  // namespace stepsim
