#include "traces/chrome_trace_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/traces/trace_validator.h"
#include "tests/unit/traces/traced_step.h"

namespace stepsim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::pair<std::int32_t, std::int32_t>> flow_pairs(const ReadTrace& trace) {
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const ReadFlow& flow : trace.flows)
    pairs.emplace_back(static_cast<std::int32_t>(flow.from_op), static_cast<std::int32_t>(flow.to_op));
  return pairs;
}

ReadTrace trace_of(const std::string& graph_text) {
  const GraphFile file = parse_graph(graph_text, "graph");
  const std::string text = chrome_trace(file.graph, run_graph(file));
  ReadTrace trace = read_trace(text);
  EXPECT_THAT(trace.problems, IsEmpty()) << text;
  EXPECT_EQ(flow_pairs(trace), flows_of(file.graph)) << text;
  return trace;
}

const ReadSlice& slice_named(const ReadTrace& trace, const std::string& name) {
  for (const ReadSlice& slice : trace.slices) {
    if (slice.name == name) return slice;
  }
  throw std::runtime_error("no slice " + name);
}

TEST(ChromeTraceWriter, TwoStreams) {
  const ReadTrace trace = trace_of(R"(
    ops { name: "load" stream: "copy" duration: "5 us" }
    ops { name: "gemm" phase: "forward" layer: 3 micro_batch: 1 stream: "compute" duration: "12 us" after: "load" })");
  ASSERT_EQ(trace.slices.size(), 2u);
  EXPECT_EQ(trace.slices[0].name, "load");
  EXPECT_EQ(trace.slices[1].name, "forward L3 gemm");  // without the micro-batch
  EXPECT_EQ(trace.slices[1].start, 5000);              // ns
  EXPECT_EQ(trace.slices[1].duration, 12000);
  EXPECT_EQ(trace.flows.size(), 1u);
  EXPECT_EQ(trace.thread_names.at({1, 1}), "copy");
  EXPECT_EQ(trace.thread_names.at({1, 2}), "compute");
  EXPECT_EQ(trace.process_names.at(1), "device 0");
}

// 2,000 back-to-back ops of 1,234.567 ns: rounding start and duration apart would make a third of them overlap (spec/traces.md, 0.4).
TEST(ChromeTraceWriter, BackToBackOpsOfOddLengthDoNotOverlap) {
  std::string graph;
  for (int i = 0; i < 2000; ++i) graph += "ops { name: \"k" + std::to_string(i) + "\" stream: \"compute\" duration: \"1234567 ps\" }\n";
  const ReadTrace trace = trace_of(graph);
  ASSERT_EQ(trace.slices.size(), 2000u);
  EXPECT_EQ(trace.slices[1999].start, 2467899);  // floor(1999 * 1234.567)
  EXPECT_EQ(trace.slices[1999].start + trace.slices[1999].duration, 2469134);
}

// A chain of zero-length ops and markers on three streams, all at one instant: each flow must bind to its own slice.
TEST(ChromeTraceWriter, FlowsOfZeroLengthOpsBindToTheirOwnSlices) {
  trace_of(R"(
    ops { name: "a" stream: "s" duration: "5 us" }
    ops { name: "last" stream: "t" duration: "0 us" after: "z1" after: "free" }
    ops { name: "z1" stream: "s" duration: "0 us" after: "z0" after: "free" }
    ops { name: "z0" stream: "u" duration: "300 ps" after: "a" }
    ops { name: "free" marker: true after: "a" after: "z0" }
    ops { name: "b" stream: "s" duration: "2 us" after: "last" }
    ops { name: "c" stream: "t" duration: "1 ns" start_after: "b" }
    ops { name: "d" stream: "u" duration: "1 ns" after: "b" after: "c" })");
}

TEST(ChromeTraceWriter, ManyZeroLengthOpsAtOneInstant) {
  std::string graph = "ops { name: \"a\" stream: \"s\" duration: \"5 us\" }\n";
  for (int i = 0; i < 600; ++i) graph += "ops { name: \"m" + std::to_string(i) + "\" marker: true after: \"a\" }\n";
  const ReadTrace trace = trace_of(graph);
  std::map<std::int64_t, int> slices_of_row;
  for (const ReadSlice& slice : trace.slices) ++slices_of_row[slice.tid];
  for (const auto& [row, slices] : slices_of_row) EXPECT_LE(slices, 256) << row;  // Perfetto drops what nests deeper than 512
}

