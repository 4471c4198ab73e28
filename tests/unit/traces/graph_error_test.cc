// What read_graph refuses, and how it says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "sim/input_error.h"
#include "traces/graph.pb.h"
#include "traces/graph_file.h"

namespace stepsim {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_graph(text, "g");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string binary_refusal(const std::string& bytes) {
  try {
    parse_binary_graph(bytes, "g.pb");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kOp = "ops { name: \"forward\" stream: \"s\" duration: \"1 us\" }\n";

struct Case {
  std::string text, problem;
};

TEST(GraphErrors, EachIsNamedWithItsPlace) {
  const Case cases[] = {
      {"", "g: found a graph without ops, wanted at least one"},
      {kOp + "ops { name: \"b\" stream: \"s\" duration: \"1 us\" after: \"forwrad\" }",
       "g:2:46: found \"forwrad\", wanted the name of an op, did you mean \"forward\"?"},
      {kOp + "ops { name: \"b\" stream: \"s\" duration: \"1 us\" after: \"#2\" }", "g:2:46: found \"#2\", wanted an op from #0 to #1"},
      {kOp + "ops { name: \"b\" stream: \"s\" duration: \"1 us\" after: \"b\" }", "g:2:46: found \"b\", the op itself, wanted another op"},
      {kOp + kOp, "g:2:7: found a second op \"forward\", wanted unique names"},
      {"ops { name: \"a\" duration: \"1 us\" }", "g:1:1: found an op without stream, wanted stream: \"compute\" or the like"},
      {"ops { name: \"a\" stream: \"s\" }",
       "g:1:1: found an op without time, wanted a duration like \"5 us\", a work like gemm, or marker: true"},
      {"ops { name: \"a\" stream: \"s\" duration: \"1 us\" marker: true }", "g:1:1: found a work and a given time, wanted one of the two"},
      {"ops { name: \"a\" stream: \"s\" duration: \"1 us\" fixed: \"1 us\" }",
       "g:1:29: found duration beside fixed or alone, wanted one of the two"},
      {"storages { name: \"x\" size: \"1 B\" }\nops { name: \"a\" marker: true writes: \"x\" }",
       "g:2:30: found a marker that writes, wanted holds"},
      {"streams { name: \"compute\" }\nops { name: \"a\" stream: \"compte\" duration: \"1 us\" }",
       "g:2:17: found \"compte\", wanted the name of a stream, did you mean \"compute\"?"},
      {kOp + "storages { name: \"x\" }", "g:2:1: found a storage without size, wanted one like \"80 MiB\""},
      {kOp + "pools { name: \"p\" gated: true capacity: \"1 B\" }", "g:2:19: found a gated pool of device memory, wanted space: host"},
      {kOp + "streams { name: \"s\" compute: true } streams { name: \"t\" compute: true }",
       "g:2:57: found a second compute stream of a device, wanted one"},
      {"ops { name: \"a\" stream: \"s\" duration: \"1 us\" issue: \"1 us\" }",
       "g:1:1: found issue, issue_after or launch_group without issuer, wanted an issuer too"},
      {"ops { name: \"a\" duration: \"1 us\" parts { stream: \"s\" } parts { stream: \"s\" } }",
       "g:1:56: found two parts on stream \"s\", wanted a stream for each"},
      {"ops { name: \"a\" stream: \"s\" gemm { m: 0 n: 1 k: 1 } }", "g:1:36: found 0, wanted a whole number from 1 to 1099511627776"},
      {"ops { name: \"a\" stream: \"s\" gemm { m: 1099511627776 n: 1 k: 1099511627776 } }",
       "g:1:29: found a shape of more than 4e18 bytes, wanted a smaller one"},
  };
  for (const Case& each : cases) EXPECT_EQ(refusal(each.text), each.problem) << each.text;
}

TEST(GraphErrors, QuantitiesNeedUnits) {
  for (const std::string bad : {"5", "-5 us", "5 parsecs", "5 MiB", "nan us", "", "1e30 s"}) {
    const std::string text = "ops { name: \"a\" stream: \"s\" duration: \"" + bad + "\" }";
    EXPECT_THAT(refusal(text), ::testing::AllOf(::testing::StartsWith("g:1:29: found "), ::testing::HasSubstr(", wanted "))) << bad;
  }
  for (const std::string bad : {"5", "-5 B", "5 us", "9999999 TiB"}) {
    const std::string text = kOp + "storages { name: \"x\" size: \"" + bad + "\" }";
    EXPECT_THAT(refusal(text), ::testing::AllOf(::testing::StartsWith("g:2:22: found "), ::testing::HasSubstr(", wanted "))) << bad;
  }
}

TEST(GraphErrors, FractionsAreAboveZeroAndAtMostOne) {
  for (const std::string bad : {"0", "-0.5", "1.0001", "nan", "inf"}) {
    const std::string text =
        "resources { name: \"r\" }\nops { name: \"a\" stream: \"s\" duration: \"1 us\" loads { resource: \"r\" fraction: " + bad + " } }";
    EXPECT_THAT(refusal(text),
                ::testing::AllOf(::testing::StartsWith("g:2:"), ::testing::EndsWith(", wanted a fraction above 0, at most 1")))
        << bad;
  }
}

TEST(GraphErrors, TotalsDoNotOverflow) {
  std::string storages, ops;
  for (const std::string name : {"a", "b", "c"}) {
    storages += "storages { name: \"" + name + "\" size: \"2000000 TiB\" }\n";        // 3 * 2.2e18 B > 2^63 / 2
    ops += "ops { name: \"" + name + "\" stream: \"s\" duration: \"2000000 s\" }\n";  // 3 * 2e18 ps > 2^63 / 2
  }
  EXPECT_EQ(refusal(kOp + storages), "g:4:22: found storages of more than 4 EiB together, wanted less");
  EXPECT_EQ(refusal(ops), "g:3:1: found ops of more than 53 days together, wanted less");
}

TEST(GraphErrors, CyclesNameTheirOps) {
  EXPECT_EQ(refusal("ops { name: \"a\" stream: \"s\" duration: \"1 us\" after: \"b\" }\n"
                    "ops { name: \"b\" stream: \"t\" duration: \"1 us\" after: \"a\" }"),
            "g:1:1: found a cycle a -> b -> a, wanted an acyclic graph (ops of one stream start in the order of the file)");
  // The stream's order closes the cycle.
  EXPECT_THAT(
      refusal("ops { name: \"a\" stream: \"s\" duration: \"1 us\" after: \"b\" } ops { name: \"b\" stream: \"s\" duration: \"1 us\" }"),
      ::testing::HasSubstr("found a cycle a -> b -> a"));
  std::string ring;
  for (int i = 0; i < 1000; ++i) {
    ring += "ops { name: \"o" + std::to_string(i) + "\" marker: true after: \"o" + std::to_string((i + 1) % 1000) + "\" }\n";
  }
  const std::string found = refusal(ring);
  EXPECT_THAT(found, ::testing::HasSubstr("... (1000 ops) -> o0, wanted"));
  EXPECT_LT(found.size(), 300u);
}

TEST(GraphErrors, JsonHasPlacesToo) {
  EXPECT_EQ(refusal("{\"ops\": [\n  {\"name\": \"a\", \"stream\": \"s\", \"duration\": \"5\"}]}").substr(0, 4), "g:2:");
  EXPECT_THAT(refusal("{\"ops\": [{\"nam\": \"a\"}]}"), ::testing::HasSubstr("did you mean \"name\"?"));
}

TEST(GraphErrors, BinaryFormNamesTheField) {
  EXPECT_THAT(binary_refusal("\xff\xff"), ::testing::HasSubstr("found bytes that are not a Graph message"));
  graph_file::Graph message;
  graph_file::Op& op = *message.add_ops();
  op.set_name("a");
  op.set_stream("s");
  op.set_duration("5");
  EXPECT_THAT(binary_refusal(message.SerializeAsString()), ::testing::StartsWith("g.pb: ops[0].duration: found "));
  op.set_duration("5 us");
  EXPECT_EQ(binary_refusal(message.SerializeAsString()), "accepted");
  op.set_class_(static_cast<graph_file::OpClass>(77));
  EXPECT_EQ(binary_refusal(message.SerializeAsString()), "g.pb: ops[0].class: found 77, wanted a whole number from 0 to 4");
  op.clear_class_();
  op.GetReflection()->MutableUnknownFields(&op)->AddVarint(1000, 1);
  EXPECT_THAT(binary_refusal(message.SerializeAsString()), ::testing::HasSubstr("found fields that traces/graph.proto does not have"));
}

// Two bytes each: tag and length 0. Refused by counting, before memory is taken for them.
TEST(GraphErrors, TooManyOps) {
  std::string bytes;
  bytes.resize(2 * 200'000'001u);
  for (std::size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(graph_file::Graph::kOpsFieldNumber << 3 | 2);
  EXPECT_EQ(binary_refusal(bytes), "g.pb: found 200000001 ops, wanted at most 200000000");
  bytes.resize(2 * 100'000'000u);
  EXPECT_THAT(binary_refusal(bytes), ::testing::HasSubstr("found 100000000 ops, which take more than 16 GiB"));
  EXPECT_THAT(refusal(std::string(100'000'000, '{')), ::testing::HasSubstr("found 100000000 ops, which take more than 16 GiB"));
}

TEST(GraphErrors, FilesThatCannotBeRead) {
  EXPECT_THROW(read_graph("/no/such/graph.textproto"), InputError);
  EXPECT_THROW(read_graph("/no/such/graph.pb"), InputError);
  EXPECT_THROW(read_graph(std::filesystem::temp_directory_path().string()), InputError);
}

}  // namespace
}  // namespace stepsim
