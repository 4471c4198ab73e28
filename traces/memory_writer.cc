#include "traces/memory_writer.h"

#include <algorithm>
#include <optional>

#include "traces/memory_curve.h"

namespace stepsim {

namespace {

// RFC 4180: quoted if it holds a comma, a quote or a line break; quotes doubled.
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// Where the curve stands at each device's rows, whose times ascend.
class CurveReader {
 public:
  CurveReader(const AllocatorCurve& curve, std::int32_t devices) : curve_(curve), next_(static_cast<std::size_t>(devices), 0) {}

  // ",allocated,reserved" of the row; where it shows the highest state of its instant, that of the allocator.
  void write(const MemoryPoint& point, TextBlock& out) {
    const std::span<const AllocatorCurve::Point> points = curve_.points(point.device);
    std::size_t& next = next_[static_cast<std::size_t>(point.device.index)];
    while (next < points.size() && points[next].at <= point.at) ++next;
    if (next == 0) {
      out << ",0,0";
      return;
    }
    const AllocatorCurve::Point& now = points[next - 1];
    out << "," << (point.highest && now.at == point.at ? now.most_allocated : now.allocated).value << "," << now.reserved.value;
  }

 private:
  const AllocatorCurve& curve_;
  std::vector<std::size_t> next_;  // by device: the first point not yet reached
};

}  // namespace

void AllocatorCurve::add(const AllocatorSample& sample) {
  std::vector<Point>& points = devices_[static_cast<std::size_t>(sample.device.index)];
  if (points.empty() || points.back().at != sample.at) points.push_back({.at = sample.at});
  Point& now = points.back();
  now.allocated = sample.use.allocated;
  now.reserved = sample.use.reserved;
  now.most_allocated = std::max(now.most_allocated, now.allocated);
}

void write_memory_csv(const OpGraph& graph, const StepResult& result, std::span<const std::string_view> role_names, const TextSink& sink,
                      const AllocatorCurve* allocator) {
  const std::vector<std::string> names = bucket_names(role_names, bucket_count(graph));
  TextBlock out(sink);
  out << "time_s,device,space,in_use_bytes";
  for (const std::string& name : names) out << "," << csv_field(name);
  if (allocator != nullptr) out << ",allocated_bytes,reserved_bytes";
  out << "\n";
  std::optional<CurveReader> curve;
  if (allocator != nullptr) curve.emplace(*allocator, graph.device_count());
  replay_memory(graph, result, Duration(1), [&](const MemoryPoint& point) {
    out.decimal(point.at.count(), 12) << "," << std::int64_t{point.device.index}
                                      << (point.space == MemorySpace::kHost ? ",host," : ",device,") << point.in_use.value;
    for (std::size_t i = 0; i < names.size(); ++i) out << "," << (i < point.by_bucket.size() ? point.by_bucket[i].value : std::int64_t{0});
    if (curve && point.space == MemorySpace::kHost) out << ",,";
    if (curve && point.space == MemorySpace::kDevice) curve->write(point, out);
    out << "\n";
  });
  out.flush();
}

}  // namespace stepsim