// The receiver waits on its stream from 0; the sender computes until 10 us: a slice "wait" of 10 us on the receiver's row, none on the
// other.
TEST(ChromeTraceWriter, RendezvousHasASlicePerPartAndAWait) {
  OpGraphBuilder builder;
  const DeviceId first = builder.add_device(), second = builder.add_device();
  const StreamId sends = builder.add_stream({.device = first, .kind = builder.label("send"), .compute = true});
  const StreamId receives = builder.add_stream({.device = second, .kind = builder.label("receive"), .compute = true});
  const WorkId given = builder.work(Given{.index = 0});
  builder.add_op({.work = given, .stream = sends, .phase = {}, .kind = builder.label("compute"), .origin = {}, .issuer = {}}, {});
  const std::array<OpPart, 1> other = {OpPart{.stream = receives}};
  const WorkId transfer = builder.work(Given{.index = 1, .op_class = Given::Class::kPointToPoint});
  builder.add_op({.work = transfer, .stream = sends, .phase = {}, .kind = builder.label("p2p"), .origin = {}, .issuer = {}}, {}, other);
  const OpGraph graph = std::move(builder).build();
  const std::vector<GivenCostModel::Row> costs = {{.alone = std::chrono::microseconds(10)}, {.alone = std::chrono::microseconds(3)}};
  const StepResult result = simulate(graph, plain_machine(2), GivenCostModel(costs));
  const ReadTrace trace = read_trace(chrome_trace(graph, result));
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.slices.size(), 3u);  // one op with two parts
  ASSERT_EQ(trace.waits.size(), 1u);
  EXPECT_EQ(trace.waits[0].pid, 2);
  EXPECT_EQ(trace.waits[0].start, 0);
  EXPECT_EQ(trace.waits[0].duration, 10000);
  EXPECT_EQ(trace.waits[0].op, 1);
}

TEST(ChromeTraceWriter, FlowsOfARendezvousUseThePartOfTheDevice) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/pipeline.json");
  const StepResult result = run_graph(file);
  const std::string text = chrome_trace(file.graph, result);
  const ReadTrace trace = read_trace(text);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(flow_pairs(trace), flows_of(file.graph));
  // send, device 0 to device 1: flow 4. F0 (device 0) -> send: its part on device 0; send -> F1 (device 1): from its part on device 1.
  const nlohmann::json json = nlohmann::json::parse(text);
  std::vector<std::string> ends;
  for (const nlohmann::json& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "s" || phase == "f")
      ends.push_back(phase + std::to_string(event["id"].get<int>()) + "@" + std::to_string(event["pid"].get<int>()));
  }
  EXPECT_THAT(ends,
              ElementsAre("s1@1", "f1@1", "s2@2", "s4@1", "f4@2", "f2@2", "s3@2", "f3@3"));  // process 3: the marker outside the streams
}

using Arrow = std::pair<std::int64_t, std::int64_t>;  // processes

// Arrows led from the first part although that one received, as it does in the pipelines of models/.
TEST(ChromeTraceWriter, TransfersLeadFromTheDeviceThatSends) {
  const std::string streams = R"(
    devices { name: "gpu0" } devices { name: "gpu1" }
    streams { name: "a" device: "gpu0" } streams { name: "b" device: "gpu1" }
    storages { name: "input" size: "1 MiB" device: "gpu1" }
    ops { name: "send" class: point_to_point group: "pp" duration: "2 us" )";
  const auto arrow = [&](const std::string& parts) {
    const GraphFile file = parse_graph(streams + parts + " }", "graph");
    return transfer_arrows(chrome_trace(file.graph, run_graph(file))).at(0);
  };
  const std::string a = "parts { stream: \"a\" } ", b = "parts { stream: \"b\" } ";
  EXPECT_THAT(arrow(a + b + "writes: \"input\""), ElementsAre(Arrow(1, 2)));  // the device that is written to receives
  EXPECT_THAT(arrow(b + a + "writes: \"input\""), ElementsAre(Arrow(1, 2)));
  EXPECT_THAT(arrow(a + b), ElementsAre(Arrow(1, 2)));  // nothing written: the second part receives
  EXPECT_THAT(arrow(b + a), ElementsAre(Arrow(2, 1)));
}

TEST(ChromeTraceWriter, TransfersOfAPipelineLeadToTheNextPass) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/two_stages.textproto");
  int transfers = 0;
  for (const auto& [op, arrows] : transfer_arrows(chrome_trace(file.graph, run_graph(file)))) {
    const bool forward = file.graph.label(file.graph.op(OpId{static_cast<std::int32_t>(op)}).phase) == "forward";
    EXPECT_THAT(arrows, ElementsAre(forward ? Arrow(1, 2) : Arrow(2, 1))) << op;
    ++transfers;
  }
  EXPECT_EQ(transfers, 4);
}

