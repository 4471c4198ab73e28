#include "hardware/backends/plan_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <utility>

#include "hardware/backends/kernel_call_fields.h"

namespace stepsim {

namespace {

constexpr std::string_view kHead = "stepsim-plan-1";
constexpr std::int64_t kMost = 100'000'000;  // of anything: a longer list is no plan

class WordWriter {
 public:
  void word(std::string_view text) {
    text_ += text;
    text_ += ' ';
  }
  void line() { text_.back() = '\n'; }
  void operator()(std::int64_t value) { word(std::to_string(value)); }
  void operator()(std::uint64_t value) { word(std::to_string(value)); }
  void operator()(std::int32_t value) { (*this)(static_cast<std::int64_t>(value)); }
  void operator()(bool value) { (*this)(std::int64_t{value}); }
  void operator()(float value) { (*this)(static_cast<double>(value)); }
  void operator()(double value) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%a", value);
    word(buffer);
  }
  void operator()(DType type) { (*this)(static_cast<std::int64_t>(type)); }
  void operator()(ActivationKind kind) { (*this)(static_cast<std::int64_t>(kind)); }
  void operator()(StorageId id) { (*this)(id.index); }
  void operator()(const Tensor& tensor) {
    (*this)(tensor.storage);
    (*this)(tensor.offset.value);
    (*this)(tensor.size.value);
  }
  void operator()(const std::optional<Tensor>& tensor) {
    (*this)(tensor.has_value());
    if (tensor) (*this)(*tensor);
  }
  template <class Item>
  void operator()(const std::vector<Item>& items) {
    (*this)(static_cast<std::int64_t>(items.size()));
    for (const Item& item : items) (*this)(item);
  }
  void operator()(const ProductCall::Operand& operand) { each_field(*this, operand.tensor, operand.row, operand.outer, operand.inner); }
  void operator()(const TableShare& share) { each_field(*this, share.first, share.rows); }
  void operator()(const Draw& draw) { each_field(*this, draw.probability, draw.seed, draw.offset); }
  void operator()(const HeadShape& shape) { each_field(*this, shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim); }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

class WordReader {
 public:
  explicit WordReader(std::string_view text) : text_(text) {}

  std::string_view word() {
    const std::size_t begin = text_.find_first_not_of(" \n", place_);
    if (begin == std::string_view::npos) fail("the end", "a word");
    const std::size_t end = std::min(text_.find_first_of(" \n", begin), text_.size());
    place_ = end;
    ++words_;
    return text_.substr(begin, end - begin);
  }
  [[noreturn]] void fail(std::string_view found, std::string_view wanted) const {
    throw std::runtime_error("word " + std::to_string(words_) + ": found " + std::string(found.substr(0, 40)) + ", wanted " +
                             std::string(wanted));
  }

  void expect_end() {
    if (text_.find_first_not_of(" \n", place_) == std::string_view::npos) return;
    const std::string_view more = word();
    fail(more, "the end");
  }

  template <class Number>
  void whole(Number& value) {
    const std::string_view text = word();
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) fail(text, "a whole number");
  }
  void operator()(std::int64_t& value) { whole(value); }
  void operator()(std::uint64_t& value) { whole(value); }
  void operator()(std::int32_t& value) { whole(value); }
  void operator()(bool& value) { value = below(2) == 1; }
  void operator()(float& value) {
    double wide = 0;
    (*this)(wide);
    value = static_cast<float>(wide);
  }
  void operator()(double& value) {
    const std::string text(word());
    std::size_t read = 0;
    try {
      value = std::stod(text, &read);
    } catch (const std::logic_error&) {
      read = 0;
    }
    if (read != text.size()) fail(text, "a number");
  }
  void operator()(DType& type) { type = static_cast<DType>(below(static_cast<std::int64_t>(DType::kUint8) + 1)); }
  void operator()(ActivationKind& kind) { kind = static_cast<ActivationKind>(below(2)); }
  void operator()(StorageId& id) { id.index = static_cast<std::int32_t>(below(storages_)); }
  void operator()(Tensor& tensor) {
    (*this)(tensor.storage);
    (*this)(tensor.offset.value);
    (*this)(tensor.size.value);
    const Bytes size = sizes_[at(tensor.storage.index)];
    if (tensor.offset < Bytes(0) || tensor.size < Bytes(0) || tensor.size > size || tensor.offset > size - tensor.size) {
      fail(std::to_string(tensor.size.value), "bytes within the storage");
    }
  }
  void operator()(std::optional<Tensor>& tensor) {
    bool present = false;
    (*this)(present);
    if (present) (*this)(tensor.emplace());
  }
  template <class Item>
  void operator()(std::vector<Item>& items) {
    for (std::int64_t count = below(kMost); count > 0; --count) (*this)(items.emplace_back());
  }
  void operator()(ProductCall::Operand& operand) { each_field(*this, operand.tensor, operand.row, operand.outer, operand.inner); }
  void operator()(TableShare& share) { each_field(*this, share.first, share.rows); }
  void operator()(Draw& draw) { each_field(*this, draw.probability, draw.seed, draw.offset); }
  void operator()(HeadShape& shape) { each_field(*this, shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim); }

