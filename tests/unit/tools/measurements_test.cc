// Every layout of measured kernels, and every mistake with its place.
#include "tools/measurements.h"

#include <gtest/gtest.h>

#include "tests/unit/error_of.h"

namespace stepsim {
namespace {

Measurements read(const std::string& text, const MeasurementOptions& options = {}) { return read_measurements("m.csv", text, options); }

std::string error(const std::string& text, const MeasurementOptions& options = {}) {
  return error_of([&] { read(text, options); });
}

TEST(Measurements, Products) {
  const Measurements rows =
      read("op,dtype,m,n,k,gpu,latency_us,source\ngemm,bf16,16,32,64,X,2.5,lab\ngemm,fp8,16,32,64,X,2,lab\ngemm,fp32,8,32,64,X,3,other\n");
  ASSERT_EQ(rows.gemms.size(), 2u);
  EXPECT_EQ(rows.gpu, "X");
  EXPECT_EQ(rows.gemms[0].work.m, 16);
  EXPECT_EQ(rows.gemms[0].work.n, 32);
  EXPECT_EQ(rows.gemms[0].work.k, 64);
  EXPECT_TRUE(rows.gemms[0].work.transpose_a);  // as a linear layer's forward pass runs it
  EXPECT_DOUBLE_EQ(rows.gemms[0].measured_s, 2.5e-6);
  EXPECT_EQ(rows.gemms[0].line, 2);
  EXPECT_EQ(rows.gemms[1].work.dtype, DType::kFp32);
  EXPECT_EQ(rows.sources, (std::vector<std::string>{"lab", "other"}));
  ASSERT_EQ(rows.skipped.size(), 1u);  // fp8
  EXPECT_EQ(rows.skipped.begin()->second, 1u);
}

// Columns in any order, more of them, a batch and layouts.
TEST(Measurements, RowsOfOnesOwn) {
  const Measurements rows = read("latency_us,k,n,m,layout,batch,dtype,note\n7,64,32,16,NT,3,fp16,first\n8,64,32,16,NN,3,half,second\n");
  ASSERT_EQ(rows.gemms.size(), 2u);
  EXPECT_EQ(rows.gpu, "");
  EXPECT_TRUE(rows.gemms[0].weight_gradient());
  EXPECT_EQ(rows.gemms[0].work.batch, 3);
  EXPECT_FALSE(rows.gemms[1].work.transpose_a);
  EXPECT_FALSE(rows.gemms[1].work.transpose_b);
  EXPECT_EQ(rows.gemms[1].work.dtype, DType::kFp16);
}

TEST(Measurements, Attention) {
  const std::string head = "op,dtype,causal,batch,seq,heads,kv_heads,head_dim,gpu,latency_us\n";
  const Measurements rows = read(head + "attn_fwd,bf16,1,2,1024,16,4,128,X,50\nattn_fwd,bf16,0,2,64,16,4,128,X,9\n");
  ASSERT_EQ(rows.attentions.size(), 1u);  // 64 keys are launches
  const Attention& work = rows.attentions[0].work;
  EXPECT_TRUE(work.causal);
  EXPECT_EQ(work.queries, 1024);
  EXPECT_EQ(work.keys, 1024);
  EXPECT_EQ(work.kv_heads, 4);
  EXPECT_EQ(work.kernel, 3);  // the layout is TensorRT-LLM's
  EXPECT_EQ(error(head + "attn_fwd,bf16,1,2,1024,4,16,128,X,50\n"), "m.csv:2:26: found 16 kv_heads, wanted at most 4");
  EXPECT_EQ(error(head + "attn_fwd,bf16,yes,2,1024,16,4,128,X,50\n"), "m.csv:2:15: found causal \"yes\", wanted 0 or 1");
  EXPECT_EQ(error(head + "attn_bwd,bf16,1,2,1024,16,4,128,X,50\n"),
            "m.csv:1:1: found backward passes and no column impl, wanted impl: FA1, FA2, FA3, FA4 or cuDNN");
}

// 16 Ki tokens of 2048 hidden at 100 TFLOP/s: forward 4 * 2048 * 8192 * 2 * 8192 FLOPs, 2.5 times as many backward.
TEST(Measurements, FlashAttentionTables) {
  const std::string head = "gpu,impl,pass,causal,head_dim,batch,seq,heads,tflops,latency_us,source\n";
  const Measurements rows = read(
      head + "X,FA3,fwd,0,128,2,8192,16,100,,figure\nX,FA3,bwd,0,128,2,8192,16,100,,figure\nX,torch,fwd,0,128,2,8192,16,100,,figure\n");
  ASSERT_EQ(rows.training_attentions.size(), 2u);
  EXPECT_EQ(rows.training_attentions[0].work.heads, 16);  // 2048 / 128
  EXPECT_EQ(rows.training_attentions[0].work.kernel, 1);
  const double flops = 4.0 * 2048 * 8192 * 8192 * 2;
  EXPECT_NEAR(rows.training_attentions[0].measured_s, flops / 100e12, 1e-12);
  EXPECT_NEAR(rows.training_attentions[1].measured_s, 2.5 * flops / 100e12, 1e-12);
  EXPECT_EQ(rows.training_attentions[1].pass, AttentionPass::kBackward);
  EXPECT_EQ(rows.skipped.at("implementation torch"), 1u);
  EXPECT_EQ(error(head + "X,FA3,both,0,128,2,8192,16,100,,f\n"), "m.csv:2:7: found pass \"both\", wanted fwd, bwd or fwd+bwd");
}

// message_bytes is the size; message_size counts elements.
TEST(Measurements, Collectives) {
  const std::string head = "op,dtype,num_gpus,message_size,message_bytes,gpu,nccl,latency_us\n";
  const Measurements rows = read(head +
                                 "all_gather,half,8,524288,1048576,x,2.27,99\nall_gather,half,8,524288,1048576,x,2.29,98\n"
                                 "all_reduce,int8,8,1048576,1048576,x,2.27,97\nalltoall,half,8,128,256,x,2.27,9\n");
  ASSERT_EQ(rows.collectives.size(), 2u);  // 8 bits beside 16 and 256 bytes are skipped; two runs of one shape are kept
  EXPECT_EQ(rows.repeats, 1u);
  EXPECT_EQ(rows.collectives[0].work.kind, CollectiveKind::kAllGather);
  EXPECT_EQ(rows.collectives[0].work.message.value, 1048576);
  EXPECT_EQ(rows.collectives[0].work.ranks, 8);
  EXPECT_EQ(error("op,dtype,num_gpus,message_size,gpu,latency_us\nall_gather,half,8,1,x,9\n"),
            "m.csv:1:19: found column \"message_size\", wanted message_bytes: message_size counts elements");
  EXPECT_EQ(error(head + "gather,half,8,1,2,x,2,9\n"),
            "m.csv:2:1: found op \"gather\", wanted all_reduce, all_gather, reduce_scatter, alltoall or sendrecv");
  EXPECT_EQ(error(head + "all_gather,half,1,1,2,x,2,9\n"), "m.csv:2:17: found 1 GPUs, wanted 2 to 2^20");
}

// add reads two tensors and writes one: 2 * 3 * 4 bytes each; ln reads and writes one.
TEST(Measurements, MemoryKernels) {
  const Measurements rows = read("op,dtype,rows,cols,gpu,latency_us\nadd,fp32,2,3,x,9\nln,bf16,2,3,x,9\npow,fp32,2,3,x,9\n");
  ASSERT_EQ(rows.memory.size(), 2u);
  EXPECT_EQ(rows.memory[0].work.read.value, 48);
  EXPECT_EQ(rows.memory[0].work.written.value, 24);
  EXPECT_EQ(rows.memory[1].work.read.value, 12);
  EXPECT_EQ(rows.memory[1].work.kernel, MemoryKernel::kNorm);
  EXPECT_EQ(error("op,dtype,rows,cols,gpu,latency_us\ncosine,fp32,2,3,x,9\n"),
            "m.csv:2:1: found op \"cosine\", wanted add, mul, div, relu, gelu, tanh, ln, rmsnorm or softmax");
}

// 2 m n k / (0.5 of 100 TFLOP/s).
TEST(Measurements, SimuMax) {
  const std::string head = "gpu,op,peak_tflops,shape,eff\n";
  const Measurements rows = read(
      head + "x,matmul,100,\"b=1, m=4096, k=1024, n=2048, layout=NT, accumulate=True, out_dtype=fp32\",0.5\nx,sdp_fwd,100,\"b=1\",0.5\n");
  ASSERT_EQ(rows.gemms.size(), 1u);
  EXPECT_TRUE(rows.gemms[0].weight_gradient());
  EXPECT_TRUE(rows.gemms[0].work.accumulate_fp32);
  EXPECT_NEAR(rows.gemms[0].measured_s, 2.0 * 4096 * 1024 * 2048 / 50e12, 1e-12);
  EXPECT_EQ(error(head + "x,matmul,100,\"b=1, m=4096, k=1024, layout=NT, accumulate=True, out_dtype=fp32\",0.5\n"),
            "m.csv:2:14: found no n, wanted b, m, n, k, layout, accumulate and out_dtype");
  EXPECT_EQ(error(head + "x,matmul,100,\"b=1, m=a, k=1, n=1, layout=NT, accumulate=True, out_dtype=fp32\",0.5\n"),
            "m.csv:2:14: found m \"a\", wanted a whole number");
  EXPECT_EQ(error(head + "x,matmul,100,\"b=9999999, m=9999999, k=1, n=1, layout=NT, accumulate=True, out_dtype=fp32\",0.5\n"),
            "m.csv:2:14: found a tensor of 1e+14 elements, wanted at most 2^40");
}

// Llama-2-7B over 2 GPUs: the query, key and value product has (32 + 2 * 32) / 2 heads of 128.
TEST(Measurements, Vidur) {
  const Measurements rows = read(
      "op,dtype,num_tokens,n_embd,n_ffn,n_head,n_kv_head,tp,gpu,latency_us\n"
      "attn_pre_proj,fp16,64,4096,11008,32,32,2,x,20\nadd,fp16,64,4096,11008,32,32,2,x,2\n");
  ASSERT_EQ(rows.gemms.size(), 1u);
  EXPECT_EQ(rows.gemms[0].work.m, 64);
  EXPECT_EQ(rows.gemms[0].work.n, 48 * 128);
  EXPECT_EQ(rows.gemms[0].work.k, 4096);
  EXPECT_EQ(error("op,dtype,num_tokens,n_embd,n_ffn,n_head,n_kv_head,tp,gpu,latency_us\nattn_post_proj,fp16,64,8,8,2,2,16,x,20\n"),
            "m.csv:2:32: found a product without elements, wanted some");
}

TEST(Measurements, WrongHeads) {
  EXPECT_EQ(error("a,b\n1,2\n"),
            "m.csv:1:1: found columns a,b, wanted those of a layout such as op,dtype,m,n,k,latency_us (tools/README.md)");
  EXPECT_EQ(error("dtype,m,n,k,latency_ms\nbf16,1,1,1,1\n"),
            "m.csv:1:13: found column \"latency_ms\", wanted latency_us, microseconds (matrix products)");
  EXPECT_EQ(error("dtype,m,n,k,m\nbf16,1,1,1,1\n"), "m.csv:1:1: found column \"m\" twice, wanted it once");
  EXPECT_EQ(error(""), "m.csv: found no line, wanted a CSV file with a head");
  EXPECT_EQ(error("dtype,m,n,k,latency_us\n"), "m.csv:1:1: found a head alone, wanted rows of measurements");
}

TEST(Measurements, WrongCells) {
  const std::string head = "dtype,m,n,k,latency_us\n";
  for (const char* const bad : {"-1", "0", "nan", "inf", "1us", ""}) {
    EXPECT_EQ(error(head + "bf16,1,1,1," + bad + "\n"),
              std::string("m.csv:2:12: found latency_us \"") + bad + "\", wanted a number above zero");
  }
  EXPECT_EQ(error(head + "bf16,1.5,1,1,1\n"), "m.csv:2:6: found m \"1.5\", wanted a whole number from 1 to 2^24");
  EXPECT_EQ(error(head + "bf16,33554432,1,1,1\n"), "m.csv:2:6: found m \"33554432\", wanted a whole number from 1 to 2^24");
  EXPECT_EQ(error(head + "bf16,16777216,16777216,1,1\n"), "m.csv:2:6: found a tensor of 2.81e+14 elements, wanted at most 2^40");
  EXPECT_EQ(error(head + "bf61,1,1,1,1\n"), "m.csv:2:1: found dtype \"bf61\", wanted bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4 or int8");
  EXPECT_EQ(error("layout,dtype,m,n,k,latency_us\nTT,bf16,1,1,1,1\n"), "m.csv:2:1: found layout \"TT\", wanted TN, NN or NT");
}

TEST(Measurements, ShapesThatComeTwice) {
  const std::string text = "dtype,m,n,k,latency_us\nbf16,1,1,1,5\nbf16,1,1,2,5\nbf16,1,1,1,";
  EXPECT_EQ(error(text + "6\n"),
            "m.csv:4:1: found the shape of line 2 again with another latency, wanted each shape once (--repeats keep: runs of their own)");
  EXPECT_EQ(error(text + "5\n"),
            "m.csv:4:1: found the shape of line 2 again with the same latency, wanted each shape once (--repeats keep: runs of their own)");
  const Measurements kept = read(text + "6\n", {.repeats = RepeatRule::kKeep});
  EXPECT_EQ(kept.gemms.size(), 3u);
  EXPECT_EQ(kept.repeats, 1u);
}

TEST(Measurements, RowsOfOneGpu) {
  const std::string text = "dtype,m,n,k,gpu,latency_us\nbf16,1,1,1,H100-SXM,5\nbf16,1,1,1,L4,9\n";
  EXPECT_EQ(error(text), "--gpu: found none, wanted one of H100-SXM, L4, which m.csv has");
  EXPECT_EQ(error(text, {.gpu = "L40"}), "--gpu: found \"L40\", wanted one of H100-SXM, L4, which m.csv has, did you mean \"L4\"?");
  for (const char* const name : {"H100-SXM", "h100_sxm", "h100-sxm-80gb"}) {  // as written, another case, the catalog's name
    const Measurements rows = read(text, {.gpu = name});
    ASSERT_EQ(rows.gemms.size(), 1u) << name;
    EXPECT_EQ(rows.gpu, "H100-SXM");
    EXPECT_DOUBLE_EQ(rows.gemms[0].measured_s, 5e-6);
  }
}

}  // namespace
}  // namespace stepsim