TEST(ChromeTraceWriter, APipelineIsAProcessPerStage) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/two_stages.textproto");
  const StepResult result = run_graph(file);
  EXPECT_EQ(result.end, std::chrono::microseconds(94));  // as the file derives it
  const std::string text = chrome_trace(file.graph, result, {.role_names = {}, .title = "", .device_names = {"stage 0 \"first\""}});
  const ReadTrace trace = read_trace(text);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(flow_pairs(trace), flows_of(file.graph));
  EXPECT_EQ(trace.process_names.at(1), "stage 0 \"first\"");
  EXPECT_EQ(trace.process_names.at(2), "device 1");  // no name given
  // Processes by stage; compute first of each, although the graph has another stream before it.
  std::map<std::pair<int, std::string>, int> sort_of_row;
  std::map<int, int> sort_of_process;
  const nlohmann::json json = nlohmann::json::parse(text);
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["name"] == "process_sort_index") sort_of_process[event["pid"]] = event["args"]["sort_index"];
    if (event["name"] != "thread_sort_index") continue;
    sort_of_row[{event["pid"], trace.thread_names.at({event["pid"], event["tid"]})}] = event["args"]["sort_index"];
  }
  EXPECT_LT(sort_of_process.at(1), sort_of_process.at(2));
  EXPECT_LT(sort_of_row.at({1, "compute 0"}), sort_of_row.at({1, "send 0"}));
  EXPECT_LT(sort_of_row.at({1, "send 0"}), sort_of_row.at({1, "receive 0"}));
  EXPECT_LT(sort_of_row.at({2, "compute 1"}), sort_of_row.at({2, "receive 1"}));
}

// Measured kernels may start before their predecessor ends (spec/traces.md, 2.1: PDL); they go to a further row.
TEST(ChromeTraceWriter, OverlapSpillsToAnotherRow) {
  const GraphFile file =
      parse_graph(R"(ops { name: "a" stream: "s" duration: "5 us" } ops { name: "b" stream: "s" duration: "5 us" })", "graph");
  StepResult result = run_graph(file);
  result.timeline[1].start -= std::chrono::nanoseconds(1);
  const ReadTrace trace = read_trace(chrome_trace(file.graph, result));
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_NE(slice_named(trace, "a").tid, slice_named(trace, "b").tid);
  EXPECT_EQ(trace.thread_names.at({1, slice_named(trace, "b").tid}), "s (overlapping)");
}

TEST(ChromeTraceWriter, MemoryByRole) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/offload.textproto");
  const StepResult result = run_graph(file, {.device = LedgerRule::kDeviceOrder});
  const std::vector<std::string_view> roles(file.role_names.begin(), file.role_names.end());
  const ReadTrace trace = read_trace(chrome_trace(file.graph, result, {.role_names = roles, .title = "t"}));
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.slices.size(), 10u);
  EXPECT_EQ(result.end, std::chrono::microseconds(90));
  const std::int64_t mib = 1 << 20;
  const auto& device = trace.counters.at("1 memory");
  // Device order: F0 claims x0 at 0 on top of 300 MiB of weights.
  EXPECT_EQ(device.front().at("ts"), 0);
  EXPECT_EQ(device.front().at("weights"), 300 * mib);
  EXPECT_EQ(device.front().at("activations"), 100 * mib);
  EXPECT_EQ(device.front().at("offload_staging"), 0);
  EXPECT_EQ(device.back().at("activations"), 0);
  EXPECT_EQ(device.back().at("weights"), 300 * mib);
  // x0 goes to the host at 10 us (the start of its copy) and is in use there until it is back at 55 us.
  const auto& host = trace.counters.at("1 host memory");
  EXPECT_EQ(host.front().at("ts"), 10000);
  EXPECT_EQ(host.front().at("offload_staging"), 100 * mib);
  EXPECT_EQ(host.back().at("ts"), 55000);
  EXPECT_EQ(host.back().at("offload_staging"), 0);
}

TEST(ChromeTraceWriter, NamesAreEscaped) {
  const std::string text = "ops { name: \"a\\\"b\\\\c\\n\\t\\001 \\303\\244 </script>\" stream: \"s\\\"\" duration: \"1 us\" }";
  const GraphFile file = parse_graph(text, "graph");
  const ReadTrace trace = read_trace(chrome_trace(file.graph, run_graph(file), {.role_names = {}, .title = "t\"\n"}));
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.slices.at(0).name, "a\"b\\c\n\t\x01 \xC3\xA4 </script>");
  EXPECT_EQ(trace.thread_names.at({1, 1}), "s\"");
}

