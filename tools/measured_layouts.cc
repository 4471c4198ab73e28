#include "tools/measured_layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "hardware/fit/elementwise_fit.h"
#include "sim/input_error.h"

namespace stepsim {

MeasurementRows::MeasurementRows(const MeasuredColumns& columns, const MeasurementOptions& options, Measurements& rows)
    : columns_(columns), options_(options), rows_(rows) {
  for (std::size_t row = 0; columns.has("dtype") && row < columns.rows() && !wide_types_; ++row) {
    const std::optional<DType> dtype = measured_dtype(columns.text(row, "dtype"));
    wide_types_ = dtype && bits_of(*dtype) > 8;
  }
}

void MeasurementRows::note(std::size_t row, const std::string& shape, bool kept, double measured_s) {
  const auto [place, fresh] = seen_.emplace(shape, Seen{columns_.line(row), measured_s});
  if (fresh) return;
  ++rows_.repeats;
  if (kept) return;
  const bool same = place->second.measured_s == measured_s;
  throw InputError(
      {columns_.table().file, columns_.line(row), 1},
      fmt::format("found the shape of line {} again with {} latency, wanted each shape once (--repeats keep: runs of their own)",
                  place->second.line, same ? "the same" : "another"));
}

void MeasurementRows::add(std::size_t row, MeasuredGemm gemm) {
  const Gemm& work = gemm.work;
  note(row,
       fmt::format("{} {} {} {} {} {} {} {} {}", work.m, work.n, work.k, work.batch, static_cast<int>(work.dtype), work.transpose_a,
                   work.transpose_b, work.accumulate_fp32, work.accumulate),
       options_.repeats == RepeatRule::kKeep, gemm.measured_s);
  gemm.line = columns_.line(row);
  rows_.gemms.push_back(gemm);
}

void MeasurementRows::add(std::size_t row, MeasuredAttention attention, bool training) {
  const Attention& work = attention.work;
  note(row,
       fmt::format("{} {} {} {} {} {} {} {} {}", work.batch, work.heads, work.kv_heads, work.keys, work.head_dim,
                   static_cast<int>(work.dtype), work.causal, static_cast<int>(work.kernel), static_cast<int>(attention.pass)),
       options_.repeats == RepeatRule::kKeep, attention.measured_s);
  attention.line = columns_.line(row);
  (training ? rows_.training_attentions : rows_.attentions).push_back(attention);
}

void MeasurementRows::add(std::size_t row, MeasuredMemory memory) {
  std::string shape = columns_.text(row, "op");
  for (const char* const column : {"dtype", "rows", "cols"}) shape += " " + columns_.text(row, column);
  note(row, shape, options_.repeats == RepeatRule::kKeep, memory.measured_s);
  memory.line = columns_.line(row);
  rows_.memory.push_back(memory);
}

void MeasurementRows::add(std::size_t row, MeasuredCollective collective) {
  const Collective& work = collective.work;
  note(row, fmt::format("{} {} {}", static_cast<int>(work.kind), work.ranks, work.message.value), options_.repeats != RepeatRule::kRefuse,
       collective.measured_s);
  collective.line = columns_.line(row);
  rows_.collectives.push_back(collective);
}

namespace {

bool is_trained(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kFp16 || dtype == DType::kFp32; }

constexpr const char* kQuantised = "products in 8 and 4 bits: public measurements include quantising (kernels.md 2.1)";

void refuse_huge(const MeasuredColumns& columns, std::size_t row, const std::string& column, double elements) {
  constexpr double kMost = 1099511627776;  // 2^40
  if (elements > kMost) columns.fail(row, column, fmt::format("found a tensor of {:.3g} elements, wanted at most 2^40", elements));
}

// Also one without elements: what a division by too many GPUs leaves.
void refuse_huge_product(const MeasuredColumns& columns, std::size_t row, const std::string& column, const Gemm& work) {
  const auto size = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double largest = std::max({size(work.m, work.n), size(work.m, work.k), size(work.k, work.n)});
  refuse_huge(columns, row, column, largest * static_cast<double>(work.batch));
  if (std::min({work.m, work.n, work.k, work.batch}) == 0) columns.fail(row, column, "found a product without elements, wanted some");
}

Gemm gemm_of(const MeasuredColumns& columns, std::size_t row) {
  Gemm work{.m = columns.count(row, "m"), .n = columns.count(row, "n"), .k = columns.count(row, "k"), .transpose_a = true};
  if (columns.has("batch")) work.batch = columns.count(row, "batch");
  refuse_huge_product(columns, row, "m", work);
  return work;
}

void set_layout(const std::string& layout, const MeasuredColumns& columns, std::size_t row, const std::string& column, Gemm& work) {
  if (layout != "TN" && layout != "NN" && layout != "NT") {
    columns.fail(row, column, fmt::format("found layout \"{}\", wanted TN, NN or NT", layout));
  }
  work.transpose_a = layout == "TN";
  work.transpose_b = layout == "NT";
}

// aiconfigurator and NeuSight: op, dtype, [batch,] m, n, k, latency_us; rows of one's own may have `layout` too.
void read_gemm(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  if (columns.has("op")) {
    const std::string& op = columns.text(row, "op");
    if (op != "gemm" && op != "linear" && op != "bmm" && op != "matmul") {
      columns.fail(row, "op", fmt::format("found op \"{}\", wanted gemm, linear, bmm or matmul", op));
    }
  }
  Gemm work = gemm_of(columns, row);
  work.dtype = columns.dtype(row, "dtype");
  if (columns.has("layout")) set_layout(columns.text(row, "layout"), columns, row, "layout", work);
  const double measured_s = columns.latency_s(row);
  if (!is_trained(work.dtype)) return rows.skip(kQuantised);
  rows.add(row, MeasuredGemm{.work = work, .measured_s = measured_s});
}

// InferSim: m, k, n, latency_us, mfu; fp8 (DeepGEMM).
void read_infersim(std::size_t row, MeasurementRows& rows) {
  gemm_of(rows.columns(), row);
  rows.columns().latency_s(row);
  rows.skip(kQuantised);
}

// vidur: products of a Llama-2 layer by tokens, sharded tp ways; all else it times is a framework's eager kernel.
void read_vidur(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& op = columns.text(row, "op");
  const std::int64_t hidden = columns.count(row, "n_embd"), inner = columns.count(row, "n_ffn"), tp = columns.count(row, "tp");
  const std::int64_t heads = columns.count(row, "n_head"), kv_heads = columns.count(row, "n_kv_head");
  Gemm work{.m = columns.count(row, "num_tokens"), .dtype = columns.dtype(row, "dtype"), .transpose_a = true};
  const double measured_s = columns.latency_s(row);
  if (op == "attn_pre_proj") {
    work.n = hidden / heads * (heads + 2 * kv_heads) / tp;
    work.k = hidden;
  } else if (op == "attn_post_proj") {
    work.n = hidden;
    work.k = hidden / tp;
  } else if (op == "mlp_up_proj") {
    work.n = 2 * inner / tp;
    work.k = hidden;
  } else if (op == "mlp_down_proj") {
    work.n = hidden;
    work.k = inner / tp;
  } else {
    return rows.skip("vidur's " + op + ": an eager kernel of its framework");
  }
  refuse_huge_product(columns, row, "tp", work);
  rows.add(row, MeasuredGemm{.work = work, .measured_s = measured_s});
}

// SimuMax: fractions of a peak by shape, "b=1, m=4096, k=5120, n=1536, layout=TN, accumulate=False, out_dtype=bf16".
void read_simumax(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& op = columns.text(row, "op");
  if (op != "matmul") return rows.skip("SimuMax's " + op);
  const std::string text = ", " + columns.text(row, "shape") + ",";
  const auto field = [&](const std::string& name) {
    const std::size_t at = text.find(", " + name + "=");
    if (at == std::string::npos)
      columns.fail(row, "shape", fmt::format("found no {}, wanted b, m, n, k, layout, accumulate and out_dtype", name));
    const std::size_t begin = at + name.size() + 3;
    return text.substr(begin, text.find(',', begin) - begin);
  };
  const auto size = [&](const std::string& name) {
    const std::string value = field(name);
    const bool digits = !value.empty() && value.size() <= 7 && value.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(value) == 0) columns.fail(row, "shape", fmt::format("found {} \"{}\", wanted a whole number", name, value));
    return static_cast<std::int64_t>(std::stoll(value));
  };
  const bool accumulates = field("accumulate") == "True", fp32 = field("out_dtype") == "fp32";
  Gemm work{.m = size("m"), .n = size("n"), .k = size("k"), .batch = size("b")};
  set_layout(field("layout"), columns, row, "shape", work);
  work.accumulate_fp32 = accumulates && fp32;
  work.accumulate = accumulates && !fp32;
  refuse_huge_product(columns, row, "shape", work);
  const double rate = columns.positive(row, "eff") * columns.positive(row, "peak_tflops") * 1e12;
  rows.add(row, MeasuredGemm{.work = work, .measured_s = arithmetic(work).value / rate});
}

Attention attention_shape(const MeasuredColumns& columns, std::size_t row, const std::string& length) {
  Attention work{.queries = columns.count(row, length), .head_dim = columns.count(row, "head_dim")};
  work.keys = work.queries;
  work.causal = columns.yes(row, "causal");
  return work;
}

void refuse_huge_attention(const MeasuredColumns& columns, std::size_t row, const Attention& work) {
  const double elements = static_cast<double>(work.batch) * static_cast<double>(work.heads) * static_cast<double>(work.keys) *
                          static_cast<double>(work.head_dim);
  refuse_huge(columns, row, "head_dim", elements);
}

std::optional<std::int8_t> kernel_of(const std::string& implementation) {
  if (implementation == "FA2" || implementation == "FlashAttention-2") return std::int8_t{0};
  if (implementation == "FA3") return std::int8_t{1};
  if (implementation == "cuDNN") return std::int8_t{2};
  if (implementation == "FA4") return std::int8_t{5};
  if (implementation == "TensorRT") return std::int8_t{3};
  if (implementation == "FA1" || implementation == "FlashAttention Triton") return std::int8_t{4};
  return std::nullopt;
}

// aiconfigurator: op, dtype, causal, batch, seq, heads, kv_heads, head_dim, latency_us; rows of one's own may have `impl`, and backward.
void read_attention(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& op = columns.text(row, "op");
  if (op != "attn_fwd" && op != "attn_bwd" && op != "attn_fwd_bwd") {
    columns.fail(row, "op", fmt::format("found op \"{}\", wanted attn_fwd, attn_bwd or attn_fwd_bwd", op));
  }
  Attention work = attention_shape(columns, row, "seq");
  work.batch = columns.count(row, "batch");
  work.heads = columns.count(row, "heads");
  work.kv_heads = columns.count(row, "kv_heads");
  work.dtype = columns.dtype(row, "dtype");
  work.kernel = rows.options().attention_kernel;
  refuse_huge_attention(columns, row, work);
  const double measured_s = columns.latency_s(row);
  if (work.kv_heads > work.heads) {
    columns.fail(row, "kv_heads", fmt::format("found {} kv_heads, wanted at most {}", work.kv_heads, work.heads));
  }
  const bool named = columns.has("impl");
  if (named) {
    const std::optional<std::int8_t> kernel = kernel_of(columns.text(row, "impl"));
    if (!kernel)
      columns.fail(row, "impl", "found impl \"" + columns.text(row, "impl") + "\", wanted FA1, FA2, FA3, FA4, cuDNN or TensorRT");
    work.kernel = *kernel;
  }
  if (op != "attn_fwd" && !named)
    columns.fail_in_head("", "found backward passes and no column impl, wanted impl: FA1, FA2, FA3, FA4 or cuDNN");
  if (work.dtype != DType::kBf16 && work.dtype != DType::kFp16) return rows.skip("attention in other dtypes than bf16 and fp16");
  if (work.keys < 512) return rows.skip("attention of fewer than 512 keys: launches");
  if (work.head_dim > 256) return rows.skip("attention with head dimensions above 256");
  const AttentionPass pass = op == "attn_fwd"   ? AttentionPass::kForward
                             : op == "attn_bwd" ? AttentionPass::kBackward
                                                : AttentionPass::kBoth;
  rows.add(row, MeasuredAttention{.work = work, .pass = pass, .measured_s = measured_s}, named && work.kernel != 3);
}

// The FlashAttention tables: TFLOP/s by length, of 16 Ki tokens of hidden size 2048 where the table does not state a batch. `length` and
// `pass` are names of columns.
void read_table(std::size_t row, const std::string& length, const std::string& pass_column, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& implementation = columns.text(row, "impl");
  const std::string& pass = columns.text(row, pass_column);
  if (pass != "fwd" && pass != "bwd" && pass != "fwd+bwd") {
    columns.fail(row, pass_column, fmt::format("found {} \"{}\", wanted fwd, bwd or fwd+bwd", pass_column, pass));
  }
  Attention work = attention_shape(columns, row, length);
  constexpr std::int64_t kHidden = 2048, kTokens = 16384;  // kernels.md 2.2
  const bool states_batch = columns.has("batch");
  work.batch = states_batch ? columns.count(row, "batch") : std::max<std::int64_t>(1, kTokens / work.keys);
  work.heads = work.kv_heads = std::max<std::int64_t>(1, kHidden / work.head_dim);
  refuse_huge_attention(columns, row, work);
  const std::string& chosen = rows.options().implementation;
  if (!chosen.empty() && implementation != chosen) return rows.skip("other implementations than " + chosen);
  const std::optional<std::int8_t> kernel = kernel_of(implementation);
  if (!kernel) return rows.skip("implementation " + implementation);
  work.kernel = *kernel;
  if (columns.text(row, "tflops") == "OOM") return rows.skip("out of memory");
  const double tflops = columns.positive(row, "tflops");
  rows.state_rates();
  const double forwards = pass == "fwd" ? 1 : pass == "bwd" ? 2.5 : 3.5;  // FLOPs over those of forward: kernels.md 2.2
  rows.add(row,
           MeasuredAttention{.work = work,
                             .pass = pass == "fwd"   ? AttentionPass::kForward
                                     : pass == "bwd" ? AttentionPass::kBackward
                                                     : AttentionPass::kBoth,
                             .measured_s = forwards * arithmetic(work).value / (tflops * 1e12)},
           true);
}

void read_flash_table(std::size_t row, MeasurementRows& rows) { read_table(row, "seq", "pass", rows); }
void read_paper_table(std::size_t row, MeasurementRows& rows) { read_table(row, "seqlen", "passes", rows); }

std::optional<CollectiveKind> collective_of(const std::string& op) {
  if (op == "all_reduce") return CollectiveKind::kAllReduce;
  if (op == "all_gather") return CollectiveKind::kAllGather;
  if (op == "reduce_scatter") return CollectiveKind::kReduceScatter;
  if (op == "alltoall") return CollectiveKind::kAllToAll;
  if (op == "sendrecv") return CollectiveKind::kSendReceive;
  return std::nullopt;
}

// aiconfigurator: op, dtype, num_gpus, message_size (elements), message_bytes, latency_us.
void read_collective(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& op = columns.text(row, "op");
  const std::optional<CollectiveKind> kind = collective_of(op);
  if (!kind)
    columns.fail(row, "op", fmt::format("found op \"{}\", wanted all_reduce, all_gather, reduce_scatter, alltoall or sendrecv", op));
  const std::int64_t ranks = columns.count(row, "num_gpus");
  constexpr std::int64_t kMostRanks = 1 << 20;
  if (ranks < 2 || ranks > kMostRanks) columns.fail(row, "num_gpus", fmt::format("found {} GPUs, wanted 2 to 2^20", ranks));
  const bool narrow = columns.has("dtype") && bits_of(columns.dtype(row, "dtype")) == 8;
  const Bytes message = columns.bytes(row, "message_bytes");
  const double measured_s = columns.latency_s(row);
  if (narrow && rows.has_wide_types()) return rows.skip("collectives in 8-bit types, beside wider ones: NCCL reduces them more slowly");
  if (message.value < (1 << 10)) return rows.skip("collectives below 1 KiB");
  rows.add(row, MeasuredCollective{.work = {.kind = *kind, .message = message, .ranks = static_cast<std::int32_t>(ranks)},
                                   .measured_s = measured_s});
}

// NeuSight: op, dtype, rows, cols, latency_us.
void read_memory(std::size_t row, MeasurementRows& rows) {
  const MeasuredColumns& columns = rows.columns();
  const std::string& op = columns.text(row, "op");
  const bool norm = op == "ln" || op == "layernorm" || op == "rmsnorm", softmax = op == "softmax";
  const bool arithmetic_bound = op == "pow" || op == "powu";
  const int tensors = norm || softmax ? 2 : elementwise_tensors(op);
  if (tensors == 0 && !arithmetic_bound) {
    columns.fail(row, "op", fmt::format("found op \"{}\", wanted add, mul, div, relu, gelu, tanh, ln, rmsnorm or softmax", op));
  }
  const DType dtype = columns.dtype(row, "dtype");
  const std::int64_t rows_count = columns.count(row, "rows"), cols = columns.count(row, "cols");
  refuse_huge(columns, row, "rows", static_cast<double>(rows_count) * static_cast<double>(cols));
  const double measured_s = columns.latency_s(row);
  if (arithmetic_bound) return rows.skip("powers: bound by arithmetic");
  const Bytes tensor = size_of(rows_count * cols, dtype);
  const MemoryKernel kernel = norm ? MemoryKernel::kNorm : softmax ? MemoryKernel::kSoftmax : MemoryKernel::kFusedElementwise;
  rows.add(row, MeasuredMemory{.work = {.read = Bytes(tensor.value * (tensors - 1)), .written = tensor, .kernel = kernel},
                               .measured_s = measured_s});
}

}  // namespace

std::span<const MeasuredLayout> measured_layouts() {
  static const std::vector<MeasuredLayout> kLayouts = {
      {"InferSim products", {"m", "k", "n", "latency_us", "mfu"}, read_infersim},
      {"matrix products", {"dtype", "m", "n", "k", "latency_us"}, read_gemm},
      {"vidur", {"op", "dtype", "num_tokens", "n_embd", "n_ffn", "n_head", "n_kv_head", "tp", "latency_us"}, read_vidur},
      {"SimuMax", {"op", "peak_tflops", "shape", "eff"}, read_simumax},
      {"FlashAttention tables", {"impl", "pass", "causal", "head_dim", "seq", "tflops"}, read_flash_table},
      {"FlashAttention papers", {"impl", "passes", "causal", "head_dim", "seqlen", "tflops"}, read_paper_table},
      {"attention", {"op", "dtype", "causal", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_us"}, read_attention},
      {"collectives", {"op", "num_gpus", "message_bytes", "latency_us"}, read_collective},
      {"memory-bound kernels", {"op", "dtype", "rows", "cols", "latency_us"}, read_memory}};
  return kLayouts;
}

}  // namespace stepsim
