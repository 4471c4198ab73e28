#include "tools/step_contents.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "sim/check.h"

namespace stepsim {

namespace {

std::uint64_t text_seed(std::uint64_t seed, std::string_view text) {
  for (const char each : text) seed = mixed(seed ^ static_cast<unsigned char>(each));
  return seed;
}

class Contents {
 public:
  Contents(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options, KernelProgram& program)
      : request_(request), graph_(graph), options_(options), program_(program) {}

  void add() {
    for (std::int32_t op = 0; at(op) < graph_.ops().size(); ++op) {
      op_ = OpId{op};
      kind_ = graph_.label(graph_.op(op_).kind);
      std::visit([&](const auto& call) { add(call); }, program_.calls[at(op)]);
    }
    add_batch();
  }

 private:
  bool is_weight(const Tensor& tensor) const { return graph_.label(graph_.storages()[at(tensor.storage.index)].role) == "weights"; }

  // A part of a weight, from `offset` elements on. Parts of one weight share a seed.
  void add_part(const Tensor& weight, DType type, std::string_view name, std::int64_t offset, ResidentRule rule) {
    rule.seed = mixed(text_seed(options_.seed, name), graph_.op(op_).layer, 0);
    const Bytes size = size_of(rule.rows * rule.columns, type);
    ResidentPart part{.tensor = {weight.storage, weight.offset + size_of(offset, type), size}, .type = type, .rule = rule};
    if (options_.fills_values) part.values = resident_values(part);
    program_.residents.push_back(std::move(part));
  }

  // False if the weight has its contents: the table of a tied head, a weight of an op that runs again.
  bool is_new(const Tensor& weight) { return known_.insert({weight.storage.index, weight.offset.value}).second; }

  // Of a uniform matrix of that many inputs, all ranks' together: variance 1 / inputs.
  static float width_of(std::int64_t inputs) { return static_cast<float>(std::sqrt(3 / static_cast<double>(inputs))); }

  std::int64_t ranks() const { return request_.parallel.tensor; }

  // Outputs that ranks share: of qkv three blocks, each shared.
  struct Block {
    std::int64_t begin = 0, count = 0;  // of this rank's part
    std::int64_t first = 0;             // in the whole
  };
  std::vector<Block> shared_outputs(std::int64_t count) const {
    const std::int64_t rank = options_.rank;
    if (!kind_.starts_with("qkv")) return {{0, count, rank * count}};
    const ModelSpec& model = request_.model;
    const std::int64_t queries = model.heads / ranks() * model.head_dim, keys = (count - queries) / 2, all = ranks();
    return {{0, queries, rank * queries},
            {queries, keys, all * queries + rank * keys},
            {queries + keys, keys, all * (queries + keys) + rank * keys}};
  }

  template <class Other>
  void add(const Other&) {}

  void add(const ProductCall& call) {
    if (!is_weight(call.b.tensor) || !call.transpose_b || !is_new(call.b.tensor)) return;  // weights are [outputs, inputs]
    const Tensor& weight = call.b.tensor;
    if (kind_ == "attention projection" || kind_ == "fc2" || kind_ == "down") {  // ranks share the inputs
      const std::int64_t first = options_.rank * call.k;
      const float width = width_of(call.k * ranks());
      add_part(weight, call.elements, kind_, 0, {.rows = call.n, .columns = call.k, .first_column = first, .width = width});
      return;
    }
    for (const Block& block : shared_outputs(call.n)) {
      const ResidentRule rule{.rows = block.count, .columns = call.k, .first_row = block.first, .width = width_of(call.k)};
      add_part(weight, call.elements, kind_, block.begin * call.k, rule);
    }
  }
  void add(const EmbeddingCall& call) {
    if (!is_new(call.table)) return;
    const ResidentRule rule{.rows = call.share.rows, .columns = call.hidden, .first_row = call.share.first, .width = width_of(call.hidden)};
    add_part(call.table, call.elements, "words", 0, rule);
  }
  void add(const PositionCall& call) {
    if (!is_new(call.table)) return;
    const std::int64_t rows = call.table.size.value * 8 / bits_of(call.elements) / call.hidden;
    add_part(call.table, call.elements, "positions", 0, {.rows = rows, .columns = call.hidden, .width = width_of(call.hidden)});
  }
  void add(const NormCall& call) {
    if (!is_new(call.gain)) return;
    const ResidentRule gains{.rows = 1, .columns = call.columns, .centre = 1, .width = 0.2F};
    add_part(call.gain, call.elements, "gain of " + std::string(kind_), 0, gains);
    if (call.bias) add_vector(*call.bias, call.columns, call.elements);
  }
  void add_vector(const Tensor& tensor, std::int64_t columns, DType type) {
    if (is_new(tensor)) add_part(tensor, type, "bias of " + std::string(kind_), 0, {.rows = 1, .columns = columns, .width = 0.1F});
  }
  void add(const BiasCall& call) {  // of a matrix whose outputs ranks share
    if (!is_new(call.bias)) return;
    for (const Block& block : shared_outputs(call.columns)) {
      const ResidentRule rule{.rows = 1, .columns = block.count, .first_column = block.first, .width = 0.1F};
      add_part(call.bias, call.elements, kind_, block.begin, rule);
    }
  }
  void add(const ResidualCall& call) {
    if (call.bias) add_vector(*call.bias, call.columns, call.elements);
  }

  void add_batch() {
    std::int64_t batch = 0;  // of the step, in the order of the storages
    for (std::int32_t id = 0; at(id) < graph_.storages().size(); ++id) {
      const std::string_view name = graph_.label(graph_.storages()[at(id)].name);
      if (name != "token ids" && name != "labels") continue;
      const std::int64_t ahead = name == "labels" ? 1 : 0;
      BatchPart part{.storage = StorageId{id}};
      const std::int64_t count = graph_.storages()[at(id)].size.value / 8;
      const std::int64_t micro_batch = graph_.storages()[at(id)].micro_batch;
      const std::uint64_t seed = mixed(text_seed(options_.seed, "tokens"), micro_batch, 0);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t sequence = i / request_.training.sequence, place = i % request_.training.sequence + ahead;
        const std::uint64_t bits = mixed(seed, sequence, place);
        part.values.push_back(static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(request_.model.vocab)));
      }
      program_.batch.push_back(std::move(part));
      ++batch;
    }
    STEPSIM_CHECK(batch > 0);
  }

  const StepRequest& request_;
  const OpGraph& graph_;
  const ProgramOptions& options_;
  KernelProgram& program_;
  std::set<std::pair<std::int32_t, std::int64_t>> known_;
  OpId op_;
  std::string_view kind_;
};

}  // namespace

void add_contents(const StepRequest& request, const OpGraph& graph, const ProgramOptions& options, KernelProgram& program) {
  Contents(request, graph, options, program).add();
}

}  // namespace stepsim
