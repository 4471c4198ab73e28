#include "traces/memory_writer.h"

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

}  // namespace

void write_memory_csv(const OpGraph& graph, const StepResult& result, std::span<const std::string_view> role_names, const TextSink& sink) {
  const std::vector<std::string> names = bucket_names(role_names, bucket_count(graph));
  TextBlock out(sink);
  out << "time_s,device,space,in_use_bytes";
  for (const std::string& name : names) out << "," << csv_field(name);
  out << "\n";
  replay_memory(graph, result, Duration(1), [&](const MemoryPoint& point) {
    out.decimal(point.at.count(), 12) << "," << std::int64_t{point.device.index}
                                      << (point.space == MemorySpace::kHost ? ",host," : ",device,") << point.in_use.value;
    for (std::size_t i = 0; i < names.size(); ++i) out << "," << (i < point.by_bucket.size() ? point.by_bucket[i].value : std::int64_t{0});
    out << "\n";
  });
  out.flush();
}

}  // namespace stepsim
