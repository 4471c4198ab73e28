#include "tools/staging.h"

#include <gtest/gtest.h>

#include "sim/machine.h"
#include "sim/simulate.h"
#include "tests/unit/sim/small_graph.h"

namespace stepsim {
namespace {

// Forward: f0 writes a (100 B), which goes out to h; f1 writes x (50 B); compute waits for the copy and lets a go. f2 needs 30 B of its
// own. Backward: a2 (100 B) comes back, b1 reads x and writes g (7 B), b0 reads a2. All are issued in this order, one each ps.
struct TwoLayers {
  SmallGraph small;
  DeviceId device = small.builder.add_device();
  StreamId compute = small.stream(device, true), out_stream = small.stream(device), in_stream = small.stream(device);
  IssuerId host = small.builder.add_issuer({.device = device});
  StorageId a = small.storage(device, 100), x = small.storage(device, 50), a2 = small.storage(device, 100), g = small.storage(device, 7);
  StorageId own = small.storage(device, 30);
  StorageId h = small.builder.add_storage({.size = Bytes(128), .device = device, .space = MemorySpace::kHost});
  OpId out, in, b0;

  // `f1_reads`: the copied tensor is used by the op behind its copy too.
  OpGraph build(bool f1_reads = false) {
    const auto issued = [&](SmallOp op) {
      op.issuer = host;
      op.issue = 1;
      return op;
    };
    const OpId f0 = small.op(compute, 10, issued({.writes = {a}}));
    small.rows.push_back({.alone = Duration(40), .issue = Duration(1)});
    const Tensor from{a, Bytes(0), Bytes(100)}, to{h, Bytes(0), Bytes(100)};  // the buffer is rounded up
    const Edge after_f0{f0};
    out = small.builder.add_op({.work = small.builder.work(Given{.index = static_cast<std::int32_t>(small.rows.size()) - 1,
                                                                 .op_class = Given::Class::kCopyToHost}),
                                .stream = out_stream,
                                .issuer = host},
                               {.predecessors = std::span(&after_f0, 1), .reads = std::span(&from, 1), .writes = std::span(&to, 1)});
    small.op(compute, 10, issued({.reads = f1_reads ? std::vector<StorageId>{a} : std::vector<StorageId>{}, .writes = {x}}));
    small.marker(compute, issued({.after = {{out}}, .holds = {a}}));
    small.op(compute, 10, issued({.writes = {own}}));
    in = small.op(in_stream, 40, issued({.after = {{out}}, .reads = {h}, .writes = {a2}}), Given::Class::kCopyToDevice);
    small.op(compute, 10, issued({.reads = {x}, .writes = {g}}));
    b0 = small.op(compute, 10, issued({.after = {{in}}, .reads = {a2}}));
    return std::move(small.builder).build();
  }
};

TEST(Staging, CountsWhatIsThereForCopiesAlone) {
  TwoLayers mine;
  const OpGraph graph = mine.build();
  const StepResult result = simulate(graph, plain_machine(1), mine.small.costs());
  const CopiedStorages copied = copied_storages(graph);
  ASSERT_EQ(copied.out.size(), 1u);
  EXPECT_EQ(copied.out[0].storage, mine.a);
  EXPECT_EQ(copied.out[0].last_use, mine.out);
  ASSERT_EQ(copied.reloaded.size(), 1u);
  EXPECT_EQ(copied.reloaded[0].copy, mine.in);
  EXPECT_EQ(copied.reloaded[0].first_use, mine.b0);
  // In use: f0 a 100; f1 a + x 150, of which a waits for its copy; f2 x + own 80; in x + a2 150; b1 x + a2 + g 157, a2 still unused.
  const std::vector<Staging> staging = staging_of(graph, result, copied);
  ASSERT_EQ(staging.size(), 1u);
  EXPECT_EQ(staging[0].peak, Bytes(100));
  EXPECT_EQ(staging[0].at_peak, Bytes(100));
  EXPECT_EQ(memory_peak(graph, result, mine.device, MemorySpace::kDevice).bytes, Bytes(157));
  EXPECT_EQ(host_copied(graph, result), std::vector<Bytes>{Bytes(100)});
  EXPECT_EQ(memory_peak(graph, result, mine.device, MemorySpace::kHost).bytes, Bytes(128));
}

TEST(Staging, WhatForwardStillReadsIsNoStaging) {
  TwoLayers layers;
  const OpGraph graph = layers.build(true);
  const StepResult result = simulate(graph, plain_machine(1), layers.small.costs());
  const CopiedStorages copied = copied_storages(graph);
  ASSERT_EQ(copied.out.size(), 1u);
  EXPECT_NE(copied.out[0].last_use, layers.out);  // f1
  EXPECT_EQ(staging_of(graph, result, copied)[0].peak, Bytes(100));
}

}  // namespace
}  // namespace stepsim