TEST(ChromeTraceWriter, ArgumentsSayWhatTheWorkIs) {
  OpGraphBuilder builder;
  const StreamId stream = builder.add_stream({.device = builder.add_device(), .kind = builder.label("compute"), .compute = true});
  const WorkId work = builder.work(Gemm{.m = 2, .n = 3, .k = 4});
  builder.add_op({.work = work, .stream = stream, .phase = {}, .kind = builder.label("gemm"), .origin = {}, .issuer = {}}, {});
  const OpGraph graph = std::move(builder).build();
  StepResult result;
  result.timeline.push_back({.op = OpId{0}, .issued = {}, .start = Duration(1999), .end = Duration(1'002'000), .slowed = Duration(5'500)});
  const nlohmann::json json = nlohmann::json::parse(chrome_trace(graph, result));
  const nlohmann::json& slice = json["traceEvents"].back();
  EXPECT_EQ(slice["ts"], 0.001);   // floor(1.999 ns)
  EXPECT_EQ(slice["dur"], 1.001);  // 1002 - 1 ns
  EXPECT_EQ(slice["args"]["work"], "gemm m=2 n=3 k=4 NN bf16");
  EXPECT_EQ(slice["args"]["flops"], 48);  // 2 m n k
  EXPECT_EQ(slice["args"]["slowed_us"], 0.005);
}

TEST(ChromeTraceWriter, StoppedStepShowsWhatRan) {
  const GraphFile file =
      parse_graph(R"(ops { name: "a" stream: "s" duration: "5 us" } ops { name: "b" stream: "t" after: "a" duration: "5 us" })", "g");
  StepResult result = run_graph(file);
  result.timeline.pop_back();
  const ReadTrace trace = read_trace(chrome_trace(file.graph, result));
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.slices.size(), 1u);
  EXPECT_THAT(trace.flows, IsEmpty());
}

TEST(ChromeTraceWriter, FlowsCanBeLeftOut) {
  const GraphFile file =
      parse_graph(R"(ops { name: "a" stream: "s" duration: "5 us" } ops { name: "b" stream: "t" after: "a" duration: "5 us" })", "g");
  const std::string text = chrome_trace(file.graph, run_graph(file), {.role_names = {}, .title = "", .flows = false});
  EXPECT_EQ(text.find("\"ph\":\"s\""), std::string::npos);
  EXPECT_NE(chrome_trace(file.graph, run_graph(file)).find("\"ph\":\"s\""), std::string::npos);
}

// The validator itself must see what it looks for.
TEST(TraceValidator, SeesFaults) {
  const auto problems = [](const std::string& events) {
    const std::string names =
        R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"p"}},{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"t"}},)";
    return read_trace("{\"traceEvents\":[" + names + events + "]}").problems.size();
  };
  const std::string a = R"({"ph":"X","cat":"c","name":"a","pid":1,"tid":1,"ts":0.000,"dur":5.000,"args":{"op":0}})";
  EXPECT_EQ(problems(a), 0u);
  EXPECT_EQ(problems(a + R"(,{"ph":"X","cat":"c","name":"b","pid":1,"tid":1,"ts":4.999,"dur":1.000,"args":{"op":1}})"), 1u);
  EXPECT_EQ(problems(a + R"(,{"ph":"X","cat":"c","name":"b","pid":1,"tid":1,"ts":0.000,"dur":0.000,"args":{"op":1}})"), 2u);
  EXPECT_EQ(problems(a + R"(,{"ph":"s","cat":"c","name":"f","id":1,"pid":1,"tid":1,"ts":0.000})"), 2u);
  const std::string end = R"(,{"ph":"f","bp":"e","cat":"c","name":"f","id":1,"pid":1,"tid":1,"ts":)";
  EXPECT_EQ(problems(a + R"(,{"ph":"s","cat":"c","name":"f","id":1,"pid":1,"tid":1,"ts":0.000})" + end + "4.999}"), 0u);
  EXPECT_EQ(problems(a + R"(,{"ph":"s","cat":"c","name":"f","id":1,"pid":1,"tid":1,"ts":0.000})" + end + "5.000}"), 1u);
  EXPECT_EQ(problems(R"({"ph":"C","name":"m","pid":1,"ts":0,"args":{"a":1}},{"ph":"C","name":"m","pid":1,"ts":1,"args":{"b":1}})"), 1u);
}

}  // namespace
}  // namespace stepsim
