#include "models/script_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace stepsim {
namespace {

using testing::ElementsAre;

// Ops of 8-byte storages on named streams.
class Writer {
 public:
  std::int32_t storage(ScriptWriter::Arrival by = ScriptWriter::Arrival::kNone) {
    const std::int32_t code = writer_.add_storage({.size = Bytes(8), .role = {}, .name = {}});
    writer_.arrives(code, by);
    return code;
  }

  struct Operands {
    std::vector<std::int32_t> reads{}, writes{}, holds{}, waits{};
    Phase phase = Phase::kForward;
  };
  std::int32_t op(PassStream stream, const Operands& operands) {
    const std::int32_t number = writer_.begin({.work = {}, .kind = {}, .phase = operands.phase, .stream = stream});
    for (const std::int32_t code : operands.reads) writer_.read(code, Bytes(0), Bytes(8));
    for (const std::int32_t code : operands.writes) writer_.write(code, Bytes(0), Bytes(8));
    for (const std::int32_t code : operands.holds) writer_.hold(code);
    for (const std::int32_t earlier : operands.waits) writer_.wait_for(earlier);
    writer_.end();
    return number;
  }

  std::vector<std::int32_t> waits(std::int32_t number) {
    const MicroBatchScript& script = writer_.script();
    const std::size_t index = static_cast<std::size_t>(number);
    const std::uint32_t begin = number == 0 ? 0 : script.ops[index - 1].wait_end;
    return {script.waits.begin() + begin, script.waits.begin() + script.ops[index].wait_end};
  }

  ScriptWriter& operator*() { return writer_; }
  const ScriptOp& at(std::int32_t number) { return writer_.script().ops[static_cast<std::size_t>(number)]; }

