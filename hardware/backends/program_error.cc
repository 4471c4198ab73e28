// program_error: apart, since it alone needs the graph's own code.
#include <algorithm>

#include "hardware/backends/kernel_program.h"

namespace stepsim {

namespace {

// Columns of a joint tensor lie anywhere in its storage, whatever view of it the op names.
bool is_touched(const OpGraph& graph, OpId op, const Tensor& tensor) {
  for (const auto& rows : {graph.reads(op), graph.writes(op)}) {
    if (std::any_of(rows.begin(), rows.end(), [&](const Tensor& row) { return row.storage == tensor.storage; })) return true;
  }
  return false;
}

// Whether the kind of call is one for the op's kind of work.
bool is_fitting(const OpGraph& graph, OpId op, const KernelCall& call) {
  switch (op_class(graph.work(op))) {
    case OpClass::kMarker:
      return std::holds_alternative<NoCall>(call);
    case OpClass::kCopyToHost:
    case OpClass::kCopyToDevice:
      return std::holds_alternative<CopyCall>(call);
    case OpClass::kCollective:
      return std::holds_alternative<AllReduceCall>(call) || std::holds_alternative<NormAllReduceCall>(call);
    case OpClass::kPointToPoint:
      return false;
    case OpClass::kCompute:
      return call.index() != 0 && !std::holds_alternative<CopyCall>(call) && !std::holds_alternative<AllReduceCall>(call);
  }
  return false;
}

std::string quoted(const OpGraph& graph, OpId op) { return "op '" + graph.op_name(op) + "'"; }

std::optional<std::string> call_error(const OpGraph& graph, OpId op, const KernelCall& call) {
  if (!is_fitting(graph, op, call)) return quoted(graph, op) + " has a call of another kind";
  for (const Tensor& tensor : operands(call)) {
    if (tensor.storage.index < 0 || at(tensor.storage.index) >= graph.storages().size()) {
      return quoted(graph, op) + " has an operand without a storage";
    }
    if (tensor.offset + tensor.size > graph.storages()[at(tensor.storage.index)].size) {
      return quoted(graph, op) + " reaches beyond '" + graph.storage_name(tensor.storage) + "'";
    }
    if (!is_touched(graph, op, tensor)) return quoted(graph, op) + " neither reads nor writes '" + graph.storage_name(tensor.storage) + "'";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> program_error(const OpGraph& graph, const KernelProgram& program) {
  if (program.calls.size() != graph.ops().size()) return "a program of another graph: the numbers of ops differ";
  for (std::int32_t op = 0; at(op) < program.calls.size(); ++op) {
    if (!graph.op(OpId{op}).stream.valid()) return quoted(graph, OpId{op}) + " is on no stream";
    if (auto error = call_error(graph, OpId{op}, program.calls[at(op)])) return error;
  }
  for (const ResidentPart& part : program.residents) {
    const Storage& storage = graph.storages()[at(part.tensor.storage.index)];
    const std::int64_t count = part.rule.rows * part.rule.columns;
    const Bytes size = size_of(part.values.empty() ? count : static_cast<std::int64_t>(part.values.size()), part.type);
    if (!storage.live_at_start || part.tensor.size != size || part.tensor.offset + size > storage.size) {
      return "the contents of '" + graph.storage_name(part.tensor.storage) + "' do not fit it";
    }
  }
  for (const BatchPart& part : program.batch) {
    if (graph.storages()[at(part.storage.index)].size != size_of(static_cast<std::int64_t>(part.values.size()), DType::kInt64)) {
      return "the contents of '" + graph.storage_name(part.storage) + "' do not fit it";
    }
  }
  return std::nullopt;
}

}  // namespace stepsim
