// Experts' exchanges beside compute, weight gradients behind them, and the kernels of experts that presets choose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/mixture_case.h"
#include "tests/unit/models/small_step.h"

namespace stepsim {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

// 8 tokens a rank, two ranks with two of four experts each: 16 rows a rank, 8 an expert.
TemplateCase two_ranks(Dispatcher dispatcher = Dispatcher::kAllToAll) {
  TemplateCase each = small_mixture();
  each.parallel.expert = 2;
  each.parallel.data = 2;
  each.parallel.dispatcher = dispatcher;
  return each;
}

std::vector<std::string> beside(const std::vector<TemplateOp>& ops) {
  std::vector<std::string> names;
  for (const TemplateOp& op : ops) {
    if (op.stream == OpStream::kExpert) names.push_back(op.name);
  }
  return names;
}

std::ptrdiff_t place(const std::vector<TemplateOp>& ops, const std::string& name) {
  return std::find_if(ops.begin(), ops.end(), [&](const TemplateOp& op) { return op.name == name; }) - ops.begin();
}

TEST(ExpertOverlap, ExchangesAreBesideCompute) {
  TemplateCase each = two_ranks();
  EXPECT_THAT(beside(experts_layer(each).forward), IsEmpty());
  EXPECT_THAT(beside(experts_layer(each).backward), IsEmpty());
  each.parallel.overlap_expert_exchange = true;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_THAT(beside(layer.forward), ElementsAre("token dispatch all-to-all", "token dispatch probability all-to-all",
                                                 "token combine all-to-all", "token combine unpermute"));
  EXPECT_THAT(beside(layer.backward), ElementsAre("token combine backward permute", "token combine backward all-to-all",
                                                  "token dispatch backward all-to-all", "token dispatch backward probability all-to-all"));
  // Launched behind the permutation of the rows that it sends.
  EXPECT_THAT(op_named(layer.forward, "token dispatch all-to-all")->after,
              ElementsAre(static_cast<std::int32_t>(place(layer.forward, "token dispatch permute"))));
  for (const Dispatcher dispatcher : {Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
    each.parallel.dispatcher = dispatcher;
    each.framework.permutes_in_exchange = true;
    EXPECT_THAT(beside(experts_layer(each).forward), ElementsAre("token dispatch to ranks", "token combine from ranks"));
    EXPECT_THAT(beside(experts_layer(each).backward), ElementsAre("token combine backward to ranks", "token dispatch backward from ranks"));
  }
  // HybridEP's own buffer: rows are made behind the exchange and summed before it, on its stream.
  each.framework.permutes_in_exchange = false;
  const LayerTemplate apart = experts_layer(each);
  EXPECT_THAT(beside(apart.forward),
              ElementsAre("token dispatch to ranks", "token dispatch permute", "token combine unpermute", "token combine from ranks"));
  const auto rows = std::get<MemoryBound>(op_named(apart.forward, "token dispatch permute")->work);
  EXPECT_EQ(rows.written.value, bytes_of(apart, "experts input"));
  EXPECT_GT(rows.read.value, bytes_of(apart, "row map"));
}

// Expert tensor parallelism's gathers and scatters stand within the experts' node there.
TEST(ExpertOverlap, ExpertTensorCollectivesStay) {
  TemplateCase each = two_ranks();
  each.parallel.expert_tensor = 2;
  each.parallel.data = 4;
  each.parallel.overlap_expert_exchange = true;
  EXPECT_EQ(op_named(experts_layer(each).forward, "token dispatch expert tensor all-gather")->stream, OpStream::kCompute);
  EXPECT_EQ(op_named(experts_layer(each).forward, "token dispatch all-to-all")->stream, OpStream::kExpert);
}

// --delay-weight-gradients is of experts: a model without them keeps the order of its ops.
TEST(ExpertOverlap, DenseModelsKeepTheirOrder) {
  TemplateCase dense = llama3_8b();
  const std::vector<std::string> before = op_names(transformer_layer(dense.context()).backward);
  dense.parallel.delay_weight_gradients = true;
  EXPECT_EQ(op_names(transformer_layer(dense.context()).backward), before);
}

TEST(ExpertOverlap, WeightGradientsStandBehindTheExchangeAndTheInputGradient) {
  TemplateCase each = two_ranks();
  each.model.experts.shared_ffn = 32;
  each.parallel.overlap_expert_exchange = true;
  const LayerTemplate plain = experts_layer(each);
  each.parallel.delay_weight_gradients = true;
  const LayerTemplate layer = experts_layer(each);
  const auto at = [&](const char* name) { return place(layer.backward, name); };
  const std::ptrdiff_t exchange = at("token dispatch backward probability all-to-all"), last = std::ssize(layer.backward) - 1;
  EXPECT_EQ(at("experts down weight gradient"), exchange + 1);
  EXPECT_EQ(at("experts gate and up weight gradient"), exchange + 2);
  EXPECT_EQ(at("token dispatch backward unpermute"), exchange + 3);  // the first that waits for the exchange
  // Shared experts and attention: in their order, behind the sum that is the layer's input gradient.
  EXPECT_EQ(layer.backward[static_cast<std::size_t>(last - 4)].name, "residual gradient sum");
  EXPECT_EQ(at("shared experts down weight gradient"), last - 3);
  EXPECT_EQ(at("shared experts gate and up weight gradient"), last - 2);
  EXPECT_EQ(at("attention projection weight gradient"), last - 1);
  EXPECT_EQ(at("qkv weight gradient"), last);
  EXPECT_LT(at("router weight gradient"), last - 4);
  std::vector<std::string> before = op_names(plain.backward), after = op_names(layer.backward);
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  EXPECT_EQ(before, after);
  for (std::size_t op = 0; op < layer.backward.size(); ++op) {
    for (const std::int32_t earlier : layer.backward[op].after) EXPECT_LT(static_cast<std::size_t>(earlier), op);
  }
}

TEST(ExpertOverlap, DenseLayersDelayAttentionAlone) {
  TemplateCase each = small_mixture();
  each.parallel.delay_weight_gradients = true;
  const LayerTemplate layer = layer_of_kind(each, {});  // of a mixture
  EXPECT_EQ(layer.backward.back().name, "qkv weight gradient");
  EXPECT_LT(place(layer.backward, "down weight gradient"), place(layer.backward, "norm 2 backward"));
}

StepRequest step_of(const TemplateCase& each, std::int64_t layers = 1) {
  StepRequest request;
  request.model = each.model;
  request.model.layers = layers;
  request.training = each.training;
  request.training.global_batch = each.parallel.data;
  request.parallel = each.parallel;
  request.framework = each.framework;
  return request;
}

// Every op takes 1 us. The two exchanges of the dispatch's backward hide behind the two weight gradients of the experts. An exchange waits
// for what its pass has put on compute's stream (step_stamper): weight gradients of attention hide one only where two passes are written in
// turns.
TEST(ExpertOverlap, WeightGradientsHideExchanges) {
  TemplateCase each = two_ranks();
  const auto end = [&](std::int64_t layers) { return run_step(build_step(step_of(each, layers))).end; };
  const Duration one = end(1), three = end(3);
  each.parallel.overlap_expert_exchange = true;
  EXPECT_EQ(end(1), one);  // nothing stands beside them
  each.parallel.delay_weight_gradients = true;
  EXPECT_EQ(one - end(1), Duration(2'000'000));
  EXPECT_EQ(three - end(3), Duration(3 * 2'000'000));
}

// 16 rows of 16 channels in 16 bits, 512 bytes; the slowest rank takes a fourth more. Of the libraries' messages: a token goes to each of
// two ranks but for 2/4 x 1/3 of the draws, 2 x 5/6 ranks; 8 tokens: 13.3, rounded up to 14, or 16.7, to 17, of 32 bytes.
TEST(ExpertOverlap, LoadsReachExchanges) {
  TemplateCase each = two_ranks();
  const auto message = [&](const char* name) {
    return std::get<Collective>(op_named(experts_layer(each).forward, name)->work).message.value;
  };
  EXPECT_EQ(message("token dispatch all-to-all"), 512);
  each.training.imbalance = 1.25;
  EXPECT_EQ(message("token dispatch all-to-all"), 640);
  EXPECT_EQ(message("token combine all-to-all"), 640);
  each.parallel.dispatcher = Dispatcher::kHybridEp;
  EXPECT_EQ(message("token dispatch to ranks"), 17 * (32 + 4 * 4));  // HybridEP: an fp32 for each of 4 experts too
  EXPECT_EQ(message("token combine from ranks"), 17 * 32);
  each.training.imbalance = 1;
  EXPECT_EQ(message("token dispatch to ranks"), 14 * (32 + 4 * 4));
}

// A product an expert of its 8 rows; weight gradients are added in the dtype of the main gradient.
TEST(ExpertOverlap, ProductsAreOneBatch) {
  TemplateCase each = two_ranks();
  const auto product = [](const std::vector<TemplateOp>& ops, const char* name) { return std::get<Gemm>(op_named(ops, name)->work); };
  for (const bool wide : {true, false}) {
    each.training.gradient_dtype = wide ? DType::kFp32 : DType::kBf16;
    const LayerTemplate layer = experts_layer(each);
    const Gemm forward = product(layer.forward, "experts gate and up"), weight = product(layer.backward, "experts down weight gradient");
    EXPECT_EQ(forward, (Gemm{.m = 8, .n = 64, .k = 16, .batch = 2, .transpose_a = true}));
    EXPECT_EQ(product(layer.backward, "experts gate and up input gradient"), (Gemm{.m = 8, .n = 16, .k = 64, .batch = 2}));
    EXPECT_EQ(weight, (Gemm{.m = 16, .n = 32, .k = 8, .batch = 2, .transpose_b = true, .accumulate_fp32 = wide, .accumulate = !wide}));
    // 2 experts x 16 x 32 values, read and written in 4 or 2 bytes; the operands in 2.
    EXPECT_EQ(memory_traffic(weight).value, 2 * (16 * 32 * (wide ? 8 : 4) + 2 * 8 * (16 + 32)));
  }
}

// Transformer Engine's grouped linear: a kernel for each expert's product on four streams, and for each expert's rows that are cast.
TEST(ExpertKernels, ProductsOnStreams) {
  TemplateCase each = two_ranks(Dispatcher::kHybridEp);  // rows that arrive padded
  each.framework.expert_streams = 4;
  each.training.precision = Precision::kMxFp8;
  const auto product = [](const TemplateCase& of) { return std::get<Gemm>(op_named(experts_layer(of).forward, "experts down")->work); };
  const auto casts = [](const TemplateCase& of, const char* name) {
    const LayerTemplate layer = experts_layer(of);
    const TemplateOp* op = op_named(layer.forward, name);
    if (op == nullptr) op = op_named(layer.backward, name);
    EXPECT_NE(op, nullptr) << name;
    return op == nullptr ? -1 : std::get<MemoryBound>(op->work).launches;
  };
  const char* const kInput = "experts input of experts gate and up cast";
  EXPECT_EQ(product(each).in_flight, 4);
  EXPECT_EQ(product(each).batch, 2);
  EXPECT_EQ(casts(each, kInput), 2);  // two experts
  EXPECT_EQ(casts(each, "experts down output gradient cast"), 2);
  EXPECT_EQ(casts(each, "norm 1 output of qkv cast"), 1);
  for (const char* const name : {"experts gate and up input gradient", "experts gate and up weight gradient"}) {
    EXPECT_EQ(std::get<Gemm>(op_named(experts_layer(each).backward, name)->work).in_flight, 4) << name;
  }
  each.training.precision = Precision::kNvFp4;
  EXPECT_EQ(casts(each, kInput), 2);  // largest values of all, then casts of all
  each.training.precision = Precision::kFp8;
  each.training.scaling = ScalingRecipe::kDelayed;
  EXPECT_EQ(casts(each, kInput), 1);
  each.training.scaling = ScalingRecipe::kCurrent;
  EXPECT_EQ(casts(each, kInput), 6);  // largest value, scale, cast of each
  TemplateCase fused = each;
  fused.training.precision = Precision::kMxFp8;
  fused.framework.fused_expert_mlp = true;
  EXPECT_EQ(product(fused).in_flight, 0);
  EXPECT_EQ(casts(fused, kInput), 1);
  TemplateCase graph = each;  // its counts stay on the device
  graph.training.cuda_graph = CudaGraph::kFull;
  EXPECT_EQ(product(graph).in_flight, 0);
  each.framework.groups_expert_products = false;
  EXPECT_EQ(product(each).in_flight, 1);
}

std::int64_t traffic_of(const std::vector<TemplateOp>& ops, const std::string& prefix) {
  std::int64_t bytes = 0;
  for (const TemplateOp& op : ops) {
    if (std::holds_alternative<MemoryBound>(op.work) && op.name.starts_with(prefix)) bytes += memory_traffic(op.work).value;
  }
  return bytes;
}
std::int64_t kernels_of(const std::vector<TemplateOp>& ops, const std::string& prefix) {
  return std::count_if(ops.begin(), ops.end(),
                       [&](const TemplateOp& op) { return std::holds_alternative<MemoryBound>(op.work) && op.name.starts_with(prefix); });
}

// 16 rows of 32: 512 values, 64 bytes of probabilities. Bytes a value forward: clamps 2 x 4, quick GELU 4, offset 4, product 6, times
// probabilities 2 + 4, cast 4 + 2: 34. Backward: cast 6, product 8, cast 6, terms 4 + 2 + 4, their sum 4, both factors 6 + 6, quick GELU 6,
// clamp of up 3 + 3 + 3 + 5, of gate 3 + 5, concatenation 8: 82. Probabilities are read once each way, their gradient is written.
TEST(ExpertKernels, EagerActivation) {
  TemplateCase each = small_mixture();
  const LayerTemplate fused = experts_layer(each);
  EXPECT_EQ(kernels_of(fused.forward, "experts "), 1);
  each.framework.eager_expert_activation = true;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_EQ(kernels_of(layer.forward, "experts "), 7);
  EXPECT_EQ(kernels_of(layer.backward, "experts "), 15 + 1);  // and the sum with the router's gradient
  EXPECT_EQ(traffic_of(layer.forward, "experts "), 34 * 512 + 64);
  const std::int64_t sum = memory_traffic(op_named(layer.backward, "experts input gradient sum")->work).value;
  EXPECT_EQ(traffic_of(layer.backward, "experts ") - sum, 82 * 512 + 64 + 64);
  for (const char* name : {"experts clamped gate", "experts activated gate", "experts offset up", "experts activation output",
                           "experts weighted output", "experts gate and up output"}) {
    EXPECT_TRUE(is_saved(layer, name)) << name;
  }
  EXPECT_FALSE(is_saved(layer, "experts clamped up"));
  EXPECT_EQ(flops_of(layer.backward), flops_of(fused.backward));
}

// 16 rows of 16: 256 values, biases of 4 experts x 16 x 2 bytes = 128, probabilities 64. Forward: bias x probability writes 4; sum 2 + 4 +
// 4; concatenation 8; cast 6: 28 a value. Backward: cast 6, terms 4 + 4, their sum 4, terms 4 + 4, their sum 4, cast 6, concatenation
// 4: 40.
TEST(ExpertKernels, EagerBias) {
  TemplateCase each = small_mixture();
  each.model.experts.expert_bias = true;
  each.framework.eager_expert_activation = true;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_EQ(kernels_of(layer.forward, "experts down bias"), 4);
  EXPECT_EQ(traffic_of(layer.forward, "experts down bias"), 28 * 256 + 128 + 64);
  EXPECT_EQ(kernels_of(layer.backward, "experts down bias"), 7);
  // The gradient of the biases, 4 bytes each, is read and written: 2 x 256; that of the probabilities 64.
  EXPECT_EQ(traffic_of(layer.backward, "experts down bias"), 40 * 256 + 128 + 64 + 512 + 64);
}

// MXFP8, 16 rows: 512 values of the activation and 1,024 of its input's gradient, each a byte and a 32nd, by rows and by columns.
TEST(ExpertKernels, ActivationInTheProducts) {
  TemplateCase each = small_mixture();
  each.training.precision = Precision::kMxFp8;
  const LayerTemplate apart = experts_layer(each);
  each.framework.fused_expert_mlp = true;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_THAT(op_names(layer.forward), Not(Contains("experts activation")));
  EXPECT_THAT(op_names(layer.forward), Not(Contains("experts activation output of experts down cast")));
  EXPECT_THAT(op_names(apart.forward), Contains("experts activation output of experts down cast"));
  EXPECT_EQ(std::get<MemoryBound>(op_named(layer.forward, "experts activation in the product")->work),
            (MemoryBound{Bytes(64), Bytes(2 * (512 + 16)), MemoryKernel::kQuantize}));
  EXPECT_EQ(std::get<MemoryBound>(op_named(layer.backward, "experts activation backward in the product")->work),
            (MemoryBound{Bytes(2048 + 64), Bytes(2 * (1024 + 32) + 64), MemoryKernel::kQuantize}));
  EXPECT_THAT(op_names(layer.backward), Not(Contains("experts gate and up output gradient cast")));
  EXPECT_EQ(slot_at(layer, op_named(layer.backward, "experts down weight gradient")->reads[1]).name,
            "experts activation output by columns");
  EXPECT_EQ(slot_at(layer, op_named(layer.backward, "experts gate and up weight gradient")->reads[0]).name,
            "experts gate and up gradient, quantised by columns");
  EXPECT_LT(traffic_of(layer.forward, "experts "), traffic_of(apart.forward, "experts "));
  EXPECT_LT(traffic_of(layer.backward, "experts "), traffic_of(apart.backward, "experts "));
  EXPECT_EQ(flops_of(layer.forward), flops_of(apart.forward));
  each.training.precision = Precision::kBf16;  // there is no such kernel
  EXPECT_THAT(op_names(experts_layer(each).forward), Contains("experts activation"));
}

// 16 rows of 32 bytes are copied before and behind the experts, each way, unless HybridEP has padded them.
TEST(ExpertKernels, RowsArePaddedBelowSixteenBits) {
  TemplateCase each = two_ranks();
  each.framework.expert_streams = 4;
  const auto copies = [](const TemplateCase& of) {
    const LayerTemplate layer = experts_layer(of);
    std::int64_t bytes = 0;
    for (const char* const name : {"experts input padding", "experts output unpadding"}) {
      if (const TemplateOp* const op = op_named(layer.forward, name)) bytes += memory_traffic(op->work).value;
      if (const TemplateOp* const op = op_named(layer.backward, std::string(name) + " backward")) bytes += memory_traffic(op->work).value;
    }
    return bytes;
  };
  EXPECT_EQ(copies(each), 0);
  each.training.precision = Precision::kMxFp8;
  EXPECT_EQ(copies(each), 4 * 2 * 16 * 32);
  each.parallel.dispatcher = Dispatcher::kHybridEp;
  EXPECT_EQ(copies(each), 0);
  each.parallel.dispatcher = Dispatcher::kDeepEp;
  EXPECT_EQ(copies(each), 4 * 2 * 16 * 32);
  each.framework.fused_expert_mlp = true;
  EXPECT_EQ(copies(each), 0);
}

// 16 rows of 32 bytes are added to 8 tokens of zeros: the tokens are written, then each row is read, and its token read and written.
TEST(ExpertKernels, PermutationByIndex) {
  TemplateCase each = small_mixture();
  each.framework.fused_permutation = false;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_EQ(std::get<MemoryBound>(op_named(layer.forward, "token combine zeros")->work).written.value, 8 * 32);
  const auto sum = std::get<MemoryBound>(op_named(layer.forward, "token combine unpermute")->work);
  EXPECT_EQ(sum.read.value, 16 * 32 + 16 * 32 + bytes_of(layer, "row map"));
  EXPECT_EQ(sum.written.value, 16 * 32);
  TemplateCase hybrid = two_ranks(Dispatcher::kHybridEp);
  hybrid.framework.permutes_in_exchange = true;
  EXPECT_EQ(op_named(experts_layer(hybrid).forward, "token dispatch permute"), nullptr);
  hybrid.framework.fused_permutation = false;
  EXPECT_NE(op_named(experts_layer(hybrid).forward, "token dispatch permute"), nullptr);
  EXPECT_EQ(std::get<Collective>(op_named(experts_layer(hybrid).forward, "token dispatch to ranks")->work).library,
            CollectiveLibrary::kHybridEp);
}

// Counts of 4 experts, 8 bytes each, of 2 ranks: 64 bytes. The launch behind the copy waits for it.
TEST(ExpertKernels, HostReadsCountsBeforeItGoesOn) {
  TemplateCase each = two_ranks();
  EXPECT_EQ(op_named(experts_layer(each).forward, "token dispatch counts to the host"), nullptr);
  each.framework.reads_expert_counts = true;
  const LayerTemplate layer = experts_layer(each);
  EXPECT_EQ(std::get<Collective>(op_named(layer.forward, "token dispatch count all-gather")->work).message.value, 64);
  EXPECT_EQ(std::get<Copy>(op_named(layer.forward, "token dispatch counts to the host")->work).bytes.value, 64);
  const BuiltStep built = build_step(step_of(each));
  const OpId copy = ops_of(built.graph, "token dispatch counts to the host").front();
  EXPECT_THAT(built.graph.issue_after(OpId{copy.index + 1}), ElementsAre(copy));
  EXPECT_THAT(built.graph.issue_after(OpId{copy.index + 2}), IsEmpty());
  EXPECT_FALSE(run_step(built).deadlock.has_value());
  each.parallel.dispatcher = Dispatcher::kHybridEp;  // the routing map of 16 tokens, a byte an expert
  EXPECT_EQ(std::get<Collective>(op_named(experts_layer(each).forward, "token dispatch routing map all-gather")->work).message.value, 64);
  each.training.cuda_graph = CudaGraph::kFull;
  EXPECT_EQ(op_named(experts_layer(each).forward, "token dispatch counts to the host"), nullptr);
}

}  // namespace
}  // namespace stepsim