  std::int64_t below(std::int64_t limit) {
    std::int64_t value = 0;
    (*this)(value);
    if (value < 0 || value >= limit) fail(std::to_string(value), "0 to " + std::to_string(limit - 1));
    return value;
  }
  void set_storages(const std::vector<PlannedStorage>& storages) {
    storages_ = static_cast<std::int64_t>(storages.size());
    for (const PlannedStorage& storage : storages) sizes_.push_back(storage.size);
  }

 private:
  std::string_view text_;
  std::size_t place_ = 0, words_ = 0;
  std::int64_t storages_ = 0;
  std::vector<Bytes> sizes_;
};

template <std::size_t index = 0>
KernelCall empty_call(std::size_t wanted) {
  if constexpr (index < std::variant_size_v<KernelCall>) {
    return wanted == index ? KernelCall(std::in_place_index<index>) : empty_call<index + 1>(wanted);
  } else {
    return NoCall{};
  }
}

// The same for writers and readers: what a plan's parts are made of.
template <class Words, class Rule>
void visit_rule(Words& words, Rule& rule) {
  each_field(words, rule.seed, rule.rows, rule.columns, rule.first_row, rule.first_column, rule.centre, rule.width);
}
template <class Words, class Settings>
void visit_adamw(Words& words, Settings& settings) {
  each_field(words, settings.learning_rate, settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay);
}
template <class Words, class Op>
void visit_op(Words& words, Op& op) {
  each_field(words, op.op, op.stream, op.origin, op.after_end, op.after_start, op.claims, op.releases);
}

// Ops that are there already: what an op waits for, and whose state it takes, is issued before it. A storage is claimed once, before it is
// released, once.
struct ReadSoFar {
  std::vector<bool> ops, claimed, released;  // by id

  void add(const WordReader& words, const PlannedOp& op) {
    for (const auto* list : {&op.after_end, &op.after_start}) {
      for (const std::int32_t before : *list) {
        if (!ops[at(before)]) words.fail(std::to_string(before), "an op that stands before");
      }
    }
    if (op.origin >= 0 && !ops[at(op.origin)]) words.fail(std::to_string(op.origin), "an op that stands before");
    if (ops[at(op.op)]) words.fail(std::to_string(op.op), "an op that was not there yet");
    ops[at(op.op)] = true;
    for (const StorageId storage : op.claims) {
      if (claimed[at(storage.index)]) words.fail(std::to_string(storage.index), "a storage that is not claimed yet");
      claimed[at(storage.index)] = true;
    }
    for (const StorageId storage : op.releases) {
      if (!claimed[at(storage.index)] || released[at(storage.index)])
        words.fail(std::to_string(storage.index), "a storage that is claimed");
      released[at(storage.index)] = true;
    }
  }
};

void check_op(const WordReader& words, const PlannedOp& op, std::int64_t streams, std::int64_t ops) {
  if (op.op < 0 || op.op >= ops) words.fail(std::to_string(op.op), "an op of the plan");
  if (op.stream < 0 || op.stream >= streams) words.fail(std::to_string(op.stream), "a stream of the plan");
  if (op.origin < -1 || op.origin >= ops) words.fail(std::to_string(op.origin), "an op of the plan, or -1");
  for (const auto* list : {&op.after_end, &op.after_start}) {
    for (const std::int32_t before : *list) {
      if (before < 0 || before >= ops) words.fail(std::to_string(before), "an op of the plan");
    }
  }
}

std::string joined(std::string_view name) {  // a name as one word
  std::string word(name);
  for (char& each : word) each = each == ' ' ? '_' : each;
  return word;
}

std::string parted(std::string_view word) {
  std::string name(word);
  for (char& each : name) each = each == '_' ? ' ' : each;
  return name;
}

}  // namespace