 private:
  ScriptWriter writer_;
};

TEST(ScriptWriter, ReadersWaitForTheWriterOnAnotherStream) {
  Writer writer;
  const std::int32_t a = writer.storage(), b = writer.storage();
  const std::int32_t made = writer.op(PassStream::kCompute, {.writes = {a}});
  const std::int32_t same = writer.op(PassStream::kCompute, {.reads = {a}});
  const std::int32_t other = writer.op(PassStream::kTensor, {.reads = {a}, .writes = {b}});
  const std::int32_t back = writer.op(PassStream::kCompute, {.reads = {b}});
  EXPECT_THAT(writer.waits(same), ElementsAre());
  EXPECT_THAT(writer.waits(other), ElementsAre(made));
  EXPECT_THAT(writer.waits(back), ElementsAre(other));
  EXPECT_EQ((*writer).last_writer(b), other);
  EXPECT_EQ((*writer).last_compute_op(), back);
  EXPECT_EQ((*writer).next_op(), 4);
}

// Ops of a stream end in order: who has waited for one has waited for those before it.
TEST(ScriptWriter, WaitsForTheLastOfEachStreamOnce) {
  Writer writer;
  const std::int32_t a = writer.storage(), b = writer.storage(), c = writer.storage();
  const std::int32_t first = writer.op(PassStream::kCompute, {.writes = {a}});
  const std::int32_t second = writer.op(PassStream::kCompute, {.writes = {b}});
  EXPECT_THAT(writer.waits(writer.op(PassStream::kReduce, {.reads = {b, a}, .waits = {first}})), ElementsAre(second));
  EXPECT_THAT(writer.waits(writer.op(PassStream::kReduce, {.reads = {a, b}})), ElementsAre());
  EXPECT_THAT(writer.waits(writer.op(PassStream::kGather, {.reads = {a}})), ElementsAre(first));
  EXPECT_THAT(writer.waits(writer.op(PassStream::kGather, {.reads = {b}, .waits = {-1}})), ElementsAre(second));
  // One wait for each of two streams, in the order of the streams.
  const std::int32_t gather = writer.op(PassStream::kGather, {.writes = {c}});
  const std::int32_t tensor = writer.op(PassStream::kTensor, {});
  EXPECT_THAT(writer.waits(writer.op(PassStream::kCompute, {.reads = {c}, .waits = {tensor}})), ElementsAre(tensor, gather));
}

TEST(ScriptWriter, WritersWaitForTheReadersOnOtherStreams) {
  Writer writer;
  const std::int32_t a = writer.storage();
  const std::int32_t made = writer.op(PassStream::kCompute, {.writes = {a}});
  const std::int32_t read = writer.op(PassStream::kGather, {.reads = {a}});
  EXPECT_THAT(writer.waits(read), ElementsAre(made));
  EXPECT_THAT(writer.waits(writer.op(PassStream::kCompute, {.writes = {a}})), ElementsAre(read));
}

TEST(ScriptWriter, ArrivalsAreWaitedForOnceAStream) {
  Writer writer;
  const std::int32_t input = writer.storage(ScriptWriter::Arrival::kInput), gradient = writer.storage(ScriptWriter::Arrival::kGradient);
  const std::int32_t first = writer.op(PassStream::kCompute, {.reads = {input}});
  const std::int32_t again = writer.op(PassStream::kCompute, {.reads = {input}, .holds = {gradient}});
  const std::int32_t other = writer.op(PassStream::kTensor, {.reads = {input, gradient}});
  EXPECT_TRUE(writer.at(first).awaits_input);
  EXPECT_FALSE(writer.at(first).awaits_gradient);
  EXPECT_FALSE(writer.at(again).awaits_input);
  EXPECT_TRUE(writer.at(again).awaits_gradient);
  EXPECT_TRUE(writer.at(other).awaits_input);
  EXPECT_TRUE(writer.at(other).awaits_gradient);
}

TEST(ScriptWriter, NotesWhichPhasesRead) {
  Writer writer;
  const std::int32_t a = writer.storage(), b = writer.storage(), c = writer.storage();
  writer.op(PassStream::kCompute, {.writes = {a, b, c}});
  writer.op(PassStream::kCompute, {.reads = {a}, .phase = Phase::kRecompute});
  writer.op(PassStream::kCompute, {.reads = {b}, .writes = {c}, .phase = Phase::kBackward});
  const std::vector<ScriptStorage>& storages = (*writer).script().storages;
  const auto flags = [&](std::int32_t code) {
    const ScriptStorage& storage = storages[static_cast<std::size_t>(code)];
    return std::pair(storage.read_by_rerun, storage.read_by_backward);
  };
  EXPECT_EQ(flags(a), std::pair(true, false));
  EXPECT_EQ(flags(b), std::pair(false, true));
  EXPECT_EQ(flags(c), std::pair(false, false));  // written only
}

TEST(ScriptWriter, TheLastOpMayHoldMore) {
  Writer writer;
  const std::int32_t a = writer.storage();
  writer.op(PassStream::kCompute, {.writes = {a}});
  const std::int32_t last = writer.op(PassStream::kCompute, {});
  (*writer).hold_by_last(a);
  const std::int32_t next = writer.op(PassStream::kCompute, {.holds = {a}});
  EXPECT_EQ(writer.at(0).hold_end, 0u);
  EXPECT_EQ(writer.at(last).hold_end, 1u);
  EXPECT_EQ(writer.at(next).hold_end, 2u);
  EXPECT_THAT((*writer).script().holds, ElementsAre(StorageId{a}, StorageId{a}));
}

// Weights and gradients of the graph: rows are kept, waits are said by hand.
TEST(ScriptWriter, StoragesOfTheGraphAreNotTracked) {
  Writer writer;
  const std::int32_t weights = ~std::int32_t{5};
  const std::int32_t made = writer.op(PassStream::kCompute, {.writes = {weights}});
  const std::int32_t read = writer.op(PassStream::kReduce, {.reads = {weights}});
  const std::int32_t told = writer.op(PassStream::kReduce, {.reads = {weights}, .waits = {made}});
  EXPECT_THAT(writer.waits(read), ElementsAre());
  EXPECT_THAT(writer.waits(told), ElementsAre(made));
  EXPECT_EQ((*writer).script().reads.size(), 2u);
  EXPECT_EQ((*writer).script().reads.front().storage.index, weights);
}

TEST(ScriptWriter, RefusesToWaitForWhatComesLater) {
  Writer writer;
  writer.op(PassStream::kCompute, {});
  (*writer).begin({.work = {}, .kind = {}});
  EXPECT_THROW((*writer).wait_for(7), std::logic_error);
  ScriptWriter empty;
  EXPECT_THROW(empty.hold_by_last(empty.add_storage({.size = Bytes(8), .role = {}, .name = {}})), std::logic_error);
}

}  // namespace
}  // namespace stepsim
