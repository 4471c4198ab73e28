// Opens what the writer wrote in the real Perfetto trace processor (tools/trace_check of the shared folder; needs node, npm and its
// engine).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/traces/traced_step.h"
#include "traces/output_file.h"

namespace stepsim {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> piece{};
  for (std::size_t got = 0; (got = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;) text.append(piece.data(), got);
  ::pclose(pipe);
  return text;
}

// One JSON table a query; empty: the tool cannot run here.
std::vector<nlohmann::json> ask_perfetto(const std::string& trace, const std::vector<std::string>& queries) {
  const std::string tool = STEPSIM_SHARED_DIR "/tools/trace_check";
  if (!std::filesystem::exists(tool)) return {};
  std::string command = "'" + tool + "' '" + trace + "'";
  for (const std::string& query : queries) command += " \"" + query + "\"";
  std::vector<nlohmann::json> tables;
  std::istringstream lines(output_of(command + " 2>/dev/null"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) tables.push_back(nlohmann::json::parse(line));
    if (line.starts_with("ERR")) ADD_FAILURE() << line;
  }
  return tables;
}

// Three examples side by side in one graph, with zero-length ops and markers among them.
std::string busy_graph() {
  std::ifstream stream(STEPSIM_SOURCE_DIR "/tests/golden/graphs/offload.textproto");
  std::string text(std::istreambuf_iterator<char>(stream), {});
  text += R"(
    ops { name: "last" stream: "copy in" duration: "0 us" after: "z1" after: "free" }
    ops { name: "z1" stream: "compute" duration: "0 us" after: "z0" after: "free" }
    ops { name: "z0" stream: "copy out" duration: "300 ps" after: "B0" }
    ops { name: "free" marker: true after: "B0" after: "z0" }
    ops { name: "b" stream: "compute" duration: "2 us" after: "last" }
    ops { name: "c \"quoted\" \303\244" stream: "copy in" duration: "1 ns" start_after: "b" }
    ops { name: "d" stream: "copy out" duration: "1 ns" after: "b" after: "#15" })";
  for (int i = 0; i < 700; ++i) text += "ops { name: \"m" + std::to_string(i) + "\" marker: true after: \"F0\" }\n";
  return text;
}

std::vector<nlohmann::json> ask_about(const GraphFile& file, const StepResult& result, const std::vector<std::string>& queries) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("stepsim_perfetto_" + std::to_string(::getpid()) + ".json.gz")).string();
  {
    OutputFile out(path);
    const std::vector<std::string_view> roles(file.role_names.begin(), file.role_names.end());
    write_chrome_trace(file.graph, result, {.role_names = roles, .title = "test"}, [&](std::string_view text) { out.write(text); });
    out.commit();
  }
  std::vector<nlohmann::json> tables = ask_perfetto(path, queries);
  std::filesystem::remove(path);
  return tables;
}

constexpr const char* kImportErrors = "select name, value from stats where severity != 'info' and value != 0";
constexpr const char* kFlows =
    "select extract_arg(a.arg_set_id, 'args.op') x, extract_arg(b.arg_set_id, 'args.op') y from flow f join slice a on a.id = "
    "f.slice_out join slice b on b.id = f.slice_in";

std::vector<std::pair<std::int32_t, std::int32_t>> flows_in(const nlohmann::json& table) {
  std::vector<std::pair<std::int32_t, std::int32_t>> flows;
  for (const nlohmann::json& row : table) flows.emplace_back(row["x"], row["y"]);
  std::sort(flows.begin(), flows.end());
  return flows;
}

TEST(Perfetto, OpensTheTraceWhole) {
  const GraphFile file = parse_graph(busy_graph(), "busy");
  const StepResult result = run_graph(file);
  ASSERT_FALSE(result.deadlock.has_value());
  const std::vector<nlohmann::json> tables =
      ask_about(file, result,
                {kImportErrors, "select count(*) n from slice", kFlows, "select count(*) n from counter",
                 "select sum(dur) n from slice where name = 'backward L2 B2'"});
  if (tables.empty()) GTEST_SKIP() << "trace_check, node or npm is not here";
  ASSERT_EQ(tables.size(), 5u);
  EXPECT_EQ(tables[0], nlohmann::json::array());  // no import error
  EXPECT_EQ(tables[1][0]["n"], file.graph.ops().size());
  EXPECT_EQ(flows_in(tables[2]), flows_of(file.graph));
  EXPECT_GT(tables[3][0]["n"], 0);
  EXPECT_EQ(tables[4][0]["n"], 20'000);
}

// A transfer's arrow goes from the sender's process to the receiver's, between the arrows from its producer and to its consumer.
TEST(Perfetto, ShowsAPipelinesTransfers) {
  const GraphFile file = read_graph(STEPSIM_SOURCE_DIR "/tests/golden/graphs/two_stages.textproto");
  const std::string process = "(select upid from thread_track t join thread using (utid) where t.id = ";
  const std::vector<nlohmann::json> tables =
      ask_about(file, run_graph(file),
                {kImportErrors, kFlows,
                 "select a.name x, " + process + "a.track_id) p, b.name y, " + process +
                     "b.track_id) q from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in "
                     "where a.name like '%send F0' or b.name like '%send F0' order by a.ts, b.ts, p, q"});
  if (tables.empty()) GTEST_SKIP() << "trace_check, node or npm is not here";
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_EQ(tables[0], nlohmann::json::array());
  EXPECT_EQ(flows_in(tables[1]), flows_of(file.graph));
  ASSERT_EQ(tables[2].size(), 3u) << tables[2];
  const auto arrow = [&](std::size_t i) {
    const nlohmann::json& row = tables[2][i];
    return row["x"].get<std::string>() + (row["p"] == row["q"] ? " = " : " > ") + row["y"].get<std::string>();
  };
  EXPECT_EQ(arrow(0), "forward F0 = forward send F0");
  EXPECT_EQ(arrow(1), "forward send F0 > forward send F0");
  EXPECT_EQ(arrow(2), "forward send F0 = forward next F0");
}

}  // namespace
}  // namespace stepsim
