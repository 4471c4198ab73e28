// Ops of templates beside compute: which streams a step has, what waits for what on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/script_writer.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> stream_kinds(const OpGraph& graph) {
  std::vector<std::string> kinds;
  for (const Stream& stream : graph.streams()) kinds.emplace_back(graph.label(stream.kind));
  return kinds;
}

std::string stream_of(const OpGraph& graph, OpId op) {
  return std::string(graph.label(graph.streams()[static_cast<std::size_t>(graph.op(op).stream.index)].kind));
}

std::string queue_of(const OpGraph& graph, OpId op) {
  const std::span<const QueueId> queues = graph.queues(op, 0);
  return queues.empty() ? "" : std::string(graph.label(graph.queues()[static_cast<std::size_t>(queues[0].index)].kind));
}

// The small layer with an exchange between fc1 and the activation, beside an op that needs nothing of it, and one in backward.
StepTemplates with_exchange(OpStream stream, Group group) {
  StepTemplates templates = small_templates();
  LayerTemplate& layer = templates.kinds.front();
  layer.slots.push_back(small_slot("exchanged", SlotKind::kForward, 40));           // 10
  layer.slots.push_back(small_slot("shared", SlotKind::kForward, 4));               // 11
  layer.slots.push_back(small_slot("exchanged gradient", SlotKind::kGradient, 8));  // 12
  TemplateOp forward = small_op("exchange", {1}, {10});
  forward.work = Collective{.kind = CollectiveKind::kAllToAll, .message = Bytes(40), .ranks = 2};
  forward.group = group;
  forward.stream = stream;
  forward.after = {0};
  TemplateOp backward = small_op("exchange backward", {7}, {12});
  backward.work = forward.work;
  backward.group = group;
  backward.stream = stream;
  backward.after = {2};
  layer.forward = {small_op("fc1", {0, 8}, {1}), forward, small_op("beside", {0}, {11}), small_op("act", {10}, {2}),
                   small_op("fc2", {2, 0, 8, 11}, {3})};
  layer.backward.push_back(backward);
  layer.backward.push_back(small_op("weight gradient", {6}, {}, {9}));
  layer.input_gradient = 12;
  return templates;
}

TEST(BesideStreams, AreMadeOnlyForTheOpsOnThem) {
  StepRequest request = small_request(1);
  request.parallel.expert = 2;
  request.parallel.context = 2;
  request.parallel.data = 1;
  const auto kinds = [&request](const StepTemplates& templates) { return stream_kinds(build_step(request, templates).graph); };
  // Two context-parallel ranks are replicas of the weights: the data-parallel streams are there.
  EXPECT_THAT(kinds(small_templates()), ElementsAre("compute", "dp gather", "dp reduce"));
  EXPECT_THAT(kinds(with_exchange(OpStream::kCompute, Group::kExpert)), ElementsAre("compute", "dp gather", "dp reduce"));
  EXPECT_THAT(kinds(with_exchange(OpStream::kExpert, Group::kExpert)),
              ElementsAre("compute", "ep communication", "dp gather", "dp reduce"));
  EXPECT_THAT(kinds(with_exchange(OpStream::kContext, Group::kContext)),
              ElementsAre("compute", "cp communication", "dp gather", "dp reduce"));
}

// Each op takes 1 us. Forward of a layer: fc1, then the exchange beside "beside", then act, fc2: 4 us of 5 ops. Backward: fc2, act, fc1
// backward, the exchange beside the weight gradient. In compute's stream: 5 and 5.
TEST(BesideStreams, AnExchangeHidesBehindWhatNeedsNothingOfIt) {
  for (const auto& [stream, group, communicator] : {std::tuple(OpStream::kExpert, Group::kExpert, "ep communicator"),
                                                    std::tuple(OpStream::kContext, Group::kContext, "cp communicator")}) {
    StepRequest request = small_request(2);
    request.parallel.expert = 2;
    request.parallel.context = 2;
    const BuiltStep serial = build_step(request, with_exchange(OpStream::kCompute, group));
    const BuiltStep beside = build_step(request, with_exchange(stream, group));
    const OpGraph& graph = beside.graph;
    EXPECT_TRUE(find_cycle(graph).empty());
    const std::vector<OpId> exchanges = ops_of(graph, "exchange"), acts = ops_of(graph, "act"), others = ops_of(graph, "beside");
    ASSERT_EQ(exchanges.size(), 2u);
    EXPECT_EQ(stream_of(graph, exchanges[1]), group == Group::kExpert ? "ep communication" : "cp communication");
    EXPECT_EQ(queue_of(graph, exchanges[1]), communicator);
    EXPECT_EQ(queue_of(serial.graph, ops_of(serial.graph, "exchange")[1]), communicator);
    EXPECT_THAT(waits_of(graph, exchanges[1]), ElementsAre("forward L1 fc1"));
    EXPECT_THAT(waits_of(graph, others[1]), IsEmpty());
    EXPECT_THAT(waits_of(graph, acts[1]), ElementsAre("forward L1 exchange"));
    // Backward: layer 0 begins with what the exchange of layer 1 brings.
    EXPECT_THAT(waits_of(graph, ops_of(graph, "fc2 backward")[1]), ElementsAre("backward L1 exchange backward"));
    EXPECT_THAT(waits_of(graph, ops_of(graph, "weight gradient")[1]), IsEmpty());
    const Duration saved = run_step(serial).end - run_step(beside).end;
    EXPECT_EQ(saved, Duration(4'000'000));  // 1 us a layer and pass
  }
}

// A fault that was there when the streams grew from 8 to 10: the last two began with op 0 as what they had waited for.
TEST(BesideStreams, EveryStreamBeginsWithNobody) {
  ScriptWriter writer;
  const std::int32_t storage = writer.add_storage({.size = Bytes(1), .role = {}, .name = {}});
  writer.begin({.work = {}, .kind = {}, .stream = PassStream::kCompute});
  writer.write(storage, Bytes(0), Bytes(1));
  writer.end();
  writer.begin({.work = {}, .kind = {}, .stream = PassStream::kCopy3});
  writer.read(storage, Bytes(0), Bytes(1));
  writer.end();
  EXPECT_THAT(writer.script().waits, ElementsAre(0));
  const std::int32_t other = writer.add_storage({.size = Bytes(1), .role = {}, .name = {}});
  writer.begin({.work = {}, .kind = {}, .stream = PassStream::kReduce});
  writer.write(other, Bytes(0), Bytes(1));  // nobody has read it
  writer.end();
  EXPECT_THAT(writer.script().waits, ElementsAre(0));
}

}  // namespace
}  // namespace stepsim
