#include "models/experts_block_dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/check.h"

namespace stepsim {

namespace {

enum class Route : std::uint8_t { kLocal, kAllGather, kAllToAll, kDeepEp, kHybridEp };

Route route_of(const TemplateBuilder& builder, const ExpertRows& rows) {
  if (rows.group() == 1) return Route::kLocal;
  switch (builder.context().parallel.dispatcher.value_or(Dispatcher::kAllToAll)) {
    case Dispatcher::kAllGather:
      return Route::kAllGather;
    case Dispatcher::kAllToAll:
      return Route::kAllToAll;
    case Dispatcher::kDeepEp:
      return Route::kDeepEp;
    case Dispatcher::kHybridEp:  // without fused permutation it moves tokens alone, as DeepEP does
      return builder.context().framework.fused_permutation ? Route::kHybridEp : Route::kDeepEp;
  }
  check_failed("dispatcher", __FILE__, __LINE__);
}

// Whether the way back multiplies by the router's table, which is at hand where its tokens are.
bool merges_table(Route route) { return route == Route::kLocal || route == Route::kAllToAll; }

// Rounded up; what no device holds stays a number that no tensor may have.
std::int64_t rounded_up(double rows) { return static_cast<std::int64_t>(std::ceil(std::clamp(rows, 1.0, 4e18))); }

Routing routing_of(const ExpertsSpec& experts) {
  return {.experts = static_cast<std::int32_t>(experts.experts),
          .choices = static_cast<std::int32_t>(experts.top_k),
          .groups = static_cast<std::int32_t>(experts.groups),
          .best_groups = static_cast<std::int32_t>(experts.top_groups)};
}

// Names of one way: forward or its reverse in backward.
struct Way {
  Direction direction = kForwardOp;
  std::string name;
  bool permutes_beside = false;  // where the exchange is beside compute, the permutation of this rank's own rows is too
};

bool exchanges_beside(const TemplateBuilder& builder) {
  const ParallelLayout& parallel = builder.context().parallel;
  return parallel.expert > 1 && parallel.overlap_expert_exchange.value_or(false);
}

SlotIndex tokens_slot(TemplateBuilder& builder, const Way& way, const std::string& name, std::int64_t rows) {
  return builder.made(way.direction, name, {rows, builder.shape().hidden}, kExpertsModule);
}

SlotIndex fp32_slot(TemplateBuilder& builder, const Way& way, const std::string& name, std::vector<std::int64_t> shape) {
  const bool forward = way.direction == kForwardOp;
  return builder.add({.name = name,
                      .kind = forward ? SlotKind::kForward : SlotKind::kGradient,
                      .size = {},
                      .shape = std::move(shape),
                      .dtype = DType::kFp32,
                      .role = forward ? Role::kActivations : Role::kActivationGradients,
                      .module = forward ? kExpertsModule : ""});
}

// Rows and, on the ways that have them, their probabilities or the gradients of these.
struct Rows {
  SlotIndex tokens = kNoSlot, probabilities = kNoSlot;
};

void gather_pass(TemplateBuilder& builder, const Way& way, const std::string& step, const std::vector<SlotIndex>& reads,
                 const std::vector<SlotIndex>& writes, OpStream stream = OpStream::kCompute) {
  KernelPass pass{.name = way.name + " " + step,
                  .module = kExpertsModule,
                  .reads = {},
                  .writes = {},
                  .updates = {},
                  .holds = {},
                  .kernel = MemoryKernel::kGather,
                  .stream = stream};
  for (const SlotIndex slot : reads) {
    if (slot != kNoSlot) pass.reads.push_back(slot);
  }
  for (const SlotIndex slot : writes) {
    if (slot != kNoSlot) pass.writes.push_back(slot);
  }
  builder.pass(way.direction, std::move(pass));
}

struct Exchange {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllToAll;
  CommunicatorRanks ranks;
  CollectiveLibrary library = CollectiveLibrary::kNccl;
  std::optional<Bytes> message{};
  bool stays = false;  // on compute's stream, whatever the others do
  Routing routing{};   // of the library's
};

void exchange(TemplateBuilder& builder, const Way& way, const Exchange& what, SlotIndex input, SlotIndex output) {
  builder.collective(way.direction, {.name = way.name + " " + what.name,
                                     .module = kExpertsModule,
                                     .kind = what.kind,
                                     .input = input,
                                     .output = output,
                                     .beside_compute = exchanges_beside(builder) && !what.stays,
                                     .ranks = what.ranks,
                                     .library = what.library,
                                     .routing = what.routing,
                                     .message = what.message});
}

CommunicatorRanks whole_group(const ExpertRows& rows) { return {Group::kExpert, rows.group(), 1}; }
CommunicatorRanks expert_ranks(const ExpertRows& rows) { return {Group::kExpert, rows.expert, rows.expert_tensor}; }
CommunicatorRanks expert_tensor_ranks(const ExpertRows& rows) { return {Group::kExpert, rows.expert_tensor, 1}; }

Bytes bytes_of_tokens(const TemplateBuilder& builder, std::int64_t tokens) {
  const double bits = as_double(bits_of(builder.shape().compute));
  return Bytes(rounded_up(as_double(tokens) * as_double(builder.shape().hidden) * bits / 8));
}

// What HybridEP sends with each copy of a token where probabilities or their gradients travel: an fp32 for every expert of the NVLink
// domain (DeepEP csrc/hybrid_ep/extension/permute.cu permute_kernel: rows of num_of_local_experts x num_ranks_per_node), here of the group.
Bytes copied_probabilities(const ExpertRows& rows) {
  return Bytes(rounded_up(as_double(rows.arrived) * as_double(rows.local_experts) * rows.expert * 4));
}

// A dispatch or combine of the library, whose messages are tokens.
Exchange library_exchange(const TemplateBuilder& builder, const ExpertRows& rows, CollectiveKind kind, bool probabilities) {
  const bool hybrid = builder.context().parallel.dispatcher == Dispatcher::kHybridEp;
  Exchange exchange{.name = kind == CollectiveKind::kDispatch ? "to ranks" : "from ranks",
                    .kind = kind,
                    .ranks = whole_group(rows),
                    .library = hybrid ? CollectiveLibrary::kHybridEp : CollectiveLibrary::kDeepEp,
                    .message = bytes_of_tokens(builder, rows.arrived),
                    .routing = routing_of(builder.context().model.experts)};
  if (hybrid && probabilities) *exchange.message += copied_probabilities(rows);
  return exchange;
}

// All tokens of the group. Forward they are gathered into the global buffer, where the framework has one, which a step holds anyway:
// kNoSlot.
SlotIndex gathered_tokens(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, SlotIndex tokens) {
  const ExpertRows& rows = dispatch.rows;
  const std::vector<std::int64_t> shape = {rows.group_tokens, builder.shape().hidden};
  if (way.direction == kForwardOp && builder.context().framework.global_buffers) {
    builder.op(kForwardOp, {.name = way.name + " all-gather",
                            .module = kExpertsModule,
                            .work = Collective{.kind = CollectiveKind::kAllGather,
                                               .message = bytes_of_tokens(builder, rows.group_tokens),
                                               .ranks = rows.group()},
                            .group = Group::kExpert,
                            .stream = exchanges_beside(builder) ? OpStream::kExpert : OpStream::kCompute,
                            .reads = {tokens},
                            .writes = {},
                            .updates = {},
                            .holds = {},
                            .after = {}});
    return kNoSlot;
  }
  const SlotIndex whole = builder.gathered(way.name + ", all tokens", shape);
  exchange(builder, way, {.name = "all-gather", .kind = CollectiveKind::kAllGather, .ranks = whole_group(rows)}, tokens, whole);
  return whole;
}

// The router's table for all tokens of the group.
SlotIndex gathered_table(TemplateBuilder& builder, const Dispatch& dispatch, const std::string& name, SlotIndex local) {
  const Slot part = builder.slot(local);
  const SlotIndex whole = builder.add({.name = name + ", all tokens",
                                       .kind = SlotKind::kWorkspace,
                                       .size = {},
                                       .shape = {dispatch.rows.group_tokens, part.shape.back()},
                                       .dtype = part.dtype,
                                       .role = Role::kCommunication,
                                       .module = ""});
  exchange(builder, {kForwardOp, name},
           {.name = "all-gather", .kind = CollectiveKind::kAllGather, .ranks = whole_group(dispatch.rows), .stays = true}, local, whole);
  return whole;
}

Rows added_rows(TemplateBuilder& builder, const Way& way, const std::string& suffix, std::int64_t rows, bool probabilities) {
  Rows added{.tokens = tokens_slot(builder, way, way.name + ", " + suffix, rows)};
  if (probabilities) added.probabilities = fp32_slot(builder, way, way.name + " probabilities, " + suffix, {rows});
  return added;
}

// Between the ranks, tokens and then probabilities.
Rows exchanged_rows(TemplateBuilder& builder, const Way& way, const Exchange& what, const Rows& in, const Rows& out) {
  exchange(builder, way, what, in.tokens, out.tokens);
  if (in.probabilities == kNoSlot) return out;
  Exchange small = what;
  small.name = "probability " + what.name;
  exchange(builder, way, small, in.probabilities, out.probabilities);
  return out;
}

// From this rank's rows, sorted by expert, to the rows of this rank's experts: `last` where nothing follows.
Rows to_expert_ranks(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, Rows rows, const Rows& last) {
  const ExpertRows& sizes = dispatch.rows;
  const bool probabilities = rows.probabilities != kNoSlot, sorts = sizes.local_experts > 1, gathers = sizes.expert_tensor > 1;
  if (sizes.expert > 1) {
    const Exchange all_to_all{.name = "all-to-all", .ranks = expert_ranks(sizes)};
    const bool ends = !gathers && !sorts;
    rows =
        exchanged_rows(builder, way, all_to_all, rows, ends ? last : added_rows(builder, way, "exchanged", sizes.exchanged, probabilities));
  }
  if (gathers) {
    const Exchange gather{
        .name = "expert tensor all-gather", .kind = CollectiveKind::kAllGather, .ranks = expert_tensor_ranks(sizes), .stays = true};
    rows = exchanged_rows(builder, way, gather, rows, sorts ? added_rows(builder, way, "gathered", sizes.rows, probabilities) : last);
  }
  if (sorts) gather_pass(builder, way, "sort", {rows.tokens, rows.probabilities}, {last.tokens, last.probabilities});
  return last;
}

Rows from_expert_ranks(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, Rows rows) {
  const ExpertRows& sizes = dispatch.rows;
  const bool probabilities = rows.probabilities != kNoSlot;
  if (sizes.local_experts > 1) {
    const Rows unsorted = added_rows(builder, way, "unsorted", sizes.rows, probabilities);
    gather_pass(builder, way, "sort", {rows.tokens, rows.probabilities}, {unsorted.tokens, unsorted.probabilities});
    rows = unsorted;
  }
  if (sizes.expert_tensor > 1) {
    const Exchange scatter{
        .name = "expert tensor reduce-scatter", .kind = CollectiveKind::kReduceScatter, .ranks = expert_tensor_ranks(sizes), .stays = true};
    rows = exchanged_rows(builder, way, scatter, rows, added_rows(builder, way, "scattered", sizes.exchanged, probabilities));
  }
  if (sizes.expert > 1) {
    const Exchange all_to_all{.name = "all-to-all", .ranks = expert_ranks(sizes)};
    rows = exchanged_rows(builder, way, all_to_all, rows, added_rows(builder, way, "exchanged", sizes.sent, probabilities));
  }
  return rows;
}

OpStream own_stream(const TemplateBuilder& builder, const Way& way) {
  return way.permutes_beside && exchanges_beside(builder) ? OpStream::kExpert : OpStream::kCompute;
}

// The sum of each token's rows. Without fused permutation: zeros, to which each row is added (Megatron-LM moe/moe_utils.py unpermute:
// scatter_add_), so that each row's token is read and written once more.
void unpermute(TemplateBuilder& builder, const Way& way, const std::vector<SlotIndex>& reads, const Rows& last, OpStream stream) {
  if (builder.context().framework.fused_permutation) {
    gather_pass(builder, way, "unpermute", reads, {last.tokens, last.probabilities}, stream);
    return;
  }
  builder.pass(way.direction, {.name = way.name + " zeros",
                               .module = kExpertsModule,
                               .reads = {},
                               .writes = {last.tokens},
                               .updates = {},
                               .holds = {},
                               .stream = stream});
  const Bytes rows = builder.size(reads.front()), tokens = builder.size(last.tokens);
  KernelPass pass{.name = way.name + " unpermute",
                  .module = kExpertsModule,
                  .reads = {},
                  .writes = {},
                  .updates = {last.tokens},
                  .holds = {},
                  .kernel = MemoryKernel::kGather,
                  .further_reads = std::max(rows, tokens) - tokens,
                  .further_writes = std::max(rows, tokens) - tokens,
                  .stream = stream};
  for (const SlotIndex slot : reads) {
    if (slot != kNoSlot) pass.reads.push_back(slot);
  }
  if (last.probabilities != kNoSlot) pass.writes.push_back(last.probabilities);
  builder.pass(way.direction, std::move(pass));
}

// What the first permutation of a way reads and makes besides the rows.
struct Beside {
  std::vector<SlotIndex> reads, writes;
};

// HybridEP's buffers are no tensors: its kernels around the exchange are on the exchange's stream.
void order_kernel(TemplateBuilder& builder, const Way& way, const std::string& step, const MemoryBound& work, SlotIndex rows,
                  SlotIndex row_map, bool makes_rows) {
  TemplateOp op{.name = way.name + " " + step,
                .module = kExpertsModule,
                .work = work,
                .stream = exchanges_beside(builder) ? OpStream::kExpert : OpStream::kCompute,
                .reads = {row_map},
                .writes = {},
                .updates = {},
                .holds = {},
                .after = {}};
  (makes_rows ? op.updates : op.reads).push_back(rows);
  builder.op(way.direction, std::move(op));
}

// The tokens that arrived in the buffer become the rows of the experts.
void order_arrived(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, SlotIndex rows) {
  if (builder.context().framework.permutes_in_exchange) return;
  const Bytes read = bytes_of_tokens(builder, dispatch.rows.arrived) + builder.size(dispatch.row_map);
  const MemoryBound work{.read = read, .written = builder.size(rows), .kernel = MemoryKernel::kGather};
  order_kernel(builder, way, "permute", work, rows, dispatch.row_map, true);
}

// Each token's rows on this rank are summed into the buffer.
void sum_returning(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, SlotIndex rows) {
  if (builder.context().framework.permutes_in_exchange) return;
  const Bytes read = builder.size(rows) + builder.size(dispatch.row_map);
  const MemoryBound work{.read = read, .written = bytes_of_tokens(builder, dispatch.rows.arrived), .kernel = MemoryKernel::kGather};
  order_kernel(builder, way, "unpermute", work, rows, dispatch.row_map, false);
}

// From this rank's tokens to the rows of its experts, `last`.
void spread(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, const Rows& in, const Rows& last, const Beside& beside) {
  const ExpertRows& sizes = dispatch.rows;
  std::vector<SlotIndex> reads = {in.tokens, in.probabilities, dispatch.row_map};
  reads.insert(reads.end(), beside.reads.begin(), beside.reads.end());
  const auto writes = [&](const Rows& rows) {
    std::vector<SlotIndex> all = {rows.tokens, rows.probabilities};
    all.insert(all.end(), beside.writes.begin(), beside.writes.end());
    return all;
  };
  switch (route_of(builder, sizes)) {
    case Route::kLocal:
      gather_pass(builder, way, "permute", reads, writes(last));
      return;
    case Route::kAllGather: {
      reads.front() = gathered_tokens(builder, dispatch, way, in.tokens);
      gather_pass(builder, way, "permute", reads, writes(last));
      return;
    }
    case Route::kAllToAll: {
      const bool moved = sizes.expert > 1 || sizes.expert_tensor > 1;
      STEPSIM_CHECK(moved);
      const Rows permuted = added_rows(builder, way, "permuted", sizes.sent, last.probabilities != kNoSlot);
      gather_pass(builder, way, "permute", reads, writes(permuted), own_stream(builder, way));
      to_expert_ranks(builder, dispatch, way, permuted, last);
      return;
    }
    case Route::kDeepEp: {
      const SlotIndex arrived = tokens_slot(builder, way, way.name + ", arrived", sizes.arrived);
      exchange(builder, way, library_exchange(builder, sizes, CollectiveKind::kDispatch, last.probabilities != kNoSlot), in.tokens,
               arrived);
      reads.front() = arrived;
      gather_pass(builder, way, "permute", reads, writes(last));
      return;
    }
    case Route::kHybridEp:
      exchange(builder, way, library_exchange(builder, sizes, CollectiveKind::kDispatch, last.probabilities != kNoSlot), in.tokens,
               last.tokens);
      order_arrived(builder, dispatch, way, last.tokens);
      reads.front() = kNoSlot;
      if (last.probabilities != kNoSlot) gather_pass(builder, way, "probabilities", reads, {last.probabilities});
      return;
  }
}

// From the rows of this rank's experts to this rank's tokens, `last`; its probabilities are the router's table. Returns the rows that the
// last permutation reads.
SlotIndex collect(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way, const Rows& in, const Rows& last, SlotIndex factor) {
  const ExpertRows& sizes = dispatch.rows;
  const std::int64_t hidden = builder.shape().hidden;
  switch (route_of(builder, sizes)) {
    case Route::kLocal:
      unpermute(builder, way, {in.tokens, in.probabilities, dispatch.row_map, factor}, last, OpStream::kCompute);
      return in.tokens;
    case Route::kAllGather: {
      Rows whole{.tokens = builder.made(way.direction, way.name + ", all tokens", {sizes.group_tokens, hidden}, kExpertsModule)};
      if (last.probabilities != kNoSlot) {
        whole.probabilities =
            fp32_slot(builder, way, way.name + " probabilities, all tokens", {sizes.group_tokens, builder.context().model.experts.experts});
      }
      unpermute(builder, way, {in.tokens, in.probabilities, dispatch.row_map}, whole, OpStream::kCompute);
      exchanged_rows(builder, way, {.name = "reduce-scatter", .kind = CollectiveKind::kReduceScatter, .ranks = whole_group(sizes)}, whole,
                     last);
      return in.tokens;
    }
    case Route::kAllToAll: {
      const Rows rows = from_expert_ranks(builder, dispatch, way, in);
      unpermute(builder, way, {rows.tokens, rows.probabilities, dispatch.row_map, factor}, last, own_stream(builder, way));
      return rows.tokens;
    }
    case Route::kDeepEp:
    case Route::kHybridEp: {
      SlotIndex tokens = in.tokens;
      if (route_of(builder, sizes) == Route::kDeepEp) {
        tokens = tokens_slot(builder, way, way.name + ", arrived", sizes.arrived);
        unpermute(builder, way, {in.tokens, dispatch.row_map}, {tokens}, OpStream::kCompute);
      } else {
        sum_returning(builder, dispatch, way, in.tokens);
      }
      exchange(builder, way, library_exchange(builder, sizes, CollectiveKind::kCombine, last.probabilities != kNoSlot), tokens,
               last.tokens);
      if (last.probabilities != kNoSlot) {
        gather_pass(builder, way, "probabilities", {in.probabilities, dispatch.row_map}, {last.probabilities});
      }
      return in.tokens;
    }
  }
  check_failed("route", __FILE__, __LINE__);
}

std::int64_t mapped_tokens(Route route, const ExpertRows& rows) {
  if (route == Route::kAllGather) return rows.group_tokens;
  return route == Route::kDeepEp ? rows.arrived : rows.tokens;
}

bool prepares(const TemplateBuilder& builder) {
  const TemplateContext& context = builder.context();
  const CudaGraph graph = context.training.cuda_graph.value_or(context.framework.cuda_graph);
  return context.framework.reads_expert_counts && graph != CudaGraph::kFull;
}

SlotIndex counts_slot(TemplateBuilder& builder, const std::string& name, std::vector<std::int64_t> shape, DType dtype) {
  return builder.add({.name = name,
                      .kind = SlotKind::kWorkspace,
                      .size = {},
                      .shape = std::move(shape),
                      .dtype = dtype,
                      .role = Role::kWorkspace,
                      .module = ""});
}

void prepare(TemplateBuilder& builder, const Dispatch& dispatch, const Way& way) {
  const std::int64_t experts = builder.context().model.experts.experts;
  const ExpertRows& sizes = dispatch.rows;
  SlotIndex counted = dispatch.router.map;
  const bool alone = sizes.group() == 1, by_map = !alone && route_of(builder, sizes) == Route::kHybridEp;
  if (by_map) {
    counted = counts_slot(builder, "routing map of the group", {sizes.group_tokens, experts}, builder.slot(counted).dtype);
    exchange(builder, way,
             {.name = "routing map all-gather", .kind = CollectiveKind::kAllGather, .ranks = whole_group(sizes), .stays = true},
             dispatch.router.map, counted);
  }
  SlotIndex counts = counts_slot(builder, "tokens by expert", {experts}, DType::kInt64);
  gather_pass(builder, way, "count", {counted}, {counts});
  if (!alone && !by_map) {
    const SlotIndex all = counts_slot(builder, "tokens by expert and rank", {sizes.group(), experts}, DType::kInt64);
    exchange(builder, way, {.name = "count all-gather", .kind = CollectiveKind::kAllGather, .ranks = whole_group(sizes), .stays = true},
             counts, all);
    counts = all;
  }
  builder.op(way.direction, {.name = way.name + " counts to the host",
                             .module = kExpertsModule,
                             .work = Copy{.bytes = builder.size(counts), .direction = CopyDirection::kDeviceToHost},
                             .reads = {counts},
                             .writes = {},
                             .updates = {},
                             .holds = {},
                             .after = {}});
}

SlotIndex table_gradient(TemplateBuilder& builder, const Router& router, const std::string& name) {
  return fp32_slot(builder, {kBackwardOp, ""}, name, builder.slot(router.probabilities).shape);
}

}  // namespace

ExpertRows expert_rows(const TemplateContext& context, const DeviceShape& shape) {
  const ExpertsSpec& experts = context.model.experts;
  ExpertRows rows;
  rows.expert = context.parallel.expert;
  rows.expert_tensor = context.parallel.expert_tensor_ranks();
  STEPSIM_CHECK(experts.experts % rows.expert == 0);
  rows.local_experts = experts.experts / rows.expert;
  rows.tokens = shape.local_tokens;
  const double tokens = as_double(rows.tokens), top_k = as_double(experts.top_k), tensor = rows.expert_tensor;
  const double capacity = context.training.capacity;
  const double load = capacity > 0 ? capacity : context.training.imbalance;
  rows.group_tokens = rounded_up(tokens * tensor * rows.expert);
  rows.sent = rounded_up(capacity > 0 ? tokens * top_k * capacity : tokens * top_k);
  rows.exchanged = rounded_up(tokens * top_k * load);
  rows.rows = rounded_up(tokens * tensor * top_k * load);
  rows.arrived = rounded_up(tokens * tensor * parts_reached(routing_of(experts), rows.expert) * (capacity > 0 ? 1 : load));
  return rows;
}

Dispatch dispatch_forward(TemplateBuilder& builder, const Router& router, SlotIndex input, bool by_row) {
  const Way way{kForwardOp, "token dispatch"};
  Dispatch dispatch{.rows = expert_rows(builder.context(), builder.shape()), .router = router};
  const Route route = route_of(builder, dispatch.rows);
  const bool gathers = route == Route::kAllGather;
  if (prepares(builder)) prepare(builder, dispatch, way);
  const SlotIndex map = gathers ? gathered_table(builder, dispatch, "routing map", router.map) : router.map;
  SlotIndex probabilities = kNoSlot;
  if (by_row || !merges_table(route)) {
    probabilities = gathers ? gathered_table(builder, dispatch, "router probabilities", router.probabilities) : router.probabilities;
  }
  dispatch.row_map = builder.add({.name = "row map",
                                  .kind = SlotKind::kForward,
                                  .size = {},
                                  .shape = {mapped_tokens(route, dispatch.rows), 2 * dispatch.rows.local_experts + 1},
                                  .dtype = DType::kInt32,
                                  .module = kExpertsModule});
  gather_pass(builder, way, "row map", {map}, {dispatch.row_map});
  dispatch.input = tokens_slot(builder, way, "experts input", dispatch.rows.rows);
  if (probabilities != kNoSlot) dispatch.probabilities = fp32_slot(builder, way, "expert probabilities", {dispatch.rows.rows});
  spread(builder, dispatch, way, {input, probabilities}, {dispatch.input, dispatch.probabilities}, {});
  return dispatch;
}

SlotIndex combine_forward(TemplateBuilder& builder, Dispatch& dispatch, SlotIndex expert_output, bool by_row) {
  const Way way{kForwardOp, "token combine", true};
  const bool merges = !by_row && merges_table(route_of(builder, dispatch.rows));
  SlotIndex rows = expert_output;
  if (!by_row && !merges) {
    dispatch.returned = expert_output;
    rows = tokens_slot(builder, way, "experts output, weighted", dispatch.rows.rows);
    gather_pass(builder, way, "probability product", {expert_output, dispatch.probabilities}, {rows});
  }
  const SlotIndex output = tokens_slot(builder, way, "experts output, combined", dispatch.rows.tokens);
  const SlotIndex last = collect(builder, dispatch, way, {rows}, {output}, merges ? dispatch.router.probabilities : kNoSlot);
  if (merges) dispatch.returned = last;
  return output;
}

CombineGradients combine_backward(TemplateBuilder& builder, const Dispatch& dispatch, SlotIndex output_gradient, bool by_row) {
  const Way way{kBackwardOp, "token combine backward", true};
  CombineGradients gradients;
  gradients.expert_output = tokens_slot(builder, way, "experts output gradient", dispatch.rows.rows);
  if (by_row) {
    spread(builder, dispatch, way, {output_gradient}, {gradients.expert_output}, {});
    return gradients;
  }
  if (merges_table(route_of(builder, dispatch.rows))) {
    gradients.probabilities = table_gradient(builder, dispatch.router, "router probabilities gradient");
    spread(builder, dispatch, way, {output_gradient}, {gradients.expert_output},
           {{dispatch.returned, dispatch.router.probabilities}, {gradients.probabilities}});
    return gradients;
  }
  const SlotIndex weighted = tokens_slot(builder, way, "experts output gradient, weighted", dispatch.rows.rows);
  spread(builder, dispatch, way, {output_gradient}, {weighted}, {});
  gradients.row_probabilities = fp32_slot(builder, way, "expert probabilities gradient", {dispatch.rows.rows});
  gather_pass(builder, way, "probability product", {weighted, dispatch.returned, dispatch.probabilities},
              {gradients.expert_output, gradients.row_probabilities});
  return gradients;
}

DispatchGradients dispatch_backward(TemplateBuilder& builder, const Dispatch& dispatch, SlotIndex expert_input,
                                    SlotIndex row_probabilities) {
  const Way way{kBackwardOp, "token dispatch backward"};
  DispatchGradients gradients;
  gradients.input = tokens_slot(builder, way, "dispatched tokens gradient", dispatch.rows.tokens);
  if (row_probabilities != kNoSlot) gradients.probabilities = table_gradient(builder, dispatch.router, "router probabilities gradient");
  collect(builder, dispatch, way, {expert_input, row_probabilities}, {gradients.input, gradients.probabilities}, kNoSlot);
  return gradients;
}

}  // namespace stepsim
