#include "tests/unit/tools/published_rows.h"

namespace stepsim {

namespace {

constexpr PublishedRows kPipeline{compare_pipeline};

}  // namespace

// p 2, m 4, F 1, B 2: (m + p - 1)(F + B) = 15; min(p - s, m) in flight.
TEST(PublishedPipeline, ComparesEverythingThatARowGives) {
  const std::string row = "{\"schedule\": \"1f1b\", \"p\": 2, \"m\": 4, \"v\": 1, \"F\": 1, \"B\": 2, \"makespan\": ";
  const PublishedComparison comparison =
      kPipeline.compared(row + "15, \"closed_form\": 15, \"inflight\": [2, 1], \"inflight_closed\": [2, 1]}, " + row + "16}");
  ASSERT_EQ(comparison.rows.size(), 2u);
  EXPECT_TRUE(comparison.exact);
  EXPECT_EQ(comparison.rows[0].difference, "");
  EXPECT_EQ(comparison.rows[0].error(), 0);
  EXPECT_EQ(comparison.rows[1].id, "2");
  EXPECT_EQ(comparison.rows[1].measured, 16);
  EXPECT_EQ(comparison.rows[1].simulated, 15);
  EXPECT_EQ(comparison.rows[1].difference, "makespan 15 not 16");
  EXPECT_EQ(kPipeline.difference(row + "15, \"closed_form\": 14}"), "closed_form 15 not 14");
  EXPECT_EQ(kPipeline.difference(row + "15, \"inflight\": [2, 2]}"), "inflight [2,1] not [2,2]");
  EXPECT_EQ(kPipeline.difference(row + "15, \"inflight_closed\": [2]}"), "inflight_closed [2,1] not [2]");
  EXPECT_EQ(kPipeline.difference(row + "14, \"inflight\": [1, 1]}"), "makespan 15 not 14; inflight [2,1] not [1,1]");
  // A row that says so has a makespan of its own and closed forms that are another's.
  EXPECT_EQ(kPipeline.difference(row + "15, \"closed_form\": 14, \"inflight_closed\": [3, 1], \"equals\": false}"), "");
  EXPECT_EQ(kPipeline.difference(row + "15, \"closed_form\": 14, \"equals\": true}"), "closed_form 15 not 14");
}

TEST(PublishedPipeline, ReadsTheKeysOfEverySchedule) {
  EXPECT_EQ(
      kPipeline.difference("{\"schedule\": \"gpipe\", \"p\": 2, \"m\": 3, \"F\": 1, \"B\": 1, \"makespan\": 8, \"inflight\": [3, 2]}"),
      "inflight [3,3] not [3,2]");
  // (m v + p - 1)(F + B) = 5 * 3 with F and B of a chunk; min(2(p - r - 1) + (v - 1)p + 1, mv) = 4 and 3.
  const std::string interleaved = "{\"schedule\": \"interleaved_1f1b\", \"p\": 2, \"m\": 2, \"v\": 2, \"F_chunk\": 1, \"B_chunk\": 2, ";
  EXPECT_EQ(kPipeline.difference(interleaved + "\"makespan\": 15, \"inflight_chunks\": [4, 3], \"inflight_closed\": [4, 3]}"), "");
  EXPECT_EQ(kPipeline.difference(interleaved + "\"makespan\": 15, \"inflight_chunks\": [4, 4]}"), "inflight_chunks [4,3] not [4,4]");
  // m (F + B + W) + (p - 1)(F + B - W) = 2 * 3 + 1
  const std::string zero_bubble = "{\"schedule\": \"zb_h1_handcrafted\", \"p\": 2, \"m\": 2, \"F\": 1, \"B\": 1, \"W\": 1, ";
  EXPECT_EQ(kPipeline.difference(zero_bubble +
                                 "\"makespan\": 7, \"closed_form_paper\": 7, \"inflight_until_W\": [2, 2], \"inflight_until_B\": [2, 1]}"),
            "");
  EXPECT_EQ(kPipeline.difference(zero_bubble +
                                 "\"makespan\": 7, \"closed_form_paper\": 8, \"inflight_until_W\": [2, 1], \"inflight_until_B\": [2, 2]}"),
            "closed_form_paper 7 not 8; inflight_until_B [2,1] not [2,2]; inflight_until_W [2,2] not [2,1]");
}

// ZB-V, F = B = W of a chunk: 6 m + p - 1 (no bubble beyond the first micro-batch's way), p micro-batches of two chunks in flight
// (2401.10241 section 6). DualPipe, B the whole backward pass: m - p - 1 pairs and the others apart on the middle stages, whose bubble is
// (p / 2 - 1)(F&B + B - 3 W) (deepseek-ai/DualPipe README): p 4, m 8, 3 x 5 + 5 x 6 + (5 + 4 - 6) = 48; p + 1 in flight.
TEST(PublishedPipeline, ReadsSchedulesThatGoBothWays) {
  const std::string v = "{\"schedule\": \"zb_v\", \"p\": 3, \"m\": 6, \"F_chunk\": 1, \"B_chunk\": 1, \"W_chunk\": 1, ";
  EXPECT_EQ(kPipeline.difference(v + "\"makespan\": 38, \"inflight_until_W\": [6, 6, 6]}"), "");
  EXPECT_EQ(kPipeline.difference(v + "\"makespan\": 36, \"inflight_until_W\": [6, 6, 5]}"),
            "makespan 38 not 36; inflight_until_W [6,6,6] not [6,6,5]");
  EXPECT_EQ(kPipeline.skipped(v + "\"v\": 3, \"makespan\": 38}"), "zb-v has two chunks a stage");
  const std::string dual = "{\"schedule\": \"dual_pipe\", \"p\": 4, \"F\": 2, \"B\": 4, \"W\": 2, ";
  EXPECT_EQ(kPipeline.difference(dual + "\"m\": 8, \"F&B\": 5, \"makespan\": 48, \"inflight_until_B\": [5, 5, 5, 5]}"), "");
  EXPECT_EQ(kPipeline.difference(dual + "\"m\": 8, \"F&B\": 5, \"makespan\": 49}"), "makespan 48 not 49");
  EXPECT_EQ(kPipeline.skipped(dual + "\"m\": 6, \"makespan\": 1}"), "dualpipe with micro-batches that are odd or below two a stage");
  EXPECT_EQ(kPipeline.skipped("{\"schedule\": \"dualpipe\", \"p\": 3, \"m\": 6, \"F\": 1, \"B\": 2, \"W\": 1, \"makespan\": 1}"),
            "dualpipe with an odd number of stages");
}

TEST(PublishedPipeline, DurationsMayHaveDecimalsDownToAPicosecond) {
  const std::string row = "{\"schedule\": \"gpipe\", \"p\": 2, \"m\": 2, \"F\": 0.1, \"B\": ";
  EXPECT_EQ(kPipeline.difference(row + "0.2, \"makespan\": 0.9}"), "");  // 3 * 0.3, exact where doubles are not
  EXPECT_EQ(kPipeline.difference(row + "0.200000001, \"makespan\": 0.900000003}"), "");
  const std::string reason = "B is above 9000000000 or no whole number of picoseconds, where 1 is 1 ms";
  EXPECT_EQ(kPipeline.skipped(row + "0.2000000001, \"makespan\": 1}"), reason);
  EXPECT_EQ(kPipeline.skipped(row + "1e300, \"makespan\": 1}"), reason);
  // Whole numbers as far as simulated time reaches: 2 forward and 1e8 - 2 are 3 * 1e8, where 1e8 ms are 1e17 ps.
  EXPECT_EQ(kPipeline.difference("{\"schedule\": \"gpipe\", \"p\": 2, \"m\": 2, \"F\": 2, \"B\": 99999998, \"makespan\": 300000000}"), "");
  EXPECT_EQ(kPipeline.problem(row + "-1, \"makespan\": 1}"), "f:1:55: found B -1, wanted a duration of 0 or more");
  EXPECT_EQ(kPipeline.problem(row + "\"long\", \"makespan\": 1}"), "f:1:55: found B \"long\" as a text, wanted a number");
}

TEST(PublishedPipeline, TransfersAreOverlapped) {
  // As in PipelineGraph.TransfersRunBesideComputeWhereTheyAreOverlapped.
  EXPECT_EQ(kPipeline.difference("{\"schedule\": \"1f1b\", \"p\": 2, \"m\": 2, \"F\": 10, \"B\": 20, \"P2P\": 4, \"makespan\": 98}"), "");
}

TEST(PublishedPipeline, WhatCannotBeRunIsSkippedWithItsReason) {
  EXPECT_EQ(kPipeline.skipped("{\"schedule\": \"zb_h2\", \"p\": 2, \"m\": 2}"), "schedule zb_h2 is not built yet");
  const std::string row = "{\"schedule\": \"1f1b\", \"p\": 2, \"m\": 2, \"F\": 1, \"B\": 2";
  EXPECT_EQ(kPipeline.skipped(row + ", \"v\": 2, \"makespan\": 9}"), "1f1b has one chunk a stage");
  EXPECT_EQ(kPipeline.skipped(row + ", \"W\": 1, \"makespan\": 9}"), "1f1b with column W is not built yet");
  EXPECT_EQ(kPipeline.skipped(row + ", \"stagger\": 3, \"makespan\": 9}"), "1f1b with column stagger is not built yet");
  EXPECT_EQ(kPipeline.skipped(row + ", \"staggered\": true, \"makespan\": 9}"), "1f1b with column staggered is not built yet");
  EXPECT_EQ(kPipeline.difference(row + ", \"note\": \"by hand\", \"staggered\": false, \"makespan\": 9}"), "");
  EXPECT_EQ(kPipeline.skipped("{\"schedule\": \"1f1b\", \"p\": 2, \"m\": 2, \"F\": [1, 2], \"B\": 2, \"makespan\": 9}"),
            "1f1b with a list of F is not built yet");
  EXPECT_EQ(
      kPipeline.skipped("{\"schedule\": \"interleaved\", \"p\": 2, \"m\": 3, \"v\": 2, \"F_chunk\": 1, \"B_chunk\": 1, \"makespan\": 9}"),
      "interleaved micro-batches are no multiple of the stages");
  EXPECT_EQ(kPipeline.skipped("{\"schedule\": \"gpipe\", \"p\": 1000000, \"m\": 1000000, \"F\": 1, \"B\": 1, \"makespan\": 9}"),
            "more than 2097152 passes");
  EXPECT_EQ(kPipeline.skipped("{\"schedule\": \"gpipe\", \"p\": 100, \"m\": 100, \"F\": 9e6, \"B\": 9e6, \"makespan\": 9}"),
            "longer than the 106 days of simulated time");
}

TEST(PublishedPipeline, BadNumbersAreErrorsWithTheirLine) {
  EXPECT_EQ(kPipeline.problem("\n{\"schedule\": \"gpipe\", \"p\": 0, \"m\": 2, \"F\": 1, \"B\": 1, \"makespan\": 6}"),
            "f:2:28: found p 0, wanted a whole number from 1 to 1048576");
  EXPECT_NE(kPipeline.problem("{\"schedule\": \"gpipe\", \"p\": 2.5, \"m\": 2, \"F\": 1, \"B\": 1, \"makespan\": 6}"), "");
  EXPECT_NE(kPipeline.problem("{\"schedule\": \"gpipe\", \"p\": 2, \"F\": 1, \"B\": 1, \"makespan\": 6}"), "");
  EXPECT_EQ(kPipeline.problem("{\"schedule\": \"gpipe\", \"p\": 2, \"m\": 2, \"F\": 1, \"B\": 1, \"makespan\": 6, \"inflight\": 2}"),
            "f:1:83: found inflight 2, wanted a list of numbers such as [2,1]");
}

// A mistake is one whether or not the row could be run otherwise: nothing of it is compared silently.
TEST(PublishedPipeline, MalformedRowsAreErrorsWithTheirPlace) {
  const std::string row = "{\"p\": 2, \"m\": 2, \"F\": 1, \"B\": 1, \"schedule\": \"gpipe\", ";  // the next value's key is at column 56
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": 6, \"inflight\": [2, null]}"),
            "f:1:83: found inflight [2,null], wanted a list of numbers such as [2,1]");
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": 6, \"inflight\": [\"2\", \"2\"]}"),
            "f:1:83: found inflight [\"2\",\"2\"], wanted a list of numbers such as [2,1]");
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": 6, \"inflight\": \"[2,2]\"}"),
            "f:1:83: found inflight \"[2,2]\" as a text, wanted a list of numbers such as [2,1]");
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": \"6\"}"), "f:1:68: found makespan \"6\" as a text, wanted a number");
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": \"\"}"), "f:1:68: found makespan \"\" as a text, wanted a number");
  EXPECT_EQ(kPipeline.problem(row + "\"equals\": \"false\", \"makespan\": 6}"),
            "f:1:66: found equals \"false\" as a text, wanted true or false");
  EXPECT_EQ(kPipeline.problem(row + "\"equals\": 0, \"makespan\": 6}"), "f:1:66: found equals 0, wanted true or false");
  const std::string no_makespan = "found no makespan, wanted one of makespan, closed_form, closed_form_paper";
  EXPECT_EQ(kPipeline.problem(row + "\"inflight\": [2, 2]}"), "f:1:2: " + no_makespan);
  EXPECT_EQ(kPipeline.problem(row + "\"makespan\": null}"), "f:1:68: " + no_makespan);
  EXPECT_EQ(kPipeline.problem("{\"schedule\": \"1f1b\", \"p\": 2, \"m\": 2, \"F\": 1, \"makespan\": 9}"),
            "f:1:2: found no B, wanted a duration of 1f1b");
  for (const char* const name : {"1", "true", "null", "[\"gpipe\"]", "\"\""}) {
    EXPECT_TRUE(kPipeline.problem("{\"schedule\": " + std::string(name) + ", \"p\": 2, \"m\": 2}").starts_with("f:1:15: found ")) << name;
  }
  const CsvTable table = parse_published("schedule,p,m,F,B,makespan\ngpipe,2,2,x,1,6\n", "f");
  EXPECT_EQ(error_of([&] { compare_pipeline(table); }), "f:2:11: found F x, wanted a number");
}

TEST(PublishedPipeline, IsKnownByItsColumnsInJsonAndCsv) {
  EXPECT_EQ(detected_format(parse_published("[{\"schedule\": \"gpipe\", \"p\": 1, \"m\": 1}]", "f")), "pipeline");
  const CsvTable table = parse_published("schedule,p,m,F,B,makespan,inflight\ngpipe,2,2,1,1,6,\"[2, 2]\"\n", "f");
  EXPECT_EQ(detected_format(table), "pipeline");
  const PublishedComparison comparison = compare_pipeline(table);
  ASSERT_EQ(comparison.rows.size(), 1u);
  EXPECT_EQ(comparison.rows[0].id, "2");  // its line
  EXPECT_EQ(comparison.rows[0].difference, "");
}

}  // namespace stepsim
