#include "hardware/backends/kernel_program.h"

#include "hardware/backends/kernel_call_fields.h"

namespace stepsim {

namespace {

// Collects the tensors among the fields of a call.
struct TensorFields {
  std::vector<Tensor>& found;
  void operator()(const Tensor& tensor) { found.push_back(tensor); }
  void operator()(const std::optional<Tensor>& tensor) {
    if (tensor) found.push_back(*tensor);
  }
  void operator()(const std::vector<Tensor>& tensors) { found.insert(found.end(), tensors.begin(), tensors.end()); }
  void operator()(const ProductCall::Operand& operand) { found.push_back(operand.tensor); }
  template <class Other>
  void operator()(const Other&) {}
};

}  // namespace

std::vector<Tensor> operands(const KernelCall& call) {
  std::vector<Tensor> found;
  KernelCall copy = call;
  std::visit([&](auto& each) { visit_fields(each, TensorFields{found}); }, copy);
  return found;
}

std::vector<float> resident_values(const ResidentPart& part) {
  if (!part.values.empty()) return part.values;
  std::vector<float> values(static_cast<std::size_t>(part.rule.rows * part.rule.columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = resident_value(part.rule, static_cast<std::int64_t>(i));
  return values;
}

bool draws(const KernelCall& call) {
  if (const auto* residual = std::get_if<ResidualCall>(&call)) return residual->mask.has_value();
  return std::holds_alternative<DropoutCall>(call);
}

}  // namespace stepsim
