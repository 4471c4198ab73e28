// Any bytes as a graph, in the text form (or JSON) and in the binary form: a graph, or an InputError; never a crash or another exception.
#include <cstdint>
#include <string_view>

#include "sim/check.h"
#include "sim/input_error.h"
#include "traces/graph_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const stepsim::GraphFile file = stepsim::parse_graph(bytes, "graph");
    // What is read can be written and read again.
    const stepsim::GraphFile again = stepsim::parse_graph(stepsim::graph_text(file), "again");
    STEPSIM_CHECK(again.graph.ops().size() == file.graph.ops().size());
  } catch (const stepsim::InputError&) {
  }
  try {
    stepsim::parse_binary_graph(bytes, "graph.pb");
  } catch (const stepsim::InputError&) {
  }
  return 0;
}