std::string plan_text(const ExecutionPlan& plan) {
  WordWriter words;
  words.word(kHead);
  words(plan.step);
  visit_adamw(words, plan.adamw);
  words(static_cast<std::int64_t>(plan.streams.size()));
  for (const std::string& name : plan.streams) words.word(joined(name));
  words.line();
  words(static_cast<std::int64_t>(plan.storages.size()));
  for (const PlannedStorage& storage : plan.storages) each_field(words, storage.size.value, storage.on_host, storage.resident);
  words.line();
  words(static_cast<std::int64_t>(plan.ops.size()));
  words.line();
  for (const PlannedOp& op : plan.ops) {
    visit_op(words, op);
    words(static_cast<std::int64_t>(op.call.index()));
    KernelCall call = op.call;
    std::visit([&](auto& each) { visit_fields(each, words); }, call);
    words.line();
  }
  words(static_cast<std::int64_t>(plan.residents.size()));
  for (const ResidentPart& part : plan.residents) {
    each_field(words, part.tensor, part.type);
    visit_rule(words, part.rule);
  }
  words.line();
  words(static_cast<std::int64_t>(plan.batch.size()));
  for (const BatchPart& part : plan.batch) each_field(words, part.storage, part.values);
  words.line();
  words(plan.observed);
  words.line();
  return std::move(words).text();
}

ExecutionPlan parse_plan(std::string_view text) {
  WordReader words(text);
  ExecutionPlan plan;
  if (const std::string_view head = words.word(); head != kHead) words.fail(head, kHead);
  words(plan.step);
  if (plan.step < 1) words.fail(std::to_string(plan.step), "a step of the optimizer, from 1");
  visit_adamw(words, plan.adamw);
  for (std::int64_t count = words.below(kMost); count > 0; --count) plan.streams.push_back(parted(words.word()));
  for (std::int64_t count = words.below(kMost); count > 0; --count) {
    PlannedStorage& storage = plan.storages.emplace_back();
    storage.size = Bytes(words.below(std::int64_t{1} << 60));
    each_field(words, storage.on_host, storage.resident);
  }
  words.set_storages(plan.storages);
  const std::int64_t ops = words.below(kMost);
  ReadSoFar so_far{std::vector<bool>(static_cast<std::size_t>(ops), false), {}, std::vector<bool>(plan.storages.size(), false)};
  for (const PlannedStorage& storage : plan.storages) so_far.claimed.push_back(storage.resident);
  for (std::int64_t i = 0; i < ops; ++i) {
    PlannedOp& op = plan.ops.emplace_back();
    visit_op(words, op);
    check_op(words, op, static_cast<std::int64_t>(plan.streams.size()), ops);
    so_far.add(words, op);
    op.call = empty_call(static_cast<std::size_t>(words.below(std::variant_size_v<KernelCall>)));
    std::visit([&](auto& each) { visit_fields(each, words); }, op.call);
  }
  for (std::int64_t count = words.below(kMost); count > 0; --count) {
    ResidentPart& part = plan.residents.emplace_back();
    each_field(words, part.tensor, part.type);
    visit_rule(words, part.rule);
    if (part.rule.rows < 1 || part.rule.columns < 1 || part.rule.rows > kMost || part.rule.columns > kMost ||
        size_of(part.rule.rows * part.rule.columns, part.type) != part.tensor.size) {
      words.fail(std::to_string(part.rule.rows), "rows and columns that fill the part");
    }
  }
  for (std::int64_t count = words.below(kMost); count > 0; --count) {
    BatchPart& part = plan.batch.emplace_back();
    each_field(words, part.storage, part.values);
    if (size_of(static_cast<std::int64_t>(part.values.size()), DType::kInt64) != plan.storages[at(part.storage.index)].size) {
      words.fail(std::to_string(part.values.size()), "as many numbers as the storage has room for");
    }
  }
  words(plan.observed);
  words.expect_end();
  return plan;
}

}  // namespace stepsim
